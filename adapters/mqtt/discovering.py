"""Announcements of devices at brokers -> the registry of devices in the dataset, and whether devices are online.

::

    announcement ─▶ Announcements ─▶ changed devices ─▶ RegistryFeed ─▶ gateway
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.devices.availability import Availabilities
from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.registry import Adopt
from lamplighter.adapters.devices.registry_feed import FeedScope, RegistryFeed
from lamplighter.adapters.mapping import PAYLOAD_BYTES_MAX, CommandRule
from lamplighter.adapters.mapping.tables import CommandTable
from lamplighter.adapters.model.failures import Failures
from lamplighter.adapters.mqtt.discovery.announced import ANNOUNCEMENT_BYTES_MAX, Format
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements, Changes
from lamplighter.adapters.mqtt.messages import Message
from lamplighter.adapters.mqtt.state_asks import StateAsk, is_question
from lamplighter.engine.terms import Term

ALL_FILTERS = tuple(one for found in FORMATS.values() for one in found.filters)
"""Of all formats: a session of a broker may still have those of formats that were in the settings before."""
SOURCES = (*FORMATS, "announcement", "command", "mapping")
"""Of all devices and problems of the adapter."""


class Discovering:
    """Announcements of all brokers of an adapter.

    filters_changed: called when `filters` has changed; entries_changed: when the devices of the dataset have; returned:
    with an adopted device that says that it is online, as at its connection. feed: the devices in the dataset, which
    are known before announcements are read.
    """

    def __init__(
        self,
        client: AdapterClient,
        *,
        base_iri: str,
        formats: Iterable[str | Format],
        adopt: Adopt,
        devices_max: int,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.filters_changed: Callable[[], None] = lambda: None
        self.entries_changed: Callable[[], None] = lambda: None
        self.returned: Callable[[Device], None] = lambda device: None
        self.feed = RegistryFeed(
            client,
            base_iri=base_iri,
            scope=FeedScope("mqtt", adopt, frozenset(SOURCES)),
            on_entries=self._follow_entries,
            clock=clock,
        )
        self._announcements = Announcements(formats, devices_max=devices_max)
        self.state_asks = self._announcements.state_asks
        self._availabilities = Availabilities()
        self._failures = Failures("mqtt")
        self._adopted: dict[Term, str] = {}
        """Identities of the adopted devices by their IRIs."""

    def filters(self, broker: str) -> list[str]:
        """What to subscribe to at a broker: announcements, and availability of adopted devices."""
        return [*self._announcements.filters, *self._availabilities.filters(broker)]

    @property
    def asks(self) -> list[tuple[str, str]]:
        """Messages that make devices announce themselves."""
        return self._announcements.asks

    def covers(self, broker: str, topic: str) -> bool:
        """Whether `take_all` takes messages of the topic."""
        return self._announcements.covers(topic) or (broker, topic) in self._availabilities.topics

    def says_online(self, device: Term) -> bool:
        """Whether an availability topic has said whether a device is online. device: its IRI."""
        return self._availabilities.heard(self._adopted.get(device, ""))

    def bytes_max(self, topic: str) -> int:
        """The longest payload that is read of a topic."""
        return ANNOUNCEMENT_BYTES_MAX if self._announcements.covers(topic) else PAYLOAD_BYTES_MAX

    def has_adopted(self, rule: CommandRule) -> bool:
        """Whether a rule of the dataset is one of an adopted device, and sends what the device announced and nothing
        else: who may write rules may also change this one."""
        before = f"<{self.feed.registry.base_iri}mapping/"
        identity, _, key = rule.place.removeprefix(before).removesuffix(">").rpartition("/command/")
        entry = self.feed.entries.get(identity)
        if entry is None or entry.adoption != "adopted" or not rule.place.startswith(before):
            return False
        commands = [one.command for one in entry.device.actuators if one.key == key]
        sent = msgspec.structs.replace(rule.table, state=None)
        try:
            return any(msgspec.convert(command, CommandTable) == sent for command in commands)
        except msgspec.ValidationError:  # who may write the graph of devices may write anything there
            return False

    async def take_all(self, broker: str, messages: Iterable[Message]) -> None:
        """Takes the announcements of a batch. Waits for the dataset's devices before the first one."""
        for message in messages:
            if self._announcements.covers(message.topic):
                await self.feed.ready.wait()
                self.take(broker, message.topic, message.payload)
                await asyncio.sleep(0)  # a list of devices may take a second
            if (broker, message.topic) in self._availabilities.topics:
                states = self._availabilities.read(broker, message.topic, message.payload)
                if states:
                    self.feed.say_online(states)
                if not message.retained:
                    for identity in self._availabilities.online_at(broker, message.topic):
                        self.returned(self.feed.entries[identity].device)

    def take(self, broker: str, topic: str, payload: bytes) -> None:
        """Reads an announcement; what follows from it is written by the feed."""
        if self.feed.refused:
            return
        try:
            changes = self._announcements.read(broker, topic, payload)
        except Exception as error:
            reason = str(self._failures.payload_error(topic, error))
            changes = Changes(problems=[Problem("announcement", broker, topic, reason)])
        for problem in (*changes.problems, *changes.left_out):
            self.feed.note(problem)
        self.feed.announce(changes.devices, changes.gone)

    def _follow_entries(self) -> None:
        """Takes the devices of the dataset."""
        entries = self.feed.entries.values()
        brokers = {entry.device.broker for entry in entries}
        filters = {broker: self._availabilities.filters(broker) for broker in brokers}
        adopted = [one.device for one in entries if one.adoption == "adopted"]
        self._adopted = {self.feed.registry.device_iri(device): device.identity for device in adopted}
        states = self._availabilities.replace(adopted)
        if states:
            self.feed.say_online(states)
        if filters != {broker: self._availabilities.filters(broker) for broker in brokers}:
            self.filters_changed()
        self.entries_changed()
        if not self.feed.ready.is_set():
            self._announcements.restore(entry.device for entry in entries)


def asks_of(device: Device) -> list[StateAsk]:
    """Messages that make a device send its state, and nothing else."""
    return [(one.topic, one.payload) for one in device.asks if is_question(one.topic, one.payload)]
