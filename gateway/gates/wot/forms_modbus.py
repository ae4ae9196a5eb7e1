"""Forms of a submitted Thing Description with modbus+tcp:// (W3C WoT Modbus Binding).

Where the text of the binding is vague, forms mean what they mean to node-wot: an address is that of the protocol, the
entity counts before the function, and without `modv:type` the value lies in the registers as the parameters of
application/octet-stream say. `modv:zeroBasedAddressing` counts only where it is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.mapping import modbus_places
from lamplighter.adapters.mapping.modbus_places import ModbusPlace
from lamplighter.adapters.mapping.registers import WRITABLE_ENTITIES, Entity, RegisterForm
from lamplighter.engine.errors import PayloadError
from lamplighter.gateway.gates.wot.forms import OPEN, DescribedThing, FormPlace, UnusableError, reads, resource

MODBUS_SCHEME = "modbus+tcp"
_ENTITIES: dict[object, Entity] = {
    "Coil": "coil", "DiscreteInput": "discrete_input", "HoldingRegister": "holding_register",
    "InputRegister": "input_register",
}  # fmt: skip
_FUNCTIONS: dict[object, Entity] = {
    "readCoil": "coil", "writeSingleCoil": "coil", "writeMultipleCoils": "coil", "readDiscreteInput": "discrete_input",
    "readHoldingRegisters": "holding_register", "writeSingleHoldingRegister": "holding_register",
    "writeMultipleHoldingRegisters": "holding_register", "readInputRegisters": "input_register",
    1: "coil", 5: "coil", 15: "coil", 2: "discrete_input", 3: "holding_register", 6: "holding_register",
    16: "holding_register", 4: "input_register",
}  # fmt: skip
_MULTIPLE = ("writeMultipleCoils", "writeMultipleHoldingRegisters", 15, 16)
_TYPES = {
    "boolean": "uint16", "byte": "int16", "unsignedByte": "uint16", "short": "int16", "unsignedShort": "uint16",
    "int": "int32", "unsignedInt": "uint32", "long": "int64", "unsignedLong": "uint64", "float": "float32",
    "double": "float64", "string": "string",
}  # fmt: skip
_BY_QUANTITY = {1: "16", 2: "32", 4: "64"}
_BYTE_SEQUENCES = {
    "BIG_ENDIAN": (None, None), "LITTLE_ENDIAN": ("little", "little"), "BIG_ENDIAN_BYTE_SWAP": ("little", None),
    "LITTLE_ENDIAN_BYTE_SWAP": (None, "little"),
}  # fmt: skip
_ON, _OFF = ("true", "1"), ("false", "0")  # the words of a boolean in a coil, or in a register
_SCHEMA = "xsd:"
_PATH = re.compile(r"(/[0-9]{1,3})?(/[0-9]{1,5})?/?")
REGISTERS = "registers"  # in place of the name of a content format
_POLL_S = 1.0, 86_400.0


class ModbusForm(NamedTuple):
    """resource: URI for a rule; keys: of the rule table, about the value in the registers; poll_s: None: as usual."""

    resource: str
    keys: dict[str, str]
    poll_s: float | None


class UnusableTermError(ValueError):
    """Why a form cannot be used. term: of the form, such as "modv:type"."""

    def __init__(self, term: str, reason: str) -> None:
        super().__init__(reason)
        self.term = term


def modbus_place(
    thing: DescribedThing, form: Table, schema: Table, href: str, at: str, ops: Sequence[str]
) -> FormPlace:
    """As `FormReader`."""
    if not thing.settings.modbus.enabled:
        raise UnusableError(f"{at}.href", "modbus.enabled is false in lamplighter.toml; set it to true")
    if not set(thing.schemes(form)) <= set(OPEN):
        raise UnusableError(f"{at}.security", "the scheme is not used for Modbus; write nosec, it has no security")
    try:
        found = modbus_form(form, href, schema, written=not reads(ops))
    except UnusableTermError as error:
        raise UnusableError(f"{at}.{error.term}", str(error)) from error
    reading: Table = dict(found.keys) | ({} if found.poll_s is None else {"poll_s": found.poll_s})
    if schema.get("type") == "boolean":
        reading |= {"on": list(_ON), "off": list(_OFF)}
    return FormPlace("modbus", resource(found.resource, at), REGISTERS, dict(found.keys), reading)


def modbus_form(form: Mapping[str, Any], href: str, schema: Mapping[str, Any], *, written: bool) -> ModbusForm:
    """The resource of a form. href: absolute; schema: of the value; written: by it. Raises UnusableTermError."""
    entity = _entity(form, schema)
    if written and entity not in WRITABLE_ENTITIES:
        raise UnusableTermError("modv:entity", "discrete inputs and input registers cannot be written")
    parts, path, quantity = _parts(form, href)
    unit, address = _number(form, "modv:unitID", path[1]), _number(form, "modv:address", path[2])
    if unit is None or address is None:
        raise UnusableTermError("href", "write modbus+tcp://HOST:PORT/UNIT/ADDRESS")
    if written and not unit:
        raise UnusableTermError("href", "the unit 0 is every unit of a line; write the unit of one device")
    if form.get("modv:zeroBasedAddressing") is False:
        address -= 1
    keys: dict[str, str] = {}
    if entity in ("holding_register", "input_register"):
        type_ = _type(form, schema, quantity)
        keys = {"type": type_} | _orders(form)
        quantity = quantity or RegisterForm(type_).size  # type: ignore[arg-type]
    elif schema.get("type") != "boolean" or quantity not in (None, 1):
        raise UnusableTermError("modv:entity", "a coil or discrete input is one value of type boolean")
    place = ModbusPlace(
        unit, max(address, -1), quantity or 1, entity, written and quantity in (None, 1) and _multiple(form)
    )
    try:
        modbus_places.modbus_place(*place.path().partition("?")[::2])
    except PayloadError as error:
        raise UnusableTermError("href", str(error)) from error
    return ModbusForm(f"{MODBUS_SCHEME}://{parts}{place.path()}", keys, _poll_s(form))


def _parts(form: Mapping[str, Any], href: str) -> tuple[str, re.Match[str], int | None]:
    """Host and port, the path, and the quantity."""
    try:
        parts = urlsplit(href)
    except ValueError as error:
        raise UnusableTermError("href", str(error)) from error
    path = _PATH.fullmatch(parts.path)
    if path is None or parts.fragment or "@" in parts.netloc or not parts.netloc:
        raise UnusableTermError("href", "write modbus+tcp://HOST:PORT/UNIT/ADDRESS")
    found = re.fullmatch(r"(?:quantity=([0-9]{1,4}))?", parts.query)
    if found is None:
        raise UnusableTermError("href", "the query of a Modbus form is quantity=N")
    return parts.netloc, path, _number(form, "modv:quantity", found[1])


def _number(form: Mapping[str, Any], term: str, in_href: str | None) -> int | None:
    """A number of the URI, or else of a term."""
    if in_href is not None:
        return int(in_href.removeprefix("/"))
    found = form.get(term)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= 65_536:
        raise UnusableTermError(term, "write an integer from 0 to 65536")
    return found


def _entity(form: Mapping[str, Any], schema: Mapping[str, Any]) -> Entity:
    entity, function = form.get("modv:entity"), form.get("modv:function")
    if entity is not None:
        if not isinstance(entity, str) or entity not in _ENTITIES:
            raise UnusableTermError("modv:entity", f"write {', '.join(map(str, _ENTITIES))}")
        return _ENTITIES[entity]
    if function is not None:
        if not isinstance(function, str | int) or function not in _FUNCTIONS:
            raise UnusableTermError("modv:function", "write a function that reads or writes coils or registers")
        return _FUNCTIONS[function]
    if schema.get("type") == "boolean":
        return "coil"  # the default of the binding, for which the value of a coil is a boolean
    raise UnusableTermError("modv:entity", f"is missing; write {', '.join(map(str, _ENTITIES))}")


def _multiple(form: Mapping[str, Any]) -> bool:
    return form.get("modv:function") in _MULTIPLE


def _type(form: Mapping[str, Any], schema: Mapping[str, Any], quantity: int | None) -> str:
    """The type of the value in registers."""
    kind, named = schema.get("type"), form.get("modv:type")
    if named is not None:
        name = named.removeprefix(_SCHEMA) if isinstance(named, str) else ""
        if name in ("integer", "decimal"):
            return _integer(quantity, signed=True)
        if name not in _TYPES:
            raise UnusableTermError("modv:type", "write a number type of XML Schema, xsd:boolean or xsd:string")
        type_ = _TYPES[name]
    elif kind == "string":
        type_ = "string"
    elif kind == "boolean":
        type_ = "uint16"
    elif kind == "number" and quantity in (2, 4):
        type_ = f"float{_BY_QUANTITY[quantity]}"
    else:
        type_ = _integer(quantity, signed=_parameter(form, "signed") != "false")
    if type_ == "string":
        if quantity is None:
            raise UnusableTermError("modv:quantity", "is missing; write the registers of the text")
    elif quantity not in (None, RegisterForm(type_).size):  # type: ignore[arg-type]
        size = RegisterForm(type_).size  # type: ignore[arg-type]
        raise UnusableTermError("modv:quantity", f"{type_} has {size} registers; several values are not read")
    return type_


def _integer(quantity: int | None, *, signed: bool) -> str:
    bits = _BY_QUANTITY.get(quantity or 1)
    if bits is None:
        raise UnusableTermError("modv:quantity", "an integer has 1, 2 or 4 registers")
    return f"{'' if signed else 'u'}int{bits}"


def _orders(form: Mapping[str, Any]) -> dict[str, str]:
    """byte_order and word_order, where they are not the usual ones."""
    terms = {"byte_order": "modv:mostSignificantByte", "word_order": "modv:mostSignificantWord"}
    if any(term in form for term in terms.values()):
        for term in terms.values():
            if not isinstance(form.get(term, True), bool):
                raise UnusableTermError(term, "write true or false")
        return {key: "little" for key, term in terms.items() if form.get(term) is False}
    sequence = _parameter(form, "byteSeq") or "BIG_ENDIAN"
    if sequence not in _BYTE_SEQUENCES:
        raise UnusableTermError("contentType", f"byteSeq is one of {', '.join(_BYTE_SEQUENCES)}")
    found = zip(("byte_order", "word_order"), _BYTE_SEQUENCES[sequence], strict=True)
    return {key: order for key, order in found if order is not None}


def _parameter(form: Mapping[str, Any], name: str) -> str | None:
    """Of the content type application/octet-stream."""
    media = form.get("contentType")
    for part in media.split(";")[1:] if isinstance(media, str) else ():
        key, _, value = part.strip().partition("=")
        if key == name:
            return value.strip('"')
    return None


def _poll_s(form: Mapping[str, Any]) -> float | None:
    """The interval of polling, within the bounds of rules."""
    found = form.get("modv:pollingTime")
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
        return None
    return min(max(found / 1000, _POLL_S[0]), _POLL_S[1])
