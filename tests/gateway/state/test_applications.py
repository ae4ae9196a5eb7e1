"""Declared applications: each trigger has exactly one reaction, wherever the gateway is killed (design 4.11)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine.change_log import Gap, Record
from lamplighter.engine.core import Commit
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, LimitExceededError
from lamplighter.engine.protocol import Resume
from lamplighter.engine.slices import LONG, SLICE, Slices
from lamplighter.engine.sparql import clauses, forced_bindings
from lamplighter.engine.sparql.lexer import Token, tokens
from lamplighter.engine.sparql.requests import parse_update
from lamplighter.engine.store.quad_store import Asked
from lamplighter.engine.terms import Bag, lexical
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop import reactions as reactions_module
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import Application, Trigger, load_applications, sparql_faults
from lamplighter.gateway.workers.ad_hoc import Reader
from tests.support.amounts import Amounts
from tests.support.event_loops import until
from tests.support.gateway_parts import (
    CLIENT,
    FakeClock,
    application,
    dump,
    idle,
    reactions,
    records,
    recovered,
    recovered_runner,
    time_passes,
    update,
)
from tests.support.places import ROOT
from tests.support.plays import Step, cut, essence, killed_anywhere, play
from tests.support.recording_sink import RecordingSink
from tests.support.tables import each_row

PREFIXES = """
PREFIX : <http://e/>
PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>
PREFIX sosa: <http://www.w3.org/ns/sosa/>
PREFIX lighting: <http://lamplighter.example/ns/lighting#>
"""


def uris(*names: str) -> dict[str, Any]:
    return {name: {"type": "uri", "value": ""} for name in names}


def profile(queries: dict[str, str], updates: dict[str, Any], aggregators: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A JSAP document whose updates take ?x."""
    return {
        "namespaces": {"": "http://e/"},
        "queries": {name: {"sparql": text} for name, text in queries.items()},
        "updates": {
            name: {"forcedBindings": uris("x"), **({"sparql": value} if isinstance(value, str) else value)}
            for name, value in updates.items()
        },
        "extended": {"lamplighter": {"aggregators": aggregators}},
    }


def copier(name: str, source: str, target: str, **aggregator: Any) -> Application:
    """Whatever has `source` gets `target`: a new node for each reaction, so that a second one would show."""
    return application(
        name,
        profile(
            {"Q": f"SELECT ?x WHERE {{ ?x :{source} ?v }}"},
            {"U": f"INSERT {{ ?x :{target} [] }} WHERE {{ }}"},
            {"copy": {"query": "Q", "added": "U", **aggregator}},
        ),
    )


def smart_lighting() -> Application:
    document = json.loads((ROOT / "apps" / "smart-lighting.jsap").read_text())
    document["updates"]["SWITCH_OFF"]["delay"] = "PT5S"
    return application("smart-lighting", document)


def chain() -> list[Application]:
    """A triggers B triggers C: several rows, added and removed, reactions without effect, and delayed ones."""
    first = profile(
        {"IN": "SELECT ?x ?v WHERE { ?x :in ?v }"},
        {
            "MARK": "DELETE { ?x :a ?o } INSERT { ?x :a ?n } "
            "WHERE { OPTIONAL { ?x :a ?o } BIND(COALESCE(?o, 0) + 1 AS ?n) }",
            "UNMARK": "DELETE WHERE { ?x :a ?n }",
        },
        {"mark": {"query": "IN", "added": "MARK", "removed": "UNMARK"}},
    )
    second = profile(
        {"A": "SELECT ?x WHERE { ?x :a ?n }", "COUNT": "SELECT (COUNT(?x) AS ?n) WHERE { ?x :a ?v }"},
        {
            "B": "INSERT { ?x :b [] } WHERE { }",
            "LATER": {"sparql": "INSERT { ?x :later [] } WHERE { ?x :a ?n }", "delay": "PT3S"},
            "NOTHING": {"sparql": "DELETE DATA { :no :no :no }", "forcedBindings": {}},
        },
        {
            "b": {"query": "A", "added": "B"},
            "later": {"query": "A", "added": "LATER", "removed": "NOTHING"},
            "count": {"query": "COUNT", "added": "NOTHING"},
        },
    )
    third = profile(
        {"B": "SELECT ?x (COUNT(*) AS ?n) WHERE { ?x :b ?y } GROUP BY ?x", "LATER": "SELECT ?x WHERE { ?x :later ?y }"},
        {"C": "INSERT { ?x :c ?y } WHERE { ?x :b ?y }", "SOON": {"sparql": "CLEAR GRAPH :no", "delay": "PT1S"}},
        {"c": {"query": "B", "added": "C"}, "soon": {"query": "LATER", "added": "SOON"}},
    )
    return [application("a", first), application("b", second), application("c", third)]


def reading(post: int, presence: bool, at_s: int) -> str:
    return (
        f"DELETE {{ :o{post} sosa:hasSimpleResult ?r ; sosa:resultTime ?t }} INSERT {{ :o{post} sosa:hasSimpleResult "
        f"{str(presence).lower()} ; sosa:resultTime '2026-11-21T02:00:{at_s:02}Z'^^xsd:dateTime ; "
        f"sosa:observedProperty lighting:presence ; sosa:hasFeatureOfInterest :post{post} }} "
        f"WHERE {{ OPTIONAL {{ :o{post} sosa:hasSimpleResult ?r ; sosa:resultTime ?t }} }}"
    )


