"""The trial: a costly evaluation runs in a worker process first, and is measured afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine import work
from lamplighter.engine.access import FULL
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError, QueueFullError
from lamplighter.engine.protocol import Resume
from lamplighter.engine.store import quad_store
from lamplighter.engine.updating import updates as request_texts
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.gateway.loop.queue import OrderedLane
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import fields
from lamplighter.gateway.workers import solutions
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.dry_runs import DryRun, DryRuns
from tests.support.event_loops import until
from tests.support.gateway_parts import (
    CLIENT,
    FakeClock,
    application,
    dump,
    records,
    recovered_runner,
    time_passes,
    update,
)

# A path without end keeps the store's own evaluation; two patterns that share nothing make a product.
CHAIN = "INSERT { ?s <http://q> 1 } WHERE { ?s <http://p> ?o . ?o <http://none>+ ?x }"
PRODUCT = (
    "INSERT { ?s <http://q> ?o } WHERE { ?s <http://p> ?a . ?b <http://p> ?o . ?c <http://p> ?d . ?c <http://n>* ?e }"
)
PATHS = "SELECT ?a ?b { ?a (<http://next>/<http://next>?)+ ?b }"


def triples(count: int) -> str:
    return "INSERT DATA {" + " . ".join(f"<http://s{number}> <http://p> {number}" for number in range(count)) + "}"


def limited(**limits: int) -> Settings:
    return msgspec.convert({"limits": limits}, Settings)


@pytest.fixture
def dry_runs() -> Iterator[DryRuns]:
    settings = limited(evaluation_ms_max=200)
    reader = Reader(settings.query, settings.limits)
    engine = Engine()
    engine.update(triples(1000))
    yield DryRuns(engine, reader, settings.limits)
    reader.close()


@pytest.fixture
def few(dry_runs: DryRuns) -> DryRuns:
    """Of so few quads that nothing is risky, and with a limit that no trial of them comes near."""
    dry_runs.engine.update("CLEAR ALL")
    dry_runs.engine.update(triples(20))
    dry_runs.limits = limited(evaluation_ms_max=2000).limits
    dry_runs.reader.apply(Settings().query, dry_runs.limits)
    return dry_runs


def of_update(dry_runs: DryRuns, text: str, using: UsingGraphs | None = None) -> DryRun:
    request = dry_runs.engine.request(text, using)
    request.check(FULL)  # a long text is parsed before
    dry_run = dry_runs.of_update(request)
    assert isinstance(dry_run, DryRun)
    return dry_run


# --- what is tried ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "INSERT DATA { <http://where> <http://p> 1 }",
        "CLEAR ALL",
        "INSERT { nonsense } WHERE {",
    ],
)
def test_what_evaluates_nothing_or_is_wrong_is_not_tried(dry_runs: DryRuns, text: str) -> None:
    assert dry_runs.of_update(dry_runs.engine.request(text)) is None


def test_what_has_a_plan_is_not_tried(dry_runs: DryRuns) -> None:
    text = "DELETE {{ ?s <http://p> ?o }} WHERE {{ ?s <http://p> ?o . ?s <http://q> {} }}"
    dry_runs.engine.update(text.format(1))
    assert dry_runs.of_update(dry_runs.engine.request(text.format(2))) is None


def test_a_single_pattern_with_a_constant_needs_no_trial(dry_runs: DryRuns) -> None:
    cheap = "INSERT { ?s <http://q> ?m } WHERE { SELECT ?s (MAX(?o) AS ?m) { ?s <http://p> ?o } GROUP BY ?s }"
    found = dry_runs.of_update(dry_runs.engine.request(cheap))
    assert found is None or found.has_passed
    for costly in (CHAIN, PRODUCT, cheap.replace("<http://p>", "?p ?x . ?s ?q")):
        assert not of_update(dry_runs, costly).has_passed


@pytest.mark.parametrize(
    "where",
    [
        'BIND(REPLACE("aa", "a", "bb") AS ?o)',
        "BIND(CONCAT('a', 'b') AS ?o)",
        "?s <http://p> ?x FILTER(REGEX(?x, '(a{9}){9}'))",
        "?s <http://p> ?x BIND(<http://f>(?x) AS ?o)",
        "SELECT (GROUP_CONCAT(?x) AS ?o) { ?s <http://p> ?x }",
    ],
)
def test_expressions_that_may_cost_much_need_a_trial(dry_runs: DryRuns, where: str) -> None:
    assert not of_update(dry_runs, f"INSERT {{ <http://s> <http://q> ?o }} WHERE {{ {{ {where} }} }}").has_passed


async def test_texts_that_grow_in_a_where_without_patterns_are_given_up(dry_runs: DryRuns) -> None:
    text = '"aaaaaaaa"'
    for _ in range(8):
        text = f'REPLACE({text}, ".", "$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0")'
    with pytest.raises(LimitExceededError):
        long = of_update(dry_runs, f"INSERT {{ <http://s> <http://q> ?n }} WHERE {{ BIND(STRLEN({text}) AS ?n) }}")
        await long.perform()


async def test_a_text_that_has_passed_is_not_tried_again(few: DryRuns) -> None:
    await of_update(few, CHAIN).perform()
    assert of_update(few, CHAIN).has_passed
    assert few.runs == 1


async def test_what_is_remembered_of_long_texts_is_short(few: DryRuns) -> None:
    def text(number: int) -> str:
        return f"# {'long ' * 100_000}{number}\n{CHAIN}"

    for number in range(2):
        await of_update(few, text(number), UsingGraphs((f"<http://{'g' * 100_000}>",))).perform()
        assert of_update(few, text(number), UsingGraphs((f"<http://{'g' * 100_000}>",))).has_passed
    assert not of_update(few, text(2), UsingGraphs((f"<http://{'g' * 100_000}>",))).has_passed
    assert not of_update(few, text(0), UsingGraphs(("<http://g>",))).has_passed
    assert few.runs == 2
    assert sum(len(key) for key in few.passed._keys) < 100


async def test_a_shape_passes_as_a_whole_whatever_its_subjects_and_objects_are(few: DryRuns) -> None:
    text = "INSERT {{ <http://{0}> <http://q> 1 }} WHERE {{ <http://{0}> <http://p> ?o . ?o <http://none>+ ?x }}"
    await of_update(few, text.format("s1")).perform()
    assert of_update(few, text.format("s2")).has_passed
    assert not of_update(few, text.format("s2").replace("http://none", "http://p")).has_passed, "another predicate"
    assert not of_update(few, text.format("s2") + " ; " + CHAIN).has_passed, "another operation"
    assert not of_update(few, text.format("s2"), UsingGraphs(("<http://g>",), ())).has_passed, "another dataset"


async def test_requests_at_different_times_have_one_shape(few: DryRuns) -> None:
    text = (
        "INSERT {{ <http://{0}> <http://q> ?t }}"
        " WHERE {{ <http://{0}> <http://p> ?o . ?o <http://none>+ ?x BIND(NOW() AS ?t) }}"
    )
    await of_update(few, text.format("s1")).perform()
    assert of_update(few, text.format("s2")).has_passed


async def test_what_is_risky_is_tried_each_time(dry_runs: DryRuns) -> None:
    """And text by text: with variables for its constants it would be too costly."""
    text = (
        "INSERT {{ ?x <http://q> 1 }} WHERE"
        " {{ ?a <http://p> {0} . ?b <http://p> {0} . ?c <http://p> {1} . ?c <http://n>* ?x }}"
    )
    for number in range(3):
        dry_run = of_update(dry_runs, text.format(1, 2 + number // 2))
        assert not dry_run.has_passed
        await dry_run.perform()
        assert dry_run.has_passed and dry_run.trial is not None
        assert dry_runs.runs == number + 1


async def test_what_is_subtracted_stays_as_it_is(dry_runs: DryRuns) -> None:
    """With a variable in place of the constant MINUS would take everything away, and the rest would cost nothing."""
    text = (
        "INSERT {{ ?a <http://q> 1 }} WHERE {{ {{ ?a <http://p> ?x MINUS {{ ?a <http://p> {} }} }}"
        " ?c <http://p> ?d . ?e <http://p> ?f . ?e <http://n>* ?g }}"
    )
    with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 200"):
        await of_update(dry_runs, text.format(1)).perform()


async def test_what_takes_too_long_in_the_loop_has_to_pass_again(few: DryRuns) -> None:
    await of_update(few, CHAIN).perform()
    of_update(few, CHAIN).took(0.79)
    assert of_update(few, CHAIN).has_passed
    of_update(few, CHAIN).took(0.81)
    assert not of_update(few, CHAIN).has_passed


async def test_an_operation_is_tried_on_what_those_before_it_leave(dry_runs: DryRuns) -> None:
    """On the dataset as it is now, the second one would cost nothing."""
    dry_runs.engine.update("CLEAR ALL")
    text = f"{triples(1000)} ; {PRODUCT}"
    with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max"):
        await of_update(dry_runs, text).perform()
    assert dry_runs.engine.quad_count == 0, "a trial has no effect"


# --- in a gateway -----------------------------------------------------------------------------------


async def test_what_waits_for_a_trial_takes_room_in_the_queue(tmp_path: Path) -> None:
    settings = msgspec.convert({"gateway": {"queue_max": 3}, "limits": {"evaluation_ms_max": 100}}, Settings)
    async with recovered_runner(tmp_path, settings=settings) as runner:
        await update(runner, triples(1000))
        lane = OrderedLane()
        waiting = [runner.updates.update(UpdateCall(PRODUCT, CLIENT, lane=lane)) for _ in range(3)]
        while runner.figures.status()["trials"] == 0:
            await asyncio.sleep(0)
        assert runner.figures.status()["queue"] == 3
        with pytest.raises(QueueFullError):
            await update(runner, "CLEAR ALL")
        answer = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, LimitExceededError) for error in answer)
        assert runner.figures.status()["queue"] == 0


async def test_a_delayed_update_that_is_too_costly_is_done_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=limited(evaluation_ms_max=100)) as runner:
        await update(runner, triples(1000))
        await update(runner, PRODUCT, delay="PT1S")
        await time_passes(runner, clock, 2)
        await until(lambda: runner.counters.delayed_fired == 1)
        assert records(tmp_path)[-1].cause.kind == "timer"
        assert not records(tmp_path)[-1].a
        assert "limits.evaluation_ms_max" in caplog.text
        [failed] = [record for record in caplog.records if "update failed" in record.getMessage()]
        assert fields(failed)["TIMER_ID"] == records(tmp_path)[-1].cause.id


@pytest.mark.parametrize("how", [{}, {"delay": "PT1S"}])
async def test_a_text_that_waits_for_its_trial_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, str]
) -> None:
    clock, parsed = FakeClock(), Counter[str]()
    resolved = request_texts.resolved

    def counted(text: str) -> Any:
        parsed[text] += 1
        return resolved(text)

    monkeypatch.setattr(request_texts, "resolved", counted)
    async with recovered_runner(tmp_path, clock) as runner:
        await update(runner, "INSERT DATA { <http://a> <http://p> <http://b> . <http://b> <http://none> <http://c> }")
        await update(runner, CHAIN, **how)
        await time_passes(runner, clock, 2)
        await until(lambda: runner.counters.commits == 2)
        assert records(tmp_path)[-1].a
        assert runner.figures.status()["trials"] == 1
    # The gateway also reads a delayed update when it is sent, to report its errors.
    assert parsed[CHAIN] == (2 if how else 1)


# --- subscriptions ----------------------------------------------------------------------------------


class Ear:
    """A sink that remembers."""

    kind = "ws"

    def __init__(self) -> None:
        self.client = "test"
        self.connection = self
        self.identity: str | None = None
        self.since: Any = None
        self.told: list[Any] = []

    def subscribed(self, subscription: Any, keep: str | None = None, reset: str | None = None) -> None:
        self.told.append(0)

    def notify(self, notification: Any, results: Any) -> None:
        self.told.append(notification.sequence)

    def resumed(self, spuid: str, attached: Any) -> None: ...

    def taken_over(self, spuid: str, by: Any) -> None: ...

    def ended(self, spuid: str, error: Exception) -> None:
        self.told.append(error)


# --- plans ------------------------------------------------------------------------------------------

MATCHED = "SELECT ?a ?c { ?a <http://p> ?b . ?c <http://p> ?d FILTER(CONTAINS(STR(?b), STR(?d))) }"


async def test_a_plan_that_a_commit_makes_too_costly_ends_with_the_reason_and_the_commit_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = limited(evaluation_ms_max=20)
    async with recovered_runner(tmp_path, settings=settings) as runner:
        ear, kept, other = Ear(), Ear(), Ear()
        await runner.subscribe(MATCHED, ear, None, None)
        await runner.subscribe(MATCHED, kept, None, None, resume=Resume("PT1H"))
        await runner.subscribe("SELECT ?s { ?s <http://p> ?o }", other, None, None)
        assert runner.figures.status()["trials"] == 0
        accepted = await update(runner, triples(1000))
        for told in (ear.told, kept.told):
            assert told[0] == 0
            assert "limits.evaluation_ms_max = 20" in str(told[1])
        assert other.told == [0, 1]
        assert next(record for record in records(tmp_path) if record.seq == accepted.sequence).a
        await update(runner, "INSERT DATA { <http://more> <http://p> 1 }")
        assert len(ear.told) == len(kept.told) == 2
        assert runner.counters.ended == 2
        assert runner.figures.status()["subscriptions"] == 1
        assert [record.type for record in records(tmp_path)].count("unsubscribe") == 1
        ended = [fields(line) for line in caplog.records if "subscription ended" in line.getMessage()]
        assert [line["PEER"] for line in ended] == ["test", "test"]
        with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 20"):
            await runner.subscribe(MATCHED, Ear(), None, None)
    async with recovered_runner(tmp_path, settings=settings) as runner:
        assert runner.figures.status()["subscriptions"] == 0


async def test_a_result_that_grows_without_end_on_a_commit_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    async with recovered_runner(tmp_path, settings=limited(evaluation_ms_max=400)) as runner:
        ear, other = Ear(), Ear()
        await runner.subscribe(PATHS, ear, None, None)
        await runner.subscribe("SELECT ?a { ?a <http://next> ?b }", other, None, None)
        monkeypatch.setattr("lamplighter.gateway.loop.evaluations.thread_time", lambda: float(next(seconds)))
        chain = " . ".join(f"<http://{number}> <http://next> <http://{number + 1}>" for number in range(100))
        await update(runner, f"INSERT DATA {{ {chain} }}")
        assert "limits.evaluation_ms_max = 400" in str(ear.told[1])
        assert other.told == [0, 1]
        assert runner.counters.ended == 1


# --- what the dataset has become since ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "risky"),
    [
        ("?s ?p ?o", False),
        ("<urn:s> <urn:p> ?o", False),
        ("?s <urn:p> ?o . ?s <urn:q> ?v", False),
        ("?s <urn:p> ?o . ?s <urn:q> ?v . ?o <urn:q> ?w", True),
        ("?s <urn:p> ?o OPTIONAL { ?s <urn:q> ?v OPTIONAL { ?o <urn:q> ?w } }", True),
        ("?s <urn:p>+ ?o", False),
        ("?s <urn:p>+ ?o . ?o <urn:q> ?v", True),
        ("?s <urn:p> ?o FILTER NOT EXISTS { ?o <urn:p> ?v . ?v <urn:q> ?w }", True),
        ("VALUES ?s { 1 2 }", True),
        ("GRAPH ?a {} GRAPH ?b {} GRAPH ?c {}", True),
        ("GRAPH ?g { ?s <urn:p> ?o }", False),
        ("?s <urn:p> ?o FILTER(REGEX(?o, '(a{9}){9}'))", True),
    ],
)
def test_an_evaluation_is_risky_where_its_patterns_may_multiply(dry_runs: DryRuns, pattern: str, risky: bool) -> None:
    dry_runs.engine.update(f"DELETE WHERE {{ ?s ?p ?o }} ; {triples(400)}")
    assert dry_runs.risky(f"SELECT * {{ {pattern} }}") is risky


def test_names_of_graphs_multiply_solutions_as_patterns_do(dry_runs: DryRuns) -> None:
    dry_runs.engine.update("CREATE GRAPH <urn:g1> ; CREATE GRAPH <urn:g2>")
    assert not of_update(
        dry_runs, "INSERT { <urn:s> <urn:q> 1 } WHERE { GRAPH ?a {} GRAPH ?b {} GRAPH ?c {} }"
    ).has_passed


def test_a_small_dataset_is_no_risk(dry_runs: DryRuns) -> None:
    dry_runs.engine.update("DELETE WHERE { ?s ?p ?o }")
    dry_runs.engine.update(triples(10))
    assert not dry_runs.risky("SELECT * { ?s <urn:p>* ?o . ?o <urn:q> ?v . ?v <urn:q> ?w }")


MANY = " ; ".join(f"INSERT {{ ?s <http://q> {count} }} WHERE {{ VALUES ?s {{ <http://s1> }} }}" for count in range(40))
"""Each evaluation is risky, as VALUES may multiply solutions, and none takes long."""


async def test_an_update_with_many_risky_evaluations_has_one_fork_for_which_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "try_here", None)
    async with recovered_runner(tmp_path) as runner:
        accepted = await update(runner, MANY)
        assert runner.figures.status()["trials"] == 1
        assert len(next(record for record in records(tmp_path) if record.seq == accepted.sequence).a) == 40


async def test_evaluations_are_refused_together(tmp_path: Path) -> None:
    text = f"{MANY} ; {PRODUCT}"
    async with recovered_runner(tmp_path, settings=limited(evaluation_ms_max=200)) as runner:
        await update(runner, text)  # on next to nothing it passes
        await update(runner, triples(1000))
        with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 200"):
            await update(runner, text)
        await update(runner, f"{MANY} ; {CHAIN}")


async def test_data_beside_risky_evaluations_may_take_longer_than_they(tmp_path: Path) -> None:
    data = " . ".join(f"<http://e/{number}> <http://e/p> {number}" for number in range(30_000))
    async with recovered_runner(tmp_path, settings=limited(evaluation_ms_max=100)) as runner:
        accepted = await update(runner, f"{MANY} ; INSERT DATA {{ {data} }} ; {MANY}")
        assert len(next(record for record in records(tmp_path) if record.seq == accepted.sequence).a) == 30_040


async def test_what_is_too_much_work_for_a_plan_is_evaluated_by_the_store_behind_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "UNITS_PER_MS", 20)
    where = " . ".join(f"?a{number} <http://p> ?b{number}" for number in range(3))
    text = f"INSERT {{ ?a0 <http://q> ?b0 }} WHERE {{ {where} FILTER(?b0 > 100) }}"
    wide = " . ".join(f"?s <http://w{number % 4}> ?o{number}" for number in range(17))
    async with recovered_runner(tmp_path, settings=limited(evaluation_ms_max=2000)) as runner:
        await update(runner, triples(20))
        await update(runner, "INSERT DATA { <http://s> <http://w0> 1, 2, 3, 4, 5 ; <http://w1> 1 }")
        await update(runner, "INSERT DATA { <http://s> <http://w2> 1 ; <http://w3> 1 }")
        await update(runner, text.replace("100", "101"))
        before = runner._dry_runs.runs
        await update(runner, text)
        assert runner._dry_runs.runs == before + 1
        ear = Ear()
        spuid = await runner.subscribe(f"SELECT * {{ {wide} }}", ear, None, None)
        assert ear.told == [0]
        assert runner._dry_runs.runs == before + 2
        [found] = runner.figures.subscriptions(10)["subscriptions"]
        assert found["spuid"] == spuid and found["reason"].startswith("the first result needs more work")


async def test_a_plan_follows_a_first_result_that_is_too_much_work_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store evaluates it behind a trial, and what the trial found counts."""
    monkeypatch.setattr(work, "UNITS_PER_MS", 5)
    async with recovered_runner(tmp_path, settings=limited(evaluation_ms_max=1000)) as runner:
        await update(runner, triples(20))
        before = runner._dry_runs.runs
        ear = Ear()
        spuid = await runner.subscribe(
            "SELECT ?a ?b { ?a <http://p> ?o . ?b <http://p> ?x . ?c <http://p> ?y }", ear, None, None
        )
        assert runner._dry_runs.runs == before + 1 and ear.told == [0]
        [found] = runner.figures.subscriptions(10)["subscriptions"]
        assert found["spuid"] == spuid and found["class"] != "re-evaluated"
        monkeypatch.undo()
        runner._engine.work.allow(1000)  # in units of now
        await update(runner, "INSERT DATA { <http://s1> <http://p> <http://s2> }")
        assert ear.told == [0, 1]


