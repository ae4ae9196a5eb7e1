"""What clients share, part by part: one takes its share of it, and leaves room, turns and data to the others."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from starlette.requests import Request

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Followed, Receiver
from lamplighter.engine.errors import GatewayError, LimitExceededError, QueueFullError, UnauthorizedError
from lamplighter.engine.protocol import Priority, Results
from lamplighter.engine.terms import Bag
from lamplighter.gateway.gates.bounded_sockets import ReceiveBudget
from lamplighter.gateway.gates.deliveries import registry
from lamplighter.gateway.gates.deliveries.registry import new_id
from lamplighter.gateway.gates.deliveries.worker import Ack, ConcurrencyLimit, DeliveryRequest
from lamplighter.gateway.gates.http import calls
from lamplighter.gateway.gates.http.calls import RequestTurns
from lamplighter.gateway.gates.ldn.inbox import Notice, _too_many
from lamplighter.gateway.loop import past
from lamplighter.gateway.loop.queue import LiveSettings, OrderedLane, Queue, RequestKind
from lamplighter.gateway.monitoring.figures import Counters, HighWaterMarks
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.security.peers import origin
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.security.registry import ClientRegistry
from lamplighter.gateway.settings import GatewaySettings, LimitSettings, ResumeSettings, Settings
from lamplighter.gateway.state import messages
from lamplighter.gateway.state.resumption import ResumableSubscriptions
from lamplighter.gateway.workers import rdf_bodies
from lamplighter.gateway.workers.dry_runs import DryRun, DryRuns, TrialWork
from lamplighter.gateway.workers.large_updates import LargeUpdateParser
from tests.gateway.gates.deliveries.test_workers import QUERY, at_work, receiving
from tests.support.event_loops import until
from tests.support.gateway_parts import START, FakeClock

PLACES = 8
HALF = PLACES // 2

Take = Callable[[Caller], Awaitable[None]]
"""Takes one more place for a client, and keeps it. Raises GatewayError."""


def named(name: str) -> Caller:
    return Caller(name, FULL, operator=True, registered=True)


FLOOD, OTHER = named("flood"), named("other")


async def begun(work: Coroutine[Any, Any, Any], tasks: asyncio.TaskGroup) -> None:
    """Returns when a work has taken its place, which it keeps until the end of the test. Raises its error."""
    task = asyncio.ensure_future(work)
    for _ in range(10):
        await asyncio.sleep(0)
    if task.done():
        await task
    else:
        tasks.create_task(_until_cancelled(task))


async def _until_cancelled(task: asyncio.Future[Any]) -> None:
    try:
        await task
    finally:
        task.cancel()


async def never() -> None:
    await asyncio.get_running_loop().create_future()


# --- rooms: what one client cannot have is refused ------------------------------------------------------


class Asked(msgspec.Struct):
    """A request of a client."""

    caller: Caller
    priority: Priority = Priority.NORMAL
    lane: OrderedLane | None = None


def queue_of(priority: Priority) -> Callable[[asyncio.TaskGroup, pytest.MonkeyPatch], Take]:
    def room(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
        parts = {Priority.NORMAL: 1, Priority.BULK: 2, Priority.CONTROL: 4, Priority.ALARM: 4}[priority]
        queue = Queue(
            LiveSettings(Settings(gateway=GatewaySettings(queue_max=PLACES * parts))), Counters(), HighWaterMarks()
        )
        queue.kinds[Asked] = RequestKind(lambda asked: None)

        async def take(caller: Caller) -> None:
            queue.submit(Asked(caller, priority))

        return take

    return room


def bodies(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
    patch.setattr(calls, "UNCOUNTED_BYTES", 0)
    patch.setattr(calls, "BODIES_BYTES_MAX", PLACES)
    under_way = calls.Bodies()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def take(caller: Caller) -> None:
        request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
        await under_way.receive(request, caller.client)

    return take


class _HeldDocuments(rdf_bodies.RdfBodies):
    async def _lines(self, body: bytes, media_type: str, base: str) -> AsyncIterator[bytes]:
        await never()
        yield b""


def documents(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
    patch.setattr(rdf_bodies, "WAITING_MAX", PLACES)
    found, body = _HeldDocuments(cast(Any, None)), b" " * (rdf_bodies.SMALL_BYTES + 1)

    async def take(caller: Caller) -> None:
        await begun(found.quads(body, "text/turtle", None, "http://e/", caller.client), tasks)

    return take


class _HeldPast(past.Past):
    async def _answer(self, *_: Any) -> Any:
        await never()
        yield b""


def queries_of_the_past(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
    patch.setattr(past, "ASKING_MAX", PLACES)
    found = _HeldPast(*cast(Any, [None] * 5))

    async def take(caller: Caller) -> None:
        async def first() -> None:
            await anext(found.query(cast(Any, None), caller, {}))

        await begun(first(), tasks)

    return take


def requests_of_a_door(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
    turns = RequestTurns(1, PLACES)

    async def take(caller: Caller) -> None:
        async def request() -> None:
            async with turns.turn(caller):
                await never()

        await begun(request(), tasks)

    return take


def sources_of_messages(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
    patch.setattr(messages, "SOURCES_MAX", PLACES)
    sources = messages.MessageSources()

    async def take(caller: Caller) -> None:
        sources.join(messages.MessageSource(lambda *_: None), caller.client)

    return take


def registered_clients(tasks: asyncio.TaskGroup, patch: pytest.MonkeyPatch) -> Take:
    """Those that registered themselves from an address. Nothing is written."""
    patch.setattr(ClientRegistry, "_read_file", lambda registry: [])
    disk = cast(Any, SimpleNamespace(write_file=lambda path, parts: None))
    known, numbers = ClientRegistry(Path(), FakeClock(), disk, PLACES, 600), count()

    async def take(caller: Caller) -> None:
        await known.register(f"lamp-{next(numbers)}", None, "open", Permissions(), caller.client)

    return take


class Room(NamedTuple):
    """made: builds it with `PLACES` places; error: what its refusal is."""

    made: Callable[[asyncio.TaskGroup, pytest.MonkeyPatch], Take]
    error: type[GatewayError]


ROOMS = {
    **{f"queue of {one.word} requests": Room(queue_of(one), QueueFullError) for one in Priority},
    "bodies under way": Room(bodies, QueueFullError),
    "large documents": Room(documents, QueueFullError),
    "queries of the past": Room(queries_of_the_past, QueueFullError),
    "requests of a door": Room(requests_of_a_door, QueueFullError),
    "sources of messages": Room(sources_of_messages, LimitExceededError),
    "registered clients": Room(registered_clients, UnauthorizedError),
}


async def filled(take: Take, caller: Caller, error: type[GatewayError]) -> int:
    """How many places a client gets."""
    places = 0
    while places <= PLACES:
        try:
            await take(caller)
        except error as refused:
            assert " = " in str(refused), "its room, and how large it is"
            return places
        places += 1
    raise AssertionError("there is no end of places")


@pytest.mark.parametrize("name", ROOMS)
async def test_a_client_has_as_many_places_as_it_leaves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = ROOMS[name]
    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.TaskGroup() as tasks:
            take = room.made(tasks, monkeypatch)
            assert await filled(take, FLOOD, room.error) == HALF
            assert await filled(take, OTHER, room.error) == HALF // 2
            assert await filled(take, ANYBODY, room.error) == HALF - HALF // 2, "the operator's programs may take all"
            raise _Over
    assert isinstance(ended.value.exceptions[0], _Over), ended.value.exceptions


class _Over(Exception):
    """Ends the tasks of a test."""


async def test_receivers_are_asked_and_told_of_their_end_for_several_clients(tmp_path: Path) -> None:
    async with at_work(tmp_path, concurrent_max=PLACES, deliveries_max=100) as made:
        deliveries, stack = made.deliveries, ExitStack()
        with stack:
            for _ in range(HALF):
                stack.enter_context(deliveries.asking(FLOOD))
            with pytest.raises(QueueFullError, match=r"webhook\.concurrent_max = 8"):
                stack.enter_context(deliveries.asking(FLOOD))
            stack.enter_context(deliveries.asking(OTHER))
        with deliveries.asking(FLOOD):
            pass


async def test_receivers_are_told_of_their_end_for_several_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_TOLD_MAX", PLACES)
    async with at_work(tmp_path, deliveries_max=100) as made, receiving() as receiver:
        work = Work()
        monkeypatch.setattr(made.kind, "tell_end", lambda delivery: work.of(delivery.client))
        of_flood = [await made.register(receiver, FLOOD) for _ in range(HALF + 3)]
        of_other = [await made.register(receiver, OTHER) for _ in range(HALF)]
        for delivery in (*of_flood[: HALF + 2], *of_other):
            await delivery.stop("unsubscribed")
        await until(lambda: len(made.deliveries.context.workers) == 1)
        assert sorted(work.begun) == ["flood"] * HALF + ["other"] * (HALF // 2)
        for _ in work.begun:
            work.go_on.release()
        await until(lambda: made.deliveries._telling_room.free == PLACES)
        await of_flood[-1].stop("unsubscribed")
        await until(lambda: len(work.begun) == HALF + HALF // 2 + 1)
        work.go_on.release()


# --- turns: another client's is next -----------------------------------------------------------------------


class Work:
    """What has turns. begun: whose it was, in order; each goes on until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on = asyncio.Semaphore(0)

    async def of(self, client: str) -> None:
        self.begun.append(client)
        await self.go_on.acquire()


