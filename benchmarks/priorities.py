"""Alarms beside a load that fills the queue: the time from before an alarm is sent until its subscriber has it.

A process of its own sends updates over several WebSockets as fast as the gateway reads them, and a subscriber is
notified of each. Alarms come at random moments, over a WebSocket of their own or over HTTP. The arrival of a
notification is the kernel's time (SO_TIMESTAMPNS).
"""

import itertools
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import ROOT, Gateway, gateway_process
from benchmarks.http_round_trip import KeptAlive, spread
from benchmarks.measuring import Progress, target
from benchmarks.sockets import Socket, frame

SENSORS = 1000
SENDERS = 30
MEMBERS = 50
"""Updates in one message of the load."""
_PAUSE_S = (0.01, 0.06)
_REFUSED_S = 0.05
"""A refused part of the load is sent again after that."""
_LEVEL, _ALARM, _STATE = (f"<http://bench.example/{name}>" for name in ("level", "alarm", "state"))
_WAITED_S = 60.0


def _set(subject: str, predicate: str, value: int) -> str:
    before, after = f"{subject} {predicate} ?v", f"{subject} {predicate} {value}"
    return f"DELETE {{ {before} }} INSERT {{ {after} }} WHERE {{ {before} }}"


def _sensor(number: int) -> str:
    return f"<http://bench.example/sensor/{number % SENSORS}>"


class _OverWebSocket:
    """Sends alarms on a connection of its own, again if they are refused."""

    def __init__(self, gateway: Gateway) -> None:
        self._socket = Socket(gateway.websocket)
        self.close = self._socket.close
        self.refused = 0

    def send(self, text: str, priority: str) -> None:
        """Returns when the gateway has answered."""
        while "error" in self._socket.ask({"update": {"sparql": text, "priority": priority}}):
            self.refused += 1
            time.sleep(_REFUSED_S)


class _OverHttp:
    """The same over HTTP. A refused alarm is an error."""

    refused = 0

    def __init__(self, gateway: Gateway) -> None:
        self._client = KeptAlive(gateway.http)
        self.close = self._client.close

    def send(self, text: str, priority: str) -> None:
        self._client.post(f"/update?priority={priority}", "application/sparql-update", text.encode())


