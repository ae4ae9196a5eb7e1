"""Subscriptions with LIMIT, with aggregates and with comparisons with the clock are resumed exactly: what a client has
and what it is told next is the present result, wherever the gateway was killed.
"""

from __future__ import annotations

import errno
import itertools
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import msgspec
import pytest

from lamplighter.engine.change_log import Record, encode
from lamplighter.engine.errors import ChangeLogError, GatewayError, UnsupportedRequestError
from lamplighter.engine.protocol import Resume
from lamplighter.engine.terms import Bag
from lamplighter.gateway.cli.listing_commands import _reason
from lamplighter.gateway.clock import iso
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.state.resumption import public_spuid
from lamplighter.gateway.systemd import fields
from tests.properties.timed_texts import PREFIX, at
from tests.support.amounts import Amounts
from tests.support.gateway_parts import (
    START,
    FakeClock,
    idle,
    put_lines,
    records,
    recovered_runner,
    time_passes,
    update,
)
from tests.support.oracle import Oracle, Row, respelled_rows
from tests.support.plays import cut
from tests.support.recording_sink import RecordingSink

CASES = 4
KEEP = "PT10M"
SECONDS = "'PT{}S'^^xsd:dayTimeDuration"
PLANNED = {
    "first": "SELECT ?s ?v { ?s :v ?v } ORDER BY DESC(?v) ?s LIMIT 3",
    "second": "SELECT ?s ?v { ?s :v ?v } ORDER BY ?v ?s LIMIT 2 OFFSET 2",
    "sums": "SELECT ?k (SUM(?v) AS ?sum) (AVG(?v) AS ?mean) { ?s :k ?k ; :v ?v } GROUP BY ?k",
    "total": "SELECT (SUM(?v) AS ?sum) (COUNT(*) AS ?n) { ?s :v ?v }",
    "extremes": "SELECT ?k (MIN(?v) AS ?least) (MAX(?v) AS ?most) { ?s :k ?k ; :v ?v } GROUP BY ?k",
    "texts": "SELECT ?k (GROUP_CONCAT(DISTINCT STR(?s); SEPARATOR='|') AS ?all) { ?s :k ?k ; :v ?v } GROUP BY ?k",
    "having": "SELECT ?k { ?s :k ?k ; :v ?v } GROUP BY ?k HAVING(MAX(?v) > 5)",
}
TIMED = {
    "due": "SELECT ?s { ?s :at ?t FILTER(g:now() >= ?t) }",
    "recent": "SELECT ?s ?v { ?s :at ?t ; :v ?v FILTER(?t > g:now() - " + SECONDS.format(3) + ") }",
    "silent": "SELECT ?s { ?s :k ?k FILTER NOT EXISTS { ?s :at ?t FILTER(?t > g:now() - " + SECONDS.format(4) + ") } }",
    "window": "SELECT ?k (SUM(?v) AS ?sum) { ?s :k ?k ; :v ?v ; :at ?t FILTER(?t > g:now() - "
    + SECONDS.format(5)
    + ") } GROUP BY ?k",
    "ordered": "SELECT ?s ?t { ?s :at ?t FILTER(g:now() >= ?t) } ORDER BY ?t ?s LIMIT 2",
}
QUERIES = {**PLANNED, **TIMED}
STATES = {
    "re-evaluated": "SELECT ?s { ?s :k ?k . ?s (:v/:v?)+ ?v }",
    "counted": "SELECT (COUNT(*) AS ?n) { ?s :v ?v }",
}
"""These outlive the process whatever follows them."""


@dataclass
class Copy:
    """A client's copy of a result. sequence: of the last notification that it has."""

    name: str
    spuid: str = ""
    sequence: int = 0
    variables: tuple[str, ...] = ()
    rows: Counter[Row] = field(default_factory=Counter)
    sink: RecordingSink = field(default_factory=RecordingSink)

    def take(self) -> None:
        """Takes what its sink was told."""
        for sequence, added, removed in self.sink.told:
            assert sequence == self.sequence + 1
            self.sequence = sequence
            gone = respelled_rows(removed)
            assert not gone - self.rows
            self.rows = self.rows - gone + respelled_rows(added)
        self.sink.told.clear()


async def begun(runner: Runner, name: str) -> Copy:
    copy = Copy(name)
    copy.spuid = await runner.subscribe(PREFIX + text_of(name), copy.sink, None, None, resume=Resume(KEEP))
    assert copy.sink.first is not None
    copy.variables, copy.rows = copy.sink.first.variables, respelled_rows(copy.sink.first)
    return copy


async def resumed(runner: Runner, copy: Copy) -> None:
    copy.sink = RecordingSink()
    asked = Resume(KEEP, copy.spuid, copy.sequence)
    await runner.subscribe(PREFIX + text_of(copy.name), copy.sink, None, None, resume=asked)
    assert copy.sink.reset is None, (copy.name, copy.sink.reset)


