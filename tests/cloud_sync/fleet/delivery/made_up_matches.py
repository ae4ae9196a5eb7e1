"""Matches written with pyarrow, subscriptions in memory, and a clock that moves by itself."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from lamplighter.cloud_sync.fleet.delivery.cursors import Cursors
from lamplighter.cloud_sync.fleet.delivery.match_table import MatchTable
from lamplighter.cloud_sync.fleet.delivery.parts import DeliveryClock, DeliveryParts
from lamplighter.cloud_sync.fleet.delivery.runner import FleetDelivery
from lamplighter.cloud_sync.fleet.delivery.sinks import SinkThreads, opener
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.records import Sink, SubscriptionRecord
from lamplighter.cloud_sync.fleet.subscriptions.registry import BrokenRecord, Registered

SETTLED = 100
"""Turns of the loop in which everything happens that needs no time."""
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def match(subscription: str = "hot", gw: str = "gw-1", seq: int = 1, **members: Any) -> dict[str, Any]:
    """A row of `matches`."""
    return {
        "subscription": subscription,
        "version": 1,
        "gw": gw,
        "epoch": 1,
        "seq": seq,
        "ts": NOON,
        "trusted": True,
        "late": False,
        "change": "added",
        "graph": None,
        "form": "SELECT",
        "variables": ["s"],
        "rows": [[f"<http://x/{seq}>"]],
        "incomplete": False,
        "request": None,
        **members,
    }


def write_batch(lake: Lake, number: int, rows: Sequence[dict[str, Any]], *, files: int = 1, group: int = 1000) -> None:
    """A batch of `matches`. group: rows in a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.list_(pa.string())
    kinds = {"version": pa.int32(), "epoch": pa.int32(), "seq": pa.int64(), "ts": pa.timestamp("us", "UTC")}
    kinds |= {
        "trusted": pa.bool_(),
        "late": pa.bool_(),
        "incomplete": pa.bool_(),
        "variables": texts,
        "rows": pa.list_(texts),
    }
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in match()])
    id = f"{number:012d}"
    matches = table(lake, "matches")
    names = []
    for file in range(files):
        part = rows[file * len(rows) // files : (file + 1) * len(rows) // files]
        path = Path(lake.path(matches.name, f"batch={id}", f"part-{file}.parquet"))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(part, schema), path, row_group_size=group)
        names.append(f"batch={id}/{path.name}")
    matches.commit(TableBatch(id=id, files=names, rows=len(rows)))


def record(id: str, *sinks: Sink, **members: Any) -> SubscriptionRecord:
    members = {"query": "ASK {?s ?p ?o}", "created": NOON, "changed": NOON, **members}
    return SubscriptionRecord(id=id, deliver=sinks, **members)


class VirtualClock:
    """A clock whose sleepers wake when all of them sleep, the earliest first."""

    def __init__(self) -> None:
        self.now = NOON.timestamp()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def clock(self) -> DeliveryClock:
        return DeliveryClock(lambda: self.now, lambda: self.now, self.sleep)

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, next(self._numbers), future))
        await future

    def advance(self, seconds: float) -> None:
        """Wakes whoever is due after so many seconds, in order."""
        self.now += seconds
        due = sorted(one for one in self._sleepers if one[0] <= self.now)
        self._sleepers = [one for one in self._sleepers if one[0] > self.now]
        for _, _, future in due:
            if not future.done():
                future.set_result(None)


class Inline(Executor):
    """Runs everything at once, so that no thread races against the virtual clock."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _NoState:
    def __getattr__(self, name: str) -> None:
        return None


class Rig:
    """A delivery over a lake whose subscriptions the test sets."""

    def __init__(self, lake: Lake, *records: SubscriptionRecord, make: Any = None, **parts: Any) -> None:
        self.virtual = VirtualClock()
        self.records: list[SubscriptionRecord] = list(records)
        self.broken: set[str] = set()
        self.table = MatchTable(lake, lambda: self.virtual.now)
        self.cursors = Cursors(lake, self.table.last())
        self.threads = SinkThreads(1)
        self.threads._pool = Inline()
        self.parts = DeliveryParts(
            lake=lake,
            table=self.table,
            cursors=self.cursors,
            make=make or opener(self.threads),
            reading=Inline(),
            writing=Inline(),
            answering=parts.pop("answering", Inline()),
            clock=self.virtual.clock(),
            chance=Random(1),
            **parts,
        )
        self.delivery = FleetDelivery(self.parts, self._registered)
        self._task: asyncio.Task[None] | None = None

    def _registered(self) -> Registered:
        return Registered(tuple(self.records), tuple(BrokenRecord(id, "damaged") for id in self.broken))

    async def __aenter__(self) -> Rig:
        self._task = asyncio.ensure_future(self.delivery.run(1.0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.delivery.stop()
        assert self._task
        await self._task
        self.close()

    async def kill(self) -> None:
        """Ends everything at once; nothing is written any more."""
        self.parts.cursors.write = lambda changes: None  # type: ignore[method-assign]
        await self.__aexit__()

    def close(self) -> None:
        self.threads.close()

    async def until(self, holds: Any, *, step_s: float = 0.5, longest_s: float = 7 * 86400.0) -> None:
        """Lets time pass until a condition holds."""
        end = self.virtual.now + longest_s
        while True:
            for _ in range(SETTLED):
                await asyncio.sleep(0)
            if holds():
                return
            assert self._task and not self._task.done(), self._task
            assert self.virtual.now < end, (self.delivery.states(), "does not happen")
            self.virtual.advance(step_s)

    def state(self, subscription: str, sink: str) -> Any:
        """The state of a sink; before there is one, an object whose members are None."""
        found = [one for one in self.delivery.states() if (one.subscription, one.sink) == (subscription, sink)]
        return found[0] if found else _NoState()


def lines(folder: Path) -> list[dict[str, Any]]:
    """The notifications in the files of a folder, in the order of their names."""
    return [json.loads(line) for path in sorted(folder.glob("*.ndjson")) for line in path.read_bytes().splitlines()]


def ids(found: Iterable[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in found]
