"""Small queries: answered like the store does, within a bound; whatever may cost more is left to others."""

from __future__ import annotations

from collections.abc import Iterator

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.querying import excerpts
from lamplighter.engine.querying.small_queries import SmallQueries
from tests.support.tables import each_row

P = "PREFIX : <http://x/> "
MANY = 3000
"""Quads of a hub: more than are read for one query."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A hub with many quads, as subject, as object and as graph; and lamps with few."""
    with Engine() as engine:
        hub = "".join(f":hub :has {number} . :m{number} :in :hub . " for number in range(MANY))
        graph = "".join(f":n{number} :of {number} . " for number in range(MANY))
        lamps = "".join(
            f":lamp{number} a :Lamp ; :state {number % 2} ; :power {number}.5 ; :near :lamp{number + 1} . "
            for number in range(500)
        )
        engine.update(f"{P} INSERT DATA {{ {hub} {lamps} GRAPH :hub {{ {graph} }} }}")
        engine.update(f"{P} INSERT DATA {{ :hub :name 'the hub' . :lamp1 :name 'one' GRAPH :g {{ :lamp1 :seen 1 }} }}")
        engine.update(f"{P} INSERT DATA {{ :site :describes :g }}")
        yield engine


@pytest.fixture(scope="module")
def small(engine: Engine) -> SmallQueries:
    return SmallQueries(engine.store)


def written(answer: ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples) -> bytes:
    if isinstance(answer, ox.QueryTriples):
        found = answer.serialize(format=ox.RdfFormat.N_TRIPLES)
    else:
        found = answer.serialize(format=ox.QueryResultsFormat.JSON)
    assert found is not None
    return found


@each_row(
    "text",
    [
        "SELECT ?v { :lamp7 :state ?v }",
        "SELECT * { :lamp7 ?p ?o } ORDER BY ?p",
        "SELECT ?p ?o { :lamp7 ?p ?o }",
        "SELECT ?v ?w { :lamp7 :near ?n . ?n :state ?v ; :power ?w }",
        "SELECT ?n { :lamp7 :near/:near/:near ?n }",
        "SELECT ?l { ?l :power 7.5 }",
        "SELECT ?l { ?l :near :lamp8 ; a :Lamp ; :state 1 }",
        "SELECT ?v { VALUES ?l { :lamp1 :lamp2 :nothing } ?l :state ?v }",
        "SELECT ?l ?s { ?l :power 7.5 OPTIONAL { ?l :seen ?s } OPTIONAL { ?l :near ?n . ?n :state ?s } }",
        "SELECT ?x { { :lamp7 :near ?x } UNION { ?x :near :lamp7 } }",
        "SELECT ?v { :lamp7 :near ?n . ?n :state ?v FILTER NOT EXISTS { ?n :near :lamp7 } FILTER (?v < 5 || ?v = ?n) }",
        "SELECT ?v { :lamp7 :near ?n . ?n :state ?v MINUS { ?n :power 8.5 } }",
        "SELECT (COUNT(*) AS ?c) (SUM(?v) AS ?s) { :lamp7 :near ?n . ?n :state ?v }",
        "SELECT ?v (COUNT(*) AS ?c) { :lamp7 :near ?n . ?n :state ?v } GROUP BY ?v HAVING (COUNT(*) > 0)",
        "SELECT ?w { :lamp7 :near ?n { SELECT ?n (MAX(?v) AS ?w) { ?n :power ?v ; :near :lamp9 } GROUP BY ?n } }",
        "SELECT ?v ?x { :lamp7 :near ?v { SELECT ?x { :lamp9 :near ?v . ?v :power ?x } } }",  # another ?v
        "SELECT ?x ?v { :lamp7 :near ?x { SELECT ?x { ?x :near ?v } } OPTIONAL { ?v :power 3.5 } }",
        "SELECT (STRLEN(STR(?n)) AS ?c) (:lamp7 AS ?x) { :lamp7 :near ?n BIND (NOW() > 0 AS ?z) } LIMIT 1",
        "SELECT ?g ?v { GRAPH ?g { :lamp1 :seen ?v } }",
        "SELECT ?g ?x { GRAPH ?g { :lamp1 ?p ?v } ?x :describes ?g }",  # the default graph has :lamp1 too, and no name
        "SELECT ?v FROM :g { :lamp1 :seen ?v }",
        "SELECT ?v FROM NAMED :hub { GRAPH :g { :lamp1 :seen ?v } }",
        "ASK { :lamp7 :state 1 }",
        "ASK { :lamp7 :state 2 }",
        "CONSTRUCT { ?n :neighbour :lamp7 . [] :of ?n } WHERE { :lamp7 :near ?n }",
        "CONSTRUCT WHERE { :lamp7 :near ?n }",
        "SELECT ?l { :nobody :near ?n . ?l :state ?n }",
        "SELECT ?l { ?l a :Lamp ; :near :lamp7 }",
        "SELECT ?n { :lamp1 :name ?n . FILTER (?n = 'one') }",
        "SELECT ?x { ?x ?p 'the hub' }",
    ],
)
def test_a_query_that_finds_few_quads_is_answered_as_by_the_store(
    engine: Engine, small: SmallQueries, text: str
) -> None:
    found = small.answer(P + text, None, None, 10_000)
    assert found is not None, "it was left to a process"
    expected = engine.store.native.query(P + text.replace("SELECT *", "SELECT ?p ?o"))  # the store sorts its columns
    if "[]" in text:
        assert isinstance(found, ox.QueryTriples)
        assert isinstance(expected, ox.QueryTriples)
        assert len(list(found)) == len(list(expected))
    else:
        assert written(found) == written(expected)


