"""Real gateways under load that are killed again and again, at named places and at any moment, and what they must hold.

A `Street` is one gateway with its clients: workers that update over WebSocket and HTTP, at once and delayed,
subscribers whose subscriptions are kept, and one whose is not. Everything that is sent is acknowledged in the end,
since the clients ask again under the same request id; so after some kills the gateway must hold exactly what was
sent, once.
"""

from __future__ import annotations

import asyncio
import http.client as http_client
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical
from tests.faults.killed_gateway import APPLY, HALF, RELEASE
from tests.support.brokers import free_port
from tests.support.places import ROOT
from tests.support.running_gateway import http
from tests.support.simulated_disk import scratch
from tests.support.sums import Summed

CHECK_EVERY = 20
"""Kills between two comparisons."""
PATIENCE_S = 60.0
ALIVE_S = 1.0
"""A gateway that does not come to its place by then is killed where it is."""
SOCKET_WORKERS, HTTP_WORKERS, KEPT = 5, 2, 2
PREFIX = "PREFIX : <http://e/> "
FOLLOWED = PREFIX + "SELECT ?x { ?x :by ?who }"
MOMENT = "any moment"
PLACES = {
    "write log": 60,
    f"{HALF} log": 60,
    "sync log": 60,
    APPLY: 60,
    RELEASE: 60,
    "create log": 3,
    "create log temporary": 4,
    "write log temporary": 4,
    f"{HALF} log temporary": 4,
    "sync log temporary": 4,
    "rename log": 4,
    "remove log": 3,
    "sync_folder log": 6,
    "create snapshots temporary": 2,
    "write snapshots temporary": 3,
    f"{HALF} snapshots temporary": 3,
    "sync snapshots temporary": 2,
    "rename snapshots": 2,
    "remove snapshots": 2,
    "sync_folder snapshots": 2,
    MOMENT: 1,
}
"""Where gateways die, and after how many times at most that they came there."""

REACTIONS = {
    "namespaces": {"": "http://e/"},
    "queries": {"IN": {"sparql": "SELECT ?x { ?x :in ?v }"}},
    "updates": {
        name: {
            "sparql": f"INSERT {{ ?x :{name.lower()} [] }} WHERE {{ }}",
            "forcedBindings": {"x": {"type": "uri", "value": ""}},
            **more,
        }
        for name, more in {"SEEN": {}, "LATER": {"delay": "PT0.3S"}}.items()
    },
    "extended": {
        "lamplighter": {
            "aggregators": {"seen": {"query": "IN", "added": "SEEN"}, "later": {"query": "IN", "added": "LATER"}}
        }
    },
}


@dataclass
class Tally(Summed):
    """What was done. kills: by the place where the gateway died."""

    kills: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    delayed: int = 0
    reactions: int = 0
    notifications: int = 0
    resets: int = 0
    checks: int = 0

    def __str__(self) -> str:
        places = ", ".join(f"{place} {number}" for place, number in sorted(self.kills.items()))
        return (
            f"{self.kills.total()} kills, {self.updates} updates ({self.delayed} delayed), {self.reactions} reactions, "
            f"{self.notifications} notifications, {self.resets} subscriptions begun anew, {self.checks} comparisons\n"
            f"  killed at: {places}"
        )


