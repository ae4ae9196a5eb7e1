"""The `[mqtt]` table of lamplighter.toml."""

from __future__ import annotations

import socket
from typing import Annotated, Literal

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class MqttSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The broker, and how many messages are held at once. The mapping rules determine the subscriptions.

    host: name or address of the broker. Empty: the adapter is not started.
    client_id: names the session that the broker keeps while the adapter is away, with its queue of readings. It must be
        stable across restarts and unique among the gateways of a broker. Empty: derived from the host name.
    password_file: file with the password on its first line; read at the start. Used with username only.
    tls, ca_file: encryption. The broker's certificate is checked against ca_file, or against the authorities of the
        system if ca_file is empty.
    keepalive_s: each side gives up the other after 1.5 times this long without a packet.
    batch_max: messages whose updates go to the gateway as one batch.
    queue_max: messages that wait for the gateway. With a full queue the socket is not read, and the broker queues
        instead (mosquitto: `max_queued_messages`).
    streams_max: streams in one run; further ones are refused. Each stays in the gateway's store.
    model: "latest", one live observation per stream; "event", each reading an observation in a named graph of its own.
    events_kept: readings of a stream that stay in the dataset with model "event"; the change log has all.
    """

    host: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1883
    client_id: str = ""
    username: str = ""
    password_file: str = ""
    tls: bool = False
    ca_file: str = ""
    keepalive_s: Annotated[int, msgspec.Meta(ge=5, le=65535)] = 60
    batch_max: PositiveInt = 256
    queue_max: PositiveInt = 1024
    streams_max: PositiveInt = 10_000
    model: Literal["latest", "event"] = "latest"
    events_kept: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10

    @property
    def session(self) -> str:
        """The client id to connect with."""
        return self.client_id or f"lamplighter-{socket.gethostname()}"
