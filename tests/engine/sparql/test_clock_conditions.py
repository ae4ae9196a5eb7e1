"""Which comparisons with the clock a subscription may have, and what is said about the others."""

from datetime import UTC, datetime

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.matching import clock_patterns
from tests.support.tables import each_row

PREFIX = (
    "PREFIX : <http://example.org/> PREFIX g: <http://lamplighter.example/ns/gateway#> "
    "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>\n"
)
START = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def spu_class(query: str) -> str:
    return Engine(clock=lambda: START).subscribe(PREFIX + query).spu_class


@each_row(
    ("query", "found"),
    [
        ("SELECT * { ?x :at ?t FILTER(g:now() >= ?t) }", "telescoped"),
        ("SELECT * { ?x :at ?t FILTER(((g:now()) >= (?t))) }", "telescoped"),
        ("SELECT * { ?x :due ?n FILTER(g:clock() - 5 >= ?n * 1000000) }", "telescoped"),
        ("SELECT * { ?x :due ?n FILTER(?n < 3 + g:clock() -5) }", "telescoped"),
        (
            "SELECT * { ?x :at ?t FILTER(?t <= g:now() && (?x != :y && g:now() - ?t < 'PT1M'^^xsd:duration)) }",
            "telescoped",
        ),
        ("SELECT * { ?x :at ?t . ?x :for ?d BIND(?t + ?d AS ?end) FILTER(?end > g:now()) }", "telescoped"),
        ("SELECT * { ?x a :S OPTIONAL { ?x :at ?t FILTER(?t > g:now() && ?x != :y) } }", "seeded"),
        ("SELECT * { ?x a :S MINUS { ?x :at ?t FILTER(?t > g:now()) } }", "seeded"),
        ("SELECT * { ?x a :S FILTER NOT EXISTS { ?x :at ?t FILTER(?t > g:now()) } }", "seeded"),
        ("SELECT ?x (SUM(?v) AS ?s) { ?x :at ?t ; :v ?v FILTER(?t > g:now()) } GROUP BY ?x", "counted"),
        ("SELECT DISTINCT ?x { ?x :at ?t FILTER(?t > g:now()) }", "seeded"),
        ("SELECT * { { ?x :at ?t } UNION { ?x :by ?t } FILTER(?t > g:now()) }", "telescoped"),
        ("SELECT * { ?x :at ?t FILTER(?t > g:now()) } LIMIT 3", "re-evaluated"),
        ("SELECT ?x (g:clock() AS ?since) { ?x :at ?t FILTER(?t > g:now()) }", "telescoped"),
        ("SELECT * FROM :graph { ?x :at ?t FILTER(?t > g:now()) }", "telescoped"),
        (
            "SELECT * { ?x :at ?t FILTER(xsd:dateTime(CONCAT(SUBSTR(STR(?t), 1, 15), '0:00Z')) < g:now()) }",
            "telescoped",
        ),
    ],
)
def test_a_comparison_does_not_change_the_class_of_its_query(query: str, found: str) -> None:
    assert spu_class(query) == found