def text_of(name: str) -> str:
    return {**QUERIES, **STATES}[name]


def random_update(random: Random, now: int) -> str:
    """Numbers of all types, which come and go, and times around now. Sums of them have no rounding."""
    subject = f":s{random.randrange(6)}"
    if random.random() < 0.25:
        return f"{PREFIX} DELETE WHERE {{ {subject} {random.choice((':v', ':k', ':at'))} ?o }}"
    number = random.randrange(40)
    value = random.choice((f"{number / 4}e0", f"'{number / 4}'^^xsd:float", str(number), f"{number / 4}"))
    time = f"'{iso(START + timedelta(seconds=now + random.randrange(-4, 6)))}'^^xsd:dateTime"
    triple = random.choice((f":v {value}", f":v {value}", f":at {time}", f":k :k{random.randrange(2)}"))
    return f"{PREFIX} INSERT DATA {{ {subject} {triple} }}"


def check(runner: Runner, copies: Sequence[Copy]) -> None:
    """Compares the copies with the store's evaluation at this instant."""
    oracle = Oracle()
    oracle.load(runner._engine.dump(), "application/n-quads")
    for copy in copies:
        copy.take()
        answer = oracle.query(at(PREFIX + text_of(copy.name), runner._engine.instant))
        places = [answer.variables.index(variable) for variable in copy.variables]
        expected = Counter(tuple(row[place] for place in places) for row in answer.ordered)
        if copy.name == "texts":  # the store joins the members in another order
            expected = Counter((k, f'"{"|".join(sorted(str(members)[1:-1].split("|")))}"') for k, members in expected)
        if copy.name == "extremes":  # of equal numbers of different types either is right
            continue
        assert copy.rows == expected, copy.name


async def step(runner: Runner, clock: FakeClock, random: Random) -> None:
    match random.choices(("update", "time", "back", "subscribe", "snapshot"), (10, 5, 1, 2, 1))[0]:
        case "update":
            await update(runner, random_update(random, int((clock.now - START).total_seconds())))
        case "time":
            await time_passes(runner, clock, random.choice((0.000001, 0.5, 1, 2.5, 4)))
        case "back":
            clock.step(timedelta(seconds=-random.choice((0.5, 1.5, 3))))
            await idle(runner)
        case "subscribe":  # which lets time go by without a record
            clock.advance(random.choice((0.25, 0.5)))
            await runner.subscribe(PREFIX + text_of(random.choice(list(TIMED))), RecordingSink(), None, None)
        case "snapshot":
            await runner.log_keeper.take_snapshot()
    await idle(runner)


async def test_what_a_client_has_and_is_told_next_is_the_present_result(tmp_path: Path, amounts: Amounts) -> None:
    seed = secrets.randbelow(10**9)
    for number in range(seed, seed + amounts.of(CASES)):
        try:
            await _lives(tmp_path / str(number), Random(number))
        except Exception as error:
            raise AssertionError(f"case {number}: {error}") from error


async def _lives(data: Path, random: Random) -> None:
    clock, copies = FakeClock(), list[Copy]()
    for life in range(4):
        async with recovered_runner(data, clock) as runner:
            for copy in copies:
                await resumed(runner, copy)
            if life < 2:
                for name in random.sample(list({**QUERIES, **STATES}), 4):
                    copies.append(await begun(runner, name))
            for _ in range(random.randrange(3, 12)):
                await step(runner, clock, random)
                await time_passes(runner, clock)
                check(runner, copies)
        clock.advance(random.choice((0, 0.5, 3, 10)))


async def test_wherever_it_is_killed_the_same_notifications_have_the_same_numbers(
    tmp_path: Path, amounts: Amounts
) -> None:
    """Values whose sums are rounded, and rows that are equal in order: whatever a plan does, it does it again."""
    clock, random = FakeClock(), Random(7)
    whole = tmp_path / "whole"
    async with recovered_runner(whole, clock) as runner:
        copies = [await begun(runner, name) for name in QUERIES]
        await update(runner, f"{PREFIX} INSERT DATA {{ {' '.join(f':s{n} :k :k{n % 2} .' for n in range(6))} }}")
        for _ in range(40):
            await step(runner, clock, random)
            await update(
                runner, f"{PREFIX} INSERT DATA {{ :x{random.randrange(9)} :v 0.{random.randrange(9)}e0 ; :k :k1 }}"
            )
    told = {copy.name: (list(copy.sink.told), copy.sink.commits) for copy in copies}
    assert all(told[name][0] for name in QUERIES if name != "having")
    assert sum(len(found) for found, _ in told.values()) > 100
    log = records(whole)
    for count in amounts.some(range(len(QUERIES), len(log) + 1, 3)):
        clock = cut(whole, tmp_path / str(count), count)
        async with recovered_runner(tmp_path / str(count), clock) as runner:
            for copy in copies:
                copy.sequence = 0
                await resumed(runner, copy)
                expected, commits = told[copy.name]
                due = [one for one in expected if (commits[one[0]] or (0, 0)) <= (1, count)]
                again = [one for one in copy.sink.told if (copy.sink.commits[one[0]] or (0, 0)) <= (1, count)]
                assert _bags(again) == _bags(due), (copy.name, count)


