"""The rule tables: `[[stream]]` reads messages, `[[command]]` and `[[publish]]` write them.

A table with `topic` is for MQTT, one with `path` for CoAP, and one with `resource` for the adapter of the URI's scheme.
It has one meaning wherever it comes from: a
file in mapping/, a `gateway:Mapping` in the dataset (JSON), or a discovered device. `mapping/street.toml` explains each
key for MQTT with an example.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from lamplighter.adapters.mapping.registers import Order, RegisterType

PayloadKind = Literal["number", "boolean", "text", "senml", "sparkplug", "lwm2m"]
FormatName = Literal["text", "json", "cbor", "senml+json", "senml+cbor", "lwm2m+tlv", "lwm2m+json"]
FormatNumber = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
CONTENT_FORMATS: dict[str, int] = {
    "text": 0, "json": 50, "cbor": 60, "senml+json": 110, "senml+cbor": 112, "lwm2m+tlv": 11_542, "lwm2m+json": 11_543,
}  # fmt: skip
"""The numbers of the names."""
OCTETS = 42
"""The content format of bytes without a meaning."""
OnRepeat = Literal["refresh", "ignore", "event"]
Word = bool | int | float | str
Lifetime = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Role = Literal["switch", "part", "mode", "transition"]
ByHand = Literal["hold", "follow"]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class ReadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream.read]]` table: one value of a message. A key that is None is that of the `[[stream]]` table.

    property: IRI, prefixed name or template.
    payload: kind of the value, or a format with many values ("senml", "sparkplug", "lwm2m").
    member: path in a JSON or CBOR document; for formats with many values, the name of a record.
    column, separator: of a CSV line, by position from 0 or by the header of the payload.
    format, field: struct format of a binary payload, and position of a value in it.
    template: Jinja template with `value` and `value_json`, as in Home Assistant; its text is the value.
    pattern: regular expression; its group is the value.
    where: members of the JSON document that have these values; other messages do not have the value.
    on, off: words of a boolean. words: word -> literal or IRI, for enumerations.
    unit: UCUM code, IRI or prefixed name. scale, offset: the value is payload * scale + offset. digits: behind the
    point, to which that is rounded.
    no_value: texts that mean that there is no value; of a number, codes of failed measurements, such as "999".
    off_delay_s: a boolean is false so long after the last true. expire_after_s: the value ends so long after the last
    report. Both count from the arrival, in the model "latest".
    optional: a message without the value is no fault.
    on_repeat: "refresh" writes the new time, "ignore" writes nothing, "event" makes the value leave and enter again.
    dead_band: smaller changes of a number are dropped. throttle_s: at most one reading in so many seconds.
    time: "arrival", "record" (senml, sparkplug, lwm2m), "member PATH" or "property NAME" (MQTT 5 user property).
    time_zone: of times without one, such as "Europe/Rome" or "+02:00".
    sensor, feature, platform, observation: IRIs or paths under the base IRI, with captures. label: with captures.
    result: "simple", or "quantity" for a qudt:QuantityValue beside the simple result.
    """

    property: str | None = None
    payload: PayloadKind | None = None
    member: str | None = None
    column: int | str | None = None
    separator: str | None = None
    format: str | None = None
    field: Annotated[int, msgspec.Meta(ge=0)] | None = None
    template: str | None = None
    pattern: str | None = None
    where: dict[str, Word] | None = None
    on: list[str] | None = None
    off: list[str] | None = None
    words: dict[str, Word] | None = None
    unit: str | None = None
    scale: Decimal | None = None
    offset: Decimal | None = None
    no_value: list[str] | None = None
    off_delay_s: Lifetime | None = None
    expire_after_s: Lifetime | None = None
    digits: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    optional: bool | None = None
    on_repeat: OnRepeat | None = None
    dead_band: Decimal | None = None
    throttle_s: Seconds | None = None
    time: str | None = None
    time_zone: str | None = None
    sensor: str | None = None
    feature: str | None = None
    platform: str | None = None
    observation: str | None = None
    label: str | None = None
    result: Literal["simple", "quantity"] | None = None


class SourceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A further place of a value: its topic, without captures and wildcards, and the path in its JSON document."""

    topic: str
    member: str | None = None


class StreamTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how the messages of a topic become readings.

    topic: its levels; ``+`` and ``#`` match as in MQTT, ``{name}`` captures a level, ``{name:EXPRESSION}`` a level that
    a regular expression matches, ``{name#}`` the rest. broker: name of a broker; None: every broker.
    read: one item for each value; empty: the table itself describes the only value.
    also: further topics that have the value, such as that of a periodic state or of an answer.
    """

    topic: str
    broker: str | None = None
    read: list[ReadTable] = []
    also: list[SourceTable] = []


class ResourceReadTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How the gateway reads a resource of a device.

    observe: "auto": by Observe (RFC 7641), or by polling where it is not offered. poll_s: interval of polling. accept:
    content format that is asked for. max_age_s: seconds that a value is fresh, instead of the device's Max-Age. device:
    its name in the settings; None: by the address. observe and max_age_s are for CoAP.
    type, byte_order, word_order: of the values in the registers of a Modbus device, see `RegisterForm`.
    """

    observe: Literal["auto", "always", "never"] = "auto"
    poll_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    accept: FormatName | FormatNumber | None = None
    max_age_s: Annotated[float, msgspec.Meta(gt=0, le=2**32)] | None = None
    device: str | None = None
    type: RegisterType | None = None
    byte_order: Order | None = None
    word_order: Order | None = None


class ResourceTable(ResourceReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how a resource of a device becomes readings.

    resource: its URI, without captures: coap://, http://, https:// or modbus+tcp://. read: as in `StreamTable`.
    """

    resource: str
    read: list[ReadTable] = []


