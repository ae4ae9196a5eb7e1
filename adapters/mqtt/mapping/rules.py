"""Topic and payload -> reading -> SPARQL 1.1 updates. Pure: no network, no clock.

Observation model (design section 9, model "latest"): each stream has one live observation in the default graph. A
reading replaces its result and its result time. `description_update` describes the stream once.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.ontology.vocabulary import (
    FEATURE_OF_INTEREST,
    HAS_FEATURE_OF_INTEREST,
    HAS_SIMPLE_RESULT,
    HAS_UNIT,
    HOSTS,
    LIVE_OBSERVATION,
    MADE_BY_SENSOR,
    MQTT_TOPIC,
    OBSERVABLE_PROPERTY,
    OBSERVATION,
    OBSERVED_PROPERTY,
    OBSERVES,
    PLATFORM,
    PREFIXES,
    RDF_TYPE,
    RDFS_LABEL,
    RESULT_TIME,
    SENSOR,
    STREAM,
    UNIT_CLASS,
)

PAYLOAD_BYTES_MAX = 65_536
TOPIC_BYTES_MAX = 1_024
NUMBER_CHARS_MAX = 64
TEXT_CHARS_MAX = 8_192

_TOPICS_CACHED = 4_096

# The characters of an IRI besides captured levels: those of RFC 3986, which every store accepts. A relative template
# has neither ";", the separator of `_stream_path`, nor "%", which encodes captures.
_RELATIVE = re.compile(r"[A-Za-z0-9._~/:@=+,-]+")
_ABSOLUTE = re.compile(
    r"(?:https?://[A-Za-z0-9.-]+(?::[0-9]+)?/|urn:[A-Za-z0-9][A-Za-z0-9-]+:)"
    r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
    r"(?:\#(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?"
)
_STARTS_ABSOLUTE = re.compile(r"https?://|urn:")
_HEADER = re.compile(r"\s*\[\[\s*([\"']?)stream\1\s*\]\]")
_CAPTURE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][+-]?[0-9]+")
_BOOLEANS = {"true": "true", "on": "true", "1": "true", "false": "false", "off": "false", "0": "false"}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stream:
    """One sensor that observes one property of one feature of interest, and the source of its readings.

    All members but `topic`, `label` and `rule` are IRIs as terms. If two streams have the same `iri` and differ
    otherwise, they conflict.
    """

    iri: Term
    observation: Term
    sensor: Term
    property: Term
    feature: Term
    platform: Term
    unit: Term | None
    topic: str
    label: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class Reading:
    """value: a typed literal, spelled as in the payload; time: of the message's arrival, xsd:dateTime."""

    stream: Stream
    value: Term
    time: Term
    retained: bool


class RuleTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `[[stream]]` table of a mapping file; `mapping/street.toml` explains the keys."""

    topic: str
    property: str
    payload: Literal["number", "boolean", "text"]
    sensor: str | None = None
    feature: str | None = None
    platform: str | None = None
    member: str | None = None
    unit: str | None = None
    label: str | None = None


class _FileTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prefixes: dict[str, str] = {}
    stream: list[dict[str, Any]] = []


class StreamRule:
    """A checked rule: the topics that it covers, and what it reads from their messages."""

    def __init__(self, table: RuleTable, *, prefixes: dict[str, str], base_iri: str, place: str) -> None:
        """place: file, line and number, for messages. Raises ConfigurationError, which names rule, key and cure."""
        self.place = place
        self.base_iri = base_iri
        self._made_of = base_iri, table, prefixes
        self.payload = table.payload

        def checked(key: str, make: Callable[[str], Result], text: str) -> Result:
            try:
                return make(text)
            except ValueError as error:
                raise ConfigurationError(f"{place}: {key} = {text!r}: {error}") from error

        self.levels = checked("topic", _pattern_levels, table.topic)
        self.names = {position: level[1:-1] for position, level in enumerate(self.levels) if level.startswith("{")}
        self.filter = "/".join("+" if level == "+" or level.startswith("{") else level for level in self.levels)
        self.property = checked("property", lambda text: _expanded(text, prefixes), table.property)
        self._property_path = _short(self.property)
        self.unit = None if table.unit is None else checked("unit", lambda text: _expanded(text, prefixes), table.unit)
        self.member = None if table.member is None else checked("member", _member_path, table.member)
        names = set(self.names.values())
        self._templates = {
            key: None if text is None else checked(key, lambda text: _iri_template(text, names), text)
            for key, text in (("sensor", table.sensor), ("feature", table.feature), ("platform", table.platform))
        }
        self.label = table.label
        if table.label is not None:
            checked("label", lambda text: _check_names(text, names), table.label)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamRule) and self._made_of == other._made_of

    def __hash__(self) -> int:
        return hash((self.base_iri, self.filter))

    def stream(self, topic: str) -> Stream | None:
        """The stream of a topic, or None if the rule does not cover the topic.

        Raises PayloadError if a level that goes into an IRI is no path segment.
        """
        levels = topic.split("/")
        if len(levels) != len(self.levels) or (topic.startswith("$") and not self.levels[0].startswith("$")):
            return None
        for wanted, level in zip(self.levels, levels, strict=True):
            if wanted != level and wanted != "+" and not wanted.startswith("{"):
                return None
        captures = {name: levels[position] for position, name in self.names.items()}
        if any(level in (".", "..") for level in levels) or "" in captures.values():
            raise PayloadError("a topic level that a rule captures is empty, '.' or '..'")

        path = "/".join(_segment(level) for level in levels if level)
        parent = path.rpartition("/")[0] or path
        sensor = self._iri("sensor", captures, f"sensor/{path}")
        feature = self._iri("feature", captures, f"feature/{parent}")
        platform = self._iri("platform", captures, f"platform/{parent}")
        tail = f"{self._stream_path(sensor)};{self._property_path};{self._stream_path(feature)}"
        return Stream(
            iri=iri(f"{self.base_iri}stream/{tail}"),
            observation=iri(f"{self.base_iri}observation/{tail}"),
            sensor=iri(sensor),
            property=iri(self.property),
            feature=iri(feature),
            platform=iri(platform),
            unit=None if self.unit is None else iri(self.unit),
            topic=topic,
            label=None if self.label is None else _CAPTURE.sub(lambda found: captures[found[1]], self.label),
            rule=self.place,
        )

    def template(self, key: str) -> str:
        """The IRI of a stream's sensor or feature, with ``{2}`` in place of the topic's level at position 2."""
        positions = {name: position for position, name in self.names.items()}
        text = self._templates[key]
        if text is not None:
            text = _CAPTURE.sub(lambda found: f"{{{positions[found[1]]}}}", text)
            return text if _STARTS_ABSOLUTE.match(text) else self.base_iri + text
        levels = [
            f"{{{position}}}" if level == "+" else _segment(level)
            for position, level in enumerate(self.filter.split("/"))
            if level
        ]
        path = levels if key == "sensor" else levels[:-1] or levels
        return f"{self.base_iri}{key}/{'/'.join(path)}"

    def value(self, payload: bytes) -> Term:
        """The value of a payload as a typed literal. Raises PayloadError; its reason never quotes the payload."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise PayloadError(f"payload has more than {PAYLOAD_BYTES_MAX} bytes")
        if not payload:
            raise PayloadError("payload is empty")
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            raise PayloadError("payload is not UTF-8") from error
        found = text if self.member is None else _json_member(text, self.member)
        return _TERMS[self.payload](found)

    def _iri(self, key: str, captures: dict[str, str], default: str) -> str:
        template = self._templates[key]
        if template is None:
            return self.base_iri + default
        text = _CAPTURE.sub(lambda found: _segment(captures[found[1]]), template)
        return text if _STARTS_ABSOLUTE.match(text) else self.base_iri + text

    def _stream_path(self, address: str) -> str:
        """Different for different IRIs, so that no two streams share an IRI."""
        relative = address.removeprefix(self.base_iri)
        return _segment(address) if relative == address or ";" in relative else relative


