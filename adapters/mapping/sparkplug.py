"""Sparkplug B (version 3.0.0): metrics of births and data messages are read; requests for births are written.

A birth names the metrics of a node or device, with their aliases, types and units. Data messages may have the alias
alone. `Births` remembers them, so it is kept as long as the connection to the broker.
"""

from __future__ import annotations

import math
import re
import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from lamplighter.adapters.mapping import protobuf, times
from lamplighter.adapters.mapping.payloads import Found, NullError
from lamplighter.engine.errors import PayloadError

NAMESPACE = "spBv1.0"
METRICS_MAX = 4_096
"""In a message, and remembered of a node or device."""
NODES_MAX = 1_024
METRICS_ALL_MAX = 65_536
"""Nodes and devices whose births are remembered, and metrics of all of them, which take 16 MB. The oldest births go
first."""
NAME_CHARS_MAX = 256

_SIGNED_BITS = {1: 8, 2: 16, 3: 32, 4: 64}
_BOOLEAN_TYPE = 11
_PROPERTIES = frozenset({b"engUnit", b"Quality", b"documentation", b"tooltip", b"displayFormat", b"readOnly"})
"""Those that are used, and those of user interfaces. Engineering limits (engLow, engHigh) are neither."""
_UNUSED = {8: "metadata", 16: "value of bytes", 17: "data set", 18: "template", 19: "value of an extension"}
"""Fields of a metric: bytes are 16, files too; 8 describes parts of a file."""
_CONTROL = ("Node Control/", "Device Control/")
_DEATH = re.compile(rf"{NAMESPACE}/([^/]+)/(?:NDEATH/([^/]+)|DDEATH/([^/]+)/([^/]+))")
_WITH_METRICS = frozenset({"NBIRTH", "DBIRTH", "NDATA", "DDATA"})


class _Birth(NamedTuple):
    """name, data type and unit of a metric."""

    name: str
    type: int
    unit: str | None


@dataclass(slots=True)
class _Metric:
    name: str | None = None
    alias: int | None = None
    timestamp: int | None = None
    type: int = 0
    null: bool = False
    historical: bool = False
    unit: str | None = None
    found: Found | None = None
    unused: tuple[str, ...] = ()
    """Properties, and kinds of values."""


class MetricRecord(NamedTuple):
    """A metric with a value. found: or that it is null; historical: it was not current any more when it was sent."""

    name: str
    own_name: str
    found: Found | NullError
    unit: str | None
    time: datetime | None
    historical: bool = False