def said(at_s: float, sparql: str, delay: str | None = None) -> Step:
    return Step(at_s, PREFIXES + sparql, delay)


STREET = [
    said(1, "INSERT DATA { :post1 lighting:hasLamp :l1 . :post2 lighting:hasLamp :l2, :l3 }"),
    said(2, reading(1, True, 2)),
    said(3, reading(2, True, 3)),
    said(4, reading(1, False, 4)),
    said(5, reading(2, False, 5)),
    said(6, reading(2, True, 6)),  # somebody came: the lamps stay on
    Step(9.5),
    Step(10),
    said(12, reading(2, False, 12)),
    Step(30),
]

CHAIN = [
    said(1, "INSERT DATA { :x :in 1 . :y :in 1 . :z :in 1 }"),
    said(2, "INSERT DATA { :x :in 2 }"),
    said(3, "DELETE DATA { :x :in 1 . :y :in 1 }"),
    said(3.5, "INSERT DATA { :other :p 1 }"),
    Step(4),
    said(4.5, "DELETE { ?x :in ?o } INSERT { ?x :in 7 . :w :in 7 } WHERE { ?x :in ?o }", delay="PT0.2S"),
    Step(4.7),
    Step(5),
    Step(30),
]


@pytest.mark.parametrize(
    ("applications", "steps", "total"),
    [
        pytest.param([smart_lighting()], STREET, 6, id="smart lighting"),
        pytest.param(chain(), CHAIN, 19, id="chain", marks=pytest.mark.faults),
        pytest.param(list(reversed(chain())), CHAIN, 19, id="chain declared backwards", marks=pytest.mark.faults),
    ],
)
async def test_killed_anywhere_each_trigger_has_its_reaction_once(
    tmp_path: Path, applications: list[Application], steps: list[Step], total: int, amounts: Amounts
) -> None:
    await killed_anywhere(tmp_path, applications, steps, total, amounts)


async def test_smart_lighting_tells_its_story(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [smart_lighting()]) as runner:

        def lamps() -> dict[str, str]:
            found = [line.decode().split() for line in dump(runner) if b"hasStatus" in line]
            return {line[0][-3:-1]: line[2].strip('"') for line in found}

        seen = []
        for number, step in enumerate(STREET):
            await play(runner, clock, [Step(0)] * number + [step])
            seen.append(lamps())
        on = {"l1": "ON", "l2": "ON", "l3": "ON"}
        assert seen == [
            {},
            {"l1": "ON"},
            on,
            on,
            on,
            on,
            {**on, "l1": "OFF"},
            {**on, "l1": "OFF"},
            {**on, "l1": "OFF"},
            dict.fromkeys(on, "OFF"),
        ]


# --- beginning, ending, changing ---


def count(runner: Runner, predicate: str) -> int:
    return sum(f"<http://e/{predicate}>".encode() in line for line in dump(runner))


async def session(data: Path, applications: Sequence[Application], *sparql: str) -> tuple[int, int]:
    """One run with these updates: how many :out and :out2 there are at its end."""
    async with recovered_runner(data, FakeClock(), applications) as runner:
        for text in sparql:
            await update(runner, PREFIXES + text)
        await idle(runner)
        return count(runner, "out"), count(runner, "out2")


@pytest.mark.parametrize("first_results", [False, True])
async def test_first_results_count_only_if_declared(tmp_path: Path, first_results: bool) -> None:
    before = copier("app", "in", "out", firstResults=first_results)
    assert await session(tmp_path, [], "INSERT DATA { :x :in 1 . :y :in 1 }") == (0, 0)
    old = 2 if first_results else 0
    assert await session(tmp_path, [before]) == (old, 0)
    assert await session(tmp_path, [before]) == (old, 0), "once, not at each start"
    assert await session(tmp_path, [before], "INSERT DATA { :z :in 1 }") == (old + 1, 0)


@pytest.mark.parametrize("first_results", [False, True])
async def test_killed_between_the_beginning_and_its_first_results(tmp_path: Path, first_results: bool) -> None:
    applications = [copier(name, "in", name, firstResults=first_results) for name in ("out", "out2")]
    whole = tmp_path / "whole"
    await session(whole, [], "INSERT DATA { :x :in 1 . :y :in 1 }")
    await session(whole, applications)
    expected = essence(records(whole))
    assert len(expected) == (5 if first_results else 3)
    for kept in range(1, len(expected) + 1):
        part = tmp_path / str(kept)
        cut(whole, part, kept)
        await session(part, applications)
        assert essence(records(part)) == expected, kept


async def test_a_new_version_does_not_react_to_old_commits(tmp_path: Path) -> None:
    old, new = copier("app", "in", "out"), copier("app", "in", "out2")
    assert await session(tmp_path, [old], "INSERT DATA { :x :in 1 }") == (1, 0)
    whole = records(tmp_path)
    assert await session(tmp_path, [new]) == (1, 0)
    assert await session(tmp_path, [new], "INSERT DATA { :y :in 1 }") == (1, 1)
    # Also if the old version could not react any more: that is over.
    for kept in range(1, len(whole)):
        part = tmp_path / str(kept)
        cut(tmp_path, part, kept)
        assert (await session(part, [new]))[1] == 0
        assert (await session(part, [new], "INSERT DATA { :y :in 1 }"))[1] == 1


