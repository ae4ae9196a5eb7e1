import json
from typing import Any

import pytest

from engine.core import Engine
from engine.errors import ForcedBindingError, JsapError
from engine.forced_bindings import bound
from engine.jsap import Jsap, parse
from engine.terms import iri, literal


def profile(**members: Any) -> Jsap:
    return parse(json.dumps({"namespaces": {"ex": "http://example.org/"}, **members}).encode())


@pytest.mark.parametrize(
    ("declared", "term"),
    [
        ({"type": "uri", "value": "ex:lamp"}, "<http://example.org/lamp>"),
        ({"type": "uri", "value": "urn:x:1"}, "<urn:x:1>"),
        ({"type": "uri", "value": "http://example.org/a"}, "<http://example.org/a>"),
        ({"type": "literal", "value": 'it\'s "so"\n'}, '"it\'s \\"so\\"\\n"'),
        (
            {"type": "literal", "value": "1", "datatype": "xsd:integer"},
            '"1"^^<http://www.w3.org/2001/XMLSchema#integer>',
        ),
        ({"type": "literal", "value": 1}, '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'),
        ({"type": "literal", "value": True}, '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>'),
        ({"type": "literal", "value": 1.5}, '"1.5"^^<http://www.w3.org/2001/XMLSchema#double>'),
        ({"type": "literal", "value": "ciao", "language": "it"}, '"ciao"@it'),
    ],
)
def test_defaults_are_written_by_their_type(declared: dict[str, Any], term: str) -> None:
    text = profile(
        updates={"U": {"sparql": "INSERT DATA { ?x ex:p 1 }", "forcedBindings": {"x": declared}}}
    ).update_text("U", {})
    assert f"INSERT DATA {{  {term}  ex:p 1 }}" in text


def test_given_values_replace_defaults_and_others_are_ignored() -> None:
    application = profile(
        updates={"U": {"sparql": "INSERT DATA { <a:s> ex:p ?x }", "forcedBindings": {"x": {"value": "default"}}}}
    )
    text = application.update_text("U", {"x": literal("given"), "other": literal("ignored")})
    assert '"given"' in text
    assert "default" not in text
    assert "ignored" not in text


def test_missing_value_is_named() -> None:
    application = profile(
        updates={"U": {"sparql": "INSERT DATA { ?x ex:p 1 }", "forcedBindings": {"x": {"type": "uri"}}}}
    )
    with pytest.raises(ForcedBindingError, match=r"U needs a value for \?x"):
        application.update_text("U", {})


def test_unknown_name_says_which_there_are() -> None:
    with pytest.raises(JsapError, match="A, B"):
        profile(queries={"B": {"sparql": ""}, "A": {"sparql": ""}}).query_text("C", {})


def test_only_whole_variables_outside_of_strings_and_iris_are_bound() -> None:
    text = "SELECT ?xy { ?x $x ?xy . FILTER(?x<?y) # ?x\n FILTER(?y = '?x') <http://e/?x> ?p 1 }"
    expected = "SELECT ?xy {  <a:t>   <a:t>  ?xy . FILTER( <a:t> <?y) # ?x\n FILTER(?y = '?x') <http://e/?x> ?p 1 }"
    assert bound(text, {"x": "<a:t>"}) == expected


def test_blank_node_cannot_be_bound() -> None:
    with pytest.raises(ForcedBindingError, match="_:b"):
        bound("INSERT DATA { ?x <a:p> 1 }", {"x": "_:b"})


@pytest.mark.parametrize(
    "value", ["' } ; DROP ALL #", '" } ; DROP ALL #', "\\", '\\" } ; DROP ALL #', "\n", "a\r\nb", "'''"]
)
def test_no_value_breaks_out_of_its_place(value: str) -> None:
    engine = Engine()
    engine.update("INSERT DATA { <a:keep> <a:p> 1 }")
    commit = engine.update(bound("INSERT DATA { <a:s> <a:p> ?x }", {"x": literal(value)}))
    assert [(quad.s, quad.o) for quad in commit.added] == [("<a:s>", literal(value))]
    assert engine.quad_count == 2


@pytest.mark.parametrize(
    "value", ["http://e/> <a:p> 1 } ; DROP ALL #", "a b", "a{b", "a\\b", 'a"b', "a^b", "a`b", "a|b"]
)
def test_iris_that_could_break_out_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="an IRI cannot hold"):
        iri(value)


@pytest.mark.parametrize(
    ("aggregators", "place"),
    [
        ({"a": {"query": "NONE", "added": "U"}}, "aggregators.a.query"),
        ({"a": {"query": "Q", "added": "NONE"}}, "aggregators.a.added"),
        ({"a": {"query": "Q", "removed": "NONE"}}, "aggregators.a.removed"),
        ({"a": {"query": "Q"}}, "it does nothing"),
        ({"a": {"query": "Q", "aded": "U"}}, "aded"),
    ],
)
def test_wrong_aggregator_is_named(aggregators: dict[str, Any], place: str) -> None:
    with pytest.raises(JsapError, match=place):
        profile(
            queries={"Q": {"sparql": "SELECT * {}"}},
            updates={"U": {"sparql": "CLEAR ALL"}},
            extended={"lamplighter": {"aggregators": aggregators}},
        )


def test_delay_and_at_exclude_each_other() -> None:
    with pytest.raises(JsapError, match=r"updates\.U"):
        profile(updates={"U": {"sparql": "CLEAR ALL", "delay": "PT1S", "at": "2030-01-01T00:00:00Z"}})


def test_what_becomes_of_a_missed_update_is_said_for_delayed_ones_only() -> None:
    assert (
        profile(updates={"U": {"sparql": "CLEAR ALL", "delay": "PT1S", "missed": "skip"}}).updates["U"].missed == "skip"
    )
    with pytest.raises(JsapError, match=r"updates\.U: missed is for delayed updates"):
        profile(updates={"U": {"sparql": "CLEAR ALL", "missed": "skip"}})
    with pytest.raises(JsapError, match=r"missed"):
        profile(updates={"U": {"sparql": "CLEAR ALL", "delay": "PT1S", "missed": "later"}})


@pytest.mark.parametrize("document", [b"", b"[]", b'{"updates": 1}', b'{"updates": {"U": {}}}', b"\xff"])
def test_what_is_no_jsap_is_said(document: bytes) -> None:
    with pytest.raises(JsapError):
        parse(document)
