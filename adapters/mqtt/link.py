"""A paho client that the asyncio loop drives instead of a thread.

A broken connection stays broken; whoever uses it makes the next one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from lamplighter.adapters.mqtt.credentials import BrokerCredentials
from lamplighter.adapters.mqtt.settings import BrokerSettings

CONNECT_TIMEOUT_S = 5.0
CLOSING_S = 0.2
"""Wait for the broker to close its side; the loop waits, too."""
PACKET_BYTES_MAX = 5 * 1024 * 1024
"""Of a packet that an MQTT 5 broker sends; it drops longer messages. MQTT 3.1.1 has no such limit."""
PACKETS_PER_WAKEUP = 50
"""Packets that are handled before other tasks run."""
RECEIVED_BYTES = 64 * 1024
"""Bytes that are taken from the socket at once."""
_CREDENTIALS = {"Bad user name or password", "Not authorized"}


_PUBACK = b"\x40\x02"
_PUBLISH, _PUBLISH_MASK = 0x30, 0xF4
"""The first byte of a PUBLISH packet at QoS 0 or 1, and its bits that say so (MQTT 3.1.1, 3.3.1)."""


class End(NamedTuple):
    """Why a connection ended or could not be made.

    kind: "away", the broker cannot be reached; "refused", one side rejected the other; "deaf", the broker sends
    nothing; "paused", closed by the adapter because the gateway takes no readings.
    """

    kind: Literal["away", "refused", "deaf", "paused"]
    reason: str


class Publish(NamedTuple):
    """A message of the broker. topic: empty, which no rule covers, if it is no Unicode text; properties: of MQTT 5."""

    topic: str
    payload: bytes
    mid: int = 0
    qos: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties | None = None


def _publish(message: mqtt.MQTTMessage) -> Publish:
    """A message that paho has read."""
    topic = ""
    with suppress(UnicodeDecodeError):
        topic = message.topic
    payload = bytes(message.payload)
    return Publish(topic, payload, message.mid, message.qos, message.retain, message.dup, message.properties)


class _BufferedClient(mqtt.Client):
    """A paho client that reads many packets at once, and acknowledges many at once.

    paho reads a packet in three or four pieces, and writes each acknowledgement by itself. System calls would be half
    of the adapter's work. To read the usual packet and make a message of it takes paho three times as long.
    """

    _received = b""
    _taken = 0

    def next_publish(self) -> Publish | None:
        """The next packet, if it is a PUBLISH of MQTT 3.1.1 at QoS 0 or 1 that was received whole. paho reads others.

        To be called while paho has begun no packet, which it does only at the end of what was received.
        """
        if self._taken >= len(self._received):
            with suppress(OSError):  # paho meets it, too
                self._received, self._taken = self._receive(), 0
        data, start = self._received, self._taken
        size = len(data)
        if size - start < 2 or data[start] & _PUBLISH_MASK != _PUBLISH or self._in_packet["command"]:
            return None
        at, length, shift = start + 2, data[start + 1], 7
        if length > 127:
            length &= 127
            while at < size and shift <= 21:
                byte = data[at]
                at, length, shift = at + 1, length | (byte & 127) << shift, shift + 7
                if byte < 128:
                    break
            else:
                return None
        end = at + length
        if end > size or length < 3:
            return None
        begin = at + 2
        at = begin + (data[at] << 8 | data[at + 1])
        qos, topic = data[start] >> 1 & 1, data[begin:at]
        body = at + 2 * qos
        if body > end or not topic:  # malformed
            return None
        self._taken = end
        try:
            text = topic.decode()
        except UnicodeDecodeError:
            text = ""
        mid = data[at] << 8 | data[at + 1] if qos else 0
        return Publish(text, data[body:end], mid, qos, bool(data[start] & 1), bool(data[start] & 8))

    @property
    def buffered(self) -> bool:
        """Whether there are bytes that the selector does not see: read already, or decrypted."""
        sock: Any = self.socket()
        return self._taken < len(self._received) or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._taken >= len(self._received):
            self._received, self._taken = self._receive(), 0
        start, self._taken = self._taken, self._taken + bufsize
        return self._received[start : self._taken]

    def _receive(self) -> bytes:
        found = super()._sock_recv(RECEIVED_BYTES)
        if found:
            self._last_bytes_received = time.monotonic()  # else it would ask for an answer to a ping
        return found

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


def _read_to_end(held: socket.socket) -> None:
    """Reads until the broker has closed, too, for `CLOSING_S` at most."""
    # A socket that is closed with unread data resets its connection. A broker then discards what it has not read yet:
    # acknowledgements, so that it sends the messages again.
    end = time.monotonic() + CLOSING_S
    with suppress(OSError):
        held.settimeout(CLOSING_S)
        held.shutdown(socket.SHUT_WR)
        while held.recv(RECEIVED_BYTES) and time.monotonic() < end:
            pass


class PahoConnection(ABC):
    """One connection to a broker. A subclass takes its events: `on_accepted`, `on_message`, and paho's of `client`.

    client_id: names the session; kept: whether the broker keeps it for the next connection, `BrokerSettings.session_s`
    long. receive_max: messages that an MQTT 5 broker sends ahead of their acknowledgement.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        credentials: BrokerCredentials,
        *,
        client_id: str,
        kept: bool,
        receive_max: int,
    ) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.mqtt5 = settings.protocol == "5"
        self._ended: asyncio.Future[End] = self.loop.create_future()
        self._is_accepted = False
        self._paused_at: float | None = None
        self._kept, self._receive_max = kept, receive_max
        self.client = client = _BufferedClient(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if self.mqtt5 else not kept,
            protocol=mqtt.MQTTv5 if self.mqtt5 else mqtt.MQTTv311,
            manual_ack=True,
            reconnect_on_failure=False,  # else paho falls back to MQTT 3.1 in a blocking call
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.disable_logger()  # it logs as errors what the callbacks report
        if settings.username:
            client.username_pw_set(settings.username, credentials.password or None)
        if credentials.tls is not None:
            client.tls_set_context(credentials.tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        # paho would look for callbacks by the topic, under locks.
        client._handle_on_message = lambda message: self.on_message(_publish(message))  # type: ignore[method-assign]

    @abstractmethod
    def on_accepted(self, session_present: bool) -> None:
        """The broker has accepted the connection. session_present: it has a session of former connections."""

    @abstractmethod
    def on_message(self, message: Publish) -> None:
        """A message came."""

    async def open(self) -> None:
        """Resolves, connects and sends CONNECT, in a thread since paho blocks; then reads on the loop.

        Raises OSError, or ValueError for a name that cannot be one.
        """
        client = self.client
        connecting = self.loop.run_in_executor(None, self._connect)
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
        client.on_socket_close = lambda _client, _userdata, closing: self._forget(closing)
        client.on_socket_register_write = lambda _client, _userdata, full: self.loop.add_writer(full, client.loop_write)
        client.on_socket_unregister_write = self._on_unregister_write
        self.loop.add_reader(sock, self._read)
        if client.want_write():
            client.loop_write()

    def _connect(self) -> None:
        settings = self.settings
        if not self.mqtt5:
            self.client.connect(settings.host, settings.port, settings.keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = settings.session_s if self._kept else 0
        properties.ReceiveMaximum = self._receive_max
        properties.MaximumPacketSize = PACKET_BYTES_MAX
        self.client.connect(
            settings.host, settings.port, settings.keepalive_s, clean_start=not self._kept, properties=properties
        )

    async def ended(self) -> End:
        """Keeps the connection alive and returns when it has ended."""
        opened = self.loop.time()
        while True:
            await asyncio.wait([self._ended], timeout=1.0)
            if self._ended.done():
                return self._ended.result()
            now = self.loop.time()
            if not self._is_accepted and now - opened >= CONNECT_TIMEOUT_S:
                return End("away", "no answer to CONNECT")
            if self._paused_at is not None and now - self._paused_at >= self.settings.keepalive_s / 2:
                # The answers to pings lie unread behind messages, so the connection would be lost anyway.
                return End("paused", "the gateway does not take readings, the broker keeps them meanwhile")
            if self._paused_at is None and (end := self.examine(now)) is not None:
                return end
            self.client.loop_misc()

    def examine(self, now: float) -> End | None:
        """What ends a connection that is open and read, once a second."""
        return None

    @property
    def alive(self) -> bool:
        return self._is_accepted and not self._ended.done()

    def pause(self) -> None:
        """Stops reading; messages stay in the socket, and behind it at the broker."""
        self._paused_at = self.loop.time()
        self.loop.remove_reader(self.client.socket())  # type: ignore[arg-type]

    def resume(self) -> None:
        sock: Any = self.client.socket()
        if self._paused_at is None or sock is None:
            return
        self._paused_at = None
        self.loop.add_reader(sock, self._read)
        self.loop.call_soon(self._read)  # what is buffered does not make the socket readable

    def close(self) -> None:
        """Sends what is queued and DISCONNECT, and closes the socket. May be called at any time and repeatedly."""
        sock: Any = self.client.socket()
        if sock is None:
            return
        with socket.socket(fileno=os.dup(sock.fileno())) as held:
            self.client.disconnect()
            self.client.loop_write()
            sock = self.client.socket()
            if sock is not None:  # the broker does not read
                self._forget(sock)
                sock.close()
            _read_to_end(held)

    def _forget(self, sock: Any) -> None:
        self.loop.remove_reader(sock)
        self.loop.remove_writer(sock)

    def _on_unregister_write(self, _client: mqtt.Client, _userdata: Any, sock: Any) -> None:
        self.loop.remove_writer(sock)

    def _read(self) -> None:
        client = self.client
        try:
            for _ in range(PACKETS_PER_WAKEUP):
                if self._paused_at is not None:
                    return
                message = None if self.mqtt5 else client.next_publish()
                if message is not None:
                    self.on_message(message)
                elif client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                    return
                if not client.buffered:
                    return
            self.loop.call_soon(self._read)  # what is buffered does not make the socket readable
        except Exception as error:  # a bug in a callback; `ended` raises it
            if self._ended.done():
                raise
            self._ended.set_exception(error)

    def end(self, end: End) -> None:
        """Has `ended` return; the first end counts."""
        if not self._ended.done():
            self._ended.set_result(end)

    def _on_connect(
        self, _client: mqtt.Client, _userdata: Any, flags: mqtt.ConnectFlags, code: ReasonCode, _more: Properties | None
    ) -> None:
        if code.is_failure:
            cure = "; check username and password_file" if str(code) in _CREDENTIALS else ""
            self.end(End("refused", f"{code}{cure}"))
            return
        self._is_accepted = True
        self.on_accepted(flags.session_present)

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _userdata: Any,
        _flags: mqtt.DisconnectFlags,
        code: ReasonCode,
        _more: Properties | None,
    ) -> None:
        self.end(End("away", f"connection lost: {code}"))
