"""Notifications as MQTT messages. A notification counts as accepted when the broker has acknowledged it."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.sinks.base import SinkThreads, UndeliveredError, secret
from lamplighter.cloud_sync.fleet.subscriptions.records import MqttSink
from lamplighter.engine.errors import ConfigurationError, UpstreamError

CONNECT_S = 10.0
# How long the broker may take for the messages of a chunk.
ACKNOWLEDGED_S = 30.0
KEEPALIVE_S = 60
_MISC_S = 2.0
# Characters of names that stand for themselves in a topic, besides letters and digits.
_PLAIN = " !\"$&'()*,-.:;<=>?@[]^_`{|}~"


class BrokerLink:
    """One connection to a broker, shared by the sinks with its settings, without a thread of its own.

    A connection that breaks stays broken; the next delivery makes another one. Then the messages without an
    acknowledgement are delivered again by their sinks.
    """

    def __init__(self, sink: MqttSink, threads: SinkThreads) -> None:
        self._sink = sink
        self._threads = threads
        self._opening = asyncio.Lock()
        self._client: mqtt.Client | None = None
        self._accepted: asyncio.Future[None] | None = None
        self._published: dict[int, asyncio.Future[Any]] = {}
        self._misc: asyncio.Task[None] | None = None

    async def publish(self, topic: str, payload: bytes, qos: int) -> asyncio.Future[Any]:
        """Sends a message. The result is done when it is acknowledged. Raises UpstreamError."""
        async with self._opening:
            if self._client is None:
                await self._open()
        client = self._client
        if client is None:
            raise UpstreamError(f"{self._place}: the broker closed the connection")
        sent = client.publish(topic, payload, qos)
        if sent.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_QUEUE_SIZE):
            self.drop("the broker closed the connection")
            raise UpstreamError(f"{self._place}: {mqtt.error_string(sent.rc)}")
        future = asyncio.get_running_loop().create_future()
        # At QoS 0 the message may be written already.
        if sent.is_published():
            future.set_result(None)
        else:
            self._published[sent.mid] = future
        return future

    def drop(self, reason: str) -> None:
        """Gives the connection up. Messages without an acknowledgement fail."""
        client, self._client = self._client, None
        if self._misc is not None:
            self._misc.cancel()
            self._misc = None
        if client is not None:
            with suppress(OSError, ValueError):
                client.disconnect()
                client.loop_write()
            self._close(client)
        error = UpstreamError(f"{self._place}: {reason}")
        for future in (self._accepted, *self._published.values()):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting any more
        self._published.clear()

    @property
    def _place(self) -> str:
        return f"broker {self._sink.broker}:{self._sink.port}"

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"lamplighter-fleet-{secrets.token_hex(6)}",
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_S
        client.disable_logger()
        self._authenticate(client)
        try:
            await self._threads.call(client.connect, self._sink.broker, self._sink.port, KEEPALIVE_S)
        except (OSError, ValueError) as error:
            raise UpstreamError(f"{self._place}: {error}; check its name, and that it is running") from error
        sock: Any = client.socket()
        if sock is None:
            raise UpstreamError(f"{self._place}: the broker closed the connection")
        self._client, self._accepted = client, loop.create_future()
        client.on_connect = self._on_connect
        client.on_publish = self._on_publish
        client.on_disconnect = lambda *_: self._drop_soon(client, "the broker closed the connection")
        client.on_socket_close = lambda _client, _userdata, closing: self._forget(closing)
        client.on_socket_register_write = lambda _client, _userdata, full: loop.add_writer(full, client.loop_write)
        client.on_socket_unregister_write = self._on_unregister_write
        loop.add_reader(sock, self._read_socket, client, sock)
        if client.want_write():
            client.loop_write()
        self._misc = asyncio.ensure_future(self._keep_alive(client))
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.shield(self._accepted)
        except TimeoutError as error:
            self.drop("the broker does not answer")
            raise UpstreamError(f"{self._place}: the broker does not answer") from error

    def _authenticate(self, client: mqtt.Client) -> None:
        """Raises ConfigurationError."""
        sink = self._sink
        if sink.username:
            what = f"password_file of sink {sink.name}"
            password = secret(sink.password_file, what).partition("\n")[0] if sink.password_file else None
            client.username_pw_set(sink.username, password)
        if sink.tls:
            try:
                context = ssl.create_default_context(cafile=sink.ca_file or None)
                if sink.certificate_file:
                    context.load_cert_chain(sink.certificate_file, sink.key_file or None)
            except OSError as error:
                raise ConfigurationError(
                    f"sink {sink.name}: {error}; correct ca_file, certificate_file and key_file, files in PEM"
                ) from error
            client.tls_set_context(context)

    async def _keep_alive(self, client: mqtt.Client) -> None:
        while True:
            await asyncio.sleep(_MISC_S)
            client.loop_misc()

    def _on_connect(self, client: mqtt.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._drop_soon(client, f"the broker refuses the connection: {reason}; check user name and password")
        elif self._accepted is not None and not self._accepted.done():
            self._accepted.set_result(None)

    def _on_publish(self, _client: mqtt.Client, _data: Any, mid: int, reason: Any, _properties: Any) -> None:
        future = self._published.pop(mid, None)
        if future is None or future.done():
            return
        if reason is not None and reason.is_failure:
            future.set_exception(UpstreamError(f"{self._place}: the broker refuses the message: {reason}"))
        else:
            future.set_result(None)

    def _on_unregister_write(self, _client: mqtt.Client, _data: Any, empty: Any) -> None:
        asyncio.get_running_loop().remove_writer(empty)

    def _read_socket(self, client: mqtt.Client, sock: Any) -> None:
        client.loop_read()
        # The selector does not see what is decrypted already.
        while client.socket() is sock and isinstance(sock, ssl.SSLSocket) and sock.pending():
            client.loop_read()

    def _drop_soon(self, client: mqtt.Client, reason: str) -> None:
        """Drops a connection from a callback, in which paho holds a lock."""

        def drop() -> None:
            if client is self._client:
                self.drop(reason)

        asyncio.get_running_loop().call_soon(drop)

    def _forget(self, sock: Any) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.remove_writer(sock)

    def _close(self, client: mqtt.Client) -> None:
        sock: Any = client.socket()
        if sock is not None:
            self._forget(sock)
            sock.close()


class BrokerLinks:
    """The connections to brokers, one for all sinks with the same settings."""

    def __init__(self, threads: SinkThreads) -> None:
        self._threads = threads
        self._links: dict[MqttSink, tuple[BrokerLink, int]] = {}

    def take(self, sink: MqttSink) -> BrokerLink:
        key = _settings(sink)
        link, users = self._links.get(key) or (BrokerLink(sink, self._threads), 0)
        self._links[key] = link, users + 1
        return link

    def give_back(self, sink: MqttSink) -> None:
        """The last one that gives a connection back closes it."""
        key = _settings(sink)
        link, users = self._links.pop(key)
        if users > 1:
            self._links[key] = link, users - 1
        else:
            link.drop("the delivery has ended")


def _settings(sink: MqttSink) -> MqttSink:
    """What sinks on one connection have in common."""
    return msgspec.structs.replace(sink, name="mqtt", topic="any", qos=1)


class MqttNotifications:
    """Publishes each notification to the topic of its sink, in order."""

    bounds = ChunkBounds(64, 500_000)
    blocking = False

    def __init__(self, sink: MqttSink, links: BrokerLinks) -> None:
        self._sink = sink
        self._links = links
        self._link: BrokerLink | None = links.take(sink)

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        assert self._link
        accepted = 0
        try:
            async with asyncio.timeout(ACKNOWLEDGED_S):
                sent = [
                    await self._link.publish(topic(self._sink.topic, notification), notification.body, self._sink.qos)
                    for notification in notifications
                ]
                for future in sent:
                    await future
                    accepted += 1
        except TimeoutError as error:
            reason = "the broker does not acknowledge"
            self._link.drop(reason)
            raise UndeliveredError(f"broker {self._sink.broker}: {reason}", accepted=accepted) from error
        except UpstreamError as error:
            raise UndeliveredError(str(error), accepted=accepted) from error

    async def close(self) -> None:
        if self._link is not None:
            self._link = None
            self._links.give_back(self._sink)


def topic(template: str, notification: MatchNotification) -> str:
    """The topic with ``{gateway}`` and ``{subscription}`` replaced. Other braces stay.

    Characters of a name that mean something in topics are percent-encoded.
    """
    match = notification.match
    return template.replace("{subscription}", match.subscription).replace("{gateway}", quote(match.gw, safe=_PLAIN))
