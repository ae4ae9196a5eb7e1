"""The gateway's figures as Prometheus text (its exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from lamplighter.gateway.monitoring.figures import Figures
from lamplighter.gateway.monitoring.timings import BOUNDS_S, Timing

MEDIA_TYPE = "text/plain; version=0.0.4"

CLASSES = ("telescoped", "seeded", "counted", "re-evaluated")
"""Always told, so that a graph of them has no holes."""

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


def prometheus_text(figures: Figures[Any]) -> str:
    """All figures of a gateway, durations as histograms in seconds."""
    status, monitored = figures.status(), figures.monitoring()
    lines: list[str] = []

    def tell(name: str, kind: str, text: str, samples: Mapping[str, float]) -> None:
        lines.append(f"# HELP lamplighter_{name} {text}")
        lines.append(f"# TYPE lamplighter_{name} {kind}")
        lines.extend(f"lamplighter_{name}{labels} {value}" for labels, value in samples.items())

    tell("info", "gauge", "The version that runs.", {f'{{version="{monitored["engine"]["version"]}"}}': 1})
    tell("healthy", "gauge", "1 if all is well, 0 if something was lost.", {"": int(status["status"] == "ok")})
    for name, text in _GAUGES.items():
        tell(name, "gauge", text, {"": status[name]})
    found = status["subscription_classes"]
    tell(
        "subscriptions_by_class",
        "gauge",
        "Subscriptions by how they are kept true, those of applications too.",
        {f'{{class="{name}"}}': found.get(name, 0) for name in dict.fromkeys((*CLASSES, *found))},
    )
    for name, text in _COUNTERS.items():
        tell(f"{name}_total", "counter", text, {"": status[name]})
    for name, text in _COUNTED.items():
        tell(f"{name}_total", "counter", text, {"": status["counters"][name]})
    for (bean, member), (name, kind, text) in _MONITORED.items():
        tell(name, kind, text, {"": monitored[bean][member]})
    tell(
        "errors_total",
        "counter",
        "Errors that clients were answered.",
        {
            f'{{gate="{gate}",code="{code}"}}': count
            for gate in ("http", "websocket")
            for code, count in monitored[gate]["errors"].items()
        },
    )
    sync = figures.sync()
    for name, (metric, kind, text) in _SYNC.items() if sync is not None else ():
        if (value := getattr(sync, name)) is not None:
            tell(metric, kind, text, {"": value})
    for name, text in _TIMINGS.items():
        lines.extend(_histogram(f"lamplighter_{name}_seconds", text, getattr(figures.timings, name)))
    return "\n".join(lines) + "\n"


def _histogram(name: str, text: str, timing: Timing) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    for bound, count in zip((*BOUNDS_S, "+Inf"), accumulate(timing.buckets), strict=True):
        yield f'{name}_bucket{{le="{bound}"}} {count}'
    yield f"{name}_sum {timing.total}"
    yield f"{name}_count {timing.count}"