def priorities(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Latency of alarms, idle and beside loads; and beside one large update."""
    cases: dict[str, dict[str, Any]] = {}
    for name, load, alarm, over, durability in (
        ("idle", None, "alarm", _OverWebSocket, "fsync"),
        ("no classes", "normal", "normal", _OverWebSocket, "fsync"),
        ("beside bulk", "bulk", "alarm", _OverWebSocket, "fsync"),
        ("beside bulk, HTTP", "bulk", "alarm", _OverHttp, "fsync"),
        ("beside bulk, not synced", "bulk", "alarm", _OverWebSocket, "off"),
        ("beside normal", "normal", "alarm", _OverWebSocket, "fsync"),
    ):
        with gateway_process(gateway={"durability": durability}) as gateway:
            cases[name] = _case(gateway, load, alarm, over, effort)
            cases[name]["sync ms"] = gateway.figures()["log"]["sync_ms"]
        told = cases[name]
        progress(
            f"{name}: p50 {told['p50 ms']:.1f}, p99 {told['p99 ms']:.1f}, most {told['most ms']:.1f} ms; "
            f"{told['updates/s']:,.0f} updates/s, {told['waiting']:.0f} wait, {told['refused']} alarms refused"
        )
    large = _beside_a_large_update(effort)
    progress(f"beside an update of {effort.bulk_quads:,} quads: {large['alarm s']:.2f} s")
    by_classes, without = cases["beside bulk"], cases["no classes"]
    sync = by_classes["sync ms"]
    return {
        "cases": cases,
        "large": large,
        "note": (
            f"Alarm to notification, p50 and p99: idle {_told(cases['idle'])}; beside a bulk load of "
            f"{by_classes['updates/s']:,.0f} updates/s that fills the queue {_told(by_classes)}, over HTTP "
            f"{_told(cases['beside bulk, HTTP'])}, and {_told(cases['beside bulk, not synced'])} if the log is not "
            f"synced (a sync takes {sync['average']:.1f} ms, at most {sync['max']:.0f}); beside a normal load "
            f"{_told(cases['beside normal'])}; without classes {_told(without)} at {without['updates/s']:,.0f} "
            f"updates/s, and {without['refused']} of {effort.alarms:,} were refused at first. An alarm during one "
            f"update of {effort.bulk_quads:,} quads waits until it has ended: {large['alarm s']:.2f} s."
        ),
        "targets": [
            target("alarm beside a bulk load that fills the queue, p99", by_classes["p99 ms"], 20, " ms"),
            target("the same over HTTP, p99", cases["beside bulk, HTTP"]["p99 ms"], 20, " ms"),
        ],
    }


def _told(case: dict[str, Any]) -> str:
    return f"{case['p50 ms']:.1f} and {case['p99 ms']:.1f} ms"


def _case(
    gateway: Gateway, load: str | None, alarm: str, over: type[_OverWebSocket | _OverHttp], effort: Effort
) -> dict[str, Any]:
    with closing(Socket(gateway.websocket)) as subscriber, closing(over(gateway)) as sender:
        _prepare(gateway, subscriber)
        if load is None:
            took = _alarms(effort.alarms, alarm, sender, subscriber)
            return {**spread(took), "updates/s": 0.0, "waiting": 0, "refused": 0}
        with _load(gateway, load):
            _wait_until_full(gateway)
            before, begun = gateway.figures()["scheduler"]["updates"], time.perf_counter()
            took = _alarms(effort.alarms, alarm, sender, subscriber)
            seconds = time.perf_counter() - begun
            after = gateway.figures()["scheduler"]
        rate = (after["updates"] - before) / seconds
        waiting = after["pending_by_class"][load]
        return {**spread(took), "updates/s": rate, "waiting": waiting, "refused": sender.refused}


def _prepare(gateway: Gateway, subscriber: Socket) -> None:
    triples = [f"{_ALARM} {_STATE} -1 .", *(f"{_sensor(number)} {_LEVEL} -1 ." for number in range(SENSORS))]
    with closing(KeptAlive(gateway.http)) as client:
        client.post("/update", "application/sparql-update", f"INSERT DATA {{ {' '.join(triples)} }}".encode())
        for subject, predicate in ((_ALARM, _STATE), (_sensor(0), _LEVEL)):  # their shapes are known from then on
            client.post("/update", "application/sparql-update", _set(subject, predicate, -2).encode())
    subscriber.ask({"subscribe": {"sparql": f"SELECT ?v {{ {_ALARM} {_STATE} ?v }}"}})


def _alarms(
    count: int, priority: str, sender: _OverWebSocket | _OverHttp, subscriber: Socket, first: int = 0
) -> list[float]:
    """Seconds from before each alarm is sent until the kernel of its subscriber has the notification. first: its
    value."""
    chance, took = random.Random(1), []
    for value in range(first, first + count):
        time.sleep(chance.uniform(*_PAUSE_S))
        begun = time.time_ns()
        sender.send(_set(_ALARM, _STATE, value), priority)
        messages: Sequence[bytes] = ()
        while not messages:
            messages, arrived = subscriber.hear()
        [message] = messages
        [row] = json.loads(message)["notification"]["addedResults"]["results"]["bindings"]
        assert row["v"]["value"] == str(value)
        took.append((arrived - begun) / 1e9)
    return took


def _wait_until_full(gateway: Gateway) -> None:
    """Returns when the queue has refused a part of the load. Raises TimeoutError."""
    deadline = time.monotonic() + _WAITED_S
    while time.monotonic() < deadline:
        if gateway.figures()["scheduler"]["rejected"]:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the load did not fill the queue within {_WAITED_S} s")


def _beside_a_large_update(effort: Effort) -> dict[str, float]:
    """Seconds from an alarm until its notification, sent when a large update has just been begun."""
    triples = "\n".join(f"<http://bench.example/{number}> <urn:p> {number} ." for number in range(effort.bulk_quads))
    with (
        gateway_process() as gateway,
        closing(Socket(gateway.websocket)) as subscriber,
        closing(Socket(gateway.websocket)) as bulk,
        closing(_OverWebSocket(gateway)) as sender,
    ):
        _prepare(gateway, subscriber)
        before = gateway.figures()["log"]["commits"]
        begun = time.perf_counter()
        bulk.tell({"update": {"sparql": f"INSERT DATA {{ {triples} }}", "priority": "bulk"}})
        took: list[float] = []
        while gateway.figures()["log"]["commits"] - before - len(took) == 0:  # it is read beside the loop, then applied
            took += _alarms(1, "alarm", sender, subscriber, len(took))
        return {"alarm s": max(took, default=0.0), "update s": time.perf_counter() - begun}


@contextmanager
def _load(gateway: Gateway, priority: str) -> Iterator[None]:
    host, port = gateway.websocket
    command = [sys.executable, "-m", "benchmarks.priorities", host, str(port), priority]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _messages(priority: str) -> list[bytes]:
    """Messages of the load; each sets all that it sets to other values than the one before."""
    found = []
    for turn in range(2 * SENSORS // MEMBERS):
        texts = [
            _set(_sensor(turn * MEMBERS + number), _LEVEL, turn // (SENSORS // MEMBERS)) for number in range(MEMBERS)
        ]
        members = [{"sparql": text, "priority": priority, "together": True} for text in texts]
        found.append(frame(0x1, json.dumps({"updates": members}).encode(), os.urandom(4)))
    return found


def _send_for_ever(address: tuple[str, int], priority: str) -> None:
    """The load: each connection has a message under way, and waits a little when the queue is full."""
    subscriber = Socket(address)
    subscriber.ask({"subscribe": {"sparql": f"SELECT ?s ?v {{ ?s {_LEVEL} ?v }}"}})
    messages = itertools.cycle(_messages(priority))
    senders = [Socket(address) for _ in range(SENDERS)]
    unanswered = dict.fromkeys(senders, 0)
    due = dict.fromkeys(senders, 0.0)
    while True:
        for one in senders:
            if not unanswered[one] and due[one] <= time.monotonic():
                one.send_frame(next(messages))
                unanswered[one] = MEMBERS
        readable, _, _ = select.select([subscriber, *senders], [], [], _REFUSED_S)
        for one in readable:
            for message in one.hear()[0]:
                if one is not subscriber:
                    refused = message.count(b'"error"')
                    unanswered[one] -= message.count(b'"updated"') + refused
                    if refused:
                        due[one] = time.monotonic() + _REFUSED_S


if __name__ == "__main__":
    _send_for_ever((sys.argv[1], int(sys.argv[2])), sys.argv[3])