def _bags(told: Sequence[tuple[int, Bag, Bag]]) -> list[tuple[int, Counter[Row], Counter[Row]]]:
    return [(sequence, respelled_rows(added), respelled_rows(removed)) for sequence, added, removed in told]


# --- what a plan does not follow ----------------------------------------------------------------------------------


MIXED = f"{PREFIX} INSERT DATA {{ :s9 :v 'a text' ; :k :k0 }}"
"""It does not compare with the numbers, so MIN and MAX depend on the order of the store."""
NUMBERS = f"{PREFIX} INSERT DATA {{ :s1 :v 1 ; :k :k0 . :s2 :v 2 ; :k :k0 }}"


async def go_on(runner: Runner, copy: Copy) -> str | None:
    """Why the client cannot resume, if so."""
    sink = RecordingSink()
    await runner.subscribe(
        PREFIX + text_of(copy.name), sink, None, None, resume=Resume(KEEP, copy.spuid, copy.sequence)
    )
    return sink.reset


@pytest.mark.parametrize("snapshot", [False, True])
async def test_what_the_store_takes_over_goes_on_in_this_process_only(tmp_path: Path, snapshot: bool) -> None:
    async with recovered_runner(tmp_path) as runner:
        copies = [await begun(runner, name) for name in ("extremes", "total")]
        await update(runner, NUMBERS)
        await update(runner, MIXED)
        [restated] = [record for record in records(tmp_path) if record.subscribe and record.seq > 2]
        assert restated.subscribe is not None
        assert (restated.subscribe.spuid, restated.subscribe.planned) == (copies[0].spuid, False)
        await update(runner, f"{PREFIX} DELETE WHERE {{ :s9 ?p ?o }}")
        for copy in copies:
            copy.take()
            assert await go_on(runner, copy) is None
        if snapshot:
            await runner.log_keeper.take_snapshot()
    for start in range(2):
        async with recovered_runner(tmp_path) as runner:
            assert runner.figures.status()["resumable"]["subscriptions"] == 1 + start  # that of the reset
            assert "depend on the order" in str(await go_on(runner, copies[0]))
            assert await go_on(runner, copies[1]) is None