class Mapping:
    """All rules of a gateway."""

    def __init__(self, rules: Sequence[StreamRule]) -> None:
        self.rules = tuple(rules)
        self.filters = tuple(_uncovered(rule.filter for rule in rules))
        """What to subscribe to. A filter that another one covers is left out, so that messages come once."""
        self._streams = lru_cache(maxsize=_TOPICS_CACHED)(self._streams_of)

    def readings(
        self, topic: str, payload: bytes, *, retained: bool, received: datetime
    ) -> list[Reading | PayloadError]:
        """One reading, or the error in its place, for each rule that covers the topic.

        received: an aware datetime. The list is empty if no rule covers the topic.
        """
        try:
            streams = self._streams(topic)
        except PayloadError as error:
            return [error]
        time = literal(
            received.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            datatype=XSD + "dateTime",
        )
        readings: list[Reading | PayloadError] = []
        for rule, stream in streams:
            try:
                readings.append(Reading(stream, rule.value(payload), time, retained))
            except PayloadError as error:
                readings.append(error)
        return readings

    def _streams_of(self, topic: str) -> tuple[tuple[StreamRule, Stream], ...]:
        try:
            size = len(topic.encode())
        except UnicodeEncodeError as error:
            raise PayloadError("topic is not Unicode text") from error
        if not 0 < size <= TOPIC_BYTES_MAX:
            raise PayloadError(f"topic does not have 1 to {TOPIC_BYTES_MAX} bytes of UTF-8")
        return tuple((rule, stream) for rule in self.rules if (stream := rule.stream(topic)) is not None)


def load_mapping(folder: Path, base_iri: str) -> Mapping:
    """The rules of all `*.toml` files of a folder, in the order of their names; none if the folder does not exist.

    base_iri: of the gateway, such as `http://gateway.example/`; relative templates continue it.
    Raises ConfigurationError, which names file, rule, key and cure.
    """
    if not _ABSOLUTE.fullmatch(base_iri) or not base_iri.endswith(("/", ":", "#")):
        raise ConfigurationError(f"base IRI {base_iri!r}: write an http(s) or urn IRI that ends in '/', ':' or '#'")
    return Mapping([rule for path in sorted(folder.glob("*.toml")) for rule in _file_rules(path, base_iri)])


def description_update(reading: Reading) -> str:
    """INSERT DATA of the properties of the reading's stream that no reading changes."""
    stream = reading.stream
    triples = [
        (stream.platform, RDF_TYPE, iri(PLATFORM)),
        (stream.platform, HOSTS, stream.sensor),
        (stream.sensor, RDF_TYPE, iri(SENSOR)),
        (stream.sensor, OBSERVES, stream.property),
        (stream.property, RDF_TYPE, iri(OBSERVABLE_PROPERTY)),
        (stream.feature, RDF_TYPE, iri(FEATURE_OF_INTEREST)),
        (stream.iri, RDF_TYPE, iri(STREAM)),
        (stream.iri, MQTT_TOPIC, literal(stream.topic)),
        (stream.iri, LIVE_OBSERVATION, stream.observation),
        (stream.observation, RDF_TYPE, iri(OBSERVATION)),
        (stream.observation, MADE_BY_SENSOR, stream.sensor),
        (stream.observation, OBSERVED_PROPERTY, stream.property),
        (stream.observation, HAS_FEATURE_OF_INTEREST, stream.feature),
    ]
    if stream.unit is not None:
        triples += [(stream.unit, RDF_TYPE, iri(UNIT_CLASS)), (stream.iri, HAS_UNIT, stream.unit)]
    if stream.label is not None:
        triples.append((stream.iri, RDFS_LABEL, literal(stream.label)))
    return "INSERT DATA {\n" + "".join(f"  {s} <{p}> {o} .\n" for s, p, o in triples) + "}"


