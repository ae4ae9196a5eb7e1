"""`lamplighter mcp`: the official client starts it, and reaches a gateway of this machine or another."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from lamplighter.gateway.cli.mcp_command import LINE_BYTES_MAX, ContextBridge
from tests.support.brokers import free_port
from tests.support.commands import command_line
from tests.support.context_client import EX, ROOMS, SLOW, context_client, declared
from tests.support.forks import forks, forks_gone
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT
from tests.support.running_gateway import TIMEOUT_S, running_gateway, update
from tests.support.secure_gateway import SecureGateway

ON = {"enabled": True, "updates": True}


def started(*arguments: object, legacy: bool = False) -> Client:
    command, *words = command_line("mcp", *arguments)
    transport = stdio_client(StdioServerParameters(command=command, args=words, cwd=ROOT))
    return Client(transport, mode="legacy" if legacy else "auto", read_timeout_seconds=TIMEOUT_S)


@pytest.mark.parametrize("legacy", [False, True], ids=["2026-07-28", "2025-11-25"])
async def test_it_answers_as_the_gateway_does(tmp_path: Path, legacy: bool) -> None:
    declared(tmp_path)
    async with (
        running_gateway(tmp_path, mcp=ON) as at,
        context_client(at.query, legacy=legacy) as straight,
        started("--url", at.query.removesuffix("/query"), legacy=legacy) as client,
    ):
        assert client.protocol_version == straight.protocol_version
        assert (await update(at, ROOMS)).status == 200
        assert await client.list_tools() == await straight.list_tools()
        found = await asyncio.gather(*(client.call_tool("house-WARMER", {"limit": limit}) for limit in range(20, 40)))
        expected = [await straight.call_tool("house-WARMER", {"limit": limit}) for limit in range(20, 40)]
        assert found == expected and found[0].structured_content["rows"]
        assert (await client.read_resource(f"{EX}kitchen")) == (await straight.read_resource(f"{EX}kitchen"))
        with pytest.raises(Exception, match="there is no tool 'caf"):
            await client.call_tool("café")


async def test_on_the_machine_of_the_gateway_it_needs_no_address(tmp_path: Path) -> None:
    declared(tmp_path)
    with GatewayProcess(tmp_path, mcp=ON) as gateway:
        async with started("--config", gateway.config) as client:
            assert not (await client.call_tool("house-COUNT")).is_error
        assert len(gateway.rows("SELECT * { ?s ?p ?o }")) == 1


async def test_it_uses_the_permissions_of_its_client(tmp_path: Path) -> None:
    declared(tmp_path)
    with SecureGateway(tmp_path, tables={"mcp": ON}) as gateway:
        secret = gateway.client("assistant", read=[f"{EX}open"])
        credentials, token = tmp_path / "assistant.json", tmp_path / "token"
        credentials.write_text(json.dumps({"client_id": "assistant", "client_secret": secret}))
        credentials.chmod(0o600)
        token.write_text(gateway.bearer("assistant", secret).removeprefix("Bearer "))
        url = f"https://localhost:{gateway.port}"
        for option, file in (("--client", credentials), ("--token", token)):
            async with started("--url", url, "--ca", gateway.authority, option, file) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert names == ["house-OPEN", "house-EVERYWHERE"]
        async with started("--config", gateway.toml, "--data", gateway.data) as client:  # by the Unix socket
            assert len((await client.list_tools()).tools) == 12


def lines_of(text: bytes, *arguments: object) -> list[dict[str, Any]]:
    done = subprocess.run(command_line("mcp", *arguments), input=text, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_gateway_each_request_gets_an_error() -> None:
    port = free_port()
    messages = [
        {"jsonrpc": "2.0", "id": 7, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    text = b"\n".join(json.dumps(message).encode() for message in messages)
    [told] = lines_of(text, "--url", f"http://127.0.0.1:{port}")
    assert (told["id"], told["error"]["code"]) == (7, -32000)
    assert f"no answer from http://127.0.0.1:{port}/mcp" in told["error"]["message"]


async def test_odd_lines_are_answered_and_the_next_ones_too(tmp_path: Path) -> None:
    declared(tmp_path)
    ping = json.dumps({"jsonrpc": "2.0", "id": "last", "method": "ping"}).encode()
    odd = [b"{", b"[]", b"", b"\xff", b"5", b'{"id":1,"jsonrpc":"2.0","method":"none"}', b"[" * 100_000]
    odd += [b'{"id":2,"jsonrpc":"2.0","method":"x' + b"x" * 200_000 + b'"}', b"x" * (2 * LINE_BYTES_MAX + 5), ping]
    async with running_gateway(tmp_path, mcp=ON) as at:
        url = at.query.removesuffix("/query")
        told = await asyncio.to_thread(lines_of, b"\n".join(odd) + b"\n", "--url", url)
    by_id = {json.dumps(message.get("id")): message for message in told}
    assert by_id['"last"']["result"] == {}
    assert by_id["1"]["error"]["code"] == -32601
    assert "at most 131072 bytes" in by_id["2"]["error"]["message"]


async def test_a_cancelled_request_is_ended_at_the_gateway(tmp_path: Path) -> None:
    declared(tmp_path, {"queries": {"SLOW": {"sparql": SLOW}}})
    written: list[bytes] = []
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "house-SLOW", "arguments": {}}}
    async with (
        running_gateway(tmp_path, mcp=ON, query={"time_ms_max": 3_600_000}) as at,
        httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http,
    ):
        values = " ".join(f"<http://r{number}> <http://t> {number} ." for number in range(300))
        assert (await update(at, f"INSERT DATA {{ {values} }}")).status == 200
        before = forks()

        async def messages() -> AsyncIterator[bytes]:
            yield json.dumps(call).encode()
            while not forks() - before:
                await asyncio.sleep(0.01)
            for params in ({"requestId": 2}, [], {"requestId": 1}):
                yield json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode()

        async with asyncio.timeout(TIMEOUT_S):
            await ContextBridge(http, f"{at.page}mcp", None, written.append).run(messages())
            await forks_gone(before)
    assert written == []


def test_it_loads_neither_store_nor_sdk() -> None:
    script = (
        "import sys; from lamplighter.gateway.__main__ import parse_command_line; parse_command_line(['mcp']); "
        "print([name for name in ('pyoxigraph', 'mcp', 'pydantic', 'starlette') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
