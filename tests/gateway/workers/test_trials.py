"""What the engine's loop evaluates is tried first where it can be killed, and measured afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.client import EngineClient, RefusedError
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError, QueueFullError
from lamplighter.engine.protocol import Resume
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.gateway.loop.queue import Lane
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import fields
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.trials import Trial, Trials
from tests.support.gateway_parts import CLIENT, FakeClock, gateway, records, time_passes, until, update
from tests.support.running_gateway import ask, health, hear, rows, running_gateway, tell
from tests.support.running_gateway import update as post

# A path without end keeps the store's own evaluation; two patterns that share nothing make a product.
CHAIN = "INSERT { ?s <http://q> 1 } WHERE { ?s <http://p> ?o . ?o <http://none>+ ?x }"
PRODUCT = (
    "INSERT { ?s <http://q> ?o } WHERE { ?s <http://p> ?a . ?b <http://p> ?o . ?c <http://p> ?d . ?c <http://n>* ?e }"
)
SLOW = "SELECT (COUNT(*) AS ?n) { ?a <http://p> ?b . ?c <http://p> ?d . ?e <http://p> ?f . ?e <http://n>* ?g }"
PATHS = "SELECT ?a ?b { ?a <http://next>+ ?b }"


def triples(count: int) -> str:
    return "INSERT DATA {" + " . ".join(f"<http://s{number}> <http://p> {number}" for number in range(count)) + "}"


def limited(**limits: int) -> Settings:
    return msgspec.convert({"limits": limits}, Settings)


@pytest.fixture
def trials() -> Iterator[Trials]:
    settings = limited(evaluation_ms_max=200)
    reader = Reader(settings.query, settings.limits)
    engine = Engine()
    engine.update(triples(1000))
    yield Trials(engine, reader, settings.limits)
    reader.close()


def of_update(trials: Trials, text: str, using: UsingGraphs | None = None) -> Trial:
    trial = trials.of_update(text, using)
    assert trial is not None
    return trial


# --- what is tried ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "INSERT DATA { <http://where> <http://p> 1 }",
        "CLEAR ALL",
        "INSERT { nonsense } WHERE {",
    ],
)
def test_what_evaluates_nothing_or_is_wrong_is_not_tried(trials: Trials, text: str) -> None:
    assert trials.of_update(text, None) is None


def test_what_has_a_plan_is_not_tried(trials: Trials) -> None:
    text = "DELETE {{ ?s <http://p> ?o }} WHERE {{ ?s <http://p> ?o . ?s <http://q> {} }}"
    trials.engine.update(text.format(1))
    assert trials.of_update(text.format(2), None) is None


def test_a_single_pattern_with_a_constant_needs_no_trial(trials: Trials) -> None:
    cheap = "INSERT { ?s <http://q> ?m } WHERE { SELECT ?s (MAX(?o) AS ?m) { ?s <http://p> ?o } GROUP BY ?s }"
    found = trials.of_update(cheap, None)
    assert found is None or found.passed
    for costly in (CHAIN, PRODUCT, cheap.replace("<http://p>", "?p ?x . ?s ?q")):
        assert not of_update(trials, costly).passed


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
def test_expressions_that_may_cost_much_need_a_trial(trials: Trials, where: str) -> None:
    assert not of_update(trials, f"INSERT {{ <http://s> <http://q> ?o }} WHERE {{ {{ {where} }} }}").passed


async def test_texts_that_grow_in_a_where_without_patterns_are_given_up(trials: Trials) -> None:
    text = '"aaaaaaaa"'
    for _ in range(8):
        text = f'REPLACE({text}, ".", "$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0")'
    with pytest.raises(LimitExceededError):
        await of_update(trials, f"INSERT {{ <http://s> <http://q> ?n }} WHERE {{ BIND(STRLEN({text}) AS ?n) }}").run()


async def test_a_text_that_has_passed_is_not_tried_again(trials: Trials) -> None:
    await of_update(trials, CHAIN).run()
    assert of_update(trials, CHAIN).passed
    assert trials.runs == 1


async def test_what_is_remembered_of_long_texts_is_short(trials: Trials) -> None:
    def text(number: int) -> str:
        return f"# {'long ' * 100_000}{number}\n{CHAIN}"

    for number in range(2):
        await of_update(trials, text(number), UsingGraphs((f"<http://{'g' * 100_000}>",))).run()
        assert of_update(trials, text(number), UsingGraphs((f"<http://{'g' * 100_000}>",))).passed
    assert not of_update(trials, text(2), UsingGraphs((f"<http://{'g' * 100_000}>",))).passed
    assert not of_update(trials, text(0), UsingGraphs(("<http://g>",))).passed
    assert trials.runs == 2
    assert sum(len(key) for key in trials.passed._keys) < 100


async def test_a_shape_passes_as_a_whole_whatever_its_subjects_and_objects_are(trials: Trials) -> None:
    text = "INSERT {{ <http://{0}> <http://q> 1 }} WHERE {{ <http://{0}> <http://p> ?o . ?o <http://none>+ ?x }}"
    await of_update(trials, text.format("s1")).run()
    assert of_update(trials, text.format("s2")).passed
    assert not of_update(trials, text.format("s2").replace("http://none", "http://p")).passed, "another predicate"
    assert not of_update(trials, text.format("s2") + " ; " + CHAIN).passed, "another operation"
    assert not of_update(trials, text.format("s2"), UsingGraphs(("<http://g>",), ())).passed, "another dataset"


async def test_a_shape_that_is_costly_as_a_whole_passes_text_by_text(trials: Trials) -> None:
    text = (
        "INSERT {{ ?x <http://q> 1 }} WHERE"
        " {{ ?a <http://p> {0} . ?b <http://p> {0} . ?c <http://p> {1} . ?c <http://n>* ?x }}"
    )
    await of_update(trials, text.format(1, 2)).run()
    assert of_update(trials, text.format(1, 2)).passed
    assert not of_update(trials, text.format(1, 3)).passed


async def test_what_is_subtracted_stays_as_it_is(trials: Trials) -> None:
    """With a variable in place of the constant MINUS would take everything away, and the rest would cost nothing."""
    text = (
        "INSERT {{ ?a <http://q> 1 }} WHERE {{ {{ ?a <http://p> ?x MINUS {{ ?a <http://p> {} }} }}"
        " ?c <http://p> ?d . ?e <http://p> ?f . ?e <http://n>* ?g }}"
    )
    with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 200"):
        await of_update(trials, text.format(1)).run()


async def test_what_takes_too_long_in_the_loop_has_to_pass_again(trials: Trials) -> None:
    await of_update(trials, CHAIN).run()
    of_update(trials, CHAIN).took(0.199)
    assert of_update(trials, CHAIN).passed
    of_update(trials, CHAIN).took(0.201)
    assert not of_update(trials, CHAIN).passed


async def test_an_operation_is_tried_on_what_those_before_it_leave(trials: Trials) -> None:
    """On the dataset as it is now, the second one would cost nothing."""
    trials.engine.update("CLEAR ALL")
    text = f"{triples(1000)} ; {PRODUCT}"
    with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max"):
        await of_update(trials, text).run()
    assert trials.engine.quad_count == 0, "a trial has no effect"


# --- in a gateway -----------------------------------------------------------------------------------


async def test_a_costly_update_is_refused_with_the_limit_and_others_go_on_meanwhile(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 300}) as at:
        await post(at, triples(1000))
        costly = asyncio.create_task(post(at, PRODUCT))
        done = 0
        while not costly.done():
            assert (await post(at, f"INSERT DATA {{ <http://during> <http://r> {done} }}")).status == 200
            done += not costly.done()
        answer = await costly
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        assert "limits.evaluation_ms_max = 300" in answer.json["error_description"]
        assert done >= 3, "updates hardly went on beside the trial"
        assert await rows(at, "SELECT ?s { ?s <http://q> ?o }") == []
        assert (await health(at))["trials"] == 1


async def test_an_update_that_passes_has_its_effect(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        await post(at, "INSERT DATA { <http://a> <http://p> <http://b> . <http://b> <http://none> <http://c> }")
        for _ in range(3):
            assert (await post(at, CHAIN)).status == 200
        assert [row["s"] for row in await rows(at, "SELECT ?s { ?s <http://q> 1 }")] == ["http://a"]
        assert (await health(at))["trials"] == 1


async def test_requests_of_a_connection_keep_their_order_behind_a_trial(tmp_path: Path) -> None:
    """The second would not find anything to delete if it went first."""
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        await post(at, "INSERT DATA { <http://a> <http://p> <http://b> . <http://b> <http://none> <http://c> }")
        for alias, text in (("1", CHAIN), ("2", "DELETE WHERE { ?s <http://q> ?o }"), ("3", CHAIN)):
            await tell(socket, {"update": {"sparql": text, "alias": alias}})
        await tell(socket, {"subscribe": {"sparql": "SELECT ?s { ?s <http://q> ?o }", "alias": "4"}})
        answers = [await hear(socket) for _ in range(4)]
        updated = [answer["updated"] for answer in answers if "updated" in answer]
        assert [(answer["alias"], answer["sequence"]) for answer in updated] == [("1", 2), ("2", 3), ("3", 4)]
        [first] = [answer["notification"] for answer in answers if "notification" in answer]
        assert len(first["addedResults"]["results"]["bindings"]) == 1


async def test_a_refused_one_does_not_stop_those_behind_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 100}) as at, connect(at.subscribe) as socket:
        await post(at, triples(1000))
        for alias, text in (("1", PRODUCT), ("2", "INSERT DATA { <http://x> <http://y> 1 }")):
            await tell(socket, {"update": {"sparql": text, "alias": alias}})
        one, two = await hear(socket), await hear(socket)
        assert (one["alias"], one["error"]) == ("1", "limit_exceeded")
        assert two["updated"]["alias"] == "2"


async def test_what_waits_for_a_trial_takes_room_in_the_queue(tmp_path: Path) -> None:
    settings = msgspec.convert({"gateway": {"queue_max": 3}, "limits": {"evaluation_ms_max": 100}}, Settings)
    async with gateway(tmp_path, settings=settings) as runner:
        await update(runner, triples(1000))
        lane = Lane()
        waiting = [runner.update(UpdateCall(PRODUCT, CLIENT, lane=lane)) for _ in range(3)]
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
    async with gateway(tmp_path, clock, settings=limited(evaluation_ms_max=100)) as runner:
        await update(runner, triples(1000))
        await update(runner, PRODUCT, delay="PT1S")
        await time_passes(runner, clock, 2)
        await until(lambda: runner.counters.delayed_fired == 1)
        assert records(tmp_path)[-1].cause.kind == "timer"
        assert not records(tmp_path)[-1].a
        assert "limits.evaluation_ms_max" in caplog.text
        [failed] = [record for record in caplog.records if "update failed" in record.getMessage()]
        assert fields(failed)["TIMER_ID"] == records(tmp_path)[-1].cause.id


# --- subscriptions ----------------------------------------------------------------------------------


async def test_a_costly_subscription_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 100}) as at, connect(at.subscribe) as socket:
        await post(at, triples(1000))
        answer = await ask(socket, {"subscribe": {"sparql": SLOW, "alias": "a"}})
        assert (answer["error"], answer["status_code"], answer["alias"]) == ("limit_exceeded", 403, "a")
        assert "limits.evaluation_ms_max = 100" in answer["error_description"]
        assert (await health(at))["subscriptions"] == 0


@pytest.mark.parametrize(
    "text", ["SELECT ?s { ?s <http://p> ?o }", "SELECT ?s { ?s <http://p>* ?o . ?s <http://p> ?x }"]
)
async def test_a_first_result_may_have_as_many_rows_as_the_limit_and_no_more(tmp_path: Path, text: str) -> None:
    async with (
        running_gateway(tmp_path, limits={"first_result_rows_max": 10}) as at,
        connect(at.subscribe) as socket,
    ):
        count = 5 if "*" in text else 10  # each subject with itself and with its object
        await post(at, triples(count))
        first = await ask(socket, {"subscribe": {"sparql": text, "alias": "a"}})
        assert len(first["notification"]["addedResults"]["results"]["bindings"]) == 10
        await tell(socket, {"unsubscribe": {"spuid": first["notification"]["spuid"]}})
        assert "unsubscribed" in await hear(socket)
        await post(at, "INSERT DATA { <http://one-more> <http://p> 1 }")
        answer = await ask(socket, {"subscribe": {"sparql": text, "alias": "b"}})
        assert (answer["error"], answer["alias"]) == ("limit_exceeded", "b")
        assert "limits.first_result_rows_max = 10" in answer["error_description"]
        state = await health(at)
        assert state["subscriptions"] == sum(state["subscription_classes"].values()) == 0


class Ear:
    """A sink that remembers."""

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


async def test_a_subscription_whose_evaluations_are_too_long_three_times_in_a_row_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = iter(number * 0.05 for number in range(10_000))
    slow = False

    def clock() -> float:
        return next(seconds) if slow else 0.0  # each pair of looks is 50 ms apart

    async with gateway(tmp_path, settings=limited(evaluation_ms_max=40)) as runner:
        monkeypatch.setattr("lamplighter.gateway.loop.evaluations.thread_time", clock)
        ear, other = Ear(), Ear()
        ended = await runner.subscribe(PATHS, ear, None, None)
        left = await runner.subscribe("SELECT ?a { ?a <http://next> ?b }", other, None, None)
        for number, now in enumerate((True, True, False, True, True, True, True)):
            slow = now
            await update(runner, f"INSERT DATA {{ <http://{number}> <http://next> <http://x> }}")
        assert ear.told[:-1] == [0, 1, 2, 3, 4, 5, 6]
        assert "limits.evaluation_ms_max = 40" in str(ear.told[-1])
        assert other.told == [0, 1, 2, 3, 4, 5, 6, 7], "who is not evaluated again is left alone"
        assert runner.counters.ended == 1
        assert runner.figures.status()["subscriptions"] == 1
        [line] = [record for record in caplog.records if "subscription ended" in record.getMessage()]
        assert ended == f"sepa://subscription/{fields(line)['SUBSCRIPTION']}"
        assert left[:-12] == ended[:-12], "no less of it would say which one"


async def test_a_client_is_told_that_its_subscription_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    async with (
        running_gateway(tmp_path) as at,
        connect(at.subscribe) as socket,
        EngineClient(at.subscribe) as client,
    ):
        first = (await ask(socket, {"subscribe": {"sparql": PATHS, "alias": "a"}}))["notification"]
        changes = client.subscribe(PATHS)
        await anext(changes)
        monkeypatch.setattr("lamplighter.gateway.loop.evaluations.thread_time", lambda: float(next(seconds)))
        for number in range(3):
            await post(at, f"INSERT DATA {{ <http://{number}> <http://next> <http://x> }}")
        told = [await hear(socket) for _ in range(4)]
        assert [message["notification"]["sequence"] for message in told[:3]] == [1, 2, 3]
        assert (told[3]["error"], told[3]["alias"], told[3]["spuid"]) == ("limit_exceeded", "a", first["spuid"])
        with pytest.raises(RefusedError, match=r"limits\.evaluation_ms_max"):
            async for _ in changes:
                pass
        gone = await ask(socket, {"unsubscribe": {"spuid": first["spuid"], "alias": "b"}})
        assert gone["error"] == "sid_not_found"
        assert json.dumps((await health(at))["subscriptions"]) == "0"


# --- plans ------------------------------------------------------------------------------------------

MATCHED = "SELECT ?a ?c { ?a <http://p> ?b . ?c <http://p> ?d FILTER(CONTAINS(STR(?b), STR(?d))) }"


async def test_a_plan_that_a_commit_makes_too_costly_ends_with_the_reason_and_the_commit_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = limited(evaluation_ms_max=20)
    async with gateway(tmp_path, settings=settings) as runner:
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
        assert len([line for line in caplog.records if "subscription ended" in line.getMessage()]) == 2
        with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 20"):
            await runner.subscribe(MATCHED, Ear(), None, None)
    async with gateway(tmp_path, settings=settings) as runner:
        assert runner.figures.status()["subscriptions"] == 0


async def test_a_result_that_grows_without_end_on_a_commit_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    async with gateway(tmp_path, settings=limited(evaluation_ms_max=400)) as runner:
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

STARS = " ".join(f"<urn:a{number}> <urn:p> <urn:h1> . <urn:h2> <urn:p> <urn:b{number}> ." for number in range(400))
MET = "?a <urn:p>+ ?b . ?a <urn:p>+ ?c"
"""160,000 solutions in two stars, and 64 million when one quad has joined them."""


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
def test_an_evaluation_is_risky_where_its_patterns_may_multiply(trials: Trials, pattern: str, risky: bool) -> None:
    trials.engine.update(f"DELETE WHERE {{ ?s ?p ?o }} ; {triples(500)}")
    assert trials.risky(f"SELECT * {{ {pattern} }}") is risky


def test_names_of_graphs_multiply_solutions_as_patterns_do(trials: Trials) -> None:
    trials.engine.update("CREATE GRAPH <urn:g1> ; CREATE GRAPH <urn:g2>")
    assert not of_update(trials, "INSERT { <urn:s> <urn:q> 1 } WHERE { GRAPH ?a {} GRAPH ?b {} GRAPH ?c {} }").passed


def test_a_small_dataset_is_no_risk(trials: Trials) -> None:
    trials.engine.update("DELETE WHERE { ?s ?p ?o }")
    trials.engine.update(triples(10))
    assert not trials.risky("SELECT * { ?s <urn:p>* ?o . ?o <urn:q> ?v . ?v <urn:q> ?w }")


async def test_one_quad_that_makes_an_evaluation_too_costly_ends_the_subscription_and_stands(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits={"evaluation_ms_max": 1000}) as gateway:
        assert await post(gateway, f"INSERT DATA {{ {STARS} }}")
        async with connect(gateway.subscribe) as socket:
            await tell(socket, {"subscribe": {"sparql": f"SELECT (COUNT(*) AS ?n) {{ {MET} }}", "alias": "met"}})
            first = (await hear(socket))["notification"]
            assert first["addedResults"]["results"]["bindings"][0]["n"]["value"] == "160400"
            await post(gateway, "INSERT DATA { <urn:h1> <urn:p> <urn:h2> }")
            ended = await hear(socket)
            assert ended["error"] == "limit_exceeded"
            assert ended["spuid"] == first["spuid"]
            assert "evaluation_ms_max" in ended["error_description"]
        # The same query, and an update whose WHERE it is, are refused now, and others go on.
        async with connect(gateway.subscribe) as socket:
            await tell(socket, {"subscribe": {"sparql": f"SELECT (COUNT(*) AS ?n) {{ {MET} }}", "alias": "met"}})
            assert (await hear(socket))["error"] == "limit_exceeded"
            await tell(socket, {"update": {"sparql": f"INSERT {{ ?a <urn:q> 1 }} WHERE {{ {MET} }}"}})
            assert (await hear(socket))["error"] == "limit_exceeded"
        assert len(await rows(gateway, "SELECT ?o { <urn:h1> <urn:p> ?o }")) == 1
