"""Dead letters: what a sink could not deliver, with the reason, as files for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from lamplighter.cloud_sync.fleet.delivery.cursors import SinkName
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sent_orders import DeadOrder
from lamplighter.cloud_sync.fleet.delivery.sinks.files import chunk_name
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

DEAD = "subscriptions", "dead"
# Files of one sink. Of what dies behind them, only the log has the reason.
FILES_MAX = 10_000
# Interval in which it is looked whether somebody has made room.
COUNTED_S = 60.0
REASON_CHARACTERS_MAX = 300


class DeadLetters:
    """Writes ``subscriptions/dead/<subscription>/<sink>/``, `FILES_MAX` files at most. For one thread at a time."""

    def __init__(self) -> None:
        self._counts: dict[SinkName, int] = {}
        self._counted_at: dict[SinkName, float] = {}

    @property
    def full(self) -> frozenset[SinkName]:
        """The sinks that have no room for another file."""
        return frozenset(name for name, count in list(self._counts.items()) if count >= FILES_MAX)

    def write(
        self,
        lake: Lake,
        name: SinkName,
        notifications: Sequence[MatchNotification],
        reason: str,
        now: float,
        gateway: str = "",
    ) -> None:
        """Writes ``<batch>-<row>.ndjson`` durably. A repetition overwrites it.

        A line has ``id``, ``at``, ``reason`` and ``notification``, or ``match``, if it has no form as JSON results.
        gateway: the only one that they were not sent to; a line has it as ``to``, and the name begins with
        ``behind-<gateway>-`` then. now: seconds
        since 1970. Raises OSError.
        """
        lines = []
        for notification in notifications:
            line = {"id": notification.id, "at": _time_text(now), "reason": reason} | (
                {"to": gateway} if gateway else {}
            )
            try:
                lines.append(msgspec.json.encode(line | {"notification": msgspec.Raw(notification.body)}) + b"\n")
            except PayloadError:
                # Also for text with halves of surrogate pairs.
                lines.append(json.dumps(line | {"match": msgspec.structs.asdict(notification.match)}).encode() + b"\n")
        prefix = f"behind-{gateway}-" if gateway else ""
        self._keep(lake, name, f"{prefix}{chunk_name(notifications)}", b"".join(lines), now)

    def write_order(self, lake: Lake, dead: DeadOrder, now: float) -> None:
        """Writes ``order-<gateway>-<number>.ndjson`` durably, as `write`; its ``notification`` has no results. Raises
        OSError."""
        order = dead.order
        line = {
            "id": order.id,
            "at": _time_text(now),
            "reason": reason_line(dead.reason),
            "order": {"gateway": order.gateway, "number": order.number},
            "notification": {"id": order.id, "gateway": order.source, "epoch": order.epoch, "sequence": order.sequence},
        }
        name = f"order-{order.gateway}-{order.number:012d}.ndjson"
        self._keep(lake, order.name, name, msgspec.json.encode(line) + b"\n", now)

    def _keep(self, lake: Lake, sink: SinkName, file: str, data: bytes, now: float) -> None:
        if sink not in self._counts or (
            self._counts[sink] >= FILES_MAX and not 0 <= now - self._counted_at[sink] < COUNTED_S
        ):
            self._counts[sink], self._counted_at[sink] = len(lake.names(*DEAD, *sink)), now
            if self._counts[sink] >= FILES_MAX:
                logger.error(
                    "dead letters not kept", subscription=sink[0], sink=sink[1], files=FILES_MAX,
                    folder=lake.path(*DEAD, *sink), cure="move or remove files there",
                )  # fmt: skip
        if self._counts[sink] < FILES_MAX:
            lake.write(data, *DEAD, *sink, file)
            self._counts[sink] += 1


def reason_line(reason: str) -> str:
    """The reason as one bounded line."""
    cut = reason if len(reason) <= REASON_CHARACTERS_MAX else reason[:REASON_CHARACTERS_MAX] + "..."
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)


def _time_text(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
