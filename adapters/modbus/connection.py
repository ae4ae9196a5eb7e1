"""One TCP connection to a Modbus device, for one request at a time.

It is closed when it was not used for `IDLE_S`, since devices accept few connections. After a request without an answer
it is closed, too, because the device may have forgotten it; but not where other units answer: then one unit behind a
gateway is silent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pymodbus.client import AsyncModbusTcpClient
from pymodbus.exceptions import ModbusException
from pymodbus.pdu import ModbusPDU

from lamplighter.adapters.mapping.registers import BIT_ENTITIES, Entity
from lamplighter.adapters.modbus.spans import Span
from lamplighter.adapters.networks import Networks
from lamplighter.engine.errors import UpstreamError

IDLE_S = 60.0
# Names of exception codes (Modbus Application Protocol V1.1b3, section 7).
EXCEPTIONS = {
    1: "illegal function", 2: "illegal data address", 3: "illegal data value", 4: "server device failure",
    5: "acknowledge", 6: "server device busy", 8: "memory parity error", 10: "gateway path unavailable",
    11: "gateway target device failed to respond",
}  # fmt: skip
# Codes of requests that a device would refuse again.
REFUSALS = frozenset((1, 2, 3))
_READS: dict[Entity, int] = {"coil": 1, "discrete_input": 2, "holding_register": 3, "input_register": 4}

# Its lines of errors have the bytes of messages.
logging.getLogger("pymodbus").setLevel(logging.CRITICAL)


class ModbusExceptionError(UpstreamError):
    """An exception response. number: of `EXCEPTIONS`, or another one. The text is for people."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{EXCEPTIONS.get(number, 'unknown exception')} (Modbus exception {number})")
        self.number = number


class SilentUnitError(UpstreamError):
    """A unit does not answer, and others at the same connection do."""


@dataclass(slots=True)
class OpenConnection:
    """An open connection. lost: set when it is closed; answered: the units that have answered."""

    client: AsyncModbusTcpClient
    lost: asyncio.Event
    answered: set[int]


class ModbusConnection:
    """host, port: of the device; the name is resolved anew for each connection, within the networks. timeout_s: for
    opening the connection, and for each answer."""

    def __init__(self, host: str, port: int, *, networks: Networks, timeout_s: float) -> None:
        self._host, self._port = host, port
        self._networks = networks
        self._timeout_s = timeout_s
        self._open: OpenConnection | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    async def read(self, span: Span) -> list[int]:
        """The registers, or the bits as 0 and 1, of a span within what one request reads.

        Raises ModbusExceptionError, SilentUnitError and other UpstreamErrors, and NotAllowedError if no address of the
        device is in the networks.
        """
        function = _READS[span.entity]

        def call(client: AsyncModbusTcpClient) -> Awaitable[ModbusPDU]:
            reads = {
                1: client.read_coils,
                2: client.read_discrete_inputs,
                3: client.read_holding_registers,
                4: client.read_input_registers,
            }
            return reads[function](span.address, count=span.quantity, device_id=span.unit)

        answer = await self._request(span.unit, function, call)
        bits = span.entity in BIT_ENTITIES
        found = [int(bit) for bit in answer.bits] if bits else list(answer.registers)
        if len(found) != (span.quantity + 7 & ~7 if bits else span.quantity):  # bits come in whole bytes
            raise UpstreamError(f"the answer does not have the {span.quantity} values of the request")
        return found[: span.quantity]

    async def write(self, span: Span, values: Sequence[int], *, multiple: bool) -> None:
        """Writes registers, or bits as 0 and 1. multiple: also a single one by the function for several.

        span: of coils or holding registers, as many as values, of a unit other than 0, which is all units of a line.
        Raises as `read` does.
        """
        assert span.unit and len(values) == span.quantity
        single = len(values) == 1 and not multiple
        unit, address = span.unit, span.address

        def call(client: AsyncModbusTcpClient) -> Awaitable[ModbusPDU]:
            if span.entity == "coil":
                bits = [bool(one) for one in values]
                if single:
                    return client.write_coil(address, bits[0], device_id=unit)
                return client.write_coils(address, bits, device_id=unit)
            if single:
                return client.write_register(address, values[0], device_id=unit)
            return client.write_registers(address, list(values), device_id=unit)

        await self._request(unit, (5 if single else 15) if span.entity == "coil" else 6 if single else 16, call)

    def close(self) -> None:
        """Closes the connection. The next request opens another one."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        found, self._open = self._open, None
        if found is not None:
            found.client.close()
            found.lost.set()

    async def _request(
        self, unit: int, function: int, call: Callable[[AsyncModbusTcpClient], Awaitable[ModbusPDU]]
    ) -> ModbusPDU:
        """The answer of the function."""
        used = await self._connection()
        answer = asyncio.ensure_future(call(used.client))
        ending = asyncio.ensure_future(used.lost.wait())
        try:
            await asyncio.wait((answer, ending), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise UpstreamError("the device closed the connection")
            found = answer.result()
        except ModbusException as error:
            if used.answered - {unit} and used is self._open:
                raise SilentUnitError(f"the unit {unit} does not answer within {self._timeout_s:g} s") from error
            self.close()
            raise UpstreamError(f"no answer within {self._timeout_s:g} s") from error
        except BaseException:  # also if it is cancelled: an answer may be under way
            self.close()
            raise
        finally:
            answer.cancel()
            ending.cancel()
        used.answered.add(unit)
        if found.isError():
            raise ModbusExceptionError(found.exception_code)
        if found.function_code != function:
            raise UpstreamError("the answer is of another function than the request")
        return found

    async def _connection(self) -> OpenConnection:
        """An open connection. Raises UpstreamError and NotAllowedError."""
        if self._open is not None and self._open.lost.is_set():
            self.close()
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)
        if self._open is None:
            address = await self._networks.resolve(self._host, self._port, socket.SOCK_STREAM)
            lost = asyncio.Event()
            client = AsyncModbusTcpClient(
                str(address),
                port=self._port,
                timeout=self._timeout_s,
                retries=0,
                reconnect_delay=0,
                trace_connect=lambda connected: None if connected else lost.set(),
            )
            try:
                connected = await client.connect()
            except BaseException:
                client.close()
                raise
            if not connected:
                raise UpstreamError("the device takes no connection")
            self._open = OpenConnection(client, lost, set())
        return self._open
