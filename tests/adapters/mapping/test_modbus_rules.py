"""`[[stream]]` and `[[command]]` rules for Modbus devices: bodies -> readings and reported states, states -> bodies."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.adapters.devices.desired import same_state
from lamplighter.adapters.literals import UNKNOWN
from lamplighter.adapters.mapping import (
    ReadingRules,
    ResourceCommandRule,
    ResourceCommandTable,
    ResourceRule,
    ResourceTable,
    resource_command,
)
from lamplighter.adapters.mapping.command_payloads import request_payload
from lamplighter.adapters.mapping.resources import OCTETS
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, lexical, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.amounts import AMOUNTS
from tests.support.mapping_rules import BASE, NOON
from tests.support.tables import each_row

METER = "modbus+tcp://192.168.7.20/1/40"
TRUE, FALSE = (literal(text, datatype=XSD + "boolean") for text in ("true", "false"))


def number(text: str, kind: str = "decimal") -> Term:
    return literal(text, datatype=XSD + kind)


def stream(resource: str = METER, **keys: Any) -> ResourceRule:
    table = msgspec.convert({"resource": resource, "property": "gateway:power"} | keys, ResourceTable)
    return ResourceRule(table, prefixes=PREFIXES, base_iri=BASE, place="rule")


def values(rule: ResourceRule, body: str) -> list[Term | str]:
    """body: in hexadecimal digits."""
    found = ReadingRules([rule]).readings(
        rule.name, read_body(bytes.fromhex(body), OCTETS, rule.accepted), retained=False, received=NOON
    )
    return [str(one) if isinstance(one, PayloadError) else one.value for one in found]


def command(resource: str = METER, **keys: Any) -> ResourceCommandRule:
    table = msgspec.convert({"resource": resource, "actuator": "pump"} | keys, ResourceCommandTable)
    return resource_command(table, prefixes=PREFIXES, base_iri=BASE, place="rule")


def body(rule: ResourceCommandRule, state: Term) -> str:
    return request_payload(rule, state, rule.uri({})).hex()


def reported(rule: ResourceCommandRule, data: str) -> Term | None:
    assert rule.state is not None
    received = read_body(bytes.fromhex(data), OCTETS, rule.state.accepted)
    return rule.state.value(received, rule.state_uri({}) or "", NOON)


@each_row(
    ("resource", "keys", "data", "value"),
    [
        (METER, {}, "ffff", number("65535", "integer")),
        (METER, {"type": "int16"}, "ffff", number("-1", "integer")),
        (METER, {"type": "int16", "scale": "0.1", "offset": "-20"}, "012c", number("10.0")),
        (f"{METER}?quantity=2", {"type": "float32"}, "41aa6666", number("21.3")),
        (f"{METER}?quantity=2", {"type": "float32", "word_order": "little"}, "666641aa", number("21.3")),
        (f"{METER}?quantity=2", {"type": "uint32", "byte_order": "little", "word_order": "little"}, "04030201",
         number(str(0x01020304), "integer")),
        (f"{METER}?quantity=3", {"type": "string"}, "706c63310000", literal("plc1")),
        (f"{METER}?quantity=2", {"type": "string", "words": {"run": True}}, "72756e00", TRUE),
        (METER, {"payload": "boolean"}, "0001", TRUE),
        (METER, {"payload": "text", "words": {"2": "AUTO"}}, "0002", literal("AUTO")),
        (METER, {"type": "bits", "member": "[3]"}, "0008", TRUE),
        (f"{METER}?quantity=3", {"member": "[2]"}, "000100020003", number("3", "integer")),
        (f"{METER}?entity=coil", {}, "01", TRUE),
        (f"{METER}?entity=discrete_input&quantity=2", {"member": "[1]"}, "0100", FALSE),
        (f"{METER}?quantity=2", {"type": "float32"}, "7f800000", "not a number"),
        (f"{METER}?quantity=2", {"type": "float32"}, "7fc00000", UNKNOWN),
        (METER, {"type": "int16"}, "00", "the body does not have 2 bytes for each of the registers of int16"),
        (f"{METER}?quantity=2", {}, "00010002", "the resource has 2 values; the rule needs member"),
    ],
)  # fmt: skip
def test_what_a_rule_reads(resource: str, keys: dict[str, Any], data: str, value: Term | str) -> None:
    if resource.endswith("?quantity=2") and not keys:
        with pytest.raises(ConfigurationError, match="member: is missing, and the resource has 2 values"):
            stream(resource)
        return
    assert values(stream(resource, **keys), data) == [value]


def test_several_values_of_one_resource() -> None:
    rule = stream(
        f"{METER}?quantity=4&entity=input_register",
        type="int32",
        scale="0.01",
        unit="unit:V",
        read=[{"property": "gateway:voltage", "member": "[0]"}, {"property": "gateway:power", "member": "[1]"}],
    )
    assert values(rule, "0000 5aa0 ffff ff9c") == [number("232.00"), number("-1.00")]
    [one, other] = rule.streams(rule.name)
    assert lexical(one.sensor) == f"{BASE}sensor/192.168.7.20~502/1/input_register-40-4/%5B0%5D"
    assert one.platform == other.platform


def test_names_of_streams() -> None:
    [found] = stream(f"{METER}?entity=coil").streams("192.168.7.20~502/1/coil-40")
    assert lexical(found.sensor) == f"{BASE}sensor/192.168.7.20~502/1/coil-40"
    assert lexical(found.platform) == f"{BASE}platform/192.168.7.20~502/1"
    assert found.topic == f"{METER}?entity=coil"


@each_row(
    ("resource", "keys", "reason"),
    [
        (METER, {"type": "float32"}, "resource: a value of type float32 has 2 registers; write quantity=2"),
        (f"{METER}?quantity=3", {"type": "int32", "member": "[0]"}, "write quantity=2"),
        (f"{METER}?entity=coil", {"type": "int16"}, "type: is for registers; a coil is true or false"),
        (METER, {"type": "bits"}, "member: is missing, and the resource has 16 values"),
        (METER, {"type": "bits", "member": "[16]"}, 'write "[0]" to "[15]"'),
        (METER, {"member": "power"}, 'write "[0]" to "[0]"'),
        (METER, {"format": ">h"}, "format: write type instead"),
        (METER, {"column": 1}, "column: write type instead"),
        (METER, {"where": {"a": 1}}, "where: is for JSON and CBOR"),
        (METER, {"accept": "json"}, "accept: is for other resources"),
        (METER, {"observe": "always"}, "observe"),
        (METER, {"max_age_s": 5}, "max_age_s"),
        (METER, {"payload": "senml"}, "senml is for rules with"),
        ("modbus+tcp://192.168.7.20/1", {}, "write unit and address as in modbus"),
        ("modbus+tcp://192.168.7.20/1/{n}", {}, "resource"),
        ("coap://192.168.7.20/t", {"payload": "number", "type": "int16"}, "type: is for modbus"),
    ],
)
def test_faulty_rules_name_key_and_cure(resource: str, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match="rule") as raised:
        stream(resource, **keys)
    assert reason in str(raised.value)


@each_row(
    ("resource", "keys", "state", "data"),
    [
        (METER, {}, number("7", "integer"), "0007"),
        (METER, {}, TRUE, "0001"),
        (METER, {"type": "int16", "scale": "0.5", "offset": "-40"}, number("-41.5"), "fffd"),
        (f"{METER}?quantity=2", {"type": "float32", "word_order": "little"}, number("21.3"), "666641aa"),
        (f"{METER}?quantity=4", {"type": "float64"}, number("0.1"), "3fb999999999999a"),
        (f"{METER}?quantity=3", {"type": "string"}, literal("plc1"), "706c63310000"),
        (f"{METER}?entity=coil", {}, FALSE, "00"),
        (f"{METER}?entity=coil", {"values": {"ON": "true", "OFF": "false"}}, literal("ON"), "01"),
        (METER, {"values": {"ON": "255", "OFF": "0"}}, literal("ON"), "00ff"),
    ],
)
def test_a_state_is_written_and_read_again(resource: str, keys: dict[str, Any], state: Term, data: str) -> None:
    rule = command(resource, **keys)
    assert body(rule, state) == data
    found = reported(rule, data)
    assert found is not None and (same_state(found, state) or (found, state) == (number("1", "integer"), TRUE))


def test_the_state_is_read_elsewhere() -> None:
    rule = command(
        f"{METER}?entity=coil",
        values={"ON": "1", "OFF": "0"},
        state={"resource": "modbus+tcp://192.168.7.20/1/7?entity=input_register", "words": {"3": "ON", "4": "OFF"}},
    )
    assert rule.state_uri({}) == "modbus+tcp://192.168.7.20/1/7?entity=input_register"
    assert [reported(rule, data) for data in ("0003", "0004")] == [literal("ON"), literal("OFF")]
    assert command(state=False).state is None


def test_a_query_gives_unit_and_address() -> None:
    query = "SELECT ?actuator ?state ?unit ?at WHERE { ?actuator gateway:desiredState ?state }"
    rule = command("modbus+tcp://192.168.7.20/{unit}/{at}", actuator=None, query=query)
    uri = rule.uri({"unit": "3", "at": "9"})
    assert uri == "modbus+tcp://192.168.7.20/3/9"
    assert request_payload(rule, number("7", "integer"), uri) == b"\0\7"
    for unit, reason in (("0", "every unit of a line"), ("1000", "write unit and address"), ("300", "at most 255")):
        with pytest.raises(PayloadError, match=reason):
            request_payload(rule, number("7", "integer"), rule.uri({"unit": unit, "at": "9"}))


@each_row(
    ("resource", "keys", "state", "reason"),
    [
        (METER, {}, number("65536", "integer"), "between 0 and 65535 (uint16)"),
        (METER, {}, number("1.5"), "not be an integer"),
        (METER, {"scale": "0.1"}, number("21.55"), "not be an integer"),
        (METER, {}, literal("ON"), "not a number"),
        (f"{METER}?entity=coil", {}, number("2", "integer"), "not true, false, 1 or 0"),
        (f"{METER}?quantity=2", {"type": "float32"}, number("21.123456789"), "round it, as to 21.123457"),
        (f"{METER}?quantity=2", {"type": "string"}, literal("plc10"), "4 bytes"),
        (METER, {"maximum": 5}, number("7", "integer"), "not between"),
        (METER, {"values": {"ON": "1"}}, literal("OFF"), "not one of the rule's values"),
    ],
)
def test_states_that_are_refused(resource: str, keys: dict[str, Any], state: Term, reason: str) -> None:
    with pytest.raises(PayloadError) as raised:
        body(command(resource, **keys), state)
    assert reason in str(raised.value)


def test_a_state_that_is_not_read_again_may_be_rounded() -> None:
    rule = command(f"{METER}?quantity=2", type="float32", state=False)
    assert body(rule, number("21.123456789")) == "41a8fcd7"


@each_row(
    ("resource", "keys", "reason"),
    [
        ("modbus+tcp://192.168.7.20/0/40", {}, "the unit 0 is every unit of a line"),
        (f"{METER}?entity=input_register", {}, "input_register cannot be written"),
        (f"{METER}?quantity=2", {}, "a state is one value"),
        (f"{METER}?quantity=124", {"type": "string"}, "at most 123 registers"),
        (f"{METER}?entity=coil&quantity=2", {}, "a state is one value"),
        (METER, {"type": "bits"}, "a state is one value"),
        (METER, {"method": "POST"}, "method: is for other protocols"),
        (METER, {"content_format": "json"}, "content_format: is for other protocols"),
        (METER, {"payload": "{value}"}, "payload: is for other protocols"),
        (METER, {"epoch": "/1/9"}, "epoch: is for other protocols"),
        (METER, {"scale": "0"}, "scale = 0"),
        (f"{METER}?entity=coil", {"scale": "2"}, "scale: is for numbers"),
        (METER, {"values": {"ON": "100000"}}, "values: '100000': the value for the register"),
        (METER, {"state": {"type": "float32"}}, "state: resource: a value of type float32 has 2 registers"),
        (METER, {"state": {"resource": "coap://192.168.7.20/t"}}, "of another protocol"),
        (METER, {"state": {"resource": f"{METER}?quantity=3"}}, "member: is missing, and the resource has 3 values"),
        ("coap://192.168.7.20/t", {"scale": "2"}, "scale: is for modbus"),
    ],
)
def test_faulty_commands_name_key_and_cure(resource: str, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match="rule") as raised:
        command(resource, **keys)
    assert reason in str(raised.value)


@settings(max_examples=AMOUNTS.of(150))
@given(
    st.integers(-32_768, 32_767),
    st.decimals(min_value="0.001", max_value="100", places=3),
    st.decimals(min_value=-100, max_value=100, places=2),
)
def test_each_state_with_a_scale_is_reported_again(raw: int, scale: Decimal, offset: Decimal) -> None:
    rule = command(type="int16", scale=str(scale), offset=str(offset))
    state = number(str(raw * scale + offset))
    found = reported(rule, body(rule, state))
    assert found is not None and same_state(found, state)
