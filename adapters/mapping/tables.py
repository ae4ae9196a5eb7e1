"""The rule tables: `[[stream]]` reads messages, `[[command]]` and `[[publish]]` write them.

A table with `topic` is for MQTT, one with `path` for CoAP, and one with `resource` for the adapter of the URI's scheme.
It has one meaning wherever it comes from: a file in mapping/, a `gateway:Mapping` in the dataset (JSON), or a
discovered device. The text below a key is its row in docs/mapping.md.
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
    """A `[[stream.read]]` table: one value of a message. A key that is None is that of the `[[stream]]` table."""

    property: str | None = None
    """Observed property, required: IRI or prefixed name, with captures."""
    payload: PayloadKind | None = None
    """`number`, `boolean`, `text`, or a format with many values: `senml`, `sparkplug`, `lwm2m`."""
    member: str | None = None
    """Path in JSON or CBOR (`list[0].value`), or the name of a record."""
    column: int | str | None = None
    """CSV: position from 0 in the last line, or title in the first."""
    separator: str | None = None
    """CSV separator; `,` by default."""
    format: str | None = None
    """Binary layout of Python's `struct`: `<hB`."""
    field: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Position of the value in `format`; 0 by default."""
    template: str | None = None
    """[Template](#templates) that computes the value."""
    pattern: str | None = None
    """Regular expression; its group is the value."""
    where: dict[str, Word] | None = None
    """Members that a JSON message must have: `{id = 12}`."""
    on: list[str] | None = None
    """Words for true; default: true, on, 1, online."""
    off: list[str] | None = None
    """Words for false; default: false, off, 0, offline."""
    words: dict[str, Word] | None = None
    """Word = literal, IRI or prefixed name."""
    unit: str | None = None
    """UCUM code (`Cel`), usual spelling (`°C`) or IRI."""
    scale: Decimal | None = None
    """Factor: value = number * scale + offset."""
    offset: Decimal | None = None
    """Summand of `scale`."""
    no_value: list[str] | None = None
    """Texts that mean [no value](#absent-values)."""
    off_delay_s: Lifetime | None = None
    """Time after the last true at which a boolean becomes false."""
    expire_after_s: Lifetime | None = None
    """Time without a report after which the value ends."""
    digits: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    """Decimal places of a scaled number."""
    optional: bool | None = None
    """A message may lack the value; default in `[[stream.read]]`."""
    on_repeat: OnRepeat | None = None
    """Equal value: updates the time, is dropped, or leaves and enters again."""
    dead_band: Decimal | None = None
    """Smaller changes are dropped."""
    throttle_s: Seconds | None = None
    """Interval of at most one reading, the newest."""
    time: str | None = None
    """[Result time](#result-time): `arrival`, `record`, `member PATH`, `property NAME`."""
    time_zone: str | None = None
    """Of times without one: `Europe/Rome`, `+02:00`."""
    sensor: str | None = None
    """IRI, or path under the base IRI, with captures."""
    feature: str | None = None
    """Feature of interest, likewise."""
    platform: str | None = None
    """Carrier of the sensor, likewise."""
    observation: str | None = None
    """The live observation, likewise."""
    label: str | None = None
    """Displayed name, with captures."""
    result: Literal["simple", "quantity"] | None = None
    """`quantity` adds a `sosa:hasResult` with number and unit."""


class SourceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An item of `also`: a further place of a value."""

    topic: str
    """Without captures and wildcards."""
    member: str | None = None
    """Path in the JSON document."""


class StreamTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how the messages of a topic become readings."""

    topic: str
    """`{name}` captures a level, `{name:EXPRESSION}` a matching one, `{name#}` the rest; `+` and `#` as in MQTT."""
    broker: str | None = None
    """Name of a broker; default: every broker."""
    read: list[ReadTable] = []
    """`[[stream.read]]` tables."""
    also: list[SourceTable] = []
    """Up to 8 further topics of the same value."""


class ResourceReadTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How the gateway reads a resource of a device."""

    observe: Literal["auto", "always", "never"] = "auto"
    """CoAP: `always` does not poll in between, `never` only polls."""
    poll_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    """Polling interval."""
    accept: FormatName | FormatNumber | None = None
    """Requested [content format](#content-formats)."""
    max_age_s: Annotated[float, msgspec.Meta(gt=0, le=2**32)] | None = None
    """CoAP: instead of the device's Max-Age."""
    device: str | None = None
    """CoAP: name of the [key](coap-devices.md#keys-of-devices-oscore); default: by address."""
    type: RegisterType | None = None
    """Modbus: [type](http-modbus-devices.md#registers); `uint16` by default."""
    byte_order: Order | None = None
    """Modbus: bytes in a register."""
    word_order: Order | None = None
    """Modbus: registers of a value."""


class ResourceTable(ResourceReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how a resource of a device becomes readings."""

    resource: str
    """URI: coap://, http://, https:// or modbus+tcp://."""
    read: list[ReadTable] = []
    """`[[stream.read]]` tables."""


class ResourceStateTable(ResourceReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The `state` of a `[[command]]` with `resource`: how the state is read that a device reports."""

    resource: str | None = None
    """URI; default: that of the command."""


class PathTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how what devices send to the gateway's CoAP server becomes readings."""

    path: str
    """With captures, as `topic`."""
    methods: tuple[Literal["POST", "PUT"], ...] = ("POST", "PUT")
    """Accepted methods; default: both."""
    devices: tuple[str, ...] = ()
    """Names of `[coap.devices]` that may write; default: all."""
    read: list[ReadTable] = []
    """`[[stream.read]]` tables."""


class CommandBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What all `[[command]]` tables have."""

    actuator: str | None = None
    """IRI, prefixed name or path under the base IRI."""
    values: dict[str, str] = {}
    """State = text that replaces it; other states are refused."""
    minimum: float | None = None
    """Smaller numbers are refused."""
    maximum: float | None = None
    """Larger numbers are refused."""
    reassert_s: Seconds | None = None
    """Interval of sending the state again; 0: never."""
    by_hand: ByHand | None = None
    """State set [by hand](mqtt-devices.md#switched-by-hand)."""


class LampPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The `lamp` of a `[[command]]`: what an actuator is of a lamp that takes several states in one command."""

    of: str
    """Text that all parts of the lamp share."""
    role: Role = "part"
    """`switch`: on and off; `part`: sent while on; `mode`: the newest is sent; `transition`: sent with the others."""
    order: int = 0
    """Order of the messages."""
    name: str = ""
    """Name of the part in `on` and `unless`."""
    unless: str = ""
    """No message if the command has this part."""
    on: tuple[tuple[str, str], ...] | None = None
    """Message of a lamp that is on: pairs of part and template."""


class CommandTable(CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[command]]` table: how the desired state of an actuator becomes a message."""

    topic: str
    """Without wildcards."""
    broker: str | None = None
    """Name of a broker; default: `[mqtt]`."""
    payload: str = "{value}"
    """`{value}` is the state, `{json}` the state as JSON."""
    template: str | None = None
    """[Template](#templates) with `value`, instead of `payload`."""
    qos: Literal[0, 1, 2] = 1
    """2 is sent as 1."""
    retain: bool = False
    """The broker keeps the message."""
    scale: Decimal | None = None
    """State = whole number in the message * scale + offset."""
    offset: Decimal | None = None
    """Summand of `scale`."""
    state: StreamTable | None = None
    """How the reported state is read: keys of `[[stream]]`."""
    lamp: LampPart | None = None
    """[Part of a lamp](#lamp)."""


class ResourceCommandTable(CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[command]]` table: how the desired state of an actuator becomes a request to a device."""

    resource: str
    """URI; with `query`, `{name}` is a variable."""
    query: str | None = None
    """SELECT with `?actuator`, `?state` and the variables, instead of `actuator`."""
    method: Literal["PUT", "POST"] = "PUT"
    """HTTP or CoAP method."""
    idempotent: bool | None = None
    """The request may be repeated; default: if PUT."""
    content_format: FormatName | Literal["none"] | FormatNumber = "text"
    """[Content format](#content-formats) of the body, or `none`."""
    payload: str | None = None
    """Template: `{value}`, `{json}`; with `query` `{name}`, `{json:name}`."""
    name: str = ""
    """Name of the SenML record."""
    state: ResourceStateTable | bool | None = None
    """How the state is read: keys of `[[stream]]`; default: GET of the resource; `false`: never."""
    observe: Literal["auto", "never"] = "auto"
    """CoAP: `never` polls the state."""
    epoch: str | None = None
    """CoAP: path of a resource that changes at each boot."""
    device: str | None = None
    """As in `[[stream]]`."""
    type: RegisterType | None = None
    """As in `[[stream]]`."""
    byte_order: Order | None = None
    """As in `[[stream]]`."""
    word_order: Order | None = None
    """As in `[[stream]]`."""
    scale: Decimal | None = None
    """Modbus: state = number in the registers * scale + offset."""
    offset: Decimal | None = None
    """Modbus: summand of `scale`."""


class PublishTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[publish]]` table: how rows that enter a query's result become messages."""

    query: str
    """SELECT, or CONSTRUCT for triples."""
    topic: str
    """Without wildcards; `{name}` is the value of a variable."""
    broker: str | None = None
    """Name of a broker; default: `[mqtt]`."""
    payload: str | None = None
    """Template: `{name}`, `{json:name}`, `{json}` (default: the row), `{triples}` (default of CONSTRUCT)."""
    removed: str | None = None
    """Template for rows that leave; default: no message."""
    qos: Literal[0, 1, 2] = 1
    """2 is sent as 1."""
    retain: bool = False
    """The broker keeps the message; a start publishes all rows again."""


AnyStreamTable = StreamTable | ResourceTable | PathTable
AnyCommandTable = CommandTable | ResourceCommandTable


def table_json(table: AnyStreamTable | AnyCommandTable) -> str:
    """The JSON of a rule, as `gateway:rule` has it; keys with default values are left out."""
    return msgspec.json.encode(table).decode()
