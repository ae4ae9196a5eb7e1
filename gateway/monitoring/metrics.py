"""The gateway's figures for Prometheus: a collector of prometheus_client, without its global registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lamplighter.engine.protocol import Priority
from lamplighter.gateway.monitoring.figures import Figures
from lamplighter.gateway.monitoring.health.components import STATES
from lamplighter.gateway.monitoring.timings import BOUNDS_S, Timing

# Always exported, so that their graphs have no gaps.
CLASSES = ("telescoped", "seeded", "counted", "ordered", "re-evaluated")

_GAUGES = {
    "quads": "Quads in the dataset.",
    "subscriptions": "Subscriptions of clients.",
    "application_subscriptions": "Subscriptions of applications in the gateway.",
    "delayed": "Pending delayed updates.",
    "queue": "Requests in the queue.",
}
_COUNTERS = {
    "trials": "Trial evaluations of requests in a worker process.",
    "renewals": "Rebuilds of the store to free memory.",
    "audit_rounds": "Complete audits of the index against the store.",
}
_COUNTED = {
    "updates": "Update requests.",
    "queries": "Query requests.",
    "subscribes": "Subscriptions that began.",
    "unsubscribes": "Subscriptions that their clients ended.",
    "ended": "Subscriptions ended because of their cost.",
    "resumed": "Subscriptions resumed after a disconnection.",
    "resets": "Resume requests answered with a new first result.",
    "compositions": "Merges of queued notifications for slow clients.",
    "refused": "Refused requests.",
    "queue_full": "Requests refused because the queue was full.",
    "commits": "Commits.",
    "notifications": "Notifications to clients.",
    "reactions": "Reactions of applications.",
    "delayed_fired": "Delayed updates that were run.",
    "syncs": "Syncs of the change log to disk.",
}
_MONITORED = {
    ("engine", "up_time_s"): ("up_time_seconds", "gauge", "Time since the start of the gateway."),
    ("engine", "resident_bytes"): ("resident_bytes", "gauge", "Resident memory of the gateway."),
    ("engine", "open_files"): ("open_files", "gauge", "Open files and sockets of the gateway."),
    ("engine", "upkeep_backlog"): ("upkeep_backlog", "gauge", "Pending upkeep tasks."),
    ("scheduler", "max_pending"): ("queue_most", "gauge", "Peak number of requests in the queue."),
    ("scheduler", "queue_size"): ("queue_size", "gauge", "Capacity of the request queue."),
    ("spu_manager", "spus"): ("spus", "gauge", "Distinct subscribed queries."),
    ("spu_manager", "max_subscribers"): ("subscriptions_most", "gauge", "Peak number of clients' subscriptions."),
    ("http", "requests"): ("http_requests_total", "counter", "HTTP requests."),
    ("websocket", "sockets"): ("websocket_sockets", "gauge", "Open WebSocket connections."),
    ("websocket", "max_sockets"): ("websocket_sockets_most", "gauge", "Peak number of open WebSocket connections."),
    ("websocket", "messages"): ("websocket_messages_total", "counter", "Messages received over WebSocket."),
    ("websocket", "subscribed"): ("websocket_subscribed_total", "counter", "Confirmed subscriptions."),
    ("websocket", "unsubscribed"): ("websocket_unsubscribed_total", "counter", "Confirmed ends of subscriptions."),
    ("websocket", "disconnected"): (
        "websocket_disconnected_total",
        "counter",
        "Clients disconnected because they read too slowly.",
    ),
}
# Counters of adapters, since their start; those that an adapter does not have are absent.
_ADAPTERS = {
    "messages": "Messages from MQTT brokers.",
    "messages_unmapped": "Messages whose topic no rule covers.",
    "readings": "Readings whose update is durable.",
    "readings_unreadable": "Values or topics that rules could not read.",
    "readings_refused": "Readings refused by a limit, another owner of the stream, or the gateway.",
    "readings_repeated": "Readings dropped by on_repeat, dead_band or throttle_s.",
    "readings_outdated": "Readings older than the live one, dropped.",
    "problems": "Messages, values and rows dropped with a problem.",
    "topics_unread": "Sampled topics that no rule reads.",
    "commands": "Messages with desired states to devices.",
    "commands_acknowledged": "Of these, acknowledged by the broker or the device.",
    "commands_failed": "Of these, not acknowledged.",
    "commands_reasserted": "Of these, repeated at an interval or after another reported state.",
    "commands_refused": "Desired states without a message or permitted target.",
    "rows_published": "Messages of [[publish]] rules.",
    "notifications": "Notifications of observed resources.",
    "notifications_outdated": "Outdated notifications, dropped.",
    "observations_renewed": "Renewed observations of resources.",
    "polls": "Answered polls of resources.",
    "datagrams_malformed": "Datagrams that are no CoAP message.",
    "requests": "Requests to the CoAP server.",
    "requests_refused": "Of these, answered with an error.",
    "requests_repeated": "Repeated requests, which got the same answer.",
    "requests_dropped": "Requests above a limit, which got no answer.",
    "echo_requested": "Requests to be repeated with an Echo value.",
    "observers_notified": "Notifications to observers of the CoAP server.",
    "registrations": "Registrations at the resource directory, with repeated ones.",
    "registrations_expired": "Registrations that expired.",
    "registrations_failed": "Simple registrations without fetchable links.",
    "devices_found": "CoAP devices found by multicast.",
}
_OF_APPLICATIONS = {
    "reactions": ("application_reactions", "Reactions of the application."),
    "failed": ("application_reactions_failed", "Of these, failed."),
    "refused": ("application_updates_refused", "Its delayed updates that failed when due."),
}
# Figures of the shipper; absent if it never ran.
_SYNC = {
    "lag_segments": ("shipping_lag_segments", "gauge", "Sealed segments that the collector has not confirmed."),
    "lag_records": ("shipping_lag_records", "gauge", "Records in segments that are not confirmed."),
    "lag_bytes": ("shipping_lag_bytes", "gauge", "Bytes in segments that are not confirmed."),
    "oldest_at": (
        "shipping_oldest_timestamp_seconds",
        "gauge",
        "Sealing time of the oldest segment that is not confirmed.",
    ),
    "sent_segments": ("shipping_sent_segments_total", "counter", "Sent segments."),
    "sent_bytes": ("shipping_sent_bytes_total", "counter", "Sent bytes."),
    "refused": ("shipping_refused_segments_total", "counter", "Segments in the collector's quarantine."),
    "at": ("shipping_timestamp_seconds", "gauge", "Time of the last report by the shipper."),
    "last_success": ("shipping_success_timestamp_seconds", "gauge", "Time of the last complete run of the shipper."),
}
# Figures of the fleet's orders; absent if none were looked for.
_ORDERS = {
    "done": ("orders_done_total", "Executed orders of the fleet."),
    "refused": ("orders_refused_total", "Refused orders of the fleet."),
    "missing": ("orders_missing_total", "Orders of the fleet that never came."),
}
# Of the machine of a service; what it does not tell is absent.
_MACHINE = {
    "undervoltage": ("machine_undervoltage", "gauge", "1 while the board has too little voltage."),
    "throttled": ("machine_throttled", "gauge", "1 while the firmware slows the board down."),
    "temperature_celsius": ("machine_temperature_celsius", "gauge", "Temperature of the processor."),
    "card_life_used_ratio": ("card_life_used_ratio", "gauge", "Used part of the life of an eMMC, in steps of 0.1."),
    "card_written_bytes": (
        "card_written_bytes_total",
        "counter",
        "Bytes written to the disk since the last boot.",
    ),
}
_TIMINGS = {
    "store_query": "Ad-hoc queries, from start of evaluation to first byte of the result.",
    "store_update": "Updates: evaluation and append to the change log.",
    "spu_manager": "Matching of a commit against all subscriptions.",
    "sync": "Syncs of the change log to disk.",
    "update_processing": "Updates, from arrival until the answer may be sent.",
    "loop_held": "Periods in which the engine loop was busy with one task.",
    "http": "HTTP requests, from the end of the headers to the handover of the answer.",
}


def exposition(figures: Figures[Any], accept: str) -> tuple[bytes, str]:
    """All figures, and their media type: OpenMetrics or Prometheus text 0.0.4. accept: the header Accept."""
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
        yield InfoMetricFamily("lamplighter", "Version of the gateway.", {"version": monitored["engine"]["version"]})
        healthy = status["status"] in ("ok", "degraded")
        yield _metric("healthy", "gauge", "1 if the health is ok or degraded, otherwise 0.", healthy)
        yield _components(status["components"])
        yield from _applications(monitored["applications"])
        if status["brokers"]:
            yield _brokers(status["brokers"])
        if status["coap"]:
            yield _coap(status["coap"])
        if status["polled"]:
            yield _polled_metric(status["polled"])
        for name, text in _GAUGES.items():
            yield _metric(name, "gauge", text, status[name])
        yield _subscriptions_by_class(status["subscription_classes"])
        yield _queue_by_class(monitored["scheduler"]["pending_by_class"])
        for name, text in _COUNTERS.items():
            yield _metric(f"{name}_total", "counter", text, status[name])
        for name, text in _COUNTED.items():
            yield _metric(f"{name}_total", "counter", text, status["counters"][name])
        for (bean, member), (name, kind, text) in _MONITORED.items():
            yield _metric(name, kind, text, monitored[bean][member])
        yield from _adapters(monitored["adapters"])
        yield _errors({gate: monitored[gate]["errors"] for gate in ("http", "websocket")})
        sync = self._figures.sync()
        for member, (name, kind, text) in _SYNC.items() if sync is not None else ():
            if (value := getattr(sync, member)) is not None:
                yield _metric(name, kind, text, value)
        orders = self._figures.orders()
        for member, (name, text) in _ORDERS.items() if orders is not None else ():
            yield _metric(name, "counter", text, getattr(orders, member))
        machine = self._figures.machine()
        for member, (name, kind, text) in _MACHINE.items():
            if member in machine:
                yield _metric(name, kind, text, machine[member])
        for name, text in _TIMINGS.items():
            yield _histogram(name, text, getattr(self._figures.timings, name))
        yield _updates_by_class(self._figures.timings.updates)


def _metric(name: str, kind: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(f"lamplighter_{name}", text, value)


def _subscriptions_by_class(found: dict[str, int]) -> Metric:
    text = "Subscriptions by class, including those of applications."
    family = GaugeMetricFamily("lamplighter_subscriptions_by_class", text, labels=("class",))
    for name in dict.fromkeys((*CLASSES, *found)):
        family.add_metric((name,), found.get(name, 0))
    return family


def _queue_by_class(found: dict[str, int]) -> Metric:
    text = "Requests that wait, by class."
    family = GaugeMetricFamily("lamplighter_queue_by_class", text, labels=("class",))
    for name, count in found.items():
        family.add_metric((name,), count)
    return family


def _updates_by_class(timings: Sequence[Timing]) -> Metric:
    text = "Updates by class, from arrival until the answer may be sent."
    family = HistogramMetricFamily("lamplighter_update_processing_by_class_seconds", text, labels=("class",))
    for priority in Priority:
        timing = timings[priority]
        family.add_metric((priority.word,), _buckets(timing), timing.total)
    return family


def _components(found: list[dict[str, Any]]) -> Metric:
    text = "1 for the component's state, otherwise 0. Devices only while they are not ok."
    name = "component_state"
    family = GaugeMetricFamily(f"lamplighter_{name}", text, labels=("component", "state"))
    for component in found:
        for state in STATES:
            family.add_metric((component["name"], state), component["state"] == state)
    return family


def _applications(found: dict[str, dict[str, int]]) -> Iterator[Metric]:
    """found: by application, then by counter."""
    for name, (metric, text) in _OF_APPLICATIONS.items() if found else ():
        family = CounterMetricFamily(f"lamplighter_{metric}", text, labels=("application",))
        for application, counts in found.items():
            family.add_metric((application,), counts[name])
        yield family


def _brokers(found: list[dict[str, Any]]) -> Metric:
    text = "1 if the MQTT adapter is connected to the broker, otherwise 0."
    name = "broker_connected"
    family = GaugeMetricFamily(f"lamplighter_{name}", text, labels=("broker",))
    for broker in found:
        family.add_metric((broker["name"],), broker["state"] == "connected")
    return family


def _coap(found: dict[str, Any]) -> Metric:
    text = "Devices, refused actuators and read resources of the CoAP adapter."
    family = GaugeMetricFamily("lamplighter_coap_devices", text, labels=("state",))
    family.add_metric(("reachable",), found["devices"] - found["unreachable"])
    for name in ("unreachable", "refusing", "observed", "stale", "registered"):
        family.add_metric((name,), found[name])
    return family


def _polled_metric(found: dict[str, dict[str, Any]]) -> Metric:
    """found: by kind of adapter."""
    text = "Devices, refused actuators and stale resources of adapters that poll."
    family = GaugeMetricFamily("lamplighter_polled_devices", text, labels=("adapter", "state"))
    for kind, of in found.items():
        family.add_metric((kind, "reachable"), of["devices"] - of["unreachable"])
        for name in ("unreachable", "refusing", "stale"):
            family.add_metric((kind, name), of[name])
    return family


def _adapters(counts: dict[str, dict[str, int]]) -> Iterator[Metric]:
    """counts: by kind of adapter, then by counter."""
    for name, text in _ADAPTERS.items():
        if any(name in of for of in counts.values()):
            family = CounterMetricFamily(f"lamplighter_adapter_{name}", text, labels=("adapter",))
            for kind, of in counts.items():
                if name in of:
                    family.add_metric((kind,), of[name])
            yield family


def _errors(counts: dict[str, dict[str, int]]) -> Metric:
    """counts: by gate, then by error code."""
    text = "Error answers to clients."
    family = CounterMetricFamily("lamplighter_errors", text, labels=("gate", "code"))
    for gate, by_code in counts.items():
        for code, count in by_code.items():
            family.add_metric((gate, code), count)
    return family


def _histogram(name: str, text: str, timing: Timing) -> Metric:
    return HistogramMetricFamily(f"lamplighter_{name}_seconds", text, _buckets(timing), timing.total)


def _buckets(timing: Timing) -> list[tuple[str, float]]:
    """(upper bound, how many are up to it)."""
    return list(zip((*map(str, BOUNDS_S), "+Inf"), accumulate(timing.buckets), strict=True))
