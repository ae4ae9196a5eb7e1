"""Random updates and subscriptions, the engine against the oracle: points 1 to 3 of the design's semantics.

After every update: the first result and all notifications together are a fresh evaluation; at most one notification
for a subscription, none without a net change, numbered 1, 2, 3, ...; the commit's delta is the difference of the
datasets before and after; what one side refuses, the other refuses, and nothing has changed then.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine import Engine
from lamplighter.engine.updating import updates
from tests.properties.comparison import Comparison, Follower, Tally, rows_of, run_cases
from tests.properties.sparql_texts import NAMESPACE, Case, Step, Writer, cases, drawn, requests, spelled
from tests.support.amounts import AMOUNTS, Amounts
from tests.support.oracle import REFUSALS, Answer, Oracle, answer_from_json
from tests.support.seeds import seeds

CASES = 4_000
PARTS = 16
LATER_PARTS = 15
"""Parts that are run with the faults, so that `make test` takes less than five minutes."""
GIVING_UP = 100
CHANGED_SHARE_MIN = 0.25
CHANGED_MIN = {"telescoped": 175, "seeded": 175, "counted": 20, "ordered": 15, "re-evaluated": 40}
"""Changed results of each class that a part of the cases has to come to."""
FORMS_CHANGED_MIN = {"GROUP_CONCAT": 2, "OPTIONAL in EXISTS": 1}
"""The same for forms of queries that the store does not evaluate."""
CHANGED_AFTER_GIVING_UP_MIN = 30
TOO_COSTLY_MAX, TOO_LARGE_MAX = 2, 10
"""Subscriptions of a part whose first result needs more work than is allowed, and cases that are ended early: in few
cases unconnected patterns match so much."""
PREFIX = f"PREFIX : <{NAMESPACE}> "


@pytest.fixture(autouse=True)
def early_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases are short: data gets its plan as early as other updates."""
    monkeypatch.setattr(updates, "DATA_WITHOUT_PLAN", 1)


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=[pytest.mark.faults] * (part >= PARTS - LATER_PARTS)) for part in range(PARTS)],
)
def test_notifications_and_deltas_are_those_of_a_fresh_evaluation(part: int, amounts: Amounts) -> None:
    tally = Tally()

    def check() -> None:
        assert tally.changed_share() >= CHANGED_SHARE_MIN, tally
        for name, least in {**CHANGED_MIN, **FORMS_CHANGED_MIN}.items():
            assert tally.counts[f"changed {name}"] >= amounts.of(least), tally
        assert tally.counts["refused"] < 0.1 * tally.counts["updates"], tally
        assert tally.counts["planned"] > 0.1 * tally.counts["updates"], tally

    run_cases(seeds(amounts.of(CASES // PARTS), check), tally)
    print(f"\nengine against oracle: {tally}")
    assert tally.counts["too costly"] <= TOO_COSTLY_MAX, tally
    assert tally.counts["too large"] <= TOO_LARGE_MAX, tally


@pytest.mark.parametrize("late", [False, True])
def test_a_case_whose_rows_no_memory_holds_ends(late: bool) -> None:
    insert = Step("update", "INSERT DATA { " + " ".join(f"<x:s> <x:p> {number} ." for number in range(200)) + " }")
    subscribe = Step("subscribe", "SELECT * { ?a <x:p> ?b . ?c <x:p> ?d . ?e <x:p> ?f . ?g <x:p> ?h }")
    tally = Tally()
    Comparison(tally).run(Case((subscribe, insert) if late else (insert, subscribe)))
    assert (tally.counts["too large"], tally.counts["subscriptions"]) == (1, int(late))


def test_a_case_whose_update_makes_more_quads_than_are_allowed_ends() -> None:
    insert = Step("update", "INSERT DATA { " + " ".join(f"<x:{name}> <x:p> <x:o> ." for name in range(11)) + " }")
    product = Step("update", "DELETE { ?a ?b ?c } WHERE { ?a <x:p> <x:o> . ?b <x:p> <x:o> . ?c <x:p> <x:o> }")
    tally = Tally()
    Comparison(tally, delta_quads_max=1_000).run(Case((insert, product, insert)))
    assert (tally.counts["too large"], tally.counts["updates"]) == (1, 1)


@pytest.mark.parametrize("units_max", [1, *(pytest.param(units, marks=pytest.mark.faults) for units in (20, 80))])
def test_plans_that_give_up_leave_every_result_right(units_max: int, amounts: Amounts) -> None:
    """Whether on a quad, on seeds or on groups: the store takes over within the commit."""
    tally = Tally()

    def check() -> None:
        assert tally.counts["too costly"] < 2 * tally.counts["subscriptions"], tally
        assert tally.counts["gave up"], tally
        assert tally.counts["changed"] >= amounts.of(CHANGED_AFTER_GIVING_UP_MIN), tally

    run_cases(seeds(amounts.of(GIVING_UP), check), tally, units_max)
    print(f"\nplans of {units_max} units: {tally}")


def test_a_prologue_may_stand_before_each_operation_of_a_request(amounts: Amounts) -> None:
    tally = Tally()

    @settings(max_examples=amounts.of(100))
    @given(requests())
    def holds(pairs: list[tuple[str, str]]) -> None:
        comparison = Comparison(tally)
        for text, same in pairs:
            comparison.change(
                text,
                lambda same=same: comparison.oracle.update(same),
                lambda text=text: comparison.engine.update(text),
            )

    holds()
    assert tally.counts["effective"] > 0.5 * tally.counts["updates"], tally


def test_queries_are_answered_as_the_oracle_answers_them(amounts: Amounts) -> None:
    @settings(max_examples=amounts.of(150))
    @given(cases())
    def holds(case: Case) -> None:
        comparison = Comparison(Tally())
        for step in case.steps:
            if step.kind == "update":
                comparison.update(step.text)
        for step in case.steps:
            if step.kind == "subscribe":
                answer = answer_from_json(comparison.engine.query(step.text).to_json())
                comparison.check_rows(answer.rows, answer.variables, step.text, cut=step.cut)

    holds()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :q ?z } }",
        "SELECT ?x { ?x :p ?y FILTER ( ! EXISTS { ?x :q ?z } ) }",
        "SELECT ?x { ?x :p ?y FILTER NOT EXISTS { ?x :p ?w FILTER EXISTS { ?x :q ?z } } }",
        "SELECT ?x { ?x :p ?y OPTIONAL { ?y :p ?w FILTER NOT EXISTS { ?x :q ?z } } FILTER ( BOUND( ?w ) ) }",
        "SELECT ?x { ?x :p ?y MINUS { ?x :p ?w FILTER EXISTS { ?x :q ?z } } }",
        "SELECT ?x { ?x :p ?y BIND ( EXISTS { ?x :q ?z } AS ?e ) FILTER ( ?e ) }",
        "SELECT ?x ( EXISTS { ?x :q ?z } AS ?e ) { ?x :p ?y }",
        "SELECT ( EXISTS { ?x :q ?z } AS ?e ) { }",
        "SELECT ( COUNT( * ) AS ?n ) { ?x :p ?y } HAVING ( EXISTS { :a :q :b } )",
        "SELECT ?e ( COUNT( * ) AS ?n ) { ?x :p ?y } GROUP BY ( EXISTS { ?x :q ?z } AS ?e )",
        "SELECT ?x { ?x :p ?y } ORDER BY ( EXISTS { ?x :q ?z } ) STR( ?x ) LIMIT 1",
        "SELECT ( SUM( IF( EXISTS { ?x :q ?z } , 1 , 0 ) ) AS ?n ) { ?x :p ?y }",
        "SELECT ?x { ?x :p ?y { SELECT ?x { ?x :p ?w } ORDER BY ( EXISTS { ?x :q ?z } ) STR( ?x ) LIMIT 1 } }",
        "SELECT ?x { GRAPH :g { ?x :p ?y FILTER EXISTS { ?x :q ?z } } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { GRAPH :g { ?x :q ?z } } }",
        "SELECT ?x { ?x :p ?y FILTER NOT EXISTS { GRAPH :empty { } } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :q/:q? ?z } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { OPTIONAL { ?x :p ?v FILTER EXISTS { ?x :q ?z } } FILTER BOUND( ?v ) } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { { ?x :r ?w } UNION { ?x :p ?w FILTER EXISTS { ?x :q ?z } } } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { SELECT ?x { ?x :p ?w FILTER EXISTS { ?x :q ?z } } } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :p ?w BIND ( EXISTS { ?x :q ?z } AS ?e ) FILTER ( ?e ) } }",
        "SELECT ?x { ?x :p ?y FILTER NOT EXISTS { ?x :p ?w FILTER NOT EXISTS { GRAPH ?g { ?x :q ?z } } } }",
        "SELECT ( EXISTS { ?x :p ?w FILTER EXISTS { ?x :q ?z } } AS ?e ) { ?x :p ?y }",
        "SELECT ?x { ?x :p ?y } ORDER BY ( EXISTS { ?x :p ?w FILTER EXISTS { ?x :q ?z } } ) STR( ?x ) LIMIT 1",
    ],
)
def test_what_exists_looks_at_is_watched_wherever_it_stands(query: str) -> None:
    text = PREFIX + query
    comparison = Comparison(Tally())
    both = ":a :p :b . :b :p :c ."
    comparison.update(f"{PREFIX} INSERT DATA {{ {both} GRAPH :g {{ {both} }} }}")
    comparison.subscribe(text)
    for graph in ("%s", "GRAPH :g { %s }"):
        quad = graph % ":a :q :b"
        comparison.update(f"{PREFIX} INSERT DATA {{ {quad} }}")
        comparison.update(f"{PREFIX} DELETE DATA {{ {quad} }}")
    comparison.update(f"{PREFIX} CREATE GRAPH :empty")
    comparison.update(f"{PREFIX} DROP GRAPH :empty")
    assert comparison.tally.counts["changed"] >= 2


