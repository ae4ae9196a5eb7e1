"""Restarts of a real broker, its session kept or lost: traffic comes back, and retained readings have no effect."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import pytest

from lamplighter.adapters.mapping import load_mapping
from lamplighter.engine.client import EngineClient
from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.mqtt_adapter import BASE, mqtt_adapter
from tests.support.places import ROOT
from tests.support.running_gateway import running_gateway

pytestmark = pytest.mark.faults

RESTARTS = 32
"""About 30 s; 500 were run by hand."""
RETAINED = 10_000
RECOVERED_S_MAX = 15.0
"""Of a busy machine. The pauses of an adapter that was connected are 2 s at most."""
"""From a broker that takes connections until a reading is committed; a busy machine takes longer for the same work."""
HANGING_S = 120.0
TOPIC = "street/1/temperature"
VALUES = "SELECT ?value { ?observation <http://www.w3.org/ns/sosa/hasSimpleResult> ?value }"
PREFIXES = """PREFIX gateway: <http://lamplighter.example/ns/gateway#>
PREFIX lighting: <http://lamplighter.example/ns/lighting#>
"""


class Readings:
    """Publishes numbered readings and notes which were committed."""

    def __init__(self, broker: Mosquitto) -> None:
        self.committed: set[int] = set()
        self._broker = broker
        self._number = 0

    async def follow(self, addresses: Addresses) -> None:
        async with (
            EngineClient(addresses.subscribe) as client,
            aclosing(client.subscribe(VALUES)) as notifications,
        ):
            async for notification in notifications:
                self.committed |= {int(str(value).split('"')[1]) for (value,) in notification.added}

    async def publish(self) -> int:
        """Publishes the next reading at QoS 1 again and again until the broker acknowledges it; its number."""
        self._number += 1
        while True:
            with suppress(OSError, AssertionError):
                await asyncio.to_thread(self._broker.publish, (TOPIC, str(self._number)))
                return self._number
            await asyncio.sleep(0.02)

    async def until_committed(self, number: int) -> None:
        async with asyncio.timeout(HANGING_S):
            while number not in self.committed:
                await asyncio.sleep(0.01)

    async def until_traffic(self) -> None:
        """Publishes until a new reading is committed."""
        async with asyncio.timeout(HANGING_S):
            first = await self.publish()
            while not any(number >= first for number in self.committed):
                await asyncio.sleep(0.05)
                await self.publish()


@pytest.mark.parametrize("persistence", [True, False], ids=["session-kept", "session-lost"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
async def test_traffic_comes_back_after_each_restart_of_the_broker(
    tmp_path: Path, persistence: bool, number: signal.Signals
) -> None:
    settings = ("allow_anonymous true", f"persistence {'true' if persistence else 'false'}")
    recovered_s = []
    with mosquitto(settings=settings) as broker:
        readings = Readings(broker)
        async with (
            running_gateway(tmp_path) as addresses,
            mqtt_adapter(addresses, broker, load_mapping(ROOT / "mapping", BASE)) as adapter,
        ):
            following = asyncio.create_task(readings.follow(addresses))
            await readings.until_traffic()
            for _ in range(RESTARTS // 4):
                before = await readings.publish()
                await asyncio.to_thread(broker.stop, number)
                await asyncio.to_thread(broker.start)
                begun = time.monotonic()
                if persistence and number is signal.SIGTERM:
                    # The broker has the session, so that it keeps what it acknowledged before and during the outage.
                    between = await readings.publish()
                    await readings.until_committed(between)
                    await readings.until_committed(before)
                else:
                    await readings.until_traffic()
                recovered_s.append(time.monotonic() - begun)
                last = await readings.publish()
                await readings.until_committed(last)
            assert adapter.counters.connections > RESTARTS // 4
            assert (adapter.counters.rejected, adapter.counters.dropped_payload) == (0, 0)
            following.cancel()
    recovered_s.sort()
    print(f"recovered in {recovered_s[len(recovered_s) // 2]:.2f} s (median), {recovered_s[-1]:.2f} s (longest)")
    assert recovered_s[len(recovered_s) // 2] <= RECOVERED_S_MAX


def test_retained_readings_switch_nothing_and_arm_no_timer_across_restarts(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    lamps = "".join(
        f"<{BASE}post/{number}> lighting:hasLamp <{BASE}post/{number}/lamp> .\n" for number in range(RETAINED)
    )
    settings = ("allow_anonymous true", "persistence true", f"max_queued_messages {2 * RETAINED}")
    with mosquitto(settings=settings) as broker:
        words = ("true", "false")
        broker.publish(*((f"street/{number}/presence", words[number % 2]) for number in range(RETAINED)), retain=True)
        mqtt = {"host": "127.0.0.1", "port": broker.port, "streams_max": 2 * RETAINED}
        gateway = GatewayProcess(folder, "--all", mqtt=mqtt)
        for name in ("mapping", "apps"):
            shutil.copytree(ROOT / name, folder / name)

        def retained() -> int:
            count = "SELECT (COUNT(*) AS ?n) { ?observation gateway:timeProblem 'retained' }"
            return int(gateway.rows(PREFIXES + count)[0]["n"])

        def known(topic: str) -> bool:
            return bool(gateway.rows(f"{PREFIXES} SELECT ?stream {{ ?stream gateway:mqttTopic '{topic}' }}"))

        def switched() -> list[dict[str, str]]:
            return gateway.rows(PREFIXES + "SELECT ?lamp ?status { ?lamp lighting:hasStatus ?status }")

        with gateway:
            gateway.update(f"{PREFIXES} INSERT DATA {{ {lamps} }}")
            wait_for(lambda: retained() == RETAINED, what="the retained readings")
            for restart in range(3):
                if restart < 2:
                    broker.stop((signal.SIGTERM, signal.SIGKILL)[restart])
                    broker.start()
                else:
                    gateway.end(signal.SIGKILL)
                    gateway.start()
                marker = RETAINED + restart
                broker.publish((f"street/{marker}/temperature", "20"))
                wait_for(partial(known, f"street/{marker}/temperature"), what="a reading after the restart")
                assert (switched(), gateway.delayed()) == ([], [])
                assert retained() == RETAINED
            broker.publish(("street/1/presence", "false"), ("street/2/presence", "true"))
            wait_for(
                lambda: len(switched()) == 1 and len(gateway.delayed()) == 1, what="the reaction to fresh readings"
            )
