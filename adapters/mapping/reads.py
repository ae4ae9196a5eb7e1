"""One value of a message: where it is in the payload, what it means, and which stream it belongs to."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, NamedTuple, TypeVar

from lamplighter.adapters.literals import UNKNOWN
from lamplighter.adapters.mapping import jinja, lwm2m, senml, sparkplug, times, units, values
from lamplighter.adapters.mapping.expressions import EXPRESSION_TEXT_CHARS_MAX, compile_expression, steps
from lamplighter.adapters.mapping.patterns import TopicPattern
from lamplighter.adapters.mapping.payloads import (
    AbsentError,
    Csv,
    Found,
    JsonPath,
    NullError,
    Number,
    Payload,
    find_where,
)
from lamplighter.adapters.mapping.tables import PayloadKind, ReadTable, Word
from lamplighter.adapters.mapping.templates import (
    CAPTURE,
    STARTS_ABSOLUTE,
    check_names,
    encode_captures,
    expand,
    expanded_template,
    filled_iri,
    filled_text,
    iri_template,
    segment,
    short,
    stream_path,
)
from lamplighter.adapters.mapping.values import ValueTerm
from lamplighter.adapters.model.readings import Keep, Stream, ValueLifetime
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, iri, literal

RECORD_NAME = "n"
"""The capture with the name of a SenML record or a Sparkplug metric, or with the path of an LwM2M value."""
RECORD_KINDS = ("senml", "sparkplug", "lwm2m")
"""Payloads with many values."""
_RECORDS_OF: dict[Kind, tuple[str, ...]] = {
    "mqtt": ("senml", "sparkplug"),
    "coap": ("senml", "lwm2m"),
    "http-devices": ("senml",),
}
_FOR = {"senml": "topic, path or another resource", "sparkplug": "topic", "lwm2m": "path or a coap:// resource"}
"""Payloads with many values -> what rules with them have."""
FIELDS_MAX = 256
STRUCT_BYTES_MAX = 4_096

Result = TypeVar("Result")


class PayloadRecord(NamedTuple):
    """One of several values of a message. captures: of the record; found: or why it cannot be read; unit: its own code;
    time: its own; historical: it was not current any more when it was sent."""

    captures: dict[str, str]
    found: Found | PayloadError
    unit: str | None = None
    time: datetime | None = None
    historical: bool = False


class ReadContext(NamedTuple):
    """What a read needs beside the payload.

    received: when the message was received; trusted: whether the gateway's clock is synchronised.
    """

    topic: str
    properties: Mapping[str, str]
    received: datetime
    trusted: bool
    births: sparkplug.Births


class ReadOrigin(NamedTuple):
    """Where messages come from. kind: of the adapter; address: None: the topic; untyped: a value without a kind is what
    its format says: a text, a number or a boolean; condition: as for `Stream`."""

    kind: Kind = "mqtt"
    address: str | None = None
    untyped: bool = False
    condition: str = ""


OVER_MQTT = ReadOrigin()


class Read:
    """A checked read. place: of its rule, for messages; name: of the value in its rule, if the rule has
    several; many: it has several values, each with a stream of its own;
    own_time: its time is not simply that of the arrival; optional: a payload without the value is no fault."""

    def __init__(
        self,
        table: ReadTable,
        pattern: TopicPattern,
        *,
        prefixes: Mapping[str, str],
        base_iri: str,
        place: str,
        item: bool,
        origin: ReadOrigin = OVER_MQTT,
    ) -> None:
        """item: it is one of several values of its messages. Raises ConfigurationError, which names key and cure."""
        self.place, self.pattern = place, pattern
        self._origin, self._base_iri, self._item = origin, base_iri, item
        checked, refused = _checks(place)
        self.payload = table.payload or usual_payload(table)
        problem = _kind_problem(self.payload, origin.kind)
        if self.payload is None or problem:
            raise refused("payload", problem)
        self.records = self.payload in RECORD_KINDS
        self.member = table.member
        self.value_place = _value_place(table)
        self._template: jinja.JinjaTemplate | None = None
        find = self._finder(table, checked, refused)
        self._find = (
            find if table.where is None else checked("where", lambda members: find_where(members, find), table.where)
        )
        path_names = self._path.names if self._path else frozenset()
        self.many = self.records or bool(path_names)
        self.name = self._value_name if item else ""
        self._expression: re.Pattern[str] | None = (
            None if table.pattern is None else checked("pattern", _value_expression, table.pattern)
        )
        self._value = _value_term(table, self.payload, origin.untyped, prefixes, checked, refused)
        self.optional = table.where is not None or (item if table.optional is None else table.optional)
        names = pattern.names | path_names | ({RECORD_NAME} if self.records else set())
        if len(names) < len(pattern.names) + len(path_names) + self.records:
            raise refused(
                "topic" if origin.kind == "mqtt" else "path",
                f"captures a name that the values have, such as {{{RECORD_NAME}}}",
            )
        if table.property is None:
            raise refused("property", "is missing; write a full IRI or a prefixed name")
        self.property = checked("property", lambda text: expanded_template(text, prefixes, names), table.property)
        self._templates = _iri_templates(table, names, checked)
        self._one_topic = _one_topic(table, pattern) if not names else None
        self.label = table.label
        if table.label is not None:
            checked("label", lambda text: check_names(text, names), table.label)
        self.unit = None if table.unit is None else checked("unit", lambda text: _unit(text, prefixes), table.unit)
        if table.result == "quantity" and self.payload in ("boolean", "text"):
            raise refused("result", 'quantity is for numbers; write payload = "number", or leave it out')
        self._quantity = table.result == "quantity"
        self._keep = _keep_rule(table, self.payload, checked, refused)
        self._lifetime = _lifetime(table, self.payload, refused)
        self._zone: tzinfo | None = None
        if table.time_zone is not None:
            self._zone = checked("time_zone", times.time_zone, table.time_zone)
        self._read_time(table, checked, refused)

    def _read_time(self, table: ReadTable, checked: Any, refused: Any) -> None:
        """Where the time of a reading is: in the message, in its properties, in each record, or that of its arrival."""
        self._time_path: JsonPath | None = None
        self._time_property: str | None = None
        kind = table.time or ("record" if self.records else "arrival")
        self.own_time = kind != "arrival"
        if kind.startswith("member ") and not self.records:
            self._time_path = checked("time", lambda text: _plain_path(text.removeprefix("member ").strip()), kind)
        elif self._origin.kind == "mqtt" and kind.startswith("property ") and kind.removeprefix("property ").strip():
            self._time_property = kind.removeprefix("property ").strip()
        elif kind != "arrival" and not (kind == "record" and self.records):
            others = {"mqtt": '"property NAME", or "record" for senml and sparkplug'}
            said = others.get(self._origin.kind, 'or "record" for senml and lwm2m')
            raise refused("time", f'write "arrival", "member PATH", {said}')

    def _finder(self, table: ReadTable, checked: Any, refused: Any) -> Callable[[Payload], Found]:
        """The function that finds a single value; sets the JSON path, if there is one, and the name of the value."""
        self._path: JsonPath | None = None
        self._value_name = table.member or "value"
        places = [key for key in ("member", "column", "format", "template") if getattr(table, key) is not None]
        if len(places) > 1:
            raise refused(places[1], f"a value has one place; leave out {places[0]} or {places[1]}")
        if self.records and (places not in ([], ["member"]) or table.pattern is not None):
            raise refused(places[0] if places else "pattern", f"records of {self.payload} are chosen by member")
        if table.separator is not None and table.column is None:
            raise refused("separator", "is for column only")
        if table.field is not None and table.format is None:
            raise refused("field", "is for format only")
        if table.where is not None and (self.records or "{" in (table.member or "")):
            raise refused("where", "is for rules with one value")
        if self.records:
            return _no_single
        if table.member is not None:
            path = self._path = checked("member", JsonPath, table.member)
            return lambda payload: path.one(payload.json())
        if table.column is not None:
            separator = checked("separator", _separator, table.separator or ",")
            column = checked("column", _column, table.column)
            self._value_name = f"{table.column}"
            return lambda payload: _cell(payload.csv(separator), column)
        if table.format is not None:
            layout = checked("format", _layout, table.format)
            field = table.field or 0
            if field >= len(layout.unpack(bytes(layout.size))):
                raise refused("field", f"the format has no value {field}; they are counted from 0")
            self._value_name = f"{field}"
            return lambda payload: _unpack(payload.binary(), layout, field)
        if table.template is not None:
            template = self._template = checked("template", jinja.value_template, table.template)
            return lambda payload: jinja.payload_text(template, payload)
        return Payload.text if self._origin.kind == "mqtt" else lambda payload: payload.whole()

    @property
    def steps(self) -> int:
        """Bound of the steps of its expression on a text, and of its template."""
        found = 0 if self._expression is None else steps(self._expression.pattern, search=True)
        return found + (0 if self._template is None else self._template.steps)

    # Values

    def term(self, payload: Payload) -> Term:
        """The single value, or the reason why there is none. Raises AbsentError if the payload does not tell it, and
        PayloadError."""
        try:
            found: Found = self._find(payload)
        except NullError:
            return UNKNOWN
        if self._expression is not None:
            found = self._match(found)
        return self._value(found)

    def terms(self, payload: Payload, context: ReadContext) -> Iterator[tuple[PayloadRecord, Term | PayloadError]]:
        """Each record with its value. Raises PayloadError if the payload has none at all."""
        for record in self._records(payload, context):
            found = record.found
            if isinstance(found, NullError):
                yield record, UNKNOWN
                continue
            if isinstance(found, PayloadError):
                yield record, found
                continue
            try:
                yield record, self._value(found if self._expression is None else self._match(found))
            except PayloadError as error:
                yield record, error

    def _records(self, payload: Payload, context: ReadContext) -> Iterator[PayloadRecord]:
        if self._path is not None:
            for captures, found in self._path.many(payload.json()):
                yield PayloadRecord(captures, found)
            return
        decoded: Sequence[tuple[str, str, Found | PayloadError, str | None, datetime | None, *tuple[bool, ...]]]
        if self.payload == "senml":
            decoded = payload.once("senml", lambda: senml.records(payload.data, context.received))
        elif self.payload == "lwm2m":
            of_body = payload.data, payload.form, context.topic, context.received
            decoded = payload.once("lwm2m", lambda: lwm2m.records(*of_body))
        else:
            decoded = payload.once("sparkplug", lambda: context.births.records(context.topic, payload.data))
        for name, own_name, value, unit, time, *historical in decoded:
            if self.member is None or self.member in (name, own_name):
                yield PayloadRecord({RECORD_NAME: name}, value, unit, time, *historical)

    def _match(self, found: Found) -> Found:
        assert self._expression is not None
        text = str(found)
        if len(text) > EXPRESSION_TEXT_CHARS_MAX:
            raise PayloadError(
                f"the text is longer than {EXPRESSION_TEXT_CHARS_MAX} characters, too long for a pattern"
            )
        match = self._expression.search(text)
        group = match and (match[1] if self._expression.groups else match[0])
        if group is None:
            raise AbsentError("the pattern is not in the text")
        return group

    def time(self, payload: Payload, context: ReadContext, record: PayloadRecord | None) -> tuple[datetime, str | None]:
        """Result time and mark of a value whose time is not that of the arrival."""
        time = None
        if self._time_path is not None:
            try:
                time = times.moment(self._time_path.one(payload.json()), self._zone)
            except PayloadError:
                time = None
        elif self._time_property is not None:
            found = context.properties.get(self._time_property)
            time = None if found is None else times.moment(found, self._zone)
        elif record is not None and record.time is not None:
            time = record.time
        elif self.records:
            return context.received, None  # a record without a time is of now
        return times.result_time(time, context.received, trusted=context.trusted)

    # Streams

    def stream(self, topic: str, captures: Mapping[str, str], record: PayloadRecord | None = None) -> Stream:
        """The stream of a topic that the rule covers. Raises PayloadError if a level that goes into an IRI is no path
        segment."""
        if record is not None:
            captures = {**captures, **record.captures}
        if self.payload == "sparkplug":
            topic = sparkplug.data_topic(topic)
        levels = topic.split("/")
        if any(level in (".", "..") for level in levels):
            raise PayloadError("a topic level is '.' or '..'")
        inserted = encode_captures(captures, self.pattern.rest_name)
        if self.payload == "lwm2m":
            inserted |= {} if record is None else record.captures  # a path of numbers, which needs no encoding
        base_iri = self._base_iri
        path = "/".join(segment(level) for level in levels if level)
        parent = path if self._item or self.many else path.rpartition("/")[0] or path
        sensor_path = f"{path}/{self._own_segment(record)}" if self._item or self.many else path
        sensor = self._fill("sensor", inserted, f"sensor/{sensor_path}")
        feature = self._fill("feature", inserted, f"feature/{parent}")
        platform = self._fill("platform", inserted, f"platform/{parent}")
        observed = filled_iri(self.property, inserted, base_iri)
        tail = f"{stream_path(sensor, base_iri)};{short(observed)};{stream_path(feature, base_iri)}"
        return Stream(
            iri=iri(f"{base_iri}stream/{tail}"),
            observation=iri(self._fill("observation", inserted, f"observation/{tail}")),
            sensor=iri(sensor),
            property=iri(observed),
            feature=iri(feature),
            platform=iri(platform),
            unit=self._unit_of(record),
            topic=self._origin.address or self._one_topic or topic,
            label=None if self.label is None else filled_text(self.label, captures),
            rule=self.place,
            result=iri(f"{base_iri}result/{tail}") if self._quantity else None,
            keep=self._keep,
            lifetime=self._lifetime,
            condition=self._origin.condition,
        )

    def template(self, key: str) -> str | None:
        """The IRI of a stream's sensor or feature, with ``{2}`` in place of the topic's level at position 2.

        None if it has other captures: of expressions, of the rest of the topic or of records.
        """
        positions = {name: f"{{{at}}}" for name, at in self.pattern.positions.items()}
        text = self._templates[key]
        if text is not None:
            if not positions.keys() >= set(CAPTURE.findall(text)):
                return None
            text = CAPTURE.sub(lambda found: positions[found[1]], text)
            return text if STARTS_ABSOLUTE.match(text) else self._base_iri + text
        if self.many or self.pattern.rest:
            return None
        levels = [
            f"{{{at}}}" if text is None else segment(text) for at, text in enumerate(self.pattern.levels) if text != ""
        ]
        if self._item:
            levels += [self._own_segment(None)] if key == "sensor" else []
        elif key != "sensor":
            levels = levels[:-1] or levels
        return f"{self._base_iri}{key}/{'/'.join(levels)}"

    def _own_segment(self, record: PayloadRecord | None) -> str:
        if record is not None:
            own = record.captures.values()
            return "/".join(own if self.payload == "lwm2m" else map(segment, own))
        return segment(self._value_name)

    def _fill(self, key: str, captures: Mapping[str, str], default: str) -> str:
        template = self._templates[key]
        return self._base_iri + default if template is None else filled_iri(template, captures, self._base_iri)

    def _unit_of(self, record: PayloadRecord | None) -> Term | None:
        if record is None or record.unit is None:
            return self.unit
        own = _unit_term(record.unit)
        if self.unit is not None and own != self.unit:
            raise PayloadError("the record has another unit than the rule")
        return own


def _value_place(table: ReadTable) -> tuple[Any, ...]:
    """Where a value is in a payload: member, column, separator, format, and the rest; `where` is the last."""
    chosen = table.where and tuple(sorted((path, str(word)) for path, word in table.where.items()))
    place = table.member, table.column, table.separator, table.format, table.field, table.template, table.pattern
    return (*place, chosen)


def usual_payload(table: ReadTable) -> PayloadKind | None:
    """The kind of a value whose table names none, by its words."""
    if table.on is not None or table.off is not None:
        return "boolean"
    return None if table.words is None else "text"


def _one_topic(table: ReadTable, pattern: TopicPattern) -> str | None:
    """The filter, if a sensor with one name is heard at several topics: its stream is that of all of them."""
    is_one = table.sensor is not None and not CAPTURE.search(table.sensor) and "+" in pattern.pattern.split("/")
    return pattern.pattern if is_one else None


def _checks(place: str) -> tuple[Any, Callable[[str, str], ConfigurationError]]:
    """What makes the value of a key, and what makes the error of a key."""

    def check(key: str, make: Callable[[Any], Result], value: Any) -> Result:
        try:
            return make(value)
        except ValueError as error:
            shown = f"{value!r}" if isinstance(value, str | int) else f"{value}"
            raise ConfigurationError(f"{place}: {key} = {shown}: {error}") from error

    def configuration_error(key: str, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{place}: {key}: {reason}")

    return check, configuration_error


def _iri_templates(table: ReadTable, names: frozenset[str], checked: Any) -> dict[str, Any]:
    return {
        key: None if text is None else checked(key, lambda text: iri_template(text, names), text)
        for key, text in (
            ("sensor", table.sensor),
            ("feature", table.feature),
            ("platform", table.platform),
            ("observation", table.observation),
        )
    }


def _keep_rule(table: ReadTable, payload: PayloadKind, checked: Any, refused: Any) -> Keep | None:
    """Which repeated values are kept, None for the usual ones."""
    dead_band = None if table.dead_band is None else checked("dead_band", values.checked_decimal, table.dead_band)
    if dead_band is not None and (payload != "number" or dead_band <= 0):
        raise refused("dead_band", 'write a positive number, for payload = "number" only')
    keep = Keep(table.on_repeat or "refresh", dead_band, table.throttle_s or 0.0)
    return None if keep == Keep() else keep


def _value_term(
    table: ReadTable, payload: PayloadKind, untyped: bool, prefixes: Mapping[str, str], checked: Any, refused: Any
) -> ValueTerm:
    """The function that makes a term of a value. untyped: as in `ReadOrigin`."""
    term = _typed_term(table, payload, untyped, prefixes, checked, refused)
    if table.no_value is None:
        return term
    numbers = payload == "number" or payload in RECORD_KINDS
    made: ValueTerm = checked("no_value", lambda words: values.without(words, term, numbers=numbers), table.no_value)
    return made


def _typed_term(
    table: ReadTable, payload: PayloadKind, untyped: bool, prefixes: Mapping[str, str], checked: Any, refused: Any
) -> ValueTerm:
    scaled = [key for key in ("scale", "offset", "digits") if getattr(table, key) is not None]
    if scaled and payload != "number":
        raise refused(scaled[0], 'is for payload = "number" only')
    if (table.on is not None or table.off is not None) and payload != "boolean":
        raise refused("off" if table.on is None else "on", 'is for payload = "boolean" only')
    if table.words is not None:
        if payload != "text":
            raise refused("words", 'is for payload = "text" only')
        if not 0 < len(table.words) <= values.WORDS_MAX:
            raise refused("words", f"write 1 to {values.WORDS_MAX} words")
        return values.enumeration(
            {word: checked("words", lambda value: _word(value, prefixes), value) for word, value in table.words.items()}
        )
    if payload == "number":
        if not scaled:
            return values.number
        return checked("scale", lambda _: values.scaling(table.scale, table.offset, table.digits), table.scale)  # type: ignore[no-any-return]
    if payload == "boolean":
        return checked("on", lambda _: values.boolean(table.on, table.off), table.on)  # type: ignore[no-any-return]
    return values.text if payload == "text" and not untyped else values.any_kind


def _lifetime(table: ReadTable, payload: PayloadKind, refused: Any) -> ValueLifetime | None:
    """How long values last, None: until the next one."""
    if table.off_delay_s is not None and payload != "boolean":
        raise refused("off_delay_s", 'is for payload = "boolean" only')
    lifetime = ValueLifetime(table.off_delay_s, table.expire_after_s)
    if lifetime == ValueLifetime():
        return None
    if table.time not in (None, "arrival"):
        name = "expire_after_s" if table.off_delay_s is None else "off_delay_s"
        raise refused(name, "counts from the arrival of a message; leave out time")
    return lifetime


def _kind_problem(payload: str | None, kind: Kind) -> str:
    """What is wrong with the kind of a value; empty if nothing is."""
    if payload is None:
        *first, last = "number", "boolean", "text", *_RECORDS_OF.get(kind, ())
        return f"is missing; write {', '.join(first)} or {last}"
    foreign = payload in RECORD_KINDS and payload not in _RECORDS_OF.get(kind, ())
    return f"{payload} is for rules with {_FOR[payload]}" if foreign else ""


def _no_single(payload: Payload) -> Found:
    raise AssertionError("a read of records has no single value")


def _value_expression(text: str) -> re.Pattern[str]:
    expression = compile_expression(text, search=True)
    if expression.groups > 1:
        raise ValueError("write one group (...) around the value, and (?:...) for others")
    return expression


def _plain_path(text: str) -> JsonPath:
    path = JsonPath(text)
    if path.names:
        raise ValueError("write a path without captures")
    return path


def _separator(text: str) -> str:
    if len(text) != 1 or text in '"\r\n\0':
        raise ValueError("write one character, such as ';'")
    return text


def _column(column: int | str) -> int | str:
    if column == "" or (isinstance(column, int) and not 0 <= column < FIELDS_MAX):
        raise ValueError(f"write a position from 0 to {FIELDS_MAX - 1}, or a header")
    return column


def _cell(rows: Csv, column: int | str) -> Found:
    """The cell of the last row. A header is looked up in the first one."""
    if isinstance(column, str):
        if column not in rows.titles:
            raise AbsentError("the payload has no column of that name")
        column = rows.titles[column]
    if column >= len(rows.last) or not rows.last[column].strip():
        raise AbsentError(f"column {column} is missing")
    return rows.last[column]


def _layout(text: str) -> struct.Struct:
    if not re.fullmatch(r"[@=<>!]?(?:[0-9]{0,4}[xcbB?hHiIlLqQefds ])+", text):
        raise ValueError("write the characters of Python's module struct, such as '<hB'")
    layout = struct.Struct(text)
    if not 0 < layout.size <= STRUCT_BYTES_MAX or not 0 < len(layout.unpack(bytes(layout.size))) <= FIELDS_MAX:
        raise ValueError(f"write a format of at most {STRUCT_BYTES_MAX} bytes and {FIELDS_MAX} values")
    return layout


def _unpack(data: bytes, layout: struct.Struct, field: int) -> Found:
    if len(data) != layout.size:
        raise PayloadError(f"payload does not have the {layout.size} bytes of the format")
    found: Found | bytes = layout.unpack(data)[field]
    if not isinstance(found, bytes):
        return found
    try:
        return found.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise PayloadError("the text is not UTF-8") from error


def _unit(text: str, prefixes: Mapping[str, str]) -> Term:
    """An IRI if it looks like one, or the unit of a code. Codes have no colon."""
    if ":" in text:
        return iri(expand(text, prefixes))
    if not units.readable(text):
        raise ValueError(f"write a UCUM code of 1 to {units.UNIT_CHARS_MAX} printable characters, or an IRI")
    return _unit_term(text)


def _unit_term(code: str) -> Term:
    address = units.qudt(code)
    if address is not None:
        return iri(address)
    return literal(code if units.readable(code) else "unreadable")


def _word(value: Word, prefixes: Mapping[str, str]) -> Term:
    """The term of an enumeration's word: an IRI if it is a full IRI or has a known prefix, else a literal.

    Raises ValueError.
    """
    if isinstance(value, str) and (
        STARTS_ABSOLUTE.match(value) or (":" in value and value.partition(":")[0] in prefixes)
    ):
        return iri(expand(value, prefixes))
    try:
        return values.any_kind(Number(repr(value)) if isinstance(value, float) else value)
    except PayloadError as error:
        raise ValueError(str(error)) from error
