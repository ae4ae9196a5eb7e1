"""Whatever is given for a variable stays in its place, and arrives as what it was."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyoxigraph as ox
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ForcedBindingError, JsapError
from lamplighter.engine.protocol.jsap import Jsap, parse
from lamplighter.engine.sparql.forced_bindings import ForcedBinding, bind
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.terms import XSD, Bag, Term, is_iri, is_literal, lexical, literal
from tests.support.amounts import AMOUNTS
from tests.support.tables import each_row

NAMESPACES = {"ex": "http://example.org/", "": "http://empty.example/"}


def application(sparql: str, **declared: Any) -> Jsap:
    entry = {"sparql": sparql, "forcedBindings": declared}
    return parse(json.dumps({"namespaces": NAMESPACES, "updates": {"U": entry}, "queries": {"U": entry}}).encode())


def written(value: Any, declared: dict[str, Any]) -> Term:
    """The term that a value of `?x` becomes."""
    prologue, _, text = application("~ ?x", x=declared).update_text("U", {}, {"x": value}).partition("~")
    assert "?x" not in prologue
    return text.strip()


@each_row(
    ("declared", "value", "term"),
    [
        ({}, "text", '"text"'),
        ({}, "", '""'),
        ({}, 3, f'"3"^^<{XSD}integer>'),
        ({}, True, f'"true"^^<{XSD}boolean>'),
        ({}, 0.5, f'"0.5"^^<{XSD}double>'),
        ({}, math.inf, f'"INF"^^<{XSD}double>'),
        ({}, -math.inf, f'"-INF"^^<{XSD}double>'),
        ({}, math.nan, f'"NaN"^^<{XSD}double>'),
        ({}, Decimal("1E+2"), f'"100"^^<{XSD}decimal>'),
        ({}, datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC), f'"2026-11-21T01:02:03+00:00"^^<{XSD}dateTime>'),
        ({"datatype": "xsd:decimal", "value": "0.0"}, "22.5", f'"22.5"^^<{XSD}decimal>'),
        ({"datatype": XSD + "decimal"}, 22, f'"22"^^<{XSD}decimal>'),
        ({"datatype": "xsd:decimal"}, 1e-7, f'"0.0000001"^^<{XSD}decimal>'),
        ({"datatype": "ex:unit"}, "5 km", '"5 km"^^<http://example.org/unit>'),
        ({"datatype": "xsd:string"}, 5, '"5"'),
        ({"value": 0}, "5", f'"5"^^<{XSD}integer>'),
        ({"value": False}, "true", f'"true"^^<{XSD}boolean>'),
        ({"language": "it"}, "ciao", '"ciao"@it'),
        ({"language": "it"}, 5, f'"5"^^<{XSD}integer>'),
        ({"type": "uri"}, "ex:lamp", "<http://example.org/lamp>"),
        ({"type": "uri"}, ":lamp", "<http://empty.example/lamp>"),
        ({"type": "uri"}, "rdf:type", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"),
        ({"type": "uri"}, "http://a.example/b", "<http://a.example/b>"),
        ({"type": "uri"}, "urn:uuid:1", "<urn:uuid:1>"),
        ({"type": "bnode"}, "http://a.example/.well-known/genid/1", "<http://a.example/.well-known/genid/1>"),
        ({"type": "uri"}, {"type": "literal", "value": "x", "xml:lang": "de"}, '"x"@de'),
        ({}, {"type": "literal", "value": "x", "language": "de"}, '"x"@de'),
        ({}, {"type": "literal", "value": "x", "language": "de", "xml:lang": "de"}, '"x"@de'),
        ({"xml:lang": "it"}, "ciao", '"ciao"@it'),
        ({"xml:lang": "it", "language": "it"}, "ciao", '"ciao"@it'),
        ({"type": "uri"}, "URN:uuid:1", "<URN:uuid:1>"),
        ({"type": "uri"}, "mailto:a@b.example", "<mailto:a@b.example>"),
        ({"type": "uri"}, "x-own://a", "<x-own://a>"),
        ({"type": "uri"}, {"type": "uri", "value": "other:lamp"}, "<other:lamp>"),
        ({"datatype": "urn:km"}, "5", '"5"^^<urn:km>'),
        ({}, {"type": "uri", "value": "http://a.example/b"}, "<http://a.example/b>"),
    ],
)
def test_values_are_read_as_they_are_declared(declared: dict[str, Any], value: Any, term: Term) -> None:
    assert written(value, declared) == term


@each_row(
    ("declared", "value", "reason"),
    [
        ({"type": "uri"}, "lamp", "neither an absolute IRI nor a name with a prefix"),
        ({"type": "uri"}, "", "neither an absolute IRI"),
        ({"type": "uri"}, 5, "an IRI must be text"),
        ({"type": "uri"}, "http://a.example/> <b", "an IRI cannot hold"),
        ({"type": "uri"}, "ex:a } ; DROP ALL #", "an IRI cannot hold"),
        ({"type": "uri"}, "_:b0", "blank node"),
        ({"type": "bnode"}, "_:b } ; DROP ALL #", "not the label of a blank node"),
        ({"type": "bnode"}, "b0", "neither an absolute IRI"),
        ({"type": "uri"}, "other:lamp", "the prefix other: of 'other:lamp' is not declared; add it to the namespaces"),
        ({"type": "bnode"}, "other:lamp", "the prefix other: of 'other:lamp' is not declared"),
        ({"datatype": "other:unit"}, "5", "the prefix other: of 'other:unit' is not declared"),
        ({}, {"type": "literal", "value": "x", "language": "de", "xml:lang": "en"}, "language is 'de' and xml:lang is"),
        ({}, {"type": "bnode", "value": "b0"}, "blank node"),
        ({}, {"type": "literal", "value": "x", "xml:lang": "de } ;"}, "language tag"),
        ({}, {"type": "literal", "value": "x", "datatype": "a> } ;"}, "an IRI cannot hold"),
        ({}, {"value": "x"}, "unknown type of term"),
        ({}, b"bytes", "not bytes"),
        ({}, object(), "not object"),
        ({}, "\ud800", "surrogate"),
        ({"type": "uri"}, "http://a/\udfff", "surrogate"),
        ({"datatype": "xsd:decimal"}, "1e3", "'1e3' is not an xsd:decimal"),
        ({"datatype": "xsd:decimal"}, math.nan, "'NaN' is not an xsd:decimal"),
        ({"datatype": "xsd:integer"}, "0 } ; DROP ALL #", "is not an xsd:integer"),
        ({"datatype": "xsd:boolean"}, "yes", "is not an xsd:boolean"),
        ({"datatype": "xsd:dateTimeStamp"}, "2026-11-21T01:02:03", "is not an xsd:dateTimeStamp"),
        ({"value": 0}, "many", "is not an xsd:integer"),
    ],
)
def test_what_is_no_such_value_is_refused_by_name(declared: dict[str, Any], value: Any, reason: str) -> None:
    with pytest.raises(ForcedBindingError, match=f"U, forced binding x: .*{reason}"):
        written(value, declared)


NODE = {"type": "bnode"}


@each_row(
    "sparql, expected",
    [
        ("INSERT DATA { ?x a ex:A ; ex:p ?x }", "INSERT DATA { _:n a ex:A ; ex:p _:n }"),
        ("INSERT DATA { GRAPH ex:g { ?x ex:p 1 } }", "INSERT DATA { GRAPH ex:g { _:n ex:p 1 } }"),
        ("INSERT { ?x ex:of ?s } WHERE { ?s a ex:A }", "INSERT { _:n ex:of ?s } WHERE { ?s a ex:A }"),
        (
            "WITH ex:g DELETE { ?s ?p ?o } INSERT { ?s ?p ?x } WHERE { ?s ?p ?o } ; INSERT DATA { ?x ex:p 1 }",
            "WITH ex:g DELETE { ?s ?p ?o } INSERT { ?s ?p _:n } WHERE { ?s ?p ?o } ; INSERT DATA { _:n ex:p 1 }",
        ),
    ],
)
def test_a_blank_node_is_a_new_node_of_an_insert(sparql: str, expected: str) -> None:
    for row, values in (({}, {"x": "_:n"}), ({}, {"x": {"type": "bnode", "value": "n"}}), ({"x": "_:n"}, {})):
        text = application(f"BASE <http://e/> {sparql}", x=NODE).update_text("U", row, values)
        assert " ".join(text.partition("BASE <http://e/> ")[2].split()) == expected


def test_a_blank_node_of_an_update_is_another_one_each_time() -> None:
    engine = Engine()
    text = application("INSERT DATA { ?x ex:p 1 }", x=NODE).update_text("U", {}, {"x": "_:n"})
    nodes = {engine.update(text).added[0].s for _ in range(2)}
    assert len(nodes) == 2
    assert "_:n" not in nodes


@each_row(
    "sparql, values, reason",
    [
        ("INSERT { ex:a ex:p ?o } WHERE { ?x ex:p ?o }", "_:n", "cannot select by its label"),
        ("INSERT { ?x ex:p ?o } WHERE { ?x ex:p ?o }", "_:n", "cannot select by its label"),
        (
            "DELETE { ?x ex:p ?o } INSERT { ?x ex:q ?o } WHERE { ex:a ex:p ?o }",
            "_:n",
            "find the node by its properties",
        ),
        ("DELETE DATA { ?x ex:p 1 }", "_:n", "cannot select by its label"),
        ("INSERT DATA { GRAPH ?x { ex:a ex:p 1 } }", "_:n", "cannot select by its label"),
        ("WITH ?x INSERT { ex:a ex:p 1 } WHERE {}", "_:n", "cannot select by its label"),
        ("INSERT { ?s ex:p 1 } WHERE { ?s ex:p ?o FILTER(sameTerm(?s, ?x)) }", "_:n", "cannot select by its label"),
        ("SELECT * { ?x ?p ?o }", "_:n", "cannot select by its label"),
        ("INSERT { ?s ex:p ?x } WHERE { ?s ?p ?o }", ["_:n", "_:m"], "which VALUES cannot have"),
    ],
)
def test_a_blank_node_is_refused_where_it_would_match_anything(sparql: str, values: Any, reason: str) -> None:
    with pytest.raises(ForcedBindingError, match=rf"U, forced binding \?x: _:n is a blank node, .*{reason}"):
        application(sparql, x=NODE).update_text("U", {}, {"x": values})


def test_arrays_of_blank_nodes_are_new_nodes_of_each_operation() -> None:
    text = application("INSERT DATA { ?x ex:p 1 }", x=NODE).update_text("U", {}, {"x": ["_:n", "_:m"]})
    assert len(Engine().update(text).added) == 2


def test_two_spellings_of_a_declared_language_that_differ_are_refused() -> None:
    with pytest.raises(JsapError, match=r"updates\.U\.forcedBindings\.x: language and xml:lang are two spellings"):
        application("~ ?x", x={"language": "it", "xml:lang": "de"})


def test_a_number_may_be_a_limit() -> None:
    count, other = literal("10", datatype=XSD + "integer"), literal("1.5", datatype=XSD + "decimal")
    found = bind("SELECT * { ?s ?p ?n } LIMIT ?n OFFSET ?n", {"n": count})
    assert " ".join(found.split()) == f"SELECT * {{ ?s ?p {count} }} LIMIT 10 OFFSET 10"
    assert bind("SELECT * {} LIMIT ?n", {"n": other}).endswith(f"LIMIT  {other} ")


def test_a_row_gives_its_terms_and_keywords_go_before_it() -> None:
    found = application("~ ?a ?b ?c", a={"type": "uri"}, b={"value": "default"}, c={})
    row = {"a": "<http://a>", "b": '"from the row"@en', "other": '"x"'}
    text = found.update_text("U", row, {"c": "given"}).partition("~")[2]
    assert [token.text for token in tokens(text)] == ["<http://a>", '"from the row"', "@en", '"given"']
    assert '"given"' in found.update_text("U", {"c": '"row"'}, {"c": "given"})
    with pytest.raises(ForcedBindingError, match=r"\?a: _:b0 is a blank node"):
        found.update_text("U", {"a": "_:b0"})


def test_arrays_are_several_bindings_at_once() -> None:
    engine = Engine()
    insert = application("INSERT DATA { ?s ex:p ?v ; ex:q ?w }", s={"type": "uri"}, v={}, w={"value": "same"})
    engine.update(insert.update_text("U", {}, {"s": ["ex:1", "ex:2"], "v": [1, "two"]}))
    query = application("SELECT ?s ?v { ?s ex:p ?v }", s={"type": "uri"}, v={})
    bag = engine.query(query.query_text("U", {}, {"s": ["ex:2", "ex:3"]})).value
    assert bag == Bag(("s", "v"), [("<http://example.org/2>", '"two"')])
    bag = engine.query(query.query_text("U", {}, {"s": ["ex:2", None], "v": ["two", 1]})).value
    assert isinstance(bag, Bag) and len(bag) == 2
    with pytest.raises(ForcedBindingError, match=r"differ in length: \?s has 1, \?v has 2"):
        query.query_text("U", {}, {"s": ["ex:1"], "v": [1, 2]})


@each_row(
    "text",
    [
        "SELECT ?s ?v { ?s ex:p ?v }",
        "SELECT DISTINCT ?v ?s WHERE { ?s ex:p ?v } ORDER BY ?s DESC(?v)",
        "SELECT ?s (MAX(?v) AS ?m) { ?s ex:p ?v } GROUP BY ?s HAVING (?s != ex:z) LIMIT 9",
        "SELECT ?v { { SELECT ?s (MAX(?w) AS ?v) { ?s ex:p ?w } GROUP BY ?s } }",
    ],
)
def test_a_variable_that_is_selected_may_be_given(text: str) -> None:
    engine = Engine()
    engine.update("PREFIX ex: <http://example.org/> INSERT DATA { ex:1 ex:p 1 . ex:2 ex:p 2 }")
    query = application(text, s={"type": "uri", "value": ""})
    for value in ("ex:2", ["ex:2", "ex:3"]):
        bag = engine.query(query.query_text("U", {}, {"s": value})).value
        assert isinstance(bag, Bag) and len(bag) == 1
        assert "2" in {lexical(term) for row in bag for term in row if term}


# --- nothing breaks out -----------------------------------------------------------------------------

TEMPLATES = [
    "INSERT DATA { <a:s> <a:p> ?x }",
    "INSERT DATA { <a:s> <a:p> $x}",
    "INSERT DATA{<a:s><a:p>?x}",
    "INSERT DATA { <a:s> <a:p> ?x . } # ?x '''",
    "INSERT DATA { <a:s> <a:p> ?x ; <a:q> '?x', \"$x\", '''a'?x''' }",
    "INSERT { <a:s> <a:p> ?xy , ?x } WHERE { BIND('?x' AS ?xy) }",
    "INSERT { <a:s> <a:p> ?v } WHERE { BIND(?x AS ?v) FILTER(?x=?x||'1'<'?x') }",
    "PREFIX x: <http://e/?x#> INSERT { <a:s> <a:p> ?v , x:x } WHERE { VALUES ?v { ?x } }",
]

NASTY = st.sampled_from(
    ["'", '"', "'''", '"""', "\\", "\\'", "\n", "\r", "\t", "}", "{", ";", "#", ">", "<", "?x", "$x", "@en", "^^",
     "\x00", "\x7f", "\x85", " ", "\ufeff", "\uffff", "\U0001f4a1", "DROP ALL", "\\u0027", "\\", "%27", ".", "/*", ","]
)  # fmt: skip
TEXTS = st.lists(st.one_of(NASTY, st.text(max_size=4)), max_size=8).map("".join)
LITERALS = st.tuples(
    st.sampled_from([{}, {"language": "it"}, {"datatype": "ex:t"}, {"datatype": "http://a.example/t"}]), TEXTS
)
IRIS = st.tuples(
    st.sampled_from([{"type": "uri"}, {"type": "bnode"}]),
    st.tuples(st.sampled_from(["http://a.example/", "urn:x:", "ex:", ":", ""]), TEXTS).map("".join),
)
NUMBERS = st.tuples(
    st.sampled_from([{}, {"datatype": "xsd:decimal"}, {"datatype": "xsd:double"}, {"datatype": "xsd:integer"}]),
    st.one_of(st.integers(), st.floats(), st.decimals(allow_nan=False, allow_infinity=False, places=3), TEXTS),
)

