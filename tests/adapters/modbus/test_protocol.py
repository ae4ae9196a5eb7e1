"""Requests to resources of Modbus devices, with the turns and pauses of polled devices, against pymodbus's server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pymodbus.constants import ExcCodes

from lamplighter.adapters.mapping.tables import OCTETS
from lamplighter.adapters.modbus.protocol import ModbusProtocol
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.networks import Networks, NotAllowedError
from lamplighter.adapters.resources.exchange import DeviceAnswer, DeviceRequest
from lamplighter.adapters.resources.polled import PolledExchanges
from lamplighter.engine.errors import PayloadError, UpstreamError
from tests.support.modbus_device import ModbusDevice, modbus_device


def exchanges(**keys: Any) -> tuple[PolledExchanges, ModbusProtocol]:
    quick = {"networks": ("127.0.0.0/8",), "retry_min_s": 0.001, "retry_max_s": 0.01, "answer_timeout_s": 30.0}
    settings = ModbusSettings(**quick | keys)
    protocol = ModbusProtocol(settings, Networks(settings.networks, "modbus.networks"))
    return PolledExchanges(protocol, settings, kind="modbus", table="modbus"), protocol


def get(uri: str) -> DeviceRequest:
    return DeviceRequest(uri, "GET")


def put(uri: str, body: bytes) -> DeviceRequest:
    return DeviceRequest(uri, "PUT", body)


def said(answer: DeviceAnswer) -> tuple[str, bytes | str]:
    return answer.code, answer.body if answer.successful else answer.body.decode()


async def test_registers_and_coils_are_bodies() -> None:
    async with modbus_device() as device:
        used, protocol = exchanges()
        written = [
            ("1/40?quantity=2", bytes.fromhex("41aa6666")),
            ("1/50", b"\0\7"),
            ("2/9?quantity=3&entity=coil", b"\1\0\1"),
            ("1/60?function=multiple", b"\0\1"),
        ]
        for place, body in written:
            assert said(await used.request(put(device.uri(place), body))) == ("200", b"")
            answer = await used.request(get(device.uri(place)))
            assert said(answer) == ("200", body) and answer.format == OCTETS
        with pytest.raises(PayloadError, match="not one for the registers"):
            await used.request(put(device.uri("1/40?quantity=2"), b"\0\0"))
        await protocol.close()


async def test_neighbours_that_wait_are_read_by_one_request() -> None:
    async with modbus_device() as device:
        used, protocol = exchanges()
        await device.write("holding_register", 10, list(range(10, 20)))
        first = ["1/17", "1/12", "1/10?quantity=2", "1/13?quantity=2", "2/10"]
        found = await asyncio.gather(*(used.request(get(device.uri(place))) for place in first))
        assert [one.body for one in found] == [b"\0\x11", b"\0\x0c", b"\0\x0a\0\x0b", b"\0\x0d\0\x0e", b"\0\0"]
        assert device.requests == [(3, 17, 1), (3, 10, 5), (3, 10, 1)]
        await protocol.close()


async def test_registers_that_a_device_does_not_give_together_are_read_alone() -> None:
    async with modbus_device() as device:
        used, protocol = exchanges()
        device.exceptions[3, 12] = ExcCodes.ILLEGAL_ADDRESS
        places = ["1/99", "1/10?quantity=2", "1/12", "1/13"]
        for _ in range(2):
            found = await asyncio.gather(*(used.request(get(device.uri(place))) for place in places))
            assert [said(one) for one in found[1:]] == [
                ("200", b"\0\0\0\0"),
                ("400", "illegal data address (Modbus exception 2)"),
                ("200", b"\0\0"),
            ]
            assert found[2].refused
        assert [one for one in device.requests if one == (3, 10, 4)] == [(3, 10, 4)]
        await protocol.close()


async def test_a_busy_device_is_no_refusal() -> None:
    async with modbus_device() as device:
        used, protocol = exchanges()
        device.exceptions[3, 40] = device.exceptions[6, 40] = ExcCodes.DEVICE_BUSY
        for request in (get(device.uri("1/40")), put(device.uri("1/40"), b"\0\0")):
            answer = await used.request(request)
            assert said(answer) == ("503", "server device busy (Modbus exception 6)") and not answer.refused
        await protocol.close()


async def test_a_device_that_goes_away_and_returns() -> None:
    device = ModbusDevice()
    await device.start()
    used, protocol = exchanges()
    request = get(device.uri("1/40"))
    assert (await used.request(request)).successful
    await device.stop()
    with pytest.raises(UpstreamError):
        await used.request(request)
    await device.start()
    while True:
        try:
            assert (await used.request(request)).successful
            break
        except UpstreamError:  # its pause is not over
            await asyncio.sleep(0.001)
    await protocol.close()
    await device.stop()


async def test_a_device_outside_of_the_networks_gets_nothing() -> None:
    async with modbus_device() as device:
        used, _ = exchanges(networks=("192.0.2.0/24",))
        for request in (get(device.uri("1/40")), put(device.uri("1/40"), b"\0\0")):
            with pytest.raises(NotAllowedError, match=r"modbus\.networks"):
                await used.request(request)
        assert device.requests == []


async def test_the_connections_of_many_devices_are_bounded() -> None:
    async with modbus_device() as device:
        used, protocol = exchanges(resources_max=2)
        assert (await used.request(get(device.uri("1/40")))).successful
        for number in range(2, 6):
            with pytest.raises(UpstreamError, match="takes no connection"):
                await used.request(get(f"modbus+tcp://127.0.0.{number}:{device.port}/1/40"))
        assert len(protocol._connections) <= 2
        assert (await used.request(get(device.uri("1/40")))).successful
        await protocol.close()


def test_a_unit_is_waited_for_less_than_a_request() -> None:
    with pytest.raises(ValueError, match="is not more than timeout_s"):
        ModbusSettings(timeout_s=10.0)
