"""Makes the record of a device part by part, and refuses what must not get into rule tables.

Announcements are hostile input: whoever may publish at the broker may write one. Sizes, counts and characters are
bounded here, for all formats of announcements. A part that is refused leaves the device without it, and is a problem
that names the part and the reason.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from lamplighter.adapters.devices.device import Actuator, Ask, Availability, Device, Problem, Sensor, Table
from lamplighter.adapters.mapping import uris
from lamplighter.engine.errors import PayloadError

TOPIC_BYTES_MAX = 512
TOPIC_LEVELS_MAX = 32
FILTER_LEVELS_MIN = 2
NAME_CHARS_MAX = 120
WORD_CHARS_MAX = 120
WORDS_MAX = 200
UNIT_CHARS_MAX = 32
SEGMENT_CHARS_MAX = 96
PAYLOAD_CHARS_MAX = 1_024
# Levels of a JSON path.
MEMBERS_MAX = 8
SENSORS_MAX = 100
ACTUATORS_MAX = 60
ASKS_MAX = 16
AVAILABILITY_TOPICS_MAX = 8
# Of one device; further ones are dropped.
PROBLEMS_MAX = 20
# Lines of one device, with `LEFT_OUT_NAMES_MAX` names at most.
LEFT_OUT_MAX = 100
LEFT_OUT_NAMES_MAX = 30

# The source of devices that a Thing Description describes.
THING = "wot"

_SEGMENT = re.compile(r"[A-Za-z0-9._~@=+,-]+")
_NOT_IN_SEGMENT = re.compile(r"[^A-Za-z0-9._~@=+,-]+")
_PLAIN_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_:-]*")
_NOT_IN_MEMBER = re.compile(r"[\"\\\[\]\x00-\x1f\x7f]")
_AUTHORITY = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[1-9][0-9]{0,4})?")
_BASE = re.compile(rf"coap://{_AUTHORITY.pattern}")
_RESOURCE_PATH = re.compile(r"/(?:[A-Za-z0-9._~/?&=-]|%[0-9A-F]{2})*")
_NOT_IN_TOPIC = re.compile(r"[+#{}\x00-\x1f\x7f-\x9f]")

Payload = Literal["number", "boolean", "text", "sparkplug", "senml", "lwm2m"]


def segment(text: str) -> str:
    """Text as one segment of an IRI's path. Different for different texts, readable, and stable.

    Raises ValueError for an empty text.
    """
    if not text or len(text) > 4 * SEGMENT_CHARS_MAX:
        raise ValueError(f"an identifier has 1 to {4 * SEGMENT_CHARS_MAX} characters")
    if _SEGMENT.fullmatch(text) and text not in (".", "..") and len(text) <= SEGMENT_CHARS_MAX:
        return text
    readable = _NOT_IN_SEGMENT.sub("_", text).strip("._")[: SEGMENT_CHARS_MAX // 2]
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable or 'id'}~{digest}"


def json_text(value: object) -> str:
    """The text of a single JSON value: a number or a boolean as JSON spells it; empty for any other value."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, int | float) else ""


def plain(text: object, chars_max: int = NAME_CHARS_MAX) -> str:
    """Text for people: one line without control characters, cut; empty if it is no text."""
    if not isinstance(text, str):
        return ""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * chars_max]).split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def checked_topic(topic: object) -> str:
    """A topic to read from. Raises ValueError: no text, too long, with wildcards, braces or control characters, or one
    of the broker's own."""
    if not isinstance(topic, str):
        raise ValueError("the topic is not a text")
    if not topic or len(topic.encode("utf-8", "surrogatepass")) > TOPIC_BYTES_MAX:
        raise ValueError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes")
    if topic.count("/") >= TOPIC_LEVELS_MAX:
        raise ValueError(f"a topic has at most {TOPIC_LEVELS_MAX} levels")
    if _NOT_IN_TOPIC.search(topic) or not topic.isprintable():
        raise ValueError(f"the topic {plain(topic)!r} has a wildcard, a brace or a control character")
    if topic.startswith("$"):
        raise ValueError(f"the topic {plain(topic)!r} starts with '$', as those of the broker do")
    if any(level in (".", "..") for level in topic.split("/")):
        raise ValueError(f"the topic {plain(topic)!r} has a level '.' or '..'")
    return topic


