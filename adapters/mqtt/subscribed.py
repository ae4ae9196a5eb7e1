"""Says in the dataset which adopted devices are read: their rules are in force, and the broker has granted the
subscriptions. `lamplighter devices adopt` waits for it, so that no message after its answer is missed."""

from __future__ import annotations

import asyncio
from collections import abc
from typing import Protocol

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mqtt.discovering import Discovering
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


class SubscribedDevices:
    """discovering: None, and `follow` is not to be called. changed: set when devices, rules or subscriptions have
    changed; `follow` writes what follows."""

    def __init__(
        self, client: UpdatesClient, discovering: Discovering | None, brokers: abc.Mapping[str, ReadBroker]
    ) -> None:
        self.changed = asyncio.Event()
        self._client, self._discovering, self._brokers = client, discovering, brokers
        self._written: dict[str, Entry] = {}
        if discovering is not None:
            discovering.entries_changed = self.changed.set

    def _reads(self, device: Device, registry: Registry) -> bool:
        """Whether the topics of a device are read now."""
        broker = self._brokers.get(device.broker)
        if broker is None or not broker.inbox.has_all_filters:
            return False
        places = {rule.place for rule in broker.mapping.rules} | {command.place for command in broker.mapping.commands}
        return all(f"<{registry.base_iri}{path}>" in places for path in registry.rules(device))

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
            new = [
                one
                for name, one in entries.items()
                if one.adoption == "adopted" and name not in self._written and self._reads(one.device, registry)
            ]
            for begin in range(0, len(new), PORTION_MAX):
                portion = new[begin : begin + PORTION_MAX]
                texts = [registry.subscription(one) for one in portion]
                await write(self._client, texts, DeclaredCause("mqtt", "devices"), log_refusal)
                self._written |= {one.identity: one for one in portion}
