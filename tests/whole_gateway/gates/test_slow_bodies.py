"""Doors that answer few requests at a time: a client that sends its body slowly takes none of their turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.running_gateway import TIMEOUT_S, http, running_gateway

SLOW = 8
"""More requests than any of the doors answers at a time."""


@pytest.mark.parametrize(
    ("table", "post", "get"),
    [
        ("ngsild", "/ngsi-ld/v1/entities", "/ngsi-ld/v1/types"),
        ("sensorthings", "/v1.1/Observations", "/v1.1/Things"),
        ("wot", "/things", "/things"),
    ],
)
async def test_others_are_answered_beside_slow_bodies(tmp_path: Path, table: str, post: str, get: str) -> None:
    patient = {"port": 0, "idle_s": 1200}  # they take turns for longer than the test waits
    async with running_gateway(tmp_path, http=patient, **{table: {"enabled": True}}) as at:
        place = urlsplit(at.query)
        writers = []
        try:
            for _ in range(SLOW):
                _, writer = await asyncio.open_connection(place.hostname, place.port)
                writers.append(writer)
                head = f"POST {post} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
                await writer.drain()
            answer = await asyncio.wait_for(http(f"http://{place.netloc}{get}"), TIMEOUT_S)
            assert answer.status == 200
        finally:
            for writer in writers:
                writer.transport.abort()
