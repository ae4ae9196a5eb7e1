"""The table ``[http_devices]`` of ``lamplighter.toml``."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from lamplighter.adapters.mapping import uris
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.engine.client.places import File, UserName
from lamplighter.engine.errors import PayloadError


def origin(uri: str) -> str:
    """Scheme, host and port of a URI in normal form."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}"


class HttpDeviceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table ``[http_devices.devices.NAME]``: how the gateway authenticates itself to a device.

    origin: scheme, host and port, such as ``https://meter.lan``; the secret is sent nowhere else.
    username: for the scheme basic (RFC 7617); without it the secret is a bearer token (RFC 6750).
    secret_file: its first line is the password or token. A relative path begins at the folder of lamplighter.toml.
    """

    origin: str
    username: UserName = ""
    secret_file: File

    def __post_init__(self) -> None:
        try:
            uri = uris.normal(self.origin)
        except PayloadError as error:
            raise ValueError(f"origin: {error}") from error
        if urlsplit(uri).scheme not in ("http", "https") or uri != f"{origin(uri)}/":
            raise ValueError(f"origin: {self.origin}: write scheme and host, such as https://meter.lan")
        if ":" in self.username:
            raise ValueError("username: a colon cannot be in it (RFC 7617)")

    @property
    def scheme(self) -> str:
        """Of the authentication, as Thing Descriptions name it."""
        return "basic" if self.username else "bearer"


class HttpDevicesSettings(PolledSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As `PolledSettings`, and the credentials.

    ca_file: certificates of the authorities for https, in PEM; empty: those of the machine.
    devices: tables ``[http_devices.devices.NAME]``; devices without one get no credentials.
    """

    ca_file: File = ""
    devices: dict[str, HttpDeviceSettings] = {}  # noqa: RUF012 - a msgspec.Struct copies it

    def __post_init__(self) -> None:
        PolledSettings.__post_init__(self)
        origins = [uris.normal(one.origin) for one in self.devices.values()]
        if len(set(origins)) < len(origins):
            raise ValueError("devices: two tables have the same origin; leave one out")

    def device(self, uri: str) -> HttpDeviceSettings | None:
        """The table of the device of a URI in normal form."""
        wanted = f"{origin(uri)}/"
        return next((one for one in self.devices.values() if uris.normal(one.origin) == wanted), None)
