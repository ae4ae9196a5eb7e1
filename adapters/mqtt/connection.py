"""The connection of a session that the broker keeps.

MQTT 3.1.1 or 5, manual acknowledgement. A broken connection stays broken; the inbox makes the next one.

The adapter has topics of its own below ``lamplighter/<client id>/``: ``status`` says "online" or "offline" (retained;
the broker says "offline" when the connection breaks), ``canary`` see `Canary`. ``things/.../state`` and
``things/.../set`` are those of `announcer`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from lamplighter.adapters.devices.sender import RefusedByDevice
from lamplighter.adapters.mapping.patterns import own_topics
from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.link import End, PahoConnection, Publish
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.errors import UpstreamError

PUBLISHES_MAX = 20
"""Messages that wait for the broker's acknowledgement; paho would queue further ones without a bound."""
ACKNOWLEDGEMENT_S = 30.0
"""How long the broker may take; a connection that is paused does not read its acknowledgements."""
ENDED_AT_S = 5.0
"""A connection that ends so soon after a message may have ended because of it."""
NOT_AUTHORIZED = 0x87
BEHIND_S, BEHIND_MAX = 10.0, 6
"""How long the canary behind the queued messages may take, and how many are sent: a broker whose queue is full drops
them."""
_NUMBERS = itertools.count(1)
_BEHIND = b"behind "
"""The canary that comes behind the messages that the broker has queued for the session."""

ANSWER_S = 10.0
"""How long a canary may take. It comes behind the messages that the broker queued, which count as well."""
SHORT_S, SHORT_MAX = 5.0, 3
"""Some brokers answer a forbidden message by ending the connection. After so many connections in a row that ended so
soon, before a canary has ever come back, no more are sent."""

Verdict = Literal["wait", "send", "subscribe", "deaf", "given up"]


