"""Devices that announce themselves, in the dataset of a running gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from lamplighter.adapters.devices.registry import Adopt, Entry, Registry
from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.messages import Message
from lamplighter.engine.client import EngineClient
from lamplighter.gateway.addresses import Addresses
from tests.support.amounts import Amounts
from tests.support.announcements import zigbee_house
from tests.support.event_loops import until as until_true
from tests.support.running_gateway import TIMEOUT_S, rows, running_gateway, until_it_is, update

BASE = "http://lamplighter.local/"
LIST = "zigbee2mqtt/bridge/devices"
PREFIX = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "


@asynccontextmanager
async def discovering(addresses: Addresses, adopt: Adopt = "ask", devices_max: int = 100) -> AsyncIterator[Discovering]:
    async with EngineClient(addresses.subscribe, name="mqtt") as client:
        part = Discovering(
            client, base_iri=BASE, formats=["zigbee2mqtt", "homeassistant"], adopt=adopt, devices_max=devices_max
        )
        task = asyncio.create_task(part.feed.run())
        await asyncio.wait_for(part.feed.ready.wait(), TIMEOUT_S)
        try:
            yield part
        finally:
            task.cancel()
            await asyncio.wait([task])


def states(addresses: Addresses) -> Callable[[], Awaitable[dict[str, str]]]:
    async def found() -> dict[str, str]:
        listed = await rows(addresses, Registry(BASE).query)
        return {json.loads(row["announcement"])["name"]: row["adoption"] for row in listed}

    return found


def count(addresses: Addresses, where: str) -> Callable[[], Awaitable[int]]:
    async def found() -> int:
        return int((await rows(addresses, f"{PREFIX} SELECT (COUNT(*) AS ?n) {{ {where} }}"))[0]["n"])

    return found


async def known(part: Discovering, name: str, adoption: str) -> Entry:
    """The entry of a device, once the adapter has it in that state: the dataset has it before."""
    found: list[Entry] = []

    def there() -> bool:
        found[:] = [one for one in part.feed.entries.values() if (one.name, one.adoption) == (name, adoption)]
        return bool(found)

    await until_true(there, f"{name}, {adoption}, in the adapter")
    return found[0]


NAMES = [f"room1/{name}" for name in ("motion", "window", "climate", "lamp")]


async def test_devices_are_proposed_adopted_by_people_renamed_and_retired(tmp_path: Path) -> None:
    registry = Registry(BASE)
    async with running_gateway(tmp_path) as addresses, discovering(addresses) as part:
        part.take("default", LIST, zigbee_house(1))
        await until_it_is(states(addresses), dict.fromkeys(NAMES, "proposed"))
        assert await count(addresses, "?m a gateway:Mapping")() == 0
        await until_true(lambda: part.feed.status() == "; devices: 4 proposed", "the four in the status")

        await update(addresses, registry.adoption(await known(part, "room1/lamp", "proposed")))
        assert await count(addresses, "?m a gateway:Mapping ; gateway:rule ?rule")() == 4

        part.take("default", LIST, zigbee_house(1).replace(b"room1/lamp", b"stairs"))
        await until_it_is(
            count(addresses, "?d a gateway:Device ; <http://www.w3.org/2000/01/rdf-schema#label> 'stairs'"), 1
        )
        part.take("default", LIST, b"[]")
        await until_it_is(states(addresses), {"stairs": "retired"})
        assert await count(addresses, "?m a gateway:Mapping")() == 0


async def test_all_are_adopted_where_the_settings_say_so(tmp_path: Path, amounts: Amounts) -> None:
    rooms = amounts.of(10)
    async with running_gateway(tmp_path) as addresses, discovering(addresses, "all") as part:
        part.take("default", LIST, zigbee_house(rooms))
        await until_it_is(count(addresses, "?d a gateway:Device"), 4 * rooms)
        assert await count(addresses, "?s sosa:observes gateway:motion")() == rooms
        assert part.feed.rejected == 0


async def test_a_new_process_changes_nothing_of_what_is_settled(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        async with discovering(addresses, "all") as part:
            part.take("default", LIST, zigbee_house(1))
            await until_it_is(count(addresses, "?d a gateway:Device"), 4)
        before = await count(addresses, "GRAPH ?g { ?s ?p ?o }")()
        async with discovering(addresses, "all") as part:
            part.take("default", LIST, zigbee_house(1).replace(b"lamp", b"lamp!"))
            await until_it_is(count(addresses, "?d <http://www.w3.org/2000/01/rdf-schema#label> 'room1/lamp!'"), 1)
            assert await count(addresses, "GRAPH ?g { ?s ?p ?o }")() == before
            part.take("shed", LIST, zigbee_house(1))
            await until_it_is(count(addresses, "GRAPH ?g { ?p a gateway:ReportedProblem }"), 4)


async def test_what_a_device_of_an_earlier_process_owns_is_not_given_to_another(tmp_path: Path) -> None:
    thief = json.dumps({"cmd_t": "zigbee2mqtt/room1/lamp/set", "uniq_id": "x", "dev": {"ids": "x", "name": "thief"}})
    async with running_gateway(tmp_path) as addresses:
        async with discovering(addresses, "all") as part:
            part.take("default", LIST, zigbee_house(1))
            await until_it_is(states(addresses), dict.fromkeys(NAMES, "adopted"))
        async with discovering(addresses, "all") as part:
            part.take("default", "homeassistant/switch/x/config", thief.encode())
            await until_it_is(count(addresses, "GRAPH ?g { ?p a gateway:ReportedProblem }"), 1)
            assert await states(addresses)() == dict.fromkeys(NAMES, "adopted")


async def test_announcements_wait_for_the_devices_of_the_dataset(tmp_path: Path) -> None:
    message = Message(LIST, zigbee_house(1), True, datetime.now(UTC), {}, 1, 1, 1)
    async with running_gateway(tmp_path) as addresses, EngineClient(addresses.subscribe, name="mqtt") as client:
        part = Discovering(client, base_iri=BASE, formats=["zigbee2mqtt"], adopt="ask", devices_max=100)
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(part.take_all("default", [message]))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not taking.done() and not part.feed._announced
            running = tasks.create_task(part.feed.run())
            await until_it_is(states(addresses), dict.fromkeys(NAMES, "proposed"))
            await asyncio.wait_for(taking, TIMEOUT_S)
            running.cancel()


async def test_a_device_that_a_person_removed_is_proposed_again(tmp_path: Path) -> None:
    registry = Registry(BASE)
    async with running_gateway(tmp_path) as addresses, discovering(addresses) as part:
        part.take("default", LIST, zigbee_house(1))
        await until_it_is(states(addresses), dict.fromkeys(NAMES, "proposed"))
        await update(addresses, registry.ignoring(await known(part, "room1/lamp", "proposed")))
        await until_it_is(states(addresses), dict.fromkeys(NAMES, "proposed") | {"room1/lamp": "ignored"})
        await update(addresses, registry.removal(await known(part, "room1/lamp", "ignored")))
        await until_it_is(states(addresses), dict.fromkeys(NAMES, "proposed"))


async def test_a_record_that_a_client_has_forged_stops_nothing(tmp_path: Path) -> None:
    forged = "INSERT DATA {{ GRAPH <{0}graph/proposed> {{ <{0}device/x/{1}> gateway:adoption 'adopted' ; "
    forged += "gateway:announcement '{2}' }} }}"
    about = {"id": "a", "source": "x", "broker": "default", "name": "a"}
    records = [
        "{",
        json.dumps(about | {"availability": {"topics": [{}]}}),
        json.dumps(about | {"id": "> <", "sensors": [{"key": "", "kind": "", "label": "", "table": {}}]}),
    ]
    async with running_gateway(tmp_path) as addresses, discovering(addresses) as part:
        for number, record in enumerate(records):
            assert (await update(addresses, PREFIX + forged.format(BASE, number, record))).status == 200
        part.take("default", LIST, zigbee_house(1))
        listed = count(addresses, "GRAPH ?g { ?device gateway:adoption 'proposed' }")
        await until_it_is(listed, 4)


async def test_a_device_that_always_changes_does_not_fill_the_change_log(tmp_path: Path) -> None:
    def announced(number: int) -> bytes:
        members = {f"m{member}": f"{number}" for member in range(40)}
        entities = {key: {"p": "sensor", "stat_t": f"a/{key}", "name": name} for key, name in members.items()}
        return json.dumps({"dev": {"ids": "a"}, "cmps": entities}).encode()

    async with running_gateway(tmp_path) as addresses, discovering(addresses) as part:
        begun = asyncio.get_running_loop().time()
        names = set()
        for number in range(100):
            part.take("default", "homeassistant/device/a/config", announced(number))
            found = await rows(addresses, Registry(BASE).query)
            names |= {row["announcement"] for row in found}
        seconds = asyncio.get_running_loop().time() - begun
        assert len(names) <= 3 + seconds, "doubling pauses give fewer"
        part.take("default", "homeassistant/device/a/config", b"")
        await until_it_is(states(addresses), {})


async def test_problems_are_in_the_dataset_and_a_new_process_forgets_them(tmp_path: Path) -> None:
    problems = "GRAPH ?g { ?p a gateway:ReportedProblem ; gateway:reason ?reason }"
    async with running_gateway(tmp_path) as addresses:
        async with discovering(addresses) as part:
            for _ in range(10):
                part.take("default", LIST, b"{")
            part.take("default", "homeassistant/switch/a/config", b'{"cmd_t": "#", "uniq_id": "a"}')
            await until_it_is(count(addresses, problems), 2)
        async with discovering(addresses):
            await until_it_is(count(addresses, problems), 0)
