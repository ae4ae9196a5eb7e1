"""Forgotten gateways: those whose data is kept out of the lake, `<lake>/deletions/forgotten.json`.

The file has no names. It has keyed hashes (HMAC-SHA-256), and the random key beside them. So a search of the lake's
files for a name finds nothing, but whoever has the file can test whether a given name is among them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake, gateway_of
from lamplighter.engine.errors import ConfigurationError

FOLDER = "deletions"
_FILE = "forgotten.json"


class _Forgotten(msgspec.Struct, frozen=True):
    """gateways: hash -> when it was forgotten, RFC 3339."""

    key: str
    gateways: dict[str, str] = {}
    v: int = 1


class ForgottenGateways:
    """Which gateways are forgotten. ``name in`` it tests one, or a history of it; empty if the lake has no such
    file."""

    def __init__(self, content: bytes | None, place: str) -> None:
        """content: of the file, None if there is none; place: its path. Raises ConfigurationError."""
        try:
            self._found = _Forgotten(secrets.token_hex(32)) if content is None else _decode(content)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{place}: not a list of forgotten gateways: {error}; restore it from a backup, because without it "
                "their data would come back"
            ) from error

    @classmethod
    def of(cls, lake: Lake) -> ForgottenGateways:
        path = lake.path(FOLDER, _FILE)
        try:
            return cls(lake.fs.cat_file(path), path)
        except FileNotFoundError:
            return cls(None, path)

    @classmethod
    def of_folder(cls, lake: Path) -> ForgottenGateways:
        """As `of`, for a lake in a folder; loads no file-system library."""
        path = lake / FOLDER / _FILE
        try:
            return cls(path.read_bytes(), str(path))
        except FileNotFoundError:
            return cls(None, str(path))

    def __contains__(self, gateway: str) -> bool:
        return bool(self._found.gateways) and self.hash(gateway_of(gateway)) in self._found.gateways

    def hash(self, text: str) -> str:
        """The keyed hash of a text."""
        return hmac.new(bytes.fromhex(self._found.key), text.encode(), hashlib.sha256).hexdigest()

    def write(self, lake: Lake, gateway: str | None = None, at: str = "") -> None:
        """Writes the file. gateway: one to add before; at: the time, RFC 3339."""
        if gateway is not None:
            self._replace({self.hash(gateway): at, **self._found.gateways})
        lake.write(msgspec.json.encode(self._found) + b"\n", FOLDER, _FILE)

    def lift(self, lake: Lake, gateway: str) -> None:
        """Takes a gateway from the list, so that its data is collected again."""
        found = self.hash(gateway)
        self._replace({one: at for one, at in self._found.gateways.items() if one != found})
        self.write(lake)

    def _replace(self, gateways: dict[str, str]) -> None:
        self._found = msgspec.structs.replace(self._found, gateways=gateways)


def _decode(content: bytes) -> _Forgotten:
    return msgspec.json.decode(content, type=_Forgotten)
