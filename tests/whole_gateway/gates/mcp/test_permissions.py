"""Secure mode: each call has the permissions of its caller, lists show what it may use, and refusals are audited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, combinations

import httpx2
import pytest

from tests.support.context_client import EX, ROOMS, context_client, declared
from tests.support.running_gateway import TIMEOUT_S
from tests.support.secure_gateway import SecureGateway

ACCEPT = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    folder = tmp_path_factory.mktemp("secure")
    declared(folder)
    mcp = {"enabled": True, "updates": True, "sparql": True}
    with SecureGateway(folder, tables={"mcp": mcp}, requests_per_s=0) as found:
        token = found.bearer("loader", found.client("loader", write=["*"]))
        loaded = {"Content-Type": "application/sparql-update", "Authorization": token}
        assert found.https("POST", "/update", ROOMS, loaded).status == 200
        yield found


@pytest.mark.parametrize(
    ("permissions", "queries", "updates"),
    [
        ({}, [], []),
        ({"read": [f"{EX}open"]}, ["OPEN", "EVERYWHERE"], []),
        ({"read": ["default"]}, ["TEMPERATURES", "WARMER", "LABELLED", "ANY", "GRAPH", "EVERYWHERE"], []),
        ({"read": [f"{EX}hidden"], "write": [f"{EX}open"]}, ["SECRETS", "EVERYWHERE"], ["NOTE"]),
        ({"write": ["default"]}, [], ["SET", "COUNT", "LATER"]),
        (
            {"read": ["*"], "write": ["*"]},
            ["TEMPERATURES", "WARMER", "LABELLED", "ANY", "GRAPH", "SECRETS", "OPEN", "EVERYWHERE"],
            ["SET", "COUNT", "NOTE", "LATER"],
        ),
    ],
)
async def test_lists_show_what_the_caller_may_use(
    gateway: SecureGateway, permissions: dict[str, list[str]], queries: list[str], updates: list[str]
) -> None:
    name = "-".join(f"{key}{len(graphs)}{graphs[0][-4:]}" for key, graphs in permissions.items()) or "nothing"
    token = gateway.bearer(name, gateway.client(name, **permissions))
    async with context_client(gateway.addresses.query, token=token, tls=gateway.tls) as client:
        found = [tool.name for tool in (await client.list_tools()).tools]
        free = ["sparql-query"] if permissions.get("read") else []
        assert found == free + [f"house-{one}" for one in queries + updates]
        listed = json.loads((await client.read_resource("lamplighter:applications")).contents[0].text)
        assert list(listed.get("house", {}).get("queries", [])) == queries


async def test_each_call_has_the_permissions_of_its_caller(
    gateway: SecureGateway, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.bearer("guest", gateway.client("guest", read=[f"{EX}open"]))
    text = {"Content-Type": "application/sparql-query", "Accept": "application/sparql-results+json"}
    everything = "SELECT * { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"
    async with context_client(gateway.addresses.query, token=token, tls=gateway.tls) as client:
        asked = await client.call_tool("sparql-query", {"query": everything})
        over_http = gateway.https("POST", "/query", everything, text | {"Authorization": token})
        rows = over_http.json["results"]["bindings"]
        assert asked.structured_content["rows"] == rows != []
        found = await client.call_tool("house-EVERYWHERE")
        assert {row["g"]["value"] for row in found.structured_content["rows"]} == {f"{EX}open"}
        assert (await client.call_tool("house-TEMPERATURES")).structured_content["rows"] == []
        # Tools that the list does not show are refused by what they need.
        for name, arguments, reason in (
            ("house-SECRETS", {}, f"this client may not read the graph <{EX}hidden>"),
            ("house-COUNT", {}, "this client may not write the default graph"),
            ("sparql-query", {"query": f"SELECT * FROM <{EX}hidden> {{ ?s ?p ?o }}"}, "may not read the graph"),
        ):  # fmt: skip
            refused = await client.call_tool(name, arguments)
            assert refused.is_error and refused.content[0].text.startswith("forbidden: ")
            assert reason in refused.content[0].text
    denied = [record.getMessage() for record in caplog.records if record.getMessage().startswith("denied ")]
    assert [line.split(" why=")[0] for line in denied] == ["denied client=guest operation=mcp"] * 3


TEXTS = (
    "SELECT * { ?s ?p ?o }",
    "SELECT * { GRAPH ?g { ?s ?p ?o } }",
    "SELECT (COUNT(*) AS ?n) { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }",
    "SELECT ?g { GRAPH ?g {} }",
    f"SELECT * FROM <{EX}open> {{ ?s ?p ?o }}",
    f"SELECT * FROM NAMED <{EX}hidden> {{ GRAPH ?g {{ ?s ?p ?o }} }}",
    f"SELECT * {{ GRAPH <{EX}hidden> {{ ?s ?p ?o }} }}",
    f"SELECT * {{ ?s <{EX}temperature> ?v FILTER NOT EXISTS {{ GRAPH ?g {{ ?a ?b ?c }} }} }}",
)


@pytest.mark.parametrize(
    "graphs", [*chain(*(combinations(("default", f"{EX}open", f"{EX}hidden"), n) for n in range(4)))]
)
async def test_answers_are_those_of_the_query_path(gateway: SecureGateway, graphs: tuple[str, ...]) -> None:
    name = "oracle" + "".join(graph[-3:] for graph in graphs)
    token = gateway.bearer(name, gateway.client(name, read=list(graphs)))
    headers = {"Content-Type": "application/sparql-query", "Accept": "application/json", "Authorization": token}
    async with context_client(gateway.addresses.query, token=token, tls=gateway.tls) as client:
        for text in TEXTS:
            expected = gateway.https("POST", "/query", text, headers).json
            found = await client.call_tool("sparql-query", {"query": text})
            if found.is_error:
                assert found.content[0].text == f"{expected['error']}: {expected['error_description']}"
            else:
                assert found.structured_content["columns"] == expected["head"]["vars"]
                rows = (found.structured_content["rows"], expected["results"]["bindings"])
                assert sorted(map(json.dumps, rows[0])) == sorted(map(json.dumps, rows[1])), text


async def test_a_writer_is_not_told_what_it_may_not_read(gateway: SecureGateway) -> None:
    token = gateway.bearer("noter", gateway.client("noter", write=[f"{EX}notes", f"{EX}open"]))
    async with context_client(gateway.addresses.query, token=token, tls=gateway.tls) as client:
        note = {"thing": "ex:bert", "text": "hi", "request_id": "n1"}
        told = await client.call_tool("house-NOTE", note)
        assert told.structured_content == {"added": 0, "removed": 0}
        assert told.content[0].text.endswith("Quads that you may not read do not count.")
        assert (await client.call_tool("house-NOTE", note)).structured_content == {}
    log = gateway.local("GET", "/log?last=1").json["records"][0]
    assert log["cause"]["kind"] == "mcp" and log["cause"]["id"].startswith("noter@127.0.0.1:")


async def test_each_request_is_authenticated(gateway: SecureGateway) -> None:
    secret = gateway.client("leaver", read=["*"])
    token = gateway.bearer("leaver", secret)
    url = f"https://localhost:{gateway.port}"
    async with httpx2.AsyncClient(base_url=url, verify=gateway.tls, timeout=TIMEOUT_S, trust_env=False) as http:
        for path in ("/mcp", "/secure/mcp"):
            refused = await http.post(path, content=LIST, headers=ACCEPT)
            assert (refused.status_code, refused.json()["status_code"]) == (401, 401)
            assert refused.headers["www-authenticate"].startswith("Bearer")
            listed = await http.post(path, content=LIST, headers=ACCEPT | {"Authorization": token})
            assert listed.status_code == 200 and listed.json()["result"]["tools"]
        assert gateway.local("DELETE", "/clients/leaver").status == 200
        gone = await http.post("/mcp", content=LIST, headers=ACCEPT | {"Authorization": token})
        assert gone.status_code == 401
