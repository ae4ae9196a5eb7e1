"""``[place]``: where the gateway is, for periods of local time (`gateway.local_time`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec


class PlaceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[place]``. time_zone: of the IANA database; empty: that of the machine. latitude, longitude: degrees, north and
    east are positive; without them, it is not known when the sun rises. None of the three: local time is not kept."""

    time_zone: str = ""
    latitude: Annotated[float, msgspec.Meta(ge=-90, le=90)] | None = None
    longitude: Annotated[float, msgspec.Meta(ge=-180, le=180)] | None = None

    @property
    def is_set(self) -> bool:
        return self != PlaceSettings()

    @property
    def position(self) -> tuple[float, float] | None:
        """Latitude and longitude."""
        return None if self.latitude is None or self.longitude is None else (self.latitude, self.longitude)


def place_faults(settings: PlaceSettings) -> Iterator[tuple[str, str]]:
    """The keys that are wrong, and why."""
    for key, other in (("latitude", "longitude"), ("longitude", "latitude")):
        if getattr(settings, key) is not None and getattr(settings, other) is None:
            yield key, f"{other} is missing; set both, or neither"
    try:
        time_zone(settings.time_zone)
    except ValueError as error:
        yield "time_zone", str(error)


def time_zone(name: str) -> tzinfo:
    """name: of the IANA database; empty: the machine's. Raises ValueError for one that is not known here."""
    if not name:
        import tzlocal  # not above: it takes some milliseconds, and most commands have no use for it

        return tzlocal.get_localzone()
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # KeyError: ZoneInfoNotFoundError; OSError: "Europe" is a folder
        raise ValueError(f"{name!r} is no time zone that this machine knows; one is Europe/Berlin") from error
