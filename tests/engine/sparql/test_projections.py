"""Columns of ``SELECT *``, and variables of AS in HAVING."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.sparql.projections import with_columns
from lamplighter.engine.sparql.requests import parse_query, parse_update, query_outline, subscribable
from lamplighter.engine.terms import Bag
from tests.support.tables import each_row

DATA = "INSERT DATA { <urn:z> <urn:p> <urn:m> . <urn:m> <urn:q> <urn:a> GRAPH <urn:g> { <urn:z> <urn:r> 1 } }"


@each_row(
    "text, columns",
    [
        ("SELECT * { ?z <urn:p> ?m . ?m <urn:q> ?a }", "z m a"),
        ("SELECT*{ ?z <urn:p> ?m . ?m <urn:q> ?a }", "z m a"),
        ("SELECT DISTINCT * { $z <urn:p> ?m OPTIONAL { ?m <urn:q> $a } }", "z m a"),
        ("SELECT REDUCED * { { ?m <urn:q> ?a } UNION { ?z <urn:p> ?b } }", "m a z b"),
        ("SELECT * { ?z ?p [ ?o ?a ] BIND(1 AS ?b) } VALUES ?a2 { 3 }", "z p o a b a2"),
        ("SELECT * { FILTER(BOUND(?a)) ?z <urn:p> ?m . ?m <urn:q> ?a }", "a z m"),
        ("SELECT * { { SELECT ?m { ?m <urn:q> ?a } } ?z <urn:p> ?m MINUS { ?z ?x ?y } }", "m z"),
        ("SELECT * { ?z <urn:p> ?m FILTER EXISTS { ?m ?q ?a } GRAPH ?g { ?z ?r ?b } }", "z m g r b"),
        ("PREFIX select: <urn:> SELECT * { ?z select:p ?m . ?a ?b ?z # ?c\n}", "z m a b"),
        ("SELECT ?m ?a ?z { ?z <urn:p> ?m . ?m <urn:q> ?a }", "m a z"),
        ("SELECT * { <urn:z> <urn:p> <urn:m> }", ""),
    ],
)
def test_columns_have_the_order_of_the_text(text: str, columns: str) -> None:
    names = tuple(columns.split())
    engine = Engine()
    subscription = engine.subscribe(text)
    engine.update(DATA)
    answer = engine.query(text).value
    assert isinstance(answer, Bag)
    assert parse_query(text).columns == answer.variables == subscription.first.variables == names
    assert parse_query(with_columns(text, names)).columns == names


def test_notifications_have_the_columns_of_the_first_result() -> None:
    engine = Engine()
    told = [engine.subscribe("SELECT * { ?z <urn:p> ?m }"), engine.subscribe("SELECT * { ?b <urn:p> ?c }")]
    notifications = {notification.spuid: notification for notification in engine.update(DATA).notifications}
    for subscription in told:
        notification = notifications[subscription.spuid]
        assert notification.added.variables == notification.removed.variables == subscription.first.variables
        assert list(notification.added) == [("<urn:z>", "<urn:m>")]


@each_row(
    "text, place",
    [
        ("SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(?n > 1)", "line 1, column 45: ?n has no value in HAVING"),
        (
            "SELECT ?s (SUM(?o) AS ?n) { ?s ?p ?o }\nGROUP BY ?s HAVING (SUM(?o) > 1) ($n < 3)",
            "line 2, column 35: $n has",
        ),
        ("SELECT ?s (SUM(?o) AS ?n) { ?s ?p ?o } GROUP BY ?s HAVING(BOUND(?n))", "in its place: SUM(?o)"),
        ("SELECT (MIN(?o + (1)) AS ?n) { ?s ?p ?o } HAVING(?n = 1)", "in its place: MIN(?o + (1))"),
        (
            "SELECT ?s (EXISTS { ?s ?x ?y } AS ?e) { ?s ?p ?o } GROUP BY ?s HAVING(?e)",
            "in its place: EXISTS { ?s ?x ?y }",
        ),
        ("SELECT ?s { { SELECT ?s (COUNT(*) AS ?n) { ?s ?p ?o } GROUP BY ?s HAVING(?n > 1) } }", "column 74"),
        ("ASK { { SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(?n > 1) } }", "column 53"),
    ],
)
def test_having_cannot_use_what_its_select_assigns(text: str, place: str) -> None:
    calls: list[Callable[[str], object]] = [Engine().query, Engine().subscribe, query_outline, subscribable]
    for call in calls:
        with pytest.raises(UnsupportedRequestError) as caught:
            call(text)
        assert place in str(caught.value)


def test_having_of_an_update_is_looked_at_too() -> None:
    text = "INSERT { <urn:a> <urn:n> ?n } WHERE { SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(?n > 1) }"
    for call in (Engine().update, parse_update):
        with pytest.raises(UnsupportedRequestError, match=r"column 83: \?n has no value in HAVING"):
            call(text)


@each_row(
    "text",
    [
        "SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(COUNT(*) > 1)",
        "SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(COUNT(*) > 1) ORDER BY ?n",
        "SELECT ?k (COUNT(*) AS ?n) { ?s ?p ?o } GROUP BY (STR(?s) AS ?k) HAVING(?k > 'a')",
        "SELECT (COUNT(*) AS ?c) { { SELECT (COUNT(*) AS ?n) { ?s ?p ?o } GROUP BY ?s } } GROUP BY ?n HAVING(?n > 1)",
        "SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(EXISTS { ?n ?x ?y })",
        "SELECT (COUNT(*) AS ?n) { { SELECT ?s { ?s ?p ?o } GROUP BY ?s HAVING(COUNT(?p) > 1) } FILTER(?s != ?n) }",
    ],
)
def test_other_conditions_are_answered(text: str) -> None:
    Engine().query(text)