@each_row(
    "text",
    [
        "SELECT ?o { :hub :name ?o }",  # one row, behind thousands of quads
        "SELECT ?o { :hub :has ?o }",
        "SELECT ?s { ?s :in :hub }",
        "SELECT ?s { ?s ?p :hub }",
        "SELECT ?s { GRAPH :hub { ?s ?p ?o } }",
        "SELECT ?s { ?s a :Lamp }",
        "SELECT ?s { ?s :state ?v }",
        "SELECT ?s { ?s ?p ?o }",
        "SELECT ?s { { ?s ?p ?o } UNION { :lamp7 ?p ?o } }",
        "SELECT ?s { :lamp7 :near ?s OPTIONAL { ?a :near ?b } }",
        "SELECT ?s { :lamp7 :near ?s FILTER EXISTS { ?a :near ?b } }",
        "SELECT ?s { :lamp7 :near ?s MINUS { ?a :near ?b } }",
        "SELECT ?b { :lamp7 :near ?s . { SELECT ?b { ?a :near ?b } LIMIT 1 } }",
        "SELECT ?s { :lamp7 :near ?s . { SELECT ?s { ?s :near ?b } LIMIT 1 } }",  # which one depends on all
        "SELECT ?s { VALUES ?s { UNDEF :lamp7 } ?s :state ?v }",
        "SELECT ?s { BIND (:lamp7 AS ?s) ?s :near* ?x }",
        "SELECT ?x { :lamp7 :near* ?x }",
        "SELECT ?x { :lamp7 !:near ?x }",
        "SELECT ?x { :lamp7 :near ?x FILTER REGEX(STR(?x), '(a+)+b') }",
        "SELECT ?x { :lamp7 :near ?x } ORDER BY REPLACE(STR(?x), 'a', 'bb')",
        "SELECT (CONCAT(?x, ?x) AS ?y) { :lamp7 :near ?x }",
        "SELECT (GROUP_CONCAT(?x) AS ?y) { :lamp7 :near ?x }",
        "SELECT (:f(?x) AS ?y) { :lamp7 :near ?x }",
        "SELECT (<http://www.w3.org/2001/XMLSchema#integer>(?x) AS ?y) { :lamp7 :near ?x }",
        "SELECT (RAND() AS ?y) { :lamp7 :near ?x }",
        "SELECT ?g { GRAPH ?g { } }",
        "DESCRIBE :lamp7",
        "SELECT ?x { :lamp7 :near ?x . " + " ".join(f":lamp7 :near ?y{number} ." for number in range(20)) + "}",
        "SELECT ?x { :lamp7 :near ?x " + "FILTER (?x > 1) " * 50 + "}",
        "SELECT * { ?s (:none) (" + "?o 1 " * 17 + ") }",  # no quads, but joins to be ordered
        "SELECT ?x { :lamp7 :near ?x . " + " " * excerpts.CHARACTERS_MAX + "}",
    ],
)
def test_what_may_be_costly_is_not_answered(engine: Engine, small: SmallQueries, text: str) -> None:
    engine.store.native.query(P + text, custom_functions={ox.NamedNode("http://x/f"): lambda x: x})
    assert small.answer(P + text, None, None, 10_000) is None


@pytest.mark.parametrize("constant", [":lamp7", ":hub"])
def test_the_bound_is_that_of_the_constants_of_each_query(small: SmallQueries, constant: str) -> None:
    """Not that of its skeleton, whatever constants were cheap before."""
    for _ in range(2):
        assert (small.answer(f"{P} SELECT ?o {{ {constant} ?p ?o }}", None, None, 10_000) is None) == (
            constant == ":hub"
        )


def test_the_bound_follows_the_dataset() -> None:
    with Engine() as engine:
        small = SmallQueries(engine.store)
        text = f"{P} SELECT ?o {{ :a :p ?o }}"
        engine.update(f"{P} INSERT DATA {{ :a :p 1 }}")
        assert small.answer(text, None, None, 10_000) is not None
        engine.update(f"{P} INSERT DATA {{ {' '.join(f':a :q {number} .' for number in range(MANY))} }}")
        assert small.answer(text, None, None, 10_000) is None


@each_row("form", ["SELECT *", "ASK"])
@each_row("count", [3, 8])
def test_a_product_is_bounded_before_it_is_made(form: str, count: int) -> None:
    with Engine() as engine:
        engine.update(f"{P} INSERT DATA {{ {' '.join(f':a :p {number} .' for number in range(20))} }}")
        where = " ".join(f":a :p ?v{number} ." for number in range(count))
        small = SmallQueries(engine.store)
        assert small.answer(f"{P} {form} {{ {where} }}", None, None, 10**12) is None
        assert small.answer(f"{P} {form} {{ :a :p ?a }}", None, None, 10_000) is not None


