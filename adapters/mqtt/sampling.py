"""Topics that no rule reads, found by listening to all topics of a broker now and then.

::

    session               ─▶ messages of topics that rules read
    TopicSample (QoS 0)   ─▶ all messages, for some seconds ─▶ UnreadMessages

The session subscribes to what rules read, so it hears of nothing else. A subscription to all topics would double the
adapter's work in a busy house, so they are sampled, on a connection of its own that ends again: for a while after the
start, at an interval, and when somebody asks for what is not read. Its messages become no readings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mapping.patterns import TopicIndex, TopicPattern, is_reserved
from lamplighter.adapters.model.unread import UnreadMessages
from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.link import End, PahoConnection, Publish
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s

ALL_TOPICS = "#"
BEGIN_AFTER_S = 10.0
"""After the start: rules and devices are known then."""
SAMPLE_S, MESSAGES_MAX = 20.0, 20_000
"""A sample ends after the first of both."""
ASKED_AGAIN_S = 10.0
RETRY_MAX_S = 3_600.0
DECIDED_MAX = 10_000
"""Topics of which a sample keeps whether a rule reads them."""

logger = EventLogger(__name__)


def known_topics(mapping: Callable[[], Mapping], devices: Iterable[Device]) -> Callable[[str], bool]:
    """Whether a topic needs no rule: one reads it, the gateway publishes to it, a known device uses it, or it is one of
    the broker or of an adapter.

    mapping: returns the rules in force, as they change: those that follow others take their index from them, so that
    the others can be asked no more. devices: also those that are proposed or ignored: `lamplighter devices` has them.
    """
    filters = {command.table.topic for command in mapping().commands}
    filters.update(rule.filter for rule in mapping().publishes)
    for device in devices:
        filters.update(device_topics(device))
    index: TopicIndex[None] = TopicIndex((pattern, None) for one in filters if (pattern := _pattern(one)) is not None)
    return lambda topic: is_reserved(topic) or mapping().covers(topic) or bool(index.of(topic))


def device_topics(device: Device) -> Iterator[str]:
    """The topics of a device, also with wildcards: of values, states, commands, questions and availability."""
    tables = [one.table for one in device.sensors]
    tables += [one.command for one in device.actuators]
    tables += [one.state for one in device.actuators if one.state is not None]
    tables += device.availability.topics if device.availability is not None else ()
    for table in tables:
        for one in (table, *table.get("also", ())):
            if isinstance(one, dict) and isinstance(topic := one.get("topic"), str):
                yield topic
    yield from (ask.topic for ask in device.asks)


def _pattern(topic_filter: str) -> TopicPattern | None:
    """None for what is no pattern: who may write the graph of devices may write anything there."""
    try:
        return TopicPattern(topic_filter)
    except ValueError:
        return None


class TopicSample(PahoConnection):
    """One sample. take: takes each message. retained: also what the broker retains, as far as the protocol lets choose;
    3.1.1 sends it in any case."""

    def __init__(
        self,
        settings: BrokerSettings,
        credentials: BrokerCredentials,
        take: Callable[[Publish], None],
        *,
        retained: bool,
    ) -> None:
        super().__init__(settings, credentials, client_id=f"{settings.session}-unread", kept=False, receive_max=1)
        self._take, self._retained, self._count = take, retained, 0
        self.client.on_subscribe = self._on_subscribe

    def on_accepted(self, session_present: bool) -> None:
        if self.mqtt5:
            handling = SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE
            if not self._retained:
                handling = SubscribeOptions.RETAIN_DO_NOT_SEND
            self.client.subscribe(ALL_TOPICS, options=SubscribeOptions(0, retainHandling=handling))
        else:
            self.client.subscribe(ALL_TOPICS, 0)

    def on_message(self, message: Publish) -> None:
        self._count += 1
        if self._count > MESSAGES_MAX:
            self.end(End("paused", ""))
        elif not message.retain or self._retained:
            self._take(message)

    def _on_subscribe(
        self, _client: mqtt.Client, _userdata: Any, _mid: int, codes: list[ReasonCode], _more: Properties | None
    ) -> None:
        if codes[0].is_failure:
            self.end(End("refused", f"the broker refuses the subscription to {ALL_TOPICS}: {codes[0]}"))


class TopicSampling:
    """Samples of one broker. credentials: for the connection; reader: returns what says whether a topic needs no rule,
    as things are; unread: takes the others; now: returns the time."""

    def __init__(
        self,
        name: str,
        settings: BrokerSettings,
        credentials: Callable[[], BrokerCredentials],
        reader: Callable[[], Callable[[str], bool]],
        unread: UnreadMessages,
        now: Callable[[], datetime],
    ) -> None:
        self._name, self._settings, self._credentials = name, settings, credentials
        self._reader, self._unread, self._now = reader, unread, now

    async def keep_sampling(self) -> None:
        """Samples until cancelled. What fails is tried again with back-off."""
        every_s = float(self._settings.unread_s)
        if not every_s:
            return
        failures, retained = 0, True
        await asyncio.sleep(BEGIN_AFTER_S)
        while True:
            try:
                await self._sample(retained=retained)
                failures, retained, pause_s = 0, False, every_s
            except UpstreamError as error:
                failures += 1
                pause_s = max(back_off_s(failures, ASKED_AGAIN_S, RETRY_MAX_S), ASKED_AGAIN_S)
                if failures == 1:
                    logger.info("mqtt topics not sampled", host=self._settings.host, reason=error)
            await asyncio.sleep(min(ASKED_AGAIN_S, pause_s))
            self._unread.asked.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(pause_s - ASKED_AGAIN_S, 0)):
                    await self._unread.asked.wait()

    async def _sample(self, *, retained: bool) -> None:
        """One sample. Raises UpstreamError if there is none."""
        is_read = self._reader()
        decided: dict[str, bool] = {}
        for topic in self._unread.places(self._name):
            if is_read(topic):
                self._unread.forget(self._name, topic)

        def take(message: Publish) -> None:
            topic = message.topic
            if not topic:
                return
            read = decided.get(topic)
            if read is None:
                if len(decided) >= DECIDED_MAX:
                    decided.clear()
                read = decided[topic] = is_read(topic)
            if not read and message.payload:
                self._unread.note(topic, message.payload, self._now(), broker=self._name, retained=message.retain)

        sample = TopicSample(self._settings, self._credentials(), take, retained=retained)
        try:
            await sample.open()
            async with asyncio.timeout(SAMPLE_S):
                end = await sample.ended()
            if end.kind != "paused":
                raise UpstreamError(end.reason)
        except TimeoutError:
            if not sample.alive:
                raise UpstreamError("no answer to CONNECT") from None
        except (OSError, ValueError) as error:  # ssl.SSLError is one
            raise UpstreamError(str(error) or type(error).__name__) from error
        finally:
            sample.close()