def checked_filter(topic: object) -> str:
    """A topic to read from, or a filter in which some levels are ``+``, as of a sensor that several radios hear.

    Raises ValueError as `checked_topic`, and for a filter with less than two other levels: it would match the topics of
    other devices.
    """
    if not isinstance(topic, str) or "+" not in topic.split("/"):
        return checked_topic(topic)
    literal = [level for level in topic.split("/") if level != "+"]
    if len(literal) < FILTER_LEVELS_MIN or "" in literal:
        raise ValueError(f"a filter has at least {FILTER_LEVELS_MIN} levels that are not '+'")
    checked_topic("/".join(literal))
    if topic.count("/") >= TOPIC_LEVELS_MAX or len(topic.encode("utf-8", "surrogatepass")) > TOPIC_BYTES_MAX:
        raise ValueError(f"a filter has at most {TOPIC_LEVELS_MAX} levels and {TOPIC_BYTES_MAX} bytes")
    return topic


def checked_base(base: object) -> str:
    """The base URI of a CoAP device in normal form, such as ``coap://192.168.7.20:61616``. Raises ValueError."""
    if not isinstance(base, str) or len(base) > NAME_CHARS_MAX or not _BASE.fullmatch(base):
        raise ValueError("the base is not a coap:// URI of a host, with its port if that is not 5683")
    _check_normal(f"{base}/")
    return base


def checked_resource(base: str, resource: object) -> str:
    """A resource of the device with this base, without captures and with all but unreserved characters percent-encoded.

    Raises ValueError: no text, too long, of another device, or with a segment ``.`` or ``..``.
    """
    if not isinstance(resource, str) or len(resource) > TOPIC_BYTES_MAX:
        raise ValueError(f"a resource is a text of at most {TOPIC_BYTES_MAX} characters")
    path = resource.removeprefix(base)
    if path == resource or not _RESOURCE_PATH.fullmatch(path):
        raise ValueError(f"{plain(resource)!r} is not a resource of {base}")
    levels = path.partition("?")[0].split("/")
    if len(levels) > TOPIC_LEVELS_MAX or {".", ".."} & set(levels):
        raise ValueError(f"a path has at most {TOPIC_LEVELS_MAX} levels, none of them '.' or '..'")
    _check_normal(resource)
    return resource


def _check_normal(uri: str) -> None:
    try:
        normal = uris.normal(uri)
    except PayloadError as error:
        raise ValueError(str(error)) from error
    if normal != uri:
        raise ValueError(f"{plain(uri)!r} is not in normal form; write {plain(normal)!r}")


def member_path(names: Sequence[str | int]) -> str:
    """The JSON path of a rule table, such as ``battery.cells[0]["a.b"]``. Raises ValueError."""
    if not 0 < len(names) <= MEMBERS_MAX:
        raise ValueError(f"a JSON path has 1 to {MEMBERS_MAX} levels")
    path = ""
    for name in names:
        if isinstance(name, int):
            if not 0 <= name < 1_000:
                raise ValueError("an index in a JSON path is 0 to 999")
            path += f"[{name}]"
        elif not name or len(name) > WORD_CHARS_MAX or _NOT_IN_MEMBER.search(name) or not name.isprintable():
            raise ValueError(f"the member name {plain(name)!r} cannot be used")
        elif _PLAIN_MEMBER.fullmatch(name):
            path += f".{name}" if path else name
        else:
            path += f'["{name}"]'
    return path


def checked_words(words: Iterable[object]) -> list[str]:
    """Payloads as texts, without repetition: a boolean as JSON spells it. Raises ValueError."""
    found: dict[str, None] = {}
    for word in words:
        if isinstance(word, bool):
            found["true" if word else "false"] = None
        elif isinstance(word, str | int | float):
            text = str(word)
            if not text or len(text) > WORD_CHARS_MAX or not text.isprintable():
                raise ValueError(f"the value {plain(text)!r} is empty, too long, or has control characters")
            found[text] = None
        else:
            raise ValueError("a value is neither text, number nor boolean")
    if len(found) > WORDS_MAX:
        raise ValueError(f"there are more than {WORDS_MAX} values")
    return list(found)


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _check_room(name: str, known: Mapping[str, object], most: int, what: str) -> None:
    """Raises ValueError if a name is taken, or if there is no room for another one."""
    if name in known:
        raise ValueError("there are two of this name")
    if len(known) >= most:
        raise ValueError(f"the device has more than {most} {what}")


