"""Registration, tokens and renewal: against a real gateway in secure mode, and servers that answer as others do."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lamplighter.engine.client import (
    Credentials,
    EngineClient,
    OAuth,
    RefusedError,
    SparqlEndpoint,
    UpstreamError,
)
from lamplighter.engine.errors import ConfigurationError
from tests.support.tables import each_row

# --- tokens -----------------------------------------------------------------------------------------


@asynccontextmanager
async def token_server(*answers: tuple[int, object]) -> AsyncIterator[tuple[str, list[tuple[dict[str, str], str]]]]:
    """Answers one request after the other; its address, and headers and body of what was asked."""
    seen: list[tuple[dict[str, str], str]] = []
    left = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        headers["authorization"] = head.partition("Authorization: ")[2].partition("\r\n")[0]
        seen.append((headers, (await reader.readexactly(int(headers.get("content-length", 0)))).decode()))
        status, document = next(left)
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        writer.write(b"HTTP/1.1 %d x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/oauth/token", seen


def flat(token: str, life_s: float = 100) -> tuple[int, object]:
    return 200, {"access_token": token, "token_type": "bearer", "expires_in": life_s}


def wrapped(token: str, life_s: float = 100) -> tuple[int, object]:
    return 201, {"token": flat(token, life_s)[1]}


@pytest.mark.parametrize("shape", [flat, wrapped])
async def test_a_token_is_kept_and_renewed_before_its_end(shape: Callable[..., tuple[int, object]]) -> None:
    now = 1000.0
    async with token_server(shape("one"), shape("two", 5), shape("three"), shape("four")) as (url, seen):
        tokens = OAuth(url, Credentials("me:and", "se:cret"), clock=lambda: now)
        assert [await tokens.token() for _ in range(3)] == ["one"] * 3
        now += 89.9
        assert await tokens.token() == "one"
        now += 0.2  # the last tenth of its life begins
        assert await asyncio.gather(*(tokens.token() for _ in range(10))) == ["two"] * 10
        now += 4.6
        assert await tokens.token() == "three"
        tokens.expired("two")
        assert await tokens.token() == "three"
        tokens.expired("three")
        assert await tokens.token() == "four"
    headers, body = seen[0]
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"me:and:se:cret"
    assert (headers["accept"], headers["content-type"], body) == ("application/json", "application/json", "")


async def test_standard_servers_are_asked_by_a_form() -> None:
    async with token_server(flat("one")) as (url, seen):
        await OAuth(url, Credentials("me", "secret"), provider="keycloak").token()
    assert seen[0][0]["content-type"] == "application/x-www-form-urlencoded"
    assert seen[0][1] == "grant_type=client_credentials"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((400, {"error": "unauthorized_client", "error_description": "who?"}), RefusedError, r"client \(400\): who"),
        ((502, b"<html>"), RefusedError, "502"),
        ((200, b"<html>"), UpstreamError, "did not answer with a JSON object"),
        ((200, {"token": "x"}), UpstreamError, "without a token"),
        ((200, {"access_token": "x", "expires_in": None}), UpstreamError, "without a token"),
        ((200, []), UpstreamError, "did not answer with a JSON"),
    ],
)
async def test_what_is_no_token_is_said(answer: tuple[int, object], error: type[Exception], message: str) -> None:
    async with token_server(answer) as (url, _):
        with pytest.raises(error, match=message):
            await OAuth(url, Credentials("me", "secret")).token()


def test_secrets_do_not_go_over_a_network_unencrypted() -> None:
    for url in ("http://gateway.example/oauth/token", "http://192.168.1.2:8443/t", "gateway.example", "https://"):
        with pytest.raises(ConfigurationError, match="no https or wss address"):
            OAuth(url, Credentials("me", "secret"))
    OAuth("http://[::1]:8443/t", Credentials("me", "secret"))
    OAuth("http://localhost/t", Credentials("me", "secret"))


def test_tokens_do_not_either() -> None:
    tokens = OAuth("https://gateway.example:8443/oauth/token", Credentials("me", "secret"))
    with pytest.raises(ConfigurationError, match="unencrypted"):
        SparqlEndpoint("http://gateway.example:8000", tokens=tokens)
    with pytest.raises(ConfigurationError, match="unencrypted"):
        SparqlEndpoint(query_url="https://gateway.example/q", update_url="http://gateway.example/u", tokens=tokens)
    with pytest.raises(ConfigurationError, match="unencrypted"):
        EngineClient("ws://gateway.example:9000/subscribe", tokens=tokens)
    SparqlEndpoint("https://gateway.example:8443/secure", tokens=tokens)
    SparqlEndpoint("http://localhost", unix="/run/http.sock", tokens=tokens)
    for url in ("wss://gateway.example:9443/secure/subscribe", "ws://[::1]:9000/subscribe", "ws+unix:/run/ws.sock"):
        EngineClient(url, tokens=tokens)


# --- credentials ------------------------------------------------------------------------------------


def test_credentials_are_kept_where_nobody_else_can_read_them(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text("old")
    file.chmod(0o644)
    Credentials("me", "ს").save(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Credentials.load(file) == Credentials("me", "ს")
    assert [path.name for path in tmp_path.iterdir()] == ["credentials.json"]
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others can read this secret; run chmod 600"):
        Credentials.load(file)


@each_row("content", ["", "[]", "{}", '{"client_id": "me"}'])
def test_files_without_credentials_are_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "credentials.json"
    file.touch(0o600)
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"credentials\.json: not a JSON object"):
        Credentials.load(file)
    with pytest.raises(ConfigurationError, match=r"none\.json: .*register"):
        Credentials.load(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="can be written"):
        Credentials("me", "secret").save(tmp_path / "no" / "such" / "folder")
