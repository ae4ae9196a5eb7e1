"""Queries and subscriptions that are too long are refused before they are parsed."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.support.running_gateway import FORM, ask, http, query, running_gateway, update

QUERY = "SELECT ?s { ?s <http://p> ?o }"
BYTES_MAX = 2000
LIMITS = {"query_bytes_max": BYTES_MAX}


def padded(size: int, *, sign: str = "") -> str:
    """A query of so many bytes that can be read if it is not too long; sign: stands at its end instead of a blank."""
    return QUERY + " " * (size - len((QUERY + sign).encode())) + sign


UNREADABLE = padded(BYTES_MAX + 1, sign='"')
WIDE = "#" + "é" * (BYTES_MAX // 2) + "\n" + QUERY  # few enough characters


@pytest.mark.parametrize("text", [UNREADABLE, WIDE], ids=["unreadable", "wide"])
async def test_a_long_query_is_refused_over_http_before_it_is_read(tmp_path: Path, text: str) -> None:
    async with running_gateway(tmp_path, limits=LIMITS) as at:
        form = urllib.parse.urlencode({"query": text})
        for answer in (
            await query(at, text),
            await http(at.query, "POST", form, {"Content-Type": FORM}),
            await http(at.query, query=text),
        ):
            assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
            assert f"limits.query_bytes_max = {BYTES_MAX}" in answer.json["error_description"]
        assert (await query(at, padded(BYTES_MAX))).status == 200
        assert (await update(at, "INSERT DATA { <http://s> <http://p> 1 }" + " " * BYTES_MAX)).status == 200


@pytest.mark.parametrize("text", [UNREADABLE, WIDE], ids=["unreadable", "wide"])
@pytest.mark.parametrize("kind", ["query", "subscribe"])
async def test_a_long_text_is_refused_over_the_socket_before_it_is_read(tmp_path: Path, kind: str, text: str) -> None:
    async with running_gateway(tmp_path, limits=LIMITS) as at, connect(at.subscribe) as socket:
        told = await ask(socket, {kind: {"sparql": text, "alias": "a"}})
        assert (told["alias"], told["status_code"], told["error"]) == ("a", 403, "limit_exceeded")
        assert f"limits.query_bytes_max = {BYTES_MAX}" in told["error_description"]
        told = await ask(socket, {kind: {"sparql": padded(BYTES_MAX), "alias": "b"}})
        assert told[{"query": "answer", "subscribe": "notification"}[kind]]["alias"] == "b"
