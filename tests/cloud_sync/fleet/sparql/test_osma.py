"""Named cases of the plan that takes an event at once; `test_compiler_oracle` has random ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

from benchmarks.fleet_workload import chain_query, chains
from lamplighter.cloud_sync.fleet.events.events import events
from lamplighter.cloud_sync.fleet.session import DEFAULTS
from lamplighter.cloud_sync.fleet.sparql import csma, nested, osma
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.engine.errors import UnsupportedRequestError
from tests.cloud_sync.fleet.sparql.made_up_queries import EventOracle, MadeUpEvent, MadeUpQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

XSD = "http://www.w3.org/2001/XMLSchema#"
EVENT = (
    "gw STRING, epoch INT, seq BIGINT, graph STRING, change STRING, "
    "triples ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, new: BOOLEAN>>, constants ARRAY<STRING>"
)
ONE, TWO = f'"1"^^<{XSD}integer>', f'"2"^^<{XSD}integer>'
TRIPLES = (
    ("<urn:a>", "<urn:p>", "<urn:b>", True),
    ("<urn:b>", "<urn:q>", ONE, False),
    ("<urn:b>", "<urn:r>", "<urn:b>", False),
    ("<urn:c>", "<urn:q>", TWO, True),
    ("<urn:c>", "<urn:r>", "<urn:p>", False),
    ("<urn:g>", "<urn:p>", "<urn:c>", False),
)
NAMED = MadeUpEvent("<urn:g>", TRIPLES)
DEFAULT = MadeUpEvent(None, TRIPLES)

CASES = {
    "a chain uses old triples beside a new one": "{ ?s <urn:p> ?x . ?x <urn:q> ?v }",
    "old triples alone are no match": "{ ?s <urn:r> ?o . ?s <urn:q> 1 }",
    "a variable twice in a pattern": "{ ?x <urn:r> ?x . ?s <urn:p> ?x }",
    "a predicate that is an object elsewhere": "{ ?s ?p ?o . ?c <urn:r> ?p }",
    "a blank node is a variable": "{ ?s <urn:p> _:b . _:b <urn:q> ?v }",
    "a path": "{ ?s <urn:p>/<urn:q> ?v }",
    "an inverse path": "{ ?v ^<urn:q>/^<urn:p> ?s }",
    "GRAPH binds its variable": "{ GRAPH ?g { ?s <urn:q> ?v } }",
    "the variable of GRAPH is a subject in it": "{ GRAPH ?g { ?g <urn:p> ?c . ?c <urn:q> ?v } }",
    "GRAPH with a name": "{ GRAPH <urn:g> { ?s <urn:q> ?v } }",
    "GRAPH with another name": "{ GRAPH <urn:h> { ?s <urn:q> ?v } }",
    "a filter in GRAPH knows its name": "{ GRAPH ?g { ?s <urn:q> ?v FILTER(?g = <urn:g>) } }",
    "OPTIONAL with a filter on the outer value": "{ ?s <urn:q> ?v OPTIONAL { ?o <urn:p> ?s FILTER(?v < 2) } }",
    "OPTIONAL that adds the new triple": "{ ?s <urn:q> 1 OPTIONAL { ?a <urn:p> ?s OPTIONAL { ?s <urn:r> ?b } } }",
    "a filter for what OPTIONAL leaves unbound": "{ ?s <urn:q> ?v OPTIONAL { ?s <urn:p> ?o } FILTER(!bound(?o)) }",
    "an unbound variable joins with anything": "{ { ?s <urn:p> ?x } UNION { ?y <urn:q> 2 } ?x <urn:q> ?v }",
    "a group filter does not see the outer value": (
        "{ ?s <urn:p> ?o { { ?s <urn:p> ?x } UNION { ?x <urn:q> ?o } FILTER(!bound(?o)) } }"
    ),
    "VALUES with UNDEF": "{ VALUES (?s ?v) { (<urn:c> UNDEF) (UNDEF 1) } ?s <urn:q> ?v . ?a <urn:p> ?b }",
    "BIND is joined with a later pattern": "{ ?s <urn:p> ?o BIND(?o AS ?x) ?x <urn:q> ?v }",
    "a group that assigns a bound variable": "{ ?s <urn:q> ?v { BIND(2 AS ?v) } }",
    "an error in BIND leaves the variable unbound": "{ ?s <urn:p> ?o BIND(?o + 1 AS ?e) }",
    "the same solution of two branches counts twice": "{ { ?s <urn:p> ?o } UNION { ?s ?p ?o } }",
}


def rows(
    spark: SparkSession, event: MadeUpEvent, text: str, plans: Sequence[str] = ("osma", "csma")
) -> list[list[tuple[str | None, ...] | None]]:
    """The sorted rows of each plan."""
    query = fleet_query(text)
    row = ("gw-1", 1, 7, event.graph, "added", list(event.triples), list(query.constants))
    frame = spark.createDataFrame([row], EVENT)
    quads = frame.selectExpr("gw", "epoch", "seq", "graph", "change", "inline(triples)")
    found = {"osma": lambda: osma.solutions(frame, query), "csma": lambda: csma.solutions(quads, query)}
    return [
        sorted((None if one.row is None else tuple(one.row) for one in found[plan]().collect()), key=str)
        for plan in plans
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_plan_agrees_with_oxigraph(spark: SparkSession, case: str) -> None:
    text = CASES[case]
    where = text.replace("_:b", "?hidden").replace("<urn:p>/<urn:q> ?v", "<urn:p> ?m . ?m <urn:q> ?v")
    where = where.replace("?v ^<urn:q>/^<urn:p> ?s", "?m <urn:q> ?v . ?s <urn:p> ?m")
    for event in (NAMED, DEFAULT) if "GRAPH" in text else (NAMED,):
        query = MadeUpQuery(fleet_query(f"SELECT * {text}"), f"SELECT * {where}")
        expected = sorted(EventOracle(event).rows(query).elements(), key=str)
        [found] = rows(spark, event, f"SELECT * {text}", ["osma"])
        assert found == expected
        assert expected or case.endswith(("no match", "another name")) or event is DEFAULT


@pytest.mark.parametrize(
    ("where", "rows_of_new"),
    [
        ("{ ?s <urn:r> ?o OPTIONAL { <urn:c> <urn:q> 2 } }", 0),
        ("{ ?s <urn:r> ?o OPTIONAL { ?s <urn:q> 2 } }", 0),
        ("{ ?s <urn:r> ?o OPTIONAL { { <urn:a> <urn:p> <urn:b> } UNION { <urn:c> <urn:q> 2 } } }", 2),
        ("{ ?s <urn:r> ?o OPTIONAL { { ?s <urn:q> 1 } UNION { ?s <urn:q> 2 } UNION { <urn:a> <urn:p> <urn:b> } } }", 2),
        ("{ ?s <urn:r> ?o OPTIONAL { <urn:c> <urn:q> 2 VALUES ?v { UNDEF } } }", 0),
        ("{ ?s <urn:r> ?o OPTIONAL { <urn:c> <urn:q> 2 VALUES ?v { UNDEF 1 } } }", 2),
        ("{ ?s <urn:q> ?v OPTIONAL { <urn:c> <urn:q> 2 } }", 1),
    ],
)
def test_an_optional_that_binds_nothing_more_is_no_new_solution(
    spark: SparkSession, where: str, rows_of_new: int
) -> None:
    text = f"SELECT * {where}"
    expected = sorted(EventOracle(NAMED).rows(MadeUpQuery(fleet_query(text), text)).elements(), key=str)
    assert rows(spark, NAMED, text, ["osma"]) == [expected]
    assert len(expected) == rows_of_new


def test_such_an_optional_is_refused_by_the_plan_of_joins(spark: SparkSession) -> None:
    with pytest.raises(UnsupportedRequestError, match="bind nothing more"):
        rows(spark, NAMED, "SELECT * { ?s <urn:r> ?o OPTIONAL { ?s <urn:q> 2 } }", ["csma"])


def test_ask_and_unbound_projections(spark: SparkSession) -> None:
    assert rows(spark, NAMED, "ASK { ?s <urn:p> <urn:b> }") == [[()], [()]]
    assert (
        rows(spark, NAMED, "SELECT ?none (?v + 1 AS ?w) { <urn:c> <urn:q> ?v }")
        == [[(None, f'"3"^^<{XSD}integer>')]] * 2
    )


def test_other_columns_stay_and_one_plan_serves_queries_of_one_shape(spark: SparkSession) -> None:
    one, other = (fleet_query(f"SELECT ?o {{ <urn:{name}> <urn:p> ?o }}") for name in "ag")
    triples = [(*triple[:3], True) for triple in TRIPLES]
    frame = spark.createDataFrame(
        [
            ("gw-1", 1, 7, "<urn:g>", "added", triples, list(query.constants), id)
            for id, query in enumerate((one, other))
        ],
        f"{EVENT}, subscription INT",
    )
    found = osma.solutions(frame, one)
    assert found.columns == ["gw", "epoch", "seq", "graph", "change", "subscription", "row"]
    assert {(row.subscription, *row.row) for row in found.collect()} == {(0, "<urn:b>"), (1, "<urn:c>")}


LARGE = tuple((f"<urn:{number}>", "<urn:p>", f'"{number}"', True) for number in range(21))


@pytest.mark.parametrize(
    "where",
    (
        "?a <urn:p> ?b . ?c <urn:p> ?d",
        "?a <urn:p> ?b . ?c <urn:p> ?d FILTER(?a = ?d)",
        "?a <urn:p> ?b OPTIONAL { ?c <urn:p> ?d . ?e <urn:p> ?f }",
        "?a <urn:p> ?b { ?c <urn:p> ?d } UNION { ?e <urn:p> ?f }",
    ),
)
def test_an_event_with_too_many_solutions_says_so_with_a_null_row(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(nested, "SOLUTIONS_MAX", 20)
    monkeypatch.setattr(osma, "ROWS_MAX", 20)
    assert None in rows(spark, MadeUpEvent(None, LARGE[:20]), f"SELECT * {{ {where} }}", ["osma"])[0]


def test_a_large_event_whose_subjects_have_few_triples_each_is_answered(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osma, "ROWS_MAX", 20)
    star = "SELECT * { ?s <urn:p> ?o . ?s ?p ?o . ?s <urn:p> ?q }"
    assert len(rows(spark, MadeUpEvent(None, LARGE[:20]), star, ["osma"])[0]) == 20
    assert rows(spark, MadeUpEvent(None, LARGE), star, ["osma"]) == [[None]]
    monkeypatch.setattr(osma, "ROWS_MAX", 40)
    two = (*LARGE[:20], ("<urn:0>", "<urn:p>", '"x"', True))
    assert rows(spark, MadeUpEvent(None, two), star, ["osma"]) == [[None]]  # by the estimate: 21 times 2 times 1


def test_the_work_on_a_large_event_is_bounded_when_a_pattern_has_no_matches(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osma, "TESTS_MAX", 21 * 21 * 21 - 1)
    cross = "SELECT * { ?a <urn:p> ?b . ?c <urn:p> ?d . ?e <urn:p> ?f"
    event = MadeUpEvent(None, LARGE)
    assert rows(spark, event, f"{cross} . <urn:none> <urn:q> ?g }}", ["osma"]) == [[None]]
    assert rows(spark, event, "SELECT * { ?a <urn:p> ?b . ?c <urn:q> ?d . ?e <urn:q> ?f }", ["osma"]) == [[]]


def test_which_queries_go_without_lambdas() -> None:
    def taken(where: str) -> bool:
        return osma.conjunction(fleet_query(f"SELECT * {{ {where} }}").tree) is not None

    assert taken("GRAPH ?g { ?s ?p ?o } VALUES ?o { 1 2 } BIND(?o * 2 AS ?d) FILTER(?d > 2 || ?g = <urn:g>)")
    assert not taken("?s ?p ?o OPTIONAL { ?s <urn:q> ?x }")
    assert not taken("{ ?s ?p ?o } UNION { ?o ?p ?s }")
    assert not taken("?s ?p ?o VALUES ?o { 1 UNDEF }")
    assert not taken("?s ?p ?o BIND(?o AS ?x) ?x ?q ?v")


@pytest.mark.parametrize("deleted", (False, True))
def test_the_code_of_a_plan_is_small_enough_to_be_compiled(spark: SparkSession, deleted: bool) -> None:
    """HotSpot interprets larger methods, so Spark would evaluate the plan operator by operator."""
    query = fleet_query(chain_query())
    found = events(chains(spark, 1), deleted=deleted)
    constants = functions.array(*map(functions.lit, query.constants))
    jvm, plans = spark._jvm, [found, osma.solutions(found.withColumn("constants", constants), query)]  # type: ignore[attr-defined]
    generated = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in generated}
    try:
        for name, value in generated.items():
            spark.conf.set(name, value)
        executed = [plan._jdf.queryExecution().executedPlan() for plan in plans]  # type: ignore[operator]
        texts = [jvm.org.apache.spark.sql.execution.debug.package.codegenString(plan) for plan in executed]
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))
    for text in texts:
        sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", text)]
        assert sizes and max(sizes) < int(DEFAULTS["spark.sql.codegen.hugeMethodLimit"])
