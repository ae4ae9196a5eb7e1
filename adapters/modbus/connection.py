"""One TCP connection to a Modbus device: requests one after the other, neighbouring registers in one request.

A device that does not answer is asked again with growing pauses; until then, requests to it fail at once. The same is
true of a unit behind it. The connection is closed when it was not used for `IDLE_S`, since devices accept few of them.
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

from lamplighter.adapters.client import retry_s
from lamplighter.adapters.mapping.registers import BIT_ENTITIES
from lamplighter.adapters.modbus.spans import Span, joined
from lamplighter.adapters.networks import Networks
from lamplighter.engine.errors import UpstreamError

IDLE_S = 60.0
EXCEPTIONS = {
    1: "illegal function", 2: "illegal data address", 3: "illegal data value", 4: "server device failure",
    5: "acknowledge", 6: "server device busy", 8: "memory parity error", 10: "gateway path unavailable",
    11: "gateway target device failed to respond",
}  # fmt: skip
"""Names of exception codes (Modbus Application Protocol V1.1b3, section 7)."""
REFUSALS = frozenset((1, 2, 3))
"""Codes of requests that are refused however often they are sent."""
_READS = {"coil": 1, "discrete_input": 2, "holding_register": 3, "input_register": 4}
_UNIT_AWAY = frozenset((10, 11))
"""Codes of a gateway whose unit does not answer."""
_JOINED_REFUSED = frozenset((2, 3))
"""Codes of requests for too many registers, or for registers that the device does not give together."""

# Its lines of errors have the bytes of messages.
logging.getLogger("pymodbus").setLevel(logging.CRITICAL)


class ModbusExceptionError(UpstreamError):
    """An exception response. number: of `EXCEPTIONS`. The text is for people."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{EXCEPTIONS.get(number, 'unknown exception')} (Modbus exception {number})")
        self.number = number


@dataclass(slots=True)
class _Away:
    """What does not answer. until: on the loop's clock."""

    failures: int = 0
    until: float = 0.0
    reason: str = ""


@dataclass(eq=False, slots=True)
class _WaitingRead:
    span: Span
    found: list[int] | None = None


@dataclass(slots=True)
class ModbusCounters:
    """Since the start, over all connections. requests: that were sent; joined: reads that needed no request of their
    own; exceptions: exception responses; unanswered: requests without an answer; connections: that were opened."""

    requests: int = 0
    joined: int = 0
    exceptions: int = 0
    unanswered: int = 0
    connections: int = 0