@pytest.mark.parametrize("between", [(), ("INSERT DATA { :meanwhile :in 1 }",)], ids=["quiet", "busy"])
@pytest.mark.parametrize("first_results", [False, True])
async def test_removed_and_put_back(tmp_path: Path, between: tuple[str, ...], first_results: bool) -> None:
    app = copier("app", "in", "out", firstResults=first_results)
    there = (await session(tmp_path, [app], "INSERT DATA { :before :in 1 }"))[0]
    assert there == 1
    assert await session(tmp_path, [], *between) == (there, 0)
    if first_results:
        there += 1 + len(between)
    assert (await session(tmp_path, [app]))[0] == there
    assert (await session(tmp_path, [app]))[0] == there
    assert (await session(tmp_path, [app], "INSERT DATA { :after :in 1 }"))[0] == there + 1
    # A kill right behind the trigger: it is still the business of this application.
    kept = next(record.seq for record in records(tmp_path) if any(":after" in q.s or "/after" in q.s for q in record.a))
    part = tmp_path / "part"
    cut(tmp_path, part, kept)
    assert (await session(part, [app]))[0] == there + 1


@pytest.mark.parametrize("between", [(), ("INSERT DATA { :meanwhile :in 1 }",)], ids=["quiet", "busy"])
async def test_back_to_an_old_version(tmp_path: Path, between: tuple[str, ...]) -> None:
    old, new = copier("app", "in", "out"), copier("app", "in", "out2")
    await session(tmp_path, [old], "INSERT DATA { :x :in 1 }")
    await session(tmp_path, [new], *between)
    assert await session(tmp_path, [old]) == (1, len(between))
    assert await session(tmp_path, [old], "INSERT DATA { :z :in 1 }") == (2, len(between))
    # A kill right behind the trigger.
    part = tmp_path / "part"
    cut(tmp_path, part, len(records(tmp_path)) - 1)
    assert await session(part, [old]) == (2, len(between))


async def test_an_application_added_later_is_in_step_after_a_kill(tmp_path: Path) -> None:
    """It is declared before the one that was there first, so a restart subscribes them in another order."""
    early, late = copier("b", "in", "out"), copier("a", "in", "out2")
    whole = tmp_path / "whole"
    await session(whole, [early])
    assert await session(whole, [late, early], "INSERT DATA { :x :in 1 }") == (1, 1)
    caused = reactions(whole)
    total = len(records(whole))
    for kept in range(total - 2, total + 1):
        part = tmp_path / str(kept)
        cut(whole, part, kept)
        assert await session(part, [late, early]) == (1, 1), kept
        assert reactions(part) == caused, kept


# --- applications that misbehave ---


def endless(name: str = "endless") -> Application:
    """Each of its updates changes the result of its query."""
    return application(
        name,
        profile(
            {"Q": "SELECT ?x ?n WHERE { ?x :n ?n }"},
            {"U": "DELETE { ?x :n ?n } INSERT { ?x :n ?m } WHERE { ?x :n ?n BIND(?n + 1 AS ?m) }"},
            {"count": {"query": "Q", "added": "U"}},
        ),
    )


async def test_an_endless_application_is_stopped_and_the_gateway_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactions_module, "REACTIONS_MAX", 20)
    applications = [endless(), copier("other", "in", "out")]
    async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
        await update(runner, PREFIXES + "INSERT DATA { :x :n 1 }")
        await idle(runner)
        status = runner.figures.status()
        assert status["status"] == "degraded"
        (problem,) = status["problems"]
        assert problem.startswith("application/endless failed: it was stopped: one request led to 20 reactions; ")
        assert len(reactions(tmp_path)) == 20
        await update(runner, PREFIXES + "INSERT DATA { :y :n 1 ; :in 1 }")
        await idle(runner)
        assert count(runner, "out") == 1
        assert len(reactions(tmp_path)) == 21


async def test_an_application_whose_query_is_slow_again_and_again_is_named_and_goes_on(tmp_path: Path) -> None:
    applications = [copier("slow", "in", "out"), copier("other", "in2", "out2")]
    async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
        [text] = {
            runner._engine.describe(spuid).text
            for spuid, (application, _) in runner._aggregators.subscriptions.items()
            if application.name == "slow"
        }
        runner._ledger.evaluations.measure_select(Asked(text, None, None, text), lambda: Bag(()))
        runner._ledger.evaluations.too_slow[text] = 600.0
        for name in "xy":
            await update(runner, PREFIXES + f"INSERT DATA {{ :{name} :in 1 }}")
            await idle(runner)
        (problem,) = runner.figures.status()["problems"]
        assert problem.startswith("application/slow degraded: a query takes longer than limits.evaluation_ms_max")
        assert count(runner, "out") == 2


@pytest.mark.parametrize("names", [("endless", "z"), ("z", "endless")])
async def test_an_endless_application_does_not_take_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """One request triggers both, and the other one has its reaction although the endless one ran the budget out."""
    monkeypatch.setattr(reactions_module, "REACTIONS_MAX", 20)
    applications = [endless("endless"), copier("z", "n", "out")]
    if names[0] == "z":
        applications.reverse()
    whole = tmp_path / "whole"
    async with recovered_runner(whole, FakeClock(), applications) as runner:
        await update(runner, PREFIXES + "INSERT DATA { :x :n 1 }")
        await idle(runner)
        assert runner.figures.status()["problems"] != []
        assert count(runner, "out") == 1
        before = count(runner, "out")
        await update(runner, PREFIXES + "INSERT DATA { :y :n 1 }")
        await idle(runner)
        assert count(runner, "out") == before + 1


