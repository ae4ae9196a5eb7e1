"""A gateway whose disk and power fail as the seed says, and a ledger of what it promised, to compare it with.

A `Chain` is one data folder through several lives of the gateway. In each life a Runner recovers from it and takes
random updates, delayed updates, cancellations and subscriptions, while it seals segments and takes snapshots; an
application reacts. Then the power goes, at a random operation of the disk, or the process is killed there, or the
disk fills up meanwhile; the next life starts from what that left. Each start is compared with the ledger.

Everything runs in one thread, in an order that follows from the seed, and time goes by when there is nothing to do:
``python -m tests.support.fault_rig --seed 17`` repeats a chain.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import io
import json
import logging
import math
import re
import selectors
import shutil
import subprocess
import sys
import traceback
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, BinaryIO
from unittest import mock

import msgspec

from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import ChangeLogError, GatewayError, QueueFullError, UnknownDelayedError
from lamplighter.engine.protocol import Priority, Results, Resume
from lamplighter.engine.sparql.requests import parse_query
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop import queue as queue_module
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import Durability, Settings
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.request_ids import Accepted
from lamplighter.gateway.state.resumption import AttachedSubscription
from lamplighter.gateway.workers import ad_hoc as reader_module
from lamplighter.gateway.workers.ad_hoc import Reader
from tests.support.gateway_parts import CLIENT, FakeClock, application
from tests.support.simulated_disk import PowerCut, SimulatedDisk, scratch
from tests.support.sums import Summed

LIFE_S = 3600.0
"""No life takes as long; what has no answer by then never has."""
ACTIONS_MAX = 40
FOLLOWERS_MAX = 3
CUTS = 4
"""Power cuts of a case."""
FULL_AT_MAX = 120
BROKEN_AT_MAX = 40
"""The operation that fails is one of so many."""
STALLED_S = 5.0
"""Time in which another thread, the only thing that is waited for in earnest, has done its work."""
FAILED_MAX = 5
"""Cases that fail before a run of them is ended."""
FIGURES = "figures: "
"""What the last line of a run begins with; JSON follows."""
KEEP = "P1D"
PREFIX = "PREFIX : <http://e/> "
NAME = re.compile(r"(?:http://e/|:)(u[0-9]+)\b")
ALL = PREFIX + "SELECT ?x { ?x :by ?kind }"
COUNT = PREFIX + "SELECT (COUNT(DISTINCT ?x) AS ?n) { ?x :part ?part }"

REACTIONS = {
    "namespaces": {"": "http://e/"},
    "queries": {"IN": {"sparql": "SELECT ?x { ?x :in ?v }"}},
    "updates": {
        "SEEN": {
            "sparql": "INSERT { ?x :seen [] } WHERE { }",
            "forcedBindings": {"x": {"type": "uri", "value": ""}},
        },
        "LATER": {
            "sparql": "INSERT { ?x :later [] } WHERE { }",
            "delay": "PT3S",
            "forcedBindings": {"x": {"type": "uri", "value": ""}},
        },
    },
    "extended": {
        "lamplighter": {
            "aggregators": {"seen": {"query": "IN", "added": "SEEN"}, "later": {"query": "IN", "added": "LATER"}}
        }
    },
}
"""Each :in gets one :seen at once and one :later after a delay: new nodes, so that a second one shows."""


class PromiseBrokenError(AssertionError):
    """What the gateway shows is not what it promised."""


@dataclass(eq=False)
class Sent:
    """An update that was asked for. outcome: of the last time; parts: quads that come together or not at all."""

    name: str
    sparql: str
    parts: int
    counted: bool
    request_id: str | None
    delay: str | None
    outcome: asyncio.Future[Accepted] | None = None
    accepted: Accepted | None = None
    cancel_sent: bool = False
    cancelled: bool = False
    refused: bool = False
    given_up: bool = False
    """It is not there, and nobody asks again: it must not turn up later."""


@dataclass
class Found:
    """What a gateway holds: of each name the parts that are there, its reactions, its delayed updates and reactions."""

    parts: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    later: Counter[str] = field(default_factory=Counter)
    entered: set[str] = field(default_factory=set)
    pending: Counter[str] = field(default_factory=Counter)
    pending_later: Counter[str] = field(default_factory=Counter)
    count: int = 0

    @classmethod
    def of(cls, runner: Runner) -> Found:
        found = cls()
        for line in runner._engine.dump().decode().splitlines():
            subject, predicate, rest = line.split(" ", 2)
            name, kind = subject[len("<http://e/") : -1], predicate[len("<http://e/") : -1]
            if kind == "n":
                found.count = int(rest.split('"')[1])
            elif kind == "part":
                found.parts[name] += 1
            elif kind == "in":
                found.entered.add(name)
            elif kind == "seen":
                found.seen[name] += 1
            elif kind == "later":
                found.later[name] += 1
        for row in runner.delayed_updates():
            names = NAME.findall(row["update"])
            by_application = (row["cause"] or {}).get("kind") == "application"
            (found.pending_later if by_application else found.pending).update(set(names))
        return found


class Follower:
    """A client with a subscription that it resumes in each life: what it knows of the names, in sequence.

    resets: how often it began anew; told: names that any client was told of; deaf: whether its connection is broken,
    so that what is sent does not arrive; waiting: whether it has asked, on a new one, and there is no answer yet.
    """

    kind = "ws"

    def __init__(self, number: int, told: set[str], off: Callable[[], bool]) -> None:
        self.client = f"client-{number}"
        self.connection: object = self
        self.identity: str | None = self.client
        self.since: datetime | None = None
        self.told = told
        self.off = off
        self.spuid: str | None = None
        self.sequence = -1
        self.names: Counter[str] = Counter()
        self.resets = 0
        self.deaf = False
        self.waiting = False
        self.asked = 0

    def ask(self) -> Resume:
        """Asks on a new connection; answers to what was asked on an older one do not arrive any more."""
        self.waiting, self.asked = True, self.asked + 1
        return Resume(KEEP) if self.spuid is None else Resume(KEEP, self.spuid, self.sequence)

    def _answered(self) -> bool:
        """Whether the answer that comes now arrives."""
        self.asked -= 1
        if self.asked > 0 or self.deaf or self.off():
            return False
        self.waiting = False
        return True

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        if self._answered():
            self.resets += self.spuid is not None
            self.spuid, self.sequence, self.names = subscription.spuid, 0, Counter()
            self._take(subscription.first.to_json(), None)

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        if self._answered():
            _demand(spuid == self.spuid, "another subscription was resumed")
            for missed in attached.missed:
                members = json.loads(b"{%b}" % missed.members)
                self._next(missed.sequence, members["addedResults"], members["removedResults"])
            _demand(
                self.sequence == attached.sequence, f"{self.sequence} instead of {attached.sequence} after resuming"
            )

    def notify(self, notification: Notification, results: Results) -> None:
        if not (self.deaf or self.waiting or self.off()) and notification.spuid == self.spuid:
            self._next(notification.sequence, notification.added.to_json(), notification.removed.to_json())

    def taken_over(self, spuid: str, by: Sink) -> None:
        """By itself, in its next life."""

    def ended(self, spuid: str, error: GatewayError) -> None:
        raise PromiseBrokenError(f"a subscription was ended: {error}")

    def _next(self, sequence: int, added: dict[str, Any], removed: dict[str, Any]) -> None:
        _demand(sequence == self.sequence + 1, f"{self.client}: notification {sequence} behind {self.sequence}")
        self.sequence = sequence
        self._take(added, removed)

    def _take(self, added: dict[str, Any], removed: dict[str, Any] | None) -> None:
        for results, sign in ((added, 1), (removed, -1)):
            for row in [] if results is None else results["results"]["bindings"]:
                name = NAME.findall(row["x"]["value"])[0]
                self.names[name] += sign
                self.told.add(name)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise PromiseBrokenError(what)


class Ledger:
    """What was asked of a gateway, and what it answered."""

    def __init__(self, *, keeps_all: bool) -> None:
        self.keeps_all = keeps_all
        """Whether what was acknowledged is there for sure, as with fsync."""
        self.refusals = 0
        self.sent: dict[str, Sent] = {}
        self.told: set[str] = set()
        """Names that a subscriber was told of."""
        self.there: set[str] = set()
        """Names that were there after an earlier start."""

    def note(self) -> None:
        """Takes note of the answers that came in."""
        for sent in self.sent.values():
            outcome = sent.outcome
            if outcome is not None and outcome.done():
                sent.outcome = None
                if outcome.cancelled():
                    continue
                error = outcome.exception()
                if error is None:
                    before, sent.accepted, sent.refused = sent.accepted, outcome.result(), False
                    _demand(
                        before in (None, sent.accepted) or not self.keeps_all,
                        f"{sent.name}: a retry was answered {sent.accepted} and not {before}",
                    )
                elif isinstance(error, ChangeLogError):
                    _demand(error.retriable and error.status == 507, f"refused by {error!r}")
                    sent.refused = True
                    self.refusals += 1
                    sent.given_up = sent.request_id is None
                elif not isinstance(error, (QueueFullError, PowerCut)):
                    raise error
            # what is not done when the gateway ends has no answer

    def check(self, found: Found, sequence: int, *, reactions: bool = True) -> None:
        """Compares what a start found with what was promised. reactions: whether those that were owed could be made."""
        counted = 0
        for name, sent in self.sent.items():
            parts, pending = found.parts[name], found.pending[name]
            state = f"{name} ({'delayed' if sent.delay else 'at once'}, {sent.accepted}, {sent}): "
            _demand(parts in (0, sent.parts), state + f"{parts} of {sent.parts} quads are there")
            there = parts > 0
            counted += there and sent.counted
            _demand(pending + there <= 1, state + f"there {there}, and {pending} times pending")
            _demand(sent.delay is not None or not pending, state + "was not to be delayed")
            if sent.given_up:
                _demand(not there and not pending, state + "was not there, and is now")
            if self.keeps_all:
                if sent.cancelled:
                    _demand(not there and not pending, state + "was cancelled")
                elif sent.accepted is not None and not sent.cancel_sent:
                    _demand(there or pending == 1, state + "is lost")
                if sent.accepted is not None:
                    _demand(sent.accepted.sequence <= sequence, state + f"the log ends at {sequence}")
                _demand(there or name not in self.told, state + "a subscriber was told of it, and it is not there")
                _demand(there or name not in self.there, state + "it was there before")
        names = set(found.parts) | set(found.pending) | found.entered | set(found.seen) | set(found.later)
        unknown = names - set(self.sent)
        _demand(not unknown, f"nobody sent {unknown}")
        _demand(found.count == counted, f"{counted} updates are there that count, and the counter says {found.count}")
        for name in self.sent:
            once = int(name in found.entered)
            right = (once,) if reactions else (0, once)
            _demand(found.seen[name] in right, f"{name}: {found.seen[name]} reactions to {once} triggers")
            later = (found.later[name], found.pending_later[name])
            _demand(sum(later) in right, f"{name}: delayed reactions {later} (done, pending) to {once} triggers")

    def settle(self, found: Found) -> None:
        """After a start: what is there stays, and what is not and nobody asks for again must not come."""
        self.there = {name for name in self.sent if found.parts[name]}
        for name, sent in self.sent.items():
            sent.outcome = None
            gone = not found.parts[name] and not found.pending[name]
            if gone and (sent.request_id is None or sent.cancelled):
                sent.given_up = True
            if not self.keeps_all and gone:
                sent.accepted = None
                sent.cancel_sent = sent.cancelled = False
        self.told &= self.there


@dataclass
class Figures(Summed):
    """What a rig did."""

    lives: int = 0
    starts: int = 0
    updates: int = 0
    acknowledged: int = 0
    retries: int = 0
    refused: int = 0
    failed: int = 0
    delayed: int = 0
    cancelled: int = 0
    fired: int = 0
    reactions: int = 0
    resumed: int = 0
    resets: int = 0
    where: Counter[str] = field(default_factory=Counter)
    """Operations in which the power went."""
    left: Counter[str] = field(default_factory=Counter)
    log: Counter[str] = field(default_factory=Counter)
    """What the gateway did to its log."""

    def __str__(self) -> str:
        numbers = [f"{name} {value}" for name, value in vars(self).items() if isinstance(value, int)]
        tables = [
            f"{name}: " + ", ".join(f"{key} {number}" for key, number in sorted(value.items()))
            for name, value in vars(self).items()
            if isinstance(value, Counter)
        ]
        return "\n  ".join([", ".join(numbers), *tables])


class LaterExecutor(ThreadPoolExecutor):
    """Runs what is meant for a thread in the loop, some passes later, so that the order follows from the seed."""

    def __init__(self, random: Random) -> None:
        super().__init__(1)
        self._random = random

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ThreadFuture[Any]:
        future: ThreadFuture[Any] = ThreadFuture()
        loop = asyncio.get_running_loop()

        def step(left: int) -> None:
            if left:
                loop.call_soon(step, left - 1)
            elif future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        loop.call_soon(step, self._random.choice((0, 0, 1, 3, 20)))
        return future


class _Selector(selectors.DefaultSelector):
    """Lets time go by instead of waiting. passes: is told of the seconds."""

    def __init__(self, passes: Callable[[float], None]) -> None:
        super().__init__()
        self._passes = passes

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            found = super().select(STALLED_S)
            _demand(bool(found), "the gateway waits for something that will never happen")
            return found
        found = super().select(0)
        if not found and timeout > 0:
            self._passes(timeout)
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the gateway's: it goes by when there is nothing to do, and takes none."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._now = 0.0
        super().__init__(_Selector(self._passes))

    def _passes(self, seconds: float) -> None:
        self._now += seconds + 1e-6
        self._clock.advance(seconds + 1e-6)

    def time(self) -> float:
        return self._now


class WholeAnswer:
    """What a fork would write, written at once."""

    def __init__(self, work: Callable[[BinaryIO], object]) -> None:
        out = io.BytesIO()
        work(out)
        self._content = out.getvalue().removeprefix(b"+")

    async def chunks(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self._content), 700):
            await asyncio.sleep(0.01)
            yield self._content[begin : begin + 700]

    def abandon(self) -> None:
        """There is nobody."""


@contextmanager
def one_thread(random: Random, off: Callable[[], bool]) -> Iterator[None]:
    """The gateway forks nothing and draws from the seed, and does not log what is done to it on purpose.

    off: whether the power is; nothing is answered any more then, though a few steps may still be run.
    """
    fulfil, fail = queue_module.fulfil, queue_module._fail

    def answer(
        reader: Reader, store: Any, query: Any, media_type: str, default: Any, named: Any, client: str
    ) -> WholeAnswer:
        return WholeAnswer(
            lambda out: reader_module.write_answer(store, query, media_type, default, named, out, reader._settings)
        )

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=random.getrandbits(128), version=4)

    with (
        mock.patch("lamplighter.gateway.workers.ad_hoc.Reader.stream", lambda _, work: WholeAnswer(work)),
        mock.patch("lamplighter.gateway.workers.ad_hoc.Reader.start", answer),
        # Nor do other threads run: they would be late on a busy machine, and simulated time would run away meanwhile.
        mock.patch("lamplighter.gateway.loop.executor.ThreadPoolExecutor", lambda *_, **__: LaterExecutor(random)),
        # Real time does not end a group: it has all steps that wait, or one.
        mock.patch(
            "lamplighter.gateway.loop.executor.GROUP_S", (random.choice((math.inf, -math.inf)),) * len(Priority)
        ),
        mock.patch("lamplighter.gateway.loop.time_slicer.TimeSlicer.beside", lambda _: nullcontext()),
        mock.patch("lamplighter.gateway.loop.time_slicer.SLICE_S", math.inf),
        mock.patch("lamplighter.gateway.loop.executor.SLICE_S", math.inf),
        # Some chains sync in a thread, others in the loop, soon or at once.
        mock.patch("lamplighter.gateway.loop.executor.QUICK_S", math.inf),
        mock.patch("lamplighter.gateway.loop.executor.GroupEnd._quick_min", random.choice((0, 3, math.inf))),
        mock.patch("lamplighter.gateway.loop.executor.BREATH_S", math.inf),
        mock.patch("lamplighter.gateway.loop.executor.HELD_S", (math.inf,) * len(Priority)),
        mock.patch(
            "lamplighter.gateway.loop.executor.fulfil",
            lambda outcome, result: None if off() else fulfil(outcome, result),
        ),
        mock.patch(
            "lamplighter.gateway.loop.queue._fail", lambda outcome, error: None if off() else fail(outcome, error)
        ),
        mock.patch("uuid.uuid4", drawn),
        mock.patch("secrets.token_hex", lambda count: random.randbytes(count).hex()),
    ):
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


class Chain:
    """One data folder through several lives. durability: the policy; faults: whether the disk fills up meanwhile."""

    def __init__(self, seed: int, folder: Path, *, durability: Durability = "fsync") -> None:
        self.random = Random(seed)
        self.figures = Figures()
        self.clock = FakeClock(boot="boot-0")
        self.ledger = Ledger(keeps_all=durability == "fsync")
        self.followers: list[Follower] = []
        self.expected: tuple[type[BaseException], ...] = (PowerCut,)
        """What ends a gateway."""
        self.disk = SimulatedDisk(folder / "0")
        self._seed = seed
        self._folder = folder
        self._durability = durability
        self._layouts = 0
        self._applications: list[Application] = [application("reactions", REACTIONS)]
        self.settings = msgspec.convert(
            {
                "gateway": {"durability": durability},
                "log": {
                    "segment_bytes_max": self.random.choice((1000, 5000, 50_000)),
                    "segment_s_max": self.random.choice((5, 1000)),
                    "snapshot_records": self.random.choice((5, 20, 100)),
                    "bytes_max": self.random.choice((20_000, 100_000_000)),
                    "sync_interval_ms": 2,
                },
            },
            Settings,
        )

    @property
    def data(self) -> Path:
        return self.disk.root / "data"

    def cuts(self, number: int) -> Figures:
        """So many power cuts, kills now and then between them, and a last start that is left in peace."""
        with one_thread(self.random, lambda: self.disk.stopped):
            cuts = 0
            while cuts < number:
                self._live(self._cut_somewhere)
                if self.random.random() < 0.2:
                    self.kill()
                else:
                    self.cut()
                    cuts += 1
            self._live(self._in_peace)
        return self.figures

    def full_disk(self, operation: int, error: int, *, restart: bool) -> Figures:
        """The number-th operation that needs the disk fails with that errno, and all after it for a while.

        restart: whether the gateway is killed meanwhile and started again. Then there is room again, all goes on by
        itself, and what was not durable by then is lost in a power cut.
        """
        with one_thread(self.random, lambda: self.disk.stopped):
            self._live(lambda runner: self._filling_up(runner, operation, error, go_on=not restart))
            if restart:
                self.kill()
                self._live(self._still_full)
            self.cut()
            self._live(self._in_peace)
        return self.figures

    def broken_disk(self, operation: int) -> Figures:
        """The number-th sync fails, which ends the gateway: nobody knows what is on the disk. Then the power goes."""
        with one_thread(self.random, lambda: self.disk.stopped):
            self.expected = (PowerCut, ChangeLogError)
            self._live(lambda runner: self._breaking(runner, operation))
            self.expected = (PowerCut,)
            self.cut()
            self._live(self._in_peace)
        return self.figures

    async def _breaking(self, runner: Runner, operation: int) -> None:
        self.disk.fail_after(operation, errno.EIO, forever=False)
        for _ in range(2 * ACTIONS_MAX):
            await self.act(runner)
            if self.disk.stopped:
                break
        self.figures.where[self.disk.failed_in] += 1
        of_log = self.disk.failed_in == "sync in log .ndjson.zst"
        _demand(self.disk.stopped or not of_log, "the gateway went on after a sync of the log that failed")

    async def _filling_up(self, runner: Runner, operation: int, error: int, *, go_on: bool) -> None:
        for _ in range(4):
            await self.act(runner)
        await self._answers()
        self.disk.fail_after(operation, error)
        for _ in range(2 * ACTIONS_MAX):
            await self.act(runner)
            if self.disk.failed:
                break
        for _ in range(5):
            await self.act(runner)
        if go_on:
            await self._heal(runner)

    async def _still_full(self, runner: Runner) -> None:
        if self.disk.failed:
            refused = self.send(runner, self.another())
            await asyncio.wait([refused])
            _demand(isinstance(refused.exception(), ChangeLogError), "an update was not refused by a full disk")
        await self._heal(runner)

    async def _heal(self, runner: Runner) -> None:
        """Nothing but updates is refused; with room again these are not either, and nothing else has to be done."""
        await self._answers()
        status = runner.figures.status()
        _demand(status["status"] in ("ok", "refusing"), f"the health is {status['status']}: {status['problems']}")
        counted = await runner.queries.query(parse_query(COUNT), "text/csv")
        content = b"".join([chunk async for chunk in counted.chunks()])
        _demand(
            content.split()[1:] == [str(len(Found.of(runner).parts)).encode()], f"the query's answer is {content!r}"
        )
        reader = Follower(1000, set(), lambda: False)
        await runner.subscribe(ALL, reader, None, None)
        _demand(reader.sequence == 0, "a subscription has no first result")
        self.disk.heal()
        await asyncio.sleep(2)
        again = [self.send(runner, sent) for sent in self.ledger.sent.values() if sent.refused and sent.request_id]
        for outcome in [*again, self.send(runner, self.another())]:
            await outcome
        self.ledger.note()
        _demand(
            runner.figures.status()["status"] == "ok",
            f"the health is {runner.figures.status()['problems']} with room again",
        )
        _demand(set(reader.names) <= set(Found.of(runner).parts), "the subscription did not go on")

    # --- what ends a life ---

    def cut(self) -> None:
        """The power went; the machine starts again with what that left on the disk."""
        self.figures.failed += self.disk.failures
        self.disk.check("lock")
        self._layouts += 1
        target = self._folder / str(self._layouts)
        self.figures.where[self.disk.stopped_in or "between operations"] += 1
        self.figures.left.update(self.disk.cut(self.random, target))
        if self._layouts > 1:
            shutil.rmtree(self._folder / str(self._layouts - 2), ignore_errors=True)
        self.disk = SimulatedDisk(target)
        self.clock.reboot(f"boot-{self._layouts}", off_s=self.random.choice((0, 2, 1000)))

    def kill(self) -> None:
        """The process was killed; everything that it did to the disk is there, and is as durable as it was."""
        self.figures.left["killed"] += 1
        self.disk.revive()

    # --- a life ---

    def _live(self, life: Callable[[Runner], Coroutine[Any, Any, None]]) -> None:
        self.figures.lives += 1
        with asyncio.Runner(loop_factory=lambda: SimulatedLoop(self.clock)) as loop:
            loop.run(self._life(life))
        self.ledger.note()

    async def _life(self, life: Callable[[Runner], Coroutine[Any, Any, None]]) -> None:
        asyncio.get_running_loop().set_default_executor(LaterExecutor(self.random))
        if life == self._cut_somewhere:
            self.disk.stop_at(self.random.choice((self.random.randint(1, 30), self.random.randint(1, 200))))
        runner: Runner | None = None
        try:
            try:
                runner = self.started()
            except PowerCut:
                return
            async with asyncio.timeout(LIFE_S), _at_work(runner, self.disk, self.expected):
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # all its tasks have begun
                await life(runner)
            keeper = runner.log_keeper
            self.figures.log.update({"segments sealed": keeper.sealed, "segments evicted": keeper.evicted})
        finally:
            self.disk.stop()
            if runner is not None:
                with suppress(PowerCut):
                    runner.close()

    def started(self) -> Runner:
        """A gateway that has recovered, and was found to hold what it promised."""
        log = LogWriter(self.data, self.clock, self._durability, self.disk)
        try:
            log.open()
            runner = Runner(self.settings, log, self._applications)
            runner.recover()
        except BaseException:
            with suppress(PowerCut):
                log.close()
            raise
        self.figures.starts += 1
        self.figures.log["recovered from a snapshot"] += runner.log_keeper.snapshot != (0, 0)
        found = Found.of(runner)
        status = runner.figures.status()
        if self.ledger.keeps_all:
            _demand(status["epoch"] == 1, f"the epoch is {status['epoch']} after a power cut")
            health = "refusing" if self.disk.failed else "ok"
            _demand(status["status"] == health, f"the health is {status['status']}: {status['problems']}")
        self.ledger.check(found, status["sequence"], reactions=not self.disk.failed)
        self.ledger.settle(found)
        return runner

    async def _cut_somewhere(self, runner: Runner) -> None:
        """Random requests until the power goes."""
        self._ask_again(runner)
        for follower in self.followers:
            follower.asked = 0
            follower.deaf = self.random.random() < 0.3
            if not follower.deaf:
                self._follow(runner, follower)
        for _ in range(self.random.randint(0, ACTIONS_MAX)):
            await self.act(runner)
            if self.disk.stopped:
                return

    async def _in_peace(self, runner: Runner) -> None:
        """What was not answered is asked for again; all that is pending happens; then everything is there, once."""
        for follower in self.followers:
            follower.asked, follower.deaf = 0, False
            await self._follow(runner, follower)
        self._ask_again(runner)
        await self._answers()
        while runner.figures.status()["delayed"]:
            await asyncio.sleep(1)
        await runner.probe()
        self.ledger.note()
        for sent in self.ledger.sent.values():
            if sent.request_id is not None and not sent.given_up:
                _demand(sent.accepted is not None, f"{sent.name} was asked for again and has no answer")
        found = Found.of(runner)
        self.ledger.check(found, runner.figures.status()["sequence"])
        _demand(not found.pending and not found.pending_later, "delayed updates are left")
        known = Counter({name: 1 for name, parts in found.parts.items() if parts and name != "u0"})
        for follower in self.followers:
            _demand(
                follower.names == known,
                f"{follower.client} knows {follower.names - known}, not {known - follower.names}",
            )
            _demand(not follower.resets or not self.ledger.keeps_all, f"{follower.client} had to begin anew")
            self.figures.resumed += 1
            self.figures.resets += follower.resets
        self.figures.updates += len(self.ledger.sent)
        self.figures.refused += self.ledger.refusals
        self.figures.acknowledged += sum(sent.accepted is not None for sent in self.ledger.sent.values())
        self.figures.delayed += sum(sent.delay is not None for sent in self.ledger.sent.values())
        self.figures.cancelled += sum(sent.cancelled for sent in self.ledger.sent.values())
        self.figures.fired += sum(s.delay is not None and found.parts[s.name] > 0 for s in self.ledger.sent.values())
        self.figures.reactions += found.seen.total() + found.later.total()

    def _ask_again(self, runner: Runner) -> None:
        """What was not answered, and some that was."""
        for sent in self.ledger.sent.values():
            if sent.request_id is None or sent.given_up or sent.outcome is not None:
                continue
            if sent.accepted is None or self.random.random() < 0.1:
                self.figures.retries += 1
                self.send(runner, sent)

    async def act(self, runner: Runner) -> None:
        """One random request, or the time goes by."""
        chance = self.random.random()
        if chance < 0.65:
            for _ in range(self.random.choice((1, 1, 1, 2, 8))):
                self.send(runner, self.another())
        elif chance < 0.75:
            await asyncio.sleep(self.random.choice((0.1, 2, 4)))
        elif chance < 0.82:
            self._cancel(runner)
        elif chance < 0.85 and len(self.followers) < FOLLOWERS_MAX:
            self.followers.append(Follower(len(self.followers), self.ledger.told, lambda: self.disk.stopped))
            self._follow(runner, self.followers[-1])
        elif chance < 0.9 and self.followers:
            follower = self.random.choice(self.followers)
            if follower.deaf:
                self._follow(runner, follower)
            follower.deaf = not follower.deaf
        await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.5)))
        if self.random.random() < 0.7:
            await self._answers()

    def _follow(self, runner: Runner, follower: Follower) -> asyncio.Future[str]:
        """Has a client begin, or go on with what it has."""
        outcome = runner.subscribe(ALL, follower, None, None, resume=follower.ask())
        outcome.add_done_callback(lambda _: None if outcome.cancelled() else outcome.exception())
        return outcome

    def another(self) -> Sent:
        """An update that was not sent yet."""
        random, name = self.random, f"u{len(self.ledger.sent)}"
        kind = random.choice(("count", "count", "count", "parts", "text"))
        parts = random.randint(2, 30) if kind == "parts" else 1
        quads = f':{name} :by "{kind}" ; :part {", ".join(map(str, range(parts)))} '
        if random.random() < 0.3:
            quads += "; :in 1 "
        if kind == "text":
            quads += f'; :text "{random.randbytes(random.choice((100, 1000, 9000))).hex()}" '
        if kind == "count":
            text = f"DELETE {{ :c :n ?n }} INSERT {{ :c :n ?m . {quads} }} WHERE {{ :c :n ?n BIND(?n + 1 AS ?m) }}"
        else:
            text = f"INSERT DATA {{ {quads} }}"
        if not self.ledger.sent:  # the counter itself
            text, kind, parts = f"INSERT DATA {{ :c :n 0 . :{name} :part 0 }}", "parts", 1
        first = not self.ledger.sent
        sent = Sent(
            name,
            PREFIX + text,
            parts,
            kind == "count",
            f"request-{name}" if first or random.random() < 0.7 else None,
            f"PT{random.choice((0, 1, 5, 60))}S" if not first and random.random() < 0.2 else None,
        )
        self.ledger.sent[name] = sent
        return sent

    def send(self, runner: Runner, sent: Sent) -> asyncio.Future[Accepted]:
        counter = self.ledger.sent["u0"]
        if (
            sent is not counter
            and counter.accepted is None
            and "u0" not in self.ledger.there
            and counter.outcome is None
        ):
            self.send(runner, counter)
        call = UpdateCall(sent.sparql, CLIENT, request_id=sent.request_id, delay=sent.delay)
        sent.outcome = runner.updates.update(call)
        return sent.outcome

    def _cancel(self, runner: Runner) -> None:
        candidates = [s for s in self.ledger.sent.values() if s.accepted and s.accepted.delayed and not s.cancel_sent]
        if not candidates:
            return
        sent = self.random.choice(candidates)
        assert sent.accepted is not None
        assert sent.accepted.delayed is not None
        sent.cancel_sent = True

        def done(outcome: asyncio.Future[None]) -> None:
            if outcome.cancelled():
                return
            error = outcome.exception()
            if error is None:
                sent.cancelled = True
            elif not isinstance(error, (UnknownDelayedError, ChangeLogError)):
                raise error

        runner.updates.cancel(sent.accepted.delayed, CLIENT).add_done_callback(done)

    async def _answers(self) -> None:
        """Waits until everything was answered, or the power is off."""
        waiting = [sent.outcome for sent in self.ledger.sent.values() if sent.outcome is not None]
        while waiting and not self.disk.stopped:
            _, rest = await asyncio.wait(waiting, timeout=0.1)
            waiting = list(rest)
        self.ledger.note()


@asynccontextmanager
async def _at_work(
    runner: Runner, disk: SimulatedDisk, expected: tuple[type[BaseException], ...]
) -> AsyncIterator[None]:
    """A Runner that takes requests until left, or until it ends as expected. Raises what else it ended by."""
    task = asyncio.create_task(runner.run())
    task.add_done_callback(lambda _: disk.stop())
    try:
        yield
    finally:
        disk.stop()
        task.cancel()
        [result] = await asyncio.gather(task, return_exceptions=True)
    expected = (asyncio.CancelledError, *expected)
    if isinstance(result, BaseExceptionGroup):
        result = result.split(expected)[1]
    if result is not None and not isinstance(result, expected):
        raise PromiseBrokenError("the gateway ended by itself") from result


DURABILITIES: tuple[Durability, ...] = ("fsync", "fsync", "fsync", "fsync", "interval", "off")


def power_cuts(chain: Callable[..., Chain], seed: int) -> Figures:
    """Several power cuts, one after the other."""
    chance = Random(f"kind of {seed}")
    return chain(durability=chance.choice(DURABILITIES)).cuts(CUTS)


def full_disks(chain: Callable[..., Chain], seed: int) -> Figures:
    """Each operation in turn fails, with either errno, with a restart and without; then the story is another one."""
    rest, restart = divmod(seed, 2)
    rest, kind = divmod(rest, 2)
    story, operation = divmod(rest, FULL_AT_MAX)
    return chain(seed=story).full_disk(operation + 1, (errno.ENOSPC, errno.EROFS)[kind], restart=bool(restart))


def broken_disks(chain: Callable[..., Chain], seed: int) -> Figures:
    """Each sync in turn fails; then the story is another one."""
    story, operation = divmod(seed, BROKEN_AT_MAX)
    return chain(seed=story).broken_disk(operation + 1)


KINDS = {"cuts": power_cuts, "full": full_disks, "broken": broken_disks}
"""The cases of each kind are told by a number."""


def run_case(kind: str, seed: int, keep: Path | None = None) -> Figures:
    """A case, all of which follows from its number. keep: where its folders go if it fails."""
    with scratch() as folder:

        def chain(**members: Any) -> Chain:
            return Chain(**{"seed": seed, "folder": folder, **members})

        try:
            return KINDS[kind](chain, seed)
        except BaseException as error:
            error.add_note(f"to repeat it: python -m tests.support.fault_rig {kind} --case {seed}")
            if keep is not None:
                shutil.copytree(folder, keep / f"{kind}-{seed}", dirs_exist_ok=True)
            raise


def run_many(kind: str, cases: int, first: int, processes: int = 2) -> Figures:
    """Runs so many cases in other processes. Raises AssertionError with what those that failed have to say."""
    share = -(-cases // processes)
    command = [sys.executable, "-m", "tests.support.fault_rig", kind, "--cases", str(share)]
    running = [
        subprocess.Popen([*command, "--first", str(first + number * share)], stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    outputs = [process.communicate()[0] for process in running]
    figures = Figures()
    for output in outputs:
        *_, last = output.splitlines() or [""]
        if last.startswith(FIGURES):
            other = Figures()
            for name, value in json.loads(last.removeprefix(FIGURES)).items():
                setattr(other, name, Counter(value) if isinstance(value, dict) else value)
            figures.add(other)
    if any(process.returncode for process in running):
        raise AssertionError("\n".join(outputs))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--case", type=int, help="this case and no other")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="folder for what a case that fails leaves")
    options = parser.parse_args()
    cases = [options.case] if options.case is not None else range(options.first, options.first + options.cases)
    figures, failed = Figures(), 0
    for case in cases:
        try:
            figures.add(run_case(options.kind, case, options.keep))
        except (Exception, PowerCut):
            traceback.print_exc(file=sys.stdout)
            failed += 1
            if failed == FAILED_MAX:
                break
    print(FIGURES + json.dumps(vars(figures)))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
