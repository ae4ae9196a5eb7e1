"""Rows of views for programs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from lamplighter.gateway.page.rows import csv_text, device_rows, link_rows, log_rows, outcome_rows, result_rows
from tests.support.tables import each_row

XSD = "http://www.w3.org/2001/XMLSchema#"


def result(*terms: dict[str, Any] | None) -> bytes:
    rows = [{} if term is None else {"x": term} for term in terms]
    return json.dumps({"head": {"vars": ["x"]}, "results": {"bindings": rows}}).encode()


@each_row(
    ("term", "value"),
    [
        (None, None),
        ({"type": "uri", "value": "http://a"}, "http://a"),
        ({"type": "literal", "value": 'a,"b"\n<script>'}, 'a,"b"\n<script>'),
        ({"type": "literal", "value": "21.5", "datatype": f"{XSD}decimal"}, 21.5),
        ({"type": "literal", "value": "7", "datatype": f"{XSD}integer"}, 7),
        ({"type": "literal", "value": "9" * 5000, "datatype": f"{XSD}integer"}, "9" * 5000),
        ({"type": "literal", "value": "NaN", "datatype": f"{XSD}double"}, "NaN"),
        ({"type": "literal", "value": "abc", "datatype": f"{XSD}integer"}, "abc"),
        ({"type": "literal", "value": "true", "datatype": f"{XSD}boolean"}, True),
        ({"type": "literal", "value": "1", "datatype": f"{XSD}boolean"}, "1"),
    ],
)
def test_numbers_and_booleans_are_values_and_all_else_is_text(term: dict[str, Any] | None, value: object) -> None:
    assert result_rows(result(term)) == [{"x": value}]


def test_a_triple_term_is_text() -> None:
    parts = {name: {"type": "uri", "value": f"http://{name}"} for name in ("subject", "predicate", "object")}
    (row,) = result_rows(result({"type": "triple", "value": parts}))
    assert row == {"x": "<<( http://subject http://predicate http://object )>>"}


def test_an_ask_is_one_row() -> None:
    assert result_rows(b'{"head":{},"boolean":true}') == [{"boolean": True}]


def test_csv_has_every_member_and_reads_back() -> None:
    text = csv_text([{"a": 'x,"\n', "b": None}, {"b": True, "c": {"kind": "ws"}}])
    assert list(csv.reader(io.StringIO(text))) == [["a", "b", "c"], ['x,"\n', "", ""], ["", "true", '{"kind": "ws"}']]


def test_records_are_rows_with_their_counts() -> None:
    quad = ["<http://a>", "<http://b>", "1", None]
    commit = {"record": "1/2", "ts": "t", "trusted": True, "type": "commit", "cause": {"kind": "http", "id": "x"}}
    gap = {"record": "2/1", "ts": "t", "trusted": False, "type": "gap"}
    first, second = log_rows({"records": [commit | {"counts": {"d": 0, "a": 7, "k": 1}, "a": [quad]}, gap]})
    assert (first["cause"], first["cause_id"], first["added"], first["added_quads"]) == ("http", "x", 7, [quad])
    assert (second["record"], second["type"], second["cause"], second["added"]) == ("2/1", "gap", None, None)
    assert list(first) == list(second)


def test_devices_are_rows_with_the_keys_of_their_parts() -> None:
    [row] = device_rows({"devices": [{"id": "a/b", "sensors": [{"key": "x"}, {"key": "y"}], "actuators": []}]})
    assert (row["id"], row["sensors"], row["actuators"], row["online"]) == ("a/b", ["x", "y"], [], None)


def test_outcomes_and_links_are_rows() -> None:
    assert outcome_rows({"outcomes": [{"actuator": "<http://a>", "time": "t", "record": "1/2"}]}) == [
        {"time": "t", "actuator": "<http://a>", "state": None, "refused": None, "record": "1/2", "actuation": None}
    ]
    links = [{"link": "reading", "said": "it was read"}, {"link": "update", "time": "t", "after_s": 0.5, "said": "set"}]
    assert [(row["link"], row["after_s"]) for row in link_rows({"links": links})] == [
        ("reading", None),
        ("update", 0.5),
    ]