async def test_killed_while_an_endless_application_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others owe behind the stop is not forgotten, and nothing happens twice."""
    monkeypatch.setattr(reactions_module, "REACTIONS_MAX", 5)
    both = application(
        "endless",
        profile(
            {"Q": "SELECT ?x ?n WHERE { ?x :n ?n }"},
            {"U": "DELETE { ?x :n ?n } INSERT { ?x :n ?m ; :seen ?n } WHERE { ?x :n ?n BIND(?n + 1 AS ?m) }"},
            {"count": {"query": "Q", "added": "U"}},
        ),
    )
    watcher = application(
        "watcher",
        profile(
            {"Q": "SELECT ?x ?n WHERE { ?x :seen ?n FILTER(?n = 5) }"},
            {"U": "INSERT { ?x :out [] } WHERE { }"},
            {"watch": {"query": "Q", "added": "U"}},
        ),
    )
    whole = tmp_path / "whole"
    await session(whole, [both, watcher], "INSERT DATA { :x :n 1 }")
    total = len(records(whole))
    for kept in range(3, total + 1):  # the first two say that the applications began, the third is the update
        part = tmp_path / str(kept)
        cut(whole, part, kept)
        await session(part, [both, watcher])
        log = records(part)
        seen = {record.seq for record in log if any(q.p.endswith("seen>") and lexical(q.o) == "5" for q in record.a)}
        assert len(seen) == 1
        caused = Counter(reactions(part))
        assert {seq for name, seq in caused if name == "watcher/watch/added"} == seen, kept
        assert set(caused.values()) <= {1}, kept
        assert any(record.cause and record.cause.id == "endless@" for record in log)


async def test_a_reaction_that_fails_is_recorded_once_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = application(
        "app",
        profile(
            {"Q": "SELECT ?x WHERE { ?s :in ?x }"},
            {"U": "INSERT { ?x :out 1 } WHERE { }", "V": "INSERT { :v :out2 ?x } WHERE { }"},
            {"u": {"query": "Q", "added": "U"}, "v": {"query": "Q", "added": "V"}},
        ),
    )
    # A blank node cannot be named; a literal as subject is left out, which is no failure.
    assert await session(tmp_path, [app], "INSERT DATA { :x :in [] }", "INSERT DATA { :y :in 5 }") == (0, 1)
    assert reactions(tmp_path) == [("app/u/added", 2), ("app/u/added", 5), ("app/v/added", 2), ("app/v/added", 5)]
    said = [entry.getMessage() for entry in caplog.records if "reaction failed" in entry.getMessage()]
    assert len(said) == 2
    assert "blank node" in said[0]
    before = records(tmp_path)
    await session(tmp_path, [app])
    assert records(tmp_path) == before, "not tried again at the next start"


@each_row(
    "document",
    [
        "{",
        '{"extended": {"lamplighter": {"aggregators": {"a": {"query": "NO"}}}}}',
        '{"extended": {"lamplighter": {"aggregators": {"a": {"query": 1}}}}}',
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, document: str) -> None:
    (tmp_path / "broken.jsap").write_text(document)
    with pytest.raises(ConfigurationError, match=r"broken\.jsap"):
        load_applications(tmp_path)


def test_all_faults_of_all_files_are_named_with_their_lines(tmp_path: Path) -> None:
    document = json.loads((ROOT / "apps" / "smart-lighting.jsap").read_text())
    document["updates"]["SWITCH_OFF"]["dealy"] = document["updates"]["SWITCH_OFF"].pop("delay")
    document["queries"]["PRESENCE"]["sparql"] = 1
    text = json.dumps(document, indent=2)
    (tmp_path / "a.jsap").write_text(text)
    (tmp_path / "b.jsap").write_text("{")
    with pytest.raises(ConfigurationError) as raised:
        load_applications(tmp_path)
    line = text[: text.index("dealy")].count("\n") + 1
    first, second, third = str(raised.value).splitlines()
    assert first == f'{tmp_path}/a.jsap line {line}: updates.SWITCH_OFF.dealy: unknown member; did you mean "delay"?'
    assert "queries.PRESENCE.sparql: Expected `str`" in second
    assert third.startswith(f"{tmp_path}/b.jsap: not JSON")


def test_a_fault_in_an_included_file_is_named_there(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "b.jsap").write_text('{"updates": {\n"U": {"sparql": "CLEAR ALL",\n"dealy": "PT1S"}}}')
    (tmp_path / "a.jsap").write_text('{"include": "parts/b.jsap"}')
    with pytest.raises(ConfigurationError, match=r"parts/b\.jsap line 3: updates\.U\.dealy"):
        load_applications(tmp_path)


def test_sparql_that_would_stop_an_application_is_named(tmp_path: Path) -> None:
    document = profile(
        {"Q": "SELECT ?y { ?y :p ?z", "R": "SELECT ?y { ?y :p ?z }", "D": "DESCRIBE <x:a>"},
        {"U": "INSERT DATA { ?x :p 1 }", "V": "DELET { ?x :p 1 } WHERE {}"},
        {
            "a": {"query": "Q", "added": "U"},
            "b": {"query": "R", "added": "U", "removed": "V"},
            "c": {"query": "D", "added": "U"},
        },
    )
    (tmp_path / "a.jsap").write_text(json.dumps(document, indent=1))
    (tmp_path / "broken.jsap").write_text("{")
    faults = [line.partition(" line ")[2].partition(": ")[2] for line in sparql_faults(tmp_path)]
    expected = [
        "queries.Q.sparql: syntax error at ▶ in 'SELECT ?y { ?y :p ?z ▶'",
        "queries.D.sparql: a subscription is a SELECT, ASK or CONSTRUCT query, not DESCRIBE",
        "updates.V.sparql: syntax error at ▶ in '",
        "extended.lamplighter.aggregators.b.added: U needs a value for ?x, which R does not select",
        "extended.lamplighter.aggregators.b.removed: V needs a value for ?x, which R does not select",
    ]
    assert [fault[: len(one)] for fault, one in zip(faults, expected, strict=True)] == expected


def test_files_are_loaded_in_order_and_told_apart_by_content(tmp_path: Path) -> None:
    source = (ROOT / "apps" / "smart-lighting.jsap").read_text()
    (tmp_path / "b.jsap").write_text(source)
    (tmp_path / "a.jsap").write_text(source.replace("PT30S", "PT31S"))
    (tmp_path / "notes.txt").write_text("no application")
    first, second = load_applications(tmp_path)
    assert (first.name, second.name) == ("a", "b")
    assert first.digest != second.digest
    assert load_applications(tmp_path) == [first, second]


def test_what_a_file_includes_is_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    part = tmp_path / "parts" / "queries.jsap"
    part.write_text(json.dumps({"queries": {"Q": {"sparql": "SELECT ?x { ?x <http://e/p> 1 }"}}}))
    aggregators = {"a": {"query": "Q", "added": "U"}}
    document = {
        "include": ["parts/queries.jsap"],
        "updates": {"U": {"sparql": "CLEAR ALL"}},
        "extended": {"lamplighter": {"aggregators": aggregators}},
    }
    (tmp_path / "a.jsap").write_text(json.dumps(document))
    [before] = load_applications(tmp_path)
    part.write_text(part.read_text().replace("1", "2"))
    [after] = load_applications(tmp_path)
    assert (before.name, after.name) == ("a", "a")
    assert before.digest != after.digest, "it begins anew"
    part.unlink()
    with pytest.raises(ConfigurationError, match=r"queries\.jsap, which .*a\.jsap includes, cannot be read"):
        load_applications(tmp_path)


async def test_the_graphs_of_a_profile_are_those_of_its_queries_and_updates(tmp_path: Path) -> None:
    document = {
        "namespaces": {"": "http://e/"},
        "graphs": {"default_graph_uri": "http://e/in", "using-graph-uri": ["http://e/in"]},
        "queries": {"Q": {"sparql": "SELECT ?x { ?x :new ?v }"}},
        "updates": {
            "NOW": {"sparql": "INSERT { ?x :copied ?w } WHERE { ?x :value ?w }", "forcedBindings": uris("x")},
            "LATER": {
                "sparql": "DELETE WHERE { ?x :value ?w }",
                "forcedBindings": uris("x"),
                "delay": "PT1H",
            },
        },
        "extended": {
            "lamplighter": {"aggregators": {"a": {"query": "Q", "added": "NOW"}, "b": {"query": "Q", "added": "LATER"}}}
        },
    }
    async with recovered_runner(tmp_path, applications=[application("app", document)]) as runner:
        here = "<http://e/s> <http://e/value> 'in the default graph' ; <http://e/new> 1"
        await update(runner, f"INSERT DATA {{ {here} }}")
        assert not reactions(tmp_path), "what happens in other graphs is none of its business"
        there = "<http://e/s> <http://e/value> 'in the graph' ; <http://e/new> 1"
        await update(runner, f"INSERT DATA {{ GRAPH <http://e/in> {{ {there} }} }}")
        [copied] = [line for line in dump(runner) if b"copied" in line]
        assert b'"in the graph" .' in copied
        [delayed] = runner.delayed_updates()
        assert "USING <http://e/in> WHERE" in delayed["update"]


@pytest.mark.parametrize(("member", "value"), [("delay", "30 s"), ("at", "tomorrow")])
def test_a_time_that_would_be_refused_each_time_stops_the_start(tmp_path: Path, member: str, value: str) -> None:
    (tmp_path / "a.jsap").write_text(json.dumps({"updates": {"U": {"sparql": "CLEAR ALL", member: value}}}))
    with pytest.raises(ConfigurationError, match=rf"a\.jsap line 1: updates\.U\.{member}: '{value}' is not"):
        load_applications(tmp_path)


async def test_a_reaction_has_the_policy_of_its_update(tmp_path: Path) -> None:
    document = {
        "queries": {"Q": {"sparql": "SELECT ?s { ?s <http://e/p> 1 }"}},
        "updates": {"U": {"sparql": "CLEAR ALL", "delay": "PT1H", "missed": "skip"}},
        "extended": {"lamplighter": {"aggregators": {"a": {"query": "Q", "added": "U"}}}},
    }
    async with recovered_runner(tmp_path, applications=[application("app", document)]) as runner:
        await update(runner, "INSERT DATA { <http://e/s> <http://e/p> 1 }")
        assert [row["missed"] for row in runner.delayed_updates()] == ["skip"]


# --- a full disk ---


def fail_reactions(monkeypatch: pytest.MonkeyPatch, data: Path, failures: int) -> list[str]:
    """The next so many appends of reactions fail. Returns the list of those that did, as it grows."""
    really_append = LogWriter.append
    failed: list[str] = []

    def append(log: LogWriter, entry: LogEntry, *clocks: Any) -> Record:
        cause = entry.cause
        if cause is not None and cause.kind == "application" and cause.seq is not None and len(failed) < failures:
            failed.append(cause.id)
            raise ChangeLogError("No space left on device", path=data, hint="free some space")
        return really_append(log, entry, *clocks)

    monkeypatch.setattr(LogWriter, "append", append)
    return failed


BLANK = "INSERT DATA { :x :in [] }"
LATER = application(
    "later",
    profile(
        {"Q": "SELECT ?x WHERE { ?x :in ?v }"},
        {"U": {"sparql": "INSERT { ?x :out [] } WHERE { }", "delay": "PT0S"}},
        {"later": {"query": "Q", "added": "U"}},
    ),
)
FAILING = application(
    "failing",
    profile(
        {"Q": "SELECT ?x WHERE { ?s :in ?x }", "R": "SELECT ?x WHERE { ?x :in ?v }"},
        {"U": "INSERT { :v :no ?x } WHERE { }", "V": "INSERT { ?x :out [] } WHERE { }"},
        {"fails": {"query": "Q", "added": "U"}, "works": {"query": "R", "added": "V"}},
    ),
)


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize(
    ("app", "owed"),
    [(copier("app", "in", "out"), 1), (LATER, 1), (FAILING, 2)],
    ids=["at once", "delayed", "one that fails anyway"],
)
async def test_a_reaction_that_cannot_be_written_happens_later_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: Application, owed: int, failures: int
) -> None:
    monkeypatch.setattr(reactions_module, "_REACT_AGAIN_S", 0.01)
    monkeypatch.setattr(reactions_module, "REACTIONS_MAX", 3)  # trying again is no new reaction
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [app]) as runner:
        began = len(records(tmp_path))
        failed = fail_reactions(monkeypatch, tmp_path, failures)
        accepted = await update(runner, PREFIXES + BLANK)
        assert accepted.sequence == began + 1, "answered as accepted"
        await until(lambda: len(reactions(tmp_path)) == owed)  # nobody asks for anything meanwhile
        assert len(failed) == failures
        await time_passes(runner, clock)
        assert count(runner, "out") == 1
        assert runner.figures.status()["status"] == ("degraded" if app is FAILING else "ok")
        caused = reactions(tmp_path)
        assert max(Counter(caused).values()) == 1
    async with recovered_runner(tmp_path, clock, [app]) as runner:
        assert count(runner, "out") == 1
        assert reactions(tmp_path) == caused


async def test_a_kill_while_a_reaction_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = copier("app", "in", "out")
    with monkeypatch.context() as patch:
        fail_reactions(patch, tmp_path, 1000)
        assert await session_without_idle(tmp_path, [app], "INSERT DATA { :x :in 1 }") == 0
    assert await session(tmp_path, [app]) == (1, 0)
    assert await session(tmp_path, [app]) == (1, 0)


async def test_a_reaction_that_the_start_could_not_write_happens_though_nobody_asks_for_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = copier("app", "in", "out")
    with monkeypatch.context() as patch:
        fail_reactions(patch, tmp_path, 1000)
        assert await session_without_idle(tmp_path, [app], "INSERT DATA { :x :in 1 }") == 0
        runner = recovered(tmp_path, FakeClock(), [app])
    task = asyncio.create_task(runner.run())  # without the steps that `running` waits for
    await until(lambda: len(reactions(tmp_path)) == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert count(runner, "out") == 1
    runner.close()


async def session_without_idle(data: Path, applications: Sequence[Application], sparql: str) -> int:
    async with recovered_runner(data, FakeClock(), applications) as runner:
        await update(runner, PREFIXES + sparql)
        return count(runner, "out")


async def test_while_reactions_wait_updates_are_refused_and_subscriptions_still_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update must not overtake the reactions to the one before; what changes nothing goes on."""

    class Ear:
        client = "test"
        connection: object = None
        identity: str | None = None
        since: Any = None

        def subscribed(self, subscription: object, keep: str | None = None, reset: str | None = None) -> None: ...

        def resumed(self, spuid: str, attached: object) -> None: ...

        def taken_over(self, spuid: str, by: object) -> None: ...

        def notify(self, notification: object, results: object) -> None: ...

        def ended(self, spuid: str, error: object) -> None: ...

    ear = Ear()
    async with recovered_runner(tmp_path, FakeClock(), [copier("app", "in", "out")]) as runner:
        spuid = await runner.subscribe("SELECT * WHERE { ?s ?p ?o }", ear, None, None)
        failed = fail_reactions(monkeypatch, tmp_path, 1000)
        await update(runner, PREFIXES + "INSERT DATA { :x :in 1 }")
        assert len(failed) == 1
        with pytest.raises(ChangeLogError, match="No space left"):
            await update(runner, PREFIXES + "INSERT DATA { :y :p 1 }")
        other = await runner.subscribe("SELECT ?s WHERE { ?s ?p ?o }", ear, None, None)
        await runner.unsubscribe(other, ear)
        runner.disconnect(ear, [spuid])
        await until(lambda: runner.figures.status()["subscriptions"] == 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda runner: runner.backups.take_snapshot(),
        lambda runner: runner.updates.write_graph(GraphWrite(GraphVerb.REPLACE, None), CLIENT),
        lambda runner: runner.backups.note_gap(Gap(1, 1, "test", 1)),
        lambda runner: runner._timers.note(),
        lambda runner: runner.subscribe("SELECT * { ?s ?p ?o }", RecordingSink(), None, None, resume=Resume("PT1H")),
    ],
    ids=["snapshot", "graph", "gap", "clocks", "subscription"],
)
async def test_nothing_is_recorded_between_a_trigger_and_its_reaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Runner], Awaitable[object]]
) -> None:
    """A start looks for missing reactions behind the last record that is none, and a snapshot has nothing of them."""
    applications = [copier("app", "in", "out")]
    with monkeypatch.context() as patch:
        async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
            fail_reactions(patch, tmp_path, 1000)
            trigger = await update(runner, PREFIXES + "INSERT DATA { :x :in 1 }")
            with pytest.raises(ChangeLogError, match="No space left"):
                await ask(runner)
            assert records(tmp_path)[-1].seq == trigger.sequence
    async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
        assert count(runner, "out") == 1


