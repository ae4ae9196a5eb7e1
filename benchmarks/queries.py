"""Queries of one row over HTTP on loopback, beside 100 updates/s and 1,004 subscriptions."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, gateway_process
from benchmarks.http_round_trip import KeptAlive, load, spread, updates
from benchmarks.measuring import Progress, target
from benchmarks.sockets import Socket

UPDATES_PER_S = 100
_CLIENTS = 4
_WARMING = 50


def query(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Round trips of a query in the text of the lamp and of the lamp of a post; the same with an unknown cost.

    One client asks for latency, four at a time for throughput. The store alone evaluates the same texts in this
    process.
    """
    with gateway_process() as gateway:
        with closing(KeptAlive(gateway.http)) as client:
            load(client, effort)
        sockets = [Socket(gateway.websocket) for _ in range(2)]
        for number, entry in enumerate(street.subscription_profile()):
            sockets[number % 2].ask({"subscribe": {"sparql": entry.text}})
        progress("1,004 subscriptions")
        result: dict[str, Any] = {"updates alone": _beside(gateway, lambda: time.sleep(effort.query_s))}
        for name, texts, count in (
            ("one lamp", _lamps, effort.queries),
            ("lamp of a post", _lamps_of_posts, effort.queries),
            ("in a process of its own", _lamps_by_expression, effort.queries // 20),
        ):
            took: list[float] = []
            beside = _beside(gateway, lambda: _ask(gateway, texts(), count, took))  # noqa: B023 - runs here
            result[name] = {**spread(took), "updates": beside}
            progress(f"{name}: p50 {result[name]['p50 ms']:.2f} ms, updates p99 {beside['p99 ms']:.2f} ms")
        result["together"] = _together(gateway, effort.queries)
        for one in sockets:
            one.close()
    lamp, join, forked, alone = (
        result[name] for name in ("one lamp", "lamp of a post", "in a process of its own", "updates alone")
    )
    result["note"] = (
        f"A query of one row over HTTP on loopback, beside {UPDATES_PER_S} updates/s and 1,004 subscriptions: p50 "
        f"{lamp['p50 ms']:.2f} ms, p99 {lamp['p99 ms']:.2f} ms; with a join {join['p50 ms']:.2f} and "
        f"{join['p99 ms']:.2f} ms; in a process of its own {forked['p50 ms']:.1f} and {forked['p99 ms']:.1f} ms. Four "
        f"clients together get {result['together']['per core s']:.0f} answers per second of processor time, updates "
        f"included. The updates take {alone['p50 ms']:.2f} ms (p99 {alone['p99 ms']:.2f}) without queries and "
        f"{lamp['updates']['p50 ms']:.2f} ms ({lamp['updates']['p99 ms']:.2f}) beside them."
    )
    result["targets"] = [
        target("query of one row, p50", lamp["p50 ms"], 1.5, " ms"),
        target("query of one row with a join, p50", join["p50 ms"], 1.5, " ms"),
        target("queries of one row per second of a core", result["together"]["per core s"], 2000, at_least=True),
        target(
            "p99 of updates beside queries, in ms above those alone", lamp["updates"]["p99 ms"] - alone["p99 ms"], 2
        ),
    ]
    return result


def _lamps() -> Iterator[bytes]:
    """Queries for the state of one lamp each."""
    while True:
        for road in street.ROADS:
            yield f"SELECT ?v WHERE {{ <{street.lamp_iri(road, 1)}> <{street.DIMMING}> ?v }}".encode()


def _lamps_of_posts() -> Iterator[bytes]:
    while True:
        for road in street.ROADS:
            yield (
                f"SELECT ?lamp ?v WHERE {{ <{street.post_iri(road, 1)}> <{street.HAS_LAMP}> ?lamp . "
                f"?lamp <{street.DIMMING}> ?v }}"
            ).encode()


def _lamps_by_expression() -> Iterator[bytes]:
    """The same as `_lamps`, with a function that may be costly."""
    while True:
        for road in street.ROADS:
            yield (
                f"SELECT ?v WHERE {{ <{street.lamp_iri(road, 1)}> <{street.DIMMING}> ?v FILTER(REGEX(?v, '[0-9]')) }}"
            ).encode()


def _ask(gateway: Gateway, texts: Iterator[bytes], count: int, took: list[float]) -> None:
    with closing(KeptAlive(gateway.http)) as client:  # a new one, since idle ones are closed
        for _ in range(_WARMING):
            client.post("/query", "application/sparql-query", next(texts))
        took += [client.post("/query", "application/sparql-query", next(texts)) for _ in range(count)]


def _together(gateway: Gateway, count: int) -> dict[str, float]:
    spent: list[float] = []

    def ask() -> None:
        threads = [Thread(target=_ask, args=(gateway, _lamps(), count // _CLIENTS, [])) for _ in range(_CLIENTS)]
        begun = gateway.cpu_s()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent.append(gateway.cpu_s() - begun)

    beside = _beside(gateway, ask)
    asked = _CLIENTS * (_WARMING + count // _CLIENTS)
    return {"per core s": asked / spent[0], "cpu us": spent[0] / asked * 1e6, "updates p99 ms": beside["p99 ms"]}


def _beside(gateway: Gateway, work: Callable[[], None]) -> dict[str, float]:
    """Round trips of the updates that another process sends while a work is done here."""
    with _updating(gateway.http) as here:
        work()
        here.send(None)
        return spread(here.recv())


@contextmanager
def _updating(address: tuple[str, int]) -> Iterator[Connection]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_update, args=(address, there))
    process.start()
    try:
        here.recv()
        yield here
    finally:
        process.join(30)


def _update(address: tuple[str, int], there: Connection) -> None:
    """Sends updates at a constant rate, until told to end; sends back how long each took."""
    texts, took = updates(), []
    with closing(KeptAlive(address)) as client:
        for _ in range(_WARMING):
            client.post("/update", "application/sparql-update", next(texts))
        there.send(None)
        due = time.perf_counter()
        while not there.poll(max(0.0, due - time.perf_counter())):
            took.append(client.post("/update", "application/sparql-update", next(texts)))
            due = max(due + 1 / UPDATES_PER_S, time.perf_counter() - 1)
    there.send(took if len(took) > 1 else [statistics.mean(took or [0.0])] * 2)
