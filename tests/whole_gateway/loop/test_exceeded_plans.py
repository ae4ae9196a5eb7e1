"""A request whose plan is never enough has an answer, and holds up no other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine import Engine
from lamplighter.engine.work import PlanExceededError
from lamplighter.gateway.loop.queries import Queries
from tests.support.running_gateway import hear, running_gateway, tell, update


async def test_it_is_refused_after_some_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> Any:
        raise PlanExceededError("the first result needs more work")

    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        monkeypatch.setattr(Engine, "subscribe", never)
        await tell(socket, {"subscribe": {"sparql": "SELECT * { ?s ?p ?o }", "alias": "one"}})
        answer = await hear(socket)
        assert (answer["alias"], answer["error"]) == ("one", "limit_exceeded")
        assert (await update(at, "INSERT DATA { <urn:s> <urn:p> 1 }")).status == 200


async def test_a_text_that_the_gateway_fails_at_costs_its_answer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(queries: Queries, sparql: str) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        with monkeypatch.context() as faulty:
            faulty.setattr(Queries, "outline", broken)
            await tell(socket, {"query": {"sparql": "ASK {}", "alias": "one"}})
            answer = await hear(socket)
            assert (answer["alias"], answer["status_code"]) == ("one", 500)
            assert "RecursionError" in json.dumps(answer)
        await tell(socket, {"query": {"sparql": "ASK {}", "alias": "two"}})
        assert (await hear(socket))["answer"]["alias"] == "two"
