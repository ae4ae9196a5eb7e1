"""VALUES, FROM and USING put into texts: what the store makes of them."""

from __future__ import annotations

import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ForcedBindingError
from lamplighter.engine.sparql.clauses import parts, with_dataset, with_rows
from lamplighter.engine.terms import Bag, lexical
from tests.support.tables import each_row

ROWS = [("<a:1>", '"x"'), ("<a:2>", '"y"')]
G, H = "<http://g>", "<http://h>"


def engine() -> Engine:
    found = Engine()
    found.update(
        "INSERT DATA { <a:1> <a:p> 1 . <a:2> <a:p> 2 . <a:3> <a:p> 3 . "
        f"GRAPH {G} {{ <a:1> <a:q> 'in g' . <a:3> <a:p> 'in g' }} GRAPH {H} {{ <a:1> <a:q> 'in h' }} }}"
    )
    return found


def found(text: str, at: Engine | None = None) -> list[str]:
    """The values of a query's result, sorted."""
    bag = (at or engine()).query(text).value
    assert isinstance(bag, Bag)
    return sorted(" ".join(lexical(term) for term in row if term) for row in bag)


@each_row(
    ("text", "expected"),
    [
        ("SELECT ?s ?v { ?s <a:p> ?v }", ["a:1 1", "a:2 2"]),
        ("SELECT ?v WHERE { ?s <a:p> ?v } ORDER BY ?v", ["1", "2"]),
        ("SELECT (COUNT(*) AS ?n) WHERE { ?s <a:p> ?v }", ["2"]),
        ("SELECT ?s (EXISTS { ?s <a:p> 2 } AS ?e) { ?s <a:p> ?v }", ["a:1 false", "a:2 true"]),
        ("SELECT ?x { ?x <a:p> 3 }", ["a:3"]),  # it has none of the variables
        ("PREFIX : <a:> SELECT ?v FROM <http://g> { ?s :q ?v }", ["in g"]),
        ("SELECT ?v { { SELECT ?s ?v { ?s <a:p> ?v } } }", ["1", "2"]),
    ],
)
def test_rows_are_joined_with_the_where(text: str, expected: list[str]) -> None:
    assert found(with_rows(text, ["s"], [("<a:1>",), ("<a:2>",)])) == expected


def test_rows_may_leave_a_variable_undefined() -> None:
    text = with_rows("SELECT ?s ?v { ?s <a:p> ?v }", ["s", "v"], [("<a:1>", None), (None, "2")])
    assert found(text) == ["a:1 1", "a:2 2"]


@each_row(
    ("text", "left"),
    [
        ("DELETE { ?s ?p ?v } WHERE { ?s ?p ?v }", ["a:3 3"]),
        ("DELETE WHERE { ?s ?p ?v }", ["a:3 3"]),
        ("DELETE { ?s <a:p> ?v } INSERT { ?s <a:p> ?t } WHERE { ?s <a:p> ?v }", ["a:1 x", "a:2 y", "a:3 3"]),
        ("DELETE WHERE { ?s <a:p> ?v } ; INSERT DATA { ?s <a:p> ?t }", ["a:1 x", "a:2 y", "a:3 3"]),
        ("INSERT DATA { ?s <a:p> ?t } # the end", ["a:1 1", "a:1 x", "a:2 2", "a:2 y", "a:3 3"]),
        ("CLEAR DEFAULT", []),
        (
            "PREFIX a: <a:> DELETE DATA { a:3 a:p 3 } ; PREFIX b: <a:> INSERT DATA { ?s b:p '{ ?s }' }",
            ["a:1 1", "a:1 { ?s }", "a:2 2", "a:2 { ?s }"],
        ),
    ],
)
def test_rows_in_updates(text: str, left: list[str]) -> None:
    at = engine()
    at.update(with_rows(text, ["s", "t"], ROWS))
    assert found("SELECT ?s ?v { ?s <a:p> ?v }", at) == left