def test_rows_above_the_limit_are_not_answered() -> None:
    with Engine() as engine:
        engine.update(f"{P} INSERT DATA {{ :a :p 1, 2, 3 }}")
        small = SmallQueries(engine.store)
        assert small.answer(f"{P} SELECT ?o {{ :a :p ?o }}", None, None, 3) is not None
        assert small.answer(f"{P} SELECT ?o {{ :a :p ?o }}", None, None, 2) is None
        template = "CONSTRUCT { ?o :p 1, 2 } WHERE { :a :p ?o }"
        assert small.answer(f"{P} {template}", None, None, 5) is None


def test_long_terms_are_not_answered() -> None:
    with Engine() as engine:
        engine.update(f"{P} INSERT DATA {{ :a :p '{'x' * 200_000}' . :b :p '{'x' * 300_000}' }}")
        small = SmallQueries(engine.store)
        assert small.answer(f"{P} SELECT ?o {{ :a :p ?o }}", None, None, 10) is not None
        assert small.answer(f"{P} SELECT ?o {{ :b :p ?o }}", None, None, 10) is None
        columns = " ".join(f"(?o AS ?o{number})" for number in range(9))
        assert small.answer(f"{P} SELECT {columns} {{ :a :p ?o }}", None, None, 10) is None


def test_expressions_over_long_terms_are_not_answered() -> None:
    """Each reads the whole text, for each solution."""
    with Engine() as engine:
        texts = " , ".join(f"'{number}{'x' * 50_000}'" for number in range(4))
        engine.update(f"{P} INSERT DATA {{ :a :p {texts} . :b :p 'x' }}")
        small = SmallQueries(engine.store)
        for subject, count, answered in ((":a", 1, True), (":b", 20, True), (":a", 20, False)):
            condition = " && ".join(["STRLEN(STR(?o)) > 0"] * count)
            text = f"{P} SELECT (1 AS ?found) {{ {subject} :p ?o FILTER({condition}) }}"
            assert (small.answer(text, None, None, 10) is not None) == answered, text


def test_a_subject_with_many_removed_quads_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store passes over them, however few are left."""
    monkeypatch.setattr(excerpts, "PASSED_OVER_MAX", 100)
    with Engine() as engine:
        small = SmallQueries(engine.store)
        engine.update(f"{P} INSERT DATA {{ :a :p 0 . :b :p 0 }}")
        for number in range(1, 102):
            assert small.answer(f"{P} SELECT ?o {{ :a :p ?o }}", None, None, 10) is not None
            engine.update(f"{P} DELETE DATA {{ :a :p {number - 1} }} ; INSERT DATA {{ :a :p {number} }}")
            engine.store.flush()
        assert small.answer(f"{P} SELECT ?o {{ :a :p ?o }}", None, None, 10) is None
        assert small.answer(f"{P} SELECT ?o {{ :b :p ?o }}", None, None, 10) is not None


def test_a_dataset_on_disk_is_not_read(tmp_path: object) -> None:
    with Engine(store_path=tmp_path) as engine:  # type: ignore[arg-type]
        engine.update(f"{P} INSERT DATA {{ :a :p 1 }}")
        assert SmallQueries(engine.store).answer(f"{P} SELECT ?o {{ :a :p ?o }}", None, None, 10) is None


@each_row("text", ["SELECT ?o { :a :p ?o", "SELECT ?o { x:a :p ?o }", "SELECT { }", "", "\ud800 SELECT"])
def test_an_invalid_text_is_left_to_others(small: SmallQueries, text: str) -> None:
    assert small.answer(P + text, None, None, 10) is None
    assert small.outline(P + text) is None


@each_row("text", ["", " ", "# a comment"])
def test_a_text_without_tokens_is_left_to_others(small: SmallQueries, text: str) -> None:
    assert small.answer(text, None, None, 10) is None


def test_an_outline_is_known_for_texts_like_an_earlier_one(engine: Engine) -> None:
    small = SmallQueries(engine.store)
    assert small.outline(f"{P} ASK {{ :lamp7 :state 1 }}") is None
    assert small.answer(f"{P} ASK {{ :lamp7 :state 1 }}", None, None, 10) is not None
    found = small.outline(f"{P} ASK {{ :lamp8 :state 1 }}")
    assert found is not None
    assert (found.form, found.unrepeatable) == ("ASK", None)
    assert small.outline(f"{P} ASK {{ :lamp8 :state ?x }}") is None


def test_the_graphs_of_the_protocol_are_the_dataset(small: SmallQueries) -> None:
    text = f"{P} SELECT ?v {{ :lamp1 :seen ?v }}"
    for default, count in (([None], 0), (["<http://x/g>"], 1), ([None, "<http://x/g>"], 1)):
        found = small.answer(text, default, [], 10)
        assert found is not None
        assert len(list(found)) == count  # type: ignore[arg-type]
    assert small.answer(text, [f"<http://x/g{number}>" for number in range(100)], [], 10) is None