async def test_nothing_is_recorded_between_a_trigger_and_its_reaction_when_a_kept_subscription_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applications, sink = [copier("app", "in", "out")], RecordingSink()
    async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
        spuid = await runner.subscribe("SELECT * { ?s ?p ?o }", sink, None, None, resume=Resume("PT1H"))
        fail_reactions(monkeypatch, tmp_path, 1000)
        trigger = await update(runner, PREFIXES + "INSERT DATA { :x :in 1 }")
        with pytest.raises(ChangeLogError, match="No space left"):
            await runner.unsubscribe(spuid, sink)
        assert records(tmp_path)[-1].seq == trigger.sequence


# --- queries over the limit -------------------------------------------------------------------------


async def test_a_query_over_the_limit_interrupts_its_application_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have triggered is not done, now or later; it goes on, and so do the others."""
    # Units of work only: on a slow machine, its first result would take longer than the limit too.
    monkeypatch.setattr("lamplighter.gateway.loop.dataset.thread_time", lambda: 0.0)
    product = profile(
        {
            "Q": "SELECT ?x { ?x :in ?v . ?a :wide ?b . ?c :wide ?d FILTER(CONTAINS(STR(?b), STR(?d))) }",
            "PLAIN": "SELECT ?x { ?x :in ?v }",
        },
        {"U": "INSERT { ?x :product [] } WHERE { }", "V": "INSERT { ?x :plain [] } WHERE { }"},
        {"product": {"query": "Q", "added": "U"}, "plain": {"query": "PLAIN", "added": "V"}},
    )
    applications = [application("wide", product), copier("other", "in", "out")]
    settings = msgspec.convert({"limits": {"evaluation_ms_max": 20}}, Settings)
    wide = " . ".join(f":w{number} :wide {number}" for number in range(400))
    async with recovered_runner(tmp_path, FakeClock(), applications, settings) as runner:
        await update(runner, PREFIXES + f"INSERT DATA {{ {wide} }}")
        await idle(runner)
        assert runner.figures.status()["problems"] == []
        accepted = await update(runner, PREFIXES + "INSERT DATA { :x :in 1 }")
        await idle(runner)
        assert [count(runner, name) for name in ("product", "plain", "out")] == [0, 1, 1]
        [problem] = runner.figures.status()["problems"]
        assert problem.startswith("application/wide degraded: ") and "limits.evaluation_ms_max = 20" in problem
        behind = [record.cause.id for record in records(tmp_path) if record.seq > accepted.sequence and record.cause]
        ended = behind.index("wide@")
        assert {"wide/plain/added", "other/copy/added"} == set(behind[:ended])
        before = len(records(tmp_path))
    async with recovered_runner(tmp_path, FakeClock(), applications, settings) as runner:
        await idle(runner)
        assert [count(runner, name) for name in ("product", "plain", "out")] == [0, 1, 1]
        assert len(records(tmp_path)) >= before


async def test_reactions_that_take_too_long_together_interrupt_their_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of them is not done, now or later; it goes on, and so do the others."""
    looks, effect = iter(range(10_000)), Evaluations.effect

    def tried(self: Evaluations, *asked: Any, **how: Any) -> QuadDelta:
        self.tried_ms += 100
        return effect(self, *asked, **how)

    applications = [endless(), copier("other", "in", "out")]
    async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
        with monkeypatch.context() as patched:  # each reaction takes 0.1 s, and 0.1 s of a fork
            patched.setattr(reactions_module, "thread_time", lambda: next(looks) * 0.1)
            patched.setattr(Evaluations, "effect", tried)
            await update(runner, PREFIXES + "INSERT DATA { :x :n 1 ; :in 1 }")
            await idle(runner)
        done = Counter(name for name, _ in reactions(tmp_path))
        assert done == {"endless/count/added": 3, "other/copy/added": 1}
        [problem] = runner.figures.status()["problems"]
        assert problem.startswith("application/endless degraded: reactions did not run: its reactions to one request ")
        assert "took 600 ms, more than limits.evaluation_ms_max = 500" in problem
        await update(runner, PREFIXES + "INSERT DATA { :y :in 1 }")
        await idle(runner)
    async with recovered_runner(tmp_path, FakeClock(), applications) as runner:
        await idle(runner)
        assert Counter(name for name, _ in reactions(tmp_path)) == done + Counter(["other/copy/added"])
        assert count(runner, "out") == 2


