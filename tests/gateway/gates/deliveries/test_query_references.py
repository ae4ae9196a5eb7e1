"""The query that a registration names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lamplighter.engine.errors import ForcedBindingError, MalformedRequestError, UnknownResourceError
from lamplighter.gateway.gates.deliveries.api import QueryReference, resolve_query
from tests.support.gateway_parts import application
from tests.support.tables import each_row

HALL = application(
    "hall",
    {
        "graphs": {"default-graph-uri": "http://e/g"},
        "queries": {
            "ROOM": {
                "sparql": "SELECT ?v { ?room <http://e/p> ?v }",
                "forcedBindings": {"room": {"type": "uri", "value": ""}},
            }
        },
        "updates": {},
    },
)
QUERY = "SELECT ?v { ?s <http://e/p> ?v }"


def asked(**members: Any) -> Any:
    return resolve_query(msgspec.convert(members, QueryReference), {"hall": HALL})


def test_text_with_its_graphs() -> None:
    assert asked(query=QUERY) == (QUERY, None, None)
    members = {"query": QUERY, "default-graph-uri": "http://e/a", "named-graph-uri": ["http://e/b", "http://e/c"]}
    assert asked(**members) == (QUERY, ("<http://e/a>",), ("<http://e/b>", "<http://e/c>"))


def test_query_of_an_application_with_a_forced_binding_and_its_graphs() -> None:
    text, default, named = asked(application="hall", name="ROOM", forced_bindings={"room": "http://e/room"})
    assert "<http://e/room> <http://e/p> ?v" in " ".join(text.split())
    assert "FROM <http://e/g>" in text
    assert (default, named) == (None, None)


@each_row(
    ("members", "error"),
    [
        ({}, MalformedRequestError),
        ({"application": "hall"}, MalformedRequestError),
        ({"query": QUERY, "name": "ROOM"}, MalformedRequestError),
        ({"query": QUERY, "forced_bindings": {"s": "x"}}, MalformedRequestError),
        ({"query": QUERY, "default-graph-uri": "relative"}, MalformedRequestError),
        ({"application": "hall", "name": "ROOM", "default-graph-uri": "http://e/a"}, MalformedRequestError),
        ({"application": "hall", "name": "NONE"}, UnknownResourceError),
        ({"application": "none", "name": "ROOM"}, UnknownResourceError),
        ({"application": "hall", "name": "ROOM"}, ForcedBindingError),
        ({"application": "hall", "name": "ROOM", "forced_bindings": {"other": "x"}}, ForcedBindingError),
        ({"application": "hall", "name": "ROOM", "forced_bindings": {"room": "no> iri"}}, ForcedBindingError),
        ({"application": "hall", "name": "ROOM", "forced_bindings": {"room": {"a": 1}}}, ForcedBindingError),
    ],
)
def test_what_names_no_query_is_refused(members: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        asked(**members)
