"""Documents in bodies: who may send them, what is not read, and what parsing may cost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyoxigraph as ox
import pytest

from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    QueueFullError,
    RequestSyntaxError,
    UnsupportedRequestError,
)
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.engine.updating.documents import check_xml
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.settings import LimitSettings, QuerySettings
from lamplighter.gateway.workers import rdf_bodies
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS, Reader
from lamplighter.gateway.workers.rdf_bodies import RdfBodies
from tests.support.forks import forks
from tests.support.running_gateway import http, running_gateway, until, update
from tests.support.secure_gateway import SecureGateway

XML = "application/rdf+xml"
RDF = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:p="http://p/">{}</rdf:RDF>'
LAUGHS = (
    "<!DOCTYPE r [<!ENTITY a 'ha'>"
    + "".join(f"<!ENTITY {name} '{f'&{before};' * 16}'>" for before, name in zip("abcdef", "bcdefg", strict=True))
    + "]>"
    + RDF.format("<rdf:Description><p:q>&g;</p:q></rdf:Description>")
)
DEEP = RDF.format("<rdf:Description><p:q>" * 300 + "</p:q></rdf:Description>" * 300)


def graphs(at: Addresses, name: str = "http://g") -> str:
    return f"{at.query.replace('/query', '/graphs')}?graph={name}"


async def no_forks() -> bool:
    return not forks()


def test_nothing_is_read_for_a_client_that_may_not_write_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the body was parsed")

    monkeypatch.setattr(RdfBodies, "quads", refuse)
    with SecureGateway(tmp_path) as gateway:
        token = gateway.bearer("reader", gateway.client("reader", read=["http://g"], write=["http://other"]))
        for method in ("PUT", "POST"):
            answer = gateway.https(
                method, "/graphs?graph=http://g", LAUGHS.encode(), {"Authorization": token, "Content-Type": XML}
            )
            assert (answer.status, answer.json["error"]) == (403, "forbidden"), answer.body


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (LAUGHS, UnsupportedRequestError),
        (LAUGHS.encode("utf-16"), RequestSyntaxError),
        (f'<?xml version="1.0" encoding="utf-16"?>{LAUGHS}'.encode("utf-16"), RequestSyntaxError),
        (f'<?xml version="1.0" encoding="utf-16"?>{LAUGHS}', UnsupportedRequestError),
        ("<!DOCTYPE rdf:RDF>" + RDF.format(""), UnsupportedRequestError),
        (DEEP, LimitExceededError),
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


@pytest.mark.parametrize("padding", ["", " " * rdf_bodies.SMALL_BYTES])
async def test_the_gateway_refuses_bombs_whatever_their_size(tmp_path: Path, padding: str) -> None:
    async with running_gateway(tmp_path) as at:
        for bomb, status in ((LAUGHS, 400), (DEEP, 403)):
            answer = await http(graphs(at), "PUT", bomb + padding, {"Content-Type": XML})
            assert (answer.status, answer.json["status_code"]) == (status, status), answer.body
        answer = await http(graphs(at), "PUT", RDF.format("<p:a p:b='c'/>") + padding, {"Content-Type": XML})
        assert answer.status == 201
        await until(no_forks)


@pytest.mark.parametrize("padding", ["", " " * rdf_bodies.SMALL_BYTES])
@pytest.mark.parametrize(
    ("media_type", "document"),
    [
        ("application/n-triples", "<a:s> <a:p> " + "<<( <a:s> <a:p> " * 25_000 + "<a:o>" + " )>>" * 25_000 + " ."),
        ("application/n-triples", "<a:s> <a:p> " + "<<( <a:s> <a:p> " * 51 + "<a:o>" + " )>>" * 51 + " ."),
        ("text/turtle", "<< " * 51 + "<a:s> <a:p> <a:o> " + ">> <a:p> <a:o> " * 51 + "."),
        ("application/ld+json", '{"a:p":' * 201 + "1" + "}" * 201),
        (
            XML,
            RDF.format(
                "<rdf:Description>"
                + '<p:q rdf:parseType="Triple"><rdf:Description rdf:about="a:s">' * 51
                + '<p:q rdf:resource="a:o"/>'
                + "</rdf:Description></p:q>" * 51
                + "</rdf:Description>"
            ).replace("<rdf:RDF", '<rdf:RDF rdf:version="1.2"'),
        ),
        ("text/turtle", f'<a:s> <a:p> "{"x" * TERM_BYTES_MAX}" .'),
    ],
)
async def test_terms_that_could_not_be_read_back_are_refused(
    tmp_path: Path, media_type: str, document: str, padding: str
) -> None:
    async with running_gateway(tmp_path) as at:
        answer = await http(graphs(at), "PUT", document + padding, {"Content-Type": media_type})
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded"), answer.body
        assert (await http(graphs(at))).status == 404
        await until(no_forks)


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
    long = b"@prefix a: <http://" + b"x" * 20_000 + b"/> .\n" + b"a:a a:a a:a , a:b , a:c , a:d .\n" * 20_000
    with pytest.raises(LimitExceededError, match="parse_memory_bytes_max = 30000000"):
        await RdfBodies(settings(parse_memory_bytes_max=30_000_000)).quads(long, "text/turtle", None, "http://b/")
    with pytest.raises(LimitExceededError, match="parse_ms_max = 1;"):
        await RdfBodies(settings(parse_ms_max=1)).quads(
            ox.serialize(numbered(50_000), format=ox.RdfFormat.TURTLE) or b"", "text/turtle", None, "http://b/"
        )
    monkeypatch.setattr(rdf_bodies, "STATEMENTS_BYTES_MAX", 100_000)
    with pytest.raises(LimitExceededError, match="stands for more than 100000 bytes"):
        await RdfBodies(settings()).quads(long, "text/turtle", None, "http://b/")
    await until(no_forks)


async def test_documents_that_wait_are_few_and_updates_go_on_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = Reader.parse

    def held(reader: Reader, work: Callable[..., None]) -> object:
        def late(out: object) -> None:
            while not (tmp_path / "go on").exists():
                threading.Event().wait(0.02)
            work(out)

        return parse(reader, late)

    monkeypatch.setattr(Reader, "parse", held)
    body = b"<http://s> <http://p> <http://o> .\n" * 1000
    async with running_gateway(tmp_path, gateway={"durability": "fsync"}) as at:
        count = rdf_bodies.WAITING_MAX + 3
        sent = [
            asyncio.create_task(http(graphs(at, f"http://g{n}"), "PUT", body, {"Content-Type": "text/turtle"}))
            for n in range(count)
        ]

        async def refused() -> bool:
            return sum(task.done() for task in sent) == count - rdf_bodies.WAITING_MAX

        await until(refused)
        assert len(forks()) == rdf_bodies.AT_ONCE_MAX
        for number in range(5):
            assert (await update(at, f"INSERT DATA {{ <http://x> <http://p> {number} }}")).status == 200
        (tmp_path / "go on").touch()
        answers = await asyncio.gather(*sent)
        assert sorted(answer.status for answer in answers) == [201] * rdf_bodies.WAITING_MAX + [429] * 3
        assert {json.loads(answer.body)["error"] for answer in answers if answer.status == 429} == {QueueFullError.code}


async def test_the_disk_has_a_thread_of_its_own(tmp_path: Path) -> None:
    """Whatever fills the loop's own threads, an update is synced and answered."""
    async with running_gateway(tmp_path, gateway={"durability": "fsync"}) as at:
        busy = threading.Event()
        loop = asyncio.get_running_loop()
        filled = [loop.run_in_executor(None, busy.wait) for _ in range(64)]
        try:
            assert (await update(at, "INSERT DATA { <http://x> <http://p> 1 }")).status == 200
        finally:
            busy.set()
            await asyncio.gather(*filled)
