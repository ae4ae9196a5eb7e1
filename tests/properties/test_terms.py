"""Codecs and laws of the values that everything else passes around, with pyoxigraph's parser as the referee."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyoxigraph as ox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine.terms import (
    Bag,
    Binding,
    Quad,
    Term,
    iri,
    is_blank,
    is_iri,
    is_literal,
    lexical,
    literal,
    term_from_json,
    term_to_json,
)
from tests.support.amounts import AMOUNTS
from tests.support.oracle import answer_from_json, quad_texts, respelled, respelled_rows

XSD = "http://www.w3.org/2001/XMLSchema#"

texts = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("\\\"'\n\r\t\b\f\x00\x01\x7f\x85\u2028 @^<>_:{}#unU"),
    ),
    max_size=12,
)
iri_texts = st.builds(
    str.__add__,
    st.sampled_from(["http://example.org/", "urn:x:", "http://example.org/é#", "mailto:a@b"]),
    st.text("abcZ09-._~:/?@!$&'()*+,;=%é☃", max_size=8).map(lambda text: text.replace("%", "%41")),
)
iris = iri_texts.map(iri)
blank_nodes = st.from_regex(r"[a-zA-Z0-9_é]([a-zA-Z0-9_.-]{0,6}[a-zA-Z0-9_-])?", fullmatch=True).map(
    lambda label: f"_:{label}"
)
# Well formed by RFC 5646: language, script, region.
languages = st.from_regex(r"[a-zA-Z]{2,3}(-[a-zA-Z]{4})?(-[a-zA-Z]{2}|-[0-9]{3})?", fullmatch=True)
literals = st.one_of(
    st.builds(literal, texts),
    st.builds(lambda value, datatype: literal(value, datatype=datatype), texts, iri_texts),
    st.builds(lambda value, name: literal(value, datatype=XSD + name), texts, st.sampled_from(["string", "integer"])),
    st.builds(lambda value, language: literal(value, language=language), texts, languages),
    st.builds(lambda value, way: literal(value, language=f"ar--{way}"), texts, st.sampled_from(["ltr", "rtl"])),
)
simple_terms = st.one_of(iris, blank_nodes, literals)


def triple_term(subject: Term, predicate: Term, object_: Term) -> Term:
    return f"<<( {subject} {predicate} {object_} )>>"


terms = st.recursive(
    simple_terms, lambda inner: st.builds(triple_term, st.one_of(iris, blank_nodes), iris, inner), max_leaves=3
)
quads = st.builds(Quad, st.one_of(iris, blank_nodes), iris, terms, st.one_of(st.none(), iris, blank_nodes))

VARIABLES = ("x", "y")
# Few different rows, so that bags overlap and rows repeat.
rows = st.tuples(*[st.sampled_from([None, iri("urn:a"), literal("1"), "_:b"]) for _ in VARIABLES])
bags = st.lists(rows, max_size=6).map(lambda members: Bag(VARIABLES, members))


def counted(bag: Bag) -> Counter[Binding]:
    """The bag's rows, counted here."""
    return Counter(list(bag.rows))


# -- terms ------------------------------------------------------------------------------------------------------------


@given(terms)
def test_a_term_comes_back_from_json_as_it_was(term: Term) -> None:
    member = json.loads(json.dumps(term_to_json(term)))
    assert respelled(term_from_json(member)) == respelled(term)


@given(simple_terms)
def test_json_says_what_the_parser_reads(term: Term) -> None:
    (read,) = answer_from_json({"head": {"vars": ["x"]}, "results": {"bindings": [{"x": term_to_json(term)}]}}).ordered
    assert read == (respelled(term),)


@given(terms)
def test_equal_terms_have_one_text_after_a_round_trip(term: Term) -> None:
    once = term_from_json(term_to_json(term))
    assert term_from_json(term_to_json(once)) == once


@given(texts, st.one_of(st.none(), iri_texts), st.one_of(st.none(), languages))
def test_lexical_gives_back_the_literals_value(value: str, datatype: str | None, language: str | None) -> None:
    term = literal(value, datatype=None if language else datatype, language=language)
    assert lexical(term) == value
    (quad,) = ox.parse(f"<urn:s> <urn:p> {term} .", ox.RdfFormat.N_TRIPLES)
    assert isinstance(quad.object, ox.Literal)
    assert quad.object.value == value
    if language:
        assert quad.object.language == language.lower()
    else:
        assert quad.object.datatype.value == (datatype or XSD + "string")


@given(iri_texts)
def test_lexical_gives_back_the_iri(value: str) -> None:
    assert lexical(iri(value)) == value


@given(blank_nodes)
def test_lexical_gives_back_the_label(term: Term) -> None:
    assert lexical(term) == term[2:]


@given(texts)
def test_lexical_reads_what_the_store_writes(value: str) -> None:
    assert lexical(str(ox.Literal(value))) == value
    assert term_to_json(str(ox.Literal(value)))["value"] == value


