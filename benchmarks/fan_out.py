"""Many subscribers over WebSocket: how late the last one is told, and what those cost that nothing is told."""

import http.client
import statistics
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, gateway_process
from benchmarks.measuring import Progress, target
from benchmarks.sockets import Socket, Sockets

_S, _P, _OF, _IDLE = (f"<http://bench.example/{name}>" for name in ("s", "p", "of", "idle"))
_WARMING = 3
SHARED = f"SELECT ?v {{ {_S} {_P} ?v }}"


def _own(number: int) -> str:
    return f"SELECT ?v {{ {_S} {_P} ?v . {_S} {_OF} <http://bench.example/{number}> }}"


def _set(value: int) -> str:
    return f"DELETE {{ {_S} {_P} ?v }} INSERT {{ {_S} {_P} {value} }} WHERE {{ {_S} {_P} ?v }}"


class UpdateSender:
    """Updates over one HTTP connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._connection = http.client.HTTPConnection(*gateway.http)
        self._connection.connect()

    def close(self) -> None:
        self._connection.close()

    def send(self, sparql: str) -> int:
        """Sends an update; the wall clock before, in nanoseconds."""
        begun = time.time_ns()
        self._connection.request("POST", "/update", sparql.encode(), {"Content-Type": "application/sparql-update"})
        return begun

    def accepted(self) -> None:
        """Waits for the answer of the update that was sent last."""
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(body.decode())

    def update(self, sparql: str) -> None:
        self.send(sparql)
        self.accepted()


def fan_out(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """One update notifies every subscriber, each on a socket of its own."""
    count, result = effort.subscribers, dict[str, Any]()
    for name in ("one query", "own queries"):
        with (
            gateway_process(websocket={"port": 0, "connections_max": count + 1}) as gateway,
            closing(UpdateSender(gateway)) as producer,
            closing(Sockets(gateway.websocket, count)) as sockets,
        ):
            producer.update(f"INSERT DATA {{ {_S} {_P} -1 }}")
            if name == "own queries":
                numbers = ", ".join(f"<http://bench.example/{number}>" for number in range(count))
                producer.update(f"INSERT DATA {{ {_S} {_OF} {numbers} }}")
            for number, socket in enumerate(sockets.all):
                answer = socket.ask({"subscribe": {"sparql": SHARED if name == "one query" else _own(number)}})
                assert answer["notification"]["sequence"] == 0, answer
            result[name] = _latencies(producer, sockets, effort.fan_out_updates)
            progress(f"{count} subscribers, {name}: p99 {result[name]['p99 ms']:.0f} ms")
    result["subscribers"] = count
    result["targets"] = [
        target(
            f"{count:,} sockets, {name}, update sent to last byte delivered, p99", result[name]["p99 ms"], 250, " ms"
        )
        for name in ("one query", "own queries")
    ]
    return result


def _latencies(producer: UpdateSender, sockets: Sockets, updates: int) -> dict[str, float]:
    """Of all subscribers and updates but the first ones: from before the update is sent until its notification has
    arrived in the kernel, in ms; last: the same of the last subscriber of each update."""
    found: list[float] = []
    last: list[float] = []
    for number in range(updates + _WARMING):
        arrivals: dict[Socket, int] = {}

        def heard(socket: Socket, message: bytes, arrived: int, arrivals: dict[Socket, int] = arrivals) -> None:
            assert socket not in arrivals, message
            arrivals[socket] = arrived

        begun = producer.send(_set(number))
        sockets.hear(len(sockets.all), heard)
        producer.accepted()
        assert len(arrivals) == len(sockets.all)
        if number >= _WARMING:
            found += ((arrived - begun) / 1e6 for arrived in arrivals.values())
            last.append((max(arrivals.values()) - begun) / 1e6)
    return {
        "p50 ms": statistics.median(found),
        "p99 ms": statistics.quantiles(found, n=100)[98],
        "last, median ms": statistics.median(last),
        "last, worst ms": max(last),
    }


def idle_subscriptions(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """What an update costs the gateway beside subscriptions that it does not concern: processor time, against a
    gateway that has none; both are given the same updates in turns."""
    sockets, each = effort.idle_sockets, effort.idle_each
    with ExitStack() as stack:
        gateways = [stack.enter_context(gateway_process()) for _ in range(2)]
        producers = [stack.enter_context(closing(UpdateSender(gateway))) for gateway in gateways]
        idle = stack.enter_context(closing(Sockets(gateways[0].websocket, sockets)))
        begun = time.monotonic()
        for number, socket in enumerate(idle.all):
            for place in range(each):
                subject = f"<http://bench.example/lamp/{number}/{place}>"
                answer = socket.ask({"subscribe": {"sparql": f"SELECT ?v {{ {subject} {_IDLE} ?v }}"}})
                assert "notification" in answer, answer
        progress(f"{sockets * each:,} subscriptions in {time.monotonic() - begun:.0f} s")
        # The same predicate: the gateway has to find out each time that none of them is concerned.
        for producer in producers:
            producer.update(f"INSERT DATA {{ {_S} {_IDLE} -1 }}")
        text = f"DELETE {{ {_S} {_IDLE} ?v }} INSERT {{ {_S} {_IDLE} VALUE }} WHERE {{ {_S} {_IDLE} ?v }}"
        costs: list[list[float]] = [[], []]
        for turn in range(effort.idle_turns + _WARMING):
            for side in (0, 1) if turn % 2 else (1, 0):
                before = gateways[side].cpu_s()
                for value in range(effort.idle_updates):
                    producers[side].update(text.replace("VALUE", str(turn * effort.idle_updates + value)))
                if turn >= _WARMING:
                    costs[side].append((gateways[side].cpu_s() - before) / effort.idle_updates * 1e6)
        assert gateways[0].figures()["websocket"]["notifications"] == 0
    ratio = statistics.median(beside / alone for beside, alone in zip(*costs, strict=True))
    progress(f"{statistics.median(costs[0]):.0f} us an update beside them, {ratio:.3f} of the cost without")
    return {
        "subscriptions": sockets * each,
        "sockets": sockets,
        "us an update": [statistics.median(side) for side in costs],
        "us of each turn": costs,
        "targets": [
            target(
                f"{sockets * each:,} idle subscriptions over {sockets} sockets: cost of an update relative", ratio, 1.05
            )
        ],
    }
