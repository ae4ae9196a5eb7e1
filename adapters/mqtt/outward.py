"""What the adapter sends besides acknowledgements: states of actuators, rows of queries, announcements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Protocol

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
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.terms import iri
from lamplighter.ontology.vocabulary import GATEWAY


def place(broker: BrokerSettings, settings: MqttSettings) -> HomeTopics:
    """Where the adapter announces at a broker."""
    return HomeTopics(broker.session, own_topics(broker.session), settings.discovery_prefix[0], broker.announce)


def announced_filters(settings: MqttSettings, name: str) -> Sequence[str]:
    """What to subscribe to at a broker for its announcements."""
    broker = settings.all_brokers()[name]
    return place(broker, settings).filters if broker.announce else ()


class Warnings(Protocol):
    """Take topic and reason of what is not done: of desired states, and of the rest."""

    def state(self, topic: str, reason: str) -> None: ...

    def outward(self, topic: str, reason: str) -> None: ...


class Outward:
    """The parts that send: states of actuators, rows of queries, and by the names of brokers what is announced."""

    def __init__(self, output: Output[CommandRule], rows: RowPublisher, announcers: Mapping[str, Announcer]) -> None:
        self.output, self._rows, self._announcers = output, rows, announcers

    def change_rules(
        self, files: Sequence[CommandRule], dataset: Sequence[CommandRule], publishes: Iterable[PublishRule]
    ) -> None:
        """Takes the rules in force: commands of mapping/*.toml and of the dataset, and rows to publish."""
        self.output.change_rules(files, dataset)
        self._rows.change_rules(publishes)

    def connected(self, broker: str, connected: bool) -> None:
        self._announcers[broker].connected(connected)

    async def take(
        self, broker: str, messages: Iterable[Message], reports: Iterable[ReportedState[CommandRule]]
    ) -> None:
        """Takes messages of a batch that are the adapter's own, and what all report of actuators; returns when the
        dataset has it."""
        await self.output.take(reports)
        await self._announcers[broker].take(messages)

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.output.run(), name="mqtt output")
            tasks.create_task(self._rows.run(), name="mqtt publish")
            for name, announcer in self._announcers.items():
                tasks.create_task(announcer.run(), name=f"mqtt announce {name}")

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        sent = self.output.counters
        return {
            "commands": sent.sent,
            "commands_acknowledged": sent.acknowledged,
            "commands_reasserted": sent.reasserted,
            "commands_refused": sent.refused,
            "rows_published": self._rows.counters.published,
        }

    def status(self) -> str:
        """In a few words, each part after a comma."""
        texts = [output_status(self.output), self._rows.status(), *(one.status() for one in self._announcers.values())]
        return "".join(f", {text}" for text in texts if text)


def outward(
    settings: MqttSettings,
    context: AdapterContext,
    inboxes: Mapping[str, Inbox],
    *,
    warnings: Warnings,
    reader: Callable[[str, str], str | None],
    adopted: Callable[[CommandRule], bool],
) -> Outward:
    """inboxes: the brokers by name; reader: as for `RowPublisher`; adopted: as for `MqttSender`."""
    client = context.client
    sender = MqttSender(inboxes, settings.commands, context.now, adopted)
    # Over MQTT only: a CoAP device that was rebooted reports another state, and is no person.
    follows = frozenset(iri(GATEWAY + name) for name, kind in KINDS.items() if kind.follows)
    announcers = {
        name: Announcer(
            client,
            inboxes[name],
            place(broker, settings),
            base_iri=context.base_iri,
            version=version("lamplighter"),
            warn=warnings.outward,
        )
        for name, broker in settings.all_brokers().items()
    }
    output = Output(client, sender, OutputPolicy("mqtt", follows=follows), note=warnings.state)
    return Outward(output, RowPublisher(client, inboxes, warnings.outward, reader), announcers)
