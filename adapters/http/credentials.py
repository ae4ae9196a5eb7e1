"""The files that ``[http_devices]`` names: secrets of devices, authorities."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from lamplighter.adapters.http.settings import HttpDeviceSettings, HttpDevicesSettings, origin
from lamplighter.adapters.mapping import uris
from lamplighter.engine.client.files import read_text
from lamplighter.engine.errors import ConfigurationError

SECRET_CHARS_MAX = 4_096


class HttpCredentials(NamedTuple):
    """authorizations: values of the header Authorization, by origin; authorities: None: those of the machine."""

    authorizations: Mapping[str, str] = MappingProxyType({})
    authorities: str | None = None

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authorities)


def read_credentials(settings: HttpDevicesSettings, folder: Path) -> HttpCredentials:
    """Reads all files. folder: where relative paths begin. Raises ConfigurationError, which names all faults."""
    found: dict[str, str] = {}
    authorities = None
    faults: list[tuple[str, Exception]] = []
    for name, one in settings.devices.items():
        try:
            found[origin(uris.normal(one.origin))] = _authorization(one, folder)
        except (OSError, ValueError) as error:
            faults.append((f"http_devices.devices.{name}.secret_file cannot be used: {error}", error))
    if settings.ca_file:
        try:
            authorities = read_text(folder / settings.ca_file, encoding="ascii")
            ssl.create_default_context(cadata=authorities)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            faults.append((f"http_devices.ca_file = {settings.ca_file!r} cannot be used: {error}", error))
    if faults:
        raise ConfigurationError("\n".join(text for text, _ in faults)) from faults[0][1]
    return HttpCredentials(found, authorities)


def _authorization(one: HttpDeviceSettings, folder: Path) -> str:
    """Raises OSError and ValueError."""
    secret = read_text(folder / one.secret_file).partition("\n")[0].strip("\r")
    if not secret or len(secret) > SECRET_CHARS_MAX:
        raise ValueError(f"its first line has no secret of 1 to {SECRET_CHARS_MAX:,} characters")
    if one.username:
        return "Basic " + base64.b64encode(f"{one.username}:{secret}".encode()).decode()
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ValueError("a bearer token has printable ASCII characters, without spaces")
    return f"Bearer {secret}"
