"""A gateway whose wall clock is stepped by two weeks while delayed updates are pending: they take effect all the same.

The wall clock of the process is faked by Debian's libfaketime, which reads the offset from a file each time; the
monotonic clocks and CLOCK_BOOTTIME are left alone.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.change_log import Record
from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical
from tests.support.components import require_command
from tests.support.gateway_parts import records
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.faults

TIMEOUT_S = 120.0
DELAY_S = 3.0
LATE_S_MAX = 60.0  # of a busy machine; who follows the wall clock is two weeks late, or early


class Stepped:
    """A gateway process whose wall clock is the machine's and an offset."""

    def __init__(self, folder: Path, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self._offset = folder / "offset"
        self.days = 0

    def step(self, days: int) -> None:
        self.days = days
        new = self._offset.with_suffix(".new")
        new.write_text(f"{days:+}d\n")
        new.rename(self._offset)

    def wall(self) -> datetime:
        """What the gateway's wall clock should show."""
        return datetime.now(UTC) + timedelta(days=self.days)


@pytest.fixture
def stepped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stepped]:
    require_command("faketime")
    gateway = GatewayProcess(tmp_path / "gateway", gateway={"clock_trusted": "always"})
    for name, value in {
        "LD_PRELOAD": "/usr/$LIB/faketime/libfaketimeMT.so.1",  # the dynamic linker replaces $LIB
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "offset"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }.items():
        monkeypatch.setenv(name, value)
    stepped = Stepped(tmp_path, gateway)
    stepped.step(0)
    with gateway:
        yield stepped


@dataclass
class Sent:
    """A delayed update. sent_s, kept_s: time.monotonic() before it was sent, and when it was known to be kept."""

    id: str
    sent_s: float
    kept_s: float


async def send(client: EngineClient, name: str) -> Sent:
    """A delayed update that shows it when it happens twice."""
    sent_s = time.monotonic()
    answer = await client.update(f"INSERT {{ [] <urn:happened> '{name}' }} WHERE {{}}", delay=f"PT{DELAY_S}S")
    assert answer.delayed
    return Sent(answer.delayed, sent_s, time.monotonic())


@asynccontextmanager
async def listening(client: EngineClient, seen: dict[str, list[float]]) -> AsyncIterator[None]:
    """Notes when each one happened, while it is entered."""

    async def listen() -> None:
        async for notification in client.subscribe("SELECT ?name { ?x <urn:happened> ?name }"):
            for row in notification.added.bindings():
                seen.setdefault(lexical(row["name"]), []).append(time.monotonic())

    task = asyncio.create_task(listen())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def effects(log: list[Record], name: str) -> list[Record]:
    return [record for record in log if record.cause and (record.cause.kind, record.cause.id) == ("timer", name)]


def assert_faked(stepped: Stepped, row: dict[str, Any]) -> None:
    """That the record of a delayed update, which was just written, has the wall clock that it should have."""
    written = datetime.fromisoformat(row["set"])
    assert abs(stepped.wall() - written) < timedelta(seconds=10), "the wall clock of the gateway is not faked"


async def test_delays_last_their_real_time_while_the_wall_clock_is_stepped(stepped: Stepped) -> None:
    seen: dict[str, list[float]] = {}
    sent: dict[str, Sent] = {}

    async with (
        asyncio.timeout(TIMEOUT_S),
        EngineClient(f"ws://127.0.0.1:{stepped.gateway.websocket_port}/subscribe") as client,
        listening(client, seen),
    ):
        for days in (14, -14, 0):
            stepped.step(days)
            probe = await client.update("CLEAR ALL", delay="P1D")
            rows = await asyncio.to_thread(stepped.gateway.delayed)
            assert_faked(stepped, next(row for row in rows if row["id"] == probe.delayed))
        for name, days in (("forth", 14), ("back", -14), ("home", 0), ("forth again", 14)):
            sent[name] = await send(client, name)
            stepped.step(days)
            await asyncio.sleep(0.7)  # the next one while the others are pending
        while len(seen) < len(sent):
            await asyncio.sleep(0.02)
    stepped.gateway.end(signal.SIGTERM)
    log = records(stepped.gateway.folder / "data")
    stepped.gateway.start()
    assert any(record.cause and record.cause.id == "stepped" for record in log), "the gateway did not notice"
    for name, one in sent.items():
        [happened_s] = seen[name]
        print(f"{name}: {happened_s - one.sent_s:.3f} s after it was sent")
        assert happened_s - one.sent_s >= DELAY_S
        assert happened_s - one.kept_s <= DELAY_S + LATE_S_MAX
        assert len(effects(log, one.id)) == 1


@pytest.mark.parametrize("days", [14, -14])
async def test_delays_last_their_real_time_when_the_clock_is_stepped_while_the_gateway_is_down(
    stepped: Stepped, days: int
) -> None:
    async with (
        asyncio.timeout(TIMEOUT_S),
        EngineClient(f"ws://127.0.0.1:{stepped.gateway.websocket_port}/subscribe") as client,
    ):
        offset_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        one = await send(client, "down")
    stepped.gateway.end(signal.SIGKILL)
    stepped.step(days)
    stepped.gateway.start()
    started_s = time.monotonic()
    end = started_s + TIMEOUT_S
    while stepped.gateway.delayed() and time.monotonic() < end:
        await asyncio.sleep(0.02)  # another process, which has no other way to tell
    stepped.gateway.end(signal.SIGTERM)
    log = records(stepped.gateway.folder / "data")
    stepped.gateway.start()
    [effect] = effects(log, one.id)
    happened_s = effect.boottime_us / 1_000_000 - offset_s
    print(f"{happened_s - one.sent_s:.3f} s after it was sent, {happened_s - started_s:.3f} s after the start")
    assert happened_s - one.sent_s >= DELAY_S
    assert happened_s <= max(one.kept_s + DELAY_S, started_s) + LATE_S_MAX
    assert abs(datetime.fromisoformat(effect.ts) - stepped.wall()) < timedelta(minutes=1), "faked there, too"
    assert len(stepped.gateway.rows("SELECT ?x { ?x <urn:happened> 'down' }")) == 1
