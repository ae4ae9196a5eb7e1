"""``[place]``: where the gateway is, for periods of local time (`gateway.local_time`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from math import nan
from zoneinfo import ZoneInfo

import msgspec


class PlaceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[place]``. time_zone: of the IANA database; empty: that of the machine. position: latitude and longitude in
    degrees, north and east are positive, such as ``52.52, 13.40``; empty: it is not known when the sun rises. Both are
    empty: local time is not kept."""

    time_zone: str = ""
    position: str = ""

    @property
    def is_set(self) -> bool:
        return self != PlaceSettings()

    def coordinates(self) -> tuple[float, float] | None:
        """Latitude and longitude, None where there is no position. Raises ValueError."""
        if not self.position:
            return None
        try:
            latitude, longitude = map(float, self.position.split(","))
        except ValueError:
            latitude, longitude = nan, nan
        if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
            raise ValueError(
                f"{self.position!r} is not latitude and longitude in degrees, with a comma between them, such as "
                '"52.52, 13.40"'
            )
        return latitude, longitude


def place_faults(settings: PlaceSettings) -> Iterator[tuple[str, str]]:
    """The keys that are wrong, and why. The machine's own time zone does not matter where local time is not kept."""
    if not settings.is_set:
        return
    for key, read in (("time_zone", lambda: time_zone(settings.time_zone)), ("position", settings.coordinates)):
        try:
            read()
        except ValueError as error:
            yield key, str(error)


def time_zone(name: str) -> tzinfo:
    """name: of the IANA database; empty: the machine's. Raises ValueError for one that is not known here."""
    if not name:
        import tzlocal  # not above: it takes some milliseconds, and most commands have no use for it

        try:
            return tzlocal.get_localzone()
        except (ValueError, OSError, KeyError) as error:  # TZ or /etc/localtime is none of the database, or two differ
            why = " ".join(str(error.args[0] if error.args else error).split())
            raise ValueError(f"this machine's own is not known ({why}); name one such as Europe/Berlin") from error
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # KeyError: ZoneInfoNotFoundError; OSError: "Europe" is a folder
        raise ValueError(
            f"{name!r} is no time zone that this machine knows; one is Europe/Berlin (Debian's package tzdata has them)"
        ) from error