def reading_update(reading: Reading) -> str:
    """Replaces value and time of the stream's live observation.

    A retained message has the state without the time of its change, and the broker repeats it. With the value that is
    already stored it changes nothing, so that an old state gets no new time.
    """
    observation = reading.stream.observation
    unless_known = (
        f"\n  FILTER NOT EXISTS {{ {observation} <{HAS_SIMPLE_RESULT}> {reading.value} }}" if reading.retained else ""
    )
    return f"""\
DELETE {{ {observation} <{HAS_SIMPLE_RESULT}> ?value . {observation} <{RESULT_TIME}> ?time }}
INSERT {{ {observation} <{HAS_SIMPLE_RESULT}> {reading.value} . {observation} <{RESULT_TIME}> {reading.time} }}
WHERE {{
  OPTIONAL {{ {observation} <{HAS_SIMPLE_RESULT}> ?value }}
  OPTIONAL {{ {observation} <{RESULT_TIME}> ?time }}{unless_known}
}}"""


def _file_rules(path: Path, base_iri: str) -> Iterator[StreamRule]:
    try:
        text = path.read_text(encoding="utf-8")
        table = msgspec.convert(tomllib.loads(text), _FileTable)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}; correct the file, or remove it") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}; a file has [prefixes] and [[stream]] tables") from error
    for prefix, address in table.prefixes.items():
        if not _ABSOLUTE.fullmatch(address):
            raise ConfigurationError(f"{path}: prefixes: {prefix} = {address!r}: write a full http(s) or urn IRI")
        if PREFIXES.get(prefix, address) != address:
            raise ConfigurationError(f"{path}: prefixes: {prefix} already is {PREFIXES[prefix]}; choose another name")
    prefixes = PREFIXES | table.prefixes
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    for number, entry in enumerate(table.stream, 1):
        # A text of several lines may contain what looks like a header. Then no line is named.
        line = f" line {lines[number - 1]}" if len(lines) == len(table.stream) else ""
        place = f"{path}{line}: stream {number}"
        try:
            rule = msgspec.convert(entry, RuleTable)
        except msgspec.ValidationError as error:
            known = ", ".join(RuleTable.__struct_fields__)
            raise ConfigurationError(f"{place}: {error}; the keys of a rule are {known}") from error
        yield StreamRule(rule, prefixes=prefixes, base_iri=base_iri, place=place)


def _pattern_levels(pattern: str) -> tuple[str, ...]:
    levels = tuple(pattern.split("/"))
    captures = [level for level in levels if _CAPTURE.fullmatch(level)]
    for level in levels:
        if level != "+" and level not in captures and re.search(r"[+#{}\x00]", level):
            raise ValueError(f"level {level!r}: write a name, + or {{name}} for a whole level ('#' is not supported)")
    if not pattern or len(pattern.encode()) > TOPIC_BYTES_MAX:
        raise ValueError(f"write 1 to {TOPIC_BYTES_MAX} bytes")
    if len(set(captures)) < len(captures):
        raise ValueError("captures a name twice; give each level a name of its own")
    if levels[0] == "$share":
        raise ValueError("shared subscriptions would split the readings of a sensor; leave out '$share/<group>/'")
    return levels


def _member_path(path: str) -> tuple[str, ...]:
    names = tuple(path.split("."))
    if "" in names:
        raise ValueError("write names with single dots between them, such as 'battery.level'")
    return names


def _expanded(name: str, prefixes: dict[str, str]) -> str:
    """The full IRI of a prefixed name or full IRI."""
    prefix, colon, local = name.partition(":")
    if _STARTS_ABSOLUTE.match(name):
        address = name
    elif colon and prefix in prefixes:
        address = prefixes[prefix] + local
    else:
        raise ValueError(f"unknown prefix; write a full http(s) or urn IRI, or declare it in [prefixes] ({prefix!r})")
    if not _ABSOLUTE.fullmatch(address):
        raise ValueError(f"{address!r} is not an IRI; percent-encode what is not in RFC 3986")
    return address


def _short(address: str) -> str:
    """The prefixed name of an IRI in one of our vocabularies, else the whole IRI, as one segment of a path."""
    for prefix, namespace in PREFIXES.items():
        if address.startswith(namespace):
            return f"{prefix}:{_segment(address.removeprefix(namespace))}"
    return _segment(address)