Begin = Callable[[str], Coroutine[Any, Any, Any]]
"""Has the work of a client done in its turn."""


def deliveries(*, slow: bool) -> Callable[[Work], Begin]:
    def turns(work: Work) -> Begin:
        slots = ConcurrencyLimit(4)

        async def begin(client: str) -> None:
            async with slots.of(client, slow=slow):
                await work.of(client)

        return begin

    return turns


def dry_runs(work: Work) -> Begin:
    """As the queue runs them."""

    class HeldDryRuns(DryRuns):
        async def try_work(self, trial_work: TrialWork) -> None:
            await work.of(str(trial_work.evaluate(START)))

    all_dry_runs = HeldDryRuns(cast(Any, None), cast(Any, None), LimitSettings())
    queue = Queue(LiveSettings(Settings()), Counters(), HighWaterMarks())
    queue.kinds[Asked] = RequestKind(lambda asked: None)

    async def begin(client: str) -> None:
        outcome = queue.submit(Asked(replace(ANYBODY, name=client)))
        async with asyncio.TaskGroup() as tasks:
            for step in queue.in_turn():
                queue.hold(
                    step, DryRun(all_dry_runs, secrets.token_bytes(8), None, (), TrialWork(lambda now: client)), tasks
                )
        assert not outcome.cancelled()

    return begin


