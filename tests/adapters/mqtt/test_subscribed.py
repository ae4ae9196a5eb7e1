"""Which devices are asked for their states when rules and subscriptions change."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from lamplighter.adapters.devices.registry import Entry
from lamplighter.adapters.mqtt.discovering import Discovering, asks_of
from lamplighter.adapters.mqtt.subscribed import SubscribedDevices
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from tests.support.announcements import announced_devices
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import BASE


class Gateway:
    """Takes all updates."""

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer]:
        return [UpdateAnswer(sequence=1) for _ in requests]


async def test_device_is_asked_once_although_further_topics_are_subscribed_to() -> None:
    gateway = cast(Any, Gateway())
    device = next(one for one in announced_devices("tasmota") if asks_of(one))
    discovering = Discovering(gateway, base_iri=BASE, formats=["tasmota"], adopt="all", devices_max=10)
    registry = discovering.feed.registry
    discovering.feed.entries[device.identity] = Entry(device, "adopted")
    inbox = SimpleNamespace(has_all_filters=True)
    places = frozenset(f"<{BASE}{path}>" for path in registry.rules(device))
    broker = SimpleNamespace(inbox=inbox, mapping=SimpleNamespace(places=places), births=None)
    devices = SubscribedDevices(gateway, discovering, {device.broker: cast(Any, broker)})
    asked = devices.asks._due

    async def change(has_all_filters: bool) -> None:
        inbox.has_all_filters = has_all_filters
        devices.changed.set()
        await until(lambda: not devices.changed.is_set())

    async with beside(devices.follow()):
        await change(True)
        assert {ask for _, ask in asked} >= set(asks_of(device))
        asked.clear()
        await change(False)
        await change(True)
        assert not asked
        broker.mapping.places = frozenset()  # its rules were removed, and are written again
        await change(True)
        broker.mapping.places = places
        await change(True)
        assert {ask for _, ask in asked} >= set(asks_of(device))
        asked.clear()
        devices.note_connection(device.broker, connected=False)
        await change(False)
        asked.clear()
        await change(True)
        assert {ask for _, ask in asked} >= set(asks_of(device))