FUZZ = settings(max_examples=AMOUNTS.of(600), suppress_health_check=list(HealthCheck))


def with_value(template: str, declared: tuple[dict[str, str], Any]) -> tuple[Jsap, str | None]:
    """The profile of a template, and its text with the value; None for a value that is refused."""
    found = application(template, x=declared[0])
    try:
        return found, found.update_text("U", {}, {"x": declared[1]})
    except ForcedBindingError:
        return found, None


def kinds(term: Term) -> list[str]:
    return [token.kind for token in tokens(term)]


@FUZZ
@given(st.one_of(LITERALS, IRIS, NUMBERS), st.sampled_from(TEMPLATES))
def test_no_value_changes_anything_but_its_own_place(declared: tuple[dict[str, str], Any], template: str) -> None:
    found, text = with_value(template, declared)
    if text is None:
        return
    term = ForcedBinding(**declared[0]).term(declared[1], found.expand)  # type: ignore[arg-type]
    around = [token.text for token in tokens(found.update_text("U", {}))]
    expected: list[str] = []
    for token in around:
        expected += [part.text for part in tokens(term)] if token in ("?x", "$x") else [token]
    assert [token.text for token in tokens(text)] == expected
    if is_iri(term):
        assert kinds(term) == ["iri"]
    else:
        assert kinds(term) in (["string"], ["string", "language"], ["string", "sign", "iri"])


