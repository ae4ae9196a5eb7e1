"""Paths and query options are bounded before anything is compiled of them."""

from __future__ import annotations

import pytest

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.gateway.gates.sensorthings.addresses import STEPS_MAX as ADDRESS_STEPS_MAX
from lamplighter.gateway.gates.sensorthings.addresses import address
from lamplighter.gateway.gates.sensorthings.compilation import NUMBER_CHARS_MAX
from lamplighter.gateway.gates.sensorthings.entities import DATASTREAMS, OBSERVATIONS, THINGS
from lamplighter.gateway.gates.sensorthings.expressions import (
    DEPTH_MAX,
    NODES_MAX,
    ORDER_KEYS_MAX,
    STEPS_MAX,
    filter_expression,
    order_keys,
)
from lamplighter.gateway.gates.sensorthings.options import EXPANSION_DEPTH_MAX, EXPANSIONS_MAX, PAGE_MAX, options
from lamplighter.gateway.gates.sensorthings.queries import path_queries
from lamplighter.gateway.gates.sensorthings.tokens import EXPRESSION_CHARS_MAX, ExpressionError
from tests.support.tables import each_row

BASE = "http://gateway.example/"


def test_a_page_has_a_largest_size() -> None:
    for asked, given in (("0", 0), ("7", 7), (str(PAGE_MAX), PAGE_MAX), (str(PAGE_MAX + 1), PAGE_MAX)):
        assert options({"$top": asked}, THINGS, many=True).top == given


def paths(count: int) -> str:
    """Expansions of Things to and fro, so many deep."""
    return "/".join(("Datastreams", "Thing")[number % 2] for number in range(count))


def test_expansions_are_bounded_in_number_and_depth() -> None:
    several = ",".join(["Datastreams", "Locations"] * (EXPANSIONS_MAX // 2))
    options({"$expand": several}, THINGS, many=True)
    with pytest.raises(ExpressionError, match=f"more than {EXPANSIONS_MAX} expansions"):
        options({"$expand": f"{several},Datastreams"}, THINGS, many=True)
    options({"$expand": paths(EXPANSION_DEPTH_MAX)}, THINGS, many=True)
    with pytest.raises(ExpressionError, match="nested more than"):
        options({"$expand": paths(EXPANSION_DEPTH_MAX + 1)}, THINGS, many=True)


@each_row(
    "text",
    [
        "Datastreams/Observations,Datastreams($top=1;$select=name),Datastreams/Sensor",
        "Datastreams($top=1;$select=name;$expand=Observations),Datastreams/Sensor",
        "Datastreams/Sensor,Datastreams($select=name;$expand=Observations;$top=1)",
    ],
)
def test_expansions_of_one_navigation_are_one(text: str) -> None:
    found = options({"$expand": text}, THINGS, many=True).expand["Datastreams"]
    assert (found.top, found.select, set(found.expand)) == (1, ("name",), {"Observations", "Sensor"})
    following = found.further()
    assert set(options(following, DATASTREAMS, many=True).expand) == {"Observations", "Sensor"}, "on each page"


@each_row(
    ("text", "most", "told"),
    [
        ("{0}result gt 1{1}", DEPTH_MAX - 1, "nested more than"),
        ("{2}result gt 1", DEPTH_MAX, "too many not"),
        ("{3}result gt 1", (NODES_MAX - 3) // 4, "more than 500 parts"),
        ("{4}result gt 1", STEPS_MAX - 1, "at most 6 steps"),
        ("name eq '{5}'", EXPRESSION_CHARS_MAX - 10, "longer than 8192 characters"),
    ],
)
def test_conditions_are_bounded(text: str, most: int, told: str) -> None:
    def made(count: int) -> str:
        parts = ("(", ")", "not ", "result gt 1 or ", "Datastream/", "x")
        return text.format(*(part * count for part in parts))

    filter_expression(made(most))
    with pytest.raises(ExpressionError, match=told):
        filter_expression(made(most + 1))


def test_sort_keys_are_bounded() -> None:
    assert len(order_keys(",".join(["name"] * ORDER_KEYS_MAX))) == ORDER_KEYS_MAX
    with pytest.raises(ExpressionError, match="more than 8 keys"):
        order_keys(",".join(["name"] * (ORDER_KEYS_MAX + 1)))


def test_paths_are_bounded() -> None:
    steps = "/".join(["Things('a')", *["Datastreams('b')", "Thing"] * ADDRESS_STEPS_MAX])
    assert len(address("/".join(steps.split("/")[:ADDRESS_STEPS_MAX]), BASE).steps) == ADDRESS_STEPS_MAX
    with pytest.raises(MalformedRequestError, match="at most 8 steps"):
        address("/".join(steps.split("/")[: ADDRESS_STEPS_MAX + 1]), BASE)


@each_row(
    ("number", "datatype"),
    [
        ("9223372036854775807", "integer"),
        ("9223372036854775808", "double"),
        ("0.5", "decimal"),
        ("0." + "5" * 18, "decimal"),
        ("0." + "5" * 19, "double"),
        ("9223372036854775808.5", "double"),
        ("1e3", "double"),
        ("9" * NUMBER_CHARS_MAX, "double"),
        ("9" * (NUMBER_CHARS_MAX + 1), None),
    ],
)
def test_numbers_have_a_datatype_that_the_store_computes_with(number: str, datatype: str | None) -> None:
    found = options({"$filter": f"result lt {number}"}, OBSERVATIONS, many=True)
    if datatype is None:
        with pytest.raises(ExpressionError, match="at most 40 characters"):
            path_queries(address("Observations", BASE).steps, found, BASE, many=True)
        return
    page = path_queries(address("Observations", BASE).steps, found, BASE, many=True).page
    assert f'"{number}"^^<http://www.w3.org/2001/XMLSchema#{datatype}>' in page
