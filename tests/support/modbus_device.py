"""Modbus devices that pymodbus's server simulates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Thread
from typing import Any, TypeVar

from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

REGISTERS = COILS = 256
Result = TypeVar("Result")
_WRITES = {"coil": 15, "discrete_input": 2, "holding_register": 16, "input_register": 4}
_READS = {"coil": 1, "discrete_input": 2, "holding_register": 3, "input_register": 4}


class ModbusDevice:
    """A device with the units 1 and 2, each with registers and coils from address 0 to 255, all of them zero.

    requests: function, address and count of each request, in order. exceptions: by function and address, what a request
    for this address is answered with.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.requests: list[tuple[int, int, int]] = []
        self.exceptions: dict[tuple[int, int], ExcCodes] = {}
        self._units = [self._unit(number) for number in (1, 2)]
        self._server: ModbusTcpServer | None = None

    def _unit(self, number: int) -> SimDevice:
        async def action(
            function: int, start: int, address: int, count: int, registers: list[int], values: object
        ) -> ExcCodes | None:
            self.requests.append((function, address, count))
            touched = [(function, at) for at in range(address, address + count)]
            return next((self.exceptions[one] for one in touched if one in self.exceptions), None)

        bits = [SimData(0, values=[False] * COILS, datatype=DataType.BITS)]
        registers = [SimData(0, values=[0] * REGISTERS, datatype=DataType.REGISTERS)]
        return SimDevice(number, (bits, list(bits), registers, list(registers)), action=action)

    async def start(self) -> None:
        """Listens at the port, and at the same one after `stop`."""
        self._server = ModbusTcpServer(self._units, address=("127.0.0.1", self.port))
        await self._server.serve_forever(background=True)
        self.port = self._server.transport.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes its connections, as a device does that is switched off."""
        assert self._server is not None
        await self._server.shutdown()

    async def write(self, entity: str, address: int, values: Sequence[int], unit: int = 1) -> None:
        """Changes what clients read."""
        assert self._server is not None
        found = [bool(one) for one in values] if entity in ("coil", "discrete_input") else list(values)
        await self._server.async_setValues(unit, _WRITES[entity], address, found)
        self.requests.pop()

    async def read(self, entity: str, address: int, count: int = 1, unit: int = 1) -> list[int]:
        """What clients have written."""
        assert self._server is not None
        found = await self._server.async_getValues(unit, _READS[entity], address, count)
        self.requests.pop()
        return [int(one) for one in found]

    def uri(self, place: str) -> str:
        """place: as in ``1/40?quantity=2``."""
        return f"modbus+tcp://127.0.0.1:{self.port}/{place}"


@asynccontextmanager
async def modbus_device() -> AsyncIterator[ModbusDevice]:
    """A device that listens."""
    device = ModbusDevice()
    await device.start()
    try:
        yield device
    finally:
        await device.stop()


class ThreadedModbusDevice:
    """The same for tests without an event loop: the device runs in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="modbus device")
        self._thread.start()
        self._device = self._run(self._made())
        self.start()

    async def _made(self) -> ModbusDevice:
        return ModbusDevice()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    @property
    def port(self) -> int:
        return self._device.port

    def start(self) -> None:
        self._run(self._device.start())

    def stop(self) -> None:
        self._run(self._device.stop())

    def write(self, entity: str, address: int, *values: int) -> None:
        self._run(self._device.write(entity, address, values))

    def read(self, entity: str, address: int, count: int = 1) -> list[int]:
        return self._run(self._device.read(entity, address, count))

    def end(self) -> None:
        """The device is not used any more."""
        self.stop()
        self._run(self._ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _ended(self) -> None:
        """Returns when no task of the device is left."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def threaded_modbus_device() -> Iterator[ThreadedModbusDevice]:
    device = ThreadedModbusDevice()
    try:
        yield device
    finally:
        device.end()