@pytest.mark.parametrize(
    ("query", "spu_class"),
    [
        ("SELECT * { ?x :p ?y OPTIONAL { ?y :q ?z OPTIONAL { ?z :r ?w } } }", "seeded"),
        ("SELECT * { ?x :p ?y OPTIONAL { ?y :q ?z OPTIONAL { ?z :r ?w OPTIONAL { ?w :p ?v } } } }", "seeded"),
        ("SELECT DISTINCT ?x { ?x :p ?y OPTIONAL { ?y :q ?z } FILTER NOT EXISTS { ?y :r ?w } }", "seeded"),
        ("SELECT ?x { ?x :p ?y MINUS { ?y :q ?z OPTIONAL { ?z :r ?w } FILTER BOUND( ?w ) } }", "seeded"),
        ("SELECT * { ?w :p ?y OPTIONAL { ?y :q ?s FILTER NOT EXISTS { ?s :q ?v . ?v :r ?w } } }", "seeded"),
        # A variable of MINUS or of a sub-select is another one than that around of the same name.
        (
            "SELECT * { ?y :p ?z OPTIONAL { ?y :q ?s { SELECT ?s { ?s :q ?w OPTIONAL { ?w :r ?z } } } } }",
            "re-evaluated",
        ),
        ("SELECT * { ?w :p ?y OPTIONAL { ?y :q ?s MINUS { ?s :q ?v . ?v :r ?w } } }", "seeded"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z OPTIONAL { ?z :r ?w } FILTER ( ! BOUND( ?w ) ) } }", "seeded"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q* ?z OPTIONAL { ?z :r+ ?w } FILTER BOUND( ?w ) } }", "seeded"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q* ?z MINUS { ?z :r+ ?w } } }", "seeded"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z OPTIONAL { ?z :r ?w } FILTER ( ?w = ?x ) } }", "seeded"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { { SELECT ?y ?z { ?y :q ?z } } FILTER ( ?z != ?x ) } }", "seeded"),
        (
            "SELECT * { ?x :p ?y FILTER EXISTS { ?y :q|:r* ?z BIND ( STR( ?z ) AS ?t ) FILTER ( ?t != STR( ?x ) ) } }",
            "seeded",
        ),
        # Here a value of the row changes what OPTIONAL and MINUS find.
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z OPTIONAL { ?z :r ?x } } }", "re-evaluated"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z MINUS { ?z :r ?x } } }", "re-evaluated"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z MINUS { ?z :r ?v FILTER ( ?v = ?x ) } } }", "re-evaluated"),
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z BIND ( ?z AS ?x ) } }", "re-evaluated"),
        # The filter sees ?x of the row where the pattern leaves it unbound.
        ("SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z VALUES ?x { UNDEF :c } FILTER ( ?x != ?z ) } }", "re-evaluated"),
        (
            "SELECT * { ?x :p ?y FILTER EXISTS { { ?y :q ?z } UNION { ?y :r ?x } FILTER ( BOUND( ?x ) ) } }",
            "re-evaluated",
        ),
        (
            "SELECT * { ?x :p ?y FILTER EXISTS { ?y :q ?z VALUES ?x { UNDEF :c } "
            "FILTER NOT EXISTS { ?z :r ?w FILTER ( ?x != ?z ) } } }",
            "re-evaluated",
        ),
    ],
)
def test_what_lies_deep_in_a_query_is_followed(query: str, spu_class: str) -> None:
    comparison = Comparison(Tally())
    names = "abcd"
    comparison.update(PREFIX + "INSERT DATA { :a :p :b . :b :q :c , :d . :c :q :d ; :r :a . :d :r :b ; :p :c }")
    followed = comparison.subscribe(PREFIX + query)
    for predicate in "rqp":
        for one in names:
            for other in names:
                quad = f":{one} :{predicate} :{other}"
                there = comparison.oracle.query(f"{PREFIX} SELECT * {{ VALUES ?x {{ 1 }} {quad} }}").rows
                for form in ("DELETE", "INSERT") if there else ("INSERT", "DELETE"):
                    comparison.update(f"{PREFIX} {form} DATA {{ {quad} }}")
    assert comparison.tally.counts["changed"] >= 10
    assert followed.spu_class == spu_class


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [
        # RFC 3986, 5.2: a reference is relative unless it starts with a scheme, whatever else holds a colon.
        ("BASE <http://e.example/x> SELECT * { <#c:1> :p ?o }", "http://e.example/x#c:1"),
        ("BASE <http://e.example/x/y> SELECT * { <./c:1> :p ?o }", "http://e.example/x/c:1"),
        ("BASE <http://e.example/x/y> SELECT * { <../z> :p ?o }", "http://e.example/z"),
        ("BASE <http://e.example/x/y> SELECT * { <../../../z> :p ?o }", "http://e.example/z"),
        ("BASE <http://e.example/x?q> SELECT * { <?z> :p ?o }", "http://e.example/x?z"),
        ("BASE <http://e.example/x?q> SELECT * { <> :p ?o }", "http://e.example/x?q"),
        ("BASE <http://e.example/x?q#f> SELECT * { <> :p ?o }", "http://e.example/x?q"),
        ("BASE <http://e.example/x> SELECT * { <//f.example/z> :p ?o }", "http://f.example/z"),
        ("BASE <http://e.example/x> SELECT * { <z#> :p ?o }", "http://e.example/z#"),
        ("BASE <http://e.example/x/> BASE <y/> SELECT * { <z> :p ?o }", "http://e.example/x/y/z"),
        ("BASE <http://e.example/x/> PREFIX e: <y#> SELECT * { e: :p ?o }", "http://e.example/x/y#"),
        ("BASE <coap://e.example/x> SELECT * { <z> :p ?o }", "coap://e.example/z"),
        ("BASE <coap://e.example/x> PREFIX e: <y/> SELECT * { e:z :p ?o }", "coap://e.example/y/z"),
        ("BASE <urn:e:x> SELECT * { <#z> :p ?o }", "urn:e:x#z"),
        ("SELECT * { <http://e.example/x/../z> :p ?o }", "http://e.example/x/../z"),
        (r"SELECT * { <HTTP://E.example/%c3%A9\u00e9> :p ?o }", "HTTP://E.example/%c3%A9é"),
        (r"PREFIX e: <http://e.example/> SELECT * { e:a\,b\~c :p ?o }", "http://e.example/a,b~c"),
        ("PREFIX e: <http://e.example/> SELECT * { e:a%2Cb :p ?o }", "http://e.example/a%2Cb"),
        ("PREFIX e: <http://e.example/> SELECT * { e:1.2:3 :p ?o }", "http://e.example/1.2:3"),
        ("PREFIX e.e-1: <http://e.example/#> SELECT * { e.e-1:é :p ?o }", "http://e.example/#é"),
    ],
)
def test_an_iri_is_watched_however_it_is_written(pattern: str, subject: str) -> None:
    comparison = Comparison(Tally())
    comparison.subscribe(f"{PREFIX} {pattern}")
    for form in ("INSERT DATA", "DELETE DATA"):
        comparison.update(f"{PREFIX} {form} {{ <{subject}> :p 1 }}")
    assert comparison.tally.counts["changed"] == 2


