"""A text that is refused has an error that names what is wrong, and where it is."""

from __future__ import annotations

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import RequestSyntaxError
from tests.support.tables import each_row


@each_row(
    "text, place, named",
    [
        ("SELECT * { ex:a ?p ?o }", (1, 12), "PREFIX ex:"),
        ("SELECT *\n{ ?s a ex:A }", (2, 8), "PREFIX ex:"),
        ("PREFIX a: <urn:> SELECT * { a:b :c ?o }", (1, 33), "PREFIX :"),
        ("SELECT ?s ?o { ?s ?p ?o } GROUP BY ?s", None, "?o: with GROUP BY"),
        ("SELECT ?s ?p (COUNT(?o) AS ?n) { ?s ?p ?o }", None, "?s, ?p: with GROUP BY"),
        ("SELECT * { ?s ?p ?o } GROUP BY ?s", None, "SELECT * is not"),
        ("SELECT (?x AS ?s) { ?s ?p ?x }", None, "overrides an existing variable"),
        ("SELECT * { ?s ?p ?o BIND(1 AS ?s) }", None, "AS assigns"),
        ("SELECT * { _:a ?p ?o . { _:a ?q ?r } }", None, "blank node"),
        ("SELECT * { ?s ?p ?o FILTER(?o > ) }", None, "expected one of"),
    ],
)
def test_queries(text: str, place: tuple[int, int] | None, named: str) -> None:
    for ask in (Engine().query, Engine().subscribe):
        with pytest.raises(RequestSyntaxError) as caught:
            ask(text)
        assert named in str(caught.value)
        assert place is None or (caught.value.lineno, caught.value.offset) == place


@each_row(
    "text, place, named",
    [
        ("DELETE DATA { _:b <urn:p> 1 }", (1, 15), "blank node cannot be deleted"),
        ("DELETE { _:b <urn:p> 1 } WHERE {}", (1, 10), "blank node cannot be deleted"),
        ("DELETE WHERE { GRAPH <urn:g> { _:b <urn:p> 1 } }", (1, 32), "blank node cannot be deleted"),
        ("DELETE { [] <urn:p> ?o } INSERT { _:b <urn:p> 1 } WHERE { _:b <urn:p> ?o }", (1, 10), "cannot be deleted"),
        ("INSERT DATA { ?s <urn:p> 1 }", None, "Variables are not allowed in INSERT DATA"),
    ],
)
def test_updates(text: str, place: tuple[int, int] | None, named: str) -> None:
    with pytest.raises(RequestSyntaxError) as caught:
        Engine().update(text)
    assert named in str(caught.value)
    assert place is None or (caught.value.lineno, caught.value.offset) == place
