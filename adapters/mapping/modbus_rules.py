"""Rules for resources of Modbus devices: what they read from registers, and states as registers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from lamplighter.adapters.literals import FALSE, TRUE
from lamplighter.adapters.mapping import values
from lamplighter.adapters.mapping.modbus_places import ModbusPlace
from lamplighter.adapters.mapping.payloads import Found, JsonPath, Payload
from lamplighter.adapters.mapping.reads import Read
from lamplighter.adapters.mapping.registers import (
    BIT_ENTITIES,
    REGISTERS_WRITTEN_MAX,
    WRITABLE_ENTITIES,
    RegisterForm,
    Scaling,
    bit_of,
    number_of,
    register_bytes,
)
from lamplighter.adapters.mapping.tables import ResourceCommandTable, ResourceReadTable
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, lexical, literal

REGISTER_KEYS = ("type", "byte_order", "word_order")
"""Of a rule table."""
_OF_OTHERS = {"method": "PUT", "content_format": "text", "payload": None, "name": "", "epoch": None}
"""Keys of commands that are for other protocols, and their defaults."""


class RegisterBody(Payload):
    """The registers, coils or discrete inputs of a place, as values."""

    __slots__ = ("_registers",)

    def __init__(self, data: bytes, registers: RegisterForm) -> None:
        super().__init__(data)
        self._registers = registers

    @property
    def form(self) -> str:
        return "octets"

    def whole(self) -> Found:
        """The only value. Raises PayloadError."""
        found = self.json()
        if len(found) != 1:
            raise PayloadError(f"the resource has {len(found)} values; the rule needs member")
        value: Found = found[0]
        return value

    def json(self) -> Any:
        """The values as a list. Raises PayloadError."""
        return self.once("registers", lambda: self._registers.of_body(self.data))


def check_other_keys(table: ResourceReadTable | ResourceCommandTable, place: str) -> None:
    """Raises ConfigurationError if a rule for another protocol has a key of Modbus."""
    keys = (*REGISTER_KEYS, "scale", "offset") if isinstance(table, ResourceCommandTable) else REGISTER_KEYS
    for key in keys:
        if getattr(table, key) is not None:
            raise ConfigurationError(f"{place}: {key}: is for modbus+tcp:// resources; leave it out")


def register_form(
    table: ResourceReadTable | ResourceCommandTable,
    modbus: ModbusPlace,
    place: str,
    usual: RegisterForm | None = None,
) -> RegisterForm:
    """How the values of a rule lie in the registers of its resource. usual: for keys that the table does not have.
    Raises ConfigurationError."""
    given = {key: getattr(table, key) for key in REGISTER_KEYS if getattr(table, key) is not None}
    if modbus.entity in BIT_ENTITIES:
        if given:
            raise ConfigurationError(f"{place}: {min(given)}: is for registers; a {modbus.entity} is true or false")
        return RegisterForm("bit")
    if usual is None or usual.type == "bit":
        usual = RegisterForm("uint16")
    found = usual._replace(**given)
    if modbus.quantity % found.size:
        raise ConfigurationError(
            f"{place}: resource: a value of type {found.type} has {found.size} registers; write quantity={found.size}, "
            "or a multiple for several values"
        )
    return found


def check_register_reads(reads: Sequence[Read], registers: RegisterForm, quantity: int) -> None:
    """Raises ConfigurationError if a read does not choose one of the values of a resource."""
    count = registers.count(quantity)
    for read in reads:
        member, column, _, format_, *_, where = read.value_place
        if where is not None:
            raise ConfigurationError(f"{read.place}: where: is for JSON and CBOR with named members; leave it out")
        if column is not None or format_ is not None:
            raise ConfigurationError(f"{read.place}: {'format' if column is None else 'column'}: write type instead")
        if member is None and count > 1:
            reason = f'is missing, and the resource has {count} values; write member = "[0]" for the first one'
            raise ConfigurationError(f"{read.place}: member: {reason}")
        if member is None:
            continue
        try:
            JsonPath(member).one([0] * count)
        except PayloadError as error:
            cure = f'write "[0]" to "[{count - 1}]", for one of the values of the resource'
            raise ConfigurationError(f"{read.place}: member = {member!r}: {cure}") from error


class RegisterWriting(NamedTuple):
    """How a state is written to registers or coils. exact: it is read again, so that it has to be the same then."""

    form: RegisterForm
    scaling: Scaling
    exact: bool

    def body(self, text: str, modbus: ModbusPlace) -> bytes:
        """The body with a state. Raises PayloadError, whose reason is for people."""
        self.check(modbus)
        if self.form.type == "bit":
            return bytes([bit_of(text)])
        if self.form.type == "string":
            return register_bytes(self.form.text_registers(text, modbus.quantity))
        raw = self.scaling.raw(number_of(text))
        registers = self.form.number_registers(raw)
        if self.exact:
            [found] = self.form.values(registers)
            if Fraction(found) != raw:
                nearest = float(Fraction(found) * self.scaling.scale + self.scaling.offset)
                raise PayloadError(f"the state has more digits than {self.form.type} holds; round it, as to {nearest}")
        return register_bytes(registers)

    def check(self, modbus: ModbusPlace) -> None:
        """Raises PayloadError if a state cannot be written to a place."""
        if modbus.unit == 0:
            raise PayloadError("the unit 0 is every unit of a line; write the unit of one device")
        if modbus.entity not in WRITABLE_ENTITIES:
            raise PayloadError(f"{modbus.entity} cannot be written; write entity=coil or entity=holding_register")
        most = REGISTERS_WRITTEN_MAX if self.form.type == "string" else self.form.size
        if self.form.type == "bits" or modbus.quantity > most:
            raise PayloadError(f"a state is one value, of at most {most} registers or coils")


def register_writing(table: ResourceCommandTable, modbus: ModbusPlace, place: str) -> RegisterWriting:
    """Of a command. modbus: where it writes to, or an example. Raises ConfigurationError."""
    for key, usual in _OF_OTHERS.items():
        if getattr(table, key) != usual:
            raise ConfigurationError(f"{place}: {key}: is for other protocols than Modbus; leave it out")
    form = register_form(table, modbus, place)
    for key in ("scale", "offset"):
        if getattr(table, key) is not None and form.kind != "number":
            raise ConfigurationError(f"{place}: {key}: is for numbers; the type is {form.type}")
    try:
        scale, offset = (
            values.checked_decimal(table.scale or Decimal(1)),
            values.checked_decimal(table.offset or Decimal(0)),
        )
    except ValueError as error:
        raise ConfigurationError(f"{place}: scale and offset: {error}") from error
    if table.scale is not None and not table.scale:
        raise ConfigurationError(f"{place}: scale = 0: write another number")
    found = RegisterWriting(form, Scaling(Fraction(scale), Fraction(offset)), table.state is not False)
    try:
        found.check(modbus)
    except PayloadError as error:
        raise ConfigurationError(f"{place}: resource: {error}") from error
    return found


def states_of_registers(
    words: Mapping[str, str], writing: RegisterWriting, modbus: ModbusPlace, read: Read, place: str
) -> dict[str, Term]:
    """What a device reports -> state, for a command whose state is read where it is written. words: its values, state
    -> text. Raises ConfigurationError for one that cannot be written."""
    found = {}
    for state, text in words.items():
        try:
            reported = read.term(RegisterBody(writing.body(text, modbus), writing.form))
        except PayloadError as error:
            raise ConfigurationError(f"{place}: values: {text!r}: {error}") from error
        found[lexical(reported)] = {"true": TRUE, "false": FALSE}.get(state) or literal(state)
    return found
