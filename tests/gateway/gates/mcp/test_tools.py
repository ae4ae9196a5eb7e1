"""Tools of applications: names, descriptions, schemas, and arguments that stay in their places."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mcp_types import Tool

from lamplighter.engine.access import Access, Graphs
from lamplighter.engine.errors import ForcedBindingError
from lamplighter.engine.protocol.jsap import parse
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.gateway.gates.mcp.schemas import Schema, value_schema, values
from lamplighter.gateway.gates.mcp.tools import AnyTool, QueryTool, UpdateTool, tools
from lamplighter.gateway.settings import McpSettings
from lamplighter.gateway.state.applications import Application
from tests.support.amounts import AMOUNTS
from tests.support.context_client import APPLICATION
from tests.support.hostile_calls import ATTACKS
from tests.support.tables import each_row

ALL = McpSettings(enabled=True, updates=True, sparql=True)
EX = "http://example.org/"


def found(document: dict[str, Any], name: str = "house", allowed: McpSettings = ALL) -> dict[str, AnyTool]:
    document = {"namespaces": {"ex": EX}, **document}
    application = Application(name, "0", parse(json.dumps(document).encode()))
    return tools([application], allowed)


def of_query(sparql: str, **more: Any) -> QueryTool:
    [tool] = found({"queries": {"Q": {"sparql": sparql, **more}}}, allowed=McpSettings(enabled=True)).values()
    assert isinstance(tool, QueryTool)
    return tool


def of_update(sparql: str, **more: Any) -> UpdateTool:
    tool = found({"updates": {"U": {"sparql": sparql, **more}}})["house-U"]
    assert isinstance(tool, UpdateTool)
    return tool


# --- names ---


def test_names_are_unique_and_of_the_characters_that_clients_allow() -> None:
    query, update = {"sparql": "ASK { ?s ?p ?o }"}, {"sparql": "INSERT DATA { ex:a ex:p 1 }"}
    both = found(
        {
            "queries": {
                "PLAIN": query,
                "same": query,
                "of light": query,
                "of/light": query,
                "x" * 80: query,
                "ü": query,
            },
            "updates": {"same": update},
        }
    )
    names = list(both)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert len(names) == 8 and {"sparql-query", "house-PLAIN"} < set(names)
    assert [name.rpartition("-")[0] for name in names[2:4]] == ["house-same", "house-of_light"]
    assert not {"house-same", "house-of_light"} & set(names)
    alone = list(found({"queries": {"of light": query}}))
    assert alone[1] == names[3], "a name does not depend on what else there is"


def test_a_query_cannot_take_the_name_of_the_tool_for_any_query() -> None:
    names = list(found({"queries": {"query": {"sparql": "ASK { ?s ?p ?o }"}}}, "sparql"))
    assert names[0] == "sparql-query" and re.fullmatch(r"sparql-query-[0-9a-f]{8}", names[1])


def test_what_does_not_parse_is_left_out_and_the_rest_is_served(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        names = list(
            found(
                {
                    "queries": {"GOOD": {"sparql": "ASK { ?s ?p ?o }"}, "WRONG": {"sparql": "oops"}},
                    "updates": {
                        "WRONG": {"sparql": "LOAD <http://a>"},
                        "TAKEN": {
                            "sparql": "INSERT DATA { ex:a ex:p ?request_id }",
                            "forcedBindings": {"request_id": {}},
                        },
                    },
                },
                allowed=McpSettings(enabled=True, updates=True),
            )
        )
    assert names == ["house-GOOD"]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" reason=")[0] for line in lines] == [
        "tool left out application=house operation=WRONG",
        "tool left out application=house operation=WRONG",
        "tool left out application=house operation=TAKEN",
    ]


# --- definitions ---


@each_row(
    ("declared", "schema"),
    [
        ({"type": "uri"}, {"type": "string", "format": "iri"}),
        ({"type": "bnode"}, {"type": "string", "format": "iri"}),
        ({"datatype": "xsd:integer"}, {"type": "integer"}),
        ({"datatype": "xsd:unsignedByte"}, {"type": "integer"}),
        ({"datatype": "http://www.w3.org/2001/XMLSchema#double"}, {"type": "number"}),
        ({"datatype": "xsd:decimal", "value": 1.5}, {"type": "number", "default": 1.5}),
        ({"datatype": "xsd:boolean"}, {"type": "boolean"}),
        ({"datatype": "xsd:dateTime"}, {"type": "string", "format": "date-time"}),
        ({"datatype": "xsd:date"}, {"type": "string", "format": "date"}),
        ({"datatype": "xsd:string"}, {"type": "string"}),
        ({"datatype": "ex:unit"}, {"type": "string"}),
        ({"language": "it"}, {"type": "string"}),
        ({"value": 3}, {"type": "integer", "default": 3}),
        ({"value": 0.5}, {"type": "number", "default": 0.5}),
        ({"value": False}, {"type": "boolean", "default": False}),
        ({"value": "on"}, {"type": ["string", "number", "boolean"], "default": "on"}),
        ({}, {"type": ["string", "number", "boolean"]}),
    ],
)
def test_schemas_have_the_declared_types(declared: dict[str, Any], schema: Schema) -> None:
    document = {"namespaces": {"ex": EX}, "queries": {"Q": {"sparql": "ASK {}", "forcedBindings": {"x": declared}}}}
    profile = parse(json.dumps(document).encode())
    got = value_schema(profile.queries["Q"].forced_bindings["x"], profile.expand)
    got.pop("description", None)
    assert got == schema


def test_arguments_without_a_default_are_required() -> None:
    bindings = {"a": {"value": ""}, "b": {"value": "x"}, "c": {"description": "the third"}}
    schema = of_query("SELECT ?s { ?s ex:p ?a , ?b , ?c }", forcedBindings=bindings).definition.input_schema
    assert (schema["required"], schema["additionalProperties"]) == (["a"], False)
    assert schema["properties"]["c"]["description"] == "the third; without it every value matches"


def test_descriptions_come_from_the_profile_else_from_the_text() -> None:
    assert of_query("ASK {}", description="Is there light?").definition.description == "Is there light?"
    comment = "# Lamps that are on,\n#  by room\nSELECT ?s { ?s ex:on true } # not this"
    assert of_query(comment).definition.description == "Lamps that are on, by room"
    text = "The query Q of the application house: ASK { ?s ex:on true }"
    assert of_query("ASK { ?s ex:on true }").definition.description == text
    later = of_update("CLEAR ALL", description="Forgets all.", delay="PT5S").definition
    assert later.description == "Forgets all.\nIt runs after PT5S."
    assert len(of_query(f"ASK {{}} #{'x' * 5000}").definition.description or "") == 2000


@each_row(
    ("sparql", "destructive", "idempotent"),
    [
        ("INSERT DATA { ex:a ex:p 1 }", False, True),
        ("INSERT DATA { ex:a ex:p [] }", False, False),
        ("DELETE DATA { ex:a ex:p 1 }", True, True),
        ("INSERT { ?s ex:q 1 } WHERE { ?s ex:p ?o }", False, False),
        ("DELETE { ?s ex:q 1 } INSERT { ?s ex:q 2 } WHERE { ?s ex:p ?o }", True, False),
        ("DELETE WHERE { ?s ex:p ?o }", True, False),
        ("CREATE GRAPH ex:g", False, False),
        ("ADD ex:g TO ex:h", False, False),
        ("COPY ex:g TO ex:h", True, False),
        ("INSERT DATA { ex:a ex:p 1 } ; CLEAR ALL", True, False),
    ],
)
def test_annotations_say_what_an_update_may_do(sparql: str, destructive: bool, idempotent: bool) -> None:
    hints = of_update(sparql).definition.annotations
    assert hints is not None and hints.read_only_hint is False
    assert (hints.destructive_hint, hints.idempotent_hint) == (destructive, idempotent)
    later = of_update(sparql, delay="PT5S").definition.annotations
    assert later is not None and later.idempotent_hint is False, "it would run twice"


def test_all_schemas_are_valid() -> None:
    for tool in found(APPLICATION).values():
        Draft202012Validator.check_schema(tool.definition.input_schema)
        Draft202012Validator.check_schema(tool.definition.output_schema or {})


def test_output_schemas_name_the_columns() -> None:
    schema = of_query("SELECT ?room (COUNT(*) AS ?n) { ?room ex:p ?v } GROUP BY ?room").definition.output_schema
    assert schema is not None and list(schema["properties"]["rows"]["items"]["properties"]) == ["room", "n"]
    assert (of_query("ASK {}").definition.output_schema or {})["required"] == ["boolean"]
    assert (of_query("DESCRIBE ex:a").definition.output_schema or {})["required"] == ["triples", "more"]


# --- permissions ---


def graphs(*names: str | None) -> Graphs:
    return Graphs(frozenset(name if name is None else f"<{EX}{name}>" for name in names))


@each_row(
    ("sparql", "more", "readable"),
    [
        ("SELECT * { ?s ?p ?o }", {}, [None]),
        ("SELECT * { GRAPH ?g { ?s ?p ?o } }", {}, [None, "a", "b"]),
        ("SELECT * FROM ex:a { ?s ?p ?o }", {}, ["a"]),
        ("SELECT * FROM NAMED ex:b { GRAPH ?g { ?s ?p ?o } }", {}, ["b"]),
        ("SELECT * { ?s ?p ?o }", {"graphs": {"default-graph-uri": [f"{EX}b"]}}, ["b"]),
        ("SELECT * FROM ex:a { ?s ?p ?o }", {"graphs": {"default-graph-uri": [f"{EX}b"]}}, ["a"]),
        ("SELECT * FROM ?g { ?s ?p ?o }", {"forcedBindings": {"g": {"type": "uri", "value": ""}}}, [None, "a", "b"]),
    ],
)
def test_queries_are_for_those_who_may_read_their_graphs(sparql: str, more: Any, readable: list[str | None]) -> None:
    tool = of_query(sparql, **more)
    assert tool.permits(Access()) and not tool.permits(Access(read=graphs()))
    assert [name for name in (None, "a", "b") if tool.permits(Access(read=graphs(name)))] == readable


@each_row(
    ("sparql", "more", "writable"),
    [
        ("INSERT DATA { ex:a ex:p 1 }", {}, [None]),
        ("INSERT DATA { GRAPH ex:a { ex:a ex:p 1 } }", {}, ["a"]),
        ("WITH ex:b DELETE { ?s ex:p ?o } WHERE { ?s ex:p ?o }", {}, ["b"]),
        ("INSERT { GRAPH ?g { ex:a ex:p 1 } } WHERE { GRAPH ?g {} }", {}, [None, "a", "b"]),
        (
            "INSERT DATA { GRAPH ?g { ex:a ex:p 1 } }",
            {"forcedBindings": {"g": {"type": "uri", "value": ""}}},
            [None, "a", "b"],
        ),
        ("CLEAR ALL", {}, []),
        ("CLEAR GRAPH ex:a", {}, ["a"]),
        ("INSERT { ex:a ex:p 1 } WHERE {}", {"graphs": {"using-graph-uri": [f"{EX}b"]}}, []),
    ],
)
def test_updates_are_for_those_who_may_write_their_graphs(sparql: str, more: Any, writable: list[str | None]) -> None:
    tool = of_update(sparql, **more)
    assert tool.permits(Access()) and not tool.permits(Access(write=graphs()))
    got = [name for name in (None, "a", "b") if tool.permits(Access(read=graphs(name), write=graphs(name)))]
    assert got == writable


# --- arguments ---

TEMPLATES = [
    "INSERT DATA { ex:s ex:p ?x }",
    "INSERT DATA{ex:s ex:p ?x}",
    "INSERT DATA { ex:s ex:p ?x ; ex:q '?x', '''a'?x''' } # ?x",
    "INSERT { ex:s ex:p ?v } WHERE { BIND(?x AS ?v) FILTER(?x=?x||'1'<'?x') }",
    "DELETE { ?x ex:p ?o } WHERE { ?x ex:p ?o }",
]
DECLARED = [
    *({}, {"type": "uri"}, {"language": "it"}, {"value": 3}, {"datatype": "ex:t"}),
    *({"datatype": f"xsd:{name}"} for name in ("integer", "decimal", "double", "boolean", "dateTime", "int", "string")),
]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(ATTACKS), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["type", "value", "x"]), inner)
    ),
    max_leaves=5,
)


@settings(max_examples=AMOUNTS.of(600), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEMPLATES), st.sampled_from(DECLARED), JSON, st.booleans())
def test_no_argument_changes_anything_but_its_own_place(
    template: str, declared: dict[str, Any], value: Any, needed: bool
) -> None:
    binding = {**declared, "value": ""} if needed and "value" not in declared else declared
    document = {
        "namespaces": {"ex": EX},
        "updates": {"U": {"sparql": template, "forcedBindings": {"x": binding}}},
    }
    application = Application("house", "0", parse(json.dumps(document).encode()))
    profile = application.profile
    forced = profile.updates["U"].forced_bindings["x"]
    schema = {"properties": {"x": value_schema(forced, profile.expand)}}
    tool = UpdateTool(Tool(name="t", input_schema=schema), application, "U", [])
    try:
        text, request_id = tool.request({"x": value})
    except ForcedBindingError as error:
        assert str(error).startswith(("t, argument x: ", "U, forced binding x: ", "U needs a value for ?x"))
        return
    assert request_id is None and not isinstance(value, list | dict)
    given_value = forced.value if value is None else value
    if schema["properties"]["x"]["type"] == "integer" and isinstance(given_value, float):
        given_value = int(given_value)  # JSON has one kind of number
    expected: list[str] = []
    for token in tokens(profile.declarations + template):
        replaced = token.text == "?x" and given_value is not None
        term = forced.term(given_value, profile.expand) if replaced else token.text
        expected += [part.text for part in tokens(term)] if replaced else [token.text]
    assert [token.text for token in tokens(text)] == expected


@each_row(
    ("kind", "value", "expected"),
    [
        ("integer", 5, 5),
        ("integer", 5.0, 5),
        ("integer", 5.5, None),
        ("integer", True, None),
        ("integer", "5", None),
        ("number", 5, 5),
        ("number", 5.0, 5.0),
        ("number", False, None),
        ("boolean", 1, None),
        ("string", "\ud800", None),
        (["string", "number"], "a", "a"),
        (["string", "number"], [], None),
    ],
)
def test_arguments_are_of_their_types(kind: str | list[str], value: object, expected: object) -> None:
    schema = {"properties": {"x": {"type": kind}}}
    if expected is None:
        with pytest.raises(ForcedBindingError, match="tool, argument x: "):
            values("tool", schema, {"x": value})
        return
    [found] = values("tool", schema, {"x": value}).values()
    assert (found, type(found)) == (expected, type(expected))
    assert values("tool", schema, {"x": None}) == {}
