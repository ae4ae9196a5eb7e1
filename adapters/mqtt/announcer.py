"""Announces actuators and observations to Home Assistant at one broker, and takes its commands.

::

    gateway ─▶ subscriptions ─▶ entities ─▶ retained messages: configuration, state ─▶ broker ─▶ Home Assistant
       ▲                                                                                              │
       └── gateway:desiredState ◀──────────────────── command topic ◀─────────────────────────────────┘

Without `HomeTopics.announce` it only removes what an earlier run announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, AdapterClient
from lamplighter.adapters.devices.sender import RefusedByDevice
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.mqtt.entities import QUERIES, Entity, HomeTopics, Things
from lamplighter.adapters.mqtt.messages import Message
from lamplighter.adapters.mqtt.sender import OutputBroker
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import Term

ENTITIES_MAX = 5_000
AT_ONCE = 20
"""Messages that wait for the broker's acknowledgement."""

logger = EventLogger(__name__)


class Announcer:
    """Runs beside the inbox of its broker. warn: takes topic and reason of commands that are not taken."""

    def __init__(
        self,
        client: AdapterClient,
        broker: OutputBroker,
        place: HomeTopics,
        *,
        base_iri: str,
        version: str,
        warn: Callable[[str, str], None],
    ) -> None:
        self._client = client
        self._broker = broker
        self._place = place
        self._warn = warn
        self._things = Things(base_iri, place, version)
        self._entities: dict[Term, Entity] = {}
        self._by_key: dict[str, Entity] = {}
        self._wanted: dict[str, bytes] = {}
        """Retained messages by topic."""
        self._unsent: dict[str, None] = {}
        self._found: set[str] = set()
        """Announcements of earlier runs, until the entities are known."""
        self._missing = set(range(len(QUERIES))) if place.announce else set()
        """Queries whose first result is not there yet."""
        self._connected = False
        self._work = asyncio.Event()

    def connected(self, connected: bool) -> None:
        """A new connection may be to a broker that has lost its retained messages."""
        if connected and not self._connected:
            self._send(self._wanted)
        self._connected = connected

    def status(self) -> str:
        """In a few words; empty if nothing is announced."""
        count = len(self._entities)
        return f"{count:,} {'entity' if count == 1 else 'entities'} announced" if self._place.announce else ""

    async def take(self, messages: Iterable[Message]) -> None:
        """Takes messages that `HomeTopics` covers; returns when the gateway has taken or refused the commands."""
        for message in messages:
            key = self._place.commanded(message.topic)
            if key is not None and self._place.announce:
                await self._command(key, message)
            elif self._place.announces(message.topic) and message.payload and message.topic not in self._wanted:
                self._found.add(message.topic)
                self._clean()

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish(), name="mqtt announcements")
            if self._place.announce:
                for number in range(len(QUERIES)):
                    tasks.create_task(self._follow(number), name=f"mqtt announced {number}")

    async def _follow(self, number: int) -> None:
        try:
            async with aclosing(self._client.subscribe(QUERIES[number])) as notifications:
                async for notification in notifications:
                    for thing in self._things.take(number, notification):
                        self._settle(thing)
                    self._missing.discard(number)
                    self._clean()
        except UpstreamError:
            raise
        except GatewayError as error:
            logger.warning("mqtt entities are not announced", reason=error)

    def _settle(self, thing: Term) -> None:
        """Brings the messages of a thing up to date."""
        before, after = self._entities.get(thing), self._things.entity(thing)
        if before == after:
            return
        if before is None and len(self._entities) >= ENTITIES_MAX:
            self._warn("*", f"more than {ENTITIES_MAX} entities; the others are not announced")
            return
        old = {} if before is None else before.messages(self._place)
        new = {} if after is None else after.messages(self._place)
        if before is not None:
            del self._entities[thing], self._by_key[before.key]
        if after is not None:
            self._entities[thing] = self._by_key[after.key] = after
        for topic in old.keys() - new.keys():
            del self._wanted[topic]
        self._wanted |= new
        self._send([topic for topic in {**old, **new} if old.get(topic) != new.get(topic)])

    def _clean(self) -> None:
        """Removes announcements of earlier runs, once it is known what there is to announce."""
        if not self._missing and self._found:
            gone = self._found - self._wanted.keys()
            self._send([*(self._place.state_of(topic) for topic in gone), *gone])  # the announcement tells of the state
            self._found.clear()

    def _send(self, topics: Iterable[str]) -> None:
        self._unsent |= dict.fromkeys(topics)
        if self._unsent:
            self._work.set()

    async def _command(self, key: str, message: Message) -> None:
        if message.retained:
            self._warn(message.topic, "a retained command is old; send commands without retain")
            return
        entity = self._by_key.get(key)
        if entity is None:
            self._warn(message.topic, "no such lamp or switch")
            return
        text = entity.command(message.payload)
        if text is None:
            self._warn(message.topic, "write ON or OFF")
            return

        def refused(error: GatewayError) -> None:
            self._warn(message.topic, f"the gateway refused it: {error}")

        await write(self._client, [text], DeclaredCause("mqtt", message.topic), refused)

    async def _publish(self) -> None:
        """Sends what is not sent; the newest message of a topic wins."""
        failures = 0
        while True:
            await self._work.wait()
            await self._broker.subscribed.wait()
            topics = list(self._unsent)[:AT_ONCE]
            sent = await asyncio.gather(*map(self._publish_one, topics))
            if not self._unsent:
                self._work.clear()
            failures = 0 if all(sent) else failures + 1
            if failures:
                await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))

    async def _publish_one(self, topic: str) -> bool:
        """Publishes the wanted message, or removes the retained one if none is wanted."""
        del self._unsent[topic]
        try:
            await self._broker.publish(topic, self._wanted.get(topic, b""), 1, retain=True)
        except UpstreamError as error:
            if isinstance(error, RefusedByDevice):
                self._warn(topic, str(error))
            self._unsent[topic] = None
            return False
        return True
