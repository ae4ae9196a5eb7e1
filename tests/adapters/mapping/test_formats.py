"""CSV, binary, SenML and Sparkplug B payloads."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.literals import UNKNOWN
from lamplighter.adapters.mapping import Births, Mapping, cbor, protobuf, senml, sparkplug
from lamplighter.adapters.mapping.rules import command_rule
from lamplighter.adapters.mapping.sparkplug import is_of_dead
from lamplighter.adapters.mapping.tables import CommandTable
from lamplighter.adapters.mapping.times import time_zone
from lamplighter.adapters.mapping.values import enumeration
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, lexical, literal
from lamplighter.ontology.vocabulary import PREFIXES, UNIT
from tests.support.mapping_rules import BASE, EX, NOON, readings, rule, rules, values
from tests.support.tables import each_row


def mapping(keys: str) -> Any:
    return rules(f'[[stream]]\ntopic = "t/{{x}}"\nproperty = "ex:p"\n{keys}')


# CSV, binary, expressions, conversion


@each_row(
    ("keys", "payload", "expected"),
    [
        ('payload = "number"\ncolumn = 1', "12,21.5,3", "21.5"),
        ('payload = "number"\ncolumn = 0\nseparator = ";"', '"21.5";x', "21.5"),
        ('payload = "number"\ncolumn = "temp"', "time,temp\n1,20\n2,21\n", "21"),
        ('payload = "boolean"\ncolumn = 1', "x, wet\non,ON", "true"),
        ('payload = "number"\npattern = "T=(-?[0-9.]+)C"', "hum=40% T=-3.5C", "-3.5"),
        ('payload = "number"\npattern = "[0-9]+"', "about 42 mm", "42"),
        ('payload = "text"\nmember = "a[1].b"', '{"a": [0, {"b": "x"}]}', "x"),
        ("""payload = "text"\nmember = 'a["b.c"]'""", '{"a": {"b.c": "x"}}', "x"),
        ('payload = "number"\nscale = 0.1\noffset = -40', "653", "25.3"),
        ('payload = "number"\nscale = 0.001', "123456789012345678901234567890", "123456789012345678901234567.890"),
        ('payload = "number"\nscale = 2', "1e3", "2000.0"),
        ('payload = "number"\nscale = 0.392156862745\ndigits = 0', "255", "100"),
        ('payload = "number"\nscale = 0.392156862745\ndigits = 0', "1e2", "39"),
        ('payload = "number"\ndigits = 1', "20.25", "20.3"),
        ('payload = "number"\ndigits = 1', "-20.25", "-20.3"),
        ('payload = "number"\nscale = -1\noffset = 100\ndigits = 0', "37", "63"),
        ('on = ["open", "wet"]\noff = ["closed", "dry"]', "Wet", "true"),
        ('on = ["0"]', "false", "false"),
        ('on = ["0"]', "0", "true"),
        ("words = {a = 1, b = 2.5, c = true, d = 'ex:D'}", "b", "2.5"),
        ("words = {a = 1, b = 2.5, c = true, d = 'ex:D'}", "d", "http://example.org/ns#D"),
    ],
)
def test_value_of_a_payload(keys: str, payload: str, expected: str) -> None:
    assert list(values(mapping(keys), "t/1", payload).values()) == [expected]


def test_word_of_a_table_is_a_boolean_in_lower_case_or_a_text_without_the_space_around_it() -> None:
    term = enumeration({"true": literal("on"), "Open": literal("up")})
    assert [term(found) for found in (True, " Open ")] == [literal("on"), literal("up")]
    for found in (False, "open"):
        with pytest.raises(PayloadError, match="not a word"):
            term(found)


@pytest.mark.parametrize(("name", "minutes"), [("+02:30", 150), ("-03:15", -195), ("UTC", 0)])
def test_time_zone_is_an_offset_or_utc(name: str, minutes: int) -> None:
    assert time_zone(name).utcoffset(None) == timedelta(minutes=minutes)


def test_decimals_are_scaled_exactly_and_stay_decimals() -> None:
    [reading] = readings(mapping('payload = "number"\nscale = 0.1'), "t/1", "3")
    assert reading.value == literal("0.3", datatype=XSD + "decimal")


@each_row(
    ("keys", "payload"),
    [
        ('payload = "number"\ncolumn = 5', "1,2"),
        ('payload = "number"\ncolumn = "temp"', "1,2"),
        ('payload = "number"\ncolumn = "temp"', ""),
        ('payload = "number"\ncolumn = 0', '"1'),
        ('payload = "number"\nformat = "<h"', "x"),
        ('payload = "number"\nformat = "<f"', b"\x00\x00\x80\x7f"),
        ('payload = "text"\nformat = "4s"', b"\xff\xff\xff\xff"),
        ('payload = "number"\npattern = "[0-9]+"', "x" * 257),
        ('payload = "number"\npattern = "[0-9]+"', "none"),
        ('on = ["open"]', "ajar"),
        ('payload = "number"\nscale = 2', "9e307"),
        ('payload = "number"\ndigits = 0', "9e307"),
        ('payload = "number"\nscale = 2', "1e-99999999999999999999"),
        ('payload = "number"\nmember = "a"\nscale = 2', '{"a": 1e-99999999999999999999}'),
    ],
)
def test_broken_payload_is_refused_without_quoting_it(keys: str, payload: bytes | str) -> None:
    with pytest.raises(PayloadError) as raised:
        values(mapping(keys), "t/1", payload)
    assert "ajar" not in str(raised.value) and "9e307" not in str(raised.value)


@each_row(("field", "expected"), [(0, "-5"), (1, "21.5"), (2, "true"), (3, "abc")])
def test_binary_payload(field: int, expected: str) -> None:
    kind = {2: "boolean", 3: "text"}.get(field, "number")
    rule = mapping(f'payload = "{kind}"\nformat = "<hf?4s"\nfield = {field}')
    assert list(values(rule, "t/1", struct.pack("<hf?4s", -5, 21.5, True, b"abc\0")).values()) == [expected]


def test_members_of_an_object_become_streams_of_their_own() -> None:
    rule = mapping('payload = "number"\nmember = "sensors.{n}.value"\nunit = "Cel"\nlabel = "{n} at {x}"')
    found = readings(rule, "t/1", '{"sensors": {"a b": {"value": 1}, "c": {"value": 2.5}, "d": {}, "e": 3}}')
    assert [(lexical(r.stream.sensor), lexical(r.value), r.stream.label) for r in found] == [
        ("http://gateway.example/sensor/t/1/a%20b", "1", "a b at 1"),
        ("http://gateway.example/sensor/t/1/c", "2.5", "c at 1"),
    ]


def test_unknown_unit_is_kept_as_text() -> None:
    [reading] = readings(mapping('payload = "number"\nunit = "furlong"'), "t/1", "3")
    assert reading.stream.unit == '"furlong"'


# SenML

SENML = rules('[[stream]]\ntopic = "senml/{gw}"\npayload = "senml"\nproperty = "ex:{n}"\nsensor = "dev/{n}"')
PACK = (
    '[{"bn":"urn:dev:ow:10e2073a01080063:","bt":1795262390,"bu":"Cel","bver":10,"n":"t","v":23.1},'
    '{"n":"rh","u":"%RH","t":-10,"v":67.3},{"n":"door","vb":true},{"n":"label","vs":"attic"},{"n":"raw","vd":"AAE"}]'
)


def test_senml_records_are_resolved() -> None:
    found = readings(SENML, "senml/g", PACK)
    name = "dev/urn%3Adev%3Aow%3A10e2073a01080063%3A"
    assert [
        (lexical(r.stream.sensor)[23:], lexical(r.value), r.stream.unit, lexical(r.time)[11:19]) for r in found
    ] == [
        (f"{name}t", "23.1", f"<{UNIT}DEG_C>", "11:59:50"),
        (f"{name}rh", "67.3", f"<{UNIT}PERCENT_RH>", "11:59:40"),
        (f"{name}door", "true", f"<{UNIT}DEG_C>", "11:59:50"),
        (f"{name}label", "attic", f"<{UNIT}DEG_C>", "11:59:50"),
    ]


def test_senml_record_is_chosen_by_its_name() -> None:
    rule = rules('[[stream]]\ntopic = "s"\npayload = "senml"\nmember = "t"\nproperty = "ex:t"\nunit = "Cel"')
    assert [lexical(r.value) for r in readings(rule, "s", PACK)] == ["23.1"]
    with pytest.raises(PayloadError, match="another unit"):
        readings(rule, "s", PACK.replace("Cel", "K"))


@each_row(
    ("pack", "expected"),
    [
        ('[{"n":"a","v":1}]', [("a", "1", 0.0)]),
        ('[{"bn":"x/","bv":20.5,"n":"a","v":-0.7},{"n":"b","s":3}]', [("x/a", "19.8", 0.0), ("x/b", "3", 0.0)]),
        ('[{"bn":"x","bt":-60,"v":1},{"t":5.5,"v":2}]', [("x", "1", -60.0), ("x", "2", -54.5)]),
        ('[{"bn":"x","bs":10,"s":1.5}]', [("x", "11.5", 0.0)]),
    ],
)
def test_senml_base_fields(pack: str, expected: list[tuple[str, str, float]]) -> None:
    found = senml.records(pack.encode(), NOON)
    assert [(n, str(v), (t - NOON).total_seconds() if t else 0.0) for n, _, v, _, t in found] == expected


@each_row(
    "pack",
    [
        "{}", "[1]", '[{"v":1}]', '[{"n":"a b","v":1}]', '[{"n":"a","v":"1"}]', '[{"n":"a","v":1,"vb":true}]',
        '[{"n":"a","v":1,"x_":1}]', '[{"bver":11,"n":"a","v":1}]', '[{"n":"a","v":1e300}]', '[{"n":1,"v":1}]',
        '[{"n":"a","v":true}]', '[{"n":"a","t":"x","v":1}]', "[" * 2000,
        '[{"n":"a","v":1e99999999999999999999}]', '[{"n":"a","v":1e-99999999999999999999}]',
        '[{"n":"a","v":1,"bt":1e99999999999999999999}]', '[{"bver":1e99999999999999999999,"n":"a","v":1}]',
        '[{"bv":0e-9999,"n":"a","v":0e-9999}]',
        "[" + ",".join(['{"n":"a","v":1}'] * 1025) + "]",
    ],
)  # fmt: skip
def test_bad_senml_is_refused(pack: str) -> None:
    with pytest.raises(PayloadError):
        senml.records(pack.encode(), NOON)


def head(major: int, count: int) -> bytes:
    if count < 24:
        return bytes([major << 5 | count])
    size = next(size for size in (1, 2, 4, 8) if count < 1 << (8 * size))
    return bytes([major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[size]]) + count.to_bytes(size)


def encoded(item: Any) -> bytes:
    """CBOR of a value, written beside the decoder."""
    if isinstance(item, bool):
        return b"\xf5" if item else b"\xf4"
    if item is None:
        return b"\xf6"
    if isinstance(item, int):
        return head(0, item) if item >= 0 else head(1, -1 - item)
    if isinstance(item, float):
        return b"\xfb" + struct.pack(">d", item)
    if isinstance(item, str):
        return head(3, len(item.encode())) + item.encode()
    if isinstance(item, list):
        return head(4, len(item)) + b"".join(map(encoded, item))
    assert isinstance(item, dict)
    return head(5, len(item)) + b"".join(encoded(key) + encoded(value) for key, value in item.items())


def test_senml_in_cbor_has_the_records_of_the_json() -> None:
    pack = [
        {-2: "urn:dev:ow:10e2073a01080063:", -3: 1795262390, -4: "Cel", -1: 10, 0: "t", 2: 23.1},
        {0: "rh", 1: "%RH", 6: -10, 2: 67.3},
        {0: "door", 4: True},
        {0: "label", 3: "attic"},
    ]
    assert senml.records(encoded(pack), NOON) == senml.records(PACK.encode(), NOON)


ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.integers(-9, 9) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(ITEMS)
def test_cbor_is_decoded(item: Any) -> None:
    try:
        assert cbor.decode(encoded(item)) == item
    except PayloadError as error:
        assert "depth" in str(error)


@each_row(
    ("data", "expected"),
    [("f93e00", "1.5"), ("fa41ac0000", "21.5"), ("c48221196ab3", "273.15"), ("9f0102ff", [1, 2]),
     ("7f61616162ff", "ab"),
     ("f90000", 0), ("bf0001ff", {0: 1}), ("c11a5fc00000", 1606418432)],
)  # fmt: skip
def test_cbor_items(data: str, expected: Any) -> None:
    assert cbor.decode(bytes.fromhex(data)) == expected


@each_row(
    ("data", "expected"),
    [
        ("d8236528612b292b", "(a+)+"),  # a regular expression
        ("d8246161", "a"),  # a mail
        ("c077323031332d30332d32315432303a30343a30302e31315a", "2013-03-21T20:04:00.11Z"),
        ("d81c81d81d00", [0]),  # a list that has itself
        ("d901008263616161d81900", ["aaa", 0]),  # a text twice
        ("d901028101", [1]),  # a set
        ("d81e820103", [1, 3]),  # a fraction
        ("d9ffff01", 1),
    ],
)
def test_tags_of_cbor_make_nothing(data: str, expected: Any) -> None:
    found = cbor.decode(bytes.fromhex(data))
    assert (type(found), found) == (type(expected), expected)


def test_the_largest_payload_of_cbor_items_takes_bounded_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match="16384 items"):
            cbor.decode(b"\x99\xff\xf0" + b"\x80" * 0xFFF0)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@each_row(
    "data",
    ["", "ff", "81", "1c", "f97e00", "f97c00", "4100", "9f", "0000", "a1", "a1f500", "5f", "c4820118", "bf01ff",
     "81" * 9 + "00",
     "c4821b7fffffffffffffff01", "61ff", "9bffffffffffffffff", "7bffffffffffffffff"],
)  # fmt: skip
def test_bad_cbor_is_refused(data: str) -> None:
    with pytest.raises(PayloadError):
        cbor.decode(bytes.fromhex(data))


# Sparkplug B


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def field(number: int, value: int | bytes | float) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def metric(name: str | None = None, alias: int | None = None, type_: int = 0, unit: str = "", **value: Any) -> bytes:
    found = b"" if name is None else field(1, name.encode())
    found += b"" if alias is None else field(2, alias)
    found += field(4, type_) if type_ else b""
    if unit:
        found += field(9, field(1, b"engUnit") + field(2, field(1, 12) + field(8, unit.encode())))
    numbers = {
        "timestamp": 3,
        "historical": 5,
        "null": 7,
        "int": 10,
        "long": 11,
        "double": 13,
        "boolean": 14,
        "string": 15,
    }
    return field(2, found + b"".join(field(numbers[kind], item) for kind, item in value.items()))


MS = int(NOON.timestamp() * 1000)
BIRTH = (
    field(1, MS - 5000)
    + metric("bdSeq", 0, 4, long=3)
    + metric("Node Control/Rebirth", 1, 11, boolean=0)
    + metric("Temp/Inner", 7, 10, "°C", double=21.25)
    + metric("Count", 8, 3, int=2**32 - 5)
    + metric("Mode", 9, 12, string=b"auto")
    + metric("Gone", 10, 10, null=1)
)
SPARKPLUG = rules(
    '[[stream]]\ntopic = "spBv1.0/{group}/{type}/{node}/{device}"\npayload = "sparkplug"\nproperty = "ex:{n}"\n'
)


def test_sparkplug_birth_gives_readings_with_names_types_and_units() -> None:
    found = readings(SPARKPLUG, "spBv1.0/g/DBIRTH/n/d", BIRTH, births=Births())
    assert [(lexical(r.stream.sensor)[30:], lexical(r.value), r.stream.unit) for r in found] == [
        ("spBv1.0/g/DDATA/n/d/Temp%2FInner", "21.25", f"<{UNIT}DEG_C>"),
        ("spBv1.0/g/DDATA/n/d/Count", "-5", None),
        ("spBv1.0/g/DDATA/n/d/Mode", "auto", None),
        ("spBv1.0/g/DDATA/n/d/Gone", "unknown", None),
    ]
    assert {lexical(r.time)[11:19] for r in found} == {"11:59:55"}


def test_sparkplug_data_by_alias_belongs_to_the_stream_of_the_birth() -> None:
    births = Births()
    born = readings(SPARKPLUG, "spBv1.0/g/DBIRTH/n/d", BIRTH, births=births)
    data = field(1, MS) + metric(alias=7, double=22.5) + metric(alias=8, timestamp=MS - 1000, int=2**32 - 7)
    found = readings(SPARKPLUG, "spBv1.0/g/DDATA/n/d", data, births=births)
    assert [r.stream for r in found] == [r.stream for r in born][:2]
    assert [(lexical(r.value), lexical(r.time)[11:19]) for r in found] == [("22.5", "12:00:00"), ("-7", "11:59:59")]


def test_sparkplug_alias_without_birth_asks_for_one() -> None:
    births = Births()
    with pytest.raises(PayloadError, match="birth"):
        readings(SPARKPLUG, "spBv1.0/g/DDATA/n/d", metric(alias=7, double=22.5), births=births)
    assert births.unborn == {("g", "n")}
    readings(SPARKPLUG, "spBv1.0/g/DBIRTH/n/d", BIRTH, births=births)
    assert (births.born, births.unborn) == ({("g", "n")}, {("g", "n")}), "data behind a birth may be lost"
    assert births.bury("spBv1.0/g/DDEATH/n/d", field(1, MS)) == "g/n/d"
    with pytest.raises(PayloadError, match="birth"):
        readings(SPARKPLUG, "spBv1.0/g/DDATA/n/d", metric(alias=7, double=22.5), births=births)


def test_sparkplug_remembers_so_many_nodes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkplug, "NODES_MAX", 2)
    births = Births()
    for node in "abc":
        with pytest.raises(PayloadError, match="birth"):
            births.records(f"spBv1.0/g/NDATA/{node}", metric(alias=7, double=22.5))
    assert births.unborn == {("g", "a"), ("g", "b")}
    for node in "abc":
        births.records(f"spBv1.0/g/NBIRTH/{node}", BIRTH)
    death = metric("bdSeq", type_=4, long=2)  # of a session before that of the birth, if it is remembered
    assert [births.bury(f"spBv1.0/g/NDEATH/{node}", death) for node in "abc"] == ["g/a", None, None]
    assert births.records("spBv1.0/g/NDEATH/b", death) == []


def test_sparkplug_node_that_is_born_again_and_again_drives_no_other_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkplug, "METRICS_ALL_MAX", 12)  # names and aliases of two such births
    births = Births()
    for node in ("other", *["n"] * 5):
        readings(SPARKPLUG, f"spBv1.0/g/DBIRTH/{node}/d", BIRTH, births=births)
    [found] = readings(SPARKPLUG, "spBv1.0/g/DDATA/other/d", metric(alias=7, double=22.5), births=births)
    assert lexical(found.value) == "22.5"


def test_sparkplug_metric_that_is_null_has_no_value_whatever_it_carries() -> None:
    data = field(1, MS) + metric("Gone", type_=10, null=1, double=1.0) + metric("There", type_=10, null=0, double=2.0)
    found = readings(SPARKPLUG, "spBv1.0/g/DBIRTH/n/d", data, births=Births())
    assert [r.value if r.value == UNKNOWN else lexical(r.value) for r in found] == [UNKNOWN, "2.0"]


def test_sparkplug_metric_of_the_past_is_marked() -> None:
    data = field(1, MS) + metric("Then", type_=10, double=1.0, historical=1) + metric("Now", type_=10, double=2.0)
    found = readings(SPARKPLUG, "spBv1.0/g/DDATA/n/d", data, births=Births())
    assert [(lexical(r.value), r.historical) for r in found] == [("1.0", True), ("2.0", False)]


@each_row(
    ("topic", "dead"),
    [
        ("spBv1.0/g/NDEATH/n", ["spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/n/d", "spBv1.0/g/DDATA/n/e"]),
        ("spBv1.0/g/DDEATH/n/d", ["spBv1.0/g/DDATA/n/d"]),
    ],
)
def test_sparkplug_death_is_that_of_the_devices_of_a_node(topic: str, dead: list[str]) -> None:
    died = Births().bury(topic, b"")
    topics = ["spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/n/d", "spBv1.0/g/DDATA/n/e", "spBv1.0/g/DDATA/nn/d", "home/g/n"]
    assert died is not None
    assert [one for one in topics if is_of_dead(one, died)] == dead


def test_sparkplug_death_of_a_former_session_is_none() -> None:
    """The broker sends the will of a broken connection when the node is born again already."""
    births = Births()
    births.records("spBv1.0/g/NBIRTH/n", field(1, MS) + metric("bdSeq", 0, 4, long=4))
    assert births.bury("spBv1.0/g/NDEATH/n", metric("bdSeq", long=3)) is None
    assert births.bury("spBv1.0/g/NDEATH/n", metric("bdSeq", long=4)) == "g/n"


def test_sparkplug_small_integer_has_its_own_bits_only() -> None:
    """Many clients write the negative numbers of all types with 32 bits."""
    data = field(1, MS) + metric("Small", type_=1, int=2**32 - 5) + metric("Byte", type_=1, int=2**8 - 5)
    assert [lexical(r.value) for r in readings(SPARKPLUG, "spBv1.0/g/DBIRTH/n/d", data, births=Births())] == ["-5"] * 2


def test_number_of_protobuf_fields_is_bounded() -> None:
    data = protobuf.varint_field(1, 0) * (protobuf.FIELDS_MAX + 1)
    assert len(list(protobuf.fields(memoryview(data)[2:]))) == protobuf.FIELDS_MAX
    with pytest.raises(PayloadError, match="more than 65536 protobuf fields"):
        list(protobuf.fields(memoryview(data)))


@each_row("data", [b"\x12\xff", b"\x0b", b"\xff" * 11, field(4, b"SPBV1.0_COMPRESSED"), field(2, b"\x0a\x02\xff\xff")])
def test_bad_sparkplug_payload_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        Births().records("spBv1.0/g/DDATA/n/d", data)


@given(st.binary(max_size=60))
def test_protobuf_fields_end_or_are_refused(data: bytes) -> None:
    try:
        list(protobuf.fields(memoryview(data)))
    except PayloadError as error:
        assert "protobuf" in str(error)


# Times


def timed(keys: str, payload: str, **more: Any) -> tuple[str, str | None]:
    [reading] = readings(mapping(f'payload = "number"\nmember = "v"\n{keys}'), "t/1", payload, **more)
    return lexical(reading.time)[:19], reading.time_problem


NOON_TEXT = "2026-11-21T12:00:00"


@each_row(
    ("keys", "time", "expected"),
    [
        ("", '"x"', (NOON_TEXT, None)),
        ('time = "member t"', '"2026-11-21T11:00:00Z"', ("2026-11-21T11:00:00", None)),
        ('time = "member t"', '"2026-11-21T11:00:00.25+01:00"', ("2026-11-21T10:00:00", None)),
        ('time = "member t"', f"{MS // 1000 - 60}", ("2026-11-21T11:59:00", None)),
        ('time = "member t"', f"{MS / 1000 - 60:.3f}", ("2026-11-21T11:59:00", None)),
        ('time = "member t"', f'"{MS - 60_000}"', ("2026-11-21T11:59:00", None)),
        ('time = "member t"', f"{(MS - 60_000) * 1000}", ("2026-11-21T11:59:00", None)),
        ('time = "member t"', f"{(MS - 60_000) * 1_000_000}", ("2026-11-21T11:59:00", None)),
        ('time = "member t"\ntime_zone = "Europe/Rome"', '"2026-11-21T12:30"', ("2026-11-21T11:30:00", None)),
        ('time = "member t"', '"2026-11-21T11:00:00"', (NOON_TEXT, "unreadable")),
        ('time = "member t"', '"soon"', (NOON_TEXT, "unreadable")),
        ('time = "member u"', '"soon"', (NOON_TEXT, "unreadable")),
        ('time = "member t"', '"1970-01-01T00:00:12Z"', (NOON_TEXT, "past")),
        ('time = "member t"', '"2026-11-21T12:00:01Z"', (NOON_TEXT, None)),
        ('time = "member t"', '"2026-11-21T12:00:03Z"', (NOON_TEXT, "future")),
        ('time = "member t"', '"9999-12-31T23:59:59Z"', (NOON_TEXT, "future")),
        ('time = "member t"', '"0001-01-01T00:00:00+14:00"', (NOON_TEXT, "unreadable")),
        ('time = "member t"', "1e400", (NOON_TEXT, "unreadable")),
        ('time = "member t"', "true", (NOON_TEXT, "unreadable")),
    ],
)
def test_result_time(keys: str, time: str, expected: tuple[str, str | None]) -> None:
    assert timed(keys, f'{{"v": 1, "t": {time}}}') == expected


def test_result_time_from_a_user_property() -> None:
    keys = 'time = "property sent"'
    assert timed(keys, '{"v": 1}', properties={"sent": "2026-11-21T11:00:00Z"}) == ("2026-11-21T11:00:00", None)
    assert timed(keys, '{"v": 1}') == (NOON_TEXT, "unreadable")


def test_time_of_a_retained_message_is_unknown_unless_the_payload_has_it() -> None:
    assert timed("", '{"v": 1}', retained=True)[1] == "retained"
    good, bad = '{"v": 1, "t": "2026-11-21T11:00:00Z"}', '{"v": 1, "t": "2027-01-01T00:00:00Z"}'
    assert timed('time = "member t"', good, retained=True) == ("2026-11-21T11:00:00", None)
    assert timed('time = "member t"', bad, retained=True)[1] == "retained"


def test_wrong_clock_of_the_gateway_is_marked_and_judges_no_device() -> None:
    assert timed("", '{"v": 1}', trusted=False)[1] == "clock"
    early = NOON - timedelta(days=9000)
    message = '{"v": 1, "t": "2026-11-21T11:00:00Z"}'
    assert timed('time = "member t"', message, trusted=False, received=early) == ("2026-11-21T11:00:00", None)


def test_values_of_a_message_are_bounded_over_all_rules() -> None:
    read = {"payload": "number", "member": "{n}", "property": "gateway:temperature"}
    many = rule({"topic": "t", "read": [read | {"sensor": f"s{number}/{{n}}"} for number in range(20)]})
    payload = json.dumps({f"k{number}": number for number in range(1_000)}).encode()
    found = Mapping([many]).readings("t", payload, retained=False, received=NOON)
    assert len(found) == 5_001
    assert str(found[-1]) == ("the message has more than 4096 values; rule of t read 6 and later ones are not used")


def test_columns_of_one_payload_are_looked_up_in_one_reading_of_it() -> None:
    reads = [
        {"payload": "number", "column": f"c{number}", "property": "gateway:temperature", "sensor": f"s{number}"}
        for number in range(100)
    ]
    many = Mapping([rule({"topic": "t", "read": reads})])
    titles = ",".join(["x"] * 15_000 + [f"c{number}" for number in range(100)])
    payload = f"{titles}\n{'1,' * 15_099}1".encode()
    begun = time.thread_time()
    assert len(readings(many, "t", payload)) == 100
    assert time.thread_time() - begun < 1


def test_header_is_the_first_of_several_rows() -> None:
    column = mapping('payload = "number"\ncolumn = "a"')
    assert list(values(column, "t/1", "\na , b,a\n\n1,2,3\n4,5,6\n").values()) == ["4"]
    with pytest.raises(PayloadError, match="no column"):
        values(column, "t/1", "a,b")


def test_long_words_of_booleans_are_not_compared() -> None:
    assert list(values(mapping('on = ["İ"]'), "t/1", "i̇").values()) == ["true"]
    with pytest.raises(PayloadError, match="not a boolean"):
        values(mapping('payload = "boolean"'), "t/1", "İ" * 30_000)


def test_sparkplug_unit_is_that_of_the_property_eng_unit() -> None:
    def field(number: int, *parts: bytes) -> bytes:
        return protobuf.bytes_field(number, b"".join(parts))

    units = [field(2, field(8, text)) for text in (b"no", b"W", b"no")]
    properties = field(9, field(1, b"a"), field(1, b"engUnit"), field(1, b"engUnit"), *units)
    metric = field(2, field(1, b"m"), properties, protobuf.varint_field(10, 7))
    [found] = Births().records("spBv1.0/g/NBIRTH/n", metric)
    assert (found.name, found.found, found.unit) == ("m", 7, "W")


def test_captured_names_and_the_iris_that_they_fill_are_bounded() -> None:
    many = rules('[[stream]]\ntopic = "t"\npayload = "number"\nmember = "{n}"\nproperty = "ex:p"')
    with pytest.raises(PayloadError, match="name has more than 256 characters"):
        readings(many, "t", json.dumps({"x" * 257: 1}))
    sensor = "s/" + "{n}" * 300
    many = rules(
        f'[[stream]]\ntopic = "t"\npayload = "number"\nmember = "{{n}}"\nproperty = "ex:p"\nsensor = "{sensor}"'
    )
    assert len(readings(many, "t", '{"a": 1}')) == 1
    with pytest.raises(PayloadError, match="an IRI would have more than 4096 characters"):
        readings(many, "t", json.dumps({"x" * 256: 1}))
    with pytest.raises(ConfigurationError, match=r"sensor = .*: write at most 1024 characters"):
        rule({"topic": "t", "payload": "number", "property": "ex:p", "sensor": "s" * 1_025})


@pytest.mark.parametrize(
    ("written", "optional"), [({}, True), ({"optional": True}, True), ({"optional": False}, False)]
)
def test_a_state_may_be_missing_in_a_message_unless_its_table_says_otherwise(
    written: dict[str, bool], optional: bool
) -> None:
    state = {"topic": "lamp/state", "member": "state"} | written
    table = {"actuator": "ex:lamp", "topic": "lamp/set", "values": {"true": "ON", "false": "OFF"}, "state": state}
    made_of = msgspec.convert(table, CommandTable)
    command = command_rule(made_of, prefixes=PREFIXES | {"ex": EX}, base_iri=BASE, place="rule")
    assert command.state is not None
    [read] = command.state.reads
    assert read.optional == optional


def test_the_templates_of_a_value_are_the_iris_of_its_streams() -> None:
    for keys in ({"member": "a"}, {"read": [{"member": "a"}]}):
        one = rule({"topic": "t/{x}", "payload": "number", "property": "ex:p"} | keys)
        [read] = one.reads
        [stream] = one.streams("t/7")
        for key, term in (("sensor", stream.sensor), ("feature", stream.feature)):
            assert f"<{read.template(key)}>".replace("{1}", "7") == term
