"""The scan of documents sees as many levels as the native parser builds, whatever strings, IRIs and comments hold."""

from __future__ import annotations

import json

import pyoxigraph as ox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.term_bounds import _JSON, _TURTLE, SHORT, _depth, check_json, check_turtle, depth
from lamplighter.engine.terms import TERM_DEPTH_MAX, Term
from tests.properties.test_terms import blank_nodes, iris, terms, triple_term

# What would be brackets elsewhere, in every place where it is none.
_DISGUISED = '<<( )>> << >> # " \' """ \'\'\' \\" \\\\ <a:b> {| |} '
inner_texts = st.text(st.sampled_from("<>()\"'#\\ a\n"), max_size=8)


def long_string(text: str, quote: str) -> str:
    escaped = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return f"{quote * 3}{escaped}{quote * 3}"


def short_string(text: str, quote: str) -> str:
    escaped = text.replace("\\", "\\\\").replace(quote, f"\\{quote}").replace("\n", "\\n")
    return f"{quote}{escaped}{quote}"


strings = st.builds(
    lambda form, text, quote: form(text, quote),
    st.sampled_from([long_string, short_string]),
    inner_texts,
    st.sampled_from("\"'"),
)
comments = inner_texts.map(lambda text: "#" + text.replace("\n", "") + _DISGUISED + "\n")
gaps = st.one_of(st.sampled_from([" ", "\n", "\t"]), comments)
names = st.sampled_from(
    ["<a:b>", "<a:#c>", "<a:(>", "<a:)>", "e:x", "e:\\#", "e:\\'", "e:x\\(\\)", "e:%41", "_:b", "<a:'>"]
)
verbs = st.sampled_from(["<a:b>", "<a:#c>", "e:x", "e:\\'y", "a"])
short_strings = st.builds(short_string, inner_texts, st.sampled_from("\"'"))
leaves = st.one_of(names, short_strings, st.sampled_from(["1", "-1.5e3", "true", '"x"@en', '"x"^^<a:t>']))


@st.composite
def turtle(draw: st.DrawFn) -> str:
    """A document with triples within each other, and everything in it that could be mistaken for their brackets."""

    def gap() -> str:
        return draw(gaps)

    def triple_in(levels: int, reified: bool) -> str:
        """Only a reified triple holds another one, as its subject too."""
        subject, object_ = draw(names), draw(leaves)
        if levels > 1:
            inner = triple_in(levels - 1, reified and draw(st.booleans()))
            if not inner.startswith("<<(") and draw(st.booleans()):
                subject = inner
            else:
                object_ = inner
        opened, closed = ("<<", ">>") if reified else ("<<(", ")>>")
        return f"{opened}{gap()}{subject}{gap()}{draw(verbs)}{gap()}{object_}{gap()}{closed}"

    statements = []
    for _ in range(draw(st.integers(1, 3))):
        levels = draw(st.integers(0, 4))
        object_ = triple_in(levels, draw(st.booleans())) if levels else draw(st.one_of(leaves, strings))
        statements.append(f"{draw(names)}{gap()}{draw(verbs)}{gap()}{object_}{gap()}.{gap()}")
    return f"@prefix e: <a:> .{gap()}" + "".join(statements)


def native_depth(term: object) -> int:
    return 1 + native_depth(term.object) if isinstance(term, ox.Triple) else 0


def parsed_depth(document: str, syntax: ox.RdfFormat = ox.RdfFormat.TURTLE) -> int:
    """Of the quads that come before the first error."""
    most = 0
    try:
        for quad in ox.parse(document, format=syntax):
            most = max(most, native_depth(quad.object))
    except SyntaxError:
        pass
    return most


def scanned(document: str) -> int:
    return _depth(_TURTLE.finditer(document.encode()))


@given(turtle())
def test_the_scan_sees_what_the_parser_builds(document: str) -> None:
    assert list(ox.parse(document, format=ox.RdfFormat.TURTLE)), "it is a good document"
    assert scanned(document) >= parsed_depth(document)


@given(st.integers(0, 60), st.lists(st.tuples(names, verbs, gaps), min_size=1, max_size=5), leaves, gaps)
def test_the_depth_of_triple_terms_is_exact(
    levels: int, parts: list[tuple[str, str, str]], leaf: str, gap: str
) -> None:
    object_ = leaf
    for level in range(levels):
        subject, verb, space = parts[level % len(parts)]
        object_ = f"<<({space}{subject}{gap}{verb} {object_}{space})>>"
    document = f"@prefix e: <a:> . <a:s> <a:p> {object_}{gap}."
    assert scanned(document) == parsed_depth(document) == levels
    if levels > TERM_DEPTH_MAX:
        with pytest.raises(LimitExceededError, match=f"nested {levels} deep"):
            check_turtle(document)
    else:
        check_turtle(document)


@given(
    turtle(),
    st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from([*"<>()\"'#\\.\n ", "<<", ">>", '"""', "{|", "|}", "~"])),
        max_size=6,
    ),
)
def test_no_change_to_a_document_hides_levels(document: str, changes: list[tuple[int, str]]) -> None:
    """What the parser reads before it finds an error was seen by the scan."""
    for place, text in changes:
        document = document[:place] + text + document[place:]
    for syntax in (ox.RdfFormat.TURTLE, ox.RdfFormat.N_TRIPLES, ox.RdfFormat.TRIG, ox.RdfFormat.N_QUADS):
        annotated = "{|" in document or "~" in document  # which makes a triple term of the triple
        assert scanned(document) + annotated >= parsed_depth(document, syntax)


@given(terms, st.integers(0, 80), iris, st.one_of(iris, blank_nodes))
def test_the_depth_of_a_term_is_that_of_the_stores(term: Term, levels: int, verb: Term, subject: Term) -> None:
    inner = depth(term)
    for _ in range(levels):
        term = triple_term(subject, verb, term)
    (quad,) = ox.parse(f"<urn:s> <urn:p> {term} .", ox.RdfFormat.N_TRIPLES)
    assert depth(term) == native_depth(quad.object) == inner + levels
    if len(term) <= SHORT:
        assert depth(term) <= TERM_DEPTH_MAX


@given(
    st.recursive(
        st.one_of(st.none(), inner_texts), lambda inner: st.one_of(st.lists(inner), st.dictionaries(inner_texts, inner))
    )
)
def test_the_depth_of_json_is_exact(value: object) -> None:
    def level(value: object) -> int:
        if isinstance(value, dict):
            return 1 + max(map(level, value.values()), default=0)
        return 1 + max(map(level, value), default=0) if isinstance(value, list) else 0

    document = json.dumps(value).encode()
    assert _depth(_JSON.finditer(document)) == level(value)
    check_json(document)