def _iri_template(template: str, names: set[str]) -> str:
    _check_names(template, names)
    sample = _CAPTURE.sub("x", template)
    if _STARTS_ABSOLUTE.match(template):
        start = _CAPTURE.sub("{", template)  # a capture must not choose the host or the namespace
        if not _ABSOLUTE.fullmatch(sample) or not _ABSOLUTE.match(start):
            raise ValueError("write a full IRI with its captures behind the host (or behind 'urn:<namespace>:')")
    else:
        segments = sample.split("/")
        if not _RELATIVE.fullmatch(sample) or ":" in segments[0] or {"", ".", ".."} & set(segments):
            raise ValueError(
                "write a path such as 'post/{post}' of letters, digits and . _ ~ - : @ = + , "
                "without a slash at the start or the end, or a full http(s) or urn IRI"
            )
    return template


def _check_names(template: str, names: set[str]) -> None:
    unknown = [name for name in _CAPTURE.findall(template) if name not in names]
    if unknown:
        raise ValueError(f"{{{unknown[0]}}} is not captured by the topic ({', '.join(sorted(names)) or 'none is'})")


def _segment(text: str) -> str:
    """Text as one segment of an IRI's path; different for different texts."""
    return quote(text, safe="")


def _covers(wide: str, narrow: str) -> bool:
    wide_levels, narrow_levels = wide.split("/"), narrow.split("/")
    return (
        len(wide_levels) == len(narrow_levels)
        and all(w in ("+", n) for w, n in zip(wide_levels, narrow_levels, strict=True))
        and not (wide.startswith("+") and narrow.startswith("$"))
    )


def _uncovered(filters: Iterator[str]) -> list[str]:
    distinct = list(dict.fromkeys(filters))
    return [one for one in distinct if not any(other != one and _covers(other, one) for other in distinct)]


class _JsonNumber(str):
    """A JSON number as spelled; the spelling distinguishes integer, decimal and double."""


def _json_member(text: str, path: tuple[str, ...]) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        found = json.loads(text, parse_int=_JsonNumber, parse_float=_JsonNumber, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise PayloadError("payload is not JSON") from error
    for name in path:
        if not isinstance(found, dict) or name not in found:
            raise PayloadError(f"member {'.'.join(path)} is missing")
        found = found[name]
    if found is None or isinstance(found, dict | list):
        raise PayloadError(f"member {'.'.join(path)} is not a single value")
    return found


def _number_term(found: str | bool) -> Term:
    text = "" if isinstance(found, bool) else found.strip()
    if len(text) > NUMBER_CHARS_MAX:
        raise PayloadError(f"the number has more than {NUMBER_CHARS_MAX} characters")
    if _INTEGER.fullmatch(text):
        return literal(text, datatype=XSD + "integer")
    if _DECIMAL.fullmatch(text):
        return literal(text, datatype=XSD + "decimal")
    if _DOUBLE.fullmatch(text) and math.isfinite(float(text)):
        return literal(text, datatype=XSD + "double")
    raise PayloadError("not a number")


def _boolean_term(found: str | bool) -> Term:
    value = _BOOLEANS.get(str(found).strip().lower())
    if value is None:
        raise PayloadError("not a boolean (true/false, on/off, 1/0)")
    return literal(value, datatype=XSD + "boolean")


def _text_term(found: str | bool) -> Term:
    if isinstance(found, bool | _JsonNumber):
        raise PayloadError("not a text")
    try:
        found.encode()  # JSON can escape half a surrogate pair, which no store accepts
    except UnicodeEncodeError as error:
        raise PayloadError("not Unicode text") from error
    if len(found) > TEXT_CHARS_MAX:
        raise PayloadError(f"the text has more than {TEXT_CHARS_MAX} characters")
    return literal(found)


_TERMS: dict[str, Callable[[str | bool], Term]] = {
    "number": _number_term,
    "boolean": _boolean_term,
    "text": _text_term,
}
