"""What a fork found holds in a turn only if no commit in between touched what it read: one case for each form of query.

The fork is a call here, so that cases are many: what it returns is read by the loop's part as ever.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pyoxigraph as ox
import pytest

from lamplighter.engine.access import FULL, Access, Graphs
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.store.quad_store import Asked, SelectRun
from lamplighter.engine.terms import Bag
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.engine.updating.request import Request
from lamplighter.engine.updating.updates import UNKNOWN
from lamplighter.gateway.workers import recent_changes
from lamplighter.gateway.workers.recent_changes import RecentChanges
from lamplighter.gateway.workers.solutions import Trial, record_work
from tests.properties.sparql_texts import case_of
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

DATA = "INSERT DATA { <a:1> <a:p> <a:2> ; <a:q> 1 . <a:2> <a:q> 2 GRAPH <a:g> { <a:1> <a:p> <a:2> } }"
CASES = {
    "a pattern": ("INSERT { ?s <a:m> ?o } WHERE { ?s <a:p> ?o }", "INSERT DATA { <a:2> <a:p> <a:3> }"),
    "a removed quad": ("INSERT { ?s <a:m> ?o } WHERE { ?s <a:p> ?o }", "DELETE DATA { <a:1> <a:p> <a:2> }"),
    "a number in another spelling": (
        "INSERT { ?s <a:m> 1 } WHERE { ?s <a:p> 01.50 }",
        "INSERT DATA { <a:2> <a:p> 1.5 }",
    ),
    "a graph": ("INSERT { ?s <a:m> ?o } WHERE { GRAPH <a:g> { ?s <a:p> ?o } }", "CLEAR GRAPH <a:g>"),
    "any graph": (
        "INSERT { ?s <a:m> ?g } WHERE { GRAPH ?g { ?s <a:p> ?o } }",
        "INSERT DATA { GRAPH <a:h> { <a:3> <a:p> <a:3> } }",
    ),
    "names of graphs": ("INSERT { ?g <a:m> 1 } WHERE { GRAPH ?g {} }", "CREATE GRAPH <a:h>"),
    "a graph that goes": ("INSERT { <a:1> <a:m> 1 } WHERE { GRAPH <a:g> {} }", "DROP GRAPH <a:g>"),
    "USING": (
        "INSERT { ?s <a:m> ?o } USING <a:g> WHERE { ?s <a:p> ?o }",
        "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }",
    ),
    "USING NAMED": (
        "INSERT { ?s <a:m> ?o } USING NAMED <a:g> WHERE { GRAPH ?g { ?s <a:p> ?o } }",
        "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }",
    ),
    "WITH": (
        "WITH <a:g> INSERT { ?s <a:m> ?o } WHERE { ?s <a:p> ?o }",
        "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }",
    ),
    "the second step of a path": (
        "INSERT { ?s <a:m> ?o } WHERE { ?s (<a:p>|<a:q>)+ ?o }",
        "INSERT DATA { <a:3> <a:q> <a:3> }",
    ),
    "a negated path": ("INSERT { ?s <a:m> ?o } WHERE { ?s !<a:p> ?o }", "INSERT DATA { <a:3> <a:z> <a:3> }"),
    "nodes of a path": ("INSERT { ?s <a:m> ?o } WHERE { ?s <a:p>* ?o }", "INSERT DATA { <a:3> <a:z> <a:4> }"),
    "an end of a path": ("INSERT { ?s <a:m> 1 } WHERE { <a:9> <a:p>* ?s }", "INSERT DATA { <a:9> <a:z> <a:4> }"),
    "the other end": ("INSERT { ?s <a:m> 1 } WHERE { ?s <a:p>* <a:9> }", "INSERT DATA { <a:4> <a:z> <a:9> }"),
    "MINUS": ("INSERT { ?s <a:m> 1 } WHERE { ?s <a:q> ?o MINUS { ?s <a:n> ?x } }", "INSERT DATA { <a:1> <a:n> 1 }"),
    "NOT EXISTS": (
        "INSERT { ?s <a:m> 1 } WHERE { ?s <a:q> ?o FILTER NOT EXISTS { ?s <a:n> ?x } }",
        "INSERT DATA { <a:1> <a:n> 1 }",
    ),
    "EXISTS in an expression": (
        "INSERT { ?s <a:m> ?v } WHERE { ?s <a:q> ?o BIND(IF(EXISTS { ?s <a:n> ?x }, 1, 2) AS ?v) }",
        "INSERT DATA { <a:1> <a:n> 1 }",
    ),
    "OPTIONAL": (
        "INSERT { ?s <a:m> ?x } WHERE { ?s <a:q> ?o OPTIONAL { ?s <a:n> ?x } }",
        "INSERT DATA { <a:1> <a:n> 1 }",
    ),
    "an order": (
        "INSERT { ?s <a:m> 1 } WHERE { { SELECT ?s { ?s <a:q> ?o } ORDER BY EXISTS { ?s <a:n> 1 } ?o LIMIT 1 } }",
        "INSERT DATA { <a:1> <a:n> 1 }",
    ),
    "a triple term": (
        "INSERT { ?s <a:m> ?o } WHERE { ?r <a:says> <<( ?s <a:q> ?o )>> }",
        "INSERT DATA { <a:9> <a:says> <<( <a:1> <a:q> 1 )>> }",
    ),
    "a form that the grammar does not know": (
        "INSERT { ?r <a:m> 1 } WHERE { ?r <a:says> <<( ?s <a:q> 1 )>> . FILTER(isTRIPLE(<<( ?s <a:q> 1 )>>)) }",
        "INSERT DATA { <a:9> <a:says> <<( <a:1> <a:q> 1 )>> }",
    ),
    "an empty group": ("INSERT { <a:x> <a:m> 1 } WHERE {}", "INSERT DATA { <a:9> <a:z> 1 }"),
    "VALUES and BIND": (
        "INSERT { ?s <a:m> ?x } WHERE { VALUES ?s { <a:5> } BIND(1 AS ?x) }",
        "INSERT DATA { <a:9> <a:z> 1 }",
    ),
    "COPY": (
        "COPY <a:g> TO DEFAULT ; INSERT { ?s <a:m> ?o } WHERE { ?s <a:p> ?o }",
        "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }",
    ),
    "MOVE": (
        "MOVE <a:g> TO <a:h> ; INSERT { ?s <a:m> ?o } WHERE { GRAPH <a:h> { ?s <a:p> ?o } }",
        "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }",
    ),
    "ADD": (
        "ADD <a:g> TO <a:h> ; INSERT { ?s <a:m> ?o } WHERE { GRAPH <a:h> { ?s <a:p> ?o } }",
        "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }",
    ),
    "what an earlier operation made": (
        "INSERT { ?s <a:n> [] } WHERE { ?s <a:q> ?o } ; INSERT { ?x <a:m> ?s } WHERE { ?s <a:n> ?x }",
        "INSERT DATA { <a:7> <a:n> <a:8> }",
    ),
    "an earlier operation that is touched": (
        "INSERT { ?s <a:n> ?o } WHERE { ?s <a:p> ?o } ; INSERT { ?s <a:m> ?o } WHERE { ?s <a:n> ?o }",
        "INSERT DATA { <a:2> <a:p> <a:3> }",
    ),
    "new blank nodes that are read": (
        "INSERT { ?s <a:n> [] } WHERE { ?s <a:q> ?o } ; INSERT { ?x <a:m> ?s } WHERE { ?s <a:n> ?x }",
        "INSERT DATA { <a:9> <a:z> 1 }",
    ),
    "blank nodes of a function": (
        "INSERT { ?x <a:m> ?s } WHERE { ?s <a:q> ?o BIND(BNODE() AS ?x) }",
        "INSERT DATA { <a:9> <a:z> 1 }",
    ),
}
HOLD = (
    *("an empty group", "VALUES and BIND"),
    *("new blank nodes that are read", "blank nodes of a function"),
)
NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


def run(
    engine: Engine,
    changes: RecentChanges,
    text: str,
    others: list[str],
    using: UsingGraphs | None = None,
    access: Access = FULL,
    later: Access | None = None,
) -> int:
    """Executes an update as a dry run and its turn do, with others in between. later: the permissions in the turn, if
    they have changed. Returns how many queries of it were evaluated in the turn."""
    request, version = _by_store(engine, text, using), changes.watch()
    whole, around, labels = request.reads_graphs, engine.store.around_select, engine.new_identifier
    frames = record_work(engine, lambda: engine.prepare(request, access=access, now=NOW), bare=False, data=False)
    engine.store.around_select, engine.new_identifier = around, labels
    for other in others:
        delta = engine.prepare(other)
        changes.note(delta)
        engine.commit(delta)
    trial, anew = Trial(frames, version, NOW, whole=whole), 0

    def select(asked: Asked, evaluate: SelectRun) -> Bag:
        nonlocal anew
        found = trial.solutions(asked, changes)
        anew += found is None
        return evaluate() if found is None else found

    engine.store.around_select = select
    try:
        with trial.labelling(engine):
            delta = engine.prepare(_by_store(engine, text, using), access=later or access, now=trial.now)
    finally:
        engine.store.around_select = around
    engine.commit(delta)
    return anew


def _by_store(engine: Engine, text: str, using: UsingGraphs | None) -> Request:
    """A request that no plan serves."""
    request = engine.request(text, using)
    request._found = UNKNOWN
    return request


def quads(engine: Engine) -> set[ox.Quad]:
    found = ox.Dataset(ox.parse(engine.dump(), format=ox.RdfFormat.N_QUADS))
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return set(found)


@pytest.mark.parametrize("name", CASES)
def test_an_update_sees_what_was_committed_before_its_turn(name: str) -> None:
    text, other = CASES[name]
    engine, expected = Engine(), Engine()
    for one in (engine, expected):
        one.update(DATA)
    anew = run(engine, RecentChanges(), text, [other])
    expected.update(other)
    expected.update(text)
    assert quads(engine) == quads(expected)
    assert bool(anew) != (name in HOLD)


@pytest.mark.parametrize("name", CASES)
def test_what_was_found_holds_where_nothing_was_touched(name: str) -> None:
    text, _ = CASES[name]
    engine, expected = Engine(), Engine()
    for one in (engine, expected):
        one.update(DATA)
    assert run(engine, RecentChanges(), text, ["DELETE DATA { <a:1> <a:p> <a:77> }"]) == 0
    expected.update(text)
    assert quads(engine) == quads(expected)


def test_graphs_of_the_protocol_and_of_permissions_are_looked_at() -> None:
    text = "INSERT { ?s <a:m> ?o } WHERE { ?s <a:p> ?o }"
    more = "INSERT DATA { GRAPH <a:g> { <a:3> <a:p> <a:3> } }"
    reader = Access(read=Graphs(frozenset({"<a:g>", "<a:h>", None})))
    named = "INSERT { ?s <a:m> ?g } WHERE { GRAPH ?g { ?s <a:p> ?o } }"
    cases = [
        (text, more, UsingGraphs(("<a:g>",)), FULL),
        (named, more, None, reader),
        (named, "INSERT DATA { GRAPH <a:h> { <a:3> <a:p> <a:3> } }", None, reader),
    ]
    for update, other, using, access in cases:
        engine, expected = Engine(), Engine()
        for one in (engine, expected):
            one.update(DATA)
        assert run(engine, RecentChanges(), update, [other], using, access)
        expected.update(other)
        expected.commit(expected.prepare(expected.request(update, using), access=access))
        assert quads(engine) == quads(expected), update


def test_what_was_found_with_other_permissions_does_not_count() -> None:
    engine = Engine()
    engine.update(DATA)
    text = "INSERT { ?s <a:m> ?g } WHERE { GRAPH ?g { ?s <a:p> ?o } }"
    assert run(engine, RecentChanges(), text, [], later=Access(read=Graphs(frozenset({None})))) == 1
    assert not engine.query("ASK { ?s <a:m> ?g }").value


def test_the_time_is_that_of_the_evaluation() -> None:
    engine = Engine()
    engine.update(DATA)
    first = "INSERT { ?s <a:at> ?t } WHERE { ?s <a:q> 1 BIND(NOW() AS ?t) }"
    text = f"{first} ; INSERT {{ <a:1> <a:then> ?t }} WHERE {{ ?s <a:at> ?t }}"
    assert run(engine, RecentChanges(), text, []) == 0
    [row] = engine.query("SELECT ?t { ?s <a:then> ?t }")
    assert row["t"].startswith('"2031-05-06T07:08:09')


def test_what_is_not_known_any_more_may_have_touched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_changes, "QUADS_MAX", 2)
    engine = Engine()
    engine.update(DATA)
    changes = RecentChanges()
    text, other = CASES["a pattern"]
    assert run(engine, changes, text, [other, "INSERT DATA { <a:z> <a:z> 1, 2 }", "CREATE GRAPH <a:i>"]) == 1
    assert engine.query("ASK { <a:2> <a:m> <a:3> }").value


def test_a_watch_is_touched_by_what_its_queries_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_changes, "QUADS_MAX", 3)
    labels, hosted = (
        "SELECT * { ?s <a:label> ?o }",
        "SELECT ?o { ?s <a:type> <a:Room> OPTIONAL { ?o ^<a:hosts>/<a:in> ?s } }",
    )
    everything, graphs = "SELECT * { ?s ?p ?o }", "SELECT ?g { GRAPH ?g { } }"
    for query, text in ((everything, "INSERT DATA { <a:s> <a:value> 1 }"), (graphs, "CREATE GRAPH <a:g>")):
        changes = RecentChanges()
        watch = changes.watch_queries((query,))
        changes.note(Engine().prepare(text))
        assert watch.touched, text
    for text, touched in (
        ("INSERT DATA { <a:s> <a:value> 1 . GRAPH <a:g> { <a:s> <a:label> 'x' } }", False),
        ("INSERT DATA { <a:s> <a:type> <a:Lamp> }", False),
        ("INSERT DATA { <a:s> <a:label> 'x' }", True),
        ("INSERT DATA { <a:s> <a:type> <a:Room> }", True),
        ("INSERT DATA { <a:s> <a:in> <a:o> }", True),
        ("DELETE DATA { <a:1> <a:hosts> <a:2> }", True),
        ("INSERT DATA { <a:s> <a:value> 1, 2, 3, 4 }", True),
    ):
        changes, engine = RecentChanges(), Engine()
        engine.update("INSERT DATA { <a:1> <a:hosts> <a:2> }")
        watch = changes.watch_queries((labels, hosted))
        changes.note(engine.prepare(text))
        assert watch.touched == touched, text
        changes.note(engine.prepare("INSERT DATA { <a:s> <a:value> 1 }"))
        assert watch.touched == touched, "it stays so"


def test_a_watch_ignores_another_object_where_only_the_subject_matters() -> None:
    replace = "DELETE {{ {0} <a:state> 1 }} INSERT {{ {0} <a:state> 2 }} WHERE {{}}"
    for text, touched in (
        (replace.format("<a:lamp>"), False),
        (replace.format("<a:two>"), False),
        ("INSERT DATA { <a:other> <a:state> 1 }", True),
        ("DELETE WHERE { <a:lamp> <a:state> ?x }", True),
        ("DELETE { <a:lamp> <a:state> 1 } INSERT { <a:other> <a:state> 1 } WHERE {}", True),
        (replace.format("<a:lamp>") + " ; INSERT DATA { <a:lamp> <a:label> 'x' }", True),
        ("DELETE { <a:lamp> <a:state> 1 } INSERT { GRAPH <a:g> { <a:lamp> <a:state> 1 } } WHERE {}", True),
    ):
        changes, engine = RecentChanges(), Engine()
        engine.update("INSERT DATA { <a:lamp> <a:state> 1 . <a:two> <a:state> 1, 3 . <a:lamp> <a:label> 'y' }")
        query = "SELECT * { { ?s <a:state> ?o } UNION { ?s <a:label> ?o } }"
        watch = changes.watch_queries((query,), ("<a:state>",))
        changes.note(engine.prepare(text))
        assert watch.touched == touched, text


def test_only_what_somebody_watches_is_kept() -> None:
    changes, engine = RecentChanges(), Engine()
    assert not changes.watched
    version = changes.watch()
    assert changes.watched
    changes.note(engine.prepare(DATA))
    assert changes.since(version)
    del version
    assert not changes.watched
    assert not changes.since(changes.watch())
    assert not changes._deltas


def test_random_queries_and_commits(amounts: Amounts) -> None:
    """What holds is what the turn would find; where a change of the result goes unnoticed, it does not."""
    held = touched = 0

    def check() -> None:
        assert min(held, touched) >= amounts.of(60), (held, touched)

    for seed in seeds(amounts.of(300), check):
        steps = case_of(seed).steps
        first = [step for step in steps if step.kind == "update" and not step.graphs]
        queries = [step.text for step in steps if step.kind == "subscribe" and not step.graphs]
        engine, changes = Engine(), RecentChanges()
        for step in first:
            for query in queries:
                held_now, touched_now = _compare(engine, changes, query, step.text)
                held, touched = held + held_now, touched + touched_now
            try:
                engine.update(step.text)
            except GatewayError:
                break


def _compare(engine: Engine, changes: RecentChanges, query: str, other: str) -> tuple[int, int]:
    """Whether the result of a query holds behind a commit, which is taken back."""
    version, around, labels = changes.watch(), engine.store.around_select, engine.new_identifier
    try:
        frames = record_work(engine, lambda: engine.store.select(query), bare=False, data=False)
        engine.store.around_select, engine.new_identifier = around, labels
        delta = engine.prepare(other)
    except GatewayError:
        return 0, 0
    finally:
        engine.store.around_select, engine.new_identifier = around, labels
    trial = Trial(frames, version, NOW)
    changes.note(delta)
    engine.commit(delta)
    try:
        found = trial.solutions(Asked(query, None, None, query), changes)
        if found is None:
            return 0, 1
        if "LIMIT" not in query.upper():  # which rows it leaves may be chance
            assert found == engine.store.select(query), (query, other)
        return 1, 0
    except GatewayError:
        return 0, 0
    finally:
        back = delta.invert()
        engine.commit(back)
