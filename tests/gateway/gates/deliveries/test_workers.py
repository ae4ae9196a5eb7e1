"""Deliveries in a runner, with a real receiver: what is retried, what waits for what, and what is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Receiver
from lamplighter.engine.errors import ChangeLogError, QueueFullError
from lamplighter.gateway.gates.deliveries import registry, worker
from lamplighter.gateway.gates.deliveries.registry import DeliveryRegistry, new_id
from lamplighter.gateway.gates.deliveries.worker import DeliveryRequest, DeliveryWorker, WaitingNotification
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import ResumeSettings, Settings
from lamplighter.gateway.settings.deliveries import DeliverySettings
from lamplighter.gateway.workers.dry_runs import DryRuns
from tests.support.event_loops import until
from tests.support.gateway_parts import idle, recovered_runner, update
from tests.support.held_dry_run import HeldDryRun
from tests.support.receivers import HttpReceiver, Received, Reply

QUERY = "SELECT ?v { ?s <http://e/p> ?v }"
ANNA = Caller("anna", FULL, operator=False, registered=True)


class Kind:
    """A door, as its deliveries see it. made: bodies so far; told: reasons of the deliveries that ended."""

    name = kind = "webhook"
    manual = "docs/webhooks-ldn.md"

    def __init__(self) -> None:
        self.made = 0
        self.told: list[str] = []

    async def request(self, delivery: DeliveryWorker, message: WaitingNotification, part: int) -> DeliveryRequest:
        self.made += 1
        return DeliveryRequest({"Webhook-Id": message.name, "Reset": message.reset or ""}, message.members)

    async def tell_end(self, delivery: DeliveryWorker) -> None:
        self.told.append(delivery.ended)


class Made:
    """Deliveries at work."""

    def __init__(self, deliveries: DeliveryRegistry, kind: Kind) -> None:
        self.deliveries = deliveries
        self.kind = kind
        self.runner = deliveries.context.runner

    async def register(self, receiver: HttpReceiver, caller: Caller = ANYBODY, query: str = QUERY) -> DeliveryWorker:
        wanted = Receiver("webhook", new_id(), receiver.url(), "")
        return await self.deliveries.begin(query, None, None, wanted, caller)

    async def put(self, value: object) -> None:
        await update(self.runner, f"INSERT DATA {{ <http://e/s> <http://e/p> '{value}' }}")


@asynccontextmanager
async def at_work(data: Path, resume: ResumeSettings | None = None, **table: Any) -> AsyncIterator[Made]:
    settings = Settings(resume=resume or ResumeSettings())
    kind = Kind()
    table = {"networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 1, "timeout_s": 60, **table}
    async with recovered_runner(data, settings=settings) as runner:
        deliveries = DeliveryRegistry(runner, DeliverySettings(**table), data, kind)
        task = asyncio.create_task(deliveries.run())
        try:
            await deliveries.recovered.wait()
            yield Made(deliveries, kind)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def receiving(answer: Callable[[Received], Reply] = lambda request: Reply()) -> AsyncIterator[HttpReceiver]:
    with HttpReceiver() as receiver:
        receiver.answer = answer
        yield receiver


def sent(receiver: HttpReceiver) -> list[tuple[int, str]]:
    """Sequence and reset of each request that was answered."""
    return [(int(request.id.partition("/")[2]), request.headers["reset"]) for request in receiver.posted]


async def test_an_end_that_the_log_does_not_take_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client was removed, and the disk is full."""
    async with at_work(tmp_path) as made, receiving() as receiver:
        delivery = await made.register(receiver, ANNA)
        await until(lambda: len(receiver.posted) == 1)
        refused: list[int] = []
        append = LogWriter.append

        def full(log: LogWriter, *arguments: Any) -> Any:
            if len(refused) < 3:
                refused.append(1)
                raise ChangeLogError("No space left on device", path=tmp_path, hint="free some space")
            return append(log, *arguments)

        monkeypatch.setattr(LogWriter, "append", full)
        monkeypatch.setattr(made.runner.current, "access_of", lambda name: None)
        delivery.drop()
        await until(lambda: bool(made.kind.told))
        assert made.kind.told == ["the client anna is no longer registered"]
        assert made.runner.delivered.of_kind("webhook") == []


