"""Hostile messages of the Model Context Protocol: no fault, no growth, and nothing comes out of its place.

20,000 of them; `HOSTILE_CALLS=100000` in the environment sends more.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway_process import Gateway, gateway_process
from tests.faults.test_hostile_messages import GROWTH_BYTES_MAX, HELD_MS_MAX, resident_bytes
from tests.support.context_client import EX, ROOMS, context_client, declared
from tests.support.hostile import RawSocket
from tests.support.hostile_calls import HostileCalls

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_CALLS", "20000"))
LOG = "gateway.log"
EVERYTHING = "SELECT * { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"


def test_hostile_calls_break_nothing(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    declared(tmp_path)
    seen = Counter[str]()
    tables: dict[str, dict[str, Any]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "query": {"time_ms_max": 2_000},
        "limits": {"evaluation_ms_max": 100},
        "delayed": {"pending_max": 100},
        "mcp": {"enabled": True, "updates": True, "sparql": True},
    }
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:
        posted(gateway, "update", ROOMS)
        calls = HostileCalls(seed)
        send(gateway, calls, SENT // 3, seen)
        warm, files = resident_bytes(gateway), gateway.figures()["engine"]["open_files"]
        send(gateway, calls, SENT - SENT // 3, seen)
        end, found = resident_bytes(gateway), gateway.figures()["engine"]
        print(seen, f"resident {warm} {end}", found["loop_held_ms"], sep="\n")
        assert found["status"] == "ok", found["problems"]
        assert found["open_files"] <= files + 2
        assert found["loop_held_ms"]["processor_max"] <= HELD_MS_MAX
        assert end <= warm + GROWTH_BYTES_MAX
        assert seen["result"] > SENT // 10 and seen["tool error"] > SENT // 20
        check_dataset(gateway)
        asyncio.run(served(gateway))
    assert gateway.process.returncode == 0
    log = (tmp_path / LOG).read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]


def send(gateway: Gateway, calls: HostileCalls, count: int, seen: Counter[str]) -> None:
    """Each is answered: by a result, or by an error of the protocol or of the gate, which is the sender's."""
    with ExitStack() as stack:
        one: RawSocket | None = None
        for _ in range(count):
            one = one or stack.enter_context(RawSocket(gateway.http[1]))
            request = calls.request()
            one.send(request)
            status, headers, body = one.answer()
            assert status < 500, (status, body, request)
            seen[str(status)] += 1
            if headers.get("content-type", "").startswith("application/json") and body:
                seen[kind(json.loads(body), request)] += 1
            if headers.get("connection") == "close":
                stack.close()
                one = None


def kind(answer: Any, request: bytes) -> str:
    if answer is None:
        return "nothing"  # to a notification
    if "result" in answer:
        return "tool error" if answer["result"].get("isError") else "result"
    error = answer["error"]
    if isinstance(error, str):
        assert error != "internal", request
        return error
    assert error["message"] and error["code"] != -32603, (answer, request)
    return str(error["code"])


def posted(gateway: Gateway, operation: str, text: str) -> Any:
    with RawSocket(gateway.http[1]) as one:
        head = f"POST /{operation} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/sparql-{operation}\r\n"
        one.send(f"{head}Content-Length: {len(text.encode())}\r\n\r\n{text}".encode())
        status, _, body = one.answer()
        assert status == 200, body
        return json.loads(body)


def check_dataset(gateway: Gateway) -> None:
    """The updates that there are have changed what they may change, and no value has done anything else."""
    others = set()
    for row in posted(gateway, "query", EVERYTHING)["results"]["bindings"]:
        graph, name = row.get("g", {"value": ""})["value"].removeprefix(EX), row["p"]["value"].removeprefix(EX)
        if (graph, name) in (("", "temperature"), ("open", "said")):
            continue  # SET and NOTE write any value
        if (graph, name) == ("", "counted"):
            assert (row["s"]["type"], row["o"]["value"]) == ("bnode", "true")
            continue
        others.add((graph, row["s"]["value"].removeprefix(EX), name, row["o"]["value"]))
    assert others == {
        *(("", room, "label", room) for room in ("kitchen", "attic")),
        *(("hidden", "anna", name, value) for name, value in (("secret", "1"), ("said", "psst"))),
    }


async def served(gateway: Gateway) -> None:
    async with context_client(gateway.urls["query"]) as client:
        assert (await client.call_tool("house-OPEN")).structured_content["rows"]
