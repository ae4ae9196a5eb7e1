"""A payload, decoded at most once per format however many values are read from it.

Reasons of errors never quote the payload.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from lamplighter.engine.errors import PayloadError

PAYLOAD_BYTES_MAX = 65_536
MEMBERS_MAX = 1_024
"""Members that one capture in a path takes from a message."""
NAME_CHARS_MAX = 256
"""Of a member that is captured, since it becomes a part of IRIs."""
WHERE_MAX = 8
"""Members that choose the messages of a value."""
_STEPS_MAX = 32

Found = str | bool | int | float
"""A value as found in a payload: text, `Number`, a JSON or protobuf number, or a boolean."""


Decoded = TypeVar("Decoded")


class Number(str):
    """A number as spelled; the spelling distinguishes integer, decimal and double."""

    __slots__ = ()


class AbsentError(PayloadError):
    """The payload does not have the value. That is no fault where the value is optional."""


class NullError(PayloadError):
    """The payload says that there is no value: its member is null."""


_DECODER = msgspec.json.Decoder(float_hook=Number)


class Csv(NamedTuple):
    """titles: the first position of each title of the first row, empty if there is one row only; last: the last row."""

    titles: dict[str, int]
    last: list[str]


class Payload:
    """size and emptiness are checked by whoever makes it."""

    __slots__ = ("_decoded", "_json", "_text", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._json: Any = _UNREAD
        self._text: str | None = None
        self._decoded: dict[str, Any] | None = None

    @property
    def form(self) -> str:
        """The content format, if the message names one."""
        return ""

    def whole(self) -> Found:
        """The payload as one value. Raises PayloadError."""
        return self.text()

    def binary(self) -> bytes:
        """Raises PayloadError."""
        return self.data

    def text(self) -> str:
        """Raises PayloadError."""
        try:
            if self._text is None:
                self._text = self.data.decode()
            return self._text
        except UnicodeDecodeError as error:
            raise PayloadError("payload is not UTF-8") from error

    def json(self) -> Any:
        """The document; numbers with a point or an exponent are `Number`. Raises PayloadError."""
        if self._json is _UNREAD:
            try:
                self._json = _DECODER.decode(self.data)
            except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
                self._json = _BROKEN
        if self._json is _BROKEN:
            raise PayloadError("payload is not JSON")
        return self._json

    def csv(self, separator: str) -> Csv:
        """The first and the last row that are not empty. Raises PayloadError."""
        return self.once(f"csv {separator}", lambda: self._rows(separator))

    def once(self, format_: str, decode: Callable[[], Decoded]) -> Decoded:
        """What `decode` returned the first time. Raises what it raised."""
        if self._decoded is None:
            self._decoded = {}
        if format_ not in self._decoded:
            try:
                self._decoded[format_] = decode()
            except PayloadError as error:
                self._decoded[format_] = error
        decoded = self._decoded[format_]
        if isinstance(decoded, PayloadError):
            raise decoded
        return decoded  # type: ignore[no-any-return]

    def _rows(self, separator: str) -> Csv:
        first: list[str] | None = None
        last: list[str] = []
        header = False
        try:
            for row in csv.reader(self.text().splitlines(), delimiter=separator, strict=True):
                if row:
                    header = first is not None
                    first, last = first or row, row
        except csv.Error as error:
            raise PayloadError("payload is not CSV") from error
        titles: dict[str, int] = {}
        if header and first is not None:
            for number, title in enumerate(first):
                titles.setdefault(title.strip(), number)
        return Csv(titles, last)


_UNREAD, _BROKEN = object(), object()


class _MemberStep(NamedTuple):
    name: str


class _Every(NamedTuple):
    """Each member of an object, captured under a name."""

    capture: str


_STEP = re.compile(
    r"(?:^|\.)(?:\{(?P<capture>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<name>[^.\[\]\"{}]+))"
    r"|\[(?:(?P<index>[0-9]{1,4})|\"(?P<quoted>[^\"]+)\")\]"
)


class JsonPath:
    """A path such as ``battery.level``, ``switches[0].state``, ``["Node.1"].temperature`` or ``sensors.{n}.value``.

    names: its captures; a path with captures has many values.
    """

    def __init__(self, path: str) -> None:
        """Raises ValueError."""
        steps: list[_MemberStep | int | _Every] = []
        at = 0
        while at < len(path):
            found = _STEP.match(path, at)
            if found is None:
                raise ValueError(
                    "write names with single dots between them, such as 'battery.level', "
                    'and [0] or ["a.b"] for items and names with dots'
                )
            if found["index"] is not None:
                steps.append(int(found["index"]))
            elif found["capture"] is not None:
                steps.append(_Every(found["capture"]))
            else:
                steps.append(_MemberStep(found["name"] if found["quoted"] is None else found["quoted"]))
            at = found.end()
        if not 0 < len(steps) <= _STEPS_MAX:
            raise ValueError(f"write a path of 1 to {_STEPS_MAX} names")
        names = [step.capture for step in steps if isinstance(step, _Every)]
        if len(set(names)) < len(names):
            raise ValueError("captures a name twice")
        self.text = path
        self.names = frozenset(names)
        self._steps = tuple(steps)

    def one(self, document: Any) -> Found:
        """The value of a path without captures. Raises AbsentError, NullError and PayloadError."""
        for step in self._steps:
            document = self._next(document, step)
        return self._single(document)

    def many(self, document: Any) -> Iterator[tuple[dict[str, str], Found]]:
        """Captures and value of each place that the path has in a document. What does not fit the path is passed over.

        Raises PayloadError for too many members and for long names.
        """
        places: list[tuple[dict[str, str], Any]] = [({}, document)]
        for step in self._steps:
            found: list[tuple[dict[str, str], Any]] = []
            for captures, node in places:
                if isinstance(step, _Every):
                    if isinstance(node, dict):
                        if any(len(name) > NAME_CHARS_MAX for name in node):
                            raise PayloadError(f"a member's name has more than {NAME_CHARS_MAX} characters")
                        found += [(captures | {step.capture: name}, member) for name, member in node.items()]
                else:
                    try:
                        found.append((captures, self._next(node, step)))
                    except AbsentError:
                        continue
                if len(found) > MEMBERS_MAX:
                    raise PayloadError(f"member {self.text} has more than {MEMBERS_MAX} places")
            places = found
        for captures, node in places:
            if node is not None and not isinstance(node, dict | list):
                yield captures, node

    def _next(self, node: Any, step: _MemberStep | int | _Every) -> Any:
        if isinstance(step, _MemberStep) and isinstance(node, dict) and step.name in node:
            return node[step.name]
        if isinstance(step, int) and isinstance(node, list) and step < len(node):
            return node[step]
        raise AbsentError(f"member {self.text} is missing")

    def _single(self, node: Any) -> Found:
        if node is None:
            raise NullError(f"member {self.text} is null")
        if isinstance(node, dict | list):
            raise PayloadError(f"member {self.text} is not a single value")
        found: Found = node
        return found


def find_where(members: Mapping[str, Found], find: Callable[[Payload], Found]) -> Callable[[Payload], Found]:
    """What `find` finds, of messages whose members have these values; of others, nothing. Raises ValueError."""
    if not 0 < len(members) <= WHERE_MAX:
        raise ValueError(f"write 1 to {WHERE_MAX} members")
    wanted = [(JsonPath(path), _spelling(word)) for path, word in members.items()]
    if any(path.names for path, _ in wanted):
        raise ValueError("write paths without captures")

    def find_there(payload: Payload) -> Found:
        document = payload.json()
        for path, word in wanted:
            try:
                is_chosen = _spelling(path.one(document)) == word
            except PayloadError:  # null, or no single value
                is_chosen = False
            if not is_chosen:
                raise AbsentError("the message is about something else")
        return find(payload)

    return find_there


def _spelling(found: Found) -> str:
    return str(found).lower() if isinstance(found, bool) else str(found)
