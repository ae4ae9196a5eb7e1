"""Rules that read resources of devices, and paths of the gateway's CoAP server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.modbus_places import place_of
from lamplighter.adapters.mapping.modbus_rules import check_other_keys, check_register_reads, register_form
from lamplighter.adapters.mapping.patterns import PathPattern, TopicPattern
from lamplighter.adapters.mapping.reads import Read, ReadOrigin, usual_payload
from lamplighter.adapters.mapping.registers import RegisterForm
from lamplighter.adapters.mapping.rules import ReadingRule
from lamplighter.adapters.mapping.tables import (
    CONTENT_FORMATS,
    OCTETS,
    PathTable,
    ResourceReadTable,
    ResourceTable,
)
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import ConfigurationError, PayloadError

FORMAT_NUMBERS = CONTENT_FORMATS | {"octets": OCTETS}
"""The content formats that rules read."""
_RECORD_FORMS = {
    "senml": frozenset(("senml+json", "senml+cbor")),
    "lwm2m": frozenset(("lwm2m+tlv", "lwm2m+json")),
}
_NAMES = {number: name for name, number in FORMAT_NUMBERS.items()}


class BodyFormats(NamedTuple):
    """The content formats that a rule reads.

    names: of `FORMAT_NUMBERS`; number: the one that is asked for, or None; as_form: how a body of that number is read
    if it has no name. registers: how values lie in a body from a Modbus device.
    """

    names: frozenset[str]
    number: int | None = None
    as_form: str = "text"
    registers: RegisterForm | None = None

    def form(self, content_format: int | None) -> str:
        """The name of the content format of a body. Raises PayloadError if the rule does not read it.

        content_format: of the message; None: it names none, so that it is the one asked for, or text.
        """
        number = content_format if content_format is not None else 0 if self.number is None else self.number
        form = _NAMES.get(number) or (self.as_form if number == self.number else "")
        if not form or (form not in self.names and number in _NAMES):
            known = ", ".join(shown_format(FORMAT_NUMBERS[name]) for name in self.sorted_names())
            raise PayloadError(f"the content format is {shown_format(number)}; the rule reads {known}")
        return form

    def sorted_names(self) -> list[str]:
        """The names, those of the smallest numbers first."""
        return sorted(self.names, key=lambda name: FORMAT_NUMBERS[name])


def shown_format(number: int) -> str:
    """A content format, for people."""
    return f"{number} ({_NAMES[number]})" if number in _NAMES else str(number)


def forms(read: Read) -> frozenset[str]:
    """The content formats that a value is read from."""
    if read.payload in _RECORD_FORMS:
        return _RECORD_FORMS[read.payload]
    member, column, _, format_, *_ = read.value_place
    if format_ is not None:
        return frozenset(("octets",))
    documents = frozenset(("json", "cbor"))
    return documents if member is not None else frozenset(("text",)) | (documents if column is None else frozenset())


def of_registers(registers: RegisterForm) -> BodyFormats:
    """What a rule for a Modbus device reads."""
    return BodyFormats(frozenset(("octets",)), OCTETS, "octets", registers)


def accepted_formats(reads: Sequence[Read], accept: str | int | None, place: str) -> BodyFormats:
    """What a rule with these reads reads. accept: of its table. Raises ConfigurationError."""
    names = frozenset.intersection(*map(forms, reads))
    if not names:
        raise ConfigurationError(f"{place}: read: the values are of different content formats; write a rule for each")
    as_form = "octets" if "octets" in names else "text" if "text" in names else "json"
    found = BodyFormats(names, None, as_form)
    if accept is None:
        return found
    number = FORMAT_NUMBERS[accept] if isinstance(accept, str) else accept
    if _NAMES.get(number) not in (names if number in _NAMES or any(read.records for read in reads) else (None,)):
        known = " or ".join(f'"{name}"' if name != "octets" else str(OCTETS) for name in found.sorted_names())
        raise ConfigurationError(f"{place}: accept = {accept!r}: the rule reads another content format; write {known}")
    return found._replace(number=number)


def resource_uri(text: str, key: str, place: str) -> str:
    """The normal form of a URI of a rule. Raises ConfigurationError."""
    try:
        return uris.normal(text)
    except PayloadError as error:
        raise ConfigurationError(f"{place}: {key} = {text!r}: {error}") from error


def check_reading(table: ResourceReadTable, kind: Kind, place: str) -> None:
    """Raises ConfigurationError if a rule has keys that exclude each other, or that are for another adapter."""
    if kind != "modbus":
        check_other_keys(table, place)
    elif table.accept is not None:
        raise ConfigurationError(f"{place}: accept: is for other resources; write type")
    if kind != "coap" and table.observe == "always":
        raise ConfigurationError(f"{place}: observe: is for coap:// resources; leave it out, the resource is polled")
    if kind != "coap" and table.device is not None:
        raise ConfigurationError(f"{place}: device: is for coap:// resources; leave it out")
    if kind != "coap" and table.max_age_s is not None:
        raise ConfigurationError(f"{place}: max_age_s: is for coap:// resources; leave it out, or write poll_s")
    if table.observe == "never" and table.max_age_s is not None:
        raise ConfigurationError(f'{place}: max_age_s: is for observed resources; leave it out, or observe = "never"')


class ResourceRule(ReadingRule):
    """A `[[stream]]` table for a resource of a device.

    table: what it was made of; resource: its URI in normal form; kind: of the adapter that it is for; name: what its
    readings are found by, and what default IRIs have; accepted: the content formats that it reads.
    """

    def __init__(
        self, table: ResourceTable, *, prefixes: Mapping[str, str], base_iri: str, place: str, condition: str = ""
    ) -> None:
        """Raises ConfigurationError, as `ReadingRule` does."""
        self.table = table
        self.resource = resource_uri(table.resource, "resource", place)
        self.kind = uris.kind_of_uri(self.resource)
        self.name = uris.name(self.resource)
        check_reading(table, self.kind, place)
        try:
            pattern = TopicPattern(self.name)
        except ValueError as error:
            raise ConfigurationError(f"{place}: resource = {table.resource!r}: {error}") from error
        registers = None
        if self.kind == "modbus":
            registers = register_form(table, place_of(self.resource), place)
            if table.payload is None and usual_payload(table) is None:
                table = msgspec.structs.replace(table, payload=registers.kind)
        super().__init__(
            table,
            pattern,
            prefixes=prefixes,
            base_iri=base_iri,
            place=place,
            origin=ReadOrigin(self.kind, self.resource, condition=condition),
        )
        if registers is None:
            self.accepted = accepted_formats(self.reads, table.accept, place)
        else:
            check_register_reads(self.reads, registers, place_of(self.resource).quantity)
            self.accepted = of_registers(registers)


class PathRule(ReadingRule):
    """A `[[stream]]` table for a path of the gateway's server. table: what it was made of; accepted: the content
    formats that it reads."""

    kind: Kind = "coap"

    def __init__(
        self, table: PathTable, *, prefixes: Mapping[str, str], base_iri: str, place: str, condition: str = ""
    ) -> None:
        """Raises ConfigurationError, as `ReadingRule` does."""
        self.table = table
        if not table.methods:
            raise ConfigurationError(f'{place}: methods: write "POST", "PUT" or both')
        try:
            pattern = PathPattern(table.path)
        except ValueError as error:
            raise ConfigurationError(f"{place}: path = {table.path!r}: {error}") from error
        super().__init__(
            table,
            pattern,
            prefixes=prefixes,
            base_iri=base_iri,
            place=place,
            origin=ReadOrigin("coap", condition=condition),
        )
        self.accepted = accepted_formats(self.reads, None, place)
