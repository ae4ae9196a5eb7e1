"""Says in the dataset which adopted devices are read: their rules are in force, and the broker has granted the
subscriptions. `lamplighter devices adopt` waits for it, so that no message after its answer is missed. A device that is
read is asked for its state."""

from __future__ import annotations

import asyncio
from collections import abc
from typing import Protocol

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.mapping import Births, Mapping
from lamplighter.adapters.mqtt.discovering import Discovering, asks_of
from lamplighter.adapters.mqtt.discovery.sparkplug import node_of
from lamplighter.adapters.mqtt.rebirths import Node
from lamplighter.adapters.mqtt.state_asks import StateAsk, StateAsks
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger

PORTION_MAX = 50
"""Updates in one message to the gateway."""

logger = EventLogger(__name__)


class ReadInbox(Protocol):
    """has_all_filters: whether the broker has granted all subscriptions."""

    @property
    def has_all_filters(self) -> bool: ...


class ReadBroker(Protocol):
    """A broker, and the rules in force for it."""

    @property
    def inbox(self) -> ReadInbox: ...
    @property
    def mapping(self) -> Mapping: ...
    @property
    def births(self) -> Births: ...


class SubscribedDevices:
    """discovering: None, and `follow` is not to be called. changed: set when devices, rules or subscriptions have
    changed; `follow` writes what follows. asks: asks devices for their states when they are read."""

    def __init__(
        self, client: UpdatesClient, discovering: Discovering | None, brokers: abc.Mapping[str, ReadBroker]
    ) -> None:
        self.changed = asyncio.Event()
        self.asks = StateAsks(self.asks_of_broker)
        self._client, self._discovering, self._brokers = client, discovering, brokers
        self._written: dict[str, Entry] = {}
        self._read: dict[str, Device] = {}
        """The adopted devices that are read, and were asked since."""
        if discovering is not None:
            discovering.entries_changed = self.changed.set
            discovering.returned = lambda device: self.asks.demand(device.broker, asks_of(device))

    def note_connection(self, broker: str, *, connected: bool) -> None:
        """Notes the state of a broker's connection, with its subscriptions."""
        self.asks.note_connection(broker, connected=connected)
        if connected and self._discovering is not None:  # for devices that do not retain their announcements
            self.asks.demand(broker, self._discovering.state_asks())
        elif not connected:
            self._read = {name: device for name, device in self._read.items() if device.broker != broker}
        self.changed.set()

    def ask_again(self) -> None:
        """Asks all devices again: they may have other states than the dataset has."""
        self._read.clear()
        self.changed.set()

    def reads_node(self, broker: str, node: Node) -> bool:
        """Whether a device of a Sparkplug node is adopted and read."""
        return any(one.broker == broker and node_of(one) == node for one in self._read.values())

    def asks_of_broker(self, broker: str) -> list[StateAsk]:
        """The questions of the devices of a broker that are adopted and read, and of all devices of its formats."""
        formats = [] if self._discovering is None else self._discovering.state_asks()
        return formats + [ask for one in self._read.values() if one.broker == broker for ask in asks_of(one)]

    def _has_all_filters(self, device: Device) -> bool:
        broker = self._brokers.get(device.broker)
        return broker is not None and broker.inbox.has_all_filters

    def _reads(self, device: Device, registry: Registry) -> bool:
        """Whether the topics of a device are read now."""
        if not self._has_all_filters(device):
            return False
        places = self._brokers[device.broker].mapping.places
        return all(f"<{registry.base_iri}{path}>" in places for path in registry.rules(device))

    def _ask(self, read: dict[str, Device], discovering: Discovering) -> None:
        """Asks the devices that were not read before, or in another way, and all devices of their formats."""
        before, self._read = self._read, read
        new = [device for name, device in read.items() if before.get(name) != device]
        for device in new:
            self.asks.demand(device.broker, asks_of(device))
            node = node_of(device)
            if node is not None:
                self._brokers[device.broker].births.unborn.add(node)
        for broker, source in dict.fromkeys((device.broker, device.source) for device in new):
            self.asks.demand(broker, discovering.state_asks(source))

    async def follow(self) -> None:
        """Runs until cancelled. Raises UpstreamError when the engine client is closed."""

        def log_refusal(error: GatewayError) -> None:
            logger.error("mqtt subscribed device not stored", reason=error)

        assert self._discovering is not None
        registry, entries = self._discovering.feed.registry, self._discovering.feed.entries
        while True:
            await self.changed.wait()
            self.changed.clear()
            self._written = {name: one for name, one in self._written.items() if entries.get(name) is one}
            adopted = {name: one for name, one in entries.items() if one.adoption == "adopted"}
            read = {name: one for name, one in adopted.items() if self._reads(one.device, registry)}
            # While a broker grants further filters, the others stay in force.
            pending = {name for name, one in adopted.items() if self._read.get(name) == one.device} - read.keys()
            kept = {name: self._read[name] for name in pending if not self._has_all_filters(self._read[name])}
            self._ask(kept | {name: one.device for name, one in read.items()}, self._discovering)
            new = [one for name, one in read.items() if name not in self._written]
            for begin in range(0, len(new), PORTION_MAX):
                portion = new[begin : begin + PORTION_MAX]
                texts = [registry.subscription(one) for one in portion]
                await write(self._client, texts, DeclaredCause("mqtt", "devices"), log_refusal)
                self._written |= {one.identity: one for one in portion}
