"""Desired states of actuators -> messages to a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.devices.output import Output
from lamplighter.adapters.devices.sender import Acknowledged, Attempt, Sender
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.mapping.patterns import is_reserved
from lamplighter.adapters.mqtt.settings import FIRST_BROKER
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text

logger = EventLogger(__name__)


class OutputBroker(Protocol):
    """A broker. subscribed: set while it is connected."""

    @property
    def subscribed(self) -> asyncio.Event: ...

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Raises UpstreamError."""
        ...


def permits(filters: Iterable[str], topic: str) -> bool:
    """Whether rules in the dataset may publish to the topic. filters: the setting mqtt.commands."""
    return any(topic_matches_sub(one, topic) for one in filters)


def not_permitted(topic: str) -> str:
    """What is wrong with a topic that `permits` refuses, and what to do."""
    return (
        f"mqtt.commands does not permit the topic {topic}; add it to commands in [mqtt] of lamplighter.toml "
        "(a list there replaces the default), and reload the MQTT adapter"
    )


class MqttSender(Sender[CommandRule]):
    """brokers: by name; permitted: topic filters for rules of the dataset; now: returns the time."""

    def __init__(
        self,
        brokers: Mapping[str, OutputBroker],
        permitted: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._brokers = brokers
        self._permitted = tuple(permitted)
        self._now = now

    def target(self, rule: CommandRule) -> str:
        return rule.table.topic

    async def ready(self, rule: CommandRule) -> None:
        """Returns when the broker is connected. `send` refuses a broker that is not in the settings."""
        broker = self._brokers.get(_broker_name(rule))
        while broker is not None and not broker.subscribed.is_set():
            await broker.subscribed.wait()

    def reassert_s(self, rule: CommandRule) -> float | None:
        """None: the rule's own reassert_s is for devices that do not report the state."""
        return None

    async def send(self, attempt: Attempt[CommandRule]) -> Acknowledged:
        """Returns when the broker has acknowledged the message. QoS 2 is sent as 1."""
        rule = attempt.rule
        table, name = rule.table, _broker_name(rule)
        broker = self._brokers.get(name)
        if broker is None:
            raise PayloadError(f"[mqtt.brokers] has no broker {name!r}")
        if is_reserved(table.topic):
            raise PayloadError(f"the topic {table.topic} is not one of a device")
        if not attempt.from_file and not permits(self._permitted, table.topic):
            raise PayloadError(not_permitted(table.topic))
        payload = command_payload(rule, attempt.state)
        sent = self._now()
        try:
            await broker.publish(table.topic, payload, min(table.qos, 1), retain=table.retain)
        except UpstreamError as error:
            if not attempt.retried:
                logger.warning("mqtt state not published", actuator=attempt.actuator, topic=table.topic, reason=error)
            raise
        logger.debug("mqtt state published", actuator=attempt.actuator, topic=table.topic)
        return Acknowledged(sent, self._now(), "PUBACK")


def output_status(output: Output[CommandRule]) -> str:
    """In a few words; empty without actuators."""
    states = output.states()
    if not states.known:
        return ""
    others = {
        "reporting another state": states.disagreeing,
        "waiting for the broker": states.waiting,
        "with a refused state": states.refused,
    }
    said = [
        count_text(states.known, "actuator", ","),
        f"{count_text(output.counters.acknowledged, 'state', ',')} published",
    ]
    return ", ".join([*said, *(f"{count:,} {what}" for what, count in others.items() if count)])


def _broker_name(rule: CommandRule) -> str:
    return rule.table.broker or FIRST_BROKER
