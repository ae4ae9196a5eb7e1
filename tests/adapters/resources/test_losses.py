"""Which losses of devices are noticed, in virtual time, with a protocol of this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lamplighter.adapters.mapping import ResourceCommandTable, ResourceRule, ResourceTable, resource_command
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.exchange import DeviceRequest
from lamplighter.adapters.resources.polled import DeviceReply, PolledProtocol
from lamplighter.adapters.resources.polled_adapter import PolledAdapter
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.engine.errors import UpstreamError
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.coap_gateway import EngineGateway
from tests.support.coap_wire import run_virtual
from tests.support.event_loops import beside, until

BASE = "http://gateway.example/"
# Of a poll and of a pause between attempts: a loss is known after three attempts, long before the next look.
SHORT_S = 0.01


class Device(PolledProtocol):
    """Answers while it is `there`. answered: how often."""

    def __init__(self) -> None:
        self.there, self.answered = True, 0

    async def read(self, request: DeviceRequest) -> DeviceReply:
        if not self.there:
            raise UpstreamError("no answer")
        self.answered += 1
        return DeviceReply("200", b"1", 0)

    async def write(self, request: DeviceRequest) -> DeviceReply:
        return await self.read(request)

    async def close(self) -> None:
        pass


def sensor() -> Any:
    table = ResourceTable(resource="http://a/t", payload="number", property="gateway:power", poll_s=SHORT_S)
    return ResourceRule(table, prefixes=PREFIXES, base_iri=BASE, place="rule")


def actuator() -> Any:
    table = ResourceCommandTable(resource="http://a/lamp", actuator="actuator/lamp", reassert_s=SHORT_S)
    return resource_command(table, prefixes=PREFIXES, base_iri=BASE, place="rule")


@pytest.mark.parametrize("rule", [sensor(), actuator()], ids=["sensor", "actuator"])
def test_a_device_that_is_lost_again_between_two_looks_is_reported(rule: Any) -> None:
    device = Device()

    async def lost_twice() -> None:
        settings = PolledSettings(retry_min_s=SHORT_S, retry_max_s=SHORT_S)
        client: Any = EngineGateway()
        adapter = PolledAdapter(
            "http-devices",
            settings,
            AdapterContext(client, BASE),
            lambda: device,
            files=ResourceRules.of([rule], "http-devices"),
        )
        async with beside(adapter.run()):
            await until(lambda: device.answered > 0)
            device.there = False
            await until(lambda: adapter.health().unreachable == 1)
            device.there, before = True, device.answered
            await until(lambda: device.answered > before and adapter.health().unreachable == 0)
            device.there = False
            now = asyncio.get_running_loop().time()
            await until(lambda: adapter.health().unreachable == 1)
            assert asyncio.get_running_loop().time() - now < 3

    run_virtual(lost_twice())
