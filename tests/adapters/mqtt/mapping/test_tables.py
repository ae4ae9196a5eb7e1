"""The rule tables, read from TOML and from JSON."""

import tomllib
from decimal import Decimal

import msgspec
import pytest

from lamplighter.adapters.mqtt.mapping import CommandTable, StreamTable, table_json

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


@pytest.mark.parametrize(
    "text", ['{"topic": "t", "topik": 1}', '{"topic": "t", "throttle_s": -1}', '{"payload": "text"}']
)
def test_bad_table_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=StreamTable)
