"""Comparisons with the clock: what pending boundaries cost an update, and how late they are committed."""

import http.client
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, gateway_process
from benchmarks.measuring import Progress, cost_of, target
from benchmarks.sockets import Sockets
from lamplighter.engine import Engine

_XSD = "http://www.w3.org/2001/XMLSchema#"
_SINCE, _FUNCTION = "<http://bench.example/openSince>", "<http://lamplighter.example/ns/gateway#now>()"
_TIMED = f'SELECT ?door {{ ?door {_SINCE} ?t FILTER({_FUNCTION} - ?t >= "PT1H"^^<{_XSD}dayTimeDuration>) }}'
_PLAIN = f"SELECT ?door {{ ?door {_SINCE} ?t ; <http://bench.example/alarm> ?alarm }}"
_START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_PART = 1_000
_CHUNK = 50
_WARMING = 300
_AHEAD = timedelta(seconds=3)


def temporal(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Doors that are open since some time each, and a subscription to those that have been open for an hour."""
    pending = effort.boundaries
    result: dict[str, Any] = {"pending": pending, "us": _updates(pending, effort.boundary_updates, progress)}
    result["late ms"] = _lateness(pending, effort.boundaries_fired, effort.boundaries_s, progress)
    us, late = result["us"], result["late ms"]
    result["note"] = (
        f"{pending:,} pending boundaries: an update that moves one takes {us['timed']:.1f} us of CPU, "
        f"{us['one']:.1f} with a single one, {us['plain']:.1f} with another pattern instead. In a gateway, "
        f"{effort.boundaries_fired:,} of them within {effort.boundaries_s:.0f} s reach the subscriber p50 "
        f"{late['p50']:.1f} ms and p99 {late['p99']:.1f} ms late, most {late['most']:.1f} ms."
    )
    result["targets"] = [
        target(f"{pending:,} pending boundaries, cost of an update", us["timed"] - us["plain"], 30, " us"),
        target(f"{pending:,} pending boundaries, lateness, p99", late["p99"], 50, " ms"),
    ]
    return result


def _door(number: int) -> str:
    return f"<http://bench.example/door/{number}>"


def _time(at: datetime) -> str:
    return f'"{at.astimezone(UTC).isoformat(timespec="microseconds")[:-6]}Z"^^<{_XSD}dateTime>'


def _opened(number: int, at: datetime) -> str:
    door = _door(number)
    return f"DELETE {{ {door} {_SINCE} ?t }} INSERT {{ {door} {_SINCE} {_time(at)} }} WHERE {{ {door} {_SINCE} ?t }}"


def _doors(times: Iterator[datetime], first: int, number: int) -> Iterator[str]:
    """Updates that insert so many doors."""
    while number > 0:
        some = min(number, _PART)
        quads = " . ".join(f"{_door(first + place)} {_SINCE} {_time(next(times))}" for place in range(some))
        yield f"INSERT DATA {{ {quads} }}"
        first, number = first + some, number - some


def _updates(pending: int, updates: int, progress: Progress) -> dict[str, float]:
    """Microseconds of CPU of an update, median of chunks in turns.

    timed: with so many boundaries ahead; one: with a single one; plain: without a comparison with the clock.
    """
    sides: dict[str, tuple[Engine, int]] = {}
    for name, query, doors in (("timed", _TIMED, pending), ("one", _TIMED, 1), ("plain", _PLAIN, pending)):
        engine = Engine(clock=lambda: _START)
        engine.subscribe(query)
        times = (_START + timedelta(milliseconds=number) for number in count())
        for text in _doors(times, 0, doors):
            engine.update(text)
        sides[name] = engine, doors
    progress(f"{pending:,} boundaries are pending")
    spent: dict[str, list[float]] = {name: [] for name in sides}
    moved = {name: _moves(doors) for name, (_, doors) in sides.items()}
    for name, (engine, _) in sides.items():
        for text in islice(moved[name], _WARMING):
            engine.update(text)
    for _ in range(updates // _CHUNK):
        for name, (engine, _) in sides.items():
            texts = list(islice(moved[name], _CHUNK))
            cost = cost_of(lambda engine=engine, texts=texts: [engine.update(text) for text in texts])  # type: ignore[misc]
            spent[name].append(cost.cpu / _CHUNK * 1e6)
    found = {name: statistics.median(costs) for name, costs in spent.items()}
    for engine, _ in sides.values():
        engine.close()
    progress(f"an update takes {found['timed']:.1f} us, {found['plain']:.1f} without a boundary")
    return found


def _moves(doors: int) -> Iterator[str]:
    """Updates that give one door after the other a new time, each at another boundary."""
    return (_opened(number * 7919 % doors, _START + _HOUR + timedelta(microseconds=number)) for number in count())


def _lateness(pending: int, fired: int, seconds: float, progress: Progress) -> dict[str, float]:
    """Milliseconds from a boundary to the arrival of its notification."""
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_process(gateway={"clock_trusted": "always"}))
        far = (datetime.now(UTC) + timedelta(milliseconds=number) for number in count())
        for text in _doors(far, fired, pending - fired):
            _update(gateway, text)
        sockets = stack.enter_context(closing(Sockets(gateway.websocket, 1)))
        [socket] = sockets.all
        socket.ask({"subscribe": {"sparql": _TIMED}})
        begin = datetime.now(UTC) + _AHEAD - _HOUR
        due = [begin + timedelta(seconds=seconds * number / fired) for number in range(fired)]
        for text in _doors(iter(due), 0, fired):
            _update(gateway, text)
        progress(f"{pending:,} boundaries are pending in a gateway, {fired:,} of them soon")
        late: list[float] = []

        def heard(_: object, message: bytes, arrived_ns: int) -> None:
            for row in json.loads(message)["notification"]["addedResults"]["results"]["bindings"]:
                number = int(row["door"]["value"].rsplit("/", 1)[1])
                late.append(arrived_ns / 1e6 - (due[number] + _HOUR).timestamp() * 1e3)

        limit = time.monotonic() + seconds + 60
        while len(late) < fired and time.monotonic() < limit:
            sockets.hear(1, heard)
        cuts = statistics.quantiles(late, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98], "most": max(late)}


def _update(gateway: Gateway, text: str) -> None:
    with closing(http.client.HTTPConnection(*gateway.http)) as connection:
        connection.request("POST", "/update", text.encode(), {"Content-Type": "application/sparql-update"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(body.decode())
