"""Descriptions of resources, and their pages."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from io import BytesIO

import pyoxigraph as ox
import pytest

from lamplighter.engine.access import EVERY, Graphs
from lamplighter.engine.errors import UnknownResourceError, UnsupportedRequestError
from lamplighter.gateway.workers.resource_page import POLICY
from lamplighter.gateway.workers.resources import (
    DEPTH_MAX,
    FORMATS,
    HTML,
    INCOMING_MAX,
    OUTGOING_MAX,
    ResourceRequest,
    description,
)
from tests.support.tables import each_row

BASE = "http://lamplighter.local/"
A = BASE + "a"


def store(data: str) -> ox.Store:
    found = ox.Store()
    found.update(f"BASE <{BASE}> PREFIX : <http://p/> INSERT DATA {{ {data} }}")
    return found


def document(data: str, media_type: str, visible: Graphs = EVERY, *iris: str) -> bytes:
    out = BytesIO()
    ResourceRequest(iris or (A,), media_type, BASE).write(store(data), visible, out)
    assert out.getvalue()[:1] == b"+"
    return out.getvalue()[1:]


def triples(data: str, visible: Graphs = EVERY, about: str = A) -> set[str]:
    found = description(store(data), ox.NamedNode(about), visible)
    return {re.sub(r"_:\w+", "_:b", str(triple)) for triple in found.triples}


def test_outgoing_incoming_and_blank_nodes_of_all_graphs_are_described() -> None:
    data = "<a> :p 1, [ :q [ :r 2 ] ] . <b> :to <a> . <c> :p 3 . GRAPH <g> { <a> :p 1, 4 . <a> :self <a> }"
    number = "^^<http://www.w3.org/2001/XMLSchema#integer>"
    assert triples(data) == {
        f'<{A}> <http://p/p> "1"{number}',
        f'<{A}> <http://p/p> "4"{number}',
        f"<{A}> <http://p/p> _:b",
        "_:b <http://p/q> _:b",
        f'_:b <http://p/r> "2"{number}',
        f"<{A}> <http://p/self> <{A}>",
        f"<{BASE}b> <http://p/to> <{A}>",
    }
    assert len(description(store(data), ox.NamedNode(A), EVERY).triples) == 7, "none occurs twice"


def test_only_visible_graphs_are_described() -> None:
    data = "<a> :p 0 . <b> :p <a> GRAPH <g> { <a> :p 1 . <c> :p <a> } GRAPH <h> { <a> :p 2 }"
    for visible, count in (
        (EVERY, 5),
        (Graphs(frozenset({None})), 2),
        (Graphs(frozenset({f"<{BASE}g>", f"<{BASE}absent>"})), 2),
        (Graphs(frozenset({None, f"<{BASE}h>"})), 3),
        (Graphs(frozenset()), 0),
    ):
        assert len(triples(data, visible)) == count
    with pytest.raises(UnknownResourceError):
        document(data, FORMATS[0], Graphs(frozenset()))


def test_a_description_is_bounded_and_says_so() -> None:
    many = " ".join(f"<a> :p {n} . <x{n}> :to <a> ." for n in range(OUTGOING_MAX + 1))
    found = description(store(many), ox.NamedNode(A), EVERY)
    assert (len(found.outgoing[ox.NamedNode(A)]), len(found.incoming), found.cut) == (OUTGOING_MAX, INCOMING_MAX, True)
    deep = "<a> :p " + "[ :p " * (DEPTH_MAX + 3) + "1" + " ]" * (DEPTH_MAX + 3)
    found = description(store(deep), ox.NamedNode(A), EVERY)
    assert (len(found.outgoing), found.cut) == (DEPTH_MAX + 1, True)
    cycle = description(store("<a> :p _:x . _:x :p _:y . _:y :p _:x"), ox.NamedNode(A), EVERY)
    assert (len(cycle.triples), cycle.cut) == (3, False)
    assert b"There is more" in document(many, HTML)
    assert b"There is more" not in document("<a> :p _:x . _:x :p _:y . _:y :p _:x", HTML)


@each_row("media_type", FORMATS[:3])
def test_rdf_formats_have_the_same_triples(media_type: str) -> None:
    body = document('<a> a <http://www.w3.org/ns/sosa/Sensor> ; :p "x"@en, 1.5 . <b> :to <a>', media_type)
    parsed = {str(quad.triple) for quad in ox.parse(body, ox.RdfFormat.from_media_type(media_type))}
    assert len(parsed) == 4
    if media_type == "text/turtle":
        assert b"a sosa:Sensor" in body


def test_the_first_iri_that_the_dataset_has_is_described() -> None:
    body = document("<b> :p 1", FORMATS[1], EVERY, "http://[", f"{BASE}x y", A, f"{BASE}b", f"{BASE}c")
    assert body.startswith(f"<{BASE}b> <http://p/p>".encode())


def test_triple_terms_are_refused_for_json_ld_and_shown_elsewhere() -> None:
    data = '<a> :p <<( <x> :q "y" )>>'
    with pytest.raises(UnsupportedRequestError, match=r"application/ld\+json"):
        document(data, "application/ld+json")
    assert b"<<( " in document(data, "text/turtle")
    assert b"&lt;&lt;( &lt;" in document(data, HTML)


class _Links(HTMLParser):
    """The elements and links of a page."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or name == "style" for name, _ in attributes)
        self.links += [value or "" for name, value in attributes if tag == "a" and name == "href"]


