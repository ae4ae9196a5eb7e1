"""Expressions have the terms and the effective boolean values that the gateway's store gives them."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.fleet.sparql.expression_tree import NotCompiledError
from tests.cloud_sync.fleet.sparql.expression_oracle import (
    by_spark,
    by_store,
    condition_by_store,
    corpus,
    differences,
    in_store,
    random_condition,
    random_rows,
    random_term,
    tree_and_constants,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 60

NAMED = {
    "logic": "!?a | ?a && ?b | ?a || ?b | if(?a, ?b, ?c) | coalesce(?a + 1, ?b) | bound(?a)",
    "relations": "?a = ?b | ?a != ?b | ?a < ?b | ?a >= ?b | ?a in (?b, ?c, 1) | ?a not in (?b, 'a') | sameTerm(?a, ?b)",
    "constants": "?a = 1 | ?a = 'a' | ?a = <urn:x> | ?a > 1000 | ?a < 'b' | ?a >= 1.5 "
    "| ?a > '2026-01-01T00:00:00Z'^^xsd:dateTime | ?a + ?b > 10",
    "numbers": "-?a | +?a | ?a + ?b | ?a * ?b | ?a / ?b | abs(?a) | ceil(?a) | floor(?a) | round(?a) | isNumeric(?a)",
    "doubles": "?a < (?a + ?a) | ?a <= (?a * 1) | (?a + 0.5) > ?b | (0.25 - ?a) * 3.5e0 | (?a / 3) + 1e0",
    "terms": "isIRI(?a) | isBlank(?a) | isLiteral(?a) | str(?a) | lang(?a) | datatype(?a) | iri(?a) "
    "| strlang(str(?a), ?b) | strdt(str(?a), xsd:double) | langMatches(lang(?a), 'en')",
    "strings": "strlen(?a) | substr(?a, ?b) | substr(?a, 0, 2) | ucase(?a) | lcase(?a) | encode_for_uri(?a) "
    "| contains(?a, ?b) | strstarts(?a, 'a') | strends(str(?a), 'c')",
    "parts": "strbefore(?a, ?b) | strafter(?a, 'b') | concat(?a, ?b) | concat(?a, str(?b), 'x') | md5(?a) | sha256(?a)",
    "times": "year(?a) | month(?a) | day(?a) | hours(?a) | minutes(?a) | seconds(?a) | timezone(?a) | tz(?a)",
    "casts": "xsd:integer(?a) | xsd:decimal(?a) | xsd:double(?a) | xsd:float(?a) | xsd:boolean(?a) | xsd:string(?a) "
    "| xsd:dateTime(?a)",
}
"""Expressions by subject; each is evaluated for every term of the corpus."""

CONDITIONS = {"logic": "?a | ?a && ?b | if(?a, ?b, ?c)", "numbers": "?a + ?b", "strings": "str(?a) | strlen(?a)"}
"""Expressions that are also evaluated as conditions."""


@pytest.mark.parametrize("subject", NAMED)
def test_store_and_spark_agree(spark: SparkSession, subject: str) -> None:
    terms = corpus()
    source = random.Random(subject)
    rows = [(term, source.choice(terms), source.choice(terms)) for term in terms] + random_rows(source, terms, ROWS)
    store, texts = in_store(rows)
    expressions = NAMED[subject].split(" | ")
    conditions = CONDITIONS.get(subject, "").split(" | ") if subject in CONDITIONS else []
    results, truths = by_spark(spark, texts, expressions, conditions)
    wrong = []
    for expression, found in zip(expressions, results, strict=True):
        wrong += differences(texts, expression, by_store(store, expression, len(texts)), found)
    for expression, truth in zip(conditions, truths, strict=True):
        wrong += differences(texts, expression, condition_by_store(store, expression, len(texts)), truth)
    assert wrong == []


def test_the_hour_24_is_the_end_of_the_day_and_an_error_is_not_divided_by_zero(spark: SparkSession) -> None:
    expressions = [
        "day('2026-12-31T24:00:00Z'^^xsd:dateTime)",
        "hours('24:00:00'^^xsd:time)",
        "xsd:dateTime('9999-12-31T24:00:00.000')",
        "xsd:dateTime('2026-01-01T24:00:01Z')",
        "'2027-01-01T00:00:00Z'^^xsd:dateTime = '2026-12-31T24:00:00Z'^^xsd:dateTime",
        "'1e5'^^xsd:decimal / 0e0",
    ]
    store, rows = in_store([tuple(corpus()[:3])])
    results, _ = by_spark(spark, rows, expressions, [])
    wrong = []
    for expression, found in zip(expressions, results, strict=True):
        wrong += differences(rows, expression, by_store(store, expression, len(rows)), found)
    assert wrong == []


def test_generated_expressions_agree(spark: SparkSession) -> None:
    seed = int(os.environ.get("LAMPLIGHTER_EXPRESSIONS_SEED", "20"))
    count = int(os.environ.get("LAMPLIGHTER_EXPRESSIONS", "4"))
    print(f"seed {seed}")
    source = random.Random(seed)
    store, texts = in_store(random_rows(source, corpus(), 200))
    wrong = []
    for _ in range(max(1, count // 4)):
        expressions = [random_term(source, 3) for _ in range(2)]
        conditions = [random_condition(source, 3) for _ in range(2)]
        results, truths = by_spark(spark, texts, expressions, conditions)
        for expression, found in zip(expressions, results, strict=True):
            wrong += differences(texts, expression, by_store(store, expression, len(texts)), found)
        for expression, truth in zip(conditions, truths, strict=True):
            wrong += differences(texts, expression, condition_by_store(store, expression, len(texts)), truth)
    assert wrong == []


def test_columns_grow_linearly(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from lamplighter.cloud_sync.fleet.sparql.expressions import Expressions

    def size(expression: str) -> int:
        tree, _ = tree_and_constants(expression)
        column = Expressions(lambda part: F.col(str(part[0]))).condition(tree)
        return len(str(column))

    nested = "?a"
    sizes = []
    for _ in range(4):
        nested = f"if(({nested} + ?b) = ?c, lcase(?a), ?b)"
        sizes.append(size(nested))
    steps = [after - before for before, after in pairwise(sizes)]
    assert steps[-1] <= steps[0] * 1.2


@pytest.mark.parametrize(
    ("expression", "construct", "token"),
    [
        ("regex(?a, 'x')", "REGEX", 1),
        ("1 + rand()", "RAND", 3),
        ("<urn:f>(?a)", "the function <urn:f>", 1),
        ("?a || NOT EXISTS { ?a ?b ?c }", "NOT EXISTS", 3),
    ],
)
def test_what_is_not_compiled_is_named(expression: str, construct: str, token: int) -> None:
    with pytest.raises(NotCompiledError) as caught:
        tree_and_constants(expression)
    assert (caught.value.construct, caught.value.token) == (construct, token)
