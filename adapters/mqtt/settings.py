"""The `[mqtt]` table of lamplighter.toml."""

from __future__ import annotations

import socket
from typing import Annotated

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class MqttSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which broker is read, and how much is held at once. What is subscribed follows from the mapping rules.

    host: name or address of the broker; empty means that none is configured and the adapter is not started.
    client_id: names the session that the broker keeps for us while we are away (its queue of readings), so it
        stays the same from one start to the next and differs between gateways on one broker. Empty: made of the
        name of the machine.
    password_file: holds the password on its first line; read at start. Only with username.
    tls, ca_file: encrypt; the broker's certificate is checked against ca_file, or the system's authorities if empty.
    keepalive_s: after 1.5 times this long without a sign of life each side takes the other for gone.
    batch_max: messages whose updates go to the gateway as one batch.
    queue_max: messages that wait for the gateway. Beyond it the socket is not read, and the broker's queue fills
        instead (mosquitto: `max_queued_messages`).
    streams_max: streams that one run takes on; further ones are refused. Each lives in the gateway's store for good.
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

    @property
    def session(self) -> str:
        """The client id to connect with."""
        return self.client_id or f"lamplighter-{socket.gethostname()}"
