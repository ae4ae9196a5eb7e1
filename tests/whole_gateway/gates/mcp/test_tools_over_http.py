"""The official client at a real gateway: lists, calls, results as over `/query`, one effect for a retried update."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp.shared.exceptions import MCPError

from tests.support.context_client import EX, ROOMS, SLOW, context_client, declared
from tests.support.forks import forks, forks_gone
from tests.support.running_gateway import TIMEOUT_S, http, query, rows, running_gateway, update

READS = ["TEMPERATURES", "WARMER", "LABELLED", "ANY", "GRAPH", "SECRETS", "OPEN", "EVERYWHERE"]
WRITES = ["SET", "COUNT", "NOTE", "LATER"]
ON = {"enabled": True}
UPDATES = {"enabled": True, "updates": True}


@pytest.mark.parametrize("legacy", [False, True], ids=["2026-07-28", "2025-11-25"])
async def test_queries_are_tools_and_answer_as_over_http(tmp_path: Path, legacy: bool) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp=ON) as at, context_client(at.query, legacy=legacy) as client:
        assert client.protocol_version == ("2025-11-25" if legacy else "2026-07-28")
        assert (await update(at, ROOMS)).status == 200
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [f"house-{name}" for name in READS]
        for tool in tools.values():
            assert tool.annotations is not None
            assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (True, False)
        prefix = f"PREFIX ex: <{EX}> "
        warmer = "SELECT ?room { ?room ex:temperature ?v FILTER(?v > 25.5) } ORDER BY ?room"
        for name, arguments, text, graphs in (
            ("TEMPERATURES", {}, "SELECT ?room ?value { ?room ex:temperature ?value } ORDER BY ?room", {}),
            ("TEMPERATURES", {"room": "ex:attic"}, "SELECT ?room ?value { ?room ex:temperature ?value FILTER(?room = "
             "ex:attic) }", {}),
            ("WARMER", {"limit": 25.5}, warmer, {}),
            ("LABELLED", {"text": "attic"}, "SELECT ?room { ?room ex:label 'attic' }", {}),
            ("SECRETS", {}, "SELECT ?s { ?s ex:secret ?o }", {"default-graph-uri": f"{EX}hidden"}),
            ("OPEN", {}, "SELECT ?s ?o { ?s ex:said ?o } ORDER BY ?o", {"default-graph-uri": f"{EX}open"}),
            ("EVERYWHERE", {}, "SELECT ?g ?o { GRAPH ?g { ?s ex:said ?o } } ORDER BY ?o", {}),
        ):  # fmt: skip
            found = await client.call_tool(f"house-{name}", arguments)  # the client checks it by the output schema
            expected = (await query(at, prefix + text, "application/sparql-results+json", **graphs)).json
            content = found.structured_content
            assert not found.is_error
            assert content["rows"] == expected["results"]["bindings"] != []
            assert (content["columns"], content["more"]) == (expected["head"]["vars"], False)
        asked = await client.call_tool("house-ANY", {"room": f"{EX}attic"})
        assert (asked.structured_content, asked.content[0].text) == ({"boolean": True}, "yes")
        asked = await client.call_tool("house-ANY", {"room": f"{EX}cellar"})
        assert (asked.structured_content, asked.content[0].text) == ({"boolean": False}, "no")
        graph = (await client.call_tool("house-GRAPH")).structured_content
        expected = (
            await query(at, prefix + "CONSTRUCT WHERE { ?room ex:temperature ?value }", "application/n-triples")
        ).body
        assert sorted(graph["triples"]) == sorted(expected.decode().splitlines()) != []


async def test_the_text_of_an_answer_is_a_table(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp=ON) as at, context_client(at.query) as client:
        assert (await client.call_tool("house-OPEN")).content[0].text == "There is no row."
        assert (await update(at, ROOMS)).status == 200
        text = (await client.call_tool("house-OPEN")).content[0].text
        assert text.splitlines() == ["?s\t?o", f"<{EX}anna>\tciao", f"<{EX}anna>\thello"]


async def test_no_more_rows_than_the_setting_allows(tmp_path: Path) -> None:
    declared(tmp_path)
    values = " ".join(f"ex:room{number} ex:temperature {number} ." for number in range(3000))
    async with running_gateway(tmp_path, mcp={**ON, "rows_max": 7}) as at, context_client(at.query) as client:
        assert (await update(at, f"PREFIX ex: <{EX}> INSERT DATA {{ {values} }}")).status == 200
        found = await client.call_tool("house-TEMPERATURES")
        assert (len(found.structured_content["rows"]), found.structured_content["more"]) == (7, True)
        assert found.content[0].text.endswith("There are more than these 7 rows; narrow the request down "
                                              "(mcp.rows_max is the limit).")  # fmt: skip
        triples = (await client.call_tool("house-GRAPH")).structured_content
        assert (len(triples["triples"]), triples["more"]) == (7, True)
        warm = (await client.call_tool("house-WARMER", {"limit": 2992})).structured_content
        assert (len(warm["rows"]), warm["more"]) == (7, False)


async def test_updates_and_free_queries_are_off_by_default(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp=ON) as at, context_client(at.query) as client:
        for name, arguments in (("house-COUNT", {}), ("sparql-query", {"query": "ASK {}"})):
            with pytest.raises(MCPError, match=f"there is no tool '{name}'; tools/list lists the tools"):
                await client.call_tool(name, arguments)
        assert await rows(at, "SELECT * { ?s ?p ?o }") == []


async def test_without_the_setting_there_is_no_such_path(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path) as at:
        answer = await http(at.page + "mcp", "POST", b"{}", {"Content-Type": "application/json"})
        assert (answer.status, answer.json["error"]) == (404, "not_found")
        assert "/mcp" not in (await http(at.page)).body.decode()


async def test_an_update_has_one_effect_and_its_record_names_its_cause(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp=UPDATES) as at, context_client(at.query) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [f"house-{name}" for name in READS + WRITES]
        hints = {name: tool.annotations for name, tool in tools.items() if tool.annotations is not None}
        assert [name for name, hint in hints.items() if hint.destructive_hint] == ["house-SET"]
        assert [name for name in WRITES if hints[f"house-{name}"].idempotent_hint] == ["NOTE"]
        assert not any(hints[f"house-{name}"].read_only_hint for name in WRITES)
        first = await client.call_tool("house-COUNT", {"request_id": "one"})
        sequence = first.structured_content["sequence"]
        assert first.structured_content == {"sequence": sequence, "added": 1, "removed": 0}
        again = await client.call_tool("house-COUNT", {"request_id": "one"})
        assert again.structured_content == {"sequence": sequence}
        assert len(await rows(at, "SELECT * { ?s ?p ?o }")) == 1
        await client.call_tool("house-COUNT")
        assert len(await rows(at, "SELECT * { ?s ?p ?o }")) == 2
        room = {"room": "ex:hall", "value": 19.25}
        assert (await client.call_tool("house-SET", room)).content[0].text == "Done: 1 quad added, 0 removed."
        later = await client.call_tool("house-LATER", {"request_id": "later"})
        [pending] = (await http(at.delayed)).json["delayed"]
        assert later.structured_content["delayed"] == pending["id"]
        records = (await http(at.page + "log?last=4")).json["records"]
        causes = [record["cause"] for record in records]
        assert [one["kind"] for one in causes] == ["mcp"] * 4
        assert all(one["id"].startswith("127.0.0.1:") for one in causes)


async def test_errors_name_the_place_and_the_cure(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp={**UPDATES, "sparql": True}) as at, context_client(at.query) as client:
        for name, arguments, text in (
            ("house-WARMER", {}, "forced_binding: WARMER needs a value for ?limit"),
            ("house-WARMER", {"limit": None}, "forced_binding: WARMER needs a value for ?limit"),
            ("house-WARMER", {"limit": "20"}, "argument limit: '20' is of the wrong type; send a JSON number"),
            ("house-WARMER", {"limit": True}, "argument limit: True is of the wrong type; send a JSON number"),
            ("house-WARMER", {"limit": [1]}, "argument limit: [1] is of the wrong type; send a JSON number"),
            ("house-WARMER", {"most": 1}, "house-WARMER has no argument 'most'; it has limit"),
            ("house-TEMPERATURES", {"room": "attic"}, "neither an absolute IRI nor a name with a prefix"),
            ("house-LABELLED", {"text": {"type": "uri", "value": EX}}, "send a JSON string or number or boolean"),
            ("house-SET", {"room": "ex:a", "value": 1, "request_id": 5}, "argument request_id: 5 is of the wrong type"),
            ("house-SET", {"room": "ex:a", "value": 1, "request_id": "x" * 201}, "a request id has 200 characters"),
            ("sparql-query", {}, "sparql-query needs the argument query"),
            ("sparql-query", {"query": "SELECT"}, "line 1, column 7"),
            ("sparql-query", {"query": "SELECT * { SERVICE <http://x/> { ?s ?p ?o } }"}, "SERVICE is refused"),
            ("sparql-query", {"query": "CLEAR ALL"}, "SPARQL11ProtocolException"),
            ("sparql-query", {"query": "SELECT * {} #" + "x" * 65536}, "limits.query_bytes_max"),
        ):  # fmt: skip
            found = await client.call_tool(name, arguments)
            assert found.is_error and text in found.content[0].text, (name, found.content[0].text)
        assert await rows(at, "SELECT * { ?s ?p ?o }") == []


async def test_resources_describe_applications_vocabulary_and_iris(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp=ON) as at, context_client(at.query) as client:
        assert (await update(at, ROOMS)).status == 200
        texts: dict[str, Any] = {}
        for resource in (await client.list_resources()).resources:
            texts[resource.uri] = (await client.read_resource(resource.uri)).contents[0].text
        assert "sosa:" in texts["lamplighter:vocabulary/gateway"]
        house = json.loads(texts["lamplighter:applications"])["house"]
        assert house["queries"] == {name: f"house-{name}" for name in READS}
        assert (house["updates"], house["prefixes"]) == ({}, {"ex": EX})
        assert "21.5" in (await client.read_resource(f"{EX}kitchen")).contents[0].text
        for uri in (f"{EX}cellar", "no iri", "lamplighter:vocabulary/../../pyproject", "file:///etc/passwd", ""):
            with pytest.raises(MCPError, match="the dataset has no triples of"):
                await client.read_resource(uri)


async def test_other_methods_are_refused_and_large_bodies_too(tmp_path: Path) -> None:
    declared(tmp_path)
    async with running_gateway(tmp_path, mcp=ON) as at:
        url, types = at.page + "mcp", {"Content-Type": "application/json", "Accept": "application/json"}
        answer = await http(url, "GET", None, {"Accept": "text/event-stream"})
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (await http(url, "DELETE")).status == 405
        answer = await http(url, "POST", b" " * (128 * 1024 + 1), types)
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")
        answer = await http(url, "POST", b"{}", types | {"Origin": "http://elsewhere.example"})
        assert (answer.status, answer.json["error"]) == (403, "cors_error")
        answer = await http(url, "POST", b"{}", types | {"Host": "elsewhere.example"})
        assert (answer.status, answer.json["error"]) == (421, "wrong_host")


async def test_a_query_ends_when_its_client_disconnects(tmp_path: Path) -> None:
    declared(tmp_path, {"queries": {"SLOW": {"sparql": SLOW}}})
    values = " ".join(f"ex:r{number} ex:t {number} ." for number in range(300))
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "house-SLOW", "arguments": {}}}
    body = json.dumps(message).encode()
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with running_gateway(tmp_path, mcp=ON, query={"time_ms_max": 3_600_000, "concurrent_max": 1}) as at:
        assert (await update(at, f"PREFIX ex: <{EX}> INSERT DATA {{ {values} }}")).status == 200
        place, before = urlsplit(at.query), forks()
        for _ in range(3):
            _, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(head.encode() + body)
            async with asyncio.timeout(TIMEOUT_S):
                while not forks() - before:
                    await asyncio.sleep(0.01)
                writer.close()
                await writer.wait_closed()
                await forks_gone(before)