class ModbusConnection:
    """host, port: of the device; it is resolved anew for each connection, within the networks. timeout_s: of the
    connection, and of each answer. retry_min_s, retry_max_s: pauses after failures."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        networks: Networks,
        timeout_s: float,
        retry_min_s: float,
        retry_max_s: float,
        counters: ModbusCounters,
    ) -> None:
        self._host, self._port = host, port
        self._networks = networks
        self._timeout_s = timeout_s
        self._retry_s = retry_min_s, retry_max_s
        self._counters = counters
        self._turn = asyncio.Lock()
        self._client: AsyncModbusTcpClient | None = None
        self._lost: asyncio.Future[None] | None = None
        self._waiting: list[_WaitingRead] = []
        self._alone: set[Span] = set()
        self._away: dict[int | None, _Away] = {}
        """By unit; None: the device itself."""
        self._idle: asyncio.TimerHandle | None = None

    async def read(self, span: Span) -> list[int]:
        """The registers, or the bits as 0 and 1, of a span within what one request reads.

        Raises ModbusExceptionError, other UpstreamErrors, and PayloadError if the device is in none of the networks.
        """
        waiting = _WaitingRead(span)
        self._waiting.append(waiting)
        try:
            async with self._turn:
                if waiting.found is None:
                    waiting.found = await self._read_joined(waiting)
                else:
                    self._counters.joined += 1
        finally:
            self._waiting.remove(waiting)
        return waiting.found

    async def write(self, span: Span, values: Sequence[int], *, multiple: bool = False) -> None:
        """Writes registers, or bits as 0 and 1. multiple: also a single one by the function for several.

        span: of coils or holding registers, as many as values. Raises as `read` does.
        """
        assert span.unit and len(values) == span.quantity  # unit 0 is all units of a line, none of which answers
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

        function = (5 if single else 15) if span.entity == "coil" else 6 if single else 16
        async with self._turn:
            await self._request(unit, function, call)

    def close(self) -> None:
        """Closes the connection. It may be used again."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def _read_joined(self, waiting: _WaitingRead) -> list[int]:
        """The values of one span; those of neighbours that wait are stored there."""
        await asyncio.sleep(0)  # what is asked for in the same moment is read together
        span = waiting.span
        others = [one for one in self._waiting if one.found is None and one.span not in self._alone]
        wide = span if span in self._alone else joined(span, (one.span for one in others))
        if wide != span:
            try:
                values = await self._read_span(wide)
            except ModbusExceptionError as error:
                if error.number not in _JOINED_REFUSED:
                    raise
                self._alone.update(one.span for one in others if wide.covers(one.span))
            else:
                for one in others:
                    if wide.covers(one.span):
                        one.found = values[one.span.address - wide.address :][: one.span.quantity]
                return values[span.address - wide.address :][: span.quantity]
        return await self._read_span(span)

    async def _read_span(self, span: Span) -> list[int]:
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
        # Bits come in whole bytes.
        bits = span.entity in BIT_ENTITIES
        found = [int(bit) for bit in answer.bits] if bits else list(answer.registers)
        if len(found) != (span.quantity + 7 & ~7 if bits else span.quantity):
            raise UpstreamError(f"the answer does not have the {span.quantity} values of the request")
        return found[: span.quantity]

    async def _request(
        self, unit: int, function: int, call: Callable[[AsyncModbusTcpClient], Awaitable[ModbusPDU]]
    ) -> ModbusPDU:
        """The answer of the function. Called in turn."""
        self._check_pauses(unit)
        client = await self._connected()
        assert self._lost is not None
        self._counters.requests += 1
        answer = asyncio.ensure_future(call(client))
        try:
            await asyncio.wait((answer, self._lost), return_when=asyncio.FIRST_COMPLETED)
            found = answer.result() if answer.done() else None
        except ModbusException as error:
            raise self._unanswered(unit, f"no answer within {self._timeout_s:g} s") from error
        finally:
            answer.cancel()
        if found is None:
            raise self._unanswered(None, "the device closed the connection")
        self._away.pop(None, None)
        self._keep_open()
        if found.isError():
            self._counters.exceptions += 1
            refusal = ModbusExceptionError(found.exception_code)
            if refusal.number in _UNIT_AWAY:
                self._failed(unit, str(refusal))
            raise refusal
        self._away.pop(unit, None)
        if found.function_code != function:
            raise UpstreamError("the answer is of another function than the request")
        return found

    async def _connected(self) -> AsyncModbusTcpClient:
        """The client with an open connection. Raises UpstreamError and PayloadError."""
        if self._client is not None and self._client.connected:
            return self._client
        self.close()
        try:
            address = await self._networks.resolved(self._host, self._port, socket.SOCK_STREAM)
        except UpstreamError as error:
            self._failed(None, str(error))
            raise
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def connection_changed(connected: bool) -> None:
            if not connected and not lost.done():
                lost.set_result(None)

        client = AsyncModbusTcpClient(
            str(address),
            port=self._port,
            timeout=self._timeout_s,
            retries=0,
            reconnect_delay=0,
            trace_connect=connection_changed,
        )
        if not await client.connect():
            raise self._unanswered(None, "the device takes no connection")
        self._counters.connections += 1
        self._client, self._lost = client, lost
        self._alone.clear()
        return client

    def _keep_open(self) -> None:
        """Begins the time anew after which the connection is closed."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    # Pauses

    def _unanswered(self, unit: int | None, reason: str) -> UpstreamError:
        """Closes the connection, whose other end may be gone, and begins a pause. unit: None: of the device."""
        self._counters.unanswered += 1
        self.close()
        self._failed(unit, reason)
        return UpstreamError(reason)

    def _failed(self, unit: int | None, reason: str) -> None:
        away = self._away.setdefault(unit, _Away())
        away.failures += 1
        away.until = asyncio.get_running_loop().time() + retry_s(away.failures, *self._retry_s)
        away.reason = reason

    def _check_pauses(self, unit: int) -> None:
        """Raises UpstreamError while nothing is sent to the device, or to the unit."""
        now = asyncio.get_running_loop().time()
        for away in (self._away.get(None), self._away.get(unit)):
            if away is not None and now < away.until:
                raise UpstreamError(away.reason)
