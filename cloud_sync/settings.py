"""The `[sync]` table of lamplighter.toml, and the storage options beside it."""

from __future__ import annotations

import ctypes
import os
import re
import tomllib
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lamplighter.engine.client.files import read_text, toml_document
from lamplighter.engine.client.places import Destination, File, Folder, HttpUrl, Secret, WebsocketUrl
from lamplighter.engine.errors import ConfigurationError

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

# Whether the wall clock is trusted. ``auto``: while it is synchronised.
Trust = Literal["auto", "always", "never"]

_LIBC = ctypes.CDLL(None, use_errno=True)
# For adjtimex(2). The structure has 208 bytes on 64-bit Linux; a zeroed buffer of more is modes 0 everywhere, which
# only reads and leaves the modes as they are.
_TIMEX = ctypes.create_string_buffer(512)
_TIME_ERROR = 5
# Where systemd puts what a unit's `LoadCredential=` names.
_CREDENTIALS = "CREDENTIALS_DIRECTORY"


class GatewayKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``[gateway]`` that the shipper needs too; `gateway.settings` adds the others.

    data: the data folder, relative to the configuration file.
    """

    data: Folder = "data"
    clock_trusted: Trust = "auto"


def clock_trusted(trust: Trust) -> bool:
    """Whether the wall clock is trusted; ``auto`` reads the kernel's state of synchronisation."""
    if trust != "auto":
        return trust == "always"
    state = _LIBC.adjtimex(_TIMEX)  # TIME_ERROR: the clock is not synchronised
    return bool(0 <= state != _TIME_ERROR)


class OrderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[sync.orders]``: whether and how orders of the fleet are executed.

    key_file: public keys (PEM) of those who may sign orders, relative to the configuration file; empty: orders are not
        read. interval_s: how often `lamplighter sync run` without `--once` looks for orders.
    url: the gateway's subscribe address. token_url, credentials_file, ca_file: in secure mode, the address of its
        tokens, the credentials of the client whose permissions orders have, and the certificate of its authority.
    """

    key_file: File = ""
    url: WebsocketUrl = "ws://127.0.0.1:9000/subscribe"
    token_url: HttpUrl = ""
    credentials_file: File = ""
    ca_file: File = ""
    interval_s: Positive = 10


class SyncSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where sealed segments go, and how fast.

    destination: a folder, or a URL that fsspec knows; empty: nothing is shipped.
    options_file: TOML file with the destination's options (names, keys, addresses). A relative name is looked up in
        systemd's credentials folder, then beside the configuration file. Empty: none.
    bytes_per_s_max: average rate; 0: no limit.
    window: local hours in which the shipper sends, such as ``01:00-05:30``; may span midnight; empty: always. The
        window has no effect while the clock is not trusted.
    interval_s: how often `lamplighter sync run` without `--once` looks for segments.
    snapshot_s: interval between snapshots, besides those after a gap and of a new epoch.
    orders: the table ``[sync.orders]``.
    """

    destination: Destination = ""
    options_file: Secret = ""
    bytes_per_s_max: Natural = 0
    window: Annotated[str, msgspec.Meta(pattern=r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$")] = ""
    interval_s: Positive = 300
    snapshot_s: Positive = 604_800
    orders: OrderSettings = OrderSettings()

    def open_at(self, now: datetime) -> bool:
        """Whether the window is open at a local time. A window with equal ends is always open."""
        if not self.window:
            return True
        begin, end = (time.fromisoformat(text) for text in self.window.split("-"))
        hour = now.time()
        return begin <= hour < end if begin < end else hour >= begin or hour < end


def storage_options(file: str, folder: Path) -> dict[str, Any]:
    """The content of an options file; {} if file is empty.

    folder: where a relative name is, unless systemd has a credential of that name. Raises ConfigurationError, also for
    a world-readable file.
    """
    # A world-readable file is refused, because it has secrets.
    if not file:
        return {}
    path = folder / file
    credentials = os.environ.get(_CREDENTIALS)
    if credentials and re.fullmatch(r"[^/]+", file) and (Path(credentials) / file).exists():
        path = Path(credentials) / file
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigurationError(f"{path}: the file has secrets and is world-readable; chmod 600 {path}")
        return toml_document(read_text(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; correct sync.options_file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from error