async def test_what_others_subscribed_to_does_not_count_for_an_application_s_reactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client could otherwise stop an application with a query that is evaluated for each reaction's commit."""
    now, commit = 0.0, Ledger.commit

    def slow(self: Ledger, *asked: Any, **how: Any) -> Commit:
        nonlocal now
        now += 0.2
        return commit(self, *asked, **how)

    monkeypatch.setattr(reactions_module, "REACTIONS_MAX", 20)
    async with recovered_runner(tmp_path, FakeClock(), [endless()]) as runner:
        monkeypatch.setattr(reactions_module, "thread_time", lambda: now)
        monkeypatch.setattr(Ledger, "commit", slow)
        await update(runner, PREFIXES + "INSERT DATA { :x :n 1 }")
        await idle(runner)
        assert len(reactions(tmp_path)) == 20
        [problem] = runner.figures.status()["problems"]
        assert "one request led to 20 reactions" in problem


async def test_the_updates_of_a_reaction_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def try_here(reader: Reader, work: object, besides_s: float = 0.0, times: float = 1, **how: object) -> bytes:
        asked.append(times)
        return b""

    monkeypatch.setattr(Reader, "try_here", try_here)
    slow = profile(
        {"Q": "SELECT ?x { ?x :in ?v }"},
        {"U": "INSERT { ?x :out ?a } WHERE { ?x !:none ?b BIND(REPLACE(STR(?b), 'a', 'bb') AS ?a) }"},
        {"a": {"query": "Q", "added": "U"}},
    )
    rows = " . ".join(f":s{number} :in {number}" for number in range(51))
    async with recovered_runner(tmp_path, FakeClock(), [application("slow", slow)]) as runner:
        await update(runner, PREFIXES + f"INSERT DATA {{ {rows} }}")
        await idle(runner)
        assert asked == [1 + 50 / 500]


