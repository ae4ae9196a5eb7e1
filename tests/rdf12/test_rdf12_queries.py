"""Queries of SPARQL 1.2: the store's answer, the engine's, and a subscription while the data comes and goes.

The environment variable W3C_SEED repeats the orders of a run.
"""

from __future__ import annotations

from random import Random

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from tests.rdf12.cases import QUERIES, QueryCase
from tests.rdf12.reading import as_expected, dataset, expected, request
from tests.support.oracle import REFUSALS, answer_from_json, respelled_rows
from tests.support.tables import each_row
from tests.w3c import suite
from tests.w3c.courses import follow_through
from tests.w3c.pair import Follower, answer, data_block

INCREMENTAL = ("telescoped", "seeded", "counted", "ordered")
RE_EVALUATED = {
    "several FROM": "a triple term in several chosen graphs",
    "path to a term": "syntax that only the store knows",
    "term as an expression": "syntax that only the store knows",
    "VALUES": "syntax that only the store knows",
    "IN": "syntax that only the store knows",
    "other kinds of terms": "syntax that only the store knows",
    "STR and DATATYPE of a term": "syntax that only the store knows",
    "TRIPLE of a triple subject": "syntax that only the store knows",
}
"""The cases that are evaluated again, and why."""

RIGHT = [case for case in QUERIES if not case.known]


@each_row("case", RIGHT, ids=lambda case: case.name)
def test_the_store_and_the_engine_answer_what_the_specification_says(case: QueryCase) -> None:
    raw = dataset(case.data)
    fresh = answer(raw, request(case.text))
    assert as_expected(case, fresh.variables, fresh.rows), fresh
    with Engine() as engine:
        engine.update(f"INSERT DATA {{ {data_block(raw)} }}")
        found = engine.query(request(case.text))
        if case.text.startswith("ASK"):
            assert found.to_json()["boolean"] is (case.rows == "true")
        else:
            rows = answer_from_json(found.to_json())
            assert as_expected(case, rows.variables, rows.rows), rows


@each_row("case", [case for case in RIGHT if not case.refused], ids=lambda case: case.name, is_amount=True)
def test_query_holds_as_a_subscription(case: QueryCase) -> None:
    print(f"W3C_SEED={suite.SEED}")

    def check(follower: Follower) -> None:
        assert as_expected(case, follower.variables, follower.rows), (follower.variables, follower.rows)

    random = Random(f"{suite.SEED} {case.name}")
    spu_class = follow_through(request(case.text), dataset(case.data), (), check, random)
    assert (spu_class in INCREMENTAL) != (case.name in RE_EVALUATED), spu_class


@each_row("name", RE_EVALUATED)
def test_a_query_that_is_evaluated_again_has_a_reason(name: str) -> None:
    (case,) = [case for case in QUERIES if case.name == name]
    with Engine() as engine:
        described = engine.describe(engine.subscribe(request(case.text)).spuid)
        assert (described.spu_class, described.reason) == ("re-evaluated", RE_EVALUATED[name])


@pytest.mark.parametrize("case", [case for case in QUERIES if case.refused], ids=lambda case: case.name)
def test_a_template_with_triple_terms_is_refused_for_a_subscription(case: QueryCase) -> None:
    with Engine() as engine, pytest.raises(UnsupportedRequestError, match=case.refused):
        engine.subscribe(request(case.text))


@each_row("case", [case for case in QUERIES if case.known], ids=lambda case: case.name)
def test_a_subscription_is_right_where_the_store_is_not(case: QueryCase) -> None:
    raw = dataset(case.data)
    try:
        fresh = answer(raw, request(case.text))
    except REFUSALS:
        pass
    else:
        assert not as_expected(case, fresh.variables, fresh.rows), f"the store is right now: {case.known}"
    with Engine() as engine:
        subscription = engine.subscribe(request(case.text))
        rows = respelled_rows(subscription.first.rows)
        for quad in raw:
            for notification in engine.update(f"INSERT DATA {{ {data_block([quad])} }}").notifications:
                rows -= respelled_rows(notification.removed.rows)
                rows += respelled_rows(notification.added.rows)
        assert rows == expected(case)
        assert respelled_rows(engine.subscribe(f"{request(case.text)} # now").first.rows) == expected(case)
        assert subscription.spu_class in INCREMENTAL
