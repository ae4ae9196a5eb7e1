"""What profiles of the monitoring application use, in updates and in subscriptions (SEPA protocol, end of 4.6)."""

from __future__ import annotations

import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.terms import Bag, lexical
from tests.support.tables import each_row

PREFIXES = "PREFIX : <http://e/> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
DATA = """INSERT DATA {
    GRAPH :obs { :o1 a :Observation ; :in :hall ; :value 1 . :o2 a :Observation ; :in :hall ; :value 4 ; :label 'two' .
                 :o3 a :Observation ; :in :yard ; :value 7.5 }
    GRAPH :places { :hall :name 'Hall' } }"""


def engine() -> Engine:
    found = Engine()
    found.update(PREFIXES + DATA)
    return found


def bag_of(at: Engine, text: str) -> Bag:
    bag = at.query(PREFIXES + text).value
    assert isinstance(bag, Bag)
    return bag


def values(bag: Bag) -> list[list[str]]:
    return sorted([lexical(term) if term else "" for term in row] for row in bag)


@each_row(
    ("text", "question", "expected"),
    [
        ("WITH :obs DELETE { :o1 :value ?v } INSERT { :o1 :value 2 } WHERE { :o1 :value ?v }", ":o1 :value ?x", ["2"]),
        ("WITH :obs DELETE { ?s ?p ?o } WHERE { ?s :in :hall ; ?p ?o }", "?x :in ?p", ["http://e/o3"]),
        (
            "INSERT { GRAPH :obs { ?s :label 'new' } } "
            "WHERE { GRAPH :obs { ?s a :Observation OPTIONAL { ?s :label ?l } } FILTER(!BOUND(?l)) }",
            "?x :label 'new'",
            ["http://e/o1", "http://e/o3"],
        ),
        ("INSERT { GRAPH :obs { :all :n ?n } } WHERE { SELECT (COUNT(?s) AS ?n) { GRAPH :obs { ?s a :Observation } } }",
         ":all :n ?x", ["3"]),
        ("INSERT { GRAPH ?g { :mark :in ?g } } WHERE { GRAPH ?g { :o1 ?p ?o } }", ":mark :in ?x", ["http://e/obs"]),
        ("INSERT { GRAPH :obs { ?s :quantity [ a :Quantity ; :of ?s ] } } WHERE { GRAPH :obs { ?s :in :hall } }",
         "?q a :Quantity ; :of ?x", ["http://e/o1", "http://e/o2"]),
        ("INSERT { GRAPH :obs { ?s :q _:b . _:b :of ?s } } WHERE { GRAPH :obs { ?s :in :hall } }",
         "?x :q ?b . ?b :of ?x", ["http://e/o1", "http://e/o2"]),
        ("INSERT { GRAPH :obs { ?o :was ?l } } USING :obs USING NAMED :places "
         "WHERE { ?o :in ?p GRAPH ?g { ?p :name ?l } }",
         "?x :was 'Hall'", ["http://e/o1", "http://e/o2"]),
        ("INSERT { GRAPH :obs { ?id :for ?s } } WHERE { GRAPH :obs { ?s :in :yard } "
         "BIND(IRI(CONCAT('http://e/log/', STRUUID())) AS ?id) FILTER(STRSTARTS(STR(?id), 'http://e/log/')) }",
         "?id :for ?x", ["http://e/o3"]),
        ("INSERT { GRAPH :obs { :o1 :at ?now } } WHERE { BIND(now() AS ?now) FILTER(DATATYPE(?now) = xsd:dateTime) }",
         "?x :at ?now", ["http://e/o1"]),
    ],
)  # fmt: skip
def test_updates(text: str, question: str, expected: list[str]) -> None:
    at = engine()
    query = f"SELECT ?x {{ GRAPH :obs {{ {question} }} }}"
    told = at.subscribe(PREFIXES + query)
    before = Bag(told.first.variables, told.first.rows)
    [notification] = at.update(PREFIXES + text).notifications
    assert [row[0] for row in values(bag_of(at, query))] == expected
    assert values(before - notification.removed + notification.added) == [[value] for value in expected]


@each_row(
    ("query", "first", "removed", "added"),
    [
        ("SELECT ?o FROM :obs { ?o :in :hall }", [["o1"], ["o2"]], [], [["o9"]]),
        ("SELECT ?o ?n FROM :obs FROM :places { ?o :in ?p . ?p :name ?n }",
         [["o1", "Hall"], ["o2", "Hall"]], [], [["o9", "Hall"]]),
        ("SELECT ?o { GRAPH :obs { ?o :value ?v FILTER(?v > 3) } }", [["o2"], ["o3"]], [["o2"]], [["o9"]]),
        ("SELECT ?o ?l { GRAPH :obs { ?o :in :hall OPTIONAL { ?o :label ?l } } }",
         [["o1", ""], ["o2", "two"]], [["o1", ""], ["o2", "two"]], [["o1", "one"], ["o2", ""], ["o9", ""]]),
        ("SELECT ?o ?l ?v { GRAPH :obs { ?o :in :hall OPTIONAL { ?o :label ?l } OPTIONAL { ?o :value ?v } } }",
         [["o1", "", "1"], ["o2", "two", "4"]], [["o1", "", "1"], ["o2", "two", "4"]],
         [["o1", "one", "1"], ["o2", "", ""], ["o9", "", "9"]]),
        ("SELECT (COUNT(?o) AS ?n) { GRAPH :obs { ?o a :Observation } }", [["3"]], [["3"]], [["4"]]),
        ("SELECT ?p (MIN(?v) AS ?a) (MAX(?v) AS ?b) (AVG(?v) AS ?c) (SUM(?v) AS ?d) "
         "{ GRAPH :obs { ?o :in ?p ; :value ?v } } GROUP BY ?p",
         [["hall", "1", "4", "2.5", "5"], ["yard", "7.5", "7.5", "7.5", "7.5"]],
         [["hall", "1", "4", "2.5", "5"]], [["hall", "1", "9", "5", "10"]]),
        ("SELECT ?g ?o { GRAPH ?g { ?o :in :hall } }", [["obs", "o1"], ["obs", "o2"]], [], [["obs", "o9"]]),
        ("SELECT ?o ?v { GRAPH :obs { ?o :value ?v } } ORDER BY DESC(?v) LIMIT 1",
         [["o3", "7.5"]], [["o3", "7.5"]], [["o9", "9"]]),
    ],
)  # fmt: skip
def test_subscriptions(query: str, first: list[list[str]], removed: list[list[str]], added: list[list[str]]) -> None:
    at = engine()
    told = at.subscribe(PREFIXES + query)

    def short(bag: Bag) -> list[list[str]]:
        return sorted([value.removeprefix("http://e/") for value in row] for row in values(bag))

    assert short(told.first) == first
    change = """WITH :obs DELETE { :o2 :label ?l ; :value ?v }
        INSERT { :o1 :label 'one' . :o9 a :Observation ; :in :hall ; :value 9 } WHERE { :o2 :label ?l ; :value ?v }"""
    [notification] = at.update(PREFIXES + change).notifications
    assert (short(notification.removed), short(notification.added)) == (removed, added)


@each_row("function", ["NOW()", "STRUUID()", "UUID()", "RAND()"])
def test_what_differs_on_each_evaluation_belongs_into_updates(function: str) -> None:
    with pytest.raises(UnsupportedRequestError, match="let the update write the value"):
        engine().subscribe(PREFIXES + f"SELECT ?o ?x {{ ?o a :Observation BIND({function} AS ?x) }}")
