"""Thing Descriptions that clients submit: the device and rules of good ones, and the faults of bad ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.http.settings import HttpDeviceSettings, HttpDevicesSettings
from lamplighter.adapters.mapping.command_payloads import command_payload, request_payload
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.files import file_rules
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.mqtt.settings import BrokerSettings, MqttSettings
from lamplighter.adapters.specs import KINDS
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.gateway.devices.trial import MessageTrial, StoredRules, TriedMessage
from lamplighter.gateway.gates.wot.problems import InvalidDescriptionError
from lamplighter.gateway.gates.wot.submitted import (
    BYTES_MAX,
    DEPTH_MAX,
    FAULTS_MAX,
    Adopted,
    device_of,
    parse_description,
)
from lamplighter.gateway.settings import Settings
from tests.support.tables import each_row

BASE = "http://lamplighter.local/"
BARN = BrokerSettings(host="barn.example", port=1884)
METER = HttpDeviceSettings(origin="http://192.0.2.9", username="me", secret_file="none")
SETTINGS = Settings(
    mqtt=MqttSettings(host="127.0.0.1", brokers={"barn": BARN}),
    http_devices=HttpDevicesSettings(enabled=True, devices={"meter": METER}),
    modbus=ModbusSettings(enabled=True),
)
CONTEXT = "https://www.w3.org/2022/wot/td/v1.1"
MQTT, COAP, HTTP = "mqtt://127.0.0.1/", "coap://192.0.2.1/", "http://192.0.2.1/"


def td(properties: Any = None, actions: Any = None, **more: Any) -> dict[str, Any]:
    found = {
        "@context": CONTEXT,
        "id": "urn:dev:ops:32473-lamp",
        "title": "lamp",
        "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}, "basic_sc": {"scheme": "basic"}},
        "security": "nosec_sc",
        **({} if properties is None else {"properties": properties}),
        **({} if actions is None else {"actions": actions}),
        **more,
    }
    return {name: value for name, value in found.items() if value is not ...}


def one(kind: str, href: str, media: str = "application/json", **more: Any) -> dict[str, Any]:
    form = {name: more.pop(name) for name in list(more) if name in ("op", "security") or ":" in name}
    return {"type": kind, "forms": [{"href": href, "contentType": media, **form}], **more}


def adopted(document: dict[str, Any]) -> Adopted:
    found = parse_description(json.dumps(document).encode())
    made = device_of(found, found.id or "urn:uuid:1", SETTINGS, Registry(BASE))
    check_record(Device.from_json(made.device.to_json()))
    return made


def faults(document: Any) -> dict[str, str]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InvalidDescriptionError) as caught:
        found = parse_description(body)
        device_of(found, found.id or "urn:uuid:1", SETTINGS, Registry(BASE))
    assert len(caught.value.faults) <= FAULTS_MAX
    return {fault.field: fault.description for fault in caught.value.faults}


def rules(device: Device) -> list[tuple[Term, Term]]:
    found = Registry(BASE).rules(device)
    return [(iri(BASE + path), literal(json.dumps(rule))) for path, rule in found.items()]


def read(device: Device, where: str, payload: str | bytes) -> dict[str, str]:
    """The values that the rules of a device read of a message, by sensor."""
    trial = MessageTrial(
        file_rules(Path(__file__) / "none", BASE), StoredRules.of(rules(device), BASE, ()), event=False
    )
    values = {}
    data = payload.encode() if isinstance(payload, str) else payload
    for rule in trial.of(TriedMessage(where, data, datetime.now(UTC))):
        for made in rule.made:
            assert not made.fault, made.fault
            subjects = {quad.s: quad.o for quad in made.triples if quad.p.endswith("hasSimpleResult>")}
            sensors = {quad.s: quad.o for quad in made.triples if quad.p.endswith("madeBySensor>")}
            values |= {lexical(sensors[s]).rpartition("/")[2]: lexical(value) for s, value in subjects.items()}
    return values


def sent(device: Device, key: str, state: Term) -> bytes:
    """What an actuator of a device is sent for a state."""
    for kind in KINDS:
        found = DatasetRules(BASE, kind=kind)
        found.change(rules(device), ())
        for rule in found.commands():
            if rule.actuator is not None and rule.actuator.endswith(f"/{key}"):
                return command_payload(rule, state)
        for command in found.resources().commands:
            if command.actuator is not None and command.actuator.endswith(f"/{key}"):
                return request_payload(command, state, command.table.resource)
    raise AssertionError(f"no rule is for {key}")


NUMBER, TRUE, TEXT = literal("12.5", datatype=XSD + "decimal"), literal("true", datatype=XSD + "boolean"), literal("on")


@each_row(
    ("kind", "media", "payload", "value"),
    [
        ("number", "application/json", "21.5", "21.5"),
        ("integer", "text/plain", "21", "21"),
        ("boolean", "application/json", "true", "true"),
        ("string", "application/json", '"on"', "on"),
        ("string", "text/plain", "on", "on"),
    ],
)
def test_values_arrive_by_topic_and_resource(kind: str, media: str, payload: str, value: str) -> None:
    found = adopted(
        td(
            {
                "a": one(kind, MQTT + "x/a", media, readOnly=True),
                "b": one(kind, COAP + "b", media, readOnly=True),
                "c": one(kind, HTTP + "c", media, readOnly=True, op="observeproperty"),
            }
        )
    )
    assert not found.warnings
    assert read(found.device, "x/a", payload) == {"a": value}
    assert read(found.device, f"{COAP}b", payload) == {"b": value}
    assert read(found.device, f"{HTTP}c", payload) == {"c": value}


@each_row(
    ("kind", "media", "state", "payload"),
    [
        ("number", "application/json", NUMBER, b"12.5"),
        ("boolean", "application/json", TRUE, b"true"),
        ("boolean", "text/plain", TRUE, b"true"),
        ("string", "application/json", TEXT, b'"on"'),
        ("string", "text/plain", TEXT, b"on"),
    ],
)
def test_states_are_sent_by_topic_and_resource(kind: str, media: str, state: Term, payload: bytes) -> None:
    for href in (MQTT + "x/set", COAP + "x", HTTP + "x"):
        written = one(kind, href, media, op="writeproperty")
        invoked = {"input": {"type": kind}, "forms": [{"href": href, "contentType": media}]}
        found = adopted(td({"p": written}, {"a": invoked}))
        assert not found.warnings
        assert sent(found.device, "p", state) == sent(found.device, "a", state) == payload


def plc(kind: str, place: str, **more: Any) -> dict[str, Any]:
    return one(kind, f"modbus+tcp://192.0.2.1/1/{place}", "application/octet-stream", **more)


def test_registers_and_coils_are_read_and_written() -> None:
    unit = "http://qudt.org/vocab/unit/W"
    found = adopted(
        td(
            {
                "power": plc("number", "52", readOnly=True, unit=unit, **{"modv:entity": "InputRegister",
                             "modv:type": "xsd:float", "modv:mostSignificantWord": False, "modv:pollingTime": 5_000}),
                "door": plc("boolean", "7", readOnly=True, **{"modv:function": "readDiscreteInput"}),
                "pump": plc("boolean", "3", **{"modv:entity": "Coil"}),
                "level": plc("integer", "9?quantity=2", minimum=0, maximum=70_000,
                             **{"modv:entity": "HoldingRegister"}),
                "auto": plc("boolean", "11", **{"modv:entity": "HoldingRegister"}),
                "name": plc("string", "20?quantity=4", readOnly=True, **{"modv:entity": "HoldingRegister"}),
            },
            {"reset": {"input": {"type": "boolean"}, "forms": [{"href": "modbus+tcp://192.0.2.1/1/5",
                                                               "modv:function": "writeMultipleCoils"}]}},
        )
    )  # fmt: skip
    assert not found.warnings
    at = "modbus+tcp://192.0.2.1/1/"
    assert read(found.device, f"{at}52?quantity=2&entity=input_register", bytes.fromhex("5000449a")) == {
        "power": "1234.5"
    }
    assert read(found.device, f"{at}7?entity=discrete_input", b"\1") == {"door": "true"}
    assert read(found.device, f"{at}20?quantity=4", b"plc1\0\0\0\0") == {"name": "plc1"}
    power = next(sensor for sensor in found.device.sensors if sensor.key == "power").table
    assert (power["poll_s"], power["unit"], power["word_order"]) == (5.0, "unit:W", "little")
    assert sent(found.device, "pump", TRUE) == b"\1"
    assert sent(found.device, "auto", TRUE) == b"\0\1"
    assert sent(found.device, "level", literal("65537", datatype=XSD + "integer")) == b"\0\1\0\1"
    assert sent(found.device, "reset", TRUE) == b"\1"
    [reset] = [one for one in found.device.actuators if one.key == "reset"]
    assert reset.command["resource"] == f"{at}5?entity=coil&function=multiple"
    [auto] = [one for one in found.device.actuators if one.key == "auto"]
    assert auto.state is not None and auto.state["resource"] == f"{at}11" and auto.state["on"] == ["true", "1"]


def test_registers_that_cannot_be_used_are_told() -> None:
    found = adopted(
        td(
            {
                "a": plc("boolean", "1", **{"modv:entity": "Coil"}),
                "b": plc("number", "1", **{"modv:entity": "InputRegister"}),
                "c": plc("number", "70000", readOnly=True, **{"modv:entity": "InputRegister"}),
                "d": plc("boolean", "1", security="basic_sc", **{"modv:entity": "Coil"}),
                "e": plc("boolean", "1", **{"modv:entity": "Coil"}) | {"forms": [
                    {"href": "modbus+tcp://192.0.2.1/0/1", "op": "writeproperty", "modv:entity": "Coil"}]},
            }
        )
    )  # fmt: skip
    assert [actuator.key for actuator in found.device.actuators] == ["a"]
    assert list(found.warnings) == [
        "properties.b.forms.0.modv:entity: discrete inputs and input registers cannot be written",
        "properties.c.forms.0.href: the unit is at most 255, and the last address at most 65535",
        "properties.d.forms.0.security: the scheme is not used for Modbus; write nosec, it has no security",
        "properties.e.forms.0.href: the unit 0 is every unit of a line; write the unit of one device",
    ]


def test_an_object_is_a_value_for_each_member() -> None:
    schema = {"a": {"type": "number", "unit": "http://qudt.org/vocab/unit/DEG_C"}, "b": {"type": "object"}}
    schema["b"]["properties"] = {"c": {"type": "boolean"}}
    found = adopted(td({"s": one("object", MQTT + "s", readOnly=True, properties=schema)}))
    assert read(found.device, "s", '{"a": 1.5, "b": {"c": true}}') == {"s.a": "1.5", "s.b.c": "true"}
    assert {sensor.key: sensor.table.get("unit") for sensor in found.device.sensors} == {
        "s.a": "unit:DEG_C",
        "s.b.c": None,
    }


def test_forms_name_places_in_several_ways() -> None:
    found = adopted(
        td(
            {
                "a": one("number", "x/a", readOnly=True),
                "b": one("number", "/x/b%20c", readOnly=True),
                "c": one("number", "mqtt://localhost:1883", readOnly=True, **{"mqv:filter": "x/c"}),
                "d": one("number", "COAP://Host.Example:5683/d?u=1", readOnly=True),
                "e": one("number", "coap://[2001:db8::1]:7000/e", readOnly=True),
            },
            base="mqtt://127.0.0.1:1883/floor/",
        )
    )
    places = {one.key: one.table.get("topic") or one.table["resource"] for one in found.device.sensors}
    assert places == {
        "a": "floor/x/a",
        "b": "x/b c",
        "c": "x/c",
        "d": "coap://host.example/d?u=1",
        "e": "coap://[2001:db8::1]:7000/e",
    }
    assert found.device.broker == "default"
    assert adopted(td({"a": one("number", "mqtt://barn.example:1884/a")})).device.broker == "barn"


def test_kinds_come_from_types_and_names() -> None:
    found = adopted(
        td(
            {
                "temperature": one("number", MQTT + "a", readOnly=True),
                "outside": one("number", MQTT + "b", readOnly=True, **{"@type": ["x", "gateway:temperature"]}),
                "humidity": one("string", MQTT + "c", readOnly=True),
            }
        )
    )
    assert {sensor.key: sensor.kind for sensor in found.device.sensors} == {
        "temperature": "gateway:temperature",
        "outside": "gateway:temperature",
        "humidity": "property/humidity",
    }


def test_what_is_not_used_is_told() -> None:
    found = adopted(
        td(
            {
                "a": one("number", MQTT + "a"),
                "b": one("number", "ftp://192.0.2.1/b"),
                "c": one("array", MQTT + "c"),
                "d": one("number", MQTT + "d/+"),
                "e": one("number", COAP + "e", security="basic_sc"),
                "f": one("number", "mqtt://barn.example:1884/f"),
                "g": one("number", "mqtt://other.example/g"),
                "h": one("number", "coap://192.0.2.1/../h"),
            },
            {"toggle": {"forms": [{"href": MQTT + "t"}]}},
            events={"x": {"forms": [{"href": MQTT + "x"}]}},
        )
    )
    assert [actuator.key for actuator in found.device.actuators] == ["a"]
    told = "\n".join(found.warnings)
    for expected in (
        "properties.b.forms.0.href: the scheme ftp is unknown",
        "properties.c.type: write number",
        "d: the topic 'd/+' has a wildcard",
        "properties.e.forms.0.security: the scheme is not used for CoAP",
        "properties.f.forms.0.href: no broker",
        "properties.g.forms.0.href: no broker",
        "h: a path has",
        "actions.toggle.input: an action without input",
        "events.x: events are not read",
    ):
        assert expected in told, told


def test_http_forms_name_methods_and_states() -> None:
    forms = [
        {"href": HTTP + "on", "op": "readproperty"},
        {"href": HTTP + "set", "op": "writeproperty", "htv:methodName": "POST"},
    ]
    found = adopted(
        td(
            {
                "light": {"type": "boolean", "forms": forms},
                "level": one("number", HTTP + "level"),
                "secret": one("number", HTTP + "secret", writeOnly=True),
            },
            {"scene": {"input": {"type": "string"}, "forms": [{"href": HTTP + "scene"}]}},
        )
    )
    assert not found.warnings
    commands = {one.key: (one.command["resource"], one.command.get("method", "PUT")) for one in found.device.actuators}
    assert commands == {
        "light": (HTTP + "set", "POST"),
        "level": (HTTP + "level", "PUT"),
        "secret": (HTTP + "secret", "PUT"),
        "scene": (HTTP + "scene", "POST"),
    }
    states = {one.key: one.state and one.state["resource"] for one in found.device.actuators}
    assert states == {"light": HTTP + "on", "level": HTTP + "level", "secret": None, "scene": None}
    assert {one.key for one in found.device.actuators if one.command.get("state") is False} == {"secret", "scene"}
    assert read(found.device, HTTP + "level", "12.5") == {}, "a state is no reading"


def test_http_forms_that_cannot_be_used_are_told() -> None:
    found = adopted(
        td(
            {
                "a": one("number", "http://192.0.2.9/a", security="basic_sc"),
                "b": one("number", HTTP + "b", security="basic_sc"),
                "c": one("number", "http://192.0.2.9:81/c", security="basic_sc"),
                "d": one("number", "http://192.0.2.9/d", security="digest_sc"),
                "e": one("number", HTTP + "e", readOnly=True, **{"htv:methodName": "POST"}),
                "f": one("number", HTTP + "f", writeOnly=True, **{"htv:methodName": "DELETE"}),
                "g": {
                    "type": "number",
                    "readOnly": True,
                    "forms": [
                        {"href": HTTP + "events", "op": "observeproperty", "subprotocol": "sse"},
                        {"href": HTTP + "g", "op": "readproperty"},
                    ],
                },
                "h": {"type": "number", "forms": [{"href": HTTP + "h", "subprotocol": "longpoll"}]},
            },
            securityDefinitions={"nosec_sc": {"scheme": "nosec"}, "basic_sc": {"scheme": "basic"}}
            | {"digest_sc": {"scheme": "digest"}},
        )
    )
    assert [actuator.key for actuator in found.device.actuators] == ["a"]
    assert [(sensor.key, sensor.table["resource"]) for sensor in found.device.sensors] == [("g", HTTP + "g")]
    told = "\n".join(found.warnings)
    for expected in (
        "properties.h.forms.0.subprotocol: properties are polled",
        "properties.b.forms.0.security: the gateway has no credentials for this scheme; name a secret of http://192.0.2.1",
        "properties.c.forms.0.security: the gateway has no credentials",
        "properties.d.forms.0.security: the gateway has no credentials for this scheme; write nosec, basic or bearer",
        "properties.e.forms.0.htv:methodName: write GET",
        "properties.f.forms.0.htv:methodName: write PUT or POST",
    ):
        assert expected in told, told


def test_http_forms_are_not_used_without_the_adapter() -> None:
    found = parse_description(json.dumps(td({"a": one("number", HTTP + "a")})).encode())
    with pytest.raises(InvalidDescriptionError) as caught:
        device_of(found, found.id, Settings(), Registry(BASE))
    assert "http_devices.enabled is false" in caught.value.faults[0].description


@each_row(
    ("document", "field", "cure"),
    [
        (b"{", "(root)", "not JSON"),
        (b"\xff", "(root)", "not JSON"),
        ([], "(root)", "send a JSON object"),
        (b"[" * 100_000, "(root)", "not JSON"),
        (td({}, **{"@context": "https://evil.example/context"}), "@context", "write 'https://www.w3.org/2022/wot"),
        (td({}, **{"@context": ["https://evil.example/", {"a": "b"}, CONTEXT]}), "@context", "write"),
        (td({}, id="no iri"), "id", "absolute IRI"),
        (td({}, id="urn:a> } INSERT DATA {"), "id", "absolute IRI"),
        (td({}, id="urn:" + "a" * 400), "id", "absolute IRI"),
        (td({}, title=""), "title", "write a text"),
        (td({}, title=5), "title", "write a text"),
        (td({}, base=5), "base", "write a URI"),
        (td({}, security=...), "security", "write the name"),
        (td({}, security="x"), "security", "write the name"),
        (td({}, securityDefinitions=...), "securityDefinitions", "write an object"),
        (td({}, securityDefinitions={"nosec_sc": 5}), "securityDefinitions.nosec_sc", "with a scheme"),
        (td([]), "properties", "write an object"),
        (td({"a": 5}), "properties.a", "write an object"),
        (td({"a": {"type": "number"}}), "properties.a.forms", "at least one"),
        (td({"a": {"forms": [5]}}), "properties.a.forms.0", "with href"),
        (td({"a": {"forms": [{"href": "x"}, {"href": 5}]}}), "properties.a.forms.1.href", "write a URI"),
        (td({"a": one("number", "x", security="y")}), "properties.a.forms.0.security", "write the name"),
        (td({str(number): {} for number in range(101)}), "properties", "more than 100"),
        (td({}), "(root)", "no property or action"),
        (td({"a": one("number", "ftp://x/")}), "properties.a.forms.0.href", "the scheme ftp is unknown"),
        (td({"a": one("number", "http://me:pw@x/")}), "properties.a.forms.0.href", "write http://HOST/PATH"),
        (
            td({"a": one("number", MQTT + "a", "text/html")}),
            "properties.a.forms.0.contentType",
            "write application/json",
        ),
        (td({"a": one("number", MQTT + "a", op="x")}), "properties.a.forms", "see op"),
    ],
)
def test_a_faulty_description_is_refused_with_place_and_cure(document: Any, field: str, cure: str) -> None:
    assert cure in faults(document)[field]


def test_what_is_large_or_deep_is_refused() -> None:
    nested: Any = {}
    for _ in range(DEPTH_MAX):
        nested = {"a": nested}
    assert "nested deeper" in faults(td({}, x=nested))["(root)"]
    assert len(faults(td({str(number): 5 for number in range(100)}))) == FAULTS_MAX
    many = td({f"p{number}": one("number", f"{MQTT}t/{number}", readOnly=True) for number in range(100)})
    assert len(json.dumps(many)) < BYTES_MAX
    assert len(adopted(many).device.sensors) == 100


@each_row(
    "text", ["'}", '"}', "> } ; DROP ALL ; {", "\\", "{x}", "\n", "a\u202eb", "é💡", "../..", "%2e%2e", "a b", "$SYS"]
)
def test_no_name_breaks_out_of_its_place(text: str) -> None:
    """A record that is made has passed `check_record`, and its rules those of the adapters."""
    document = td(
        {text: one("number", f"{MQTT}a/{text}", readOnly=True, title=text, unit=text), "b": one("string", COAP + text)},
        {text: {"input": {"type": "string", "enum": [text]}, "forms": [{"href": MQTT + text}]}},
        title=f"t{text}",
    )
    try:
        found = adopted(document)
    except InvalidDescriptionError:
        return
    update = Registry(BASE).announced(None, found.device, "all")
    assert update is not None and update.count("INSERT") == 1
