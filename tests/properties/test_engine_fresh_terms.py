"""What differs from one evaluation to the next: new blank nodes, NOW, RAND, UUID, STRUUID, BNODE.

The oracle makes other blank nodes than the engine, so datasets are compared up to isomorphism. For the functions there
is no oracle: they are evaluated once, so what is reported, what is stored and what the notifications carry are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyoxigraph as ox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine import Commit, Engine
from lamplighter.engine.errors import GatewayError, UnsupportedRequestError
from lamplighter.engine.terms import Bag, is_blank, lexical
from tests.support.amounts import AMOUNTS
from tests.support.oracle import REFUSALS, Oracle, canonical, parsed_dump, respelled_quads, respelled_rows

PREFIX = "PREFIX : <http://example.org/> "
EVERYTHING = "SELECT ?s ?p ?o { ?s ?p ?o }"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def dumped(engine: Engine) -> list[ox.Quad]:
    return list(ox.parse(engine.dump("application/n-quads"), ox.RdfFormat.N_QUADS))


def isomorphic(engine: Engine, oracle: Oracle) -> bool:
    return canonical(dumped(engine)) == oracle.canonical_quads()


def updated(engine: Engine, *texts: str) -> Commit:
    """Runs the texts on the engine and on a fresh oracle, which must agree; gives the last commit."""
    oracle = Oracle()
    for text in texts:
        oracle.update(PREFIX + text)
        commit = engine.update(PREFIX + text)
        assert isomorphic(engine, oracle), text
    return commit


def objects(commit: Commit, predicate: str) -> list[str]:
    return [quad.o for quad in commit.added if quad.p == f"<http://example.org/{predicate}>"]


# -- blank nodes ------------------------------------------------------------------------------------------------------


def test_a_label_in_data_is_one_new_node_in_each_request(engine: Engine) -> None:
    text = "INSERT DATA { _:n :p 1 . _:n :q 2 . GRAPH :g { _:n :p 3 } [] :p [ :q ( 1 _:n ) ] }"
    commit = updated(engine, text, text)
    labels = {quad.s for quad in commit.added if quad.o.startswith('"3"')}
    assert len(labels) == 1
    assert Counter(quad.s for quad in commit.added)[labels.pop()] == 3
    assert len(parsed_dump(engine.dump("application/n-quads"))) == 2 * len(commit.added)


def test_a_template_makes_new_nodes_for_each_solution(engine: Engine) -> None:
    commit = updated(
        engine,
        "INSERT DATA { :a :p 1 , 2 . :b :p 3 }",
        "INSERT { ?x :has _:m . _:m :value ?v . GRAPH ?x { _:m :of [] } } WHERE { ?x :p ?v }",
    )
    measurements = objects(commit, "has")
    assert len(set(measurements)) == len(measurements) == 3
    assert all(is_blank(node) for node in measurements)
    assert Counter(quad.s for quad in commit.added if is_blank(quad.s)) == Counter(dict.fromkeys(measurements, 2))


def test_a_template_without_variables_makes_a_node_for_each_solution_too(engine: Engine) -> None:
    commit = updated(engine, "INSERT DATA { :a :p 1 , 2 }", "INSERT { _:m :made true } WHERE { ?x :p ?v }")
    assert len(commit.added) == 2


def test_operations_of_one_request_do_not_share_new_nodes(engine: Engine) -> None:
    commit = updated(
        engine,
        "INSERT DATA { :a :p 1 }",
        "INSERT { _:m :made 1 } WHERE { ?x :p ?v } ; INSERT { _:o :made 2 } WHERE { ?x :p ?v } ; "
        "INSERT { ?m :seen true } WHERE { ?m :made ?v }",
    )
    assert len({quad.s for quad in commit.added}) == 2
    assert len(commit.added) == 4


def test_a_label_used_in_two_blocks_of_a_request_is_refused(engine: Engine) -> None:
    text = PREFIX + "INSERT DATA { _:n :p 1 } ; INSERT DATA { _:n :p 2 }"
    with pytest.raises(REFUSALS):
        Oracle().update(text)
    with pytest.raises(GatewayError) as caught:
        engine.update(text)
    assert isinstance(caught.value, SyntaxError)
    assert engine.dump("application/n-quads") == b""


@pytest.mark.parametrize(
    "form", ["DELETE DATA { _:n :p 1 }", "DELETE { _:n :p 1 } WHERE { }", "DELETE WHERE { [] :p 1 }"]
)
def test_a_blank_node_cannot_be_deleted_by_label(engine: Engine, form: str) -> None:
    updated(engine, "INSERT DATA { _:n :p 1 }")
    with pytest.raises(REFUSALS):
        Oracle().update(PREFIX + form)
    with pytest.raises(SyntaxError):
        engine.update(PREFIX + form)
    assert len(parsed_dump(engine.dump("application/n-quads"))) == 1


def test_a_blank_node_in_where_stands_for_any_term(engine: Engine) -> None:
    commit = updated(
        engine, "INSERT DATA { :a :p :b . _:n :p :c }", "DELETE { ?x :p ?y } WHERE { _:any :p ?y . ?x :p ?y }"
    )
    assert len(commit.removed) == 2


def test_labels_stay_from_one_notification_to_the_next(engine: Engine) -> None:
    subscription = engine.subscribe(f"{PREFIX} SELECT ?m ?v {{ ?m :value ?v }}")
    texts = (
        "INSERT DATA { _:m :value 1 }",
        "INSERT { ?m :value 2 } WHERE { ?m :value 1 }",
        "COPY DEFAULT TO :g",
        "MOVE :g TO DEFAULT",
        "DELETE { ?m :value 1 } INSERT { ?m :value 3 } WHERE { ?m :value 1 }",
        "DELETE WHERE { ?m :value ?v }",
    )
    notifications = [n for text in texts for n in engine.update(PREFIX + text).notifications]
    assert [n.spuid for n in notifications] == [subscription.spuid] * 4
    labels = {row[0] for n in notifications for row in (*n.added.rows, *n.removed.rows)}
    assert len(labels) == 1
    state = subscription.first
    for n in notifications:
        assert not n.removed - state, "removed what was not there"
        state = state - n.removed + n.added
    assert len(state) == 0


def test_labels_are_the_same_in_delta_notification_query_and_dump(engine: Engine) -> None:
    engine.subscribe(EVERYTHING)
    engine.update(f"{PREFIX} INSERT DATA {{ :x :p _:other }}")
    commit = engine.update(f"{PREFIX} INSERT DATA {{ _:m :value 1 ; :next [ :value 2 ] }}")
    triples = {quad[:3] for quad in commit.added}
    assert {row for n in commit.notifications for row in n.added.rows} == triples
    assert triples < set(Bag.from_json(engine.query(EVERYTHING).to_json()).rows)
    assert respelled_quads(commit.added) < parsed_dump(engine.dump("application/n-quads"))


def test_graph_operations_keep_nodes_apart_and_together(engine: Engine) -> None:
    commit = updated(
        engine,
        "INSERT DATA { _:a :p _:b . GRAPH :g { _:a :q _:c } GRAPH :h { _:a :q 1 } }",
        "ADD :g TO :h",
        "COPY DEFAULT TO :k",
        "MOVE :h TO DEFAULT",
    )
    before = {quad.s for quad in commit.removed}
    assert {quad.s for quad in commit.added} <= before


def test_labels_of_a_document_are_new_nodes(engine: Engine) -> None:
    document = b"_:a <http://example.org/p> _:b ."
    oracle = Oracle()
    for _ in range(2):
        oracle.load(document, "text/turtle")
        engine.load(document, media_type="text/turtle")
        assert isomorphic(engine, oracle)
    assert len(parsed_dump(engine.dump("application/n-quads"))) == 2


# What may follow on a dataset with blank nodes; each keeps the number of quads small, canonicalisation is costly.
OPERATIONS = (
    "INSERT DATA { _:a :p _:b . _:b :q 1 }",
    "INSERT DATA { :x :p _:a ; :q _:a . GRAPH :g { _:a :p [] } }",
    "INSERT { ?a :r _:n } WHERE { ?a :p ?b }",
    "INSERT { GRAPH :g { ?a :p _:n } _:n :q ?b } WHERE { ?a :p ?b }",
    "INSERT { ?a :q ?n } WHERE { ?a :p ?b BIND ( BNODE() AS ?n ) }",
    "INSERT { ?a :q ?n . ?n :r ?m } WHERE { ?a :p ?b BIND ( BNODE('k') AS ?n ) BIND ( BNODE('k') AS ?m ) }",
    "DELETE { ?a :p ?b } INSERT { ?b :p ?a } WHERE { ?a :p ?b FILTER ( isBLANK( ?b ) ) }",
    "DELETE { ?a ?p ?b } WHERE { ?a ?p ?b FILTER ( isBLANK( ?a ) ) }",
    "DELETE WHERE { GRAPH ?g { ?a :p ?b } }",
    "DELETE { ?a :q ?v } INSERT { ?a :q 2 , [] } WHERE { ?a :q ?v FILTER ( ?v = 1 ) }",
    "INSERT { ?a :p _:n } WHERE { GRAPH :g { ?a :p ?b } } ; DELETE { ?a :p ?b } WHERE { ?a :p ?b . ?a :q ?c }",
    "COPY :g TO DEFAULT",
    "ADD DEFAULT TO :g",
    "CLEAR DEFAULT",
)


@settings(max_examples=AMOUNTS.of(150))
@given(st.lists(st.sampled_from(OPERATIONS), min_size=2, max_size=5), st.integers(0, 2))
def test_the_dataset_stays_isomorphic_to_the_oracles(texts: list[str], place: int) -> None:
    oracle = Oracle()
    with Engine() as engine:
        subscription, state = None, Bag(("s", "p", "o"))
        for number, text in enumerate(texts):
            if number == place:
                subscription = engine.subscribe(EVERYTHING)
                state = subscription.first
            oracle.update(PREFIX + text)
            before = parsed_dump(engine.dump("application/n-quads"))
            commit = engine.update(PREFIX + text)
            after = parsed_dump(engine.dump("application/n-quads"))
            assert respelled_quads(commit.added) == after - before
            assert respelled_quads(commit.removed) == before - after
            if sum(after.values()) > 24:
                break  # too many nodes that look alike
            assert isomorphic(engine, oracle)
            for notification in commit.notifications:
                assert not notification.removed - state
                state = state - notification.removed + notification.added
            if subscription is not None:
                triples = Counter((s, p, o) for s, p, o, g in after if g is None)
                assert respelled_rows(state.rows) == triples


# -- NOW, RAND, UUID, STRUUID, BNODE ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    ["NOW()", "RAND()", "UUID()", "STRUUID()", "BNODE()", "STR( NOW() )", "1 + rand()", "now ( )", "BNODE('x')"],
)
def test_a_function_is_evaluated_once(engine: Engine, expression: str) -> None:
    """Once for a solution, however often the template uses it, and for delta, store and notification alike."""
    engine.update(f"{PREFIX} INSERT DATA {{ :a :p 1 . :b :p 2 }}")
    subscriptions = [
        engine.subscribe(f"{PREFIX} SELECT ?x ?t {{ ?x :at ?t }}"),
        engine.subscribe(f"{PREFIX} SELECT ?x ?t {{ ?x :too ?t }}"),
    ]
    commit = engine.update(
        f"{PREFIX} INSERT {{ ?x :at ?t ; :too ?t . GRAPH :g {{ ?x :at ?t }} }} "
        f"WHERE {{ ?x :p ?v BIND ( {expression} AS ?t ) }}"
    )
    by_subject: dict[str, set[str]] = {}
    for quad in commit.added:
        by_subject.setdefault(quad.s, set()).add(quad.o)
    assert len(commit.added) == 6
    assert len(by_subject) == 2
    assert all(len(values) == 1 for values in by_subject.values()), by_subject
    expected = {(subject, next(iter(values))) for subject, values in by_subject.items()}
    assert [n.spuid for n in commit.notifications] == [s.spuid for s in subscriptions]
    for notification in commit.notifications:
        assert set(notification.added.rows) == expected
        assert len(notification.removed) == 0
    assert respelled_quads(commit.added) < parsed_dump(engine.dump("application/n-quads"))
    assert set(Bag.from_json(engine.query(f"{PREFIX} SELECT ?x ?t {{ ?x :at ?t }}").to_json()).rows) == expected


def test_now_is_one_instant_for_all_solutions_and_operations(engine: Engine) -> None:
    engine.update(f"{PREFIX} INSERT DATA {{ :a :p 1 . :b :p 2 }}")
    commit = engine.update(
        f"{PREFIX} INSERT {{ ?x :at ?t }} WHERE {{ ?x :p ?v BIND ( NOW() AS ?t ) }} ; "
        "INSERT { ?x :later ?t } WHERE { ?x :p ?v BIND ( NOW() AS ?t ) }"
    )
    assert len(commit.added) == 4
    (instant,) = {quad.o for quad in commit.added}
    assert instant.endswith("^^<http://www.w3.org/2001/XMLSchema#dateTime>")


@pytest.mark.parametrize("expression", ["RAND()", "UUID()", "STRUUID()", "BNODE()"])
def test_other_functions_differ_between_solutions(engine: Engine, expression: str) -> None:
    engine.update(f"{PREFIX} INSERT DATA {{ :a :p 1 . :b :p 2 }}")
    commit = engine.update(f"{PREFIX} INSERT {{ ?x :at ?t }} WHERE {{ ?x :p ?v BIND ( {expression} AS ?t ) }}")
    assert len({quad.o for quad in commit.added}) == 2


def test_a_later_operation_sees_what_an_earlier_one_drew(engine: Engine) -> None:
    commit = engine.update(
        f"{PREFIX} INSERT {{ :a :id ?u ; :draw ?r }} WHERE {{ BIND ( UUID() AS ?u ) BIND ( RAND() AS ?r ) }} ; "
        "INSERT { ?u :of ?x ; :draw ?r } WHERE { ?x :id ?u ; :draw ?r } ; "
        "DELETE { ?x :draw ?r } WHERE { :a :draw ?r . ?x :id ?u }"
    )
    (identifier,) = objects(commit, "id")
    assert identifier.startswith("<urn:uuid:")
    (draw,) = objects(commit, "draw")
    assert 0 <= float(lexical(draw)) < 1
    assert {quad.s for quad in commit.added} == {"<http://example.org/a>", identifier}


def test_deleting_by_a_drawn_value_deletes_what_was_drawn_before(engine: Engine) -> None:
    engine.update(f"{PREFIX} INSERT {{ :a :at ?t }} WHERE {{ BIND ( NOW() AS ?t ) }}")
    commit = engine.update(
        f"{PREFIX} DELETE {{ :a :at ?old }} INSERT {{ :a :at ?new }} WHERE {{ :a :at ?old BIND ( UUID() AS ?new ) }}"
    )
    assert (len(commit.added), len(commit.removed)) == (1, 1)
    assert len(parsed_dump(engine.dump("application/n-quads"))) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "{ ?x :p ?y BIND ( RAND() AS ?r ) }",
        "{ ?x :p ?y FILTER ( RAND() < 0.5 ) }",
        "{ ?x :p ?y BIND ( UUID() AS ?r ) }",
        "{ ?x :p ?y BIND ( struuid ( ) AS ?r ) }",
        "{ ?x :p ?y BIND ( BNODE() AS ?r ) }",
        "{ ?x :p ?y SERVICE <http://127.0.0.1:9/> { ?y :p ?r } }",
        "{ ?x :p ?y SERVICE SILENT <http://127.0.0.1:9/> { ?y :p ?r } }",
    ],
)
def test_a_subscription_that_could_not_be_kept_true_is_refused(engine: Engine, pattern: str) -> None:
    with pytest.raises(UnsupportedRequestError):
        engine.subscribe(f"{PREFIX} SELECT * {pattern}")
    assert engine.update(f"{PREFIX} INSERT DATA {{ :a :p :b }}").notifications == ()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ?now ?rand { ?now :RAND ?rand }",
        "SELECT * { ?x :p 'RAND() NOW() SERVICE' } # UUID()",
        "SELECT * { ?x :p <http://example.org/UUID()> }",
    ],
)
def test_a_name_that_looks_like_a_function_is_only_a_name(engine: Engine, text: str) -> None:
    subscription: Any = engine.subscribe(PREFIX + text)
    assert len(subscription.first) == 0
