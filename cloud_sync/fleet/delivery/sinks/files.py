"""Notifications as files of lines in a folder or a bucket."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from lamplighter.cloud_sync.destinations import Destination, renewed_destination
from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sinks.base import SinkThreads, secret
from lamplighter.cloud_sync.fleet.lake.match_batches import BATCH_DIGITS
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.engine.client.files import toml_document
from lamplighter.engine.errors import ConfigurationError

ROW_DIGITS = 9


class FileNotifications:
    """Writes a chunk as the file ``<subscription>/<batch>-<row>.ndjson``, named after its first match.

    The end of a chunk depends on its begin only, so a repetition overwrites the same file with the same lines. Sorted
    by name, the files of a subscription are in the order of delivery.
    """

    bounds = ChunkBounds(10_000, 2_000_000)
    blocking = True

    def __init__(self, sink: FilesSink, threads: SinkThreads) -> None:
        self._sink = sink
        self._threads = threads
        self._destination: Destination | None = None

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        await self._threads.call(self._write, notifications)

    def _write(self, notifications: Sequence[MatchNotification]) -> None:
        if self._destination is None:
            self._destination = renewed_destination(self._sink.url, self._options)
        lines = b"".join([notification.body + b"\n" for notification in notifications])
        self._destination.put(f"{notifications[0].match.subscription}/{chunk_name(notifications)}", lines)

    def _options(self) -> dict[str, Any]:
        if not self._sink.options_file:
            return {}
        what = f"options_file of sink {self._sink.name}"
        try:
            return toml_document(secret(self._sink.options_file, what))
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{self._sink.options_file}: not TOML: {error}; correct {what}") from error

    async def close(self) -> None:
        if self._destination is not None:
            await self._threads.call(self._destination.close)
            self._destination = None


def chunk_name(notifications: Sequence[MatchNotification]) -> str:
    """The name of a file for these notifications, after the place of the first one."""
    first = notifications[0].next
    return f"{first.batch:0>{BATCH_DIGITS}}-{first.row - 1:0{ROW_DIGITS}d}.ndjson"