def test_without_rows_nothing_is_found_and_nothing_happens() -> None:
    assert found(with_rows("SELECT ?s { ?s <a:p> ?v }", ["s"], [])) == []
    assert not engine().update(with_rows("DELETE { ?s ?p ?o } WHERE { ?s ?p ?o }", ["s"], [])).removed
    assert with_rows("INSERT DATA { ?s <a:p> 9 }", ["s"], []) == ""


@pytest.mark.parametrize("text", ["CONSTRUCT WHERE { ?s ?p ?o }", "DESCRIBE ?s"])
def test_a_query_that_cannot_hold_rows_is_refused(text: str) -> None:
    with pytest.raises(ForcedBindingError, match=r"write WHERE \{"):
        with_rows(text, ["s"], [("<a:1>",)])


@each_row(
    ("text", "default", "named", "expected"),
    [
        ("SELECT ?v { <a:1> ?p ?v }", [], [], ["1"]),
        ("SELECT ?v { <a:1> ?p ?v }", [G], [], ["in g"]),
        ("SELECT ?v WHERE { <a:1> ?p ?v }", [G, H], [], ["in g", "in h"]),
        ("SELECT ?v { GRAPH ?g { <a:1> ?p ?v } }", [], [H], ["in h"]),
        ("SELECT ?v { <a:1> ?p ?v }", [], [H], []),
        ("SELECT ?v FROM <http://h> { <a:1> ?p ?v }", [G], [], ["in h"]),
        ("SELECT ?v { { SELECT ?v WHERE { <a:1> ?p ?v } } }", [G], [], ["in g"]),
    ],
)
def test_graphs_of_a_query(text: str, default: list[str], named: list[str], expected: list[str]) -> None:
    assert found(with_dataset(text, default, named)) == expected


def test_graphs_of_the_other_forms() -> None:
    at = engine()
    assert at.query(with_dataset("ASK { <a:1> <a:q> 'in h' }", [H], [])).to_json()["boolean"]
    assert not at.query(with_dataset("ASK { <a:1> <a:q> 'in h' }", [G], [])).to_json()["boolean"]
    for text in ("CONSTRUCT WHERE { ?s <a:p> ?o }", "CONSTRUCT { ?s <a:p> ?o } { ?s <a:p> ?o }", "DESCRIBE <a:3>"):
        assert "FROM <http://g>" in with_dataset(text, [G], [])
        at.query(with_dataset(text, [G], []))


@each_row(
    ("text", "graphs", "left"),
    [
        ("INSERT { ?s <a:r> ?v } WHERE { ?s <a:q> ?v }", [G], ["a:1 in g"]),
        ("INSERT { ?s <a:r> ?v } WHERE { ?s <a:q> ?v }", [G, H], ["a:1 in g", "a:1 in h"]),
        ("WITH <http://h> INSERT { GRAPH <http://x> { ?s <a:r> ?v } } WHERE { ?s <a:q> ?v }", [G], []),
        ("INSERT { ?s <a:r> ?v } USING <http://h> WHERE { ?s <a:q> ?v }", [G], ["a:1 in h"]),
        ("INSERT DATA { <a:9> <a:r> 9 } ; DELETE WHERE { <a:9> <a:r> ?v }", [G], ["a:9 9"]),
        (
            "INSERT DATA { GRAPH <http://g> { <a:9> <a:r> 9 } } ; INSERT { ?s <a:r> 7 } WHERE { ?s <a:r> 9 }",
            [G],
            ["a:9 7"],
        ),
    ],
)
def test_graphs_of_an_update(text: str, graphs: list[str], left: list[str]) -> None:
    at = engine()
    at.update(with_dataset(text, graphs, []))
    assert found("SELECT ?s ?v { ?s <a:r> ?v }", at) == left


def test_parts_of_texts_that_are_no_sparql() -> None:
    for text in ("", ";", ";;", "}", "{", "PREFIX", "PREFIX a: <b:>", "DELETE", "INSERT {", "x ; PREFIX"):
        parts(text)
        with_dataset(text, [G], [H])
        with_rows(text, ["s"], [("<a:1>",)])
