"""Solution modifiers and aggregates of queries in batch have the answers of Oxigraph."""

from typing import TYPE_CHECKING

import pyoxigraph as ox
import pytest

from lamplighter.cloud_sync.fleet.sparql import csma
from lamplighter.cloud_sync.fleet.sparql.modified import answer
from lamplighter.cloud_sync.fleet.sparql.modifiers import batch_query
from lamplighter.engine.errors import GatewayError, RequestSyntaxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

XSD = "http://www.w3.org/2001/XMLSchema#"
VALUES = {
    "whole": ("3", "10", "-2", "3"),
    "exact": ("1.50", "2.25", "7"),
    "rough": ("1.5e0", "2", "0.25"),
    "none": (),
    "word": ('"b"', '"a"', '"ä"'),
    "mixed": ('"b"', "2", "<urn:x>", f'"2026-01-02T00:00:00Z"^^<{XSD}dateTime>', "1.5"),
    "time": tuple(f'"2026-01-0{day}T0{hour}:00:00Z"^^<{XSD}dateTime>' for day, hour in ((2, 1), (1, 5))),
}
DATA = "".join(f"<urn:{kind}> a <urn:Kind> ." for kind in VALUES) + "".join(
    f"<urn:{kind}/{number}> <urn:of> <urn:{kind}> ; <urn:v> {value} .\n"
    for kind, values in VALUES.items()
    for number, value in enumerate(values)
)
EACH = "{ ?k a <urn:Kind> OPTIONAL { ?x <urn:of> ?k ; <urn:v> ?v } }"
SURE = "{ ?x <urn:of> ?k ; <urn:v> ?v }"


def _with(where: str, condition: str) -> str:
    return f"{where[:-1]} FILTER({condition}) }}"


NUMBERS = _with(SURE, "?k IN (<urn:whole>, <urn:exact>, <urn:rough>)")
LIKE = _with(SURE, "?k != <urn:mixed>")

IN_ORDER = [
    f"SELECT ?v ?x {NUMBERS} ORDER BY DESC(?v) ?x LIMIT 5 OFFSET 3",
    f"SELECT DISTINCT ?v {_with(EACH, '?k IN (<urn:whole>, <urn:none>)')} ORDER BY ?v LIMIT 9",
    f"SELECT ?v {_with(SURE, '?k = <urn:time>')} ORDER BY ASC(?v)",
    f"SELECT ?k (COUNT(*) AS ?n) (COUNT(?v) AS ?m) (COUNT(DISTINCT ?v) AS ?d) {EACH} GROUP BY ?k ORDER BY ?k",
    f"SELECT ?k (SUM(?v) AS ?sum) (AVG(?v) AS ?mean) {SURE} GROUP BY ?k ORDER BY ?k",
    f"SELECT ?k (MIN(?v) AS ?low) (MAX(?v) AS ?high) {LIKE} GROUP BY ?k ORDER BY ?k",
    "SELECT (SUM(?v) AS ?sum) (AVG(?v) AS ?mean) (MIN(?v) AS ?low) (COUNT(*) AS ?n) { ?x <urn:none> ?v }",
]


def test_answers_are_those_of_oxigraph(spark: "SparkSession") -> None:
    store = ox.Store()
    store.load(DATA.encode(), ox.RdfFormat.TURTLE)
    quads = spark.createDataFrame(
        [(str(quad.subject), str(quad.predicate), str(quad.object), None) for quad in store],
        "s STRING, p STRING, o STRING, graph STRING",
    ).cache()
    wrong = []
    for text in IN_ORDER:
        asked = batch_query(text)
        found = [tuple(row.row) for row in answer(csma.solutions(quads, asked.query, ()), asked).collect()]
        expected = [
            tuple(None if solution[name] is None else str(solution[name]) for name in asked.variables)
            for solution in store.query(text)
        ]
        if found != expected:
            print(text, found, expected, sep="\n")
            wrong.append(text)
    assert not wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT ?v { ?x ?p ?v }\nORDER BY ?x", "line 2, column 10: ORDER BY ?x, which SELECT does not have"),
        ("SELECT ?v { ?x ?p ?v }\nORDER BY ?v STR(?v)", "line 2, column 1: ORDER is not available in fleet queries"),
        ("SELECT (SUM(?v + 1) AS ?n) { ?x ?p ?v }", "column 9: SUM is not available in fleet queries"),
        ("SELECT ?p { ?x ?p ?v }\nGROUP BY ?p HAVING(COUNT(*) > 1)", "line 2, column 1: GROUP is not available"),
        ("SELECT (SAMPLE(?v) AS ?n) { ?x ?p ?v }", "column 9: SAMPLE is not available"),
        ("SELECT * { ?x ?p ?v { SELECT ?v { ?v ?q ?w } LIMIT 1 } }", "column 23: a SELECT inside of the query"),
        ("SELECT REDUCED ?v { ?x ?p ?v }", "column 8: REDUCED is not available"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(GatewayError) as caught:
        batch_query(text)
    assert said in str(caught.value)


def test_a_fault_is_that_of_the_whole_text() -> None:
    with pytest.raises(RequestSyntaxError):
        batch_query("SELECT ?x { ?x ?p ?v } GROUP BY ?p")