class ResourceStateTable(ResourceReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How the state is read that a device reports. resource: as in `ResourceCommandTable`; None: that of the
    command."""

    resource: str | None = None


class PathTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how what devices send to the gateway's CoAP server becomes readings.

    path: pattern with levels as in a topic of `StreamTable`. methods: those that are taken. devices: names of security
    contexts that may write; empty: every device that may use the server. read: as in `StreamTable`.
    """

    path: str
    methods: tuple[Literal["POST", "PUT"], ...] = ("POST", "PUT")
    devices: tuple[str, ...] = ()
    read: list[ReadTable] = []


class CommandBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What all `[[command]]` tables have.

    actuator: IRI, prefixed name or path under the base IRI; None, for rules in the dataset only: the actuator that has
    the rule as its gateway:command. values: state -> text that replaces it, such as "true" = "ON"; other states are
    refused. minimum, maximum: numbers outside are refused.
    reassert_s: seconds after which the state is sent again while the device does not report it; 0: never. None: see
    the tables.
    by_hand: what becomes of another state of a device that had the desired one: "hold" sends the desired state again,
    "follow" makes the report the desired state. None: "follow" for lights and plugs that were adopted over MQTT, else
    "hold". A gateway:byHand of the actuator precedes it.
    """

    actuator: str | None = None
    values: dict[str, str] = {}
    minimum: float | None = None
    maximum: float | None = None
    reassert_s: Seconds | None = None
    by_hand: ByHand | None = None


class LampPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What an actuator is of a lamp that takes several states in one command.

    of: the lamp; any text that its actuators share. role: "switch" turns it on and off; "part", such as brightness, is
    sent while it is on; of several "mode", such as colour and colour temperature, the newest counts; "transition" goes
    along and is never sent alone. order: of the messages, if the command is several. name: of the part in `on` and
    `unless`. unless: no message is sent if the command has the part of this name. on: the message for a lamp that is
    on, in pieces: each is the name of a part, without which it is left out, and a template with ``{name}``; an empty
    name is always there. None: the messages of the parts, those to one topic merged if they are JSON objects.
    """

    of: str
    role: Role = "part"
    order: int = 0
    name: str = ""
    unless: str = ""
    on: tuple[tuple[str, str], ...] | None = None


class CommandTable(CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[command]]` table: how the desired state of an actuator becomes a message.

    topic: without wildcards. broker: name of a broker; None: the first one.
    payload: template; ``{value}`` is the state's text, ``{json}`` the state as JSON. template: a Jinja template with
    `value`, instead of payload. qos: 2 is published as 1, since a
    state may arrive twice. state: reads the state that the device reports; without payload, it is a boolean if values
    has "true" and "false" only, and else a text.
    scale, offset: the state is the number in the message * scale + offset; that number is rounded to a whole one.
    reassert_s: None: the state is sent again after the device has reported another state, with growing pauses, or has
    come back online.
    lamp: of which the actuator is a part.
    """

    topic: str
    broker: str | None = None
    payload: str = "{value}"
    template: str | None = None
    qos: Literal[0, 1, 2] = 1
    retain: bool = False
    scale: Decimal | None = None
    offset: Decimal | None = None
    state: StreamTable | None = None
    lamp: LampPart | None = None


class ResourceCommandTable(CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[command]]` table: how the desired state of an actuator becomes a request to a device.

    resource: URI as in `ResourceTable`; with query, ``{name}`` is the value of a variable, and ``{name}`` alone a whole
    URI of CoAP.
    query: SELECT with ?actuator, ?state and the variables of the templates, instead of actuator.
    method, idempotent: None: PUT is, and POST is not; a request that is not is never repeated without need.
    content_format: of the request, by name or number; "none": no such option.
    payload: template of text, JSON and CBOR; ``{value}`` and ``{json}`` as in `CommandTable`, ``{name}`` and
    ``{json:name}`` the variables of the query. None: ``{json}`` for JSON and CBOR, else ``{value}``.
    name: of the SenML record. state: how the device's state is read; False: never; None: from the same resource.
    observe: whether the state is observed. epoch: path of a resource whose value changes at each boot. device: as in
    `ResourceReadTable`. reassert_s: None: the interval of the settings, unless the state is observed; a number: always.
    type, byte_order, word_order: as in `ResourceReadTable`. scale, offset: the state is the number in the registers *
    scale + offset, for Modbus.
    """

    resource: str
    query: str | None = None
    method: Literal["PUT", "POST"] = "PUT"
    idempotent: bool | None = None
    content_format: FormatName | Literal["none"] | FormatNumber = "text"
    payload: str | None = None
    name: str = ""
    state: ResourceStateTable | bool | None = None
    observe: Literal["auto", "never"] = "auto"
    epoch: str | None = None
    device: str | None = None
    type: RegisterType | None = None
    byte_order: Order | None = None
    word_order: Order | None = None
    scale: Decimal | None = None
    offset: Decimal | None = None


class PublishTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[publish]]` table: how rows that enter a query's result become messages.

    query: SELECT, or CONSTRUCT for messages with triples. The prefixes of the file need no declaration.
    topic: without wildcards; ``{name}`` is the value of a variable, as a level or a part of one. broker: as in
    `CommandTable`. payload: template; ``{name}`` is the text of a variable, ``{json:name}`` its value as JSON,
    ``{json}`` the row as a JSON object (the default), ``{triples}`` the triples in N-Triples (the default for
    CONSTRUCT). removed: the template for rows that leave; None: they give no message.
    qos: as in `CommandTable`. retain: the broker keeps the newest message of a topic. At a start, the messages of all
    rows are published again; otherwise only changes are published.
    """

    query: str
    topic: str
    broker: str | None = None
    payload: str | None = None
    removed: str | None = None
    qos: Literal[0, 1, 2] = 1
    retain: bool = False


AnyStreamTable = StreamTable | ResourceTable | PathTable
AnyCommandTable = CommandTable | ResourceCommandTable


def table_json(table: AnyStreamTable | AnyCommandTable) -> str:
    """The JSON of a rule, as `gateway:rule` has it; keys with default values are left out."""
    return msgspec.json.encode(table).decode()