@pytest.mark.parametrize(
    "literal",
    [
        *("'\t'", r"'\t'", r"'\b\f\n\r'", r"'\u0001'", "'\x01'", r"'\u007F'", "'\x7f'", "'a\x0bb'", "'\x85\u2028'"),
        *(r"'\\u0041'", r"'\u0041'", "'''a\r\nb'''", '"""a"b"""', r"'''a\'b'''", "''", "' '", "'a  b'", "'# {'"),
        *("'\U0001f4a1'", r"'\U0001F4A1'", "'x'@FR", "'x'^^<http://www.w3.org/2001/XMLSchema#string>"),
        *("'01'^^<http://www.w3.org/2001/XMLSchema#integer>", "01", "1.50", "1e2", "-0.0", "+1", "true"),
        *("'1'^^<http://www.w3.org/2001/XMLSchema#boolean>", "'x'^^<http://www.w3.org/2001/XMLSchema#integer>"),
    ],
)
def test_a_literal_is_watched_however_it_is_written(literal: str) -> None:
    comparison = Comparison(Tally())
    comparison.subscribe(f"{PREFIX} SELECT ?x {{ ?x :p {literal} }}")
    comparison.subscribe(f"{PREFIX} SELECT ?x {{ ?x :p ?o FILTER ( sameTerm( ?o , {literal} ) ) }}")
    for form in ("INSERT DATA", "DELETE DATA"):
        comparison.update(f"{PREFIX} {form} {{ :a :p {literal} }}")
    assert comparison.tally.counts["changed"] >= 2


