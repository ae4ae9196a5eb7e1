"""Spellings, generations, including and overriding of JSAP documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamplighter.engine.errors import JsapError
from lamplighter.engine.protocol.jsap import profile
from lamplighter.engine.protocol.jsap_tree import (
    decode_tree,
    included_addresses,
    member_lines,
    merge,
    normal,
    overridden,
)
from tests.support.tables import each_row


def test_both_spellings_of_graph_names_and_one_text_for_an_array() -> None:
    tree = normal({"graphs": {"default_graph_uri": "http://a", "using-named-graph-uri": ["http://b", "http://c"]}})
    assert tree["graphs"] == {"default-graph-uri": ["http://a"], "using-named-graph-uri": ["http://b", "http://c"]}
    tree = normal({"queries": {"Q": {"sparql": "", "graphs": {"named_graph_uri": "http://a"}}}})
    assert tree["queries"]["Q"]["graphs"] == {"named-graph-uri": ["http://a"]}


@each_row(
    ("tree", "message"),
    [
        ({"graphs": {"default-graph-uri": "a:b", "default_graph_uri": "a:b"}}, "occurs twice"),
        ({"graphs": {"default-graphs": "a:b"}}, "graphs: no member 'default-graphs' is known"),
        (
            {"updates": {"U": {"graphs": {"using-graph-uri": 1}}}},
            r"updates\.U\.graphs\.using-graph-uri: must be a string or an array",
        ),
        ({"updates": []}, "updates: must be an object"),
        ({"include": "a", "#include": "b"}, "two spellings"),
        ({"include": [1]}, "include: must be a string or an array of strings"),
        (
            {"parameters": {"path": "/sparql", "port": 8000, "subscribe": {"port": 9000}}},
            "the form of 2017.*sparql11protocol",
        ),
        ({"parameters": {}}, "the generation of the profile is unknown"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_cure(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(JsapError, match=message):
        normal(tree)


def test_profiles_of_early_2018_are_read() -> None:
    parameters = {
        "host": "h",
        "ports": {"http": 8001, "https": 8444, "ws": 9001, "wss": 9444},
        "paths": {"query": "/q", "update": "/u", "subscribe": "/s", "securePath": "/tls"},
        "methods": {"query": "GET", "update": "URL_ENCODED_POST"},
        "formats": {"query": "JSON", "update": "HTML"},
    }
    entries = {"queries": {"Q": {"sparql": ""}}, "updates": {"U": {"sparql": ""}}}
    found = profile(normal({"parameters": parameters, **entries}))
    assert (found.query_address("Q").url, found.query_address("Q").method) == ("http://h:8001/q", "GET")
    assert (found.update_address("U").url, found.update_address("U").method) == ("http://h:8001/u", "URL_ENCODED_POST")
    assert found.subscribe_url("Q") == "ws://h:9001/s"
    secure = overridden(normal({"parameters": parameters, **entries}), ["sparql11seprotocol.protocol=wss"])
    assert profile(secure).subscribe_url("Q") == "wss://h:9444/tls/s"


def test_where_both_are_there_the_current_form_counts() -> None:
    tree = normal({"host": "h", "parameters": {"subscribe": {}}, "sparql11protocol": {"port": 1}})
    assert profile(tree).sparql11protocol.port == 1


def test_of_an_included_document_scalars_and_entries_win_and_graphs_are_united() -> None:
    tree = {
        "include": ["b"],
        "host": "a",
        "sparql11protocol": {"port": 1, "query": {"path": "/a", "method": "GET"}},
        "namespaces": {"x": "http://a/x", "y": "http://a/y"},
        "graphs": {"default-graph-uri": ["http://1", "http://2"], "using-graph-uri": ["http://u"]},
        "updates": {"U": {"sparql": "a", "forcedBindings": {"v": {"value": 1}}}, "V": {"sparql": "a"}},
        "extended": {"one": {"a": 1, "b": [1]}, "two": 2},
    }
    other = {
        "include": ["c"],
        "host": "b",
        "sparql11protocol": {"query": {"path": "/b"}},
        "namespaces": {"y": "http://b/y"},
        "graphs": {"default-graph-uri": ["http://2", "http://3"], "named-graph-uri": ["http://n"]},
        "updates": {"U": {"sparql": "b"}},
        "queries": {"Q": {"sparql": "b"}},
        "extended": {"one": {"b": [2]}, "three": 3},
    }
    assert merge(tree, other) == {
        "include": ["b"],
        "host": "b",
        "sparql11protocol": {"port": 1, "query": {"path": "/b", "method": "GET"}},
        "namespaces": {"x": "http://a/x", "y": "http://b/y"},
        "graphs": {
            "default-graph-uri": ["http://1", "http://2", "http://3"],
            "named-graph-uri": ["http://n"],
            "using-graph-uri": ["http://u"],
        },
        "updates": {"U": {"sparql": "b"}, "V": {"sparql": "a"}},
        "queries": {"Q": {"sparql": "b"}},
        "extended": {"one": {"a": 1, "b": [2]}, "two": 2, "three": 3},
    }
    assert included_addresses(normal({"#include": "b.jsap"})) == ["b.jsap"]


@each_row(
    ("setting", "members"),
    [
        ("sparql11protocol.port=8001", {"sparql11protocol": {"port": 8001, "protocol": "http"}}),
        ("host=10.0.0.1", {"host": "10.0.0.1"}),
        ("host=", {"host": ""}),
        ("extended.a.b=x=y", {"extended": {"a": {"b": "x=y"}}}),
        ('graphs.default-graph-uri=["http://g"]', {"graphs": {"default-graph-uri": ["http://g"]}}),
        ("graphs.default_graph_uri=http://g", {"graphs": {"default-graph-uri": "http://g"}}),
    ],
)
def test_settings_take_the_place_of_what_the_document_says(setting: str, members: dict[str, Any]) -> None:
    tree = {"host": "h", "sparql11protocol": {"port": 8000, "protocol": "http"}}
    assert overridden(tree, [setting]) == {**tree, **members}
    assert tree["sparql11protocol"] == {"port": 8000, "protocol": "http"}, "the tree itself is not changed"


@each_row("setting", ["host", "=1", "a..b=1", ".a=1"])
def test_what_is_no_setting_is_said(setting: str) -> None:
    with pytest.raises(JsapError, match=r"sparql11protocol\.port=8001"):
        overridden({}, [setting])


def test_what_is_no_object_is_said() -> None:
    assert decode_tree(json.dumps({"a": 1}).encode()) == {"a": 1}
    for document in (b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(JsapError):
            decode_tree(document)


def test_lines_of_members() -> None:
    document = """{
      "a": {"b": "x: {\\" y", "c":
        [{"d": 1}, [2]],
      "\\u00e9": {"f": {}}}, "g.h": 1,
      "i": true
    }"""
    lines = {"a": 2, "a.b": 2, "a.c": 2, "a.é": 4, "a.é.f": 4, "g.h": 4, "i": 5}
    assert member_lines(document.encode()) == lines
    assert json.loads(document)["a"]["c"]


@each_row("document", [b"", b"}]:", b'{"a', b"\xff{", b'{"a": {"b": '])
def test_lines_of_a_document_that_is_no_json(document: bytes) -> None:
    assert set(member_lines(document)) <= {"a", "a.b"}
