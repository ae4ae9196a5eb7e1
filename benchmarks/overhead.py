"""Protocol time beside the engine's (Roffia 2016, appendix B.E), with a gateway in a process of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, gateway_process
from benchmarks.http_round_trip import KeptAlive, load
from benchmarks.measuring import Progress
from benchmarks.sockets import Sockets

_SOCKETS = 2
_NOTIFICATIONS = {"LAMP": 23, "ROAD": 1004}


def overhead(
    experiments: Mapping[str, Callable[[str], list[str]]], effort: Effort, progress: Progress
) -> dict[str, dict[str, float]]:
    """Seconds on the wall clock of each experiment, over HTTP, the subscribers on two WebSockets.

    elapsed: until the last answer. protocol: the part of it in which the gateway waited for an update or read one, or
    answered. The change log is not synced, since the paper's prototype has none.
    """
    with (
        gateway_process(gateway={"durability": "off"}) as gateway,
        closing(KeptAlive(gateway.http)) as client,
        closing(Sockets(gateway.websocket, _SOCKETS)) as sockets,
    ):
        load(client, effort)
        for number, entry in enumerate(street.subscription_profile()):
            sockets.all[number % _SOCKETS].ask({"subscribe": {"sparql": entry.text}})
        result = {}
        for name, updates_of in experiments.items():
            _run(gateway, client, sockets, updates_of("100"), _NOTIFICATIONS[name])  # parses the texts' shapes
            result[name] = _run(gateway, client, sockets, updates_of("0"), _NOTIFICATIONS[name])
            progress(f"{name} over HTTP: {result[name]['elapsed']:.2f} s")
        return result


def _run(
    gateway: Gateway, client: KeptAlive, sockets: Sockets, updates: Sequence[str], notifications: int
) -> dict[str, float]:
    before = _processed(gateway)
    began = time.perf_counter()
    for text in updates:
        client.post("/update", "application/sparql-update", text.encode())
    elapsed = time.perf_counter() - began
    sockets.hear(notifications, lambda socket, message, arrived: None)
    processing = _processed(gateway) - before
    return {"elapsed": elapsed, "processing": processing, "protocol": elapsed - processing}


def _processed(gateway: Gateway) -> float:
    """Seconds that the gateway has spent on updates, from their arrival until their notifications may leave."""
    figures: dict[str, Any] = gateway.figures()["updates"]["processing_ms"]
    return figures["count"] * figures["average"] / 1e3 if figures["count"] else 0.0
