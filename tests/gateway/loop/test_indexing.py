"""Subscriptions whose quads are indexed in portions, between which others have their turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from lamplighter.gateway.loop.runner import Runner
from tests.gateway.loop.test_slices import Listener, subscribed
from tests.support.gateway_parts import idle, recovered_runner, update
from tests.support.long_work import LONG
from tests.support.long_work import soon_long as soon_long

COUNT = 40 * LONG
TEXTS = (
    "SELECT ?s ?o { ?s <http://p> ?o }",
    "SELECT ?s ?o { ?s <http://p> ?o . ?o <http://q> ?x }",
    "SELECT ?s ?o { <http://s1> ?s ?o }",
    "SELECT ?s ?o { ?s (<http://few>|<http://p>) ?o }",
)


def rows_of(runner: Runner, text: str) -> set[object]:
    return set(runner._engine.query(text).value)


@pytest.mark.parametrize("seed", range(3))
async def test_what_subscribers_are_told_is_the_dataset_whatever_comes_between_two_portions(
    seed: int, tmp_path: Path, soon_long: None
) -> None:
    random = Random(seed)
    async with recovered_runner(tmp_path) as runner:
        quads = " ".join(f"<http://s{number}> <http://p> <http://o{number % 97}> ." for number in range(COUNT))
        await update(runner, f"INSERT DATA {{ {quads} <http://o1> <http://q> 1 . <http://s1> <http://few> 1 }}")
        texts = [random.choice(TEXTS) for _ in range(3)] * 2  # two of each shape
        asked = [asyncio.create_task(subscribed(runner, text)) for text in texts]
        gone = asked[random.randrange(len(asked))]
        ended = random.randrange(4)
        between = 0
        for number in range(60):
            await asyncio.sleep(0)
            between += any(not filling.done for filling in runner._engine.cts.filling.values())
            if number == ended:
                gone.cancel()
            subject = random.randrange(COUNT + 30)
            verb = random.choice(("INSERT", "DELETE"))
            predicate = random.choice(("p", "p", "q", "few"))
            data = f"<http://s{subject}> <http://{predicate}> <http://o{random.randrange(99)}>"
            await update(runner, f"{verb} DATA {{ {data} . <http://s1> <http://p> <http://o{subject % 3}> }}")
        told = await asyncio.gather(*asked, return_exceptions=True)
        await update(runner, "INSERT DATA { <http://s1> <http://p> <http://last> }")
        await idle(runner)
        assert between, "updates had no turn between two portions"
        for text, listener in zip(texts, told, strict=True):
            if isinstance(listener, Listener):
                assert listener.rows == rows_of(runner, text), text
        cts = runner._engine.cts
        for predicate in cts.tables:
            found = {quad for quad in cts.quads() if quad.p == predicate}
            assert found == set(runner._engine.store.quads_with(predicate))
