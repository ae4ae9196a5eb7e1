"""A replica of a gateway that is killed while updates run, and whose log is damaged in the end."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from random import Random

import pytest

from lamplighter.engine.client import SparqlEndpoint
from tests.support.change_replica import Replica
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.faults

KILLS = 6
UPDATES_PER_LIFE = 60
TIMEOUT_S = 300.0


def written(gateway: GatewayProcess, random: Random, count: int) -> None:
    for _ in range(count):
        graph = f"GRAPH <http://g/{random.randrange(5)}>"
        quad = f"<http://s/{random.randrange(20)}> <http://p> '{random.randbytes(400).hex()}'"
        gateway.update(
            random.choice(
                (
                    f"INSERT DATA {{ {graph} {{ {quad} }} }}",
                    f"INSERT DATA {{ {quad} }}",
                    f"DELETE WHERE {{ {graph} {{ <http://s/{random.randrange(20)}> ?p ?o }} }}",
                    f"DROP SILENT {graph}",
                )
            )
        )


def dataset(gateway: GatewayProcess) -> Replica:
    found = Replica()
    while True:
        try:
            with urllib.request.urlopen(f"{gateway.http_url}/changes/snapshot", timeout=TIMEOUT_S) as answer:
                found.quads(answer.read())
                found.position = answer.headers["Lamplighter-Position"]
                return found
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.TOO_MANY_REQUESTS:  # else the follower begins anew with one just now
                    raise
            time.sleep(0.1)


def gaps(gateway: GatewayProcess) -> int:
    """How many records of the log say that a part of it is lost."""
    with urllib.request.urlopen(f"{gateway.http_url}/log?last=1000", timeout=TIMEOUT_S) as answer:
        return sum("gap" in record for record in json.load(answer)["records"])


class Following:
    """Follows in a task of its own, and is never told that the gateway was killed."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.replica = Replica()
        self.resets: list[str] = []
        self._gateway = gateway

    async def run(self) -> None:
        async with SparqlEndpoint(self._gateway.http_url) as endpoint:
            async for change in endpoint.follow_changes():
                if change.reset is not None:
                    self.resets.append(change.reset)
                self.replica.change(change)

    async def equals(self, whole: Replica) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.replica.position != whole.position:
                await asyncio.sleep(0.05)
        assert self.replica.content == whole.content


async def test_a_replica_follows_a_gateway_through_kills_and_a_damaged_log(tmp_path: Path) -> None:
    random = Random(11)
    gateway = GatewayProcess(tmp_path, changes={"enabled": True})
    following = Following(gateway)
    gateway.start()
    task = asyncio.create_task(following.run())
    try:
        for _ in range(KILLS):
            await asyncio.to_thread(written, gateway, random, random.randrange(1, UPDATES_PER_LIFE))
            await asyncio.to_thread(gateway.end, signal.SIGKILL)
            await asyncio.to_thread(gateway.start)
        await asyncio.to_thread(written, gateway, random, UPDATES_PER_LIFE)
        gateway.update("INSERT DATA { <http://end> <http://p> 1 }")
        await following.equals(await asyncio.to_thread(dataset, gateway))
        assert following.resets == ["the follower begins"]

        await asyncio.to_thread(gateway.end, signal.SIGKILL)
        newest = max((tmp_path / "data" / "log").glob("*.zst"))
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 0x10
        newest.write_bytes(content)
        await asyncio.to_thread(gateway.start)
        assert await asyncio.to_thread(gaps, gateway), "the damage was not noticed"
        gateway.update("INSERT DATA { <http://end> <http://p> 2 }")
        await following.equals(await asyncio.to_thread(dataset, gateway))
        assert len(following.resets) == 2 and "lost or replaced" in following.resets[1]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gateway.end(signal.SIGTERM)
