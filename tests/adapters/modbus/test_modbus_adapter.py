"""The adapter for Modbus devices between an engine and pymodbus's server: readings, desired states, outages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

from pymodbus.client.mixin import ModbusClientMixin
from pymodbus.constants import ExcCodes

from lamplighter.adapters.mapping import ResourceRules, load_resource_rules
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.modbus.protocol import ModbusProtocol
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.polled_adapter import PolledAdapter
from lamplighter.adapters.resources.running import NO_RULES
from lamplighter.engine.terms import literal
from tests.support.coap_gateway import EngineGateway
from tests.support.event_loops import until
from tests.support.modbus_device import ModbusDevice, modbus_device

BASE = "http://gateway.example/"
NUMBERS: dict[str, tuple[object, int]] = {
    "int16": (-1234, 1), "uint16": (65_000, 1), "int32": (-70_000, 2), "uint32": (4_000_000_000, 2),
    "int64": (-5_000_000_000, 4), "uint64": (18_000_000_000_000_000_000, 4), "float32": (21.3, 2),
    "float64": (0.123456789012, 4),
}  # fmt: skip
ORDERS = tuple(product(("big", "little"), repeat=2))


def registers(type_: str, value: object, byte_order: str = "big", word_order: str = "big") -> list[int]:
    """By pymodbus."""
    found = ModbusClientMixin.convert_to_registers(value, ModbusClientMixin.DATATYPE[type_.upper()], word_order)  # type: ignore[arg-type]
    return found if byte_order == "big" else [(one & 0xFF) << 8 | one >> 8 for one in found]


@asynccontextmanager
async def adapter(
    gateway: EngineGateway, files: ResourceRules = NO_RULES, *, rules: bool = False, **settings: Any
) -> AsyncIterator[PolledAdapter]:
    """An adapter that runs. rules: it follows those of the dataset."""
    quick = {"networks": ("127.0.0.0/8",), "retry_min_s": 0.01, "retry_max_s": 0.05, "answer_timeout_s": 30.0}
    made = ModbusSettings(**quick | {"contact_write_s": 0.1, "timeout_s": 20.0} | settings)
    networks = Networks(made.networks, "modbus.networks")
    running = PolledAdapter(
        "modbus",
        made,
        AdapterContext(gateway, BASE),
        lambda: ModbusProtocol(made, networks),
        files=files,
        rules=DatasetRules(BASE, kind="modbus") if rules else None,
    )
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


def rule_files(folder: Path, text: str) -> ResourceRules:
    (folder / "rules.toml").write_text(text)
    return load_resource_rules(folder, BASE, "modbus")


def stream(device: ModbusDevice, number: int, place: str, **keys: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(
        [
            "[[stream]]",
            f'resource = "{device.uri(place)}"',
            f'property = "gateway:power"\nsensor = "s/{number}"',
            *lines,
        ]
    )


async def test_each_type_in_each_order_is_read_and_written(tmp_path: Path) -> None:
    gateway, address, texts, wanted, states = EngineGateway(), 0, [], {}, []
    async with modbus_device() as device:
        for number, (type_, orders) in enumerate(product(NUMBERS, ORDERS)):
            value, size = NUMBERS[type_]
            found = registers(type_, value, *orders)
            keys = {"type": type_, "byte_order": orders[0], "word_order": orders[1], "poll_s": 1}
            await device.write("input_register", address, found)
            place = f"1/{address}?quantity={size}"
            texts.append(stream(device, number, f"{place}&entity=input_register", **keys))
            keys.pop("poll_s")
            lines = [f'resource = "{device.uri(place)}"', *(f'{key} = "{text}"' for key, text in keys.items())]
            texts.append("\n".join(["[[command]]", f'actuator = "actuator/{number}"', *lines]))
            wanted[f"{BASE}s/{number}"] = str(value)
            states.append((number, address, found, value))
            address += size
        async with adapter(gateway, rule_files(tmp_path, "\n".join(texts))) as running:
            for number, _, _, value in states:
                gateway.write(f"INSERT DATA {{ <{BASE}actuator/{number}> gateway:desiredState {value} }}")
            select = "?o sosa:madeBySensor ?s ; sosa:hasSimpleResult ?v BIND(CONCAT(STR(?s), ' ', STR(?v)) AS ?x)"
            await until(lambda: len(gateway.found(select)) == len(wanted))
            assert dict(one.split() for one in gateway.found(select)) == wanted
            await until(lambda: running.counters.acknowledged >= len(states))
            for _, begin, found, _ in states:
                assert await device.read("holding_register", begin, len(found)) == found
            reported = "?a gateway:reportedState ?x"
            await until(lambda: len(gateway.found(reported)) == len(states))
            assert sorted(map(float, gateway.found(reported))) == sorted(float(value) for *_, value in states)  # type: ignore[arg-type]
            polls = {request for request in device.requests if request[0] == 4}  # which are repeated each second
            assert len(polls) < len(wanted)  # 75 registers, read by a few requests


async def test_coils_follow_their_desired_states_and_refusals_are_recorded(tmp_path: Path) -> None:
    gateway = EngineGateway()
    async with modbus_device() as device:
        text = "".join(
            f'[[command]]\nactuator = "actuator/{name}"\nresource = "{device.uri(place)}"\n'
            for name, place in (("pump", "1/3?entity=coil"), ("locked", "1/9"), ("absent", "1/4000"))
        )
        device.exceptions[6, 9] = ExcCodes.ILLEGAL_VALUE
        async with adapter(gateway, rule_files(tmp_path, text)) as running:
            for name, state in (("pump", "true"), ("locked", "7"), ("absent", "70000")):
                gateway.write(f"INSERT DATA {{ <{BASE}actuator/{name}> gateway:desiredState {state} }}")
            refused = f"<{BASE}actuator/%s/actuation> gateway:refused ?x"
            await until(lambda: running.counters.acknowledged >= 1 and bool(gateway.found(refused % "absent")))
            assert await device.read("coil", 3) == [1]
            await until(lambda: bool(gateway.found(refused % "locked")))
            assert gateway.found(refused % "locked") == ["400: illegal data value (Modbus exception 3)"]
            [reason] = gateway.found(refused % "absent")
            assert "between 0 and 65535 (uint16)" in reason
            assert gateway.found(f"<{BASE}actuator/pump/actuation> gateway:answer ?x") == ["200"]
            target = gateway.found(f"<{BASE}actuator/pump/actuation> gateway:target ?x")
            assert target == [device.uri("1/3?entity=coil")]
            gateway.write(
                f"DELETE {{ ?a gateway:desiredState true }} INSERT {{ ?a gateway:desiredState false }} "
                f"WHERE {{ BIND(<{BASE}actuator/pump> AS ?a) }}"
            )
            done = f"<{BASE}actuator/pump/actuation> sosa:hasSimpleResult ?x"
            await until(lambda: gateway.found(done) == ["false"])
            assert await device.read("coil", 3) == [0]


async def test_a_device_that_goes_away_and_returns_is_read_and_set_again(tmp_path: Path) -> None:
    gateway, device = EngineGateway(), ModbusDevice()
    await device.start()
    await device.write("input_register", 52, [7])
    text = stream(device, 1, "1/52?entity=input_register", poll_s=1)
    text += f'\n[[command]]\nactuator = "actuator/pump"\nresource = "{device.uri("1/3?entity=coil")}"\nreassert_s = 1\n'
    async with adapter(gateway, rule_files(tmp_path, text)):
        gateway.write(f"INSERT DATA {{ <{BASE}actuator/pump> gateway:desiredState true }}")
        await until(lambda: gateway.found("?o sosa:hasSimpleResult ?x . ?o sosa:madeBySensor ?s") == ["7"])
        reported = f"<{BASE}actuator/pump> gateway:reportedState ?x"
        await until(lambda: gateway.found(reported) == ["true"])
        await device.stop()
        away = "?d gateway:unreachable ?x"
        await until(lambda: len(gateway.found(away)) == 1)
        assert gateway.found(away)[0] in ("the device closed the connection", "the device takes no connection")
        await device.start()  # all its registers and coils are zero again
        await device.write("input_register", 52, [8])
        await until(lambda: gateway.found("?o sosa:hasSimpleResult ?x . ?o sosa:madeBySensor ?s") == ["8"])
        await until(lambda: gateway.found(away) == [])
        async with asyncio.timeout(120):
            while await device.read("coil", 3) != [1]:
                await asyncio.sleep(0.01)
    await device.stop()


async def test_neighbours_with_one_interval_are_polled_by_one_request(tmp_path: Path) -> None:
    gateway = EngineGateway()
    async with modbus_device() as device:
        text = "\n".join(stream(device, at, f"1/{at}?entity=input_register", poll_s=1) for at in (20, 10, 11, 13, 12))
        async with adapter(gateway, rule_files(tmp_path, text)):
            # They begin one after the other, and are in step from the next poll on.
            await until(lambda: len({request[1:] for request in device.requests} & {(20, 1), (10, 4)}) == 2)


async def test_rules_of_the_dataset_are_followed_and_their_faults_are_told() -> None:
    gateway = EngineGateway()
    async with modbus_device() as device:
        await device.write("holding_register", 40, [0, 0, 9])
        good = {"stream": {"resource": device.uri("1/42"), "property": "gateway:power", "poll_s": 1}}
        bad = {"stream": {"resource": device.uri("1/42"), "property": "gateway:power", "type": "float32"}}
        async with adapter(gateway, rules=True):
            for name, rule in (("good", good), ("bad", bad)):
                text = literal(json.dumps(rule))
                gateway.write(f"INSERT DATA {{ <{BASE}mapping/{name}> a gateway:Mapping ; gateway:rule {text} }}")
            await until(lambda: gateway.found("?o sosa:hasSimpleResult ?x . ?o sosa:madeBySensor ?s") == ["9"])
            await until(lambda: bool(gateway.found("?m gateway:problem ?x")))
            [problem] = gateway.found(f"<{BASE}mapping/bad> gateway:problem ?x")
            assert problem.startswith("Modbus: ") and "float32 has 2 registers" in problem


async def test_an_address_outside_of_the_networks_gets_nothing(tmp_path: Path) -> None:
    gateway = EngineGateway()
    async with modbus_device() as device:
        text = f'[[command]]\nactuator = "actuator/pump"\nresource = "{device.uri("1/3?entity=coil")}"\n'
        async with adapter(gateway, rule_files(tmp_path, text), networks=("192.0.2.0/24",)):
            gateway.write(f"INSERT DATA {{ <{BASE}actuator/pump> gateway:desiredState true }}")
            refused = f"<{BASE}actuator/pump/actuation> gateway:refused ?x"
            await until(lambda: bool(gateway.found(refused)))
            [reason] = gateway.found(refused)
            assert reason.endswith("is in none of the networks that modbus.networks allows")
        assert device.requests == []
