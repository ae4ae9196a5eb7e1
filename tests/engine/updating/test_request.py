"""A request is read once, whatever is asked of it, in whatever order, at whatever time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import FULL, Access, Graphs
from lamplighter.engine.errors import AccessDeniedError, MalformedRequestError, RequestSyntaxError
from lamplighter.engine.sparql.skeletons import TEXT_MAX, Lifter, Recogniser
from lamplighter.engine.updating import updates
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.engine.updating.request import Request
from lamplighter.engine.updating.updates import PLANS_MAX, SERVED_MIN, WITHOUT_PLAN
from lamplighter.engine.work import PlanExceededError

START = datetime(2026, 1, 1, tzinfo=UTC)
COPY = "INSERT { ?s <a:copy> ?o } WHERE { ?s <a:p> ?o }"
NO_PLAN = "INSERT { ?s <a:at> ?t } WHERE { ?s <a:p> ?o BIND(NOW() AS ?t) }"
WRITES_G = Access(read=Graphs(frozenset({"<a:g>"})), write=Graphs(frozenset({"<a:g>"})))


@pytest.fixture
def engine() -> Engine:
    found = Engine(clock=lambda: START)
    found.update("INSERT DATA { <a:s> <a:p> 1 . GRAPH <a:g> { <a:s> <a:p> 2 } }")
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a text was parsed, lifted, and compared with a known shape."""
    counts: Counter[str] = Counter()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            counts[name] += 1
            return call(*arguments)

        return run

    monkeypatch.setattr(updates, "resolved", counted("parsed", updates.resolved))
    monkeypatch.setattr(Lifter, "lift", counted("lifted", Lifter.lift))
    monkeypatch.setattr(Recogniser, "terms", counted("recognised", Recogniser.terms))
    return counts


def ask_everything(engine: Engine, request: Request) -> None:
    for _ in range(2):
        request.evaluations()
        request.evaluations(WRITES_G)
        assert request.single
        request.check(FULL)
        engine.prepare(request)


def test_a_text_without_a_plan_is_read_once(engine: Engine, reads: Counter[str]) -> None:
    ask_everything(engine, engine.request(NO_PLAN))
    assert reads == {"parsed": 1, "lifted": 1}


def test_a_text_with_a_plan_is_recognised_once_and_not_parsed(engine: Engine, reads: Counter[str]) -> None:
    for _ in range(WITHOUT_PLAN + SERVED_MIN):
        engine.update(COPY)
    reads.clear()
    request = engine.request(COPY)
    for _ in range(2):
        assert request.evaluations() == []
        assert [quad.p for quad in engine.prepare(request).kept] == ["<a:copy>"]
    assert reads == {"recognised": 1}


def test_nothing_is_read_before_it_is_needed(engine: Engine, reads: Counter[str]) -> None:
    request = engine.request("nonsense")
    assert not request.large and engine.request(" " * (TEXT_MAX + 1)).large
    assert not reads


def test_a_wrong_text_is_read_once_and_refused_each_time(engine: Engine, reads: Counter[str]) -> None:
    request = engine.request("INSERT { nonsense } WHERE {")
    for asked in (request.evaluations, lambda: request.check(FULL), lambda: engine.prepare(request)):
        with pytest.raises(RequestSyntaxError, match="line 1"):
            asked()
    assert reads["parsed"] == 1


def test_the_time_is_that_of_the_evaluation_not_that_of_the_reading() -> None:
    now = START
    engine = Engine(clock=lambda: now)
    text = (
        "PREFIX g: <http://lamplighter.example/ns/gateway#> "
        "INSERT { <a:s> <a:now> ?t ; <a:clock> ?c } WHERE { BIND(NOW() AS ?t) BIND(g:clock() AS ?c) }"
    )
    request = engine.request(text)
    [query] = request.evaluations()
    for _ in range(3):
        now += timedelta(seconds=1)
        said, ticks = (quad.o for quad in sorted(engine.prepare(request).added, key=lambda quad: quad.p, reverse=True))
        assert said.startswith(f'"{now:%Y-%m-%dT%H:%M:%S}')
        assert ticks.startswith(f'"{int(now.timestamp()) * 1_000_000}"')
        assert request.evaluations() == engine.request(text).evaluations() == [query], "equal requests, equal trials"
    assert engine.prepare(request, now=START) == engine.prepare(text, now=START)