# -- where SPARQL leaves the answer open ------------------------------------------------------------------------------


@st.composite
def open_cases(draw: Any) -> tuple[list[str], int]:
    """Update texts, and the number of the subscription's place among them."""
    writer = Writer(drawn(draw))
    texts = [spelled(writer, writer.start([]))]
    texts += [spelled(writer, writer.update([])) for _ in range(writer.one((4, 2, 6)))]
    return texts, writer.one((1, 0, 2))


def followed(texts: list[str], place: int, query: str, whole: str, check: Any) -> None:
    """Runs the updates and gives `check` the subscriber's rows and the oracle's answer to `whole` after each."""
    oracle = Oracle()
    with Engine() as engine:
        one: Follower | None = None
        for number, text in enumerate(texts):
            if number == place:
                first = engine.subscribe(query)
                one = Follower(
                    query,
                    first.spuid,
                    tuple(first.first.variables),
                    rows_of(first.first, tuple(first.first.variables)),
                    oracle.query(query),
                )
                check(one.rows, oracle.query(whole))
            try:
                oracle.update(text)
            except REFUSALS:
                continue
            commit = engine.update(text)
            if one is not None:
                one.follow(commit.notifications)
                check(one.rows, oracle.query(whole))


PATTERN = "{ ?x ?k ?y FILTER ( ?k != :v.1-x ) }"


