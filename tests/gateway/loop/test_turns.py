"""A request whose plan was not enough has had its time: others go first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.work import PlanExceededError
from tests.support.gateway_parts import recovered_runner, update
from tests.support.recording_sink import RecordingSink


async def test_others_go_first_behind_a_plan_that_was_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    others: list[asyncio.Future[Any]] = []
    subscribe, prepare = Engine.subscribe, Engine.prepare

    async with recovered_runner(tmp_path) as runner:

        def subscribing(engine: Engine, *arguments: Any, **options: Any) -> Any:
            turns.append("subscription")
            if not others:
                others.append(asyncio.ensure_future(update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")))
                raise PlanExceededError("the first result needs more work")
            return subscribe(engine, *arguments, **options)

        def preparing(engine: Engine, *arguments: Any, **options: Any) -> Any:
            turns.append("update")
            return prepare(engine, *arguments, **options)

        monkeypatch.setattr(Engine, "subscribe", subscribing)
        monkeypatch.setattr(Engine, "prepare", preparing)
        ear = RecordingSink()
        await runner.subscribe("SELECT ?s { ?s <urn:p> ?o }", ear, None, None)
        await others[0]
        assert turns == ["subscription", "update", "subscription"]
        assert len(ear.first) == 1