class Births:
    """unborn: nodes (group, node) that sent aliases without a birth; `mqtt.rebirths` asks them, and removes them. born:
    those whose birth has come since it looked. left_out: by names of metrics, what `records` did not use of the last
    birth."""

    def __init__(self) -> None:
        self.unborn: set[tuple[str, str]] = set()
        self.born: set[tuple[str, str]] = set()
        self._births: OrderedDict[tuple[str, ...], dict[int | str, _Birth]] = OrderedDict()
        self._sessions: dict[tuple[str, ...], int] = {}
        """The number of each node's session, bdSeq, by which its death is recognised."""
        self.left_out: dict[str, str] = {}
        self._names = 0
        """Names and aliases of all births."""

    def records(self, topic: str, data: bytes) -> list[MetricRecord]:
        """The metrics with a value, or that are null; none for deaths and commands.

        Metrics of the protocol itself (bdSeq, Node Control/...) and those of other types than numbers, booleans and
        texts are left out. Raises PayloadError.
        """
        levels = topic.split("/")
        if levels[0] != NAMESPACE or not 4 <= len(levels) <= 5:
            raise PayloadError(f"the topic is not one of Sparkplug B ({NAMESPACE}/group/type/node/device)")
        group, kind, *edge = levels[1:]
        key = (group, *edge)
        if kind not in _WITH_METRICS:
            return []
        timestamp, metrics = _payload(memoryview(data))
        if kind.endswith("BIRTH"):
            self._remember(key, metrics)
        born = self._births.get(key, {})
        found = []
        for metric in metrics:
            birth = born.get(metric.alias if metric.name is None and metric.alias is not None else metric.name or "")
            name = metric.name if birth is None else birth.name
            if name is None:
                if len(self.unborn) < NODES_MAX:
                    self.unborn.add((group, edge[0]))
                raise PayloadError("a metric has an alias, and the birth that explains it has not been received")
            if name == "bdSeq" or name.startswith(_CONTROL) or (metric.found is None and not metric.null):
                continue
            value: Found | NullError
            if metric.null or metric.found is None:
                value = NullError("the metric is null")
            else:
                value = _to_signed(metric.found, metric.type or (birth.type if birth else 0))
            ms = metric.timestamp or timestamp
            unit, time = metric.unit or (birth.unit if birth else None), None
            if ms is not None:
                time = times.seconds(Decimal(ms) / 1000)
            found.append(MetricRecord(name, name, value, unit, time, metric.historical))
        return found

    def bury(self, topic: str, data: bytes) -> str | None:
        """Takes a death. Returns who is dead, for `is_of_dead`; None if it is of a former session of the node.

        Raises PayloadError.
        """
        found = _DEATH.fullmatch(topic)
        assert found is not None
        group, node, device = found[1], found[2] or found[3], found[4]
        key = (group, node) if device is None else (group, node, device)
        if device is None:
            number = _session(_payload(memoryview(data))[1])
            if number is not None and self._sessions.get(key, number) != number:
                return None  # the broker sends the will of a connection that it had not noticed to be broken
            self._sessions.pop(key, None)
        for born in [one for one in self._births if one[: len(key)] == key]:
            self._forget(born)
        return f"{group}/{node}" if device is None else f"{group}/{node}/{device}"

    def _remember(self, key: tuple[str, ...], metrics: list[_Metric]) -> None:
        births: dict[int | str, _Birth] = {}
        self.left_out = {}
        for metric in metrics:
            if metric.name is not None and (said := _omission(metric)):
                self.left_out[metric.name] = said
            if metric.name is not None:
                birth = births[metric.name] = _Birth(metric.name, metric.type, metric.unit)
                if metric.alias is not None:
                    births[metric.alias] = birth
        self._forget(key)
        self._births[key] = births
        number = _session(metrics)
        if len(key) == 2:
            self._sessions.pop(key, None)
            if number is not None:
                self._sessions[key] = number
            if len(self._sessions) > NODES_MAX:
                del self._sessions[next(iter(self._sessions))]
        self._names += len(births)
        # It stays in `unborn`: data that came behind this birth may have been lost with a connection.
        if len(self.born) < NODES_MAX:
            self.born.add((key[0], key[1]))
        while len(self._births) > NODES_MAX or self._names > 2 * METRICS_ALL_MAX:
            self._forget(next(iter(self._births)))

    def _forget(self, key: tuple[str, ...]) -> None:
        self._names -= len(self._births.pop(key, ()))


def rebirth_request(now: datetime) -> bytes:
    """The payload of a command that asks a node for its births. now: an aware datetime."""
    milliseconds = protobuf.varint_field(1, int(now.timestamp() * 1000))
    name = protobuf.bytes_field(1, b"Node Control/Rebirth")
    metric = name + protobuf.varint_field(4, _BOOLEAN_TYPE) + protobuf.varint_field(14, 1)
    return milliseconds + protobuf.bytes_field(2, metric)


def is_death(topic: str) -> bool:
    """Whether a topic is one of a death."""
    return "DEATH/" in topic and _DEATH.fullmatch(topic) is not None


def is_of_dead(topic: str, dead: str) -> bool:
    """Whether a topic of data is of a node or device that died, or of a device of such a node. dead: as `bury` says."""
    levels = topic.split("/")
    if len(levels) not in (4, 5) or levels[0] != NAMESPACE:
        return False
    return f"{'/'.join((levels[1], *levels[3:]))}/".startswith(f"{dead}/")


def _session(metrics: list[_Metric]) -> int | None:
    """The number of a node's session that a birth or a death names."""
    numbers = [one.found for one in metrics if one.name == "bdSeq" and isinstance(one.found, int)]
    return numbers[0] if numbers else None


