"""A house whose gateway is killed while doors are open, people come and go and freezers get warm, with the applications
of docs/time.md, only faster; and what its change log must have.

The log is the judge of time: each record has one instant, so a store that evaluates the queries at these instants tells
which rows came and went with which record. Nothing depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.change_log import Record
from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import Quad
from tests.properties.timed_texts import date_time
from tests.support.oracle import Row, respelled_rows, term_text
from tests.support.places import ROOT

TIMEOUT_S = 120.0
SOON_S = 0.4
"""After it a door is left open, a person away, a freezer warm for too long."""
STATES = ("'open'", "'closed'")
FAR = datetime(2999, 1, 1, tzinfo=UTC)
PREFIX = (
    "PREFIX ex: <http://example.org/> PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
    "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
)
_WINDOW = f"?f ex:measured ?t ; ex:temperature ?v FILTER(?t > gateway:now() - 'PT{SOON_S}S'^^xsd:dayTimeDuration)"
FOLLOWED = {
    "left open": f"SELECT ?d {{ ?d ex:openSince ?t FILTER(gateway:now() - ?t >= 'PT{SOON_S}S'^^xsd:dayTimeDuration) }}",
    "warm mean": f"SELECT (AVG(?v) AS ?mean) (COUNT(*) AS ?n) {{ {_WINDOW} }}",
    "newest": f"SELECT ?f ?t {{ {_WINDOW} }} ORDER BY DESC(?t) ?f LIMIT 2",
    "coldest": "SELECT ?f ?v { ?f ex:temperature ?v } ORDER BY ?v ?f LIMIT 2",
}
"""Queries that the clients of the house follow, besides those of the applications."""


def applications() -> dict[str, Any]:
    """Those of docs/time.md by name, with a fraction of a second in place of minutes."""
    found = {}
    for name in ("door", "presence", "freezer"):
        text = (ROOT / "docs" / "examples" / "time" / f"{name}.jsap").read_text()
        faster = re.sub(r"'PT\d+M'", f"'PT{SOON_S}S'", text)
        assert faster != text, name
        found[name] = json.loads(faster)
    return found


@dataclass
class Copy:
    """What a client has of a result. begun: how often it began."""

    rows: Counter[Row] = field(default_factory=Counter)
    variables: tuple[str, ...] = ()
    sequence: int = 0
    begun: int = 0


def random_update(random: Random) -> str:
    """A door is opened or closed, a phone is seen, or a freezer reports its temperature."""
    kind = random.choice(("door", "phone", "freezer"))
    name = f"ex:{kind}{random.randrange(3)}"
    match kind:
        case "door":
            old, values = f"{name} ex:state ?old", f"{name} ex:state {random.choice(STATES)}"
        case "phone":
            old, values = f"{name} ex:seen ?old", f"{name} ex:seen ?now . ex:p{random.randrange(2)} ex:phone {name}"
        case _:
            old = f"{name} ex:temperature ?old ; ex:measured ?then"
            values = f"{name} ex:temperature {random.randrange(-20, -10)} ; ex:measured ?now"
    where = f"OPTIONAL {{ {old} }} BIND(gateway:now() AS ?now)"
    return f"{PREFIX} DELETE {{ {old} }} INSERT {{ {values} }} WHERE {{ {where} }}"


class House:
    """The clients of one gateway. updates: how many were acknowledged."""

    def __init__(self, websocket_port: int, random: Random) -> None:
        self._client = EngineClient(f"ws://127.0.0.1:{websocket_port}/subscribe")
        self._random = random
        self._copies = {name: Copy() for name in FOLLOWED}
        self.updates = 0

    @asynccontextmanager
    async def lived_in(self) -> Any:
        """Within the context, everybody is busy; behind it, nobody is, and all updates were acknowledged."""
        leaving = asyncio.Event()
        async with self._client, asyncio.TaskGroup() as group:
            following = [group.create_task(self._follow(name)) for name in FOLLOWED]
            working = [group.create_task(self._work(leaving)) for _ in range(3)]
            yield
            leaving.set()
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.gather(*working)
                await self._rest()
            for task in following:
                task.cancel()

    async def _work(self, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            await self._client.update(random_update(self._random))
            self.updates += 1
            await asyncio.sleep(self._random.uniform(0, 0.15))

    async def _follow(self, name: str) -> None:
        copy = self._copies[name]
        async for notification in self._client.subscribe(PREFIX + FOLLOWED[name], keep="PT10M"):
            if notification.sequence == 0:
                copy.begun += 1
                copy.rows.clear()
            else:
                assert notification.sequence == copy.sequence + 1, name
            copy.sequence, copy.variables = notification.sequence, notification.added.variables
            removed = respelled_rows(notification.removed)
            assert not removed - copy.rows, name
            copy.rows = copy.rows - removed + respelled_rows(notification.added)

    async def _rest(self) -> None:
        """Waits until every boundary has passed, and the copies show that."""
        while True:
            quads = await self._client.query("SELECT ?s ?p ?o { ?s ?p ?o }")
            store = ox.Store()
            for row in quads:
                store.update(f"INSERT DATA {{ {' '.join(str(term) for term in row)} }}")
            if all(
                copy.rows == evaluated(store, FOLLOWED[name], FAR, copy.variables)
                for name, copy in self._copies.items()
            ):
                break
            await asyncio.sleep(0.05)

    def check_copies(self) -> None:
        """None of the clients had to begin anew."""
        assert {name: copy.begun for name, copy in self._copies.items()} == dict.fromkeys(FOLLOWED, 1)


def evaluated(store: ox.Store, query: str, instant: datetime, columns: Sequence[str] = ()) -> Counter[Row]:
    """The rows of a query at an instant, evaluated from nothing."""
    found = store.query(PREFIX + query.replace("gateway:now()", date_time(instant)))
    assert isinstance(found, ox.QuerySolutions)
    names = columns or [variable.value for variable in found.variables]
    rows = ([solution[name] for name in names] for solution in found)
    return Counter(tuple(None if term is None else term_text(term) for term in row) for row in rows)


# --- the log ------------------------------------------------------------------------------------------------------


def check_log(log: Sequence[Record]) -> Counter[str]:
    """Compares a log from its first record with what its quads and instants imply. Returns figures.

    - Each instant has one commit, and they are in order.
    - No row of a query comes or goes but with a commit, so no boundary was passed over.
    - Each notification of rows that come or go has its reaction once, and there are no other reactions.
    """
    tally: Counter[str] = Counter()
    wanted = {
        f"{name}/{aggregator}/{member}": (document["queries"][found["query"]]["sparql"], member)
        for name, document in applications().items()
        for aggregator, found in document["extended"]["lamplighter"]["aggregators"].items()
        for member in ("added", "removed")
        if member in found
    }
    queries = dict.fromkeys(query for query, _ in wanted.values())
    store, instant = ox.Store(), datetime(1970, 1, 1, tzinfo=UTC)
    known = {query: Counter[Row]() for query in queries}
    instants: list[datetime] = []
    expected: Counter[tuple[str, int]] = Counter()
    found: Counter[tuple[str, int]] = Counter()
    for record in log:
        if record.type != "commit":
            continue
        cause = record.cause
        assert cause is not None
        reaction = cause.kind == "application" and cause.seq is not None
        if reaction:
            assert cause.seq is not None
            found[cause.id, cause.seq] += 1
        clock = cause.kind == "clock" and cause.id[:1].isdigit()
        if clock:
            assert not record.d and not record.a
            instants.append(datetime.fromisoformat(cause.id))
        time = instants[-1] if clock else datetime.fromisoformat(record.instant or record.ts)
        if not reaction or record.instant:
            assert time >= instant or not clock, "time goes on"
            instant = max(instant, time)
        if not clock:
            for query in queries:
                assert evaluated(store, query, instant) == known[query], f"a boundary was passed over at {record.seq}"
        for quads, change in ((record.d, store.remove), (record.a, store.add)):
            for quad in quads:
                change(native(quad))
        for query in queries:
            rows = evaluated(store, query, instant)
            for member, changed in (("added", rows - known[query]), ("removed", known[query] - rows)):
                count = changed.total()
                tally[f"{member} by {'time' if clock else 'quads'}"] += count
                for name, (text, kind) in wanted.items():
                    if text == query and kind == member and count:
                        expected[name, record.seq] += 1
            known[query] = rows
    assert found == expected, (found - expected, expected - found)
    assert instants == sorted(set(instants)), "each instant has one commit"
    tally["instants"], tally["reactions"] = len(instants), found.total()
    return tally


def native(quad: Quad) -> ox.Quad:
    [found] = ox.parse(f"{quad.s} {quad.p} {quad.o} .".encode(), ox.RdfFormat.N_TRIPLES)
    assert isinstance(found, ox.Quad)
    return found
