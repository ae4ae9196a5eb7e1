"""`[[command]]` rules for resources of CoAP devices: URIs, bodies, and the states that devices report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.coap.settings import DEFAULT_QUERY
from lamplighter.adapters.mapping import (
    ResourceCommandRule,
    ResourceCommandTable,
    load_resource_rules,
    resource_command,
    table_json,
)
from lamplighter.adapters.mapping.cbor import decode
from lamplighter.adapters.mapping.command_payloads import request_payload
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.mapping_rules import BASE, NOON
from tests.support.tables import each_row

TRUE, FALSE = (literal(text, datatype=XSD + "boolean") for text in ("true", "false"))
LAMP = "coap://192.168.7.20/3311/0/5850"
QUERY = "SELECT ?actuator ?state ?host ?n WHERE { ?actuator gateway:desiredState ?state }"


def rule(**keys: Any) -> ResourceCommandRule:
    table = msgspec.convert({"resource": LAMP, "actuator": "lamp/hall"} | keys, ResourceCommandTable)
    return resource_command(table, prefixes=PREFIXES, base_iri=BASE, place="rule")


def of_query(resource: str, **keys: Any) -> ResourceCommandRule:
    return rule(resource=resource, actuator=None, query=QUERY, **keys)


def integer(text: str) -> Term:
    return literal(text, datatype=XSD + "integer")


@each_row(
    ("keys", "number", "state", "body"),
    [
        ({}, 0, TRUE, b"true"),
        ({"values": {"true": "ON", "false": "OFF"}}, 0, FALSE, b"OFF"),
        ({"payload": "level={value}"}, 0, integer("7"), b"level=7"),
        ({"payload": "{room} {value}"}, 0, integer("7"), b"{room} 7"),
        ({"content_format": "none"}, None, TRUE, b"true"),
        ({"content_format": 4711}, 4711, TRUE, b"true"),
        ({"content_format": 50}, 50, TRUE, b"true"),
        ({"content_format": "json"}, 50, literal("on"), b'"on"'),
        ({"content_format": "json", "payload": '{"on": {json}}'}, 50, TRUE, b'{"on": true}'),
        (
            {"content_format": "json", "payload": '{"on": "{value}"}', "values": {"true": "ON"}},
            50,
            TRUE,
            b'{"on": "ON"}',
        ),
        ({"content_format": "cbor"}, 60, integer("7"), b"\x07"),
        ({"content_format": "cbor", "payload": '{"on": {json}}'}, 60, TRUE, b"\xa1\x62on\xf5"),
        ({"content_format": "senml+json"}, 110, TRUE, b'[{"vb": true}]'),
        ({"content_format": "senml+json", "name": "lamp"}, 110, integer("7"), b'[{"n": "lamp", "v": 7}]'),
        ({"content_format": "senml+json"}, 110, literal("07"), b'[{"vs": "07"}]'),
        ({"content_format": "senml+json", "values": {"on": "1.5"}}, 110, literal("on"), b'[{"v": 1.5}]'),
        ({"content_format": "senml+cbor", "name": "a"}, 112, TRUE, b"\x81\xa2\x00\x61a\x04\xf5"),
        ({"content_format": "lwm2m+tlv"}, 11542, TRUE, b"\xe1\x16\xda\x01"),
        ({"content_format": "lwm2m+tlv"}, 11542, literal("1", datatype=XSD + "boolean"), b"\xe1\x16\xda\x01"),
        (
            {"content_format": "lwm2m+tlv", "values": {"ON": "true", "OFF": "false"}},
            11542,
            literal("OFF"),
            b"\xe1\x16\xda\0",
        ),
        (
            {"content_format": "lwm2m+json"},
            11543,
            TRUE,
            b'{"bn": "/3311/0/", "e": [{"n": "5850", "bv": true}]}',
        ),
    ],
)
def test_body_of_a_state(keys: dict[str, Any], number: int | None, state: Term, body: bytes) -> None:
    made = rule(**keys)
    assert made.content_format == number
    assert request_payload(made, state, made.uri({})) == body


@each_row(
    ("keys", "state", "reason"),
    [
        ({"values": {"true": "ON"}}, FALSE, "not one of the rule's values"),
        ({"minimum": 0, "maximum": 254}, integer("255"), "not between 0 and 254"),
        ({"content_format": "json", "payload": '{"a": {value}}'}, literal("on"), "would not be JSON; write {json}"),
        ({"content_format": "cbor"}, literal(str(2**70), datatype=XSD + "integer"), "64 bits"),
        ({"content_format": "lwm2m+tlv"}, literal("on"), "not of the type of the LwM2M resource, boolean"),
        ({}, literal("x" * 70_000), "more than 65536 bytes"),
        ({"content_format": "senml+json"}, literal("x" * 70_000), "more than 65536 bytes"),
        ({"content_format": "senml+json"}, literal("x" * 2_000_000), "more than 65536 bytes"),
    ],
)
def test_states_that_give_no_request(keys: dict[str, Any], state: Term, reason: str) -> None:
    made = rule(**keys)
    with pytest.raises(PayloadError, match=reason):
        request_payload(made, state, made.uri({}))


def test_templates_have_the_values_of_a_row() -> None:
    made = of_query(
        "coap://{host}/lamp/{n}", content_format="json", payload='{"room": {json:room}, "x": "{n}", "v": {json}}'
    )
    assert made.variables == {"actuator", "state", "host", "n", "room"}
    assert made.select == "".join(f"PREFIX {name}: <{at}> " for name, at in PREFIXES.items()) + QUERY
    row = {
        "host": literal("192.168.7.21:61616"),
        "n": iri(f"{BASE}room/hall 1".replace(" ", "%20")),
        "room": literal('a"b'),
    }
    captures = made.captures(row)
    assert made.uri(captures) == "coap://192.168.7.21:61616/lamp/room%2Fhall%25201"
    body = request_payload(made, TRUE, made.uri(captures), captures)
    assert body == b'{"room": "a\\"b", "x": "room/hall%201", "v": true}'


def test_whole_uri_of_a_row() -> None:
    made = of_query("{resource}")
    assert made.uri(made.captures({"resource": iri("COAP://LAMP/A")})) == "coap://lamp/A"
    with pytest.raises(PayloadError, match="only coap://"):
        made.uri({"resource": "http://lamp/a"})


def test_query_of_the_settings_is_such_a_rule() -> None:
    table = ResourceCommandTable(resource="{resource}", query=DEFAULT_QUERY)
    made = resource_command(table, prefixes={}, base_iri=BASE, place="[coap] query", state_variable="payload")
    assert made.select == DEFAULT_QUERY and made.variables == {"actuator", "resource", "payload"}
    captures = made.captures({"resource": literal("coap://lamp/a")})
    assert (made.uri(captures), made.state_uri(captures)) == ("coap://lamp/a", "coap://lamp/a")
    assert request_payload(made, literal("ON"), "coap://lamp/a", captures) == b"ON"


@each_row(
    ("row", "reason"),
    [
        ({"host": literal("lamp")}, r"\?n is unbound"),
        ({"host": literal("lamp"), "n": "_:b"}, "neither an IRI nor a literal"),
        ({"host": literal("lamp"), "n": literal("")}, "1 to 1024 characters"),
        ({"host": literal("lamp"), "n": literal("x" * 1025)}, "1 to 1024 characters"),
        ({"host": literal("lamp"), "n": literal("..")}, r"'\.' or '\.\.'"),
        ({"host": literal("lamp/a"), "n": literal("1")}, r"\?host of the resource is no host"),
        ({"host": literal("me@lamp"), "n": literal("1")}, r"\?host of the resource is no host"),
        ({"host": literal("lamp?x"), "n": literal("1")}, r"\?host of the resource is no host"),
        ({"host": literal("224.0.1.187"), "n": literal("1")}, "multicast"),
        ({"host": literal("lamp:99999"), "n": literal("1")}, "not a URI"),
        ({"host": literal("lamp"), "n": literal("ä" * 200)}, "longer than 255"),
    ],
)
def test_rows_that_give_no_resource(row: dict[str, Term], reason: str) -> None:
    made = of_query("coap://{host}/lamp/{n}")
    with pytest.raises(PayloadError, match=reason):
        made.uri(made.captures(row))


@given(st.text(max_size=30), st.text(max_size=30))
def test_value_of_a_row_chooses_no_other_place(host: str, text: str) -> None:
    made = of_query("coap://{host}/lamp/{n}?x={n}")
    try:
        uri = made.uri({"host": host, "n": text})
    except PayloadError:
        return
    assert uri.startswith("coap://") and uri.removeprefix("coap://").partition("/")[2].startswith("lamp/")
    assert uri.count("/") == 4 and uri.count("?") == 1 and "#" not in uri


def test_states_and_epochs_are_read_where_the_rule_says() -> None:
    plain = rule()
    assert plain.state_uri({}) == LAMP and plain.epoch_uri({}) is None
    assert rule(state=False).state_uri({}) is None
    made = of_query("coap://{host}/set/{n}", state={"resource": "coap://{host}/get/{n}"}, epoch="boot")
    assert made.state_uri({"host": "lamp", "n": "1"}) == "coap://lamp/get/1"
    assert made.epoch_uri({"host": "lamp:7", "n": "1"}) == "coap://lamp:7/boot"
    assert rule(epoch="/a/boot").epoch_uri({}) == "coap://192.168.7.20/a/boot"
    assert rule(observe="never").state.observe == "never"  # type: ignore[union-attr]
    assert rule(state={"observe": "always"}).state.observe == "always"  # type: ignore[union-attr]


@each_row(
    ("keys", "number", "body", "state"),
    [
        ({}, 0, b"ON", literal("ON")),
        ({"values": {"true": "ON", "false": "OFF"}}, 0, b"ON", TRUE),
        ({"values": {"true": "ON", "false": "OFF"}}, None, b"dim", literal("dim")),
        ({"values": {"low": "1", "high": "2"}}, 0, b"2", literal("high")),
        ({"content_format": "json"}, 50, b"true", TRUE),
        ({"content_format": "json"}, None, b"21", integer("21")),
        ({"content_format": "cbor", "state": {"member": "on"}}, 60, b"\xa1\x62on\xf5", TRUE),
        ({"content_format": "cbor", "state": {"member": "on"}}, 60, b"\xa1\x62of\xf5", None),
        ({"content_format": "lwm2m+tlv"}, 11542, b"\xe1\x16\xda\x01", TRUE),
        (
            {"content_format": "lwm2m+tlv", "values": {"ON": "true", "OFF": "false"}},
            None,
            b"\xe1\x16\xda\0",
            literal("OFF"),
        ),
        ({"content_format": "senml+json"}, 110, b'[{"n": "a", "vb": true}]', TRUE),
        (
            {"content_format": "senml+cbor", "state": {"member": "b"}},
            112,
            bytes.fromhex("82a200616104f4a200616204f5"),
            TRUE,
        ),
        ({"state": {"payload": "number", "scale": 2}}, 0, b"4", integer("8")),
        ({"state": {"on": ["1"], "off": ["0"]}}, 0, b"1", TRUE),
        ({"content_format": "json", "state": {"accept": "text"}}, None, b"ON", literal("ON")),
        ({"state": {"accept": "senml+json"}}, None, b'[{"n": "a", "v": 4}]', integer("4")),
    ],
)
def test_reported_state(keys: dict[str, Any], number: int | None, body: bytes, state: Term | None) -> None:
    made = rule(**keys).state
    assert made is not None
    assert made.value(read_body(body, number, made.accepted), LAMP, NOON) == state


@each_row(
    ("keys", "number", "body", "reason"),
    [
        ({"content_format": "lwm2m+tlv"}, 0, b"1", "content format is 0"),
        (
            {"content_format": "senml+json"},
            110,
            b'[{"n": "a", "v": 4}, {"n": "b", "v": 5}]',
            "has 2 values; choose one",
        ),
        ({"content_format": "lwm2m+tlv"}, 11542, b"\xe1\x16\xda\x02", "not of type boolean"),
        ({"state": {"payload": "number"}}, 0, b"on", "not a number"),
        ({"state": {"optional": False, "member": "a"}}, 50, b"{}", "member a is missing"),
    ],
)
def test_faulty_report(keys: dict[str, Any], number: int, body: bytes, reason: str) -> None:
    made = rule(**keys).state
    assert made is not None
    with pytest.raises(PayloadError, match=reason):
        made.value(read_body(body, number, made.accepted), LAMP, NOON)


@each_row(
    ("keys", "number"),
    [
        ({}, None),
        ({"content_format": "json"}, 50),
        ({"content_format": "lwm2m+tlv"}, 11542),
        ({"state": {"accept": 0}}, 0),
    ],
)
def test_state_is_asked_for_in_the_format_of_the_command(keys: dict[str, Any], number: int | None) -> None:
    state = rule(**keys).state
    assert state is not None and state.accepted.number == number


@each_row(
    ("keys", "reason"),
    [
        ({"resource": "ftp://lamp/a"}, "rule: resource = 'ftp://lamp/a': URIs of resources begin with coap://"),
        ({"resource": "coap://{host}/a"}, "resource: {host} is a variable; write query, or the URI without it"),
        ({"resource": "{uri}/a", "query": QUERY, "actuator": None}, r"write coap://{host}/lamp/{n}, or one {name}"),
        ({"resource": "coap://{host}?x={n}/", "query": QUERY, "actuator": None}, "write coap://"),
        ({"resource": "coap://lamp/{a b}"}, "not a URI"),
        ({"query": QUERY}, "query: its rows have the actuators; leave out actuator or query"),
        ({"query": "S" * 20_000, "actuator": None}, "query: write at most"),
        ({"actuator": "no such:prefix"}, "actuator = 'no such:prefix'"),
        ({"name": "lamp"}, "name: is for the content formats senml"),
        ({"content_format": "senml+json", "payload": "{value}"}, "payload: senml\\+json has no template"),
        ({"content_format": "json", "payload": "{value"}, "payload: the template is not JSON"),
        ({"content_format": "lwm2m+tlv", "resource": "coap://lamp/light"}, "ends in the number of a resource"),
        ({"state": True}, "state: write a table, or false"),
        ({"state": {"resource": "http://lamp/a"}}, "of another protocol than the command"),
        ({"resource": "http://lamp/1", "content_format": "lwm2m+tlv"}, "content_format: lwm2m.tlv is for coap://"),
        ({"state": {"resource": "x"}}, "state resource = 'x': URIs of resources begin"),
        ({"state": {"resource": "coap://{host}/a"}}, "{host} is a variable"),
        ({"state": {"payload": "sparkplug"}}, "rule state: payload: sparkplug"),
        ({"state": {"member": "{n}"}}, "rule state: member: a state is one value"),
        ({"state": {"observe": "never", "max_age_s": 1}}, "rule state: max_age_s"),
        ({"state": {"accept": "senml+json", "payload": "number"}}, "rule state: accept = 'senml\\+json'"),
        ({"epoch": "a#b"}, "epoch = 'coap://host/a#b'"),
    ],
)
def test_faults_of_commands(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        rule(**keys)


@each_row(
    "keys", [{"method": "GET"}, {"content_format": "yaml"}, {"observe": "always"}, {"qos": 1}, {"reassert_s": -1}]
)
def test_keys_that_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        rule(**keys)


def test_method_says_whether_a_request_is_idempotent() -> None:
    assert rule().idempotent and not rule(method="POST").idempotent
    assert rule(method="POST", idempotent=True).idempotent and not rule(idempotent=False).idempotent


def test_command_of_a_file_needs_an_actuator_or_a_query(tmp_path: Path) -> None:
    (tmp_path / "lamp.toml").write_text(f'\n[[command]]\nresource = "{LAMP}"\n')
    with pytest.raises(ConfigurationError, match=r"lamp\.toml line 2: command 1: actuator is missing; write"):
        load_resource_rules(tmp_path, BASE)
    assert rule(actuator=None).actuator is None  # a rule of the dataset, which an actuator points to


def test_equal_tables_are_equal_rules_and_survive_json() -> None:
    assert rule() == rule() and rule() != rule(method="POST")
    table = rule(values={"true": "ON"}, state={"member": "on"}).table
    assert msgspec.json.decode(table_json(table), type=ResourceCommandTable) == table


@given(st.one_of(st.booleans(), st.integers(-(2**60), 2**60)))
def test_state_that_is_written_is_the_state_that_is_read(value: bool | int) -> None:
    state = literal(str(value).lower(), datatype=XSD + ("boolean" if isinstance(value, bool) else "integer"))
    resource = f"coap://lamp/3311/0/{5850 if isinstance(value, bool) else 5851}"
    for form in ("text", "json", "cbor", "senml+json", "senml+cbor", "lwm2m+tlv", "lwm2m+json"):
        made = rule(content_format=form, resource=resource, name="a" if form.startswith("senml") else "")
        assert made.state is not None
        body = request_payload(made, state, made.uri({}))
        found = made.state.value(read_body(body, made.content_format, made.state.accepted), made.uri({}), NOON)
        assert found == (literal(str(value).lower()) if form == "text" else state)


def test_cbor_of_a_document_is_the_json_of_the_template() -> None:
    made = rule(content_format="cbor", payload='{"a": [{json}, 1.5, null], "b": {"c": "{value}"}}')
    assert decode(request_payload(made, TRUE, LAMP)) == {"a": [True, "1.5", None], "b": {"c": "true"}}
