"""One connection to a Modbus device: against pymodbus's server, and against devices that answer nonsense."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import groupby

import pytest
from pymodbus.constants import ExcCodes

from lamplighter.adapters.modbus.connection import ModbusConnection, ModbusExceptionError, SilentUnitError
from lamplighter.adapters.modbus.spans import Span
from lamplighter.adapters.networks import Networks, NotAllowedError
from lamplighter.engine.errors import UpstreamError
from tests.support.modbus_device import ModbusDevice, modbus_device

LOOPBACK = Networks(("127.0.0.0/8",), "modbus.networks")


def connection(port: int, *, networks: Networks = LOOPBACK, timeout_s: float = 30.0) -> ModbusConnection:
    return ModbusConnection("127.0.0.1", port, networks=networks, timeout_s=timeout_s)


def holding(address: int, quantity: int = 1, unit: int = 1) -> Span:
    return Span(unit, "holding_register", address, quantity)


async def test_each_entity_is_read_and_written() -> None:
    async with modbus_device() as device:
        used = connection(device.port)
        for entity, values in (("coil", [1, 0, 1]), ("discrete_input", [1]), ("input_register", [7, 65_535])):
            await device.write(entity, 9, values)
            assert await used.read(Span(1, entity, 8, len(values) + 2)) == [0, *values, 0]  # type: ignore[arg-type]
        await used.write(holding(40, 2), [0x41AA, 0x6666], multiple=False)
        await used.write(Span(2, "coil", 20, 3), [1, 0, 1], multiple=False)
        await used.write(holding(50), [3], multiple=False)
        await used.write(Span(1, "coil", 30, 1), [1], multiple=False)
        await used.write(holding(51), [4], multiple=True)
        await used.write(Span(1, "coil", 31, 1), [1], multiple=True)
        functions = [function for function, _ in groupby(one[0] for one in device.requests)]
        assert functions == [1, 2, 4, 16, 15, 6, 5, 16, 15]
        assert await device.read("holding_register", 40, 12) == [0x41AA, 0x6666, *[0] * 8, 3, 4]
        assert await device.read("coil", 19, 5, unit=2) == [0, 1, 0, 1, 0]
        assert await device.read("coil", 30, 2) == [1, 1]
        used.close()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ExcCodes.ILLEGAL_FUNCTION, "illegal function (Modbus exception 1)"),
        (ExcCodes.ILLEGAL_VALUE, "illegal data value (Modbus exception 3)"),
        (ExcCodes.DEVICE_BUSY, "server device busy (Modbus exception 6)"),
        (ExcCodes.GATEWAY_NO_RESPONSE, "gateway target device failed to respond (Modbus exception 11)"),
    ],
)
async def test_exceptions_have_names(code: ExcCodes, text: str) -> None:
    async with modbus_device() as device:
        used = connection(device.port)
        device.exceptions[3, 40] = device.exceptions[6, 40] = code
        for asked in (used.read(holding(40)), used.write(holding(40), [1], multiple=False)):
            with pytest.raises(ModbusExceptionError, match=re.escape(text)):
                await asked
        assert await used.read(holding(41)) == [0]  # by the same connection
        used.close()


async def test_a_device_that_goes_away_and_returns() -> None:
    device = ModbusDevice()
    await device.start()
    used = connection(device.port)
    assert await used.read(holding(40)) == [0]
    await device.stop()
    with pytest.raises(UpstreamError, match=r"closed the connection|takes no connection"):
        await used.read(holding(40))
    with pytest.raises(UpstreamError, match="takes no connection"):
        await used.read(holding(40))
    await device.start()
    assert await used.read(holding(40)) == [0]
    used.close()
    await device.stop()


async def test_a_device_outside_the_networks_is_not_called() -> None:
    async with modbus_device() as device:
        used = connection(device.port, networks=Networks(("192.0.2.0/24",), "modbus.networks"))
        with pytest.raises(NotAllowedError, match=r"modbus\.networks"):
            await used.read(holding(40))
        assert device.requests == []


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[int]:
    """The port of a device. answer: of a request; None: it closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readexactly(12)
                found = answer(request)
                if found is None:
                    break
                writer.write(found)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def adu(request: bytes, body: bytes, *, number: int = 0, unit: int | None = None) -> bytes:
    """An answer to a request. number: added to that of the transaction."""
    transaction = (int.from_bytes(request[:2]) + number).to_bytes(2)
    return (
        transaction + b"\0\0" + (len(body) + 1).to_bytes(2) + (request[6:7] if unit is None else bytes([unit])) + body
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda request: adu(request, b"\x03\x02\0\x07"), "does not have the 2 values"),
        (lambda request: adu(request, b"\x03\x06\0\x07\0\x07\0\x07"), "does not have the 2 values"),
        (lambda request: adu(request, b"\x04\x04\0\x07\0\x07"), "another function"),
        (lambda request: adu(request, b"\x01\x04\0\x07\0\x07"), "another function"),
        (lambda request: adu(request, b"\x83\x63"), "unknown exception \\(Modbus exception 99\\)"),
        (lambda request: adu(request, b"\x03"), "closed the connection|no answer"),
        (lambda request: adu(request, b"\x63\0\0"), "closed the connection|no answer"),
        (lambda request: adu(request, b"\x03\x04\0\x07\0\x07", number=1), "no answer"),
        (lambda request: adu(request, b"\x03\x04\0\x07\0\x07", unit=2), "no answer"),
        (lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n", "no answer"),
        (lambda request: b"\0" * 70_000, "closed the connection|no answer"),
        (lambda request: b"", "no answer within 0.1 s"),
        (lambda request: None, "closed the connection"),
    ],
)
async def test_nonsense_is_an_error_with_a_reason(answer: Callable[[bytes], bytes | None], reason: str) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the library raises in a callback
    async with answering(answer) as port:
        used = connection(port, timeout_s=0.1)
        with pytest.raises(UpstreamError, match=reason):
            await used.read(holding(40, 2))
        used.close()


async def test_the_answer_to_another_request_is_not_taken() -> None:
    def two(request: bytes) -> bytes:
        return adu(request, b"\x03\x02\0\x01", number=7) + adu(request, b"\x03\x02\0\x02")

    async with answering(two) as port:
        used = connection(port)
        assert await used.read(holding(40)) == [2]
        used.close()


async def test_a_request_that_is_cancelled_closes_the_connection() -> None:
    asked = asyncio.Event()

    def silent(request: bytes) -> bytes:
        asked.set()
        return b""

    async with answering(silent) as port:
        used = connection(port)
        reading = asyncio.create_task(used.read(holding(40)))
        await asked.wait()
        reading.cancel()
        await asyncio.wait([reading])
        assert not used.is_open


async def test_a_silent_unit_behind_a_gateway_does_not_close_the_connection() -> None:
    answers = [b"\x03\x02\0\x07"]

    def only_unit_1(request: bytes) -> bytes:
        return adu(request, answers[0]) if request[6] == 1 else b""

    async with answering(only_unit_1) as port:
        used = connection(port, timeout_s=0.1)
        with pytest.raises(UpstreamError) as raised:
            await used.read(holding(40, unit=5))
        assert not isinstance(raised.value, SilentUnitError) and not used.is_open  # so far, nothing has answered
        assert await used.read(holding(40)) == [7]
        with pytest.raises(SilentUnitError, match="unit 5 does not answer"):
            await used.read(holding(40, unit=5))
        assert used.is_open and await used.read(holding(40)) == [7]
        used.close()