class DeviceTexts(NamedTuple):
    """What an announcement says of a device, for people. What is no text becomes ""."""

    name: object = ""
    manufacturer: object = ""
    model: object = ""
    area: object = ""


class Draft:
    """One device that is being read from an announcement. Its parts are added by key; `device` is the result.

    topic: of the announcement, for problems. Raises ValueError if the identifier cannot be used.
    """

    def __init__(
        self,
        source: str,
        identifier: object,
        *,
        broker: str,
        topic: str,
        about: DeviceTexts,
    ) -> None:
        if not isinstance(identifier, str):
            raise ValueError("the identifier of the device is not a text")
        self.id = segment(identifier)
        self.source = source
        self.identity = f"{source}/{self.id}"
        self.problems: list[Problem] = []
        # Lines for people of what the announcement says and no part of the device is made of.
        self.left_out: list[str] = []
        self._broker, self._topic = broker, topic
        self._texts = {member: plain(text) for member, text in about._asdict().items()}
        self._texts["name"] = self._texts["name"] or self.id
        self._sensors: dict[str, Sensor] = {}
        self._actuators: dict[str, Actuator] = {}
        self._availability: list[Table] = []
        self._asks: dict[Ask, None] = {}
        self.mode: Literal["all", "any", "latest"] = "all"

    def problem(self, reason: str) -> None:
        """Notes why something of the announcement is not used."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(self.source, self._broker, self._topic, plain(reason, 400), self.identity))

    def leave_out(self, names: Iterable[str], label: str = "") -> None:
        """Notes what is not used. names: keys of the announcement; label: the part of the device that they are about,
        empty if they are about the device."""
        found = sorted({plain(name, 80) for name in names} - {""})
        more = len(found) - LEFT_OUT_NAMES_MAX
        line = ", ".join(found[:LEFT_OUT_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
        if found and len(self.left_out) < LEFT_OUT_MAX:
            self.left_out.append(f"{plain(label, 80)}: {line}" if label else line)

    def sensor(
        self,
        key: str,
        kind: str,
        topic: object,
        payload: Payload,
        *,
        label: object = "",
        member: Sequence[str | int] = (),
        on: Iterable[object] = (),
        off: Iterable[object] = (),
        unit: object = None,
        also: Sequence[tuple[object, Sequence[str | int]]] = (),
        instead: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Table | None:
        """Adds a value that the device publishes. Returns its stream table; None if it is refused, which is a problem.

        kind: prefixed name, or a path for what no kind fits. member: JSON path. also: further topics of the value, each
        with its path. more: further keys of the table; instead: keys in place of those that were checked.
        """
        try:
            name = segment(key)
            table = self._stream(name, kind, topic, payload, plain(label) or key, member, on, off, unit)
            if also:
                table["also"] = [{"topic": checked_topic(place), "member": member_path(path)} for place, path in also]
            table |= more | dict(instead or {})
            _check_room(name, self._sensors, SENSORS_MAX, "sensors")
        except ValueError as error:
            self.problem(f"{plain(key)}: {error}")
            return None
        self._sensors[name] = Sensor(name, kind, plain(label) or name, table)
        return table

    def actuator(
        self,
        key: str,
        kind: str,
        topic: object,
        *,
        label: object = "",
        payload: str = "{value}",
        template: str | None = None,
        values: Mapping[str, object] | None = None,
        state: Table | None = None,
        minimum: object = None,
        maximum: object = None,
        qos: int = 1,
        retain: bool = False,
        lamp: Table | None = None,
        scale: float | None = None,
        offset: float | None = None,
    ) -> None:
        """Adds a state that can be set.

        template: in place of the payload, see `CommandTable`.
        values: desired state -> text, or boolean as JSON spells it; None: any text. state: the stream table that reads
        it back. lamp: the keys of `LampPart`, of a lamp of this device. scale, offset: the state is the number in the
        message * scale + offset. The message is retained only if the announcement asks for it.
        """
        if len(payload) > PAYLOAD_CHARS_MAX:
            self.problem(f"{plain(key)}: the payload of the command has more than {PAYLOAD_CHARS_MAX} characters")
            return
        message: Table = {"payload": payload, "qos": qos if qos in (0, 1, 2) else 1, "retain": retain}
        if lamp is not None:
            message["lamp"] = lamp | {"of": f"{self.identity}/{lamp['of']}"}
        further = ("template", template), ("scale", scale), ("offset", offset)
        message |= {name: one for name, one in further if one is not None}
        self._add_actuator(
            key, kind, topic, message, label=label, values=values, state=state, minimum=minimum, maximum=maximum
        )

    def _add_actuator(
        self,
        key: str,
        kind: str,
        place: object,
        message: Table,
        *,
        label: object,
        values: Mapping[str, object] | None,
        state: Table | None,
        minimum: object,
        maximum: object,
    ) -> None:
        """place: as `_place` takes it; message: the keys that only commands of one protocol have."""
        try:
            name = segment(key)
            command = self._place(place) | {"actuator": f"actuator/{self.identity}/{name}"} | message
            bounds = {"minimum": number(minimum), "maximum": number(maximum)}
            given = {"minimum": minimum, "maximum": maximum}
            self.leave_out([side for side, bound in bounds.items() if bound is None and given[side] is not None], key)
            command |= {name: bound for name, bound in bounds.items() if bound is not None}
            if values is not None:
                if len(values) > WORDS_MAX:
                    raise ValueError(f"there are more than {WORDS_MAX} values")
                command["values"] = {
                    checked_words([word])[0]: checked_words([text])[0] for word, text in values.items()
                }
            _check_room(name, self._actuators, ACTUATORS_MAX, "actuators")
        except ValueError as error:
            self.problem(f"{plain(key)}: {error}")
            return
        self._actuators[name] = Actuator(
            name, kind, plain(label) or name, command, state, bounds["minimum"], bounds["maximum"]
        )

    def online(
        self,
        topic: object,
        on: Iterable[object],
        off: Iterable[object],
        member: Sequence[str] = (),
        *,
        bare: bool = False,
        template: str | None = None,
    ) -> None:
        """Adds a topic that says whether the device is online. member: JSON path of the word; bare: the word may also
        come without JSON; template: what makes the word of a payload."""
        try:
            table: Table = {
                "topic": checked_topic(topic),
                "broker": self._broker,
                "on": checked_words(on),
                "off": checked_words(off),
            }
            if member:
                member_path(member)
                table["member"] = list(member)
            if bare:
                table["bare"] = True
            if template is not None:
                table["template"] = template
            if len(self._availability) >= AVAILABILITY_TOPICS_MAX:
                raise ValueError(f"there are more than {AVAILABILITY_TOPICS_MAX} topics")
        except ValueError as error:
            self.problem(f"availability: {error}")
            return
        if table not in self._availability:
            self._availability.append(table)

    def ask(self, topic: object, payload: str) -> None:
        """Adds a message that makes the device send its state."""
        try:
            if len(self._asks) >= ASKS_MAX or len(payload) > PAYLOAD_CHARS_MAX:
                raise ValueError(f"there are more than {ASKS_MAX} messages for it, or a long one")
            self._asks[Ask(checked_topic(topic), payload)] = None
        except ValueError as error:
            self.problem(f"its state cannot be asked for: {error}")

    def device(self) -> Device:
        """The device as it is now; parts in the order of their keys."""
        return Device(
            id=self.id,
            source=self.source,
            broker=self._broker,
            **self._texts,
            sensors=tuple(self._sensors[key] for key in sorted(self._sensors)),
            actuators=tuple(self._actuators[key] for key in sorted(self._actuators)),
            availability=Availability(tuple(self._availability), self.mode) if self._availability else None,
        ).with_asks(self._asks)

    def _place(self, place: object) -> Table:
        """The keys that say where a state is written. Raises ValueError."""
        return {"topic": checked_topic(place), "broker": self._broker}

    def _source(self, place: object) -> Table:
        """The keys that say where a value is read. Raises ValueError."""
        return {"topic": checked_filter(place), "broker": self._broker}

    def _stream(
        self,
        key: str,
        kind: str,
        topic: object,
        payload: Payload,
        label: str,
        member: Sequence[str | int],
        on: Iterable[object],
        off: Iterable[object],
        unit: object,
    ) -> Table:
        table = self._source(topic) | {
            "property": kind,
            "payload": payload,
            "sensor": f"sensor/{self.identity}/{key}",
            "feature": f"device/{self.identity}",
            "platform": f"device/{self.identity}",
            "label": label.replace("{", "(").replace("}", ")"),
        }
        if member:
            table |= {"member": member_path(member), "optional": True}
        if payload == "boolean":
            table |= {"on": checked_words(on), "off": checked_words(off)}
            if set(table["on"]) & set(table["off"]):
                raise ValueError("the same value means on and off")
        if unit is not None and not isinstance(unit, str):
            self.leave_out(["unit"], key)
        if isinstance(unit, str) and (spelled := unit.strip()) and payload == "number":
            if len(spelled) > UNIT_CHARS_MAX or not spelled.isprintable() or ":" in spelled:
                raise ValueError(f"the unit {plain(unit)!r} cannot be used")
            table["unit"] = spelled
        return table


class ResourceDraft(Draft):
    """A CoAP device that is being read from its links. broker: its base URI; a topic is the URI of a resource."""

    def resource_actuator(
        self,
        key: str,
        kind: str,
        resource: object,
        *,
        content_format: str,
        label: object = "",
        values: Mapping[str, object] | None = None,
        minimum: object = None,
        maximum: object = None,
    ) -> None:
        """Adds a state that can be set, and is read from the same resource. values: as for `actuator`."""
        message = {"content_format": content_format}
        self._add_actuator(
            key, kind, resource, message, label=label, values=values, state=None, minimum=minimum, maximum=maximum
        )

    def _place(self, place: object) -> Table:
        return {"resource": checked_resource(self._broker, place)}

    def _source(self, place: object) -> Table:
        return self._place(place)


class ThingDraft(Draft):
    """A device that is being read from its Thing Description. broker: that of its topics. A place is a topic, or the
    URI of a resource."""

    def __init__(self, identifier: str, *, broker: str, name: object) -> None:
        """identifier: the id of the description."""
        super().__init__(THING, identifier, broker=broker, topic="", about=DeviceTexts(name))
        self._thing = identifier

    def thing_actuator(
        self,
        key: str,
        kind: str,
        place: object,
        message: Table,
        *,
        label: object = "",
        values: Mapping[str, object] | None = None,
        state: Table | None = None,
        minimum: object = None,
        maximum: object = None,
    ) -> None:
        """Adds a state that can be set. message: the keys of the command that say how it is sent. The others are as for
        `actuator`."""
        self._add_actuator(
            key, kind, place, message, label=label, values=values, state=state, minimum=minimum, maximum=maximum
        )

    def state_table(
        self, key: str, kind: str, topic: object, payload: Payload, *, on: Sequence[str] = (), off: Sequence[str] = ()
    ) -> Table:
        """The stream table that reads the state of an actuator. Raises ValueError."""
        return self._stream(segment(key), kind, topic, payload, key, (), on, off, None)

    def device(self) -> Device:
        return msgspec.structs.replace(super().device(), thing=self._thing)

    def _place(self, place: object) -> Table:
        if isinstance(place, str) and place.partition("://")[0] in uris.SCHEMES:
            return {"resource": checked_resource(resource_base(place), place)}
        return super()._place(place)

    def _source(self, place: object) -> Table:
        return self._place(place)


def resource_base(resource: str) -> str:
    """The base URI of a resource of any scheme. Raises ValueError."""
    scheme, _, rest = resource.partition("://")
    base = f"{scheme}://{rest.partition('/')[0]}"
    if scheme not in uris.SCHEMES or len(base) > NAME_CHARS_MAX or not _AUTHORITY.fullmatch(rest.partition("/")[0]):
        raise ValueError(f"{plain(resource)!r} is not the URI of a resource")
    _check_normal(f"{base}/1/0" if uris.kind_of_uri(base) == "modbus" else f"{base}/")
    return base


def own_kind(name: str) -> str:
    """The kind of a value for which the vocabulary has none: a path below the base IRI. Raises ValueError."""
    return f"property/{segment(name)}"