def long_updates(work: Work) -> Begin:
    def parse(read: partial[None]) -> SimpleNamespace:
        async def chunks() -> AsyncIterator[bytes]:
            await work.of(read.args[0])
            yield b""

        return SimpleNamespace(chunks=chunks)

    updates = LargeUpdateParser(cast(Any, SimpleNamespace(parse=parse)))
    return lambda client: updates.operations(client, client)


def parsed_documents(work: Work) -> Begin:
    class Documents(rdf_bodies.RdfBodies):
        async def _lines(self, body: bytes, media_type: str, base: str) -> AsyncIterator[bytes]:
            await work.of(media_type)
            yield b""

    found, body = Documents(cast(Any, None)), b" " * (rdf_bodies.SMALL_BYTES + 1)
    return lambda client: found.quads(body, client, None, "http://e/", client)


TURNS = {
    "prompt deliveries": deliveries(slow=False),
    "slow deliveries": deliveries(slow=True),
    "dry runs": dry_runs,
    "long updates": long_updates,
    "large documents": parsed_documents,
}
"""Each with two turns at the same time."""


@pytest.mark.parametrize("name", TURNS)
async def test_a_client_has_its_turn_before_the_many_of_another_one(name: str) -> None:
    work = Work()
    begin = TURNS[name](work)
    asked = [asyncio.ensure_future(begin(client)) for client in ["flood"] * 7 + ["other"]]
    await until(lambda: len(work.begun) == 2)
    for number in range(3, 9):
        work.go_on.release()
        await until(lambda: len(work.begun) == number)  # noqa: B023
    assert work.begun == ["flood"] * 3 + ["other"] + ["flood"] * 4
    for _ in range(2):
        work.go_on.release()
    await asyncio.gather(*asked)


