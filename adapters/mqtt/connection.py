"""One connection to a broker: a paho client of its own, driven by the asyncio loop instead of a thread.

MQTT 3.1.1 or 5, a session that the broker keeps, manual acknowledgement. A broken connection stays broken; the inbox
makes the next one.

The adapter has topics of its own below ``lamplighter/<client id>/``: ``status`` says "online" or "offline" (retained;
the broker says "offline" when the connection breaks), ``canary`` see `canary`. ``things/.../state`` and
``things/.../set`` are those of `announcer`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from lamplighter.adapters.mapping.patterns import own_topics
from lamplighter.adapters.mqtt.canary import Canary
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.errors import UpstreamError

CONNECT_TIMEOUT_S = 5.0
PACKET_BYTES_MAX = 5 * 1024 * 1024
"""Of a packet that an MQTT 5 broker sends; it drops longer messages. MQTT 3.1.1 has no such limit."""
PACKETS_PER_WAKEUP = 50
"""Packets that are handled before other tasks run."""
RECEIVED_BYTES = 64 * 1024
"""Bytes that are taken from the socket at once."""
PUBLISHES_MAX = 20
"""Messages that wait for the broker's acknowledgement; paho would queue further ones without a bound."""
ACKNOWLEDGEMENT_S = 30.0
"""How long the broker may take; a connection that is paused does not read its acknowledgements."""
_CREDENTIALS = {"Bad user name or password", "Not authorized"}


class End(NamedTuple):
    """Why a connection ended or could not be made.

    kind: "away", the broker cannot be reached; "refused", one side rejected the other; "deaf", the broker sends
    nothing; "paused", closed by the adapter because the gateway takes no readings.
    """

    kind: Literal["away", "refused", "deaf", "paused"]
    reason: str


class _BufferedClient(mqtt.Client):
    """A paho client that reads many packets at once, and acknowledges many at once.

    paho reads a packet in three or four pieces, and writes each acknowledgement by itself. System calls would be half
    of the adapter's work. received: called with each message; paho would look for callbacks by its topic, under locks.
    """

    received: Callable[[mqtt.MQTTMessage], None]

    _received = b""
    _taken = 0

    @property
    def buffered(self) -> bool:
        """Whether there are bytes that the selector does not see: read already, or decrypted."""
        sock: Any = self.socket()
        return self._taken < len(self._received) or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._taken >= len(self._received):
            self._received, self._taken = super()._sock_recv(RECEIVED_BYTES), 0
        start, self._taken = self._taken, self._taken + bufsize
        return self._received[start : self._taken]

    def _handle_on_message(self, message: mqtt.MQTTMessage) -> None:
        self.received(message)

    def acknowledge(self, mids: Sequence[int]) -> None:
        """Sends the PUBACKs of messages at QoS 1 (MQTT 3.1.1, 3.4; MQTT 5 has the same short form)."""
        packets = b"".join([_PUBACK + mid.to_bytes(2, "big") for mid in mids])
        sent = 0
        if not self.want_write():
            # At once: paho would ask the loop when the socket takes data, and write in its next turn.
            with suppress(OSError):  # it takes none now, or the connection is broken, which paho reports
                sent = self._sock_send(packets)
                self._last_msg_out = time.monotonic()
        if sent < len(packets):
            self._packet_queue(_PUBACK[0], packets[sent:], mids[-1], 1)


_PUBACK = b"\x40\x02"


class ConnectionListener(Protocol):
    """Is called with the events of a connection, on the thread of the loop."""

    def on_connected(self, connection: BrokerConnection, session_present: bool) -> None: ...

    def on_subscribed(self, connection: BrokerConnection, refused: Sequence[str]) -> None: ...

    def on_message(self, connection: BrokerConnection, message: mqtt.MQTTMessage) -> None: ...


