"""A property of the Web of Things is observed across kills of the gateway: each value arrives once, in order."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from lamplighter.adapters.model.latest import LatestModel
from tests.support.gateway_process import GatewayProcess
from tests.support.thing_descriptions import HALL_IRI, TOPIC, adoption, hall, reading_updates

pytestmark = pytest.mark.faults

VALUES, KILLS, TIMEOUT_S = 40, 3, 120.0


async def observed(gateway: GatewayProcess) -> AsyncIterator[object]:
    """The values, as a client that comes back whenever the connection ends is told them. Raises AssertionError for a
    stream that starts anew."""
    url = f"{gateway.http_url}/things/{quote(HALL_IRI, safe='')}/properties/temperature/observe"
    last = ""
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        while True:
            with suppress(httpx.HTTPError):
                headers = {"Last-Event-ID": last} if last else {}
                async with client.stream("GET", url, headers=headers) as answer:
                    assert answer.status_code == 200
                    identifier, data = "", ""
                    async for line in answer.aiter_lines():
                        assert not line.startswith("event:"), line
                        if line.startswith("id: "):
                            identifier = line.removeprefix("id: ")
                        elif line.startswith("data: "):
                            data = line.removeprefix("data: ")
                        elif not line:
                            last = identifier or last
                            if data:
                                yield json.loads(data)
                            identifier = data = ""
            await asyncio.sleep(0.05)  # it is being started


async def test_each_value_arrives_once_across_kills(tmp_path: Path) -> None:
    model = LatestModel()
    with GatewayProcess(tmp_path / "gateway", wot={"enabled": True}) as gateway:
        publish = [
            list(reading_updates(hall(), TOPIC, f'{{"temperature": {number}}}', model)) for number in range(VALUES)
        ]
        gateway.update(adoption(hall()))
        for text in publish[0]:
            gateway.update(text)
        told: list[object] = []

        async def follow() -> None:
            async for value in observed(gateway):
                told.append(value)
                if value == VALUES - 1:
                    return

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            while not told:
                await asyncio.sleep(0.02)  # the subscription begins
            for number, texts in enumerate(publish[1:], 1):
                for text in texts:
                    await asyncio.to_thread(gateway.update, text)
                if number % (VALUES // (KILLS + 1)) == 0:
                    await asyncio.to_thread(gateway.end, signal.SIGKILL)
                    await asyncio.to_thread(gateway.start)
        assert told == list(range(VALUES))
