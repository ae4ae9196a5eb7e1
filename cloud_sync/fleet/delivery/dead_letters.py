"""Notifications that no sink accepted: files in the lake, each line with the reason and the notification."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from lamplighter.cloud_sync.fleet.delivery.cursors import SinkName
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sinks.files import chunk_name
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.engine.errors import PayloadError


def write_dead_letters(
    lake: Lake, name: SinkName, notifications: Sequence[MatchNotification], reason: str, now: float
) -> None:
    """Writes ``subscriptions/dead/<subscription>/<sink>/<batch>-<row>.ndjson`` durably. A repetition overwrites it.

    A line has ``id``, ``at``, ``reason`` and ``notification``, or ``match``, if it has no form as JSON results. now:
    seconds since 1970. Raises OSError.
    """
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    lines = []
    for notification in notifications:
        line = {"id": notification.id, "at": at, "reason": reason}
        try:
            lines.append(msgspec.json.encode(line | {"notification": msgspec.Raw(notification.body)}) + b"\n")
        except PayloadError:
            lines.append(ascii_json(line | {"match": msgspec.structs.asdict(notification.match)}))
    lake.write(b"".join(lines), "subscriptions", "dead", *name, chunk_name(notifications))


def ascii_json(value: object) -> bytes:
    """A line of JSON, also for text with halves of surrogate pairs."""
    import json

    return json.dumps(value).encode() + b"\n"
