"""The gateway's figures as Prometheus text (its exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEDIA_TYPE = "text/plain; version=0.0.4"

CLASSES = ("telescoped", "seeded", "re-evaluated")
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


def prometheus_text(status: Mapping[str, Any]) -> str:
    """status: what `Runner.status` gives."""
    lines: list[str] = []

    def tell(name: str, kind: str, text: str, samples: Mapping[str, float]) -> None:
        lines.append(f"# HELP lamplighter_{name} {text}")
        lines.append(f"# TYPE lamplighter_{name} {kind}")
        lines.extend(f"lamplighter_{name}{labels} {value}" for labels, value in samples.items())

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
    return "\n".join(lines) + "\n"