class Gateways:
    """The warm process, and the gateway that it has started. applications: name -> JSAP; log_bytes_max: of the log that
    it keeps."""

    def __init__(self, folder: Path, applications: Mapping[str, object], log_bytes_max: int) -> None:
        self.folder = folder
        self.http_port, self.websocket_port = free_port(), free_port()
        self._config = folder / "lamplighter.toml"
        (folder / "apps").mkdir(parents=True)
        for name, application in applications.items():
            (folder / "apps" / f"{name}.jsap").write_text(json.dumps(application))
        self._config.write_text(
            '[gateway]\nclock_trusted = "always"\n'
            f"[http]\nport = {self.http_port}\n[websocket]\nport = {self.websocket_port}\n"
            f"[log]\nsegment_bytes_max = 10000\nsnapshot_records = 100\nbytes_max = {log_bytes_max}\n"
        )
        self._process: asyncio.subprocess.Process | None = None
        self._pid = 0

    async def __aenter__(self) -> Gateways:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.killed_gateway",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._process
        os.killpg(self._process.pid, signal.SIGKILL)  # with the gateway, whose id may be on its way still
        await self._process.wait()

    async def _line(self) -> str:
        assert self._process
        assert self._process.stdout
        line = (await self._process.stdout.readline()).decode()
        assert line, "the warm process ended"
        return line.strip()

    async def start(self, point: str, number: int) -> None:
        """Returns as soon as the gateway has begun to start."""
        assert self._process
        assert self._process.stdin
        order = {"config": str(self._config), "point": point, "number": number}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        word, _, pid = (await self._line()).partition(" ")
        assert word == "pid"
        self._pid = int(pid)

    async def ready(self) -> bool:
        """Whether the gateway gets so far as to serve."""
        async with asyncio.timeout(PATIENCE_S):
            line = await self._line()
        if line != "ready":
            await self._dead(line)
            return False
        return True

    async def dead(self, after_s: float) -> str:
        """Kills it unless it has died by then; the place."""
        try:
            async with asyncio.timeout(after_s):
                line = await self._line()
        except TimeoutError:
            with suppress(ProcessLookupError):  # it has died just now
                os.kill(self._pid, signal.SIGKILL)
            line = await self._line()
        return await self._dead(line)

    async def _dead(self, line: str) -> str:
        self.place = MOMENT
        if line.startswith("at "):
            self.place, line = line.removeprefix("at "), await self._line()
        self._pid = 0
        assert line == f"dead {int(signal.SIGKILL)}", f"the gateway ended by itself: {line}"
        return self.place


