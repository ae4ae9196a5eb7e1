"""docs/language-models.md says what is so: its application and its program run at a real gateway with its settings."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.gates.mcp.door import BODY_BYTES_MAX
from lamplighter.gateway.settings import McpSettings
from tests.support.commands import command, command_line
from tests.support.context_client import context_client
from tests.support.places import ROOT
from tests.support.running_gateway import TIMEOUT_S, rows, running_gateway, update
from tests.support.secure_gateway import SecureGateway

DOCUMENT = (ROOT / "docs" / "language-models.md").read_text()
[PROFILE, *CLIENTS] = re.findall(r"```json\n(.*?)```", DOCUMENT, re.S)
[SETTINGS] = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S)
[PROGRAM] = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
[OUTPUT] = re.findall(r"```text\n(.*?)```", DOCUMENT, re.S)
[UPDATE] = [shlex.split(line)[3] for line in DOCUMENT.splitlines() if line.startswith("$ lamplighter update ")]


async def test_the_program_prints_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "house.jsap").write_text(PROFILE)
    names: dict[str, Callable[..., Awaitable[None]]] = {}
    exec(compile(PROGRAM, "mcp.md", "exec"), names)
    async with running_gateway(tmp_path, **tomllib.loads(SETTINGS)) as at:
        assert (await update(at, UPDATE)).status == 200
        await names["main"](at.page + "mcp")
        assert capsys.readouterr().out == OUTPUT
        async with context_client(at.query) as client:
            error = await client.call_tool("house-WARM_ROOMS")
            assert f"`{error.content[0].text}`" in DOCUMENT
            resources = [resource.uri for resource in (await client.list_resources()).resources]
            assert set(re.findall(r"`(lamplighter:[^`]+)`", DOCUMENT)) <= set(resources)


async def test_its_update_is_a_tool_when_allowed(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "house.jsap").write_text(PROFILE)
    async with (
        running_gateway(tmp_path, mcp={"enabled": True, "updates": True}) as at,
        context_client(at.query) as client,
    ):
        arguments = {"room": "ex:attic", "celsius": 19.5, "request_id": "evening"}
        assert not (await client.call_tool("house-SET_TARGET", arguments)).is_error
        assert await rows(at, "SELECT ?o { ?s <http://example.org/target> ?o }") == [{"o": "19.5"}]


def test_keys_defaults_and_limits_are_those_of_the_gateway() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", DOCUMENT, re.M))
    assert {key: json.loads(value) for key, value in table.items()} == msgspec.to_builtins(McpSettings())
    assert f"at most {BODY_BYTES_MAX // 1024} KiB" in DOCUMENT


def test_clients_are_sent_to_the_path_or_start_the_command() -> None:
    by_url, server = (json.loads(text)["mcpServers"]["house"] for text in CLIENTS)
    assert (by_url["type"], urlsplit(by_url["url"]).path) == ("http", "/mcp")
    assert server["command"] == "lamplighter"
    command_parser().parse_args(server["args"])


async def test_a_registered_assistant_sees_what_it_may_read(tmp_path: Path) -> None:
    """The commands and the last configuration, with the addresses of this gateway."""
    (tmp_path / "apps").mkdir()
    in_graph = PROFILE.replace(
        '"description": "Rooms', '"graphs": {"default-graph-uri": ["http://example.org/rooms"]}, "description": "Rooms'
    )
    (tmp_path / "apps" / "house.jsap").write_text(in_graph)
    grant, register = (
        shlex.split(line)[2:] for line in re.findall(r"^\$ (lamplighter (?:clients|register) .*)$", DOCUMENT, re.M)
    )
    with SecureGateway(tmp_path, tables={"mcp": {"enabled": True}}) as gateway:
        here = {"https://kitchen.local:8443": f"https://localhost:{gateway.port}"}
        coded = command("clients", *grant, "--config", gateway.toml, "--data", gateway.data)
        code, *_ = re.findall(r"[0-9A-Z]{4}-[0-9A-Z]{4}", coded.stdout)
        words = [{**here, "7K2M-XW4P": code}.get(word, word) for word in register]
        options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
        assert command("register", *words, **options).returncode == 0
        args = [here.get(word, word) for word in json.loads(CLIENTS[-1])["mcpServers"]["house"]["args"]]
        program, *arguments = command_line(*args)
        server = StdioServerParameters(command=program, args=arguments, cwd=tmp_path, env=options["env"])
        async with Client(stdio_client(server), read_timeout_seconds=TIMEOUT_S) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["house-WARM_ROOMS"]
            assert not (await client.call_tool("house-WARM_ROOMS", {"limit": 25})).is_error


def test_the_program_imports_nothing_but_the_sdk() -> None:
    modules = [node.module for node in ast.walk(ast.parse(PROGRAM)) if isinstance(node, ast.ImportFrom)]
    assert modules == ["mcp"]