@each_row(
    ("query", "place", "reason"),
    [
        ("SELECT * { ?x :at ?t FILTER(g:now() = ?t) }", 29, "an equality would hold for a microsecond"),
        ("SELECT * { ?x :at ?t FILTER(?t != g:now()) }", 35, "an equality would hold for a microsecond"),
        ("SELECT * { ?x :at ?t FILTER(g:now() IN (?t)) }", 29, "not compared by <, <=, > or >="),
        ("SELECT * { ?x :at ?t FILTER(?x = :y || g:now() > ?t) }", 40, "a UNION with a branch for each alternative"),
        ("SELECT * { ?x :at ?t FILTER(!(g:now() > ?t)) }", 31, "turn its operator round"),
        ("SELECT * { ?x :at ?t FILTER(g:now() > ?t && g:clock() - g:clock() > 1) }", 45, "names the clock once"),
        ("SELECT * { ?x :due ?n FILTER(g:clock() * 2 > ?n) }", 30, "only added to or subtracted from"),
        ("SELECT * { ?x :due ?n FILTER(5 - -g:clock() > ?n) }", 35, "only added to or subtracted from"),
        ("SELECT * { ?x :due ?n FILTER(xsd:string(g:clock()) > ?n) }", 41, "only added to or subtracted from"),
        ("SELECT * { ?x :due ?n FILTER(YEAR(g:now()) > ?n) }", 35, "only added to or subtracted from"),
        ("SELECT * { ?x :due ?n FILTER(IF(g:clock() > ?n, true, false)) }", 33, "not compared by <, <=, > or >="),
        ("SELECT * { ?x :due ?n FILTER(g:clock() > 5) }", 30, ""),
        (
            "SELECT * { ?x :due ?n . OPTIONAL { ?x :at ?t } FILTER(g:now() > ?t) }",
            55,
            r"\?t is compared with the clock, but",
        ),
        (
            "SELECT * { ?x :at ?t OPTIONAL { ?x :p ?y FILTER(g:now() > ?t) } }",
            49,
            r"\?t is compared with the clock, but",
        ),
        (
            "SELECT * { ?x :at ?t FILTER EXISTS { ?x :p ?y FILTER(g:now() > ?t) } }",
            54,
            r"\?t is compared with the clock",
        ),
        ("SELECT ?x { ?x :at ?t } GROUP BY ?x HAVING(MAX(?t) < g:now())", 54, "is compared with the clock"),
        ("SELECT ?x { { SELECT ?x (MAX(?u) AS ?t) { ?x :at ?u } GROUP BY ?x } FILTER(?t < g:now()) }", 81, r"\?t"),
        ("SELECT * { ?x :at ?t ; :a ?a ; :b ?b ; :c ?c FILTER(?t + ?a + ?b + ?c < g:now()) }", 73, "at most 3"),
        ("SELECT * { ?x :at ?t } ORDER BY (g:now() - ?t)", 34, "compared by <, <=, > or >= in a FILTER"),
        ("SELECT * { ?x :at ?t BIND(g:now() - ?t AS ?age) }", 27, "let the update write the time"),
        ("SELECT * { ?x :at ?t BIND(g:now() - ?t AS ?age) FILTER(?age > 'PT1M'^^xsd:duration) }", 27, "let the update"),
        ("SELECT ?x { ?x :at ?t } GROUP BY ?x (g:now() - ?t)", 38, "let the update write the time"),
        ("SELECT (SUM(g:clock() - ?t) AS ?s) { ?x :at ?t }", 13, "stands alone in the projection"),
        (
            "SELECT * { VALUES ?z { <<( :a :b :c )>> } ?x :at ?t FILTER(?t > g:now()) }",
            65,
            "syntax that only the store knows",
        ),
        ("SELECT * { ?x :at ?t FILTER(g:now() > ?t && EXISTS { ?x :p ?y }) }", None, ""),
        ("SELECT * { ?x :p+ ?t FILTER(g:now() > ?t) }", 29, "beside the pattern that binds it"),
    ],
)
def test_another_use_is_refused_with_its_place_the_reason_and_the_cure(
    query: str, place: int | None, reason: str
) -> None:
    if not reason:
        spu_class(query)
        return
    with pytest.raises(UnsupportedRequestError, match=f"^line 2, column {place}: .*{reason}"):
        spu_class(query)


def test_a_dataset_of_several_graphs_is_refused() -> None:
    query = "SELECT * FROM :a FROM :b { ?x :at ?t FILTER(g:now() > ?t) }"
    with pytest.raises(UnsupportedRequestError, match="several graphs"):
        spu_class(query)


def test_a_comparison_has_so_many_tokens_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT * { ?x :due ?n FILTER(g:clock() - 5 >= ?n) }"  # five: the clock, -, 5, >= and ?n
    monkeypatch.setattr(clock_patterns, "EXPRESSION_MAX", 5)
    assert spu_class(query) == "telescoped"
    monkeypatch.setattr(clock_patterns, "EXPRESSION_MAX", 4)
    with pytest.raises(UnsupportedRequestError, match="at most 4 tokens"):
        spu_class(query)