async def test_a_due_update_and_a_reaction_have_the_trial_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A due update lets others go on meanwhile. A reaction is tried in its place, since nothing may come before it."""
    monkeypatch.setattr(work, "UNITS_PER_MS", 20)
    where = " . ".join(f"?a{number} <http://p> ?b{number}" for number in range(3))
    text = f"INSERT {{ ?a0 <http://q> ?b0 }} WHERE {{ {where} FILTER(?b0 > 17) }}"
    document = {
        "queries": {"Q": {"sparql": "SELECT ?x { ?x <http://go> ?y }"}},
        "updates": {"U": {"sparql": text.replace("17", "16").replace("http://q", "http://r")}},
        "extended": {"lamplighter": {"aggregators": {"a": {"query": "Q", "added": "U"}}}},
    }
    here: list[int] = []
    really_try = Reader.try_here

    def try_here(reader: Reader, work: Any, *bounds: Any, **more: Any) -> bytes:
        here.append(1)
        return really_try(reader, work, *bounds, **more)

    monkeypatch.setattr(Reader, "try_here", try_here)
    clock, settings = FakeClock(), limited(evaluation_ms_max=2000)
    async with recovered_runner(tmp_path, clock, [application("app", document)], settings=settings) as runner:
        await update(runner, triples(20))
        for path in ("q", "r"):
            await update(runner, text.replace("17", "101").replace("http://q", f"http://{path}"))
        before = runner._dry_runs.runs
        await update(runner, text, delay="PT5S")
        assert runner._dry_runs.runs == before
        await time_passes(runner, clock, 6)
        assert runner._dry_runs.runs == before + 1
        assert (count(runner, "q"), here) == (2, [])
        await update(runner, "INSERT DATA { <http://s> <http://go> 1 }")
        assert (count(runner, "r"), here) == (3, [1])
        assert runner._dry_runs.runs == before + 1


def count(runner: Runner, path: str) -> int:
    return sum(b" <http://%s> " % path.encode() in line for line in dump(runner))


async def test_a_long_update_follows_the_rule_of_exists(tmp_path: Path) -> None:
    """A variable of EXISTS that its group does not have (SPARQL 1.1, 18.6); another process parses the text."""
    where = "?s <http://in> ?r . { ?r <http://label> ?l FILTER EXISTS { ?r <http://has> ?s } }"
    text = f"INSERT {{ ?s <http://made> ?r }} WHERE {{ {where} }}"
    data = "<http://s2> <http://in> <http://r3> . <http://r3> <http://label> 'L' ; <http://has> <http://s9>"
    async with recovered_runner(tmp_path) as runner:
        await update(runner, f"INSERT DATA {{ {data} }}")
        await update(runner, f"{text} ; {triples(2000)}")
        assert count(runner, "made") == 1


@pytest.mark.parametrize("part_rows", [1000, 5])
async def test_the_solutions_of_a_dry_run_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_rows: int
) -> None:
    """Others wait for no evaluation."""
    evaluated: list[str] = []
    native = quad_store.query_native

    def counted(store: Any, text: str, *graphs: Any) -> Any:
        evaluated.append(text)
        return native(store, text, *graphs)

    odd = '"a\\u0000\\n\\"é"@en'
    async with recovered_runner(tmp_path) as runner:
        await update(runner, triples(20))
        await update(runner, f"INSERT DATA {{ <http://x> <http://p> {odd}, [], <<( <http://a> <http://b> 1 )>> }}")
        monkeypatch.setattr(solutions, "PART_ROWS", part_rows)
        monkeypatch.setattr(quad_store, "query_native", counted)
        where = "?s <http://p> ?o . ?s <http://none>* ?x OPTIONAL { ?s <http://no> ?no } VALUES ?k { 1 }"
        await update(runner, f"INSERT {{ ?x <http://q> ?o . ?s <http://r> ?no }} WHERE {{ {where} }}")
        assert not evaluated
        lines = dump(runner)
        assert count(runner, "q") == 23 and count(runner, "r") == 0
        assert [line for line in lines if b" <http://q> " in line] == [
            line.replace(b" <http://p> ", b" <http://q> ") for line in lines if b" <http://p> " in line
        ]


async def test_more_solutions_than_a_fork_returns_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solutions, "SOLUTIONS_BYTES_MAX", 500)
    async with recovered_runner(tmp_path) as runner:
        await update(runner, triples(100))
        with pytest.raises(LimitExceededError, match="solutions of the WHERE have more than 500 bytes; restrict it"):
            await update(runner, CHAIN.replace("none>+", "none>*"))


@pytest.mark.parametrize("call", ["UUID()", "struuid # new\n()", "BNODE()", "RAND()"])
async def test_what_is_random_is_new_in_each_update(tmp_path: Path, call: str) -> None:
    """Forks of one process begin with the same random numbers."""
    risky = f"?s <http://p> 1 VALUES ?k {{ 1 }} BIND({call} AS ?v)"
    async with recovered_runner(tmp_path) as runner:
        await update(runner, triples(5))
        await update(runner, f"INSERT {{ <http://a> <http://r> ?v }} WHERE {{ BIND({call} AS ?v) }}")
        for number in range(3):
            await update(runner, f"INSERT {{ <http://s{number}> <http://r> ?v }} WHERE {{ {risky} }}")
        made = {line.split(b" ", 2)[2] for line in dump(runner) if b" <http://r> " in line}
        assert len(made) == 4


@pytest.mark.parametrize("limit", ["", "SOLUTIONS_BYTES_MAX"])
async def test_a_subscription_is_followed_by_the_solutions_of_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    if limit:
        monkeypatch.setattr(solutions, limit, 0)
    async with recovered_runner(tmp_path) as runner:
        await update(runner, triples(20))
        ear = Ear()
        await runner.subscribe("SELECT ?s ?x { ?s (<http://p>/<http://n>?)+ ?x }", ear, None, None)
        await update(runner, "INSERT DATA { <http://s1> <http://p> <http://y> . <http://y> <http://n> <http://z> }")
        await update(runner, "DELETE DATA { <http://s2> <http://p> 2 }")
        assert ear.told == [0, 1, 2]
