"""Where notifications go.

base: the interface, and what sinks share; files: lines of files.
"""

from __future__ import annotations

from collections.abc import Callable

from lamplighter.cloud_sync.fleet.delivery.sinks.base import DeliverySink, SinkThreads, UndeliveredError
from lamplighter.cloud_sync.fleet.delivery.sinks.files import FileNotifications
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink, Sink
from lamplighter.engine.errors import ConfigurationError

__all__ = ["DeliverySink", "MakeSink", "SinkThreads", "UndeliveredError", "opener"]

MakeSink = Callable[[Sink], DeliverySink]


def opener(threads: SinkThreads) -> MakeSink:
    """Opens sinks by their records. The sinks share the threads. Raises ConfigurationError."""

    def make(sink: Sink) -> DeliverySink:
        if isinstance(sink, FilesSink):
            return FileNotifications(sink, threads)
        raise ConfigurationError(f"sink {sink.name}: this version does not deliver to {type(sink).__name__}")

    return make
