"""The `[mqtt]` table of lamplighter.toml."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec

from lamplighter.engine.client.places import File, Host, Port, Secret, UserName

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]

DiscoveryFormat = Literal[
    "homeassistant", "zigbee2mqtt", "tasmota", "shelly", "sparkplug", "homie", "homie5", "chirpstack", "thethings",
    "rtl433", "theengs", "wled", "opendtu", "ahoydtu", "evcc", "victron",
]  # fmt: skip

FIRST_BROKER = "default"
"""The name of the broker that `[mqtt]` itself describes."""
_BROKER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
COMMANDS = (
    *("+/set", "+/+/set", "+/+/+/set", "+/+/+/+/set"),
    *("+/+/+/command", "+/+/+/+/command", "+/+/+/+/command/pos"),
    *(
        f"cmnd/+/{name}"
        for name in (
            *("POWER", *(f"POWER{number}" for number in range(1, 9)), "Dimmer", "CT", "HSBColor"),
            *(f"ShutterPosition{number}" for number in range(1, 5)),
        )
    ),
)
"""Zigbee2MQTT, ESPHome, Shelly (first generation) and Tasmota, without the topics that manage devices or bridges."""
OFFLINE_INTERVALS_MIN = 2.0
_FILTER = re.compile(r"(?!\$)(?:(?:\+|[^+#/\x00]*)/)*(?:\+|#|[^+#/\x00]+)")
_PREFIX = re.compile(r"(?!\$)[^+#/\x00]+(?:/[^+#/\x00]+)*")
_SHARED_GROUP = re.compile(r"[^/+#\x00]{1,64}")


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to reach one broker. The mapping rules determine the subscriptions.

    host: name or address. Empty: no broker.
    protocol: "5" costs twice the processor time for each message. It has user properties, and most brokers drop no
        message of a burst.
    client_id: names the session that the broker keeps while the adapter is away, with its queue of readings. It must be
        stable across restarts and unique among the gateways of a broker. Empty: derived from the host name.
    session_s: how long an MQTT 5 broker keeps that session. A 3.1.1 broker decides by itself.
    shared: name of a group of adapters that share the messages of the broker (`$share/NAME/...`). Empty: this adapter
        gets all. The readings of a sensor may then come out of order.
    password_file: file with the password on its first line; read at the start. Used with username only.
    tls, ca_file: encryption. The broker's certificate is checked against ca_file, or against the authorities of the
        system if ca_file is empty.
    certificate_file, key_file: the adapter's own certificate in PEM, for brokers that ask for one. The key may be in
        certificate_file.
    keepalive_s: each side gives up the other after 1.5 times this long without a packet.
    announce: announces actuators and observations in the format of Home Assistant's MQTT discovery, and takes commands.
        Every client that may publish at the broker can switch them.
    canary_s: after this long without a message the adapter sends itself one. If it does not come back, the adapter
        subscribes and connects again. 0: never.
    unread_s: how often the adapter listens to all topics (`#`) for 20 s, to find those that no rule reads. 0: never.
    """

    host: Host = ""
    port: Port = 1883
    protocol: Literal["3.1.1", "5"] = "3.1.1"
    client_id: str = ""
    session_s: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_294)] = 86_400
    shared: str = ""
    username: UserName = ""
    password_file: Secret = ""
    tls: bool = False
    ca_file: File = ""
    certificate_file: File = ""
    key_file: File = ""
    keepalive_s: Annotated[int, msgspec.Meta(ge=5, le=65535)] = 60
    canary_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 30
    unread_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 600
    announce: bool = False

    def __post_init__(self) -> None:
        if self.shared and not _SHARED_GROUP.fullmatch(self.shared):
            raise ValueError("shared: write a name of at most 64 characters without '/', '+' and '#'")
        if self.key_file and not self.certificate_file:
            raise ValueError("key_file needs certificate_file")
        if self.certificate_file and not self.tls:
            raise ValueError("certificate_file needs tls = true")

    @property
    def session(self) -> str:
        """The client id to connect with."""
        return self.client_id or f"lamplighter-{socket.gethostname()}"