async def test_the_record_has_the_instant_of_a_first_result_that_depends_on_it(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        for name in ("due", "sums"):
            await begun(runner, name)
    instants = [record.subscribe.instant for record in records(tmp_path) if record.subscribe is not None]
    assert instants == [iso(START), ""]


async def test_a_takeover_is_listed_and_logged_and_so_is_the_return(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has returned to a plan is reset after a start all the same: its client may have rows of the store."""
    caplog.set_level("INFO")

    async with recovered_runner(tmp_path) as runner:
        plain = await runner.subscribe(PREFIX + PLANNED["extremes"], RecordingSink(), None, None)
        copy = await begun(runner, "extremes")
        await update(runner, f"{PREFIX} INSERT DATA {{ :s1 :v 1 , 2 , 3 , 4 ; :k :k0 }}")
        listed = runner.figures.subscriptions()["subscriptions"]
        assert [(one["class"], one["taken_over"]) for one in listed] == [("seeded", None)] * 2
        await update(runner, f"{PREFIX} INSERT DATA {{ :s1 :v 'a' }}")
        sequence = runner.figures.status()["sequence"] - 1  # the restated subscription is a record, too
        listed = runner.figures.subscriptions()["subscriptions"]
        assert [(one["class"], one["taken_over"]) for one in listed] == [("re-evaluated", sequence)] * 2
        assert _reason(listed[0]) == f"since commit {sequence}: {listed[0]['reason']}"
        taken = [record for record in caplog.records if "taken over by the store" in record.getMessage()]
        assert [fields(record)["SUBSCRIPTION"] for record in taken] == [
            plain.removeprefix("sepa://subscription/"),
            public_spuid(copy.spuid).removeprefix("sepa://subscription/").removesuffix("…"),
        ]
        assert {record.levelname for record in taken} == {"WARNING"}
        await update(runner, f"{PREFIX} DELETE DATA {{ :s1 :v 1 , 2 , 3 , 'a' }}")
        listed = runner.figures.subscriptions()["subscriptions"]
        assert [(one["class"], one["taken_over"]) for one in listed] == [("seeded", sequence)] * 2
        assert _reason(listed[0]) == ""
        assert sum("has a plan again" in record.getMessage() for record in caplog.records) == 2
    async with recovered_runner(tmp_path) as runner:
        assert "depend on the order" in str(await go_on(runner, copy))


async def test_another_subscription_that_hands_a_plan_over_is_noticed_too(tmp_path: Path) -> None:
    one = PREFIX + "SELECT (MIN(?v) AS ?m) { ?s :k :k0 ; :v ?v }"
    async with recovered_runner(tmp_path) as runner:
        await update(runner, f"{NUMBERS} ; INSERT DATA {{ :s3 :v 3, 'a' ; :k :k1 }}")
        sink = RecordingSink()
        spuid = await runner.subscribe(one, sink, None, None, resume=Resume(KEEP))
        assert records(tmp_path)[-1].subscribe is not None
        assert records(tmp_path)[-1].subscribe.planned
        await runner.subscribe(one.replace(":k0", ":k1"), RecordingSink(), None, None)
        await idle(runner)
        assert not records(tmp_path)[-1].subscribe.planned
    async with recovered_runner(tmp_path) as runner:
        sink = RecordingSink()
        await runner.subscribe(one, sink, None, None, resume=Resume(KEEP, spuid, 0))
        assert sink.reset is not None and "depend on the order" in sink.reset


async def test_what_cannot_be_recorded_as_taken_over_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(RecordingSink):
        error: GatewayError | None = None

        def ended(self, spuid: str, error: GatewayError) -> None:
            self.error = error

    async with recovered_runner(tmp_path) as runner:
        sink = Ended()
        spuid = await runner.subscribe(PREFIX + PLANNED["extremes"], sink, None, None, resume=Resume(KEEP))
        await update(runner, NUMBERS)
        write, writes = runner._log.disk.write, itertools.count()

        def full(file: int, data: bytes) -> int:
            if next(writes):
                raise OSError(errno.ENOSPC, "no space")
            return write(file, data)

        monkeypatch.setattr(runner._log.disk, "write", full)
        await update(runner, MIXED)
        assert isinstance(sink.error, ChangeLogError)
        assert [sequence for sequence, _, _ in sink.told] == [1, 2]
        assert runner._engine.subscription_count == 0
        monkeypatch.undo()
        await update(runner, f"{PREFIX} INSERT DATA {{ :later :v 1 }}")
    assert [record.unsubscribe for record in records(tmp_path) if record.type == "unsubscribe"] == [spuid]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ?s { ?s :v ?v } LIMIT 2",
        "SELECT (SAMPLE(?v) AS ?one) { ?s :v ?v }",
        "SELECT * { { SELECT ?s { ?s :v ?v } LIMIT 1 } }",
    ],
)
async def test_what_no_plan_follows_is_reset_with_the_reason(tmp_path: Path, text: str) -> None:
    async with recovered_runner(tmp_path) as runner:
        spuid = await runner.subscribe(PREFIX + text, RecordingSink(), None, None, resume=Resume(KEEP))
        sink = RecordingSink()
        await runner.subscribe(PREFIX + text, sink, None, None, resume=Resume(KEEP, spuid, 0))
        assert sink.reset is None
    async with recovered_runner(tmp_path) as runner:
        sink = RecordingSink()
        await runner.subscribe(PREFIX + text, sink, None, None, resume=Resume(KEEP, spuid, 0))
        assert sink.reset is not None and "GROUP_CONCAT" in sink.reset


async def test_after_an_update_of_the_gateway_what_an_earlier_version_computed_begins_anew(tmp_path: Path) -> None:
    """Its plans may have had other sums. Its records say nothing of plans."""
    async with recovered_runner(tmp_path) as runner:
        copy = await begun(runner, "total")
        await update(runner, NUMBERS)
    put_lines(tmp_path, [_as_before(record) for record in records(tmp_path)])
    async with recovered_runner(tmp_path) as runner:
        assert "depend on the order" in str(await go_on(runner, copy))


def _as_before(record: Record) -> bytes:
    if record.subscribe is not None:
        record = msgspec.structs.replace(record, subscribe=msgspec.structs.replace(record.subscribe, planned=False))
    return encode(record).rstrip(b"\n")


async def test_rows_with_the_time_of_their_appearance_are_refused(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        for text in (
            "SELECT ?s (g:clock() AS ?since) { ?s :v ?v }",
            "SELECT ?s (g:clock() AS ?since) { ?s :at ?t FILTER(g:now() >= ?t) }",
        ):
            with pytest.raises(UnsupportedRequestError, match="cannot be resumed"):
                await runner.subscribe(PREFIX + text, RecordingSink(), None, None, resume=Resume(KEEP))
        assert runner._engine.subscription_count == 0
    assert not records(tmp_path)
