"""Rules for resources of CoAP devices and for paths of the gateway's server."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.mapping import (
    PathRule,
    ReadingRules,
    ResourceRule,
    ResourceRules,
    ResourceTable,
    file_rules,
    load_mapping,
    load_resource_rules,
    table_json,
)
from lamplighter.adapters.mapping.cbor import encode
from lamplighter.adapters.mapping.resources import FORMAT_NUMBERS
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import lexical
from tests.support.mapping_rules import BASE, NOON
from tests.support.tables import each_row

TEMPERATURE = (
    '[[stream]]\nresource = "coap://192.168.7.20/3303/0"\nproperty = "gateway:temperature"\npayload = "lwm2m"\n'
)


def loaded(folder: Path, text: str) -> ResourceRules:
    (folder / "rules.toml").write_text(text)
    found = file_rules(folder, BASE)
    found.check()
    return found.resources


def resource(folder: Path, **keys: Any) -> ResourceRule:
    keys = {"resource": "coap://lamp/t", "property": "gateway:temperature"} | keys
    [rule] = loaded(folder, table(**keys)).resources
    return rule


def path(folder: Path, **keys: Any) -> PathRule:
    keys = {"path": "readings/{room}", "property": "gateway:temperature"} | keys
    [rule] = loaded(folder, table(**keys)).paths
    return rule


def table(**keys: Any) -> str:
    return "[[stream]]\n" + "".join(
        f"{key} = {value if key == 'read' else msgspec.json.encode(value).decode()}\n" for key, value in keys.items()
    )


def read(rule: ResourceRule | PathRule, place: str, body: bytes, number: int | None) -> list[Reading]:
    """The readings of a body; an error is raised."""
    found = ReadingRules([rule]).readings(place, read_body(body, number, rule.accepted), retained=False, received=NOON)
    for one in found:
        if isinstance(one, PayloadError):
            raise one
    return [one for one in found if isinstance(one, Reading)]


def values(rule: ResourceRule | PathRule, place: str, body: bytes, number: int | None) -> dict[str, str]:
    """Value by the path of the sensor behind ``sensor/``."""
    return {
        lexical(one.stream.sensor).removeprefix(f"{BASE}sensor/"): lexical(one.value)
        for one in read(rule, place, body, number)
    }


def test_resource_is_read_with_the_iri_of_its_place(tmp_path: Path) -> None:
    rule = resource(tmp_path, resource="coap://LAMP:5684/t?x=1", payload="number", unit="Cel", poll_s=5)
    assert (rule.resource, rule.name, rule.table.poll_s) == ("coap://lamp:5684/t?x=1", "lamp~5684/t?x=1", 5.0)
    [reading] = read(rule, rule.name, b"21.5", 0)
    assert lexical(reading.value) == "21.5"
    assert lexical(reading.stream.sensor) == f"{BASE}sensor/lamp~5684/t%3Fx%3D1"
    assert reading.stream.topic == "coap://lamp:5684/t?x=1"


def test_lwm2m_values_are_streams_with_their_paths(tmp_path: Path) -> None:
    [rule] = loaded(tmp_path, TEMPERATURE + 'sensor = "sensor/hall/{n}"\n').resources
    body = bytes.fromhex("e4164441ac0000e316454365 6c")
    assert values(rule, rule.name, body, 11542) == {"hall/3303/0/5700": "21.5", "hall/3303/0/5701": "Cel"}
    [one] = loaded(tmp_path, TEMPERATURE + 'member = "5700"\n').resources
    assert values(one, one.name, body, 11542) == {"192.168.7.20/3303/0/3303/0/5700": "21.5"}
    text = b'{"e": [{"n": "5700", "v": 21.5}]}'
    assert list(values(one, one.name, text, 11543).values()) == ["21.5"]


def test_path_captures_levels(tmp_path: Path) -> None:
    rule = path(tmp_path, payload="senml", sensor="sensor/{room}/{n}")
    body = b'[{"n": "t", "u": "Cel", "v": 21.5}]'
    assert values(rule, "readings/hall", body, 110) == {"hall/t": "21.5"}
    assert values(rule, "readings/hall", bytes.fromhex("81a2006174 02f94d60"), 112) == {"hall/t": "21.5"}
    assert ReadingRules([rule]).covering("readings/hall/more") == []


@pytest.mark.parametrize(
    ("number", "body"),
    [(50, b'{"t": {"v": 21.5}}'), (60, encode({"t": {"v": 21.5}}))],
)
def test_member_is_one_of_json_and_of_cbor(tmp_path: Path, number: int, body: bytes) -> None:
    rule = resource(tmp_path, payload="number", member="t.v")
    assert list(values(rule, rule.name, body, number).values()) == ["21.5"]


def test_members_of_cbor_may_have_numbers_as_names(tmp_path: Path) -> None:
    rule = resource(tmp_path, payload="number", member="{n}.1")
    body = bytes.fromhex("a2 6161 a1 01 05 6162 a1 01 06")
    assert list(values(rule, rule.name, body, 60).values()) == ["5", "6"]
    with pytest.raises(PayloadError, match="equal keys"):
        read(rule, rule.name, bytes.fromhex("a2 01 05 6131 06"), 60)


@each_row(
    ("payload", "number", "body", "value"),
    [
        ("number", 0, b" 21.5 ", "21.5"),
        ("number", None, b"21.5", "21.5"),
        ("number", 50, b"21.5", "21.5"),
        ("number", 60, encode(-3), "-3"),
        ("boolean", 50, b"true", "true"),
        ("text", 50, b'"on"', "on"),
        ("text", 60, encode("on"), "on"),
    ],
)
def test_whole_body_is_a_value(tmp_path: Path, payload: str, number: int | None, body: bytes, value: str) -> None:
    rule = resource(tmp_path, payload=payload)
    assert list(values(rule, rule.name, body, number).values()) == [value]


@each_row(
    ("keys", "number", "body", "reason"),
    [
        (
            {"payload": "number", "member": "t"},
            0,
            b'{"t": 1}',
            r"content format is 0 \(text\); the rule reads 50 \(json\), 60",
        ),
        ({"payload": "number", "member": "t"}, None, b'{"t": 1}', "content format is 0"),
        ({"payload": "number"}, 110, b"1", "content format is 110"),
        ({"payload": "number"}, 4711, b"1", "content format is 4711; the rule reads"),
        ({"payload": "number", "format": "<h"}, 0, b"ab", r"the rule reads 42 \(octets\)"),
        ({"payload": "number", "column": 0}, 50, b"1", r"the rule reads 0 \(text\)"),
        ({"payload": "senml"}, 50, b"[]", "content format is 50"),
        ({"payload": "lwm2m"}, 0, b"", "content format is 0"),
        ({"payload": "number"}, 50, b'{"a": 1}', "not a single value; the rule needs member"),
        ({"payload": "number"}, 50, b"null", "null"),
        ({"payload": "senml"}, 110, b"\x81\xa0", "not JSON"),
        ({"payload": "number"}, 60, b"\xff", "not CBOR"),
        ({"payload": "number"}, 0, b"", "payload is empty"),
    ],
)
def test_other_content_formats_and_faulty_bodies(
    tmp_path: Path, keys: dict[str, Any], number: int | None, body: bytes, reason: str
) -> None:
    rule = resource(tmp_path, **keys)
    with pytest.raises(PayloadError, match=reason):
        read(rule, rule.name, body, number)


def test_accepted_format_is_that_of_a_body_without_one(tmp_path: Path) -> None:
    rule = resource(tmp_path, payload="number", member="t", accept="cbor")
    assert rule.accepted.number == 60
    assert list(values(rule, rule.name, encode({"t": 1}), None).values()) == ["1"]


@each_row(
    ("keys", "body"),
    [
        ({"member": "t"}, b'{"t": 7}'),
        ({}, b"7"),
        ({"format": "<h"}, b"\x07\0"),
    ],
)
def test_number_without_a_name_is_read_as_the_rule_says(tmp_path: Path, keys: dict[str, Any], body: bytes) -> None:
    rule = resource(tmp_path, payload="number", accept=65_000, **keys)
    assert list(values(rule, rule.name, body, 65_000).values()) == ["7"]


def test_binary_body_and_its_number(tmp_path: Path) -> None:
    rule = path(tmp_path, payload="number", format="<h", field=0)
    assert list(values(rule, "readings/hall", b"\x07\0", FORMAT_NUMBERS["octets"]).values()) == ["7"]


@each_row(
    ("keys", "reason"),
    [
        (
            {"resource": "ftp://lamp/t"},
            "line 1: stream 1: resource = 'ftp://lamp/t': URIs of resources",
        ),
        ({"resource": "http://lamp/t", "observe": "always"}, "observe: is for coap://"),
        ({"resource": "http://lamp/t", "max_age_s": 3}, "max_age_s: is for coap://"),
        ({"resource": "http://lamp/t", "payload": "lwm2m"}, "lwm2m is for rules with path or a coap:// resource"),
        ({"resource": "coap://{host}/t"}, "resource = "),
        ({"resource": "coap://224.0.1.187/t"}, "multicast"),
        ({"resource": "coap://lamp/" + "a/" * 80}, "at most 64 levels"),
        ({"topic": "a"}, "line 1: stream 1: topic and resource: a rule has one of them; write a rule for each"),
        ({"path": "a"}, "resource and path: a rule has one of them"),
        ({"broker": "b"}, "unknown field `broker`; the keys of a rule are"),
        ({"poll_s": 0}, "poll_s"),
        ({"poll_s": 100_000}, "poll_s"),
        ({"max_age_s": 0}, "max_age_s"),
        ({"observe": "maybe"}, "observe"),
        ({"observe": "never", "max_age_s": 5}, "max_age_s: is for observed resources"),
        ({"accept": 70_000}, "accept"),
        ({"accept": "xml"}, "accept"),
        ({"accept": "senml+json"}, "accept = 'senml\\+json': the rule reads another content format; write \"text\" or"),
        ({"accept": 42}, "accept = 42: the rule reads another content format"),
        ({"payload": "senml", "accept": 4711}, 'write "senml\\+json" or "senml\\+cbor"'),
        ({"format": "<h", "accept": 0}, "write 42"),
        ({"payload": "sparkplug"}, "payload: sparkplug is for rules with topic"),
        ({"payload": None}, "payload: is missing; write number, boolean, text, senml or lwm2m"),
        ({"time": "property sent"}, 'time: write "arrival", "member PATH", or "record" for senml and lwm2m'),
        ({"read": '[{member = "a"}, {column = 0}]'}, "read: the values are of different content formats"),
    ],
)
def test_faults_of_resource_rules(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        resource(tmp_path, **{key: value for key, value in ({"payload": "number"} | keys).items() if value is not None})


@each_row(
    ("keys", "reason"),
    [
        ({"path": "rd/{x}"}, "path = 'rd/{x}': the server itself has the paths .well-known, queries, rd"),
        ({"path": ".well-known/core"}, "the server itself"),
        ({"path": "queries"}, "the server itself"),
        ({"path": "/readings"}, "without a slash"),
        ({"path": "readings/"}, "without a slash"),
        ({"path": "a/{x}/{x}"}, "captures a name twice"),
        ({"path": "a/{n}", "payload": "senml"}, "path: captures a name that the values have"),
        ({"methods": []}, "methods: write"),
        ({"methods": ["GET"]}, "methods"),
        ({"observe": "auto"}, "unknown field `observe`"),
        ({"resource": "coap://a/b"}, "resource and path"),
    ],
)
def test_faults_of_path_rules(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        path(tmp_path, **({"payload": "number"} | keys))


def test_open_path_does_not_cover_those_of_the_server(tmp_path: Path) -> None:
    rules = ReadingRules([path(tmp_path, path="{first}/{rest#}", payload="number")])
    assert rules.covering("a/b") and not rules.covering("rd/b") and not rules.covering(".well-known/core")
    assert rules.covering("lamplighter/b")


def test_rule_without_a_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 1: stream 1: write topic or resource or path"):
        load_mapping_of(tmp_path, '[[stream]]\nproperty = "gateway:x"\npayload = "text"\n')


def load_mapping_of(folder: Path, text: str) -> object:
    (folder / "rules.toml").write_text(text)
    return load_mapping(folder, BASE)


def test_each_adapter_has_its_rules_and_its_faults(tmp_path: Path) -> None:
    mqtt = '[[stream]]\ntopic = "t"\nproperty = "gateway:x"\npayload = "text"\n'
    (tmp_path / "a.toml").write_text(mqtt + TEMPERATURE)
    assert len(load_mapping(tmp_path, BASE).rules) == 1
    assert len(load_resource_rules(tmp_path, BASE).resources) == 1
    (tmp_path / "b.toml").write_text(TEMPERATURE + "poll_s = 0\n")
    assert len(load_mapping(tmp_path, BASE).rules) == 1
    with pytest.raises(ConfigurationError, match="poll_s"):
        load_resource_rules(tmp_path, BASE)
    (tmp_path / "b.toml").write_text(mqtt + "qos = 1\n")
    assert len(load_resource_rules(tmp_path, BASE).resources) == 1
    with pytest.raises(ConfigurationError, match="qos"):
        load_mapping(tmp_path, BASE)
    (tmp_path / "b.toml").write_text("[[")
    for load in (load_mapping, load_resource_rules):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load(tmp_path, BASE)
    found = file_rules(tmp_path, BASE)
    assert [fault.kind for fault in found.faults] == [None]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        found.check()


def test_equal_tables_are_equal_rules(tmp_path: Path) -> None:
    one, same = (resource(tmp_path, payload="number") for _ in range(2))
    other = resource(tmp_path, payload="text")
    assert one == same and hash(one) == hash(same) and one != other


def test_table_survives_json() -> None:
    [text] = tomllib.loads(TEMPERATURE + 'scale = 0.1\naccept = "lwm2m+tlv"\n', parse_float=Decimal)["stream"]
    made = msgspec.convert(text, ResourceTable)
    assert msgspec.json.decode(table_json(made), type=ResourceTable) == made
