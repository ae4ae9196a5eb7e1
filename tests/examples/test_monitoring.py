"""The monitoring application against a real gateway and a real MQTT broker, from its JSAP file."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from docs.examples.monitoring.monitoring import PROFILE, manage_topics, monitor, mqtt_messages
from lamplighter.engine.client import GenericClient, load_profile
from lamplighter.engine.terms import lexical
from tests.support.brokers import mosquitto
from tests.support.profiles import settings
from tests.support.running_gateway import health, running_gateway


async def test_readings_are_written_shown_and_logged(tmp_path: Path) -> None:
    told: list[str] = []
    sent = [
        ("hall/node1/temperature", b'{"temperature": 21.5}'),
        ("no/such/topic", b"1"),
        ("yard/node2/temperature", b"-3"),
        ("yard/node2/temperature", b"no number"),
        ("hall/node1/temperature", b"22"),
    ]

    with mosquitto() as broker:
        async with running_gateway(tmp_path) as at:
            profile = load_profile(
                PROFILE, [*settings(at), "extended.mqtt.host=127.0.0.1", f"extended.mqtt.port={broker.port}"]
            )
            ready = asyncio.Event()
            working = asyncio.create_task(monitor(profile, told.append, 3, ready.set))
            await asyncio.wait([working, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(broker.publish, *sent)
            await working
            async with GenericClient(profile) as client:
                history = [
                    [lexical(row["value"]) for row in (await client.query("LOG_OF", observation=name)).bindings()]
                    for name in (
                        "mon:hall-node1-temperature",
                        "mon:yard-node2-temperature",
                        "mon:hall-node1-humidity",
                    )
                ]
                assert history == [["21.5", "22"], ["-3"], []]
                hall = await client.query("OBSERVATIONS_VALUES_BY_LOCATION", location="mon:hall")
                assert [lexical(row["value"]) for row in hall.bindings()] == ["22"]
                # Describing a sensor again replaces its description, and forgets its value.
                await manage_topics(profile)
                assert len(await client.query("TOPICS")) == 3
                assert not await client.query("OBSERVATIONS_VALUES")
                for members in profile.extended["semantic-mappings"].values():
                    await client.update("REMOVE_OBSERVATION", observation=members["observation"])
                assert not await client.query("TOPICS")
            assert (await health(at))["subscriptions"] == 0
    assert told[0] == "ready"
    values = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in told[1:]]
    assert values[:2] == [" hall   Temperature  21.5 DegreeCelsius", " yard   Temperature  -3 DegreeCelsius"]


async def test_a_broker_that_is_not_there_is_named() -> None:
    with pytest.raises(OSError, match=r"no MQTT broker at 127\.0\.0\.1:1 .*extended\.mqtt\.host"):
        async with mqtt_messages("127.0.0.1", 1, ["#"]):
            raise AssertionError("there is none")
