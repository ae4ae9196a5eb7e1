"""What the adapter sends besides acknowledgements: states of actuators, rows of queries, announcements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Protocol

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.devices.output import Output, OutputPolicy, ReportedState
from lamplighter.adapters.mapping import CommandRule, PublishRule
from lamplighter.adapters.mapping.patterns import own_topics
from lamplighter.adapters.mqtt.announcer import Announcer
from lamplighter.adapters.mqtt.entities import HomeTopics
from lamplighter.adapters.mqtt.inbox import Inbox
from lamplighter.adapters.mqtt.messages import Message
from lamplighter.adapters.mqtt.publishing import RowPublisher
from lamplighter.adapters.mqtt.sender import MqttSender, output_status
from lamplighter.adapters.mqtt.settings import BrokerSettings, MqttSettings
from lamplighter.engine.terms import iri
from lamplighter.ontology.vocabulary import GATEWAY


def place(broker: BrokerSettings, settings: MqttSettings) -> HomeTopics:
    """Where the adapter announces at a broker."""
    return HomeTopics(broker.session, own_topics(broker.session), settings.discovery_prefix[0])


def announced_filters(settings: MqttSettings, name: str) -> Sequence[str]:
    """What to subscribe to at a broker for its announcements."""
    broker = settings.all_brokers()[name]
    return place(broker, settings).filters if broker.announce else ()


class Warnings(Protocol):
    """Take topic and reason of what is not done: of desired states, and of the rest."""

    def state(self, topic: str, reason: str) -> None: ...

    def outward(self, topic: str, reason: str) -> None: ...


class Outward:
    """The parts that send. inboxes: the brokers by name; reader: as for `RowPublisher`; adopted: as for
    `MqttSender`."""

    def __init__(
        self,
        settings: MqttSettings,
        client: AdapterClient,
        inboxes: Mapping[str, Inbox],
        *,
        base_iri: str,
        now: Callable[[], datetime],
        warnings: Warnings,
        reader: Callable[[str, str], str | None],
        adopted: Callable[[CommandRule], bool],
    ) -> None:
        sender = MqttSender(inboxes, settings.commands, now, adopted)
        # Over MQTT only: a CoAP device that was rebooted reports another state, and is no person.
        follows = frozenset(iri(GATEWAY + name) for name, kind in KINDS.items() if kind.follows)
        self._output = Output(client, sender, OutputPolicy("mqtt", follows=follows), note=warnings.state)
        self._rows = RowPublisher(client, inboxes, warnings.outward, reader)
        self._announcers = {
            name: Announcer(
                client,
                inboxes[name],
                place(broker, settings),
                announce=broker.announce,
                base_iri=base_iri,
                version=version("lamplighter"),
                warn=warnings.outward,
            )
            for name, broker in settings.all_brokers().items()
        }

    def change_rules(
        self, files: Sequence[CommandRule], dataset: Sequence[CommandRule], publishes: Iterable[PublishRule]
    ) -> None:
        """Takes the rules in force: commands of mapping/*.toml and of the dataset, and rows to publish."""
        self._output.change_rules(files, dataset)
        self._rows.change_rules(publishes)

    def covers(self, broker: str, topic: str) -> bool:
        """Whether a message of the topic is for this adapter alone."""
        return self._announcers[broker].covers(topic)

    def connected(self, broker: str, connected: bool) -> None:
        self._announcers[broker].connected(connected)

    async def take(
        self, broker: str, messages: Iterable[Message], reports: Iterable[ReportedState[CommandRule]]
    ) -> None:
        """Takes a batch, and what it reports of actuators; returns when the dataset has it."""
        await self._output.take(reports)
        await self._announcers[broker].take(messages)

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._output.run(), name="mqtt output")
            tasks.create_task(self._rows.run(), name="mqtt publish")
            for name, announcer in self._announcers.items():
                tasks.create_task(announcer.run(), name=f"mqtt announce {name}")

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        sent = self._output.counters
        return {
            "commands": sent.sent,
            "commands_acknowledged": sent.acknowledged,
            "commands_reasserted": sent.reasserted,
            "commands_refused": sent.refused,
            "rows_published": self._rows.counters.published,
        }

    def status(self) -> str:
        """In a few words, each part after a comma."""
        texts = [output_status(self._output), self._rows.status(), *(one.status() for one in self._announcers.values())]
        return "".join(f", {text}" for text in texts if text)
