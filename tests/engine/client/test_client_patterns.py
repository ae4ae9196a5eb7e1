"""Requests to endpoints of others, and what is wrong with their answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lamplighter.engine.client import (
    Credentials,
    GenericClient,
    Jsap,
    RefusedError,
    SparqlEndpoint,
    UpstreamError,
)
from lamplighter.engine.errors import (
    ConfigurationError,
    MalformedRequestError,
)
from lamplighter.engine.protocol.jsap import profile
from lamplighter.engine.protocol.jsap_tree import normal, overridden


@contextmanager
def endpoint(status: int, media_type: str, body: bytes) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """A server that answers everything with this; its address, and method, target, content type, body of what came."""
    seen: list[tuple[str, str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            seen.append((self.command, self.path, self.headers.get("Content-Type", ""), sent))
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", seen
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.parametrize("method", ["GET", "POST", "URL_ENCODED_POST"])
async def test_requests_are_those_of_the_protocol(method: Any) -> None:
    results = b'{"head":{"vars":["s"]},"results":{"bindings":[]}}'
    with endpoint(200, "application/sparql-results+json", results) as (url, seen):
        update_method: Any = "POST" if method == "GET" else method
        at = SparqlEndpoint(
            query_url=f"{url}/ds?x=1", update_url=f"{url}/ds", query_method=method, update_method=update_method
        )
        async with at:
            assert len(await at.query("SELECT ?ა {}", default_graphs=["a:1", "a:2"], named_graphs=["a:&"])) == 0
            assert await at.update("CLEAR ALL", using_graphs=["a:1"], using_named_graphs=["a:2"]) is None
    graphs = {"default-graph-uri": ["a:1", "a:2"], "named-graph-uri": ["a:&"]}
    using = {"using-graph-uri": ["a:1"], "using-named-graph-uri": ["a:2"]}
    (verb, target, content_type, body), (_, update_target, update_type, update_body) = seen
    inside = parse_qs(urlsplit(target).query)
    assert inside.pop("x") == ["1"]
    if method == "POST":
        assert (verb, inside, content_type, body) == ("POST", graphs, "application/sparql-query", "SELECT ?ა {}")
        assert (parse_qs(urlsplit(update_target).query), update_type) == (using, "application/sparql-update")
        assert update_body == "CLEAR ALL"
    elif method == "GET":
        assert (verb, inside, body) == ("GET", {"query": ["SELECT ?ა {}"], **graphs}, "")
    else:
        assert (verb, parse_qs(body)) == ("POST", {"query": ["SELECT ?ა {}"], **graphs})
        assert (content_type, update_type) == ("application/x-www-form-urlencoded",) * 2
        assert parse_qs(update_body) == {"update": ["CLEAR ALL"], **using}


async def test_an_endpoint_that_ignores_the_record_is_an_error() -> None:
    with endpoint(200, "text/csv", b"n\r\n1\r\n") as (url, seen):
        async with SparqlEndpoint(url) as at:
            assert (await at.answer("SELECT ?n {}", "text/csv"))[1] == b"n\r\n1\r\n"
            with pytest.raises(UpstreamError, match="does not query past datasets"):
                await at.answer("SELECT ?n {}", "text/csv", at="1/17")
    assert seen[1][1] == "/query?at=1%2F17"


@pytest.mark.parametrize(
    ("status", "media_type", "body", "error", "message"),
    [
        (400, "text/plain", b"Parse error: line 1\n", RefusedError, r"http \(400\): Parse error: line 1"),
        (429, "application/json", b'{"error":"too_many_requests"}', RefusedError, "too_many_requests"),
        (500, "text/html", b"\xff<h1>", RefusedError, "500"),
        (302, "text/html", b"", RefusedError, "302.*no reason"),
        (200, "text/html", b"<html>", UpstreamError, "answered with text/html, which is no JSON"),
        (200, "application/json", b'{"head":{},"results":1}', UpstreamError, "cannot be read"),
        (200, "application/json", b'{"head":{},"boolean":true}', MalformedRequestError, r"use ask\(\)"),
        (200, "text/turtle", b"<a:b> <a:c> 1 .", MalformedRequestError, r"use construct\(\)"),
    ],
)
async def test_what_is_wrong_with_an_answer_is_said(
    status: int, media_type: str, body: bytes, error: type[Exception], message: str
) -> None:
    with endpoint(status, media_type, body) as (url, _):
        async with SparqlEndpoint(url) as at:
            with pytest.raises(error, match=message):
                await at.query("SELECT * {}")


async def test_graphs_are_read_in_the_syntax_in_which_they_come() -> None:
    for media_type, body in (("text/turtle", b"<a:b> <a:c> 1 ."), ("application/n-triples", b'<a:b> <a:c> "x" .')):
        with endpoint(200, media_type, body) as (url, _):
            async with SparqlEndpoint(url) as at:
                [triple] = await at.construct("CONSTRUCT WHERE { ?s ?p ?o }")
                assert triple[:2] == ("<a:b>", "<a:c>")
    with endpoint(200, "text/turtle", b"<a:b> <a:c>") as (url, _):
        async with SparqlEndpoint(url) as at:
            with pytest.raises(UpstreamError, match="cannot be read as text/turtle"):
                await at.construct("CONSTRUCT WHERE { ?s ?p ?o }")


async def test_nobody_there_and_no_address() -> None:
    async with SparqlEndpoint("http://127.0.0.1:1") as at:
        with pytest.raises(UpstreamError, match=r"no answer from http://127\.0\.0\.1:1/query"):
            await at.query("ASK {}")
    async with SparqlEndpoint(query_url="http://127.0.0.1:1/q") as at:
        with pytest.raises(ConfigurationError, match="give update_url"):
            await at.update("CLEAR ALL")
    for wrong in ("ftp://h", "h:8000", "http://"):
        with pytest.raises(ConfigurationError, match="http://host:8000"):
            SparqlEndpoint(wrong)


SECRET = Credentials("me", "secret")
OAUTH = {"enable": True, "tokenRequest": "https://broker.example:8443/oauth/token"}


def secure(**members: Any) -> Jsap:
    tree = {"host": "broker.example", "oauth": OAUTH, **members}
    return profile(normal(overridden(tree, ["sparql11protocol.protocol=https", "sparql11seprotocol.protocol=wss"])))


def test_a_token_goes_to_the_profile_s_own_broker_alone_and_encrypted() -> None:
    client = GenericClient(secure(), credentials=SECRET)
    assert client._tokens_for("https://broker.example:8443/query") is not None
    assert client._tokens_for("wss://broker.example:9443/subscribe") is not None
    assert client._tokens_for("https://other.example:8443/query") is None
    with pytest.raises(ConfigurationError, match="unencrypted"):
        client._tokens_for("http://broker.example:8000/query")
    with pytest.raises(ConfigurationError, match="give credentials"):
        GenericClient(secure())
    with pytest.raises(ConfigurationError, match=r"no oauth\.tokenRequest"):
        GenericClient(secure(oauth={"enable": True}), credentials=SECRET)
    assert "secret" not in repr(SECRET)
