"""Subscriptions that the gateway delivers itself: what the log has of them, and what a start makes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Cause, Followed, Receiver
from lamplighter.engine.errors import UnknownSpuidError
from lamplighter.engine.protocol import Resume
from lamplighter.gateway.clock import iso
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state import resumption
from lamplighter.gateway.state.resumption import ResumableSubscriptions, ResumeFailure
from tests.gateway.state.test_resumption import Client, change, resumables, settings
from tests.support.gateway_parts import (
    START,
    FakeClock,
    idle,
    lines,
    put_lines,
    records,
    recovered_runner,
    segments,
    update,
)
from tests.support.recording_sink import RecordingSink

RECEIVER = Receiver("webhook", "one", "http://e/hook", iso(START + timedelta(days=1)), "hall")
QUERY = "SELECT ?s ?o { ?s <http://p> ?o }"
LIMITED = "SELECT ?s { ?s <http://p> ?o OPTIONAL { ?s <http://q> ?x } } ORDER BY ?s LIMIT 2"
FOREVER = Resume("PT0S")


async def deliver(
    runner: Runner,
    resume: Resume = FOREVER,
    receiver: Receiver = RECEIVER,
    query: str = QUERY,
    caller: Caller = ANYBODY,
) -> tuple[str, RecordingSink]:
    """As a door does: a new one, or one that goes on."""
    sink = RecordingSink()
    return await runner.subscribe(query, sink, None, None, resume=resume, caller=caller, delivery=receiver), sink


def only(runner: Runner) -> Followed:
    [found] = runner.delivered.of_kind("webhook")
    return found


def test_old_records_and_snapshots_stay_readable() -> None:
    text = b'{"spuid":"sepa://subscription/one","sparql":"ASK {}","keep_us":1}'
    assert msgspec.json.decode(text, type=Followed).delivery is None
    assert msgspec.json.encode(msgspec.json.decode(text, type=Followed)) == text


@pytest.mark.parametrize("snapshot", [False, True])
async def test_it_goes_on_where_the_receiver_is(tmp_path: Path, snapshot: bool) -> None:
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, sink = await deliver(runner)
        for number in range(4):
            await update(runner, f"INSERT DATA {{ <http://{number}> <http://p> 1 }}")
        runner.delivered.acknowledge(spuid, 2)
        if snapshot:
            await runner.log_keeper.take_snapshot()
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        assert (only(runner).spuid, only(runner).delivery) == (spuid, RECEIVER)
        same, again = await deliver(runner, Resume("PT0S", spuid, 2))
        assert (same, again.reset) == (spuid, None)
        assert again.told == sink.told[2:]


async def test_nobody_else_resumes_or_ends_it(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, _ = await deliver(runner)
        stranger = RecordingSink()
        other = await runner.subscribe(QUERY, stranger, None, None, resume=Resume("PT1M", spuid, 0))
        assert other != spuid
        assert stranger.reset == "the gateway itself delivers the notifications of that spuid"
        with pytest.raises(UnknownSpuidError):
            await runner.unsubscribe(spuid, stranger)
        assert only(runner).spuid == spuid
    async with recovered_runner(tmp_path, settings=settings()) as runner:  # no sink is attached yet
        with pytest.raises(UnknownSpuidError):
            await runner.unsubscribe(spuid, RecordingSink())
        assert only(runner).spuid == spuid


async def test_it_begins_anew_in_one_record(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, _ = await deliver(runner)
        other, _ = await deliver(runner)  # no place is named
        assert other != spuid
        assert only(runner).spuid == other
        third, sink = await deliver(runner, Resume("PT0S", other, 9))
        assert sink.reset is not None and "last notification" in sink.reset
        assert only(runner).spuid == third
        assert runner.figures.status()["resumable"]["subscriptions"] == 1
    assert [record.type for record in records(tmp_path)].count("unsubscribe") == 0
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        assert only(runner).spuid == third
        assert runner.figures.status()["resumable"]["subscriptions"] == 1


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_lease_is_renewed_and_ends(tmp_path: Path, snapshot: bool) -> None:
    clock = FakeClock()
    later = msgspec.structs.replace(RECEIVER, until=iso(START + timedelta(days=3)))
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        spuid, _ = await deliver(runner)
        await update(runner, "INSERT DATA { <http://1> <http://p> 1 }")
        await runner.renew_delivery(later, Cause("http", "test"))
        if snapshot:
            await runner.log_keeper.take_snapshot()
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        assert only(runner).delivery == later
        _, sink = await deliver(runner, Resume("PT0S", spuid, 0), later)
        assert [sequence for sequence, _, _ in sink.told] == [1]
        subscribers = runner._subscribers
        clock.advance(2 * 86_400)
        assert subscribers.expired() == []
        clock.advance(86_400)
        clock.synchronised = False
        assert subscribers.expired() == []
        clock.synchronised = True
        assert subscribers.expired() == [spuid]
    with pytest.raises(UnknownSpuidError):
        async with recovered_runner(tmp_path / "other", clock, settings=settings()) as runner:
            await runner.renew_delivery(later, Cause("http", "test"))


def test_an_absent_receiver_does_not_expire() -> None:
    found: ResumableSubscriptions[Client] = resumables(outbox_bytes_max=1)
    found.begin(Followed("one", QUERY, 0, delivery=msgspec.structs.replace(RECEIVER, until="")), "handle")
    found.detach_all(0)
    for number in range(1, 5):
        found.deliver("handle", change(number))
    assert found.end_expired(10**15, "9999-01-01T00:00:00.000000Z") == []


def test_a_record_renews_only_what_goes_on_with_the_same_results() -> None:
    """One that the store has taken over from its plan has other results after a start."""
    found: ResumableSubscriptions[Client] = resumables()
    one = Followed("one", LIMITED, 0, planned=True, delivery=RECEIVER)
    found.begin(one, "handle")
    later = msgspec.structs.replace(one, delivery=msgspec.structs.replace(RECEIVER, until=""))
    assert found.renews(later)
    assert not found.renews(msgspec.structs.replace(later, planned=False))
    assert not found.renews(msgspec.structs.replace(later, delivery=None))
    assert not found.renews(msgspec.structs.replace(later, spuid="two"))


def test_an_attached_delivery_keeps_its_notifications_as_an_absent_client_does() -> None:
    """Its receiver may be away."""
    size = len(change(1).members) + 64
    found: ResumableSubscriptions[Client] = resumables(bytes_max=22 * size)
    found.begin(Followed("one", QUERY, 0, delivery=RECEIVER), "delivered", Client())
    found.begin(Followed("two", QUERY, 1), "absent")
    for handle, count in (("delivered", 10), ("absent", 13)):
        for _ in range(count):
            found.deliver(handle, change(1))
    assert [len(one.notifications) for one in found.state()] == [10, 6]


def test_only_so_many_clients_are_told_why_a_start_lost_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumption, "_LOST_MAX", 2)
    found: ResumableSubscriptions[Client] = resumables()
    asked = [Followed(name, QUERY, 1) for name in ("one", "two", "three")]
    for one in asked:
        found.lose(one, "lost")
    told = [found.resumable(one, 0) for one in asked]
    assert [one.reason == "lost" for one in told if isinstance(one, ResumeFailure)] == [False, True, True]


def test_what_a_receiver_has_is_no_longer_retained() -> None:
    found: ResumableSubscriptions[Client] = resumables()
    found.begin(Followed("one", QUERY, 0, delivery=RECEIVER), "handle", client := Client())
    for number in range(1, 5):
        found.deliver("handle", change(number))
    found.acknowledge("one", 3)
    found.acknowledge("one", 2)
    found.acknowledge("none", 2)
    [state] = found.state()
    assert (state.sequence, len(state.notifications)) == (4, 1)
    found.acknowledge("one", 9)
    assert found.totals()["retained_bytes"] == 0
    assert found.sink("one") is client


@pytest.mark.parametrize("durability", ["interval", "off"])
@pytest.mark.parametrize("snapshot", [False, True])
async def test_it_outlives_a_power_cut_that_may_have_taken_records(
    tmp_path: Path, durability: str, snapshot: bool
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
        spuid, _ = await deliver(runner)
        await update(runner, "INSERT DATA { <http://1> <http://p> 1 }")
    clock.reboot("boot-2")
    for _ in range(2):  # the first of them ends before the door begins it anew
        async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
            assert only(runner).spuid == spuid
            if snapshot:
                await runner.log_keeper.take_snapshot()
    async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
        other, sink = await deliver(runner, Resume("PT0S", spuid, 1))
        assert other != spuid
        assert sink.reset is not None and "gateway.durability" in sink.reset
        assert sink.first is not None and len(sink.first) == 1
        await idle(runner)
    async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
        assert only(runner).spuid == other
        assert runner.figures.status()["resumable"]["subscriptions"] == 1


async def test_it_outlives_damage_to_the_log(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, _ = await deliver(runner)
        for number in range(4):
            await update(runner, f"INSERT DATA {{ <http://{number}> <http://p> 1 }}")
    good = lines(segments(tmp_path)[0])
    put_lines(tmp_path, [*good[:3], good[3].replace(b"commit", b"c0mmit"), *good[4:]])
    for _ in range(2):
        async with recovered_runner(tmp_path, settings=settings()) as runner:
            assert only(runner).spuid == spuid
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        other, sink = await deliver(runner, Resume("PT0S", spuid, 1))
        assert sink.reset is not None and "change log" in sink.reset
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        assert only(runner).spuid == other


async def test_a_result_that_depends_on_the_order_begins_anew_with_each_start(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, _ = await deliver(runner, query=LIMITED)
    for _ in range(2):
        async with recovered_runner(tmp_path, settings=settings()) as runner:
            assert only(runner).spuid == spuid
            other, sink = await deliver(runner, Resume("PT0S", spuid, 0), query=LIMITED)
            assert (other == spuid) == (sink.reset is None)
            spuid = other


async def test_it_ends_with_a_record_also_while_it_is_interrupted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings("off")) as runner:
        await deliver(runner)
        await deliver(runner, receiver=msgspec.structs.replace(RECEIVER, id="two"))
        await runner.end_delivery("two")
        assert only(runner).delivery == RECEIVER
        with pytest.raises(UnknownSpuidError):
            await runner.end_delivery("two")
    clock.reboot("boot-2")
    async with recovered_runner(tmp_path, clock, settings=settings("off")) as runner:
        assert only(runner).delivery == RECEIVER
        await runner.end_delivery("one")
        assert runner.delivered.of_kind("webhook") == []
    async with recovered_runner(tmp_path, clock, settings=settings("off")) as runner:
        assert runner.delivered.of_kind("webhook") == []


async def test_what_is_owed_before_a_renewal_may_change_or_end_the_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a disk that was full: an owed reaction ends it, or the store has taken it over from its plan."""
    owed: list[Callable[[], object]] = []
    flush = Reactions.flush_pending

    def flushed(reactions: Reactions) -> None:
        while owed:
            owed.pop()()
        flush(reactions)

    monkeypatch.setattr(Reactions, "flush_pending", flushed)
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, _ = await deliver(runner)
        restated = msgspec.structs.replace(only(runner), planned=True)
        owed.append(lambda: runner._resumption.resumables.restate(restated))
        assert (await runner.renew_delivery(RECEIVER, Cause("http", "test"))).planned
        assert only(runner).planned
        owed.append(lambda: runner._subscribers._give_up(spuid))
        with pytest.raises(UnknownSpuidError):
            await runner.renew_delivery(RECEIVER, Cause("http", "test"))
        with pytest.raises(UnknownSpuidError):
            await runner.end_delivery("one")
    assert [record.type for record in records(tmp_path)] == ["subscribe", "subscribe", "unsubscribe"]