async def test_an_application_begins_in_a_large_dataset(tmp_path: Path) -> None:
    """Its subscriptions take long, which turns out after its beginning is recorded."""
    many = " . ".join(f":m{number} :many {number}" for number in range(2 * LONG))
    async with recovered_runner(tmp_path, FakeClock()) as runner:
        await update(runner, PREFIXES + f"INSERT DATA {{ {many} }}")
    async with recovered_runner(tmp_path, FakeClock(), [copier("copy", "in", "out")]) as runner:
        await idle(runner)
        await update(runner, PREFIXES + "INSERT DATA { :x :in 1 }")
        await idle(runner)
        assert count(runner, "out") == 1
        assert runner.figures.status()["problems"] == []


class CountedSlices(Slices):
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.pauses = 0

    def begin(self, size: int) -> None:
        self.begun.append(size)

    def pause(self) -> None:
        self.pauses += 1


async def test_a_reaction_may_have_any_number_of_rows(tmp_path: Path) -> None:
    """Of its text as a whole, an update could have 10,000 tokens and 1 MiB of declarations only."""
    count = 1_200
    async with recovered_runner(tmp_path, applications=[copier("one", "in", "out")]) as runner:
        rows = " . ".join(f":s{number} :in {number}" for number in range(count))
        await update(runner, f"{PREFIXES} INSERT DATA {{ {rows} }}")
        await idle(runner)
        assert sum(b"#out>" in quad or b"/out>" in quad for quad in dump(runner)) == count


