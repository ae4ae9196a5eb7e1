"""Small queries in the loop: no process, and no answer before every commit that they saw is durable."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.workers.ad_hoc import Answer, ReadyAnswer
from tests.support.gateway_parts import FakeClock, recovered_runner, running
from tests.support.gateway_parts import update as commit
from tests.support.held_disk import stepped_disk

JSON = "application/sparql-results+json"


def ask(runner: Runner, text: str) -> asyncio.Future[Answer | ReadyAnswer]:
    return runner.queries.query(runner.queries.outline(text), JSON)


def values(content: bytes) -> list[Any]:
    return [row["v"]["value"] for row in json.loads(content)["results"]["bindings"]]


async def test_a_small_query_takes_no_process_and_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks, fork = [], os.fork

    def counted() -> int:
        forks.append(1)
        return fork()

    async with recovered_runner(tmp_path) as runner:
        await commit(runner, "INSERT DATA { <urn:a> <urn:p> 1 , 2 }")
        monkeypatch.setattr("os.fork", counted)
        for text, count in (
            ("SELECT ?v { <urn:a> <urn:p> ?v } ORDER BY ?v", 0),
            ("SELECT ?v { <urn:a> <urn:p> ?v FILTER REGEX(STR(?v), '.') } ORDER BY ?v", 1),
        ):
            forks.clear()
            answer = await ask(runner, text)
            assert values(await answer.whole()) == ["1", "2"]
            assert len(forks) == count, text
        assert runner.counters.queries == 2
        assert runner.timings.store_query.count == 2


async def test_an_answer_waits_until_what_it_saw_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogWriter(tmp_path, FakeClock(), "fsync")
    log.open()
    runner = Runner(Settings(), log)
    runner.recover()
    async with running(runner):
        with stepped_disk(monkeypatch) as disk:
            # Both are in one group: the query has its turn behind the update, and before the sync of its record.
            updated = asyncio.create_task(commit(runner, "INSERT DATA { <urn:a> <urn:p> 1 }"))
            await asyncio.sleep(0)
            asked = asyncio.ensure_future(ask(runner, "SELECT ?v { <urn:a> <urn:p> ?v }"))
            await disk.begun()
            assert runner.counters.queries == 1, "the query is in a later group"
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asked.done(), "an answer left before the commit that it saw was durable"
            disk.go_on()
            answer = await asked
            assert isinstance(answer, ReadyAnswer)
            assert values(answer.content) == ["1"]
            await updated


async def test_a_ready_answer_is_used_like_others() -> None:
    answer = ReadyAnswer(b"content")
    assert [chunk async for chunk in answer.chunks()] == [b"content"]
    assert await answer.whole(7) == b"content"
    with pytest.raises(Exception, match="more than 6 bytes"):
        await answer.whole(6)
    answer.abandon()