@given(terms)
def test_a_term_is_of_one_kind(term: Term) -> None:
    kinds = [is_iri(term), is_blank(term), is_literal(term)]
    assert sum(kinds) == (0 if term.startswith("<<(") else 1)


@given(texts)
def test_an_iri_never_breaks_out_of_its_brackets(value: str) -> None:
    """Either the text is refused or it is read back as one IRI with that very text."""
    text = "urn:" + value
    try:
        term = iri(text)
    except ValueError:
        assert any(sign in '<>"{}|^`\\' or ord(sign) <= 0x20 for sign in value)
        return
    try:
        found = list(ox.parse(f"<urn:s> <urn:p> {term} .", ox.RdfFormat.N_TRIPLES))
    except SyntaxError:
        return  # not an IRI by RFC 3987 either, but still one token: the parser refuses it as a whole
    assert [quad.object for quad in found] == [ox.NamedNode(text)]


@pytest.mark.parametrize(
    "member",
    [
        {},
        {"type": "uri"},
        {"type": "uri", "value": 1},
        {"type": "uri", "value": "http://example.org/> <http://example.org/"},
        {"type": "bnode", "value": "a b"},
        {"type": "bnode", "value": ""},
        {"type": "literal", "value": "x", "xml:lang": "en> ."},
        {"type": "literal", "value": "x", "datatype": "urn:x> ."},
        {"type": "number", "value": "1"},
    ],
)
def test_json_that_is_no_term_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        term_from_json(member)


@settings(max_examples=AMOUNTS.of(200))
@given(quads)
def test_the_parser_reads_back_the_quad_that_was_written(quad: Quad) -> None:
    (read,) = ox.parse(quad.to_nquads(), ox.RdfFormat.N_QUADS)
    graph = None if quad.g is None else respelled(quad.g)
    assert quad_texts(read) == (respelled(quad.s), respelled(quad.p), respelled(quad.o), graph)


@given(st.lists(quads, max_size=4))
def test_lines_of_quads_are_a_document(members: list[Quad]) -> None:
    document = "".join(f"{quad.to_nquads()}\n" for quad in members)
    assert len(list(ox.parse(document, ox.RdfFormat.N_QUADS))) == len(members)


# -- bags -------------------------------------------------------------------------------------------------------------


@given(bags, bags)
def test_bags_add_and_subtract_by_occurrence(one: Bag, other: Bag) -> None:
    assert counted(one + other) == counted(one) + counted(other)
    assert counted(one - other) == counted(one) - counted(other)
    assert len(one) == counted(one).total()


@given(bags, bags)
def test_a_bag_is_what_was_taken_and_what_was_left(one: Bag, other: Bag) -> None:
    common = one - (one - other)
    assert common == other - (other - one)
    assert one - other + common == one
    assert counted(common) == counted(one) & counted(other)


@given(bags, bags)
def test_a_delta_leads_from_one_bag_to_the_other(before: Bag, after: Bag) -> None:
    added, removed = after - before, before - after
    assert before - removed + added == after
    assert after - added + removed == before
    assert len(removed - before) == 0
    assert len(added - (added - removed)) == 0, "a row is added and removed"
    assert (before == after) == (len(added) == len(removed) == 0)


@given(bags, bags, bags)
def test_deltas_compose(first: Bag, second: Bag, third: Bag) -> None:
    added = (second - first) + (third - second)
    removed = (first - second) + (second - third)
    assert (added - removed, removed - added) == (third - first, first - third)


@given(bags, bags, bags)
def test_addition_has_no_order_and_an_empty_bag_adds_nothing(one: Bag, two: Bag, three: Bag) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Bag(VARIABLES) == one
    assert len(one - one) == 0


@given(bags, st.randoms(use_true_random=False))
def test_equality_is_by_content_and_not_by_order(bag: Bag, random: Any) -> None:
    shuffled = list(bag.rows)
    random.shuffle(shuffled)
    assert Bag(VARIABLES, shuffled) == bag
    assert Bag(("x", "z"), bag.rows) != bag
    assert Bag(VARIABLES, [*bag.rows, (None, None)]) != bag


@given(st.lists(st.tuples(st.one_of(st.none(), terms), st.one_of(st.none(), terms)), max_size=4))
def test_a_bag_comes_back_from_json_as_it_was(members: list[Binding]) -> None:
    bag = Bag(VARIABLES, members)
    document = json.loads(json.dumps(bag.to_json()))
    back = Bag.from_json(document)
    assert back.variables == bag.variables
    assert respelled_rows(back.rows) == respelled_rows(bag.rows) == answer_from_json(document).rows


@given(st.lists(rows, max_size=4))
def test_bindings_leave_out_what_is_unbound(members: list[Binding]) -> None:
    found = list(Bag(VARIABLES, members).bindings())
    assert [tuple(one.get(name) for name in VARIABLES) for one in found] == members
    assert all(None not in one.values() for one in found)