class BrokerConnection:
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
        number: int,
        password: str,
        tls: ssl.SSLContext | None,
        canary: Canary,
        receive_max: int,
    ) -> None:
        """canary: of the session; receive_max: messages that an MQTT 5 broker sends ahead of their acknowledgement."""
        self.number = number
        self._settings = settings
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[End] = self._loop.create_future()
        self._accepted = False
        self._paused_at: float | None = None
        self._filters = filters
        self._asked: dict[int, Sequence[str]] = {}
        """Filters of the subscriptions that the broker has not answered, by packet identifier."""
        self._canary = canary
        self._own_topics = own_topics(settings.session)
        self._receive_max = receive_max
        self._publishing = asyncio.Semaphore(PUBLISHES_MAX)
        self._published: dict[int, asyncio.Future[ReasonCode]] = {}
        """Messages that wait for their acknowledgement, by packet identifier."""
        self._mqtt5 = settings.protocol == "5"
        self._client = _BufferedClient(
            CallbackAPIVersion.VERSION2,
            client_id=settings.session,
            clean_session=None if self._mqtt5 else False,
            protocol=mqtt.MQTTv5 if self._mqtt5 else mqtt.MQTTv311,
            manual_ack=True,
            reconnect_on_failure=False,  # else paho falls back to MQTT 3.1 in a blocking call
        )
        self._client.will_set(f"{self._own_topics}status", "offline", qos=1, retain=True)
        self._client.connect_timeout = CONNECT_TIMEOUT_S
        self._client.disable_logger()  # it logs as errors what the callbacks report
        if settings.username:
            self._client.username_pw_set(settings.username, password or None)
        if tls is not None:
            self._client.tls_set_context(tls)

    async def open(self) -> None:
        """Resolves, connects and sends CONNECT, in a thread since paho blocks; then reads on the loop.

        Raises OSError, or ValueError for a name that cannot be one.
        """
        client = self._client
        connecting = self._loop.run_in_executor(None, self._connect)
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            await asyncio.wait([connecting])  # a thread cannot be cancelled; this one has a time-out
            connecting.exception()  # otherwise asyncio logs an exception that was never retrieved
            raise
        finally:
            del connecting  # its exception has a traceback that keeps this frame and paho's socket alive
        sock: Any = client.socket()
        if sock is None:
            raise ConnectionError("the broker closed the connection at once")
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.received = self._on_message
        client.on_publish = self._on_publish
        client.on_socket_close = lambda _client, _userdata, closing: self._forget(closing)
        client.on_socket_register_write = lambda _client, _userdata, full: self._loop.add_writer(
            full, client.loop_write
        )
        client.on_socket_unregister_write = self._on_unregister_write
        self._loop.add_reader(sock, self._read)
        if client.want_write():
            client.loop_write()

    def _connect(self) -> None:
        settings = self._settings
        if not self._mqtt5:
            self._client.connect(settings.host, settings.port, settings.keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = settings.session_s
        properties.ReceiveMaximum = self._receive_max
        properties.MaximumPacketSize = PACKET_BYTES_MAX
        self._client.connect(
            settings.host, settings.port, settings.keepalive_s, clean_start=False, properties=properties
        )

    async def ended(self) -> End:
        """Keeps the connection alive and returns when it has ended."""
        opened = self._loop.time()
        while True:
            await asyncio.wait([self._ended], timeout=1.0)
            if self._ended.done():
                return self._ended.result()
            now = self._loop.time()
            if not self._accepted and now - opened >= CONNECT_TIMEOUT_S:
                return End("away", "no answer to CONNECT")
            if self._paused_at is not None and now - self._paused_at >= self._settings.keepalive_s / 2:
                # The answers to pings lie unread behind messages, so the connection would be lost anyway.
                return End("paused", "the gateway does not take readings, the broker keeps them meanwhile")
            if self._paused_at is None and (end := self._listen(now)) is not None:
                return end
            self._client.loop_misc()

    def _listen(self, now: float) -> End | None:
        verdict = self._canary.verdict(now)
        if verdict == "send":
            self._client.publish(f"{self._own_topics}canary", b"", qos=0)
        elif verdict == "subscribe":
            self.subscribe()
        elif verdict == "deaf":
            return End("deaf", f"the broker does not send {self._own_topics}canary; it may lack the permission")
        return None

    def send(self, topic: str, text: str) -> None:
        """Sends a message that may get lost."""
        self._client.publish(topic, text, qos=0)

    @property
    def alive(self) -> bool:
        return self._accepted and not self._ended.done()

    def subscribe(self) -> None:
        """Subscribes to all filters, and to the canary.

        At QoS 1. With QoS 2 paho answers PUBREC before the commit, and a crash then loses the message.
        """
        own = [f"{self._own_topics}canary"] if self._settings.canary_s else []
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
            self._listener.on_subscribed(self, [])
            return
        if self._mqtt5:
            # A session that still has the filter does not get its retained messages again.
            options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
            _, mid = self._client.subscribe([(one, options) for one in topics])
        else:
            _, mid = self._client.subscribe([(one, 1) for one in topics])
        if mid is not None:  # else the connection is gone
            self._asked[mid] = filters

    @property
    def subscribing(self) -> bool:
        """Whether the broker has not answered all subscriptions yet."""
        return bool(self._asked)

    def listen(self) -> None:
        """The subscriptions stand: from now on silence is suspicious."""
        self._canary.subscribed(self._loop.time())

    def unsubscribe(self, filters: Sequence[str]) -> None:
        self._client.unsubscribe([self._shared(one) for one in filters])

    def _shared(self, topic_filter: str) -> str:
        group = self._settings.shared
        return f"$share/{group}/{topic_filter}" if group else topic_filter

    def acknowledge(self, mids: Sequence[int]) -> None:
        """Acknowledges messages at QoS 1, in this order."""
        if mids:
            self._client.acknowledge(mids)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        """Returns once the broker has acknowledged the message; at QoS 0 once it is given to the socket.

        Waits while PUBLISHES_MAX messages are not acknowledged. Raises UpstreamError if the connection ends before, or
        if the broker refuses the message or takes too long; it may have the message nevertheless.
        """
        async with self._publishing:
            if not self.alive:
                raise UpstreamError("the broker is not connected")
            sent = self._client.publish(topic, payload, qos=qos, retain=retain)
            if sent.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise UpstreamError(f"the message was not sent: {mqtt.error_string(sent.rc)}")
            if qos == 0:
                return
            acknowledged = self._published[sent.mid] = self._loop.create_future()
            try:
                await asyncio.wait(
                    [acknowledged, self._ended], timeout=ACKNOWLEDGEMENT_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                del self._published[sent.mid]
            if not acknowledged.done():
                raise UpstreamError("the connection ended" if self._ended.done() else "no acknowledgement")
            if acknowledged.result().is_failure:
                raise UpstreamError(f"the broker refused the message: {acknowledged.result()}")

    def pause(self) -> None:
        """Stops reading; messages stay in the socket, and behind it at the broker."""
        self._paused_at = self._loop.time()
        self._canary.pause()
        self._loop.remove_reader(self._client.socket())  # type: ignore[arg-type]

    def resume(self) -> None:
        sock: Any = self._client.socket()
        if self._paused_at is None or sock is None:
            return
        self._paused_at = None
        self._loop.add_reader(sock, self._read)
        self._loop.call_soon(self._read)  # what is buffered does not make the socket readable

    def close(self) -> None:
        """Sends what is queued and DISCONNECT, and closes the socket. May be called at any time and repeatedly."""
        if self._client.socket() is None:
            return
        if self.alive:  # DISCONNECT takes the will back
            self._client.publish(f"{self._own_topics}status", "offline", qos=0, retain=True)
        self._client.disconnect()
        self._client.loop_write()
        sock: Any = self._client.socket()
        if sock is not None:  # the broker does not read
            self._forget(sock)
            sock.close()

    def _forget(self, sock: Any) -> None:
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)

    def _on_unregister_write(self, _client: mqtt.Client, _userdata: Any, sock: Any) -> None:
        self._loop.remove_writer(sock)

    def _read(self) -> None:
        try:
            for _ in range(PACKETS_PER_WAKEUP):
                if self._paused_at is not None:
                    return
                if self._client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS or not self._client.buffered:
                    return
            self._loop.call_soon(self._read)  # what is buffered does not make the socket readable
        except Exception as error:  # a bug in a callback; `ended` raises it
            if self._ended.done():
                raise
            self._ended.set_exception(error)

    def _end(self, end: End) -> None:
        if not self._ended.done():
            self._ended.set_result(end)

    def _on_connect(
        self, _client: mqtt.Client, _userdata: Any, flags: mqtt.ConnectFlags, code: ReasonCode, _more: Properties | None
    ) -> None:
        if code.is_failure:
            cure = "; check username and password_file" if str(code) in _CREDENTIALS else ""
            self._end(End("refused", f"{code}{cure}"))
            return
        self._accepted = True
        self._canary.connected()
        self._client.publish(f"{self._own_topics}status", "online", qos=0, retain=True)
        self._listener.on_connected(self, flags.session_present)

    def _on_message(self, message: mqtt.MQTTMessage) -> None:
        try:
            topic = message.topic
            own = topic.startswith(self._own_topics) and not topic.endswith("/set")
        except UnicodeDecodeError:
            own = False
        if own:  # other topics than the canary's only where a rule covers all topics
            self._canary.returned(self._loop.time())
            self._client.ack(message.mid, message.qos)
        else:
            self._canary.heard(self._loop.time())
            self._listener.on_message(self, message)

    def _on_publish(
        self, _client: mqtt.Client, _userdata: Any, mid: int, code: ReasonCode, _more: Properties | None
    ) -> None:
        waiting = self._published.get(mid)
        if waiting is not None and not waiting.done():
            waiting.set_result(code)

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _userdata: Any,
        _flags: mqtt.DisconnectFlags,
        code: ReasonCode,
        _more: Properties | None,
    ) -> None:
        self._end(End("away", f"connection lost: {code}"))

    def _on_subscribe(
        self, _client: mqtt.Client, _userdata: Any, mid: int, codes: list[ReasonCode], _more: Properties | None
    ) -> None:
        # The last code is that of the canary, if there is one.
        asked = self._asked.pop(mid, ())
        refused = [one for one, code in zip(asked, codes, strict=False) if code.is_failure]
        self._listener.on_subscribed(self, refused)
