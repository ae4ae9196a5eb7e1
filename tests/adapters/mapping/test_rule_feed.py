"""The subscription to the rules of the dataset."""

from __future__ import annotations

import asyncio

import pytest

from lamplighter.adapters.mapping import rule_feed
from lamplighter.adapters.mapping.dataset_rules import DatasetRules, forget_problems
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.engine.errors import QueueFullError, RefusedError, UpstreamError
from tests.support.dataset_rules import A, RulesGateway
from tests.support.event_loops import until
from tests.support.mapping_rules import BASE

TIMEOUT_S = 60.0


async def follow(gateway: RulesGateway, changes: list[int]) -> asyncio.Task[None]:
    found = DatasetRules(BASE)
    task = asyncio.create_task(follow_rules(gateway, found, lambda: changes.append(len(found.streams()))))
    await until(lambda: bool(changes))
    return task


async def test_problem_is_written_even_if_the_gateway_is_busy() -> None:
    gateway, changes = RulesGateway(), list[int]()
    gateway.errors = [QueueFullError("full"), QueueFullError("full")]
    task = await follow(gateway, changes)
    assert gateway.texts == [forget_problems("mqtt")]
    gateway.errors = [QueueFullError("full")]
    gateway.notify(1, {"bad": {"stream": {"topic": "a/{x"}}})
    await until(lambda: gateway.count("problem") == 2)
    gateway.notify(2, {}, {"bad": {"stream": {"topic": "a/{x"}}})
    await until(lambda: gateway.count("problem") == 3)
    assert "INSERT" not in gateway.texts[-1]
    task.cancel()
    await asyncio.wait([task])


async def test_many_changes_are_applied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, changes = RulesGateway(), list[int]()
    task = await follow(gateway, changes)
    for number in range(50):
        gateway.notify(number + 1, {str(number): A})
    await until(lambda: changes[-1] == 50)
    applied = len(changes)
    assert applied < 10
    monkeypatch.setattr(rule_feed, "SETTLE_S", 1_000.0)
    for number in range(50):
        gateway.notify(number + 51, {f"later{number}": A})
        for _ in range(10):
            await asyncio.sleep(0)
    assert gateway.queue.empty() and len(changes) == applied
    task.cancel()
    await asyncio.wait([task])


async def test_refused_subscription_leaves_the_adapter_running(caplog: pytest.LogCaptureFixture) -> None:
    gateway, changes = RulesGateway(), list[int]()
    task = await follow(gateway, changes)
    gateway.queue.put_nowait(RefusedError("permission_denied", 403, "no"))
    await asyncio.wait_for(task, TIMEOUT_S)
    assert "not followed" in caplog.text


async def test_closed_client_ends_the_feed() -> None:
    gateway, changes = RulesGateway(), list[int]()
    task = await follow(gateway, changes)
    gateway.queue.put_nowait(UpstreamError("the client was closed"))
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(task, TIMEOUT_S)
