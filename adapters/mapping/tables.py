"""The rule tables: `[[stream]]` reads messages, `[[command]]` and `[[publish]]` write them.

A table has one meaning wherever it comes from: a file in mapping/, a `gateway:Mapping` in the dataset (JSON), or a
discovered device. `mapping/street.toml` explains each key with an example.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec

PayloadKind = Literal["number", "boolean", "text", "senml", "sparkplug"]
OnRepeat = Literal["refresh", "ignore", "event"]
Word = bool | int | float | str
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class ReadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream.read]]` table: one value of a message. A key that is None is that of the `[[stream]]` table.

    property: IRI, prefixed name or template.
    payload: kind of the value, or a format with many values ("senml", "sparkplug").
    member: JSON path; for senml and sparkplug, the name of a record. column, separator: of a CSV line, by position from
    0 or by the header of the payload. format, field: struct format of a binary payload, and position of a value in it.
    pattern: regular expression; its group is the value.
    on, off: words of a boolean. words: word -> literal or IRI, for enumerations.
    unit: UCUM code, IRI or prefixed name. scale, offset: the value is payload * scale + offset.
    optional: a message without the value is no fault.
    on_repeat: "refresh" writes the new time, "ignore" writes nothing, "event" makes the value leave and enter again.
    dead_band: smaller changes of a number are dropped. throttle_s: at most one reading in so many seconds.
    time: "arrival", "record" (senml, sparkplug), "member PATH" or "property NAME" (MQTT 5 user property).
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
    pattern: str | None = None
    on: list[str] | None = None
    off: list[str] | None = None
    words: dict[str, Word] | None = None
    unit: str | None = None
    scale: Decimal | None = None
    offset: Decimal | None = None
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


class StreamTable(ReadTable, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[stream]]` table: how the messages of a topic become readings.

    topic: its levels; ``+`` and ``#`` match as in MQTT, ``{name}`` captures a level, ``{name:EXPRESSION}`` a level that
    a regular expression matches, ``{name#}`` the rest. broker: name of a broker; None: every broker.
    read: one item for each value; empty: the table itself describes the only value.
    """

    topic: str
    broker: str | None = None
    read: list[ReadTable] = []


class CommandTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A `[[command]]` table: how the desired state of an actuator becomes a message.

    topic: without wildcards. actuator: IRI, prefixed name or path under the base IRI; None, for rules in the dataset
    only: the actuator that has the rule as its gateway:command. broker: name of a broker; None: the first one.
    payload: template; ``{value}`` is the state's text, ``{json}`` the state as JSON. values: state -> text that
    replaces it, such as "true" = "ON"; other states are refused. qos: 2 is published as 1, since a state may arrive
    twice. minimum, maximum: numbers outside are refused. state: reads the state that the device reports;
    without payload, it is a boolean if values has "true" and "false" only, and else a text.
    reassert_s: seconds after which the state is sent again while the device does not report it; 0: never. None: after
    the device has reported another state, with growing pauses, or has come back online.
    """

    topic: str
    actuator: str | None = None
    broker: str | None = None
    payload: str = "{value}"
    values: dict[str, str] = {}
    qos: Literal[0, 1, 2] = 1
    retain: bool = False
    minimum: float | None = None
    maximum: float | None = None
    state: StreamTable | None = None
    reassert_s: Seconds | None = None


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


def table_json(table: StreamTable | CommandTable) -> str:
    """The JSON of a rule, as `gateway:rule` has it; keys with default values are left out."""
    return msgspec.json.encode(table).decode()
