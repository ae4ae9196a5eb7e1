"""Quotas of one client beside the size of what all clients share."""

from __future__ import annotations

from typing import NamedTuple

from lamplighter.gateway.settings import Settings

# A quota of one client, and the setting with the room of all that it is a part of.
SHARED = (
    ("quotas.delayed_max", "delayed.pending_max"),
    ("quotas.resumable_max", "resume.subscriptions_max"),
    ("quotas.connections_max", "http.connections_max"),
    ("quotas.connections_max", "websocket.connections_max"),
    ("quotas.outbox_bytes_max", "websocket.unsent_bytes_max"),
    ("quotas.retained_bytes_max", "resume.bytes_max"),
)


class Overruled(NamedTuple):
    """A quota that is larger than the share that one client can have: the share counts."""

    quota: str
    room: str
    share: int


def overruled(settings: Settings) -> list[Overruled]:
    """The quotas without effect. A file that has them still starts the gateway, since the shares hold anyway."""
    found = []
    for quota, room in SHARED:
        share = (_value(settings, room) + 1) // 2
        if _value(settings, quota) > share:
            found.append(Overruled(quota, room, share))
    return found


def _value(settings: Settings, name: str) -> int:
    table, _, key = name.partition(".")
    return int(getattr(getattr(settings, table), key))
