"""RDF documents that clients send to a gateway: permissions, bombs and limits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lamplighter.engine.errors import (
    QueueFullError,
)
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.workers import rdf_bodies
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.rdf_bodies import RdfBodies
from tests.support.forks import forks, no_forks
from tests.support.hostile_texts import DEEP, LAUGHS, RDF
from tests.support.running_gateway import http, rows, running_gateway, until, until_it_is, update
from tests.support.secure_gateway import SecureGateway

XML = "application/rdf+xml"


def graphs(at: Addresses, name: str = "http://g") -> str:
    return f"{at.query.replace('/query', '/graphs')}?graph={name}"


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


@pytest.mark.parametrize("padding", ["", " " * rdf_bodies.SMALL_BYTES])
async def test_the_gateway_refuses_bombs_whatever_their_size(gateway: Addresses, padding: str) -> None:
    for bomb, status in ((LAUGHS, 400), (DEEP, 403)):
        answer = await http(graphs(gateway), "PUT", bomb + padding, {"Content-Type": XML})
        assert (answer.status, answer.json["status_code"]) == (status, status), answer.body
    answer = await http(graphs(gateway), "PUT", RDF.format("<p:a p:b='c'/>") + padding, {"Content-Type": XML})
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
    gateway: Addresses, media_type: str, document: str, padding: str
) -> None:
    answer = await http(graphs(gateway), "PUT", document + padding, {"Content-Type": media_type})
    assert (answer.status, answer.json["error"]) == (403, "limit_exceeded"), answer.body
    assert (await http(graphs(gateway))).status == 404
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

        async def parsing() -> int:
            return len(forks())

        await until(refused)
        await until_it_is(parsing, rdf_bodies.AT_ONCE_MAX)
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


@pytest.mark.parametrize("padding", ["", " " * rdf_bodies.SMALL_BYTES])
async def test_a_byte_order_mark_is_no_part_of_the_document(gateway: Addresses, padding: str) -> None:
    documents = {
        "text/turtle": f"@prefix e: <urn:e:> . {padding} e:a e:p 1 .",
        "application/n-triples": f'<urn:e:a> {padding} <urn:e:p> "1" .',
        "application/ld+json": f'{{"@id": "urn:e:a", {padding} "urn:e:p": 1}}',
    }
    for media_type, document in documents.items():
        body = b"\xef\xbb\xbf" + document.encode()
        assert (await http(graphs(gateway), "PUT", body, {"Content-Type": media_type})).status in (201, 204), media_type
        found = await rows(gateway, "SELECT ?o { GRAPH <http://g> { <urn:e:a> <urn:e:p> ?o } }")
        assert [row["o"] for row in found] == ["1"]
