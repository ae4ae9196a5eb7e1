"""Mapping rules as tables, and the readings of a message, for tests of the mapping."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from lamplighter.adapters.mapping import Mapping, StreamRule, StreamTable
from lamplighter.adapters.model.readings import Reading
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import PREFIXES

BASE = "http://gateway.example/"
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
EX = "http://example.org/ns#"
TWO_READINGS = """\
[[stream]]
topic = "z/{device}"
payload = "number"
[[stream.read]]
member = "temperature"
property = "lighting:temperature"
unit = "°C"
[[stream.read]]
member = "occupancy"
property = "lighting:presence"
payload = "boolean"
"""
"""A number and a boolean of one message."""


def rules(text: str) -> Mapping:
    """The mapping of `[[stream]]` tables in TOML. The prefix ex is declared."""
    tables = tomllib.loads(text, parse_float=Decimal)["stream"]
    return Mapping([rule(table) for table in tables])


def rule(table: dict[str, Any]) -> StreamRule:
    made_of = msgspec.convert(table, StreamTable)
    return StreamRule(made_of, prefixes=PREFIXES | {"ex": EX}, base_iri=BASE, place=f"rule of {made_of.topic}")


def values(
    mapping: Mapping, topic: str, payload: bytes | str, *, received: datetime = NOON, **more: Any
) -> dict[str, str]:
    """Value by the path of the sensor's IRI behind ``sensor/``; an error is raised."""
    found = {}
    for reading in readings(mapping, topic, payload, received=received, **more):
        found[lexical(reading.stream.sensor).removeprefix(f"{BASE}sensor/")] = lexical(reading.value)
    return found


def readings(
    mapping: Mapping,
    topic: str,
    payload: bytes | str,
    *,
    received: datetime = NOON,
    retained: bool = False,
    **more: Any,
) -> list[Reading]:
    """The readings of a message without faults; the first error is raised."""
    data = payload.encode() if isinstance(payload, str) else payload
    found = mapping.readings(topic, data, retained=retained, received=received, **more)
    for one in found:
        if isinstance(one, PayloadError):
            raise one
    return [one for one in found if isinstance(one, Reading)]