class Canary:
    """Whether messages still arrive. It decides what to do about silence; the connection does it.

    An open socket does not prove it: a broker that lost its state answers pings and sends nothing. So the adapter sends
    messages to itself. The first canary follows each connection, later ones follow a silence. Any other message is as
    good. A broker may not permit their topic. So one that has never come back proves nothing: no connection ends for
    it, and no more are sent.

    It outlives connections. interval_s: of silence before the next canary; 0: never one. All times: of one monotonic
    clock, in seconds.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._returned = False
        self._short = 0
        self._connected_at: float | None = None
        self.given_up = False
        """None ever came back: the broker does not permit its topic."""
        self.arrivals = 0
        """Messages and canaries that came."""
        self._heard_at: float | None = None
        self._sent_at: float | None = None
        self._asked_again = False

    @property
    def used(self) -> bool:
        """Whether canaries are sent."""
        return bool(self._interval_s) and not self.given_up

    def demand(self, now: float) -> None:
        """The next canary is due now, unless one is on its way."""
        if self._heard_at is not None and self._sent_at is None:
            self._heard_at = min(self._heard_at, now - self._interval_s)

    def connected(self, now: float) -> None:
        """On a new connection; its subscriptions do not stand yet."""
        self._connected_at = now
        self._heard_at = self._sent_at = None
        self._asked_again = False

    def end(self, now: float) -> None:
        """The connection has ended, if there was one."""
        if self._connected_at is not None and not self._returned:
            self._short = self._short + 1 if now - self._connected_at < SHORT_S else 0
            self.given_up = self.given_up or self._short >= SHORT_MAX
        self._connected_at = None

    def subscribed(self, now: float) -> None:
        """The subscriptions stand: the first canary is due."""
        self._heard_at = now - self._interval_s
        self._sent_at = None

    def returned(self, now: float) -> None:
        """The canary came back."""
        self._returned = True
        self.heard(now)

    def heard(self, now: float) -> None:
        """A message came."""
        self.arrivals += 1
        self._heard_at = now
        self._sent_at = None
        self._asked_again = False

    def pause(self) -> None:
        """Messages are not read for a while, so that silence means nothing."""
        self._sent_at = None

    def verdict(self, now: float) -> Verdict:
        """What to do now: wait; send a canary; subscribe again, as the broker seems to have lost the subscriptions;
        end the connection, which is deaf; or say that canaries are given up."""
        if self._heard_at is None or not self.used:
            return "wait"
        if self._sent_at is None:
            if now - self._heard_at < self._interval_s:
                return "wait"
            self._sent_at = now
            return "send"
        if now - self._sent_at < ANSWER_S:
            return "wait"
        if self._asked_again:
            self.given_up = not self._returned
            return "deaf" if self._returned else "given up"
        self._asked_again = True
        self._heard_at = None  # until the subscriptions stand again
        return "subscribe"


class ConnectionListener(Protocol):
    """Is called with the events of a connection, on the thread of the loop."""

    def on_connected(self, connection: BrokerConnection, session_present: bool) -> None: ...

    def on_subscribed(self, connection: BrokerConnection, filters: Sequence[str], refused: Sequence[str]) -> None:
        """The broker has answered a subscription to these filters, and refuses some of them."""

    def on_message(self, connection: BrokerConnection, message: Publish) -> None: ...

    def on_drained(self, connection: BrokerConnection) -> None:
        """What the broker had queued for the session when it granted the subscriptions has come."""

    def on_canaries_given_up(self, connection: BrokerConnection) -> None:
        """The broker does not permit their topic."""


class EndedAtMessageError(UpstreamError):
    """The broker ended the connection soon after a message, the oldest one that it had not acknowledged."""


class BrokerConnection(PahoConnection):
    """number: identifies the connection; a packet identifier is valid on one connection only.

    It is one class because paho's callbacks, the reader of the socket and what waits for acknowledgements share the
    state of one client, and end together.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        filters: Sequence[str],
        listener: ConnectionListener,
        *,
        credentials: BrokerCredentials,
        canary: Canary,
        receive_max: int,
    ) -> None:
        """canary: of the session."""
        super().__init__(settings, credentials, client_id=settings.session, kept=True, receive_max=receive_max)
        self.number = next(_NUMBERS)
        self._listener = listener
        self._filters = filters
        self._asked: dict[int, Sequence[str]] = {}
        """Filters of the subscriptions that the broker has not answered, by packet identifier."""
        self._canary = canary
        self._behind = _BEHIND + secrets.token_hex(8).encode()  # the session may still have that of a former connection
        self._behind_left = 0
        self._behind_due: float | None = None
        """When the canary behind the queued messages is sent again; None: none is awaited."""
        self._own_topics = own_topics(settings.session)
        self._publishing = asyncio.Semaphore(PUBLISHES_MAX)
        self._published: dict[int, asyncio.Future[ReasonCode]] = {}
        """Messages that wait for their acknowledgement, by packet identifier, oldest first."""
        self._oldest_at_end: int | None = None
        """The first of them when the connection ended."""
        if not canary.given_up:  # the broker may end connections for messages on our own topics
            self.client.will_set(f"{self._own_topics}status", "offline", qos=1, retain=True)
        self.client.on_subscribe = self._on_subscribe
        self.client.on_publish = self._on_publish

    def examine(self, now: float) -> End | None:
        if self._behind_due is not None and now >= self._behind_due:
            self._send_behind(now)
        verdict = self._canary.verdict(now)
        if verdict == "send":
            self.client.publish(f"{self._own_topics}canary", b"", qos=0)
        elif verdict == "subscribe":
            self.subscribe()
        elif verdict == "deaf":
            return End("deaf", f"the broker does not send {self._own_topics}canary")
        elif verdict == "given up":
            self._behind_left = 0  # nor will these come
            self._listener.on_canaries_given_up(self)
        return None

    def send(self, topic: str, text: str) -> None:
        """Sends a message that may get lost."""
        self.client.publish(topic, text, qos=0)

    def subscribe(self) -> None:
        """Subscribes to all filters, and to the canary.

        At QoS 1. With QoS 2 paho answers PUBREC before the commit, and a crash then loses the message.
        """
        own = [f"{self._own_topics}canary"] if self._canary.used else []
        self._subscribe(self._filters, own)

    def change_filters(self, filters: Sequence[str], *, new: Sequence[str], gone: Sequence[str]) -> None:
        """Other filters from now on. new, gone: the change, sent if the broker has accepted the connection."""
        self._filters = filters
        if self.alive and new:
            self._subscribe(new, [])
        if self.alive and gone:
            self.unsubscribe(gone)

    def _subscribe(self, filters: Sequence[str], own: Sequence[str]) -> None:
        topics = [*map(self._shared, filters), *own]
        if not topics:
            self._listener.on_subscribed(self, [], [])
            return
        if self.mqtt5:  # `retained` reads them
            options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
            _, mid = self.client.subscribe([(one, options) for one in topics])
        else:
            _, mid = self.client.subscribe([(one, 1) for one in topics])
        if mid is not None:  # else the connection is gone
            self._asked[mid] = filters

    @property
    def subscribing(self) -> bool:
        """Whether the broker has not answered all subscriptions yet."""
        return bool(self._asked)

    def listen(self) -> None:
        """The subscriptions stand: from now on silence is suspicious. `ConnectionListener.on_drained` follows."""
        now = self.loop.time()
        self._canary.subscribed(now)
        self._behind_left = BEHIND_MAX if self._canary.used else 0
        self._send_behind(now)

    def _send_behind(self, now: float) -> None:
        if not self._behind_left:
            self._behind_due = None
            self._listener.on_drained(self)
            return
        self._behind_left -= 1
        self._behind_due = now + BEHIND_S
        # At QoS 1, as the messages in front of it.
        self.client.publish(f"{self._own_topics}canary", self._behind, qos=1)

    def unsubscribe(self, filters: Sequence[str]) -> None:
        self.client.unsubscribe([self._shared(one) for one in filters])

    def _shared(self, topic_filter: str) -> str:
        group = self.settings.shared
        return f"$share/{group}/{topic_filter}" if group else topic_filter

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Returns once the broker has acknowledged the message; at QoS 0 once it is given to the socket.

        Waits while PUBLISHES_MAX messages are not acknowledged. Raises RefusedByDevice if the broker refuses the
        message, which MQTT 5 only can say; EndedAtMessageError; and UpstreamError if the connection ends otherwise, or
        the broker takes too long. It may have the message nevertheless.
        """
        async with self._publishing:
            if not self.alive:
                raise UpstreamError("the broker is not connected")
            sent = self.client.publish(topic, payload, qos=qos, retain=retain)
            if sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise UpstreamError(f"the message was not sent: {mqtt.error_string(sent.rc)}")
            if qos == 0:
                return
            acknowledged = self._published[sent.mid] = self.loop.create_future()
            sent_at = self.loop.time()
            try:
                await asyncio.wait(
                    [acknowledged, self._ended], timeout=ACKNOWLEDGEMENT_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                if self._ended.done() and self._oldest_at_end is None:
                    waiting = (mid for mid, answer in self._published.items() if not answer.done())
                    self._oldest_at_end = next(waiting, 0)
                del self._published[sent.mid]
            if not acknowledged.done():
                if self._oldest_at_end == sent.mid and self.loop.time() - sent_at < ENDED_AT_S:
                    raise EndedAtMessageError(f"the broker ended the connection: {self._end_reason()}")
                raise UpstreamError("the connection ended" if self._ended.done() else "no acknowledgement")
            code = acknowledged.result()
            if code.is_failure:
                raise RefusedByDevice(f"the broker refuses the message: {code}{self._cure(code)}")

    def _end_reason(self) -> str:
        return "it failed" if self._ended.exception() else self._ended.result().reason

    def _cure(self, code: ReasonCode) -> str:
        if code.value != NOT_AUTHORIZED:
            return ""
        user = f"the user {self.settings.username}" if self.settings.username else "clients without a user"
        return f"; permit {user} to write this topic, in the broker's access control list"

    def pause(self) -> None:
        self._canary.pause()
        super().pause()

    def close(self) -> None:
        permitted = not self._canary.given_up
        if permitted and self.alive and self.client.socket() is not None:  # DISCONNECT takes the will back
            self.client.publish(f"{self._own_topics}status", "offline", qos=0, retain=True)
        super().close()

    def on_accepted(self, session_present: bool) -> None:
        self._canary.connected(self.loop.time())
        if not self._canary.given_up:
            self.client.publish(f"{self._own_topics}status", "online", qos=0, retain=True)
        self._listener.on_connected(self, session_present)

    def on_message(self, message: Publish) -> None:
        own = message.topic.startswith(self._own_topics) and not message.topic.endswith("/set")
        if own:  # other topics than the canary's only where a rule covers all topics
            self._canary.returned(self.loop.time())
            self.client.ack(message.mid, message.qos)
            if message.payload == self._behind and self._behind_due is not None:
                self._behind_due = None
                self._listener.on_drained(self)
        else:
            self._canary.heard(self.loop.time())
            self._listener.on_message(self, message)

    def _on_publish(
        self, _client: mqtt.Client, _userdata: Any, mid: int, code: ReasonCode, _more: Properties | None
    ) -> None:
        waiting = self._published.get(mid)
        if waiting is not None and not waiting.done():
            waiting.set_result(code)

    def _on_subscribe(
        self, _client: mqtt.Client, _userdata: Any, mid: int, codes: list[ReasonCode], _more: Properties | None
    ) -> None:
        # The last code is that of the canary, if there is one.
        asked = self._asked.pop(mid, ())
        refused = [one for one, code in zip(asked, codes, strict=False) if code.is_failure]
        self._listener.on_subscribed(self, asked, refused)