@pytest.mark.parametrize("new", [True, False])
async def test_one_that_is_ended_while_it_is_about_to_begin_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    async with at_work(tmp_path) as made, receiving() as receiver:
        if not new:
            await made.register(receiver)
            await until(lambda: len(receiver.posted) == 1)
        held = HeldDryRun()
        monkeypatch.setattr(DryRuns, "of_subscription", lambda *_: held)
        if new:
            registering = asyncio.create_task(made.register(receiver))
        else:
            [delivery] = made.deliveries.of(ANYBODY)
            delivery.position = -1  # it begins anew
            delivery.drop()
        await held.begun.wait()
        [delivery] = made.deliveries.of(ANYBODY)
        ending = asyncio.create_task(delivery.stop("unsubscribed"))
        for _ in range(20):
            await asyncio.sleep(0)
        held.go_on.set()
        await ending
        if new:
            await registering
        await idle(made.runner)
        assert made.runner.delivered.of_kind("webhook") == made.deliveries.of(ANYBODY) == []
    async with recovered_runner(tmp_path) as runner:
        assert runner.delivered.of_kind("webhook") == []


async def test_bodies_are_made_only_for_requests_that_run(tmp_path: Path) -> None:
    async with at_work(tmp_path, concurrent_max=2) as made, receiving() as receiver:
        slots = made.deliveries.context.concurrency
        async with slots.of("", slow=True), slots.of("", slow=False):
            for _ in range(5):
                await made.register(receiver)
            await made.put(1)
            for _ in range(100):
                await asyncio.sleep(0)
            assert made.kind.made == 0
        await until(lambda: len(receiver.posted) == 10)


async def test_what_a_receiver_has_is_retained_no_longer(tmp_path: Path) -> None:
    async with at_work(tmp_path) as made, receiving() as receiver:
        delivery = await made.register(receiver)
        for value in range(3):
            await made.put(value)
        await until(lambda: delivery.position == 3)
        assert (delivery.bytes, made.deliveries.context.waiting_bytes) == (0, 0)
        assert await made.deliveries.context.positions.write()
        assert made.runner.figures.status()["resumable"]["retained_bytes"] == 0


async def test_only_positions_of_what_goes_on_are_kept(tmp_path: Path) -> None:
    async with at_work(tmp_path) as made, receiving() as receiver:
        delivery = await made.register(receiver)
        await until(lambda: delivery.position == 0)
        before = delivery.followed.spuid
        delivery.position = -1  # it begins anew
        delivery.drop()
        await until(lambda: delivery.position == 0)
        after = delivery.followed.spuid
        positions = made.deliveries.context.positions
        assert (positions.of(before), positions.of(after)) == (-1, 0) and before != after
        positions.acknowledge("ended while nobody kept the file", 7)
    async with at_work(tmp_path) as made:
        positions = made.deliveries.context.positions
        assert (positions.of("ended while nobody kept the file"), positions.of(after)) == (-1, 0)


async def test_a_receiver_that_asks_for_a_pause_has_it(tmp_path: Path) -> None:
    async with at_work(tmp_path) as made, receiving(lambda _: Reply(503, {"Retry-After": "900"})) as receiver:
        delivery = await made.register(receiver)
        await until(lambda: delivery.members().get("next_attempt_s") is not None)
        assert 800 < float(str(delivery.members()["next_attempt_s"])) <= 900
        assert len(receiver.posted) == 1


async def test_a_receiver_that_was_slow_counts_as_slow_until_it_is_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(tmp_path, concurrent_max=2) as made, receiving() as receiver:
        delivery = await made.register(receiver)
        await until(lambda: delivery.position == 0)
        slots = made.deliveries.context.concurrency
        monkeypatch.setattr(worker, "SLOW_S", -1.0)
        async with slots.of("", slow=True):  # it does not need that one
            await made.put(1)
            await until(lambda: delivery.position == 1)
        monkeypatch.undo()
        async with slots.of("", slow=False):  # nor that one, now
            await made.put(2)
            await until(lambda: delivery.position == 2)
        async with slots.of("", slow=True):
            await made.put(3)
            await until(lambda: delivery.position == 3)


