"""RDF documents in request bodies: media types, refused input, and the cost of parsing."""

from __future__ import annotations

import pyoxigraph as ox
import pytest

from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    RequestSyntaxError,
    UnsupportedRequestError,
)
from lamplighter.engine.updating.documents import ATTRIBUTES_MAX, check_xml
from lamplighter.gateway.settings import LimitSettings, QuerySettings
from lamplighter.gateway.workers import rdf_bodies
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS, Reader
from lamplighter.gateway.workers.rdf_bodies import RdfBodies
from tests.support.forks import no_forks
from tests.support.hostile_texts import DEEP, LAUGHS, RDF
from tests.support.running_gateway import until
from tests.support.tables import each_row

MANY_ATTRIBUTES = " ".join(f"a{number}='b'" for number in range(ATTRIBUTES_MAX + 1))


@each_row(
    ("document", "error"),
    [
        (LAUGHS, UnsupportedRequestError),
        (LAUGHS.encode("utf-16"), RequestSyntaxError),
        (f'<?xml version="1.0" encoding="utf-16"?>{LAUGHS}'.encode("utf-16"), RequestSyntaxError),
        (f'<?xml version="1.0" encoding="utf-16"?>{LAUGHS}', UnsupportedRequestError),
        ("<!DOCTYPE rdf:RDF>" + RDF.format(""), UnsupportedRequestError),
        (DEEP, LimitExceededError),
        (f"<r {MANY_ATTRIBUTES}/>", LimitExceededError),
        (f"<r {MANY_ATTRIBUTES.replace('a', 'xmlns:a')}/>", LimitExceededError),
        ("<a><b></a>", RequestSyntaxError),
        ("", RequestSyntaxError),
    ],
)
def test_what_no_native_parser_is_given(document: str | bytes, error: type[GatewayError]) -> None:
    with pytest.raises(error):
        check_xml(document if isinstance(document, bytes) else document.encode())


def test_xml_that_is_read() -> None:
    for document in (
        RDF.format(""),
        '<?xml version="1.0" encoding="UTF-8"?><!-- <!DOCTYPE no> -->' + RDF.format("<p:a p:b='&lt;!DOCTYPE'/>"),
        RDF.format("<p:a><p:b><![CDATA[<!DOCTYPE]]></p:b></p:a>"),
        DEEP.replace("<rdf:Description><p:q>" * 300, "<rdf:Description><p:q>" * 90).replace(
            "</p:q></rdf:Description>" * 300, "</p:q></rdf:Description>" * 90
        ),
    ):
        check_xml(document.encode())
        check_xml(b"\xef\xbb\xbf" + document.encode())


def numbered(count: int) -> ox.Dataset:
    node = ox.BlankNode("same")
    return ox.Dataset(
        quad
        for number in range(count)
        for quad in (
            ox.Quad(ox.NamedNode(f"http://s/{number}"), ox.NamedNode("http://p"), ox.Literal(f"\u2028\n {number}")),
            ox.Quad(node, ox.NamedNode("http://q"), ox.Literal(number)),
            ox.Quad(ox.NamedNode(f"http://s/{number}"), ox.NamedNode("http://r"), node),
        )
    )


def settings(**limits: int) -> Reader:
    return Reader(QuerySettings(), LimitSettings(**limits))


@pytest.mark.parametrize("media_type", GRAPH_FORMATS)
async def test_a_large_document_says_the_same_as_small_ones(media_type: str) -> None:
    data = numbered(4000)  # more than one batch, with one blank node in all of them
    body = ox.serialize(data, format=GRAPH_FORMATS[media_type])
    assert body is not None
    found = await RdfBodies(settings()).quads(body, media_type, "<http://g>", "http://b/")
    assert {quad.g for quad in found} == {"<http://g>"}
    text = "".join(f"{quad.s} {quad.p} {quad.o} .\n" for quad in dict.fromkeys(found))
    read = ox.Dataset(ox.parse(text, ox.RdfFormat.N_TRIPLES))
    for dataset in (read, data):
        dataset.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    assert read == data


async def test_blank_nodes_of_two_documents_are_never_the_same() -> None:
    """Though they are parsed by two forks of one process, with the same random numbers."""
    body = "".join(f'<http://s/{n}> <http://p> _:x , <<( _:y <http://p> "_:z" )>> .\n' for n in range(2000))
    bodies = RdfBodies(settings())
    documents = [await bodies.quads(body.encode(), "text/turtle", None, "http://b/") for _ in range(2)]
    one, two = ({quad.o for quad in document} for document in documents)
    assert (len(one), len(two), len(one & two)) == (2, 2, 0)
    assert all('"_:z"' in term for term in one | two if term.startswith("<<("))
    for term in one | two:
        ox.parse(f"<http://s> <http://p> {term} .", ox.RdfFormat.N_TRIPLES).__next__()


async def test_a_fault_in_the_last_line_of_a_large_document_is_told_with_its_place() -> None:
    body = b"<http://s> <http://p> 1 .\n" * 2000 + b"<http://s> <http://p> ."
    with pytest.raises(RequestSyntaxError, match="line 2001"):
        await RdfBodies(settings()).quads(body, "text/turtle", None, "http://b/")


async def test_parsing_that_takes_too_long_or_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"@prefix a: <http://" + b"x" * 20_000 + b"/> .\n" + b"a:a a:a a:a , a:b , a:c , a:d .\n" * 5_000
    with pytest.raises(LimitExceededError, match="parse_memory_bytes_max = 30000000"):
        await RdfBodies(settings(parse_memory_bytes_max=30_000_000)).quads(long, "text/turtle", None, "http://b/")
    with pytest.raises(LimitExceededError, match="parse_ms_max = 1;"):
        await RdfBodies(settings(parse_ms_max=1)).quads(
            ox.serialize(numbered(10_000), format=ox.RdfFormat.TURTLE) or b"", "text/turtle", None, "http://b/"
        )
    monkeypatch.setattr(rdf_bodies, "STATEMENTS_BYTES_MAX", 100_000)
    with pytest.raises(LimitExceededError, match="stands for more than 100000 bytes"):
        await RdfBodies(settings()).quads(long, "text/turtle", None, "http://b/")
    await until(no_forks)