async def test_a_delivery_has_the_turn_of_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, but as the workers ask for it. Receivers that have not answered yet have two places of four."""
    async with at_work(tmp_path, concurrent_max=4, deliveries_max=100) as made, receiving() as receiver:
        work = Work()

        async def send(url: str, request: DeliveryRequest) -> Ack:
            await work.of(url.rpartition("/")[2])
            return Ack()

        monkeypatch.setattr(made.deliveries.context, "send", send)
        for caller, count in ((FLOOD, 7), (OTHER, 1)):
            for _ in range(count):
                wanted = Receiver("webhook", new_id(), receiver.url(f"/{caller.client}"), "")
                await made.deliveries.begin(QUERY, None, None, wanted, caller)
        waiting = made.deliveries.context.concurrency._slow._waiting
        await until(lambda: len(work.begun) == 2 and sum(map(len, waiting.values())) == 6)
        for number in range(3, 9):
            work.go_on.release()
            await until(lambda: len(work.begun) == number)  # noqa: B023
        assert work.begun == ["flood"] * 3 + ["other"] + ["flood"] * 4
        for _ in range(2):
            work.go_on.release()


# --- what can be dropped: the client with most of it loses it -------------------------------------------------


def test_what_is_retained_is_dropped_from_the_client_that_has_most() -> None:
    found: ResumableSubscriptions[object] = ResumableSubscriptions(ResumeSettings(bytes_max=10_000))
    one = Results(Bag(("o",), [('"x"',)]), Bag(("o",)))
    for handle, client in [("other", "other"), ("local", None), *((f"flood{number}", "flood") for number in range(50))]:
        found.begin(Followed(f"sepa://{handle}", "", 1, identity=client), handle)
    for handle in ("other", "local"):
        for _ in range(5):  # far more than one subscription of the other client has
            found.deliver(handle, one)
    before = found.usage_bytes.of("other")
    for number in range(500):
        found.deliver(f"flood{number % 50}", one)
    kept = found.state()
    assert found.usage_bytes.of("other") == before
    assert [len(state.notifications) for state in kept[:2]] == [5, 5]
    assert found.totals()["retained_bytes"] <= 10_000


async def test_what_waits_to_be_delivered_is_dropped_from_the_client_that_has_most(tmp_path: Path) -> None:
    dropped: list[str] = []

    class Waiting:
        def __init__(self, client: str, size: int) -> None:
            self.client, self.bytes, self.waiting = client, size, [1, 2]

        def drop(self) -> None:
            dropped.append(self.client)
            made.deliveries.context.count_bytes(self.client, -self.bytes)
            self.bytes = 0

    async with at_work(tmp_path, ResumeSettings(bytes_max=10_000)) as made:
        with pytest.MonkeyPatch.context() as patch:
            several = [Waiting("other", 3000), *(Waiting("flood", 1000) for _ in range(9))]
            patch.setattr(made.deliveries.context, "workers", dict(enumerate(several)))
            for one in several:
                made.deliveries.context.count_bytes(one.client, one.bytes)
            assert dropped == ["flood"] * 2


def test_the_connection_that_is_closed_is_one_of_the_client_with_most_unread_data() -> None:
    unread, closed = ReceiveBudget(10_000), list[str]()

    class Socket:
        def __init__(self, client: str, *, trusted: bool = True) -> None:
            self.client, self.trusted = client, trusted

        def refuse(self, code: int, reason: str) -> None:
            closed.append(self.client)
            unread.count(cast(Any, self), 0)

    unread.count(cast(Any, Socket("other")), 4000)
    for _ in range(8):
        unread.count(cast(Any, Socket("flood")), 1000)
    assert closed == ["flood", "flood"]
    unread.count(cast(Any, Socket("", trusted=False)), 500)
    assert closed == ["flood", "flood", ""], "first those without a valid token"


def test_the_inbox_loses_the_oldest_notification_of_the_client_that_has_most() -> None:
    known = [Notice("1", "other"), Notice("2", "flood"), Notice("3", "other"), Notice("4", "flood")]
    assert [one.iri for one in _too_many(known, "flood", 4)] == ["2"]
    assert [one.iri for one in _too_many(known, "other", 4)] == ["1"]
    assert [one.iri for one in _too_many(known, "third", 4)] == ["1"], "the oldest where several have most"
    assert [one.iri for one in _too_many(known, "flood", 2)] == ["2", "1", "4"]
    assert _too_many(known, "flood", 5) == []


# --- who has a share ---------------------------------------------------------------------------------------


def test_in_plain_mode_an_address_has_a_share_and_loopback_has_none() -> None:
    assert [origin(None, address) for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "")] == [""] * 4
    assert origin(None, "192.0.2.1") == origin(None, "::ffff:192.0.2.1") == "192.0.2.1"
    assert origin(None, "2001:db8::1") == origin(None, "2001:db8::2") != origin(None, "2001:db8:0:1::1")
    assert replace(ANYBODY, origin="192.0.2.1").client == "192.0.2.1"
    assert (ANYBODY.client, FLOOD.client) == ("", "flood")
