"""One query is followed by all interfaces at once, and the gateway is killed: each receives the same rows once.

What comes twice over a webhook, LDN or MQTT has the same id. A device that observes over CoAP receives whole results.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import urllib.error
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from tests.support.brokers import mosquitto
from tests.support.coap_peers import free_udp_port
from tests.support.followers import FOLLOWERS, Change, Follower, Place, Rows, following
from tests.support.gateway_process import GatewayProcess
from tests.support.small_house import PREFIXES

pytestmark = pytest.mark.faults

QUERY = f"{PREFIXES} SELECT ?stream ?result {{ ?stream gateway:liveObservation/sosa:hasSimpleResult ?result }}"
BASE = "http://lamplighter.local/"
STREAMS, UPDATES, KILLS = 4, 40, 3
LIMIT_S = 120.0
COAP, MQTT = "CoAP", "SensorThings over MQTT"


def house(results: dict[int, int]) -> str:
    """An update that writes the streams with their first results."""
    return (
        f"{PREFIXES} INSERT DATA {{"
        + "".join(
            f"""
        <sensor/{number}> a sosa:Sensor ; sosa:observes <property/level> .
        <stream/{number}> a gateway:Stream ; gateway:liveObservation <observation/{number}> .
        <observation/{number}> a sosa:Observation ; sosa:madeBySensor <sensor/{number}> ;
          sosa:observedProperty <property/level> ; sosa:hasFeatureOfInterest <post/1> ;
          sosa:hasSimpleResult {result} ; sosa:resultTime "2026-11-26T10:00:00Z"^^xsd:dateTime ."""
            for number, result in results.items()
        )
        + "}"
    )


async def until_all(followers: dict[str, Follower], rows: Rows) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while any(follower.rows != rows for follower in followers.values()):
                await asyncio.sleep(0.02)  # each has its own way to be told
    except TimeoutError:
        missing = {name: rows ^ follower.rows for name, follower in followers.items() if follower.rows != rows}
        raise AssertionError(f"rows that differ: {missing}") from None


async def sent(gateway: GatewayProcess, text: str, request_id: str) -> None:
    """An update, again and again until it is answered."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(OSError, urllib.error.URLError):
                await asyncio.to_thread(gateway.update, text, request_id=request_id)
                return
            await asyncio.sleep(0.05)  # it is being started


async def test_all_receive_the_same_rows_once(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "house.jsap").write_text(json.dumps({"queries": {"RESULTS": {"sparql": QUERY}}}))
    results = {number: -number for number in range(1, STREAMS + 1)}

    def rows() -> Rows:
        return frozenset((f"{BASE}stream/{number}", str(result)) for number, result in results.items())

    with mosquitto() as broker:
        coap_port = free_udp_port()
        delivered = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 5, "backoff_s_max": 1}
        gateway = GatewayProcess(
            tmp_path,
            "--all",
            coap={"networks": ["127.0.0.0/8"]},
            **{"coap.server": {"port": coap_port}},
            mqtt={"host": "127.0.0.1", "port": broker.port},
            sensorthings={"enabled": True, "mqtt": True},
            webhooks=delivered,
            ldn=delivered,
        )
        at = Place(
            gateway.http_url,
            f"ws://127.0.0.1:{gateway.websocket_port}/subscribe",
            f"coap://127.0.0.1:{coap_port}",
            broker,
            QUERY,
            "RESULTS",
        )
        with gateway:
            expected: list[Change] = [(frozenset(), frozenset())]
            kills = set(random.sample(range(5, UPDATES - 5), KILLS))
            async with AsyncExitStack() as stack:
                followers = {
                    name: await stack.enter_async_context(following(run, at)) for name, run in FOLLOWERS.items()
                }
                async with asyncio.timeout(LIMIT_S):
                    while not all(one.changes or one.states or name == MQTT for name, one in followers.items()):
                        await asyncio.sleep(0.02)  # until each has the first result
                await sent(gateway, house(results), "house")
                expected.append((rows(), frozenset()))
                await until_all(followers, rows())
                for number in range(UPDATES):
                    stream, before = random.randint(1, STREAMS), rows()
                    results[stream] = number
                    text = (
                        f"{PREFIXES} DELETE {{ <observation/{stream}> sosa:hasSimpleResult ?old }} "
                        f"INSERT {{ <observation/{stream}> sosa:hasSimpleResult {number} }} "
                        f"WHERE {{ <observation/{stream}> sosa:hasSimpleResult ?old }}"
                    )
                    update = asyncio.create_task(sent(gateway, text, f"update {number}"))
                    if number in kills:
                        await asyncio.sleep(random.random() / 100)  # before, while or after it is executed
                        await asyncio.to_thread(gateway.end, signal.SIGKILL)
                        await asyncio.to_thread(gateway.start)
                    await update
                    expected.append((rows() - before, before - rows()))
                await until_all(followers, rows())
    print({name: follower.repeated for name, follower in followers.items()})
    for name, follower in followers.items():
        if name == COAP:
            assert set(follower.states) <= set(_states(expected)), "it was told of a state that never was"
        elif name == MQTT:
            entered = [row for added, _ in expected for row in sorted(added)]
            assert sorted(follower.new[:STREAMS]) == sorted(entered[:STREAMS])
            assert follower.new[STREAMS:] == entered[STREAMS:]
        else:
            assert follower.changes == expected, name


def _states(changes: list[Change]) -> list[Rows]:
    rows: Rows = frozenset()
    found = []
    for added, removed in changes:
        rows = rows - removed | added
        found.append(rows)
    return found