@FUZZ
@given(st.one_of(LITERALS, IRIS), st.sampled_from(TEMPLATES[:6]))
def test_every_value_arrives_as_what_it_was(declared: tuple[dict[str, str], Any], template: str) -> None:
    found, text = with_value(template, declared)
    if text is None:
        return
    term = ForcedBinding(**declared[0]).term(declared[1], found.expand)  # type: ignore[arg-type]
    store = ox.Store()
    try:
        store.update(text)
    except SyntaxError:
        assert is_iri(term), "a literal can hold anything"  # the store knows IRIs better: http://[ is none
        return
    subject, predicate = ox.NamedNode("a:s"), ox.NamedNode("a:p")
    arrived = [quad.object for quad in store.quads_for_pattern(subject, predicate, None)]
    expected = (
        ox.NamedNode(lexical(term))
        if is_iri(term)
        else ox.parse(f"<a:s> <a:p> {term} .", format=ox.RdfFormat.N_TRIPLES)
    )
    wanted = expected if isinstance(expected, ox.NamedNode) else next(iter(expected)).object
    assert wanted in arrived
    assert lexical(term) == (declared[1] if is_literal(term) else found.expand(declared[1]))
    others = sum(quad.subject != subject for quad in store)
    assert (len(arrived), others) == (len({wanted, ox.Literal("?x")} if "?xy" in template else {wanted}), 0)


@FUZZ
@given(TEXTS)
def test_terms_of_rows_stay_in_their_places_too(value: str) -> None:
    try:
        text = bind("INSERT DATA { <a:s> <a:p> ?x }", {"x": literal(value)})
    except ForcedBindingError:
        assert any("\ud800" <= sign <= "\udfff" for sign in value)
        return
    store = ox.Store()
    store.update(text)
    assert [quad.object for quad in store] == [ox.Literal(value)]
