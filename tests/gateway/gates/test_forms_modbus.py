"""Forms of the W3C WoT Modbus Binding as resources of rules. The URIs are those of its examples."""

from __future__ import annotations

from typing import Any

import pytest

from lamplighter.gateway.gates.wot.forms_modbus import ModbusForm, UnusableTermError, modbus_form
from tests.support.tables import each_row

HREF = "modbus+tcp://127.0.0.1:60000/1/1"
INTEGER, NUMBER, BOOLEAN, TEXT = ({"type": name} for name in ("integer", "number", "boolean", "string"))


def found(form: dict[str, Any], schema: dict[str, Any], href: str = HREF, *, written: bool = False) -> ModbusForm:
    return modbus_form({"href": href} | form, href, schema, written=written)


@each_row(
    ("form", "schema", "place", "keys"),
    [
        ({"modv:entity": "Coil"}, BOOLEAN, "1/1?entity=coil", {}),
        ({"modv:function": "readDiscreteInput"}, BOOLEAN, "1/1?entity=discrete_input", {}),
        ({}, BOOLEAN, "1/1?entity=coil", {}),
        ({"modv:function": 4}, INTEGER, "1/1?entity=input_register", {"type": "int16"}),
        ({"modv:entity": "InputRegister", "modv:function": "readCoil"}, INTEGER, "1/1?entity=input_register",
         {"type": "int16"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:unsignedShort"}, INTEGER, "1/1", {"type": "uint16"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:float"}, NUMBER, "1/1?quantity=2", {"type": "float32"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:unsignedLong"}, INTEGER, "1/1?quantity=4",
         {"type": "uint64"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:byte"}, INTEGER, "1/1", {"type": "int16"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:boolean"}, BOOLEAN, "1/1", {"type": "uint16"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:decimal", "modv:quantity": 2}, NUMBER, "1/1?quantity=2",
         {"type": "int32"}),
        ({"modv:entity": "HoldingRegister", "modv:quantity": 8}, TEXT, "1/1?quantity=8", {"type": "string"}),
        ({"modv:entity": "HoldingRegister", "modv:quantity": 4}, NUMBER, "1/1?quantity=4", {"type": "float64"}),
        ({"modv:entity": "HoldingRegister", "contentType": "application/octet-stream;length=2;signed=false"}, INTEGER,
         "1/1", {"type": "uint16"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:int", "modv:mostSignificantByte": False}, INTEGER,
         "1/1?quantity=2", {"type": "int32", "byte_order": "little"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:int", "modv:mostSignificantWord": False}, INTEGER,
         "1/1?quantity=2", {"type": "int32", "word_order": "little"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:int",
          "contentType": "application/octet-stream;byteSeq=LITTLE_ENDIAN"}, INTEGER,
         "1/1?quantity=2", {"type": "int32", "byte_order": "little", "word_order": "little"}),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:int", "modv:mostSignificantByte": True,
          "contentType": "application/octet-stream;byteSeq=LITTLE_ENDIAN"}, INTEGER,
         "1/1?quantity=2", {"type": "int32"}),
        ({"modv:entity": "Coil", "modv:zeroBasedAddressing": False}, BOOLEAN, "1/0?entity=coil", {}),
        ({"modv:entity": "Coil", "modv:zeroBasedAddressing": True}, BOOLEAN, "1/1?entity=coil", {}),
    ],
)  # fmt: skip
def test_a_form_is_a_resource(form: dict[str, Any], schema: dict[str, Any], place: str, keys: dict[str, str]) -> None:
    assert found(form, schema) == ModbusForm(f"modbus+tcp://127.0.0.1:60000/{place}", keys, None)


def test_terms_stand_in_for_parts_of_the_uri() -> None:
    terms = {"modv:entity": "HoldingRegister", "modv:unitID": 3, "modv:address": 40, "modv:quantity": 2}
    for href in ("modbus+tcp://plc", "modbus+tcp://plc/", "modbus+tcp://plc/3", "modbus+tcp://plc/3/40?quantity=2"):
        form = found(terms, NUMBER, href)
        assert (form.resource, form.keys) == ("modbus+tcp://plc/3/40?quantity=2", {"type": "float32"})
    assert found(terms, NUMBER, "modbus+tcp://plc/9/8?quantity=4").resource == "modbus+tcp://plc/9/8?quantity=4"


def test_a_polling_time_is_within_the_bounds_of_rules() -> None:
    for said, used in ((1_000, 1.0), (100, 1.0), (90_000.0, 90.0), (10**12, 86_400.0), (-1, None), ("x", None)):
        assert found({"modv:entity": "Coil", "modv:pollingTime": said}, BOOLEAN).poll_s == used


def test_a_single_register_is_written_as_the_form_says() -> None:
    single, several = "writeSingleHoldingRegister", "writeMultipleHoldingRegisters"
    for function, place in ((single, "1/1"), (several, "1/1?function=multiple")):
        form = found({"modv:function": function, "modv:type": "xsd:unsignedShort"}, INTEGER, written=True)
        assert form.resource.endswith(f"/{place}")
    assert found({"modv:function": 15}, BOOLEAN, written=True).resource.endswith("?entity=coil&function=multiple")
    assert "function" not in found({"modv:function": 15}, BOOLEAN).resource


@each_row(
    ("form", "schema", "term", "reason"),
    [
        ({}, INTEGER, "modv:entity", "is missing"),
        ({"modv:entity": "Register"}, INTEGER, "modv:entity", "write Coil, DiscreteInput"),
        ({"modv:entity": []}, INTEGER, "modv:entity", "write Coil, DiscreteInput"),
        ({"modv:function": "readDeviceIdentification"}, TEXT, "modv:function", "write a function"),
        ({"modv:function": "readFileRecord"}, TEXT, "modv:function", "write a function"),
        ({"modv:function": {}}, TEXT, "modv:function", "write a function"),
        ({"modv:entity": "Coil"}, INTEGER, "modv:entity", "one value of type boolean"),
        ({"modv:entity": "Coil", "modv:quantity": 8}, BOOLEAN, "modv:entity", "one value of type boolean"),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:hexBinary"}, TEXT, "modv:type", "number type"),
        ({"modv:entity": "HoldingRegister", "modv:type": 3}, TEXT, "modv:type", "number type"),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:float", "modv:quantity": 4}, NUMBER, "modv:quantity",
         "several values"),
        ({"modv:entity": "HoldingRegister", "modv:type": "xsd:float", "modv:quantity": 1}, NUMBER, "modv:quantity",
         "float32 has 2 registers"),
        ({"modv:entity": "HoldingRegister", "modv:quantity": 3}, INTEGER, "modv:quantity", "1, 2 or 4"),
        ({"modv:entity": "HoldingRegister"}, TEXT, "modv:quantity", "is missing"),
        ({"modv:entity": "HoldingRegister", "modv:quantity": "2"}, INTEGER, "modv:quantity", "an integer"),
        ({"modv:entity": "HoldingRegister", "modv:mostSignificantByte": "no"}, INTEGER, "modv:mostSignificantByte",
         "true or false"),
        ({"modv:entity": "HoldingRegister", "contentType": "application/octet-stream;byteSeq=PDP"}, INTEGER,
         "contentType", "byteSeq is one of"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_used(form: dict[str, Any], schema: dict[str, Any], term: str, reason: str) -> None:
    with pytest.raises(UnusableTermError, match=reason) as raised:
        found(form, schema)
    assert raised.value.term == term


@each_row(
    "href",
    [
        "modbus+tcp://plc/1/-1", "modbus+tcp://plc/1/70000", "modbus+tcp://plc/300/1", "modbus+tcp://plc/1",
        "modbus+tcp://me@plc/1/1", "modbus+tcp:///1/1", "modbus+tcp://plc/1/1/1", "modbus+tcp://plc/1/1?offset=1",
        "modbus+tcp://plc/1/1#x", "modbus+tcp://[::1/1/1",
    ],
)  # fmt: skip
def test_a_uri_that_is_no_place(href: str) -> None:
    with pytest.raises(UnusableTermError) as raised:
        found({"modv:entity": "HoldingRegister"}, INTEGER, href)
    assert raised.value.term == "href"


def test_what_cannot_be_written() -> None:
    for entity in ("DiscreteInput", "InputRegister"):
        with pytest.raises(UnusableTermError, match="cannot be written"):
            found({"modv:entity": entity}, BOOLEAN, written=True)
    with pytest.raises(UnusableTermError, match="unit is at most 255, and the last address"):
        found({"modv:entity": "Coil", "modv:zeroBasedAddressing": True}, BOOLEAN, "modbus+tcp://plc/1/65536")
    with pytest.raises(UnusableTermError):
        found({"modv:entity": "Coil", "modv:zeroBasedAddressing": False}, BOOLEAN, "modbus+tcp://plc/1/0")
