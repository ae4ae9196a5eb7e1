"""The gateway's figures for Prometheus: a collector of prometheus_client, without its global registry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lamplighter.gateway.monitoring.figures import Figures
from lamplighter.gateway.monitoring.timings import BOUNDS_S, Timing

CLASSES = ("telescoped", "seeded", "counted", "re-evaluated")
"""Always exported, so that a graph of them has no holes."""

_GAUGES = {
    "quads": "Quads in the dataset.",
    "subscriptions": "Subscriptions of clients.",
    "delayed": "Delayed updates that are pending.",
    "queue": "Requests that wait.",
}
_COUNTERS = {
    "trials": "Requests whose evaluation was tried beside the engine first.",
    "renewals": "How often the store was built anew.",
    "audit_rounds": "How often index and store were compared as a whole.",
}
_COUNTED = {
    "updates": "Updates asked for.",
    "queries": "Queries asked for.",
    "subscribes": "Subscriptions begun.",
    "unsubscribes": "Subscriptions ended by their clients.",
    "ended": "Subscriptions ended by the gateway for their cost.",
    "resumed": "Subscriptions that went on after their client had been away.",
    "resets": "Subscriptions that began anew because they could not go on.",
    "compositions": "How often the notifications that waited for a slow client were composed.",
    "refused": "Requests refused.",
    "queue_full": "Requests refused because the queue was full.",
    "commits": "Commits.",
    "notifications": "Notifications to clients.",
    "reactions": "Reactions of applications.",
    "delayed_fired": "Delayed updates executed.",
    "syncs": "Times that the change log was synced to the disk.",
}
_MONITORED = {
    ("engine", "up_time_s"): ("up_time_seconds", "gauge", "Since the gateway was started."),
    ("engine", "resident_bytes"): ("resident_bytes", "gauge", "Resident memory of the gateway."),
    ("engine", "open_files"): ("open_files", "gauge", "Files and sockets that the gateway has open."),
    ("scheduler", "max_pending"): ("queue_most", "gauge", "The most requests that waited at once."),
    ("scheduler", "queue_size"): ("queue_size", "gauge", "How many requests may wait."),
    ("spu_manager", "spus"): ("spus", "gauge", "Different queries that are subscribed to."),
    ("spu_manager", "max_subscribers"): ("subscriptions_most", "gauge", "The most subscriptions there were at once."),
    ("http", "requests"): ("http_requests_total", "counter", "HTTP requests."),
    ("websocket", "sockets"): ("websocket_sockets", "gauge", "WebSocket connections."),
    ("websocket", "max_sockets"): ("websocket_sockets_most", "gauge", "The most of them at once."),
    ("websocket", "messages"): ("websocket_messages_total", "counter", "Messages that came over WebSocket."),
    ("websocket", "subscribed"): ("websocket_subscribed_total", "counter", "Subscriptions confirmed."),
    ("websocket", "unsubscribed"): ("websocket_unsubscribed_total", "counter", "Ends of subscriptions confirmed."),
    ("websocket", "disconnected"): ("websocket_disconnected_total", "counter", "Clients that read too slowly."),
}
_SYNC = {
    "lag_segments": ("shipping_lag_segments", "gauge", "Sealed segments whose landing in the cloud is not confirmed."),
    "lag_records": ("shipping_lag_records", "gauge", "Records in them."),
    "lag_bytes": ("shipping_lag_bytes", "gauge", "Bytes of them."),
    "oldest_at": ("shipping_oldest_timestamp_seconds", "gauge", "When the oldest of them was sealed."),
    "sent_segments": ("shipping_sent_segments_total", "counter", "Segments that were sent."),
    "sent_bytes": ("shipping_sent_bytes_total", "counter", "Bytes of them."),
    "refused": ("shipping_refused_segments_total", "counter", "Segments that the collector keeps in its quarantine."),
    "at": ("shipping_timestamp_seconds", "gauge", "When the shipper said this."),
    "last_success": ("shipping_success_timestamp_seconds", "gauge", "When it could send what there was."),
}
"""What the shipper says of itself; nothing is told where nothing is shipped."""
_TIMINGS = {
    "store_query": "Ad-hoc queries, from their turn until the first byte of the result.",
    "store_update": "Evaluation of an update and the append of its record.",
    "spu_manager": "Matching a commit with the subscriptions.",
    "sync": "Syncs of the change log to the disk.",
    "update_processing": "Updates, from their arrival until their answers may leave.",
    "loop_held": "How long the gateway kept everything else waiting at a time.",
    "http": "HTTP requests, from their headers until their answers were handed over.",
}


def exposition(figures: Figures[Any], accept: str) -> tuple[bytes, str]:
    """All figures of a gateway, and their media type: OpenMetrics or Prometheus text 0.0.4.

    accept: the header Accept of the request.
    """
    try:
        encode, media_type = choose_encoder(accept)
    except TypeError:  # prometheus_client 0.26 compares a version that is no number with one that is
        encode, media_type = choose_encoder("")
    return encode(FiguresCollector(figures)), media_type


class FiguresCollector(Collector):
    """Makes the metrics from a gateway's figures at each collection. Durations are histograms in seconds."""

    def __init__(self, figures: Figures[Any]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        status, monitored = self._figures.status(), self._figures.monitoring()
        yield InfoMetricFamily("lamplighter", "The version that runs.", {"version": monitored["engine"]["version"]})
        healthy = status["status"] == "ok"
        yield _metric("healthy", "gauge", "1 if all is well, 0 if something was lost.", healthy)
        for name, text in _GAUGES.items():
            yield _metric(name, "gauge", text, status[name])
        yield _subscriptions_by_class(status["subscription_classes"])
        for name, text in _COUNTERS.items():
            yield _metric(f"{name}_total", "counter", text, status[name])
        for name, text in _COUNTED.items():
            yield _metric(f"{name}_total", "counter", text, status["counters"][name])
        for (bean, member), (name, kind, text) in _MONITORED.items():
            yield _metric(name, kind, text, monitored[bean][member])
        yield _errors({gate: monitored[gate]["errors"] for gate in ("http", "websocket")})
        sync = self._figures.sync()
        for member, (name, kind, text) in _SYNC.items() if sync is not None else ():
            if (value := getattr(sync, member)) is not None:
                yield _metric(name, kind, text, value)
        for name, text in _TIMINGS.items():
            yield _histogram(name, text, getattr(self._figures.timings, name))


def _metric(name: str, kind: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(f"lamplighter_{name}", text, value)


def _subscriptions_by_class(found: dict[str, int]) -> Metric:
    text = "Subscriptions by how they are kept true, those of applications too."
    family = GaugeMetricFamily("lamplighter_subscriptions_by_class", text, labels=("class",))
    for name in dict.fromkeys((*CLASSES, *found)):
        family.add_metric((name,), found.get(name, 0))
    return family


def _errors(counts: dict[str, dict[str, int]]) -> Metric:
    """counts: by gate, then by error code."""
    text = "Errors that clients were answered."
    family = CounterMetricFamily("lamplighter_errors", text, labels=("gate", "code"))
    for gate, by_code in counts.items():
        for code, count in by_code.items():
            family.add_metric((gate, code), count)
    return family


def _histogram(name: str, text: str, timing: Timing) -> Metric:
    bounds = (*map(str, BOUNDS_S), "+Inf")
    buckets = list(zip(bounds, accumulate(timing.buckets), strict=True))
    return HistogramMetricFamily(f"lamplighter_{name}_seconds", text, buckets, timing.total)
