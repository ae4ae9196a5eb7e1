"""Hostile requests to the change feed: no fault, no growth, and a follower stays exact all the time.

4,000 of them; `HOSTILE_CHANGES=20000` in the environment sends more.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest

from benchmarks.gateway_process import Gateway, gateway_process
from lamplighter.engine.client import SparqlEndpoint
from tests.support.change_replica import Replica
from tests.support.hostile import RawSocket

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_CHANGES", "4000"))
THREADS = 4
GROWTH_BYTES_MAX = 50 * 1024 * 1024
LOG = "gateway.log"
TIMEOUT_S = 300.0
_ENDED = (ConnectionError, TimeoutError)
_ODD = ("", "\0", "\u202e", "a" * 5_000, "%00", "\r\nX: y", "17", "1/17", "-1", "nan", "1e3", "9" * 40, "gw/1/1/zz")
_ACCEPTS = (
    *("application/x-ndjson", "application/rdf-patch", "text/event-stream", "*/*", "application/n-quads"),
    *("text/turtle", "application/x-ndjson;q=0", "a" * 300, "text/event-stream;q=nan, */*;q=0.1", ",;,"),
)


class HostileFollower:
    """Makes requests. known: positions that there are or were."""

    def __init__(self, seed: int, known: list[str]) -> None:
        self.random = Random(seed)
        self._known = known

    def position(self) -> str:
        random = self.random
        text = random.choice(self._known)
        if random.random() < 0.4:
            return text
        if random.random() < 0.3:
            return random.choice(_ODD)
        gateway, epoch, sequence, mark = text.split("/")
        parts = [gateway, epoch, sequence, mark]
        parts[random.randrange(4)] = random.choice(
            ("0", "1", "2", "9" * 9, "9" * 15, "00000000", "ffffffff", secrets.token_hex(4), "A" * 75)
        )
        return random.choice(("/".join(parts), "/".join(parts[: random.randrange(5)]), "A" * 75))

    def request(self) -> bytes:
        random = self.random
        path = random.choice(("/changes", "/changes", "/changes", "/changes", "/changes/snapshot", "/changes/x"))
        if path == "/changes/snapshot" and random.random() < 0.8:
            path = "/changes"
        asked = [f"after={quote(self.position())}"] if random.random() < 0.8 else []
        for name, values in (
            ("wait", ("0", "0.001", "0.01", "31", "-1", "nan", "1e9", "")),
            ("limit", ("1", "2", "1000", "0", "1001", "-1", "")),
            (random.choice(("x", "after", "wait", "%00")), _ODD),
        ):
            if random.random() < (0.3 if name in ("wait", "limit") else 0.05):
                asked.append(f"{name}={quote(random.choice(values))}")
        accept = random.choice(_ACCEPTS)
        headers = [f"Accept: {accept}"] if random.random() < 0.9 else []
        if random.random() < 0.2:
            headers.append(f"Last-Event-ID: {self.position().encode('ascii', 'replace').decode().strip()}")
        method = random.choice(("GET",) * 12 + ("HEAD", "POST", "DELETE", "OPTIONS"))
        head = [f"{method} {path}?{'&'.join(asked)} HTTP/1.1", "Host: localhost", *headers]
        clean = [line.replace("\r", "").replace("\n", "").replace("\0", "") for line in head]
        return "\r\n".join([*clean, "", ""]).encode("latin-1", "replace")


def send_all(gateway: Gateway, hostile: HostileFollower, count: int, seen: Counter[str]) -> None:
    with ExitStack() as stack:
        one: RawSocket | None = None
        for _ in range(count):
            one = one or stack.enter_context(RawSocket(gateway.http[1]))
            request = hostile.request()
            one.send(request)
            try:
                status, headers = one.head()
                endless = headers.get("content-type", "").startswith("text/event-stream")
                body = b"" if endless or request.startswith(b"HEAD ") else one.body(headers)
            except _ENDED:
                seen["closed"] += 1
                stack.close()
                one = None
                continue
            seen[str(status)] += 1
            assert status < 500, (request, status, body)
            if status >= 400 and body:
                told = json.loads(body)
                assert told["status_code"] == status and told["error_description"], (request, told)
            if endless or headers.get("connection") == "close":
                stack.close()
                one = None


def asked(url: str, data: bytes | None = None) -> tuple[str, bytes]:
    """Position and body of an answer. Asks again while the gateway has too much to do."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/sparql-update"} if data else {})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as found:
                return found.headers.get("Lamplighter-Position", ""), found.read()
        except urllib.error.HTTPError as error:
            assert error.code == 429, error.read()
            time.sleep(0.05)


async def test_hostile_requests_break_nothing_and_a_follower_stays_exact(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    tables: dict[str, dict[str, object]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "http": {"port": 0},
        "websocket": {"port": 0},
        "changes": {"enabled": True},
    }
    replica, over = Replica(), False
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:
        base = f"http://{gateway.http[0]}:{gateway.http[1]}"
        known: list[str] = []

        async def follow() -> None:
            async with SparqlEndpoint(base) as endpoint:
                async for change in endpoint.follow_changes():
                    replica.change(change)

        async def write() -> None:
            number = 0
            while not over:
                number += 1
                long = "x" * (20_000 if number % 40 == 0 else 10)
                text = (
                    f"DELETE WHERE {{ GRAPH <http://g> {{ <http://s/{number % 50}> ?p ?o }} }} ; INSERT DATA {{ GRAPH "
                    f"<http://g> {{ <http://s/{number % 50}> <http://p> {number}, '{long}' }} }}"
                )
                await asyncio.to_thread(asked, f"{base}/update", text.encode())
                position, _ = await asyncio.to_thread(asked, f"{base}/changes")
                known.append(position)
                await asyncio.sleep(0.02)

        following, writing = asyncio.create_task(follow()), asyncio.create_task(write())
        while not known:
            await asyncio.sleep(0.01)
        seen = [Counter[str]() for _ in range(THREADS)]

        async def send(part: int, count: int) -> dict[str, int]:
            with ThreadPoolExecutor(THREADS) as threads:
                loop = asyncio.get_running_loop()
                hostiles = [HostileFollower(seed + 100 * part + number, known) for number in range(THREADS)]
                await asyncio.gather(
                    *(
                        loop.run_in_executor(threads, send_all, gateway, hostile, count // THREADS, told)
                        for hostile, told in zip(hostiles, seen, strict=True)
                    )
                )
            return dict((await asyncio.to_thread(gateway.figures))["engine"])

        warm = await send(0, SENT // 2)
        end = await send(1, SENT // 2)
        over = True
        await writing
        position, _ = await asyncio.to_thread(asked, f"{base}/changes")
        async with asyncio.timeout(TIMEOUT_S):
            while replica.position != position:
                assert not following.done(), following.result()
                await asyncio.sleep(0.02)
        whole = Replica()
        whole.quads((await asyncio.to_thread(asked, f"{base}/changes/snapshot"))[1])
        assert replica.content == whole.content
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        told = sum(seen, Counter())
        print(told, f"{len(known)} updates", [part["resident_bytes"] for part in (warm, end)], sep="\n")
        assert end["status"] == "ok", end["problems"]
        assert end["resident_bytes"] <= warm["resident_bytes"] + GROWTH_BYTES_MAX
        assert {"200", "400", "404", "405", "406", "410"} <= set(told), told
    assert gateway.process.returncode == 0
    assert "ERROR" not in (tmp_path / LOG).read_text(), (tmp_path / LOG).read_text()[-3000:]
