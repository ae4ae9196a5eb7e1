"""Desired states of actuators -> messages to a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.devices.output import Output
from lamplighter.adapters.devices.sender import Acknowledged, Attempt, NotSentError, RefusedByDevice, Sender
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.command_payloads import device_texts, is_same_command
from lamplighter.adapters.mapping.lamp_commands import CommandMessage, command_messages
from lamplighter.adapters.mapping.patterns import is_reserved
from lamplighter.adapters.mapping.tables import LampPart
from lamplighter.adapters.mqtt.connection import EndedAtMessageError
from lamplighter.adapters.mqtt.settings import FIRST_BROKER
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Term

ENDS_MAX, ENDED_PAUSE_S = 2, 3_600.0
"""A topic at whose messages the broker ended the connection so often in a row is left alone for so long: a broker that
does not permit it would end the connection for all devices again and again."""
ENDINGS_KEPT_MAX = 1_000

logger = EventLogger(__name__)


class OutputBroker(Protocol):
    """A broker. subscribed: set while it is connected."""

    @property
    def subscribed(self) -> asyncio.Event: ...

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Raises UpstreamError: RefusedByDevice if the broker refuses the message."""
        ...


def permits(filters: Iterable[str], topic: str) -> bool:
    """Whether rules in the dataset may publish to the topic. filters: the setting mqtt.commands."""
    return any(topic_matches_sub(one, topic) for one in filters)


def not_permitted(topic: str) -> str:
    """What is wrong with a topic that `permits` refuses, and what to do."""
    return (
        f"mqtt.commands does not permit the topic {topic}; add it to commands in [mqtt] of lamplighter.toml "
        "(a list there adds to the default), and reload the MQTT adapter"
    )


class MqttSender(Sender[CommandRule]):
    """brokers: by name; permitted: topic filters for rules of the dataset; adopted: whether a rule is one of an adopted
    device, as it announced itself, which needs no filter; now: returns the time."""

    def __init__(
        self,
        brokers: Mapping[str, OutputBroker],
        permitted: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        adopted: Callable[[CommandRule], bool] = lambda rule: False,
    ) -> None:
        self._brokers = brokers
        self._permitted = tuple(permitted)
        self._now, self._adopted = now, adopted
        self._endings: dict[tuple[str, str], _Endings] = {}  # by broker and topic

    def target(self, rule: CommandRule) -> str:
        return rule.table.topic

    def lamp(self, rule: CommandRule) -> LampPart | None:
        part = rule.table.lamp
        return None if part is None else msgspec.structs.replace(part, of=f"{_broker_name(rule)} {part.of}")

    def is_same(self, rule: CommandRule, one: Term, other: Term) -> bool:
        return is_same_command(rule.table, partial(device_texts, rule.table), one, other)

    async def ready(self, rule: CommandRule) -> None:
        """Returns when the broker is connected. `send` refuses a broker that is not in the settings."""
        broker = self._brokers.get(_broker_name(rule))
        while broker is not None and not broker.subscribed.is_set():
            await broker.subscribed.wait()

    def reassert_s(self, rule: CommandRule) -> float | None:
        """None: the rule's own reassert_s is for devices that do not report the state."""
        return None

    async def send(self, attempt: Attempt[CommandRule]) -> Acknowledged:
        """Returns when the broker has acknowledged the messages. QoS 2 is sent as 1."""
        rule = attempt.rule
        name, together = _broker_name(rule), attempt.together or ((rule, attempt.state),)
        broker = self._brokers.get(name)
        if broker is None:
            raise PayloadError(f"[mqtt.brokers] has no broker {name!r}")
        for one, _ in together:
            topic = one.table.topic
            if is_reserved(topic):
                raise PayloadError(f"the topic {topic} is not one of a device")
            if not attempt.from_file and not permits(self._permitted, topic) and not self._adopted(one):
                raise PayloadError(not_permitted(topic))
        messages = command_messages(together)
        sent = self._now()
        for message in messages:
            await self._publish(attempt, broker, name, message)
        return Acknowledged(sent, self._now(), "PUBACK")

    async def _publish(
        self, attempt: Attempt[CommandRule], broker: OutputBroker, name: str, message: CommandMessage
    ) -> None:
        topic, table = message.topic, message.table
        self._check_endings((name, topic))
        try:
            await broker.publish(topic, message.payload, min(table.qos, 1), retain=table.retain)
        except RefusedByDevice:
            raise
        except UpstreamError as error:
            if not attempt.retried:
                logger.warning("mqtt state not published", actuator=attempt.actuator, topic=topic, reason=error)
            if isinstance(error, EndedAtMessageError):
                self._note_ending((name, topic), str(error))
            raise
        self._endings.pop((name, topic), None)
        logger.debug("mqtt state published", actuator=attempt.actuator, topic=topic)

    def _note_ending(self, place: tuple[str, str], reason: str) -> None:
        before = self._endings.pop(place, None)
        now = asyncio.get_running_loop().time()
        self._endings[place] = _Endings(1 if before is None else before.times + 1, now, reason)
        if len(self._endings) > ENDINGS_KEPT_MAX:
            del self._endings[next(iter(self._endings))]
        self._check_endings(place)

    def _check_endings(self, place: tuple[str, str]) -> None:
        """Raises NotSentError while a topic is left alone."""
        found = self._endings.get(place)
        if found is None or found.times < ENDS_MAX:
            return
        if asyncio.get_running_loop().time() - found.at < ENDED_PAUSE_S:
            raise NotSentError(
                f"{found.reason}, {found.times} times at a message of this topic; permit it in the broker's access "
                f"control list. It is sent again after {ENDED_PAUSE_S / 60:g} minutes, or a restart of the MQTT adapter"
            )


class _Endings(NamedTuple):
    """Connections that ended at messages of one topic, in a row. at: when the last one did."""

    times: int
    at: float
    reason: str


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