@settings(max_examples=AMOUNTS.of(50))
@given(open_cases(), st.sampled_from((1, 2, 3)), st.sampled_from((0, 1, 2)))
def test_limit_without_order_keeps_as_many_rows_as_there_should_be(
    case: tuple[list[str], int], limit: int, offset: int
) -> None:
    def check(rows: Counter[Any], whole: Answer) -> None:
        assert rows <= whole.rows
        assert rows.total() == min(limit, max(0, whole.rows.total() - offset))

    followed(
        *case, f"{PREFIX} SELECT ?x {PATTERN} LIMIT {limit} OFFSET {offset}", f"{PREFIX} SELECT ?x {PATTERN}", check
    )


@settings(max_examples=AMOUNTS.of(50))
@given(open_cases(), st.sampled_from((1, 2, 3)))
def test_ties_under_limit_are_broken_within_the_tie(case: tuple[list[str], int], limit: int) -> None:
    def check(rows: Counter[Any], whole: Answer) -> None:
        assert rows <= whole.rows
        keys = [row[0] for row in whole.ordered]
        assert sorted(row[0] for row in rows.elements()) == keys[:limit]

    query = f"{PREFIX} SELECT ?x ?y {{ ?x :p|:q ?y FILTER ( isIRI( ?x ) ) }} ORDER BY ?x"
    followed(*case, f"{query} LIMIT {limit}", query, check)