class Street:
    """A gateway and its clients."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.tally = Tally()
        self._random = Random(seed)
        self._gateways = Gateways(folder, {"reactions": REACTIONS}, 1_000_000)
        self._sent: set[str] = set()
        self._triggers: set[str] = set()
        self._numbers = 0
        self._working = asyncio.Event()
        self._busy = 0
        self._known: list[Counter[str]] = []
        self._begun: list[int] = []
        self._points: list[str] = []

    async def run(self, kills: int, progress: Callable[[Tally], None] | None = None) -> Tally:
        """So many kills, and a comparison after some of them."""
        async with self._gateways as gateways, self._client() as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._work(client)) for _ in range(SOCKET_WORKERS)]
            tasks += [group.create_task(self._work(None)) for _ in range(HTTP_WORKERS)]
            tasks += [group.create_task(self._follow(client, number < KEPT)) for number in range(KEPT + 1)]
            await self._compared(client)  # the first start, which makes the counter
            while self.tally.kills.total() < kills:
                for _ in range(CHECK_EVERY):
                    await self._kill(gateways)
                await self._compared(client)
                if progress is not None:
                    progress(self.tally)
            for task in tasks:
                task.cancel()
        return self.tally

    def _client(self) -> EngineClient:
        return EngineClient(f"ws://127.0.0.1:{self._gateways.websocket_port}/subscribe")

    async def _kill(self, gateways: Gateways) -> None:
        """A life of the gateway."""
        self._points = self._points or self._random.sample(list(PLACES), len(PLACES))  # each of them has its turn
        point = self._points.pop()
        await gateways.start(point, self._random.randint(1, PLACES[point]))
        self._working.set()
        if await gateways.ready():
            await gateways.dead(self._random.uniform(0, ALIVE_S) if point == MOMENT else ALIVE_S)
        self.tally.kills[gateways.place] += 1

    # --- clients ---

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._gateways.http_port}/{path}"

    async def _work(self, client: EngineClient | None) -> None:
        """Updates, one after the other; over HTTP where there is no client."""
        random = self._random
        while True:
            await self._working.wait()
            self._busy += 1
            name = f"u{self._numbers}"
            self._numbers += 1
            trigger, delayed = random.random() < 0.2, random.random() < 0.15
            quads = f':{name} :by "{"http" if client is None else "socket"}" {"; :in 1" if trigger else ""}'
            counting = "WHERE { :c :n ?n BIND(?n + 1 AS ?m) }"
            text = f"{PREFIX} DELETE {{ :c :n ?n }} INSERT {{ :c :n ?m . {quads} }} {counting}"
            delay = f"PT{random.uniform(0, 0.5):.3f}S" if delayed else None
            if client is None:
                await self._post(text, f"request-{name}", delay)
            else:
                await client.update(text, delay=delay)
            self._sent.add(name)
            if trigger:
                self._triggers.add(name)
            self.tally.updates += 1
            self.tally.delayed += delayed
            self._busy -= 1
            await asyncio.sleep(random.uniform(0, 0.01))

    async def _post(self, text: str, request_id: str, delay: str | None) -> None:
        parameters = {"request_id": request_id} | ({} if delay is None else {"delay": delay})
        while True:
            with suppress(OSError, http_client.HTTPException):
                answer = await http(
                    self._url("update"), "POST", text, {"Content-Type": "application/sparql-update"}, **parameters
                )
                assert answer.status in (200, 202), answer.body
                return
            await asyncio.sleep(0.02)

    async def _follow(self, client: EngineClient, kept: bool) -> None:
        known: Counter[str] = Counter()
        place = len(self._known)
        self._known.append(known)
        self._begun.append(0)
        sequence = -1
        async for notification in client.subscribe(FOLLOWED, keep="PT10M" if kept else None):
            if notification.sequence == 0:
                known.clear()
                self._begun[place] += 1
            else:
                assert notification.sequence == sequence + 1, f"{notification.sequence} follows {sequence}"
            sequence = notification.sequence
            self.tally.notifications += 1
            for row in notification.added.bindings():
                known[row["x"][1:-1]] += 1
            for row in notification.removed.bindings():
                known[row["x"][1:-1]] -= 1

    # --- comparison ---

    async def _compared(self, client: EngineClient) -> None:
        """Lets the gateway be, until all is answered and has happened; then compares, and begins anew."""
        await self._gateways.start("nowhere", 1)
        assert await self._gateways.ready()
        self._working.clear()
        async with asyncio.timeout(PATIENCE_S):
            while self._busy:
                await asyncio.sleep(0.01)
            while (await self._status())["delayed"]:
                await asyncio.sleep(0.02)
            status = await self._status()
        assert (status["status"], status["epoch"]) == ("ok", 1), status
        if self._sent:
            await self._compare(client)
        await client.update(f"{PREFIX} DELETE {{ ?s ?p ?o }} WHERE {{ ?s ?p ?o }} ; INSERT DATA {{ :c :n 0 }}")
        self._sent.clear()
        self._triggers.clear()
        await self._gateways.dead(0)

    async def _compare(self, client: EngineClient) -> None:
        rows = list((await client.query(f"{PREFIX} SELECT ?s ?p ?o {{ ?s ?p ?o }}")).bindings())
        found: dict[str, Counter[str]] = {name: Counter() for name in ("by", "seen", "later")}
        count = 0
        for row in rows:
            name, kind = (row[variable][1:-1].removeprefix("http://e/") for variable in ("s", "p"))
            if kind == "n":
                count = int(lexical(row["o"]))
            elif kind in found:
                found[kind][name] += 1
        once = Counter(self._sent)
        assert found["by"] == once, f"lost: {once - found['by']}, nobody's: {found['by'] - once}"
        assert count == len(self._sent), f"{count} updates had an effect, and {len(self._sent)} were sent"
        triggers = Counter(self._triggers)
        for kind in ("seen", "later"):
            lost, double = triggers - found[kind], found[kind] - triggers
            assert found[kind] == triggers, f"{kind}: no reaction to {lost}, more than one to {double}"
        fresh = Counter({f"http://e/{name}": 1 for name in self._sent})
        async with asyncio.timeout(PATIENCE_S):
            while any(+known != fresh for known in self._known):
                await asyncio.sleep(0.01)
        self.tally.resets = sum(self._begun[:KEPT]) - KEPT
        assert self.tally.resets == 0, "a subscription that was kept had to begin anew"
        self.tally.reactions += 2 * len(self._triggers)
        self.tally.checks += 1

    async def _status(self) -> dict[str, Any]:
        answer = await http(self._url("health"))
        return dict(answer.json)


@contextmanager
def eager_clients() -> Iterator[None]:
    """Clients that try again soon, and do not log that the gateway is away, which is expected here."""
    with (
        mock.patch("lamplighter.engine.client.connection._BACK_OFF_S", (0.02, 0.1)),
        mock.patch("lamplighter.engine.client.connection.logger"),
    ):
        yield


async def run_streets(
    kills: int, seed: int, *, streets: int = 2, progress: Callable[[Tally], None] | None = None
) -> Tally:
    """So many kills in all, of several gateways at the same time. Raises AssertionError for a promise not kept."""
    with scratch() as folder, eager_clients():
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(Street(folder / str(number), seed + number).run(kills // streets, progress))
                for number in range(streets)
            ]
    tally = Tally()
    for street in running:
        tally.add(street.result())
    return tally
