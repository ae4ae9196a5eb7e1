"""What HTTP itself says of requests and answers (RFC 9110 and 9112), at all paths alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.http.connections import HEAD_BYTES_MAX
from tests.support.running_gateway import TIMEOUT_S, http, running_gateway, update

DOORS = {name: {"enabled": True} for name in ("changes", "ldn", "mcp", "ngsild", "sensorthings", "webhooks", "wot")}
TURTLE = b"<a> <b> <c> ."


async def answer_to(at: Addresses, request: bytes) -> bytes:
    """The answer to a request that ends its connection."""
    place = urlsplit(at.query)
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(request)
        answer = await reader.read(-1)
        writer.close()
        return answer


def post(target: str, *lines: str, body: bytes = TURTLE) -> bytes:
    head = [f"POST {target} HTTP/1.1", f"Content-Length: {len(body)}", "Connection: close", *lines, "", ""]
    return "\r\n".join(head).encode() + body


async def test_the_authority_of_an_absolute_target_takes_precedence_over_host(gateway: Addresses) -> None:
    for target, hosts, expected in (
        ("/graphs", ["localhost:81"], "http://localhost:81/"),
        ("http://localhost:80/graphs", ["there:81"], "http://localhost:80/"),
        ("HTTP://localhost/graphs", ["there", "elsewhere"], "http://localhost/"),
        ("http://there/graphs", ["localhost"], ""),
    ):
        lines = ["Content-Type: text/turtle", *(f"Host: {host}" for host in hosts)]
        answer = await answer_to(gateway, post(target, *lines))
        assert answer.startswith(b"HTTP/1.1 201 " if expected else b"HTTP/1.1 421 "), answer
        assert f"\r\nlocation: {expected}".encode() in answer or not expected


async def test_an_unknown_coding_is_refused(gateway: Addresses) -> None:
    for lines, status in (
        (["Content-Encoding: gzip"], 415),
        (["Content-Encoding: identity"], 200),
        (["Transfer-Encoding: gzip, chunked"], 501),
        (["Transfer-Encoding: gzip"], 501),
        (["Transfer-Encoding: CHUNKED"], 200),
    ):
        text = b"INSERT DATA {}"
        chunked = lines[0].startswith("Transfer-Encoding")
        length = [] if chunked else [f"Content-Length: {len(text)}"]
        head = ["POST /update HTTP/1.1", "Host: localhost", "Connection: close", *length, *lines]
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text) if chunked else text
        request = "\r\n".join([*head, "Content-Type: application/sparql-update", "", ""]).encode() + body
        answer = await answer_to(gateway, request)
        assert answer.startswith(b"HTTP/1.1 %d " % status), (lines, answer)


@pytest.mark.parametrize("size", [HEAD_BYTES_MAX - 8192, HEAD_BYTES_MAX + 8192])
async def test_a_head_has_its_limit_in_one_piece_too(gateway: Addresses, size: int) -> None:
    head = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"x" * size + b"\r\n\r\n"
    answer = await answer_to(gateway, head)
    assert answer.startswith(b"HTTP/1.1 200 " if size < HEAD_BYTES_MAX else b"HTTP/1.1 431 ")


async def test_no_answer_is_sniffed_for_another_type(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **DOORS) as at:
        root = at.query.removesuffix("/query")
        await update(at, "INSERT DATA { <http://a> <http://b> '<script>' }")
        paths = [
            "/",
            "/page",
            "/page/",
            "/query?query=ASK%20%7B%7D",
            "/query",
            "/health",
            "/nowhere",
            "/changes",
            "/mcp",
        ]
        paths += ["/ngsi-ld/v1/entities", "/v1.1", "/things", "/inbox/", "/webhooks", "/oauth/token", "/metrics"]
        for path in paths:
            for method in ("GET", "POST", "OPTIONS"):
                found = await http(root + path, method)
                assert found.headers.get("x-content-type-options") == "nosniff", (method, path, found)
        assert (await http(at.subscribe.replace("ws:", "http:"))).headers.get("x-content-type-options") == "nosniff"
        assert b"nosniff" in await answer_to(at, b"no request\r\n\r\n")
