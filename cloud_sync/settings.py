"""The `[sync]` table of lamplighter.toml, and the storage options beside it."""

from __future__ import annotations

import os
import re
import tomllib
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lamplighter.engine.errors import ConfigurationError

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

_CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Where systemd puts what a unit's `LoadCredential=` names."""


class GatewayKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``[gateway]`` that the shipper needs too; `gateway.settings` adds the others.

    data: the data folder, relative to the configuration file; clock_trusted: whether the wall clock is synchronised,
    which ``auto`` asks the kernel.
    """

    data: str = "data"
    clock_trusted: Literal["auto", "always", "never"] = "auto"


class SyncSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where sealed segments go, and at what pace.

    destination: a folder, or a URL that fsspec knows; empty: nothing is shipped.
    options_file: TOML with what the destination asks for (names, keys, addresses); beside the configuration file or in
        systemd's folder of credentials unless absolute; empty: none.
    bytes_per_s_max: on average over each part of an object; 0: any.
    window: local hours in which anything is sent, such as ``01:00-05:30``, also over midnight; empty: always. Without
        a clock that can be trusted nobody knows the hour, and the window is not kept.
    interval_s: how often `lamplighter sync run` without `--once` looks for something to ship.
    snapshot_s: a snapshot is shipped this long after the last one, besides those after a gap and of a new epoch.
    """

    destination: str = ""
    options_file: str = ""
    bytes_per_s_max: Natural = 0
    window: Annotated[str, msgspec.Meta(pattern=r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$")] = ""
    interval_s: Positive = 300
    snapshot_s: Positive = 604_800

    def open_at(self, now: datetime) -> bool:
        """Whether the window is open at a local time; one whose ends are the same never closes."""
        if not self.window:
            return True
        begin, end = (time.fromisoformat(text) for text in self.window.split("-"))
        hour = now.time()
        return begin <= hour < end if begin < end else hour >= begin or hour < end


def storage_options(file: str, folder: Path) -> dict[str, Any]:
    """What an options file says, {} where none is named.

    file: its name; folder: where it is unless the name is absolute or systemd has a credential of that name. Raises
    ConfigurationError, also for a file that everybody may read: it has secrets.
    """
    if not file:
        return {}
    path = folder / file
    credentials = os.environ.get(_CREDENTIALS)
    if credentials and re.fullmatch(r"[^/]+", file) and (Path(credentials) / file).exists():
        path = Path(credentials) / file
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigurationError(f"{path}: everybody may read it, and it has secrets; chmod 600 {path}")
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; it is what sync.options_file names") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from error
