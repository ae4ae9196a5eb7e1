"""Where notifications go.

base: the interface, and what sinks share; files: lines of files; webhook: POST; mqtt: messages of a broker;
updates: SPARQL updates for gateways.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.delivery.sinks.base import DeliverySink, SinkThreads, UndeliveredError
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink, MqttSink, Sink, WebhookSink

if TYPE_CHECKING:
    from lamplighter.cloud_sync.fleet.delivery.sent_orders import OrderDesk

__all__ = ["DeliverySink", "MakeSink", "SinkThreads", "UndeliveredError", "opener"]

MakeSink = Callable[[Sink], DeliverySink]


def opener(
    threads: SinkThreads,
    *,
    allow_private: bool = False,
    desk: OrderDesk | None = None,
    wall: Callable[[], float] = time.time,
) -> MakeSink:
    """Opens sinks by their records. The sinks share the threads, and connections to brokers.

    allow_private: whether webhooks may have addresses that are not public. desk: sends updates to gateways.
    """
    from lamplighter.cloud_sync.fleet.delivery.sinks.files import FileNotifications
    from lamplighter.cloud_sync.fleet.delivery.sinks.mqtt import BrokerLinks, MqttNotifications
    from lamplighter.cloud_sync.fleet.delivery.sinks.updates import UpdateNotifications
    from lamplighter.cloud_sync.fleet.delivery.sinks.webhook import WebhookNotifications

    links = BrokerLinks(threads)

    def make(sink: Sink) -> DeliverySink:
        if isinstance(sink, FilesSink):
            return FileNotifications(sink, threads)
        if isinstance(sink, WebhookSink):
            return WebhookNotifications(sink, allow_private=allow_private, wall=wall)
        if isinstance(sink, MqttSink):
            return MqttNotifications(sink, links)
        return UpdateNotifications(sink, desk, threads, wall)

    return make
