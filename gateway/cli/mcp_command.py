"""`lamplighter mcp`: the Model Context Protocol over standard input and output, for clients that start a command.

Each message goes to `/mcp` of a gateway, with a token that is renewed, and its answer comes back. The command needs
neither the protocol's SDK nor the store.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import httpx

from lamplighter.engine.client import Tokens
from lamplighter.engine.client.addresses import trusting
from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.addresses import ports_here, socket_paths
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.endpoint import add_reach_options, addresses_at, file_option, tokens, url_option
from lamplighter.gateway.cli.options import settings_and_data

PATH: Final = "/mcp"
AT_ONCE: Final = 16  # messages that wait for their answers; more are not read
LINE_BYTES_MAX: Final = 1024 * 1024  # of a message. The gateway takes less.
TIMEOUT_S: Final = 600.0  # longest wait for an answer; the gateway bounds its queries
FAILED: Final = -32000  # the code of errors on the way (JSON-RPC 2.0, 5.1: server errors)

_VERSION = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def add_mcp_command(command: Adder) -> None:
    add_reach_options(command("mcp", _run))


def _run(options: argparse.Namespace) -> int:
    url = url_option(options)
    given = None
    if url is None:
        settings, data = settings_and_data(options)
        if settings.security.enabled:
            transport = httpx.AsyncHTTPTransport(uds=str(socket_paths(settings, data)[0]))
            place = "http://localhost"
        else:
            transport = httpx.AsyncHTTPTransport()
            place = f"http://{settings.http.host}:{ports_here(settings, data).http}"
    else:
        addresses = addresses_at(url)
        given = tokens(options, addresses)
        transport = httpx.AsyncHTTPTransport(verify=trusting(file_option(options, "ca")))
        there = urlsplit(addresses.query)
        place = f"{there.scheme}://{there.netloc}"
    asyncio.run(_bridge(transport, place + PATH, given))
    return 0


async def _bridge(transport: httpx.AsyncHTTPTransport, url: str, given: Tokens | None) -> None:
    out = sys.stdout.buffer

    def write(message: bytes) -> None:
        out.write(message + b"\n")
        out.flush()

    async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S) as http:
        await ContextBridge(http, url, given, write).run(lines(sys.stdin.buffer))


async def lines(source: BinaryIO) -> AsyncIterator[bytes]:
    """The lines of a source, which may block. The rest of one that is too long is left out."""
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[bytes] = asyncio.Queue(1)

    def reading() -> None:
        with suppress(RuntimeError):  # the loop has ended
            while line := source.readline(LINE_BYTES_MAX):
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = source.readline(LINE_BYTES_MAX)
                asyncio.run_coroutine_threadsafe(read.put(line), loop).result()
            asyncio.run_coroutine_threadsafe(read.put(b""), loop).result()

    # A daemon: a read that waits for a terminal does not keep the process from its end.
    threading.Thread(target=reading, name="standard input", daemon=True).start()
    while line := await read.get():
        yield line


class ContextBridge:
    """Sends messages on, several at once. given: the tokens for the gateway. write: takes an answer."""

    def __init__(self, http: httpx.AsyncClient, url: str, given: Tokens | None, write: Callable[[bytes], None]) -> None:
        self._http = http
        self._url = url
        self._tokens = given
        self._write = write
        self._room = asyncio.Semaphore(AT_ONCE)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._version = ""  # as agreed by the handshake

    async def run(self, messages: AsyncIterator[bytes]) -> None:
        """Returns when there are no more messages, and all of them are answered."""
        async with asyncio.TaskGroup() as tasks:
            async for line in messages:
                if not line.strip():
                    continue
                message = _object(line)
                if message.get("method") == "notifications/cancelled":
                    self._cancel(message)
                    continue
                await self._room.acquire()
                key = json.dumps(message.get("id"))
                task = tasks.create_task(self._forward(line, message))
                self._running[key] = task
                task.add_done_callback(partial(self._forget, key))

    def _forget(self, key: str, task: asyncio.Task[None]) -> None:
        self._room.release()
        if self._running.get(key) is task:
            del self._running[key]

    def _cancel(self, message: dict[str, Any]) -> None:
        """The gateway ends what it does for a request whose connection is closed."""
        params = message.get("params")
        task = self._running.get(json.dumps(params.get("requestId"))) if isinstance(params, dict) else None
        if task is not None:
            task.cancel()

    async def _forward(self, line: bytes, message: dict[str, Any]) -> None:
        try:
            answer = await self._post(line, self._headers(message))
        except (GatewayError, httpx.HTTPError) as error:
            self._fail(message, f"no answer from {self._url}: {error or type(error).__name__}")
            return
        if not answer.content:
            if answer.status_code >= 400:
                self._fail(message, f"{self._url} answers {answer.status_code} {answer.reason_phrase}")
            return
        told = _object(answer.content)
        if "jsonrpc" not in told:
            why = told.get("error_description", answer.reason_phrase)
            self._fail(message, f"{self._url} answers {answer.status_code}: {why}")
            return
        if message.get("method") == "initialize" and isinstance(told.get("result"), dict):
            self._version = str(told["result"].get("protocolVersion", ""))
        self._write(answer.content.replace(b"\n", b""))

    async def _post(self, line: bytes, headers: dict[str, str]) -> httpx.Response:
        """The answer; with another token if the first one has expired. Raises GatewayError, httpx.HTTPError."""
        token = "" if self._tokens is None else await self._tokens.token()
        answer = await self._http.post(self._url, content=line, headers=headers | _bearer(token))
        if answer.status_code == httpx.codes.UNAUTHORIZED and self._tokens is not None:
            self._tokens.expired(token)
            token = await self._tokens.token()
            answer = await self._http.post(self._url, content=line, headers=headers | _bearer(token))
        return answer

    def _headers(self, message: dict[str, Any]) -> dict[str, str]:
        """Those of Streamable HTTP: since 2026-07-28 they repeat what is in the message."""
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        version = meta.get(_VERSION) if isinstance(meta, dict) else None
        if not isinstance(version, str):
            return headers | ({"MCP-Protocol-Version": self._version} if self._version else {})
        method = message.get("method")
        name = params.get(_NAMED_BY.get(method, "")) if isinstance(method, str) else None
        found = {"MCP-Protocol-Version": version, "Mcp-Method": method, "Mcp-Name": name}
        return headers | {header: _header_value(value) for header, value in found.items() if isinstance(value, str)}

    def _fail(self, message: dict[str, Any], why: str) -> None:
        if "id" not in message:
            print(f"lamplighter: message lost: {why}", file=sys.stderr)
            return
        error = {"code": FAILED, "message": why}
        self._write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for everything else, which the gateway judges."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _header_value(value: str) -> str:
    """A text as the protocol puts it into a header (revision 2026-07-28, Streamable HTTP)."""
    if _PLAIN.fullmatch(value) and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="