def test_what_a_client_may_read_decides_on_the_plan(engine: Engine) -> None:
    text = "INSERT { GRAPH <a:g> { ?s <a:copy> ?o } } WHERE { ?s <a:p> ?o }"
    for _ in range(2):
        engine.update(text)
    request = engine.request(text)
    assert request.evaluations(FULL) == []
    [query] = request.evaluations(WRITES_G)
    assert "SELECT ?o ?s WHERE" in query
    assert len(engine.prepare(request).kept) == 1
    assert not engine.prepare(request, access=WRITES_G).kept


def test_graphs_of_the_protocol_leave_the_plan_aside(engine: Engine) -> None:
    for _ in range(2):
        engine.update(COPY)
    request = engine.request(COPY, UsingGraphs(("<a:g>",)))
    assert len(request.evaluations()) == 1
    assert [quad.o[:3] for quad in engine.prepare(request).added] == ['"2"']
    with pytest.raises(MalformedRequestError, match="using-graph-uri"):
        engine.prepare(engine.request(f"WITH <a:g> {COPY}", UsingGraphs(("<a:g>",))))


def test_a_plan_that_is_evicted_meanwhile_is_not_used(engine: Engine) -> None:
    for _ in range(2):
        engine.update(COPY)
    request = engine.request(COPY)
    assert request.evaluations() == []
    for number in range(PLANS_MAX):
        for _ in range(2):
            engine.update(COPY.replace("a:p", f"a:{number}"))
    engine.update("INSERT DATA { <a:t> <a:p> 3 }")
    assert len(request.evaluations()) == 1
    assert engine.prepare(request) == engine.prepare(COPY)
    assert [quad.s for quad in engine.prepare(request).added] == ["<a:t>"]


@pytest.mark.parametrize(
    ("text", "single"),
    [
        (COPY, True),
        (f"{COPY} ;", True),
        ("INSERT DATA { <a:s> <a:p> 1 }", True),
        (f"{COPY} ; {COPY}", False),
        (f"WITH <a:g> {COPY}", False),
        (COPY.replace("WHERE", "USING NAMED <a:g> WHERE"), False),
        ("", False),
    ],
)
def test_single_operations_on_the_dataset_that_they_find(engine: Engine, text: str, single: bool) -> None:
    assert engine.request(text).single == single


def test_what_is_named_is_checked_without_an_evaluation(engine: Engine) -> None:
    request = engine.request("INSERT DATA { GRAPH <a:g> { <a:s> <a:p> 1 } } ; CLEAR GRAPH <a:h>")
    request.check(FULL)
    with pytest.raises(AccessDeniedError, match="<a:h>"):
        request.check(WRITES_G)


def test_operations_that_another_process_has_read_are_taken(engine: Engine, reads: Counter[str]) -> None:
    data = "INSERT DATA { <a:s> <a:p> 3 }"
    elsewhere = engine.request(f"{data} ; {COPY} ; CLEAR GRAPH <a:g>")
    elsewhere.check(FULL)
    reads.clear()
    request = engine.request("a text that only the other process reads")
    request.operations = elsewhere.operations
    assert len(engine.prepare(request).added) == 3
    assert request.evaluations() == elsewhere.evaluations()
    assert reads["parsed"] == 0


def test_the_store_evaluates_what_the_plan_cannot_do() -> None:
    """And other requests of the shape keep the plan."""
    text = "INSERT { ?a <a:made> ?f } WHERE { ?a <a:p> ?b . ?c <a:p> ?d . ?e <a:p> ?f . ?g <a:p> ?h FILTER(?h > 100) }"
    with Engine(evaluation_ms_max=5) as engine:
        engine.update(f"INSERT DATA {{ {' '.join(f'<a:s{number}> <a:p> {number} .' for number in range(20))} }}")
        engine.update(text.replace("100", "101"))  # the store has accepted the shape
        request = engine.request(text)
        request.tried_first = True
        assert request.evaluations() == []
        with pytest.raises(PlanExceededError, match="the update needs more work than"):
            engine.prepare(request)
        assert len(request.evaluations()) == 1
        assert not engine.prepare(request).changes
        assert not engine.update(text.replace("100", "102")).delta.changes, "at once where nothing is to be tried"
        assert engine.request(text).evaluations() == []