class MqttSettings(BrokerSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The brokers, and how many messages are held at once.

    The table itself describes the first broker; its name is "default". brokers: further ones by name, in tables
    `[mqtt.brokers.NAME]`.
    batch_max: messages whose updates go to the gateway as one batch.
    queue_max: messages of one broker that wait for the gateway. With a full queue the socket is not read, and the
        broker queues instead (mosquitto: `max_queued_messages`).
    commands: topic filters. Rules in the dataset may publish to topics that one of them covers. Clients that may write
        the graph choose these topics, so this list is the limit. A list in lamplighter.toml adds to the default; an
        empty one permits none. An adopted device has its own topics besides. Rules of mapping/*.toml may publish to all
        topics but those that begin with ``$``.
    publish: topic filters. `[[publish]]` rules in the dataset may publish to topics that one of them covers. Such a
        rule reads all graphs, so the default is none. Rules of mapping/*.toml may publish to all topics, as above.
    streams_max: streams in one run; further ones are refused. Each stays in the gateway's store.
    model: "latest", one live observation per stream; "event", each reading an observation in a named graph of its own.
    events_kept: readings of a stream that stay in the dataset with model "event"; the change log has all.
    discovery: formats of announcements that are read at every broker; empty: none.
    discovery_prefix: what the topics of Home Assistant's format begin with. `announce` uses the first one.
    adopt: "ask", people decide about devices that announce themselves; "all", each is adopted at once.
    devices_max: devices that announce themselves; further ones are not read.
    offline_intervals: a device that reports regularly is offline after so many of its learned intervals without a
        report. 0: never. Availability topics take precedence.
    """

    brokers: dict[str, BrokerSettings] = {}
    batch_max: PositiveInt = 256
    queue_max: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1024
    streams_max: PositiveInt = 10_000
    commands: tuple[str, ...] = COMMANDS
    publish: tuple[str, ...] = ()
    model: Literal["latest", "event"] = "latest"
    events_kept: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10
    discovery: tuple[DiscoveryFormat, ...] = get_args(DiscoveryFormat)
    discovery_prefix: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10)] = ("homeassistant",)
    adopt: Literal["ask", "all"] = "ask"
    devices_max: Annotated[int, msgspec.Meta(ge=1, le=5_000)] = 500
    offline_intervals: Annotated[float, msgspec.Meta(ge=0, le=1_000)] = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.commands:
            commands = tuple(dict.fromkeys((*COMMANDS, *self.commands)))
            msgspec.structs.force_setattr(self, "commands", commands)
        if 0 < self.offline_intervals < OFFLINE_INTERVALS_MIN:
            raise ValueError(
                f"offline_intervals: write at least {OFFLINE_INTERVALS_MIN:g}, since reports come late; 0 turns it off"
            )
        for key, one in [("commands", one) for one in self.commands] + [("publish", one) for one in self.publish]:
            if not _FILTER.fullmatch(one):
                raise ValueError(
                    f"{key}: {one!r} is no topic filter; write levels with / between them, + for any level, and # "
                    "as the last one for the rest"
                )
        for prefix in self.discovery_prefix:
            if not _PREFIX.fullmatch(prefix):
                raise ValueError(
                    f"discovery_prefix: {prefix!r} is no beginning of a topic; write levels with / between them, "
                    "without + and #"
                )
        if self.brokers and not self.host:
            raise ValueError("brokers: further brokers need a first one; set host")
        for name, broker in self.brokers.items():
            if not _BROKER_NAME.fullmatch(name) or name == FIRST_BROKER:
                raise ValueError(
                    f"brokers: the name {name!r} is not possible; use small letters, digits, '-' and '_', "
                    f"and not {FIRST_BROKER!r}"
                )
            if not broker.host:
                raise ValueError(f"brokers.{name}: host is missing")
        sessions = [(broker.host, broker.port, broker.session) for broker in self.all_brokers().values()]
        if len(set(sessions)) < len(sessions):
            raise ValueError("two brokers have the same host, port and client_id; one session cannot have two adapters")

    def all_brokers(self) -> Mapping[str, BrokerSettings]:
        """Those with a host, by name."""
        own = {name: getattr(self, name) for name in BrokerSettings.__struct_fields__}
        return ({FIRST_BROKER: BrokerSettings(**own)} if self.host else {}) | self.brokers