@settings(max_examples=AMOUNTS.of(50))
@given(open_cases())
def test_sample_is_a_member_of_its_group(case: tuple[list[str], int]) -> None:
    def check(rows: Counter[Any], whole: Answer) -> None:
        assert Counter(key for key, _ in rows.elements()) == Counter({key for key, _ in whole.rows})
        assert set(rows) <= set(whole.rows)

    followed(
        *case,
        f"{PREFIX} SELECT ?x (SAMPLE(?y) AS ?one) {PATTERN} GROUP BY ?x",
        f"{PREFIX} SELECT ?x ?y {PATTERN}",
        check,
    )


@settings(max_examples=AMOUNTS.of(50))
@given(open_cases())
def test_group_concat_holds_each_member_in_some_order(case: tuple[list[str], int]) -> None:
    def check(rows: Counter[Any], whole: Answer) -> None:
        members: dict[str, list[str]] = {}
        for key, text in whole.ordered:
            members.setdefault(str(key), []).append(str(text)[1:-1])
        found = {str(key): sorted(str(text)[1:-1].split("|")) for key, text in rows.elements()}
        assert found == {key: sorted(texts) for key, texts in members.items()}

    links = "{ ?x :p|:q ?y FILTER ( isIRI( ?y ) ) }"
    followed(
        *case,
        f'{PREFIX} SELECT ?x (GROUP_CONCAT(STR(?y); SEPARATOR="|") AS ?all) {links} GROUP BY ?x',
        f"{PREFIX} SELECT ?x (STR(?y) AS ?t) {links}",
        check,
    )