async def test_a_client_asks_only_so_many_receivers_at_once(tmp_path: Path) -> None:
    async with at_work(tmp_path, concurrent_max=4) as made:
        asking = made.deliveries.asking
        with asking(ANNA), asking(ANNA):
            with pytest.raises(QueueFullError), asking(ANNA):
                pass
            with asking(ANYBODY):
                pass


async def test_only_so_many_receivers_are_told_of_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TOLD_MAX", 2)
    go_on = asyncio.Event()
    async with at_work(tmp_path) as made, receiving() as receiver:

        async def told(delivery: DeliveryWorker) -> None:
            made.kind.told.append(delivery.ended)
            await go_on.wait()

        monkeypatch.setattr(made.kind, "tell_end", told)
        for number in range(4):
            await (await made.register(receiver)).stop(str(number))
            await asyncio.sleep(0)
        assert made.kind.told == ["0", "1"]
        go_on.set()
        for _ in range(3):
            await asyncio.sleep(0)
        await (await made.register(receiver)).stop("4")
        await until(lambda: made.kind.told == ["0", "1", "4"])


async def test_receivers_that_never_answered_keep_no_other_waiting(tmp_path: Path) -> None:
    release = Event()

    def stuck(request: Received) -> Reply:
        release.wait()
        return Reply()

    async with at_work(tmp_path, concurrent_max=2) as made, receiving() as prompt, receiving(stuck) as hanging:
        await made.register(prompt)
        await until(lambda: len(prompt.posted) == 1)
        for _ in range(3):
            await made.register(hanging)
        try:
            for value in range(5):
                await made.put(value)
            await until(lambda: len(prompt.posted) == 6)
        finally:
            release.set()


async def test_changes_behind_a_large_first_result_begin_nothing_anew(tmp_path: Path) -> None:
    release = Event()

    def slow(request: Received) -> Reply:
        if request.id.endswith("/0"):
            release.wait()
        return Reply()

    async with at_work(tmp_path, ResumeSettings(outbox_bytes_max=2000)) as made, receiving(slow) as receiver:
        await made.put("x" * 3000)
        await made.register(receiver)
        await until(lambda: made.kind.made == 1)
        for value in range(3):
            await made.put(value)
        release.set()
        await until(lambda: len(receiver.posted) >= 4)
        assert sent(receiver) == [(0, ""), (1, ""), (2, ""), (3, "")]


async def test_a_large_first_result_does_not_wait_in_memory_for_the_next_attempt(tmp_path: Path) -> None:
    resume = ResumeSettings(outbox_bytes_max=2000)
    async with at_work(tmp_path, resume, backoff_ms=100_000) as made, receiving(lambda request: Reply(500)) as receiver:
        await made.put("x" * 3000)
        delivery = await made.register(receiver)
        await until(lambda: delivery.failures == 1)
        await made.put(1)
        assert (delivery.bytes, len(delivery.waiting)) == (0, 0)
        receiver.answer = lambda request: Reply()
        delivery.decide("resend")
        await until(lambda: delivery.position == 0)
        assert [sequence for sequence, _ in sent(receiver)] == [0, 0]
        assert delivery.failures == 0


async def test_what_waits_for_all_is_bounded_beside_first_results(tmp_path: Path) -> None:
    async with at_work(tmp_path, ResumeSettings(bytes_max=5000), concurrent_max=2) as made, receiving() as receiver:
        slots = made.deliveries.context.concurrency
        async with slots.of("", slow=True), slots.of("", slow=False):
            large = await made.register(receiver, query=f"SELECT ('{'x' * 4000}' AS ?v) {{}}")
            many = await made.register(receiver)
            for value in range(8):
                await made.put(value)
            assert large.bytes + many.bytes <= 5000
            assert len(large.waiting) == 1
        await until(lambda: len(receiver.posted) == 2)  # both go on