def test_a_reaction_of_many_rows_pauses_and_reads_its_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str) -> Iterator[Token]:
        read.append(text)
        return tokens(text)

    for module in (forced_bindings, clauses):
        monkeypatch.setattr(module, "tokens", counted)
    application = copier("long", "in", "a-name-that-no-other-test-has")
    rows = Bag(("x", "v"), [(f"<urn:{number}>", '"x"') for number in range(3 * SLICE)])
    slices = CountedSlices()
    reaction = Trigger(application, next(iter(application.profile.aggregators)), "added", 1, rows).reaction(slices)
    assert (slices.begun, slices.pauses) == ([3 * SLICE], 3)
    assert reaction.sparql.count("<urn:7>") == 1 and reaction.sparql.count(";\n") == 3 * SLICE - 1
    assert len(read) == 2, "once for its variables, and once for those that a term cannot replace"


# --- a delayed reaction of many rows ---


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_a_delayed_reaction_of_more_rows_than_a_request_may_have_tokens_runs_once(
    tmp_path: Path, restarted: bool
) -> None:
    clock, rows = FakeClock(), 900
    app = application(
        "later",
        profile(
            {"Q": "SELECT ?x WHERE { ?x :in ?v }"},
            {"U": {"sparql": "INSERT { ?x :out ?v } WHERE { ?x :in ?v }", "delay": "PT5S"}},
            {"later": {"query": "Q", "added": "U"}},
        ),
    )
    many = "INSERT DATA { " + " ".join(f"<http://e/x{number}> <http://e/in> 1 ." for number in range(rows)) + " }"
    async with recovered_runner(tmp_path, clock, [app]) as runner:
        await update(runner, many)
        [pending] = runner.delayed_updates()
        with pytest.raises(LimitExceededError, match="tokens"):
            parse_update(pending["update"])
        if not restarted:
            await time_passes(runner, clock, 6)
            assert count(runner, "out") == rows
    async with recovered_runner(tmp_path, clock, [app]) as runner:
        await time_passes(runner, clock, 6)
        assert count(runner, "out") == rows
        assert runner.delayed_updates() == []
        assert runner.figures.status()["status"] == "ok"
    assert len(reactions(tmp_path)) == 1
