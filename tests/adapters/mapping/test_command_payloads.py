"""The payloads of `[[command]]` rules."""

from __future__ import annotations

import msgspec
import pytest

from lamplighter.adapters.mapping import CommandRule, CommandTable, command_rule
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.mapping_rules import BASE
from tests.support.tables import each_row

TRUE = literal("true", datatype=XSD + "boolean")


def rule(**changes: object) -> CommandRule:
    table = {
        "topic": "lamp/set",
        "actuator": "actuator/lamp",
        "payload": '{"state": {json}}',
        "values": {"true": "ON", "false": "OFF"},
    }
    made_of = msgspec.convert(table | changes, CommandTable)
    return command_rule(made_of, prefixes=PREFIXES, base_iri=BASE, place="rule")


@each_row(
    ("changes", "state", "payload"),
    [
        ({}, TRUE, '{"state": "ON"}'),
        ({"payload": "{value}", "values": {}}, TRUE, "true"),
        ({"payload": "{value}", "values": {}}, literal("{json}"), "{json}"),
        ({"payload": "{json}", "values": {}}, literal('a"b'), '"a\\"b"'),
        ({"payload": '{"brightness": {value}}', "values": {}}, literal("7", datatype=XSD + "integer"), "{...7}"),
        ({"payload": "{json}", "values": {"true": "1", "false": "0"}}, TRUE, '"1"'),
        ({"payload": "{json}", "values": {}}, literal("07", datatype=XSD + "integer"), '"07"'),
    ],
)
def test_payload(changes: dict[str, object], state: Term, payload: str) -> None:
    assert command_payload(rule(**changes), state).decode() == payload.replace("...", '"brightness": ')


@each_row(
    ("scaling", "state", "number"),
    [
        ({"scale": -1, "offset": 100}, "30", "70"),
        ({"scale": 0.392156862745}, "50", "128"),
        ({"scale": 0.392156862745}, "100", "255"),
        ({"scale": 25}, "30.5", "1"),
        ({"offset": 7}, "7", "0"),
        ({"scale": 1}, "-2.5", "-2"),
    ],
)
def test_a_state_on_the_scale_of_the_device(scaling: dict[str, object], state: str, number: str) -> None:
    for payload in ("{value}", "{json}"):
        scaled = rule(values={}, payload=payload, **scaling)
        assert command_payload(scaled, literal(state, datatype=XSD + "decimal")).decode() == number


def test_a_scale_of_0_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="scale = 0"):
        rule(scale=0)


def test_switch_of_a_lamp_with_a_scale_is_refused() -> None:
    lamp = {"of": "lamp", "role": "switch", "on": [["", "on"], ["brightness", " {brightness}"]]}
    with pytest.raises(ConfigurationError, match=r"lamp: the switch of a lamp has no scale; write scale"):
        rule(scale=2, lamp=lamp)


@each_row(
    ("changes", "state", "reason"),
    [
        ({}, literal("dim"), "not one of"),
        ({"values": {}, "minimum": 0, "maximum": 254}, literal("255", datatype=XSD + "integer"), "between 0 and 254"),
        ({"values": {}, "minimum": 0}, literal("nan"), "not between"),
        ({"values": {}, "minimum": 0}, literal("-1", datatype=XSD + "integer"), "between 0 and inf"),
        ({"values": {}, "maximum": 1}, literal("bright"), "not a number"),
        ({"values": {}}, literal("x" * 2_000_000), "bytes"),
        ({"values": {}, "scale": 2}, literal("bright"), "not a number"),
        ({"values": {}, "offset": 2}, literal("1" * 65), "not a number"),
    ],
)
def test_states_that_give_no_message(changes: dict[str, object], state: Term, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        command_payload(rule(**changes), state)


def test_the_reason_of_a_refusal_is_short_whatever_rule_and_state_have() -> None:
    values = {f"value{number}": "ON" for number in range(5_000)}
    with pytest.raises(PayloadError) as raised:
        command_payload(rule(values=values), literal("x" * 100_000))
    assert len(str(raised.value)) < 1_000


def test_template_with_many_slots_does_not_multiply_a_long_state() -> None:
    for slot in ("{value}", "{json}"):
        with pytest.raises(PayloadError, match="more than 65536 bytes"):
            command_payload(rule(values={}, payload=slot * 5_000), literal("x" * 50_000))
