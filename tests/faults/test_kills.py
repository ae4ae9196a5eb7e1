"""A gateway that is killed again and again under load: what was acknowledged is there, and everything happened once."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.terms import lexical
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.faults

ROUNDS = 12
COUNT = """DELETE { <urn:counter> <urn:n> ?n } INSERT { <urn:counter> <urn:n> ?next }
WHERE { <urn:counter> <urn:n> ?n BIND(?n + 1 AS ?next) }"""


def test_every_update_has_one_effect_across_kills(tmp_path: Path) -> None:
    """Counting is not idempotent: an update that is lost or done twice shows in the sum."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def count(client: EngineClient, stop: asyncio.Event) -> tuple[int, int]:
        immediate = delayed = 0
        while not stop.is_set():
            if chance.random() < 0.1:
                await client.update(COUNT, delay=f"PT{chance.uniform(0, 1):.3f}S")
                delayed += 1
            else:
                await client.update(COUNT)
                immediate += 1
        return immediate, delayed

    async def follow(client: EngineClient, seen: list[int]) -> None:
        async for notification in client.subscribe("SELECT ?n { <urn:counter> <urn:n> ?n }"):
            seen += [int(lexical(row["n"])) for row in notification.added.bindings()]

    async def play(gateway: GatewayProcess) -> None:
        async with EngineClient(f"ws://127.0.0.1:{gateway.websocket_port}/subscribe") as client:
            await client.update("INSERT DATA { <urn:counter> <urn:n> 0 }")
            stop = asyncio.Event()
            seen: list[int] = []
            follower = asyncio.create_task(follow(client, seen))
            counters = [asyncio.create_task(count(client, stop)) for _ in range(8)]
            for _ in range(ROUNDS):
                reached = len(seen)
                async with asyncio.timeout(20):
                    while len(seen) == reached:  # the clients are back
                        await asyncio.sleep(0.01)
                await asyncio.sleep(chance.uniform(0, 0.5))
                await asyncio.to_thread(gateway.end, signal.SIGKILL)
                await asyncio.to_thread(gateway.start)
            stop.set()
            counted = await asyncio.gather(*counters)
            immediate, delayed = (sum(column) for column in zip(*counted, strict=True))
            async with asyncio.timeout(20):
                while gateway.delayed():
                    await asyncio.sleep(0.1)
            [row] = gateway.rows("SELECT ?n { <urn:counter> <urn:n> ?n }")
            print(f"{immediate} updates and {delayed} delayed ones over {ROUNDS} kills")
            assert delayed > 0
            assert int(row["n"]) == immediate + delayed
            # What was notified never goes back: no notification left before its commit was durable.
            assert seen == sorted(seen)
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    with GatewayProcess(tmp_path / "gateway", broker_port=None, off_after="PT1S") as gateway:
        asyncio.run(play(gateway))
