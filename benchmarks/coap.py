"""CoAP devices on loopback: sensors that are observed, and actuators that are switched.

The gateway, the CoAP adapter and the devices are processes of their own.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.coap_devices import address, devices
from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, adapter_process, cpu_s, free_port, gateway_on_known_ports
from benchmarks.measuring import Progress, target
from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical

WAIT_S = 300.0
WARM_UP_S = 2.0
NAMES = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
_SENSOR = "http://lamplighter.local/sensor/"
_ACTUATOR = "http://lamplighter.local/actuator/"
_RULE = """[[stream]]
resource = "coap://{host}:{port}/value"
payload = "number"
property = "http://bench.example/value"
sensor = "sensor/{number}"
"""
_VALUES = f"{NAMES} SELECT ?sensor ?value {{ ?o sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"
_TOLD = f"{NAMES} SELECT ?a ?state {{ ?x sosa:madeByActuator ?a ; sosa:hasSimpleResult ?state }}"
_STATES = f"{NAMES} SELECT ?a ?state {{ ?a gateway:desiredState ?state }}"


def coap(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """CPU of observed sensors, and how soon actuators are sent their states."""
    sensors = asyncio.run(_with_parts(effort.coap_sensors, _sensors, effort, progress, with_rules=True))
    actuators = asyncio.run(_with_parts(effort.coap_actuators, _actuators, effort, progress, with_rules=False))
    return {
        **sensors,
        **actuators,
        "note": _note(sensors, actuators),
        "targets": [
            target("CoAP sensors, CPU of the adapter", sensors["adapter cpu %"], 30, "% of a core"),
            target("CoAP actuators, one update", actuators["switched s"], 2, "s"),
            target("CoAP actuators, p99 from notification", actuators["notification p99 ms"], 10, "ms"),
        ],
    }


def _note(sensors: dict[str, Any], found: dict[str, Any]) -> str:
    return (
        f"CoAP: {sensors['sensors']:,} observed resources at 1 Hz ({sensors['notifications per s']:,.0f}/s) take "
        f"{sensors['adapter cpu %']:.1f} % of a core in the adapter and {sensors['gateway cpu %']:.1f} % in the "
        f"gateway. {found['actuators']:,} actuators are switched by one update in {found['switched s']:.2f} s "
        f"({found['switched adapter cpu s']:.2f} s of CPU in the adapter, {found['switched gateway cpu s']:.2f} s in "
        f"the gateway). One of {found['single actuators']:,} is sent its state {found['update p50 ms']:.1f} ms after "
        f"the update (p99 {found['update p99 ms']:.1f}), and {found['notification p50 ms']:.1f} ms after another "
        f"subscriber was notified (p99 {found['notification p99 ms']:.1f})."
    )


Measured = Callable[
    [EngineClient, Gateway, int, Connection, int, Effort, Progress], Coroutine[Any, Any, dict[str, Any]]
]


async def _with_parts(
    count: int, measured: Measured, effort: Effort, progress: Progress, *, with_rules: bool
) -> dict[str, Any]:
    """The result of a measurement with so many devices. It gets client, gateway, process of the adapter, devices and
    their port."""
    port = free_port(socket.SOCK_DGRAM)
    with TemporaryDirectory() as temporary, devices(count, port) as running:
        folder = Path(temporary)
        (folder / "mapping").mkdir()
        if with_rules:
            rules = (_RULE.format(host=address(number), port=port, number=number) for number in range(count))
            (folder / "mapping" / "bench.toml").write_text("".join(rules))
        table = {"networks": ["127.0.0.0/8"]}
        with gateway_on_known_ports(folder, coap=table) as gateway, adapter_process(folder, "coap") as adapter:
            async with EngineClient(gateway.urls["subscribe"]) as client:
                return await measured(client, gateway, adapter.pid, running, port, effort, progress)


async def _sensors(
    client: EngineClient,
    gateway: Gateway,
    adapter: int,
    running: Connection,
    port: int,
    effort: Effort,
    progress: Progress,
) -> dict[str, Any]:
    count = effort.coap_sensors

    async def values() -> dict[str, str]:
        rows = (await client.query(_VALUES)).bindings()
        return {lexical(row["sensor"]).removeprefix(_SENSOR): lexical(row["value"]) for row in rows}

    async def all_observed() -> bool:
        return len(await values()) == count and _states(running)[1] == count

    began = time.perf_counter()
    await _until(all_observed)
    progress(f"{count:,} resources are observed after {time.perf_counter() - began:.1f} s")
    running.send(("change", 1.0))
    await asyncio.sleep(WARM_UP_S)
    sent, cpu, began = _states(running)[2], (cpu_s(adapter), gateway.cpu_s()), time.perf_counter()
    await asyncio.sleep(effort.coap_s)
    took, after = time.perf_counter() - began, (cpu_s(adapter), gateway.cpu_s())
    sent = _states(running)[2] - sent
    running.send(("change", 0.0))
    last = {str(number): state for number, state in enumerate(_states(running)[0])}

    async def all_there() -> bool:
        return await values() == last

    await _until(all_there)
    shares = [100 * (now - before) / took for before, now in zip(cpu, after, strict=True)]
    progress(f"{sent / took:,.0f} notifications/s: adapter {shares[0]:.1f} %, gateway {shares[1]:.1f} % of a core")
    return {
        "sensors": count,
        "notifications per s": sent / took,
        "adapter cpu %": shares[0],
        "gateway cpu %": shares[1],
    }


async def _actuators(
    client: EngineClient,
    gateway: Gateway,
    adapter: int,
    running: Connection,
    port: int,
    effort: Effort,
    progress: Progress,
) -> dict[str, Any]:
    count, single = effort.coap_actuators, min(effort.coap_actuators, effort.coap_single_actuators)
    resources = (f"<{_ACTUATOR}{n}> gateway:coapResource <coap://{address(n)}:{port}/lamp> ." for n in range(count))
    await client.update(f"{NAMES} INSERT DATA {{ {' '.join(resources)} }}")

    async def switched(state: str) -> tuple[float, float, float]:
        """Seconds from one update until each device has the state; CPU of adapter and gateway until all is recorded."""
        cpu, began = (cpu_s(adapter), gateway.cpu_s()), time.perf_counter()
        await client.update(
            f"{NAMES} DELETE {{ ?a gateway:desiredState ?was }} INSERT {{ ?a gateway:desiredState '{state}' }} "
            "WHERE { ?a gateway:coapResource ?r OPTIONAL { ?a gateway:desiredState ?was } }"
        )

        async def told() -> bool:
            return sum(lexical(row["state"]) == state for row in (await client.query(_TOLD)).bindings()) == count

        await _until(told)
        last = [max(at for at, payload in puts if payload == state) for puts in _puts(running)]
        return max(last) - began, cpu_s(adapter) - cpu[0], gateway.cpu_s() - cpu[1]

    await switched("0")  # the adapter meets the devices
    turns = [await switched(f"{turn}") for turn in range(1, effort.coap_switches + 1)]
    took, adapter_cpu, gateway_cpu = (statistics.median(column) for column in zip(*turns, strict=True))
    progress(f"{count:,} actuators switched by one update: {took:.2f} s, {adapter_cpu:.2f} s of CPU in the adapter")
    from_update, from_notification = await _single(client, running, single, effort)
    progress(f"single states: p99 {_p99(from_notification):.1f} ms from the notification to the datagram")
    return {
        "actuators": count,
        "switched s": took,
        "switched adapter cpu s": adapter_cpu,
        "switched gateway cpu s": gateway_cpu,
        "single actuators": single,
        "update p50 ms": statistics.median(from_update),
        "update p99 ms": _p99(from_update),
        "notification p50 ms": statistics.median(from_notification),
        "notification p99 ms": _p99(from_notification),
    }


async def _single(
    client: EngineClient, running: Connection, count: int, effort: Effort
) -> tuple[list[float], list[float]]:
    """Milliseconds until the datagram of single states arrives: since the update was sent, and since this process was
    notified of it."""
    updated: dict[str, float] = {}
    async with _notified(client) as notified:
        for turn in range(effort.coap_singles):
            state = f"single {turn}"
            updated[state] = time.perf_counter()
            actuator = f"<{_ACTUATOR}{turn % count}>"
            await client.update(
                f"{NAMES} DELETE {{ {actuator} gateway:desiredState ?was }} "
                f"INSERT {{ {actuator} gateway:desiredState '{state}' }} "
                f"WHERE {{ {actuator} gateway:desiredState ?was }}"
            )
            await asyncio.sleep(effort.coap_pause_s)

        arrived: dict[str, float] = {}

        async def all_arrived() -> bool:
            for puts in _puts(running):
                for at, payload in puts:
                    arrived.setdefault(payload, at)
            return arrived.keys() >= updated.keys() and notified.keys() >= updated.keys()

        await _until(all_arrived)
    return (
        sorted((arrived[state] - at) * 1000 for state, at in updated.items()),
        sorted((arrived[state] - notified[state]) * 1000 for state in updated),
    )


@asynccontextmanager
async def _notified(client: EngineClient) -> AsyncIterator[dict[str, float]]:
    """When this process was notified of a state, by state."""
    found: dict[str, float] = {}
    ready = asyncio.Event()

    async def follow() -> None:
        async for notification in client.subscribe(_STATES):
            now = time.perf_counter()
            for row in notification.added.bindings():
                found.setdefault(lexical(row["state"]), now)
            ready.set()

    task = asyncio.create_task(follow())
    try:
        await ready.wait()
        yield found
    finally:
        task.cancel()
        await asyncio.wait([task])


def _states(running: Connection) -> tuple[list[str], int, int]:
    running.send(("states",))
    found: tuple[list[str], int, int] = running.recv()
    return found


def _puts(running: Connection) -> list[list[tuple[float, str]]]:
    running.send(("puts",))
    found: list[list[tuple[float, str]]] = running.recv()
    return found


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110  # other processes have no other way to tell
            await asyncio.sleep(0.1)


def _p99(values: Sequence[float]) -> float:
    return values[min(len(values) - 1, int(len(values) * 0.99))]
