"""The rule tables, read from TOML and from JSON."""

import json
import tomllib
from decimal import Decimal

import msgspec
import pytest

from lamplighter.adapters.mapping import CommandTable, Mapping, StreamTable, command_rule, table_json
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.mapping_rules import BASE, NOON
from tests.support.tables import each_row

HOUSE = """
topic = "zigbee2mqtt/{name}"
payload = "number"
on_repeat = "ignore"
scale = 0.1
read = [
    {member = "temperature", property = "gateway:temperature", unit = "Cel"},
    {member = "contact", property = "gateway:open", payload = "boolean", on = ["false"], off = ["true"]},
]
"""


def test_table_survives_json_and_keeps_decimals_exactly() -> None:
    table = msgspec.convert(tomllib.loads(HOUSE, parse_float=Decimal), StreamTable)
    assert table.scale == Decimal("0.1")
    assert msgspec.json.decode(table_json(table), type=StreamTable) == table
    assert "throttle_s" not in table_json(table)


def test_json_numbers_are_taken_exactly() -> None:
    assert msgspec.json.decode('{"topic": "t", "scale": 0.1}', type=StreamTable).scale == Decimal("0.1")


def test_command_reads_the_reported_state() -> None:
    text = '{"topic": "z/lamp/set", "values": {"true": "ON"}, "state": {"topic": "z/lamp", "member": "state"}}'
    table = msgspec.json.decode(text, type=CommandTable)
    assert (table.qos, table.retain, table.payload) == (1, False, "{value}")
    assert table.state is not None and table.state.member == "state"
    assert msgspec.json.decode(table_json(table), type=CommandTable) == table


@each_row(
    ("values", "payload", "states"),
    [
        ({"true": "ON", "false": "OFF"}, "OFF", [literal("false", datatype=XSD + "boolean")]),
        ({"low": "1", "high": "2"}, "2", [literal("2")]),
        ({"true": "ON", "false": "OFF"}, None, []),
    ],
)
def test_reported_state_is_read_as_the_command_writes_it(
    values: dict[str, str], payload: str | None, states: list[Term]
) -> None:
    table = CommandTable(topic="z/lamp/set", values=values, state=StreamTable(topic="z/lamp", member="state"))
    mapping = Mapping([], [command_rule(table, prefixes=PREFIXES, base_iri=BASE, place="<http://e/rule>")])
    message = json.dumps({"brightness": 7} | ({} if payload is None else {"state": payload})).encode()
    found = mapping.reports("z/lamp", message, retained=False, received=NOON)
    assert found is not None
    assert [one if isinstance(one, PayloadError) else one[1] for one in found] == states


@each_row("text", ['{"topic": "t", "topik": 1}', '{"topic": "t", "throttle_s": -1}', '{"payload": "text"}'])
def test_bad_table_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=StreamTable)
