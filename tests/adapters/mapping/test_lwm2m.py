"""LwM2M TLV and JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.mapping import lwm2m
from lamplighter.adapters.mapping.payloads import Found, Number
from lamplighter.engine.errors import PayloadError
from tests.support.mapping_rules import NOON
from tests.support.tables import each_row

DEVICE = bytes.fromhex(
    "c800144f70656e204d6f62696c6520416c6c69616e6365"  # 0, manufacturer
    "c801164c69676874776569676874204d324d20436c69656e74"  # 1, model
    "c80209333435303030313233"  # 2, serial number
    "c303312e30"  # 3, firmware
    "8606410001410105"  # 6, power sources: two instances
    "88070842000ed842011388"  # 7, their voltages
    "870841007d42010384"  # 8, their currents
    "c10964"  # 9, battery
    "c10a0f"  # 10, memory
    "830b410000"  # 11, error codes
    "c40d5182428f"  # 13, time
    "c60e2b30323a3030"  # 14, offset from UTC
    "c11055"  # 16, binding
)
"""The example of LwM2M Core 1.0.2, section 6.4.3.3: the object instance 3/0."""


def read(data: bytes, place: str, form: str = "lwm2m+tlv") -> dict[str, Found]:
    """Value by path; an error is raised."""
    found = {}
    for path, _, value, _, _ in lwm2m.records(data, form, place, NOON):
        if isinstance(value, PayloadError):
            raise value
        found[path] = value
    return found


def test_object_instance_of_the_specification() -> None:
    assert read(DEVICE, "lamp/3/0") == {
        "3/0/0": "Open Mobile Alliance",
        "3/0/1": "Lightweight M2M Client",
        "3/0/2": "345000123",
        "3/0/3": "1.0",
        "3/0/6/0": 1,
        "3/0/6/1": 5,
        "3/0/7/0": 3800,
        "3/0/7/1": 5000,
        "3/0/8/0": 125,
        "3/0/8/1": 900,
        "3/0/9": 100,
        "3/0/10": 15,
        "3/0/11/0": 0,
        "3/0/13": 1367491215,
        "3/0/14": "+02:00",
        "3/0/16": "U",
    }


@each_row(
    ("data", "place", "values"),
    [
        ("e4164441ac0000", "lamp/3303/0/5700", {"3303/0/5700": "21.5"}),
        ("e4164441accccd", "lamp/3303/0/5700", {"3303/0/5700": "21.6"}),
        ("e81644084035800000000000", "lamp/3303/0", {"3303/0/5700": "21.5"}),
        ("e4164441a80000", "lamp/3303/0", {"3303/0/5700": "21.0"}),
        ("0007e4164441ac0000", "readings/7", {"5700": "21.5"}),
        ("0700e4164441ac0000", "lamp/3303", {"3303/0/5700": "21.5"}),
        ("0700e4164441ac0000", "readings", {"0/5700": "21.5"}),
        ("e416447f7fffff", "lamp/3303/0", {"3303/0/5700": "3.4028235e+38"}),
        ("e4164400000001", "lamp/3303/0", {"3303/0/5700": "1e-45"}),
        ("e41644ff7fffff", "lamp/3303/0", {"3303/0/5700": "-3.4028235e+38"}),
        ("e81644087fefffffffffffff", "lamp/3303/0", {"3303/0/5700": "1.7976931348623157e+308"}),
        ("e116da01", "lamp/lwm2m/3311/0/5850?x=1", {"3311/0/5850": True}),
        ("e116da00", "readings/hall", {"5850": False}),
        ("410105", "lamp/3/0/6", {"3/0/6/1": 5}),
        ("", "lamp/3303/0", {}),
    ],
)
def test_values_have_the_path_of_their_resource(data: str, place: str, values: dict[str, Found]) -> None:
    assert read(bytes.fromhex(data), place) == values


def test_time_of_a_multiple_resource_and_types_of_values() -> None:
    [(_, _, value, _, time)] = lwm2m.records(bytes.fromhex("e4164441ac0000"), "lwm2m+tlv", "lamp/3303/0", NOON)
    assert isinstance(value, Number) and time is None


@each_row(
    ("data", "place", "reason"),
    [
        ("c1", "lamp/3/0", "ends within an entry"),
        ("c10a", "lamp/3/0", "ends within an entry"),
        ("c80aff00", "lamp/3/0", "ends within an entry"),
        ("0702c00a", "lamp/3", "ends within an entry"),
        ("0702410a00", "lamp/3", "ends within an entry"),
        ("030041000a", "lamp/3", "other entries than resources"),
        ("8303c10a00", "lamp/3/0", "other entries than its instances"),
        ("e13a9901", "lamp/3303/0", "the type of the LwM2M resource 3303/0/15001 is unknown"),
        ("c10101", "lamp/1/0", "the type of the LwM2M resource 1/0/1 is unknown"),
        ("c10101", "readings", "the type of the LwM2M resource 1 is unknown"),
        ("410101", "readings", "without a number is unknown"),
        ("e116da02", "lamp/3311/0", "3311/0/5850 is not of type boolean"),
        ("e3164441ac00", "lamp/3303/0", "3303/0/5700 is not of type number"),
        ("e416447f800000", "lamp/3303/0", "is not of type number"),
        ("e3157d000001", "lamp/3200/0", "is not of type integer"),
        ("e21645fffe", "lamp/3303/0", "is not of type text"),
    ],
)
def test_faulty_entries(data: str, place: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        read(bytes.fromhex(data), place)


def test_unknown_type_concerns_one_value_only() -> None:
    found = lwm2m.records(bytes.fromhex("e13a9901e116da01"), "lwm2m+tlv", "lamp/3311/0", NOON)
    assert [isinstance(value, PayloadError) for _, _, value, _, _ in found] == [True, False]


def test_number_of_values_is_bounded() -> None:
    with pytest.raises(PayloadError, match="more than 1024 values"):
        read(bytes.fromhex("e116da01") * 1025, "lamp/3311/0")


JSON = {"bn": "/3303/0/", "bt": 1_700_000_000, "e": [{"n": "5700", "v": 21.5, "t": -5}, {"n": "5701", "sv": "Cel"}]}


def test_json_has_paths_types_and_times() -> None:
    found = lwm2m.records(json.dumps(JSON).encode(), "lwm2m+json", "lamp/3303/0", NOON)
    assert [(path, own, value) for path, own, value, _, _ in found] == [
        ("3303/0/5700", "5700", "21.5"),
        ("3303/0/5701", "5701", "Cel"),
    ]
    times = [time for *_, time in found]
    assert times[0] is not None and times[1] is not None and times[1] - times[0] == timedelta(seconds=5)
    relative = b'{"e": [{"n": "5850", "bv": true, "t": -5}]}'
    [(path, _, value, _, time)] = lwm2m.records(relative, "lwm2m+json", "lamp/3311/0", NOON)
    assert (path, value, time) == ("3311/0/5850", True, NOON - timedelta(seconds=5))


@each_row(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not LwM2M JSON"),
        ('{"e": {}}', "not LwM2M JSON"),
        ('{"e": [1]}', "not an object"),
        ('{"e": [{"n": "a", "v": 1}]}', "no path of numbers"),
        ('{"bn": 1, "e": [{"n": "5", "v": 1}]}', "no path of numbers"),
        ('{"e": [{"n": "5700"}]}', "resource 3303/0/5700 is missing"),
        ('{"e": [{"n": "5700", "v": 1, "sv": "a"}]}', "is missing"),
        ('{"e": [{"n": "5700", "v": "1"}]}', "not a number"),
        ('{"e": [{"n": "5700", "v": true}]}', "not a number"),
        ('{"e": [{"n": "5700", "bv": 1}]}', "not a number"),
        ('{"e": [{"n": "5700", "ov": "3:0"}]}', "not a number"),
    ],
)
def test_faulty_json(text: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        read(text.encode(), "lamp/3303/0", "lwm2m+json")


@each_row(
    ("value", "place", "body"),
    [
        (True, "lamp/3311/0/5850", "e116da01"),
        (False, "lamp/3311/0/5850", "e116da00"),
        (40, "lamp/3311/0/5851", "e116db28"),
        (-300, "lamp/3311/0/5851", "e216dbfed4"),
        (21, "lamp/3308/0/5900", "e4170c41a80000"),
        (Number("21.5"), "lamp/3308/0/5900", "e4170c41ac0000"),
        (Number("21.6"), "lamp/3308/0/5900", "e8170c08403599999999999a"),
        (Number("3.4025000633641588e+38"), "lamp/3308/0/5900", "e8170c0847efff3890000001"),
        ("red", "lamp/3311/0/5706", "e3164a726564"),
        ("12345678", "lamp/3311/0/5706", "e8164a083132333435363738"),
        (True, "lamp/32769/0/200", "c1c801"),
        (7, "lamp/32769/0/200", "c1c807"),
        ("on", "lamp/32769/0/200", "c2c86f6e"),
        (Number("0.5"), "lamp/32769/0/200", "c4c83f000000"),
    ],
)
def test_state_becomes_one_resource(value: Found, place: str, body: str) -> None:
    assert lwm2m.encode("lwm2m+tlv", place, value).hex() == body


@each_row(
    ("value", "place", "reason"),
    [
        ("on", "lamp/3311/0/5850", "not of the type of the LwM2M resource, boolean"),
        (1, "lamp/3311/0/5850", "boolean"),
        (True, "lamp/3311/0/5851", "integer"),
        (Number("1.5"), "lamp/3311/0/5851", "integer"),
        ("warm", "lamp/3308/0/5900", "number"),
        (5, "lamp/3311/0/5706", "text"),
        (True, "lamp/light", "does not end in the number"),
        (True, "lamp/70000", "at most 65535"),
        (2**63, "lamp/32769/0/200", "64 bits"),
        (Number("1e999"), "lamp/3308/0/5900", "out of range"),
    ],
)
def test_states_that_give_no_resource(value: Found, place: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        lwm2m.encode("lwm2m+tlv", place, value)


def test_json_of_one_resource() -> None:
    text = lwm2m.encode("lwm2m+json", "lamp/3311/0/5850", True).decode()
    assert json.loads(text) == {"bn": "/3311/0/", "e": [{"n": "5850", "bv": True}]}


@given(
    st.one_of(
        st.tuples(st.just("3311/0/5850"), st.booleans()),
        st.tuples(st.just("3311/0/5851"), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just("3308/0/5900"), st.floats(allow_nan=False, allow_infinity=False)),
        st.tuples(st.just("3311/0/5706"), st.text(st.characters(exclude_categories=["Cs"]))),
    ),
    st.sampled_from(["lwm2m+tlv", "lwm2m+json"]),
)
def test_written_value_is_read_again(written: tuple[str, Found], form: str) -> None:
    path, value = written
    given = Number(repr(value)) if isinstance(value, float) else value
    [(read_path, found)] = read(lwm2m.encode(form, f"lamp/{path}", given), f"lamp/{path}", form).items()
    assert read_path == path
    assert (float(found) if isinstance(value, float) else found) == value


@given(st.binary(max_size=60), st.sampled_from(["lwm2m+tlv", "lwm2m+json"]))
def test_any_bytes_are_values_or_refused(data: bytes, form: str) -> None:
    with suppress(PayloadError):
        lwm2m.records(data, form, "lamp/3303/0", NOON)
