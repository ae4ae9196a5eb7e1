"""Topics that no rule reads are noticed: a real mosquitto, and the adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.model.unread import UnreadMessages
from lamplighter.adapters.mqtt import sampling
from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.sampling import TopicSampling, known_topics
from lamplighter.adapters.mqtt.settings import BrokerSettings
from tests.support.announcements import zigbee_house
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.event_loops import beside
from tests.support.mapping_rules import rules

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMEOUT_S = 120.0
READ = rules('[[stream]]\ntopic = "read/+"\npayload = "number"\nproperty = "ex:p"\n')


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "BEGIN_AFTER_S", 0.0)
    monkeypatch.setattr(sampling, "ASKED_AGAIN_S", 0.05)


def sampled(broker: Mosquitto, unread: UnreadMessages, protocol: str = "3.1.1", **changes: int) -> TopicSampling:
    table = {"host": "127.0.0.1", "port": broker.port, "protocol": protocol, "client_id": "adapter", **changes}
    settings = msgspec.convert(table, BrokerSettings)
    return TopicSampling(
        "default", settings, BrokerCredentials, lambda: known_topics(lambda: READ, []), unread, lambda: NOON
    )


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not check():
            await asyncio.sleep(0.02)


def counts(unread: UnreadMessages) -> dict[str, int]:
    return {message.place: message.count for message in unread.find()[0]}


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
async def test_topics_without_a_rule_are_noticed_and_retained_ones_once(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_S", 1.0)
    unread = UnreadMessages()
    with mosquitto() as broker:
        await asyncio.to_thread(broker.publish, ("read/a", "1"), ("attic/co2", "400"), retain=True)
        async with beside(sampled(broker, unread, protocol).keep_sampling()):
            await until(lambda: "attic/co2" in counts(unread))

            def live() -> bool:
                broker.publish(("cellar", "on"), ("read/b", "2"))
                return counts(unread).get("cellar", 0) >= 3

            async with asyncio.timeout(TIMEOUT_S):
                while not await asyncio.to_thread(live):
                    unread.asked.set()
        found = {message.place: message for message in unread.find()[0]}
    assert set(found) == {"attic/co2", "cellar"}
    assert (found["attic/co2"].retained, found["attic/co2"].count, found["attic/co2"].payload) == (True, 1, b"400")
    assert found["cellar"].broker == "default"


async def test_a_sample_of_very_many_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MESSAGES_MAX", 50)
    unread = UnreadMessages()
    with mosquitto() as broker:
        await asyncio.to_thread(broker.publish, *((f"{number}/x", "1") for number in range(100)), retain=True)
        async with beside(sampled(broker, unread).keep_sampling()):
            await until(lambda: len(unread) == 50)
            await until(lambda: any("adapter-unread" in line and "isconnect" in line for line in broker.log))
    assert len(unread) == 50


async def test_a_topic_that_gets_a_rule_leaves_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_S", 0.2)
    unread = UnreadMessages()
    unread.note("read/a", b"1", NOON, broker="default")
    unread.note("read/a", b"1", NOON, broker="barn")
    with mosquitto() as broker:
        async with beside(sampled(broker, unread).keep_sampling()):
            await until(lambda: unread.places("default") == [])
    assert unread.places("barn") == ["read/a"]


async def test_nothing_is_sampled_if_the_settings_say_so() -> None:
    with mosquitto() as broker:
        await asyncio.wait_for(sampled(broker, UnreadMessages(), unread_s=0).keep_sampling(), TIMEOUT_S)
        assert not any("adapter-unread" in line for line in broker.log)


def test_topics_of_known_devices_need_no_rule() -> None:
    found = Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", zigbee_house(1)).devices
    is_read = known_topics(lambda: Mapping([]), found)
    assert all(map(is_read, ["z/room1/lamp", "z/room1/lamp/set", "$SYS/x", "lamplighter/adapter/canary"]))
    assert not any(map(is_read, ["z/room9/lamp", "z/bridge/log", "attic"]))


def test_rules_may_change_while_a_sample_runs() -> None:
    of_files = rules('[[stream]]\ntopic = "read/+"\npayload = "number"\nproperty = "ex:p"\n')
    more = rules('[[stream]]\ntopic = "read/a"\npayload = "number"\nproperty = "ex:q"\n')
    in_force = Mapping(of_files.rules)
    is_read = known_topics(lambda: in_force, [])
    assert is_read("read/a") and not is_read("b")
    in_force = Mapping([*of_files.rules, *more.rules], former=in_force)
    assert is_read("read/a") and is_read("read/c")
    in_force = Mapping(more.rules, former=in_force)
    assert is_read("read/a") and not is_read("read/c")