def test_a_page_links_to_paths_below_the_base_iri_and_to_other_sites() -> None:
    data = """<a> <http://www.w3.org/2000/01/rdf-schema#label> "Kitchen <motion>" ; :p <sensor/k%20ü;x>, [ :q "deep" ],
        </evil.example/x>, <http://other.example/?a=1&b=2>, <urn:x>, <javascript:alert(1)>, <data:text/html,x> .
        <b> :to <a> . GRAPH <g> { <a> :p "20.5"^^<http://www.w3.org/2001/XMLSchema#decimal>, "ja"@de }"""
    page = document(data.replace("</evil", f"<{BASE}/evil"), HTML)
    found = _Links(page)
    assert "script" not in found.tags
    assert set(found.links) == {
        "http://www.w3.org/2000/01/rdf-schema#label",
        "http://p/p",
        "http://p/q",
        "http://p/to",
        "/sensor/k%20%C3%BC;x",
        f"{BASE}/evil.example/x",  # as a path it would lead to another host
        "http://other.example/?a=1&b=2",
        "/b",
    }
    for text in ("<h1>Kitchen &lt;motion&gt;</h1>", "deep", "javascript:alert(1)", "urn:x", "xsd:decimal", "@de"):
        assert text in page.decode()


def test_hostile_texts_stay_texts() -> None:
    hostile = """</style></title><script>alert(1)</script>'"><img src=x onerror=alert(1)>&lt;"""
    name = "http://www.w3.org/2000/01/rdf-schema#label"
    found = ox.Store()
    found.add(ox.Quad(ox.NamedNode(A), ox.NamedNode(name), ox.Literal(hostile)))
    found.add(ox.Quad(ox.NamedNode(A), ox.NamedNode("http://p/'onclick='x&y"), ox.Literal("x" * 100_000)))
    out = BytesIO()
    ResourceRequest([A], HTML, BASE).write(found, EVERY, out)
    page = _Links(out.getvalue()[1:])
    assert page.tags == {
        *("html", "head", "meta", "title", "link", "style", "body", "h1", "p", "code", "table", "tr", "th", "td"),
        *("a", "small"),
    }
    assert len(out.getvalue()) < 10_000


def test_a_page_has_each_blank_node_once_however_many_paths_lead_to_it() -> None:
    levels = [[f"_:n{level}x{number}" for number in range(6)] for level in range(4)]
    links = [f"{one} :p {other}" for some, others in itertools.pairwise(levels) for one in some for other in others]
    ends = [f'{one} :p "end"' for one in levels[-1]]
    text = document(" . ".join([f"<a> :p {one}" for one in levels[0]] + links + ends), "text/html").decode()
    assert text.count("end<") == 6


def test_the_policy_of_pages_permits_their_own_style_only() -> None:
    assert POLICY.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in POLICY and "script-src" not in POLICY


def test_long_iris_are_cut_and_no_links() -> None:
    long = "ü" * 50_000
    text = document(f"<a> :p {', '.join(f'<http://e/{number}/{long}>' for number in range(20))}", HTML)
    assert len(text) < 100_000 * 2
    assert "…".encode() in text and b'href="http://e/' not in text