def data_topic(topic: str) -> str:
    """The topic of data messages for a topic of births or data, so that both belong to one stream."""
    levels = topic.split("/")
    if levels[0] == NAMESPACE and len(levels) > 2 and levels[2] in _WITH_METRICS:
        levels[2] = f"{levels[2][0]}DATA"
    return "/".join(levels)


def _payload(data: memoryview) -> tuple[int | None, list[_Metric]]:
    timestamp = None
    metrics: list[_Metric] = []
    for number, wire_type, value in protobuf.fields(data):
        if number == 1 and isinstance(value, int):
            timestamp = value
        elif number == 2 and wire_type == protobuf.BYTES and not isinstance(value, int):
            if len(metrics) >= METRICS_MAX:
                raise PayloadError(f"payload has more than {METRICS_MAX} metrics")
            metrics.append(_metric(value))
        elif number == 4 and not isinstance(value, int) and bytes(value) == b"SPBV1.0_COMPRESSED":
            raise PayloadError("the payload is compressed, which is not supported")
    return timestamp, metrics


def _metric(data: memoryview) -> _Metric:
    metric = _Metric()
    name = unit = text = None  # the last one of each counts, and is decoded once
    for number, wire_type, value in protobuf.fields(data):
        if isinstance(value, int):
            if number == 2:
                metric.alias = value
            elif number == 3:
                metric.timestamp = value
            elif number == 4:
                metric.type = value
            elif number == 5:
                metric.historical = bool(value)
            elif number == 7:
                metric.null = bool(value)
            elif number in (10, 11):
                metric.found = value
            elif number == 14:
                metric.found = bool(value)
        elif number == 1:
            name = value
        elif number == 9:
            unit = value
            metric.unused += tuple(_properties(value))
        elif number in _UNUSED:
            metric.unused += (_UNUSED[number],)
        elif number == 12 and wire_type == protobuf.FIXED32:
            metric.found = _finite(struct.unpack("<f", value)[0])
        elif number == 13 and wire_type == protobuf.FIXED64:
            metric.found = _finite(struct.unpack("<d", value)[0])
        elif number == 15:
            text = value
    if name is not None:
        metric.name = _text(name)
        if len(metric.name) > NAME_CHARS_MAX:
            raise PayloadError(f"a metric's name has more than {NAME_CHARS_MAX} characters")
    if unit is not None:
        metric.unit = _unit(unit)
    if text is not None:
        metric.found = _text(text)
    return metric


def _omission(metric: _Metric) -> str:
    """What of a metric of a birth is not used; empty for all of those of the protocol."""
    assert metric.name is not None
    if metric.name == "bdSeq" or metric.name.startswith(_CONTROL):
        return ""
    if metric.found is None and not metric.null and not any(one in metric.unused for one in _UNUSED.values()):
        return ", ".join(("it has no value", *metric.unused))
    return ", ".join(metric.unused)


def _properties(data: memoryview) -> Iterator[str]:
    """Names of the properties that are not used."""
    for number, _, value in protobuf.fields(data):
        if number == 1 and not isinstance(value, int) and bytes(value) not in _PROPERTIES:
            yield f"property {bytes(value)[:NAME_CHARS_MAX].decode(errors='replace')}"


def _unit(data: memoryview) -> str | None:
    """The text of the property engUnit of a property set. Keys and values have the same order."""
    keys: list[memoryview] = []
    values: list[memoryview] = []
    for number, _, value in protobuf.fields(data):
        if not isinstance(value, int) and number in (1, 2):
            (keys if number == 1 else values).append(value)
    for key, value in zip(keys, values, strict=False):
        if bytes(key) == b"engUnit":
            return next((_text(v) for n, _, v in protobuf.fields(value) if n == 8 and not isinstance(v, int)), None)
    return None


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise PayloadError("payload has a text that is not UTF-8") from error


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _to_signed(found: Found, type_: int) -> Found:
    """A metric's value by its data type: negative integers are sent as their two's complement."""
    if type_ == _BOOLEAN_TYPE and isinstance(found, int):
        return bool(found)
    bits = _SIGNED_BITS.get(type_)
    if bits is None or isinstance(found, bool) or not isinstance(found, int):
        return found
    sent: int = found & ((1 << bits) - 1)
    half: int = 1 << (bits - 1)
    return sent - 2 * half if sent >= half else sent
