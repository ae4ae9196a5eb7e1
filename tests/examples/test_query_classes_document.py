"""docs/query-classes.md says what is so: each class and reason is that of a query, and each cure has another class."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from lamplighter.engine import Engine
from lamplighter.engine.client import EngineClient
from tests.support.commands import command
from tests.support.places import ROOT
from tests.support.running_gateway import running_gateway
from tests.support.tables import each_row

DOCUMENT = (ROOT / "docs" / "query-classes.md").read_text()
[CONSOLE] = re.findall(r"```console\n(.*?)```", DOCUMENT, re.S)
PREFIXES = "PREFIX ex: <http://example.org/> PREFIX geof: <http://www.opengis.net/def/function/geosparql/> "
MANY = " . ".join(f"?x ex:p{number} ?v{number}" for number in range(33))
TRIPLE = "<<( ex:a ex:b ex:c )>>"

REASONS = {
    "LIMIT or OFFSET without ORDER BY": ("{ ?x ex:a ?y } LIMIT 5", "{ ?x ex:a ?y } ORDER BY ?y LIMIT 5"),
    "OFFSET without LIMIT": (
        "{ ?x ex:a ?y } ORDER BY ?y OFFSET 3",
        "{ ?x ex:a ?y } ORDER BY ?y OFFSET 3 LIMIT 9",
    ),
    "LIMIT and OFFSET beyond row 10000": (
        "{ ?x ex:a ?y } ORDER BY ?y LIMIT 10001",
        "{ ?x ex:a ?y } ORDER BY ?y LIMIT 10000",
    ),
    "DISTINCT, ordered by more than the columns of the result": (
        "SELECT DISTINCT ?x { ?x ex:a ?y } ORDER BY ?y LIMIT 3",
        "SELECT DISTINCT ?x ?y { ?x ex:a ?y } ORDER BY ?y LIMIT 3",
    ),
    "LIMIT, OFFSET or REDUCED in a sub-select": (
        "{ SELECT ?x { ?x ex:a ?y } ORDER BY ?y LIMIT 3 }",
        "{ SELECT * { ?x ex:a ?y } } ORDER BY ?y LIMIT 3",
    ),
    "SAMPLE, whose value depends on the order of the solutions": (
        "SELECT (SAMPLE(?x) AS ?s) { ?x ex:a ?y }",
        "SELECT (MIN(?x) AS ?s) { ?x ex:a ?y }",
    ),
    "a path that repeats a sequence, or that is negated": (
        "{ ?x !ex:in ?y }",
        "{ ?x ?p ?y FILTER(?p != ex:in) }",
    ),
    "an OPTIONAL that is not well-designed": (
        "{ ?x ex:a ?y . { ?z ex:b ?w OPTIONAL { ?z ex:c ?x } } }",
        "{ ?x ex:a ?y . ?z ex:b ?w OPTIONAL { ?z ex:c ?x } }",
    ),
    "GRAPH around more than triple patterns": (
        "{ GRAPH ?g { ?x ex:a ?y { SELECT ?x { ?x ex:b ?z } } } }",
        "{ GRAPH ?g { ?x ex:a ?y } { SELECT ?g ?x { GRAPH ?g { ?x ex:b ?z } } } }",
    ),
    "a dataset of chosen graphs with GRAPH, or with named ones": (
        "SELECT ?x FROM NAMED ex:g { GRAPH ex:g { ?x ex:a ?y } }",
        "{ GRAPH ex:g { ?x ex:a ?y } }",
    ),
    "an assigned variable that is joined on": (
        "{ ?x ex:a ?y BIND(?y + 1 AS ?k) ?z ex:b ?k }",
        "{ ?x ex:a ?y . ?z ex:b ?k FILTER(?k = ?y + 1) }",
    ),
    "a function that is not SPARQL's own": ("{ ?x ex:a ?y FILTER(geof:sfWithin(?y, ?y)) }", "{ ?x ex:within ?y }"),
    "EXISTS with a grouping in it": (
        "{ ?x ex:a ?y FILTER EXISTS { SELECT ?x (COUNT(*) AS ?n) { ?x ex:b ?z } GROUP BY ?x } }",
        "{ ?x ex:a ?y { SELECT ?x (COUNT(*) AS ?n) { ?x ex:b ?z } GROUP BY ?x } }",
    ),
    "more than 32 triple patterns": (f"{{ {MANY} }}", f"{{ {MANY.partition(' . ')[2]} }}"),
    "syntax that only the store knows": (
        f"{{ ?x ex:a ?y FILTER(?y = {TRIPLE}) }}",
        "{ ?x ex:a ?y FILTER(SUBJECT(?y) = ex:a && PREDICATE(?y) = ex:b && OBJECT(?y) = ex:c) }",
    ),
}
"""reason -> a query that has it, and a query as the page says to write instead."""

CLASSES = {
    "telescoped": ["{ ?x ex:a/ex:b ?y BIND(?y AS ?z) FILTER(?z > 1) }", "{ ?x (ex:a|^ex:b)* ?y . ?y a ex:B }"],
    "seeded": [
        "{ ?x ex:a ?y OPTIONAL { ?x ex:b ?z } MINUS { ?x ex:c ?w } }",
        "SELECT ?y (COUNT(?x) AS ?n) { ?x ex:a ?y } GROUP BY ?y",
        "SELECT DISTINCT ?x { ?x ex:a ?y FILTER NOT EXISTS { ?x ex:b ?y } }",
        "{ ?x ex:a|ex:b ?y }",
    ],
    "counted": ["SELECT (SUM(?y) AS ?n) { ?x ex:a ?y }", "ASK { ?x ex:a ?y }"],
    "ordered": ["{ ?x ex:a ?y } ORDER BY ?y LIMIT 5"],
}


def subscribed(query: str) -> tuple[str, str]:
    """Class and reason of a query; a text that begins with a group is that of `SELECT *`."""
    text = PREFIXES + (f"SELECT * {query}" if query.startswith("{") else query)
    with Engine() as engine:
        subscription = engine.subscribe(text)
        return subscription.spu_class, engine.describe(subscription.spuid).reason


@each_row(("reason", "bad", "good"), [(reason, *queries) for reason, queries in REASONS.items()])
def test_a_reason_is_that_of_a_query_and_its_cure_has_none(reason: str, bad: str, good: str) -> None:
    assert subscribed(bad) == ("re-evaluated", reason)
    assert subscribed(good)[0] != "re-evaluated", good


def test_the_tables_have_these_reasons_and_classes() -> None:
    first = re.findall(r"^\| `(.+?)` \|", DOCUMENT, re.M)
    assert first == [*CLASSES, "re-evaluated", *REASONS]


@each_row(("name", "queries"), list(CLASSES.items()))
def test_queries_have_the_class_of_their_row(name: str, queries: list[str]) -> None:
    assert {query: subscribed(query)[0] for query in queries} == dict.fromkeys(queries, name)


async def test_the_command_prints_the_columns_that_are_shown(tmp_path: Path) -> None:
    shown = CONSOLE.splitlines()
    assert shown[0] == "$ lamplighter subscriptions"
    async with running_gateway(tmp_path) as at, EngineClient(at.subscribe) as client:
        found = [client.subscribe(f"SELECT ?x {{ ?x <http://example.org/a> ?y }} {end}") for end in ("", "LIMIT 5")]
        for subscription in found:
            await anext(subscription)
        done = await asyncio.to_thread(command, "subscriptions", "--url", at.query.removesuffix("/query"))
        for subscription in found:
            await subscription.aclose()
    printed = done.stdout.splitlines()
    assert printed[0].split() == shown[1].split()
    assert [line.split()[1] for line in printed[1:]] == [line.split()[1] for line in shown[2:]]
    assert printed[2].split()[-6:] == shown[3].split()[-6:]
