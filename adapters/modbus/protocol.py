"""Requests to resources -> requests of Modbus TCP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.modbus_places import ModbusPlace, place_of
from lamplighter.adapters.mapping.registers import BIT_ENTITIES, body_registers, register_bytes
from lamplighter.adapters.mapping.tables import OCTETS
from lamplighter.adapters.modbus.connection import REFUSALS, ModbusConnection, ModbusExceptionError, SilentUnitError
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.modbus.spans import Span, join_spans
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterInput
from lamplighter.adapters.resources.exchange import DeviceRequest
from lamplighter.adapters.resources.polled import DeviceReply, PolledProtocol
from lamplighter.adapters.resources.polled_adapter import PolledParts, polled_parts
from lamplighter.engine.errors import PayloadError

# Codes of replies, as in HTTP; the text of a reply has the exception.
DONE, REFUSED, NOT_NOW = "200", "400", "503"
# Exceptions of a device that does not give all registers of a request together.
_APART = frozenset((2, 3))
ALONE_MAX = 10_000
# Polls of one moment come one after the other within so long.
JOIN_S = 0.005


class _AskedSpan(NamedTuple):
    request: DeviceRequest
    span: Span


class ModbusProtocol(PolledProtocol):
    """Modbus TCP for all devices, with one connection for each. networks: that requests may go to."""

    join_s = JOIN_S

    def __init__(self, settings: ModbusSettings, networks: Networks) -> None:
        self._settings = settings
        self._networks = networks
        self._connections: dict[str, ModbusConnection] = {}
        # Spans, with their devices, that are not read together with others.
        self._alone: dict[tuple[str, Span], None] = {}

    async def read(self, request: DeviceRequest) -> DeviceReply:
        reply, _ = await self.read_with(request, ())
        return reply

    async def read_with(
        self, request: DeviceRequest, others: Sequence[DeviceRequest]
    ) -> tuple[DeviceReply, Mapping[DeviceRequest, DeviceReply]]:
        """Neighbouring registers are read by one request."""
        device = uris.authority(request.uri)
        connection = self._connection(request.uri)
        span = _span(place_of(request.uri))
        near = [_AskedSpan(one, _span(place_of(one.uri))) for one in others]
        near = [one for one in near if (device, one.span) not in self._alone]
        wide = span if (device, span) in self._alone else join_spans(span, (one.span for one in near))
        together = [one for one in near if wide.covers(one.span)]
        try:
            if wide != span:
                try:
                    values = await connection.read(wide)
                except ModbusExceptionError as error:
                    if error.number not in _APART:
                        raise
                    self._keep_apart(device, [span, *(one.span for one in together)])
                    wide, together, values = span, [], await connection.read(span)
            else:
                values = await connection.read(span)
        except ModbusExceptionError as error:
            return _refusal(error), {}
        except SilentUnitError as error:
            return DeviceReply(NOT_NOW, str(error).encode()), {}
        return _reply(wide, values, span), {one.request: _reply(wide, values, one.span) for one in together}

    async def write(self, request: DeviceRequest) -> DeviceReply:
        place = place_of(request.uri)
        values = list(request.body) if place.entity in BIT_ENTITIES else body_registers(request.body)
        if len(values) != place.quantity or not place.unit:
            raise PayloadError("the body is not one for the registers or coils of the resource")
        try:
            await self._connection(request.uri).write(_span(place), values, multiple=place.multiple)
        except ModbusExceptionError as error:
            return _refusal(error)
        except SilentUnitError as error:
            return DeviceReply(NOT_NOW, str(error).encode())
        return DeviceReply(DONE)

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, uri: str) -> ModbusConnection:
        device = uris.authority(uri)
        found = self._connections.get(device)
        if found is None:
            if len(self._connections) >= self._settings.resources_max:  # a query may give any number of devices
                self._connections = {name: one for name, one in self._connections.items() if one.is_open}
            host, port = uris.host_and_port(uri)
            found = ModbusConnection(host, port, networks=self._networks, timeout_s=self._settings.timeout_s)
            self._connections[device] = found
        return found

    def _keep_apart(self, device: str, spans: Sequence[Span]) -> None:
        self._alone.update(dict.fromkeys((device, span) for span in spans))
        while len(self._alone) > ALONE_MAX:
            del self._alone[next(iter(self._alone))]


def modbus_parts(given: AdapterInput) -> PolledParts:
    """Raises ConfigurationError."""
    return polled_parts(given, ModbusProtocol)


def _span(place: ModbusPlace) -> Span:
    return Span(place.unit, place.entity, place.address, place.quantity)


def _reply(wide: Span, values: Sequence[int], span: Span) -> DeviceReply:
    """The body of a span that is read within another one."""
    begin = span.address - wide.address
    found = values[begin : begin + span.quantity]
    return DeviceReply(DONE, bytes(found) if span.entity in BIT_ENTITIES else register_bytes(found), OCTETS)


def _refusal(error: ModbusExceptionError) -> DeviceReply:
    return DeviceReply(REFUSED if error.number in REFUSALS else NOT_NOW, str(error).encode())
