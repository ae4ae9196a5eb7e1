"""Plain lines are read as the native parser and the store read them, and other lines are left to these."""

from __future__ import annotations

from unittest import mock

import pyoxigraph as ox
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.store.quad_store import quad_from_native
from lamplighter.engine.term_bounds import SHORT
from lamplighter.engine.terms import XSD
from lamplighter.engine.updating import documents as documents_module
from lamplighter.engine.updating.documents import Document, quads_of
from lamplighter.engine.updating.plain_lines import plain_quads

BYTES_MAX = 10**6
_PLAIN_IRIS = ("<urn:a>", "<http://e.org/x#y>", "<http://e/%C3%A9?q=(1),2>", "<http://é/>", "<a:b>")
_ODD_IRIS = (
    "<a>",
    "<http://e/\\u0041>",
    "<http://e/ b>",
    "<http://e/%zz>",
    "<>",
    "_:b",
    "<a:b<c>",
    "<http://[1>",
    "<a:b\n>",
)
_PLAIN_OBJECTS = (
    '""', '"ON"', '"é . \u2028 <a> "', '"a\\"b\\\\c\\n\\t"', '"x"@en', '"x"@en-gb',
    f'"7"^^<{XSD}integer>', f'"20.5"^^<{XSD}decimal>', f'"2026-01-01T12:00:00Z"^^<{XSD}dateTime>',
)  # fmt: skip
_ODD_OBJECTS = (
    '"a\tb"', '"\x7f"', '"\\u0041"', '"\\u0009"', "'x'", '"x"@EN', '"x"@en--ltr', '"x"@a', '"x"@abcdefghi', '"x"@',
    f'"07"^^<{XSD}integer>', f'"1"^^<{XSD}string>', f'"1"^^<{XSD}int>', '"x"^^<urn:t>', '"x"^^<t>', '"x"^^<a:b>@en',
    "<<( <a:s> <a:p> <a:o> )>>", "<<( <a:s>", "1", '"a"b"', '"a\\"', '"\\x"', "\ufffe",
)  # fmt: skip
_STARTS = ("", " ", "# ", "\ufeff", "VERSION ", "<a:s> <a:p> ")
_ENDS = (" .\n", ".\n", " .\r\n", " . # c\n", " .", "\n", " .\n\n", " . .\n", "  .\n")

_graphs = st.sampled_from(("", " <urn:g>", " <http://e.org/x#y>"))
_plain = st.builds(
    "{} {} {}{} .\n".format,
    st.sampled_from(_PLAIN_IRIS),
    st.sampled_from(_PLAIN_IRIS),
    st.sampled_from(_PLAIN_IRIS + _PLAIN_OBJECTS),
    _graphs,
)
_odd = st.builds(
    "{}{} {}{}{}{}{}".format,
    st.sampled_from(_STARTS),
    st.sampled_from(_PLAIN_IRIS + _ODD_IRIS),
    st.sampled_from(_PLAIN_IRIS + _ODD_IRIS),
    st.sampled_from((" ", "", "  ", "\t")),
    st.sampled_from(_PLAIN_IRIS + _PLAIN_OBJECTS + _ODD_IRIS + _ODD_OBJECTS),
    st.sampled_from(("", " ", " <urn:g>", " <g>", " _:g")),
    st.sampled_from(_ENDS),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Plain lines with a few bytes in other places than before."""
    document = bytearray("".join(draw(st.lists(_plain, min_size=1, max_size=4))).encode())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(document)))
        document[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from((b"", b"<", b">", b'"', b" ", b"\n", b"\\", b".", b"#", b"^", b"@", b"\xff", b"_:", b"\0"))
        )
    return bytes(document)


documents = st.one_of(
    st.lists(_plain, max_size=6).map(lambda lines: "".join(lines).encode()),
    st.builds(
        lambda before, odd, after: "".join((*before, odd, *after)).encode(),
        st.lists(_plain, max_size=2),
        _odd,
        st.lists(_plain, max_size=2),
    ),
    damaged(),
)


@example(b"<a:s> <a:p> <a:o> .", True)
@example(b'<a:s> <a:p> "x"@aaa .\n', False)
@example(b"# <a:s>\n <a:s> <a:p> <a:o> .\n", True)
@given(documents, st.booleans())
def test_plain_lines_are_read_as_by_the_store(document: bytes, has_graphs: bool) -> None:
    quads = plain_quads(document, None, has_graphs=has_graphs)
    if quads is None:
        return
    syntax = ox.RdfFormat.N_QUADS if has_graphs else ox.RdfFormat.N_TRIPLES
    assert quads == list(map(quad_from_native, ox.parse(document, format=syntax)))
    store = ox.Store()
    store.load(document, format=syntax)
    assert set(quads) == set(map(quad_from_native, store))


@given(
    documents,
    st.sampled_from((ox.RdfFormat.N_QUADS, ox.RdfFormat.N_TRIPLES)),
    st.sampled_from((None, "<urn:h>")),
    st.sampled_from((None, None, "http://b/", "not a base")),
)
def test_a_document_is_the_same_with_plain_lines_and_without(
    document: bytes, syntax: ox.RdfFormat, graph: str | None, base: str | None
) -> None:
    def read(store: ox.Store | None) -> list[tuple[str | None, ...]] | tuple[type[GatewayError], str]:
        try:
            quads = quads_of(Document(document, syntax, None), graph, base, BYTES_MAX, BYTES_MAX, store)
        except GatewayError as error:
            return type(error), "" if b"_:" in document else str(error)
        if store is not None:
            assert sorted(map(quad_from_native, store), key=repr) == sorted(quads, key=repr)
        if b"_:" in document:  # which have other names each time
            return [("",) for _ in quads]
        return [tuple(quad) for quad in quads]

    outcomes = [read(None), read(ox.Store())]
    with mock.patch.object(documents_module, "plain_quads", return_value=None):
        outcomes += [read(None), read(ox.Store())]
    assert outcomes == [outcomes[0]] * 4


@pytest.mark.parametrize("text", _PLAIN_OBJECTS + _PLAIN_IRIS)
def test_usual_terms_are_plain(text: str) -> None:
    document = f"<a:s> <a:p> {text} .\n<a:s> <a:p> {text} <a:g> .\n".encode()
    assert plain_quads(document, "<a:h>", has_graphs=True) == [
        ("<a:s>", "<a:p>", text, "<a:h>"),
        ("<a:s>", "<a:p>", text, "<a:g>"),
    ]


def test_long_terms_are_not_plain() -> None:
    for term in (f"<a:{'x' * (SHORT - 4)}>", f'"{"x" * (SHORT - 2)}"'):
        document = f"<a:s> <a:p> {term} .\n".encode()
        assert plain_quads(document, None, has_graphs=False) == [("<a:s>", "<a:p>", term, None)]
        assert plain_quads(document.replace(b"x", b"xx", 1), None, has_graphs=False) is None