async def test_one_that_begins_anew_takes_no_further_room(tmp_path: Path) -> None:
    full: Settings = settings(resume={"subscriptions_max": 1})
    async with recovered_runner(tmp_path, settings=full) as runner:
        spuid, _ = await deliver(runner)
        again, _ = await deliver(runner)
        assert again != spuid
        found: Any = runner.figures.status()["resumable"]
        assert found["subscriptions"] == 1


async def test_it_ends_with_its_client_also_while_it_is_interrupted(tmp_path: Path) -> None:
    """Otherwise the next client of that name would have it, and its receiver the rows of that client."""
    clock = FakeClock()
    anna, berta = (Caller(name, FULL, operator=False, registered=True) for name in ("anna", "berta"))
    two = msgspec.structs.replace(RECEIVER, id="two")
    async with recovered_runner(tmp_path, clock, settings=settings("off")) as runner:
        await deliver(runner, caller=anna)
        await deliver(runner, receiver=two, caller=berta)
    clock.reboot("boot-2")
    async with recovered_runner(tmp_path, clock, settings=settings("off")) as runner:
        assert len(runner.delivered.of_kind("webhook")) == 2
        runner.access_of = {"berta": FULL}.get
        await runner.permissions_changed("anna")
        assert (only(runner).delivery, runner.delivered.has("one"), runner.delivered.has("two")) == (two, False, True)
    async with recovered_runner(tmp_path, clock, settings=settings("off")) as runner:
        assert only(runner).delivery == two
