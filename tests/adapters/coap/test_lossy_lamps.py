"""Lamps over a network that loses, repeats, delays and reorders datagrams, for ten minutes of virtual time."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime
from random import Random
from typing import Any

import aiocoap
import msgspec
import pytest

from lamplighter.adapters.coap.adapter import CoapAdapter
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.resource_commands import ResourceCommandRule, resource_command
from lamplighter.adapters.mapping.tables import ResourceCommandTable
from lamplighter.adapters.parts import AdapterContext
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.coap_gateway import EngineGateway
from tests.support.coap_wire import Faults, Network, run_virtual
from tests.support.event_loops import beside

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
BASE = "http://gateway.example/"
SETTINGS = CoapSettings(networks=("10.0.0.0/8",), reassert_s=20)
LAMPS, CHANGING_S, SETTLING_S = 50, 600, 60


class Lamp:
    """A device whose resource /lamp is its state, OFF after each boot.

    way: "observe", "poll" (no Observe), "write" (no GET), "toggle": POST sets the state and may be read, or "post":
    POST only. effects: states that a POST has set since the last boot.
    """

    def __init__(self, network: Network, host: str, way: str) -> None:
        self.uri = f"coap://{host}/lamp"
        self.way = way
        self.doubled: list[str] = []
        self.executed: list[str] = []
        self._network, self._host = network, host
        self.endpoint: Endpoint | None = None
        self.boot()

    def boot(self) -> None:
        if self.endpoint is not None:
            tokens = self.endpoint._tokens
            for _, stop in list(tokens.incoming_requests.values()):
                stop()
        self.state, self.number, self._changed = "OFF", 0, asyncio.Event()
        self.endpoint = self._network.endpoint(self._host, site=self)

    def _set(self, state: str) -> None:
        self.state = state
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def render_to_pipe(self, pipe: Any) -> None:
        request = pipe.request
        allowed = {"observe": "GET PUT", "poll": "GET PUT", "write": "PUT", "toggle": "GET POST", "post": "POST"}
        if request.code.name not in allowed[self.way]:
            pipe.add_response(aiocoap.Message(code=aiocoap.METHOD_NOT_ALLOWED), is_last=True)
            return
        if request.code != aiocoap.GET:
            state = request.payload.decode()
            if request.code == aiocoap.POST:
                self.executed.append(state)
                if state == self.state:
                    self.doubled.append(state)
            self._set(state)
            pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)
            return
        if self.way != "observe" or request.opt.observe != 0:
            pipe.add_response(aiocoap.Message(code=aiocoap.CONTENT, payload=self.state.encode()), is_last=True)
            return
        while True:
            changed = self._changed
            answer = aiocoap.Message(code=aiocoap.CONTENT, payload=self.state.encode(), observe=self.number, max_age=15)
            pipe.add_response(answer, is_last=False)
            await changed.wait()


def rule(lamp: Lamp, number: int) -> ResourceCommandRule:
    table: dict[str, Any] = {"actuator": f"lamp/{number}", "resource": lamp.uri}
    if lamp.way in ("toggle", "post"):
        table["method"] = "POST"
    if lamp.way == "post":
        table["state"] = False
    made = msgspec.convert(table, ResourceCommandTable)
    return resource_command(made, prefixes=PREFIXES, base_iri=BASE, place=f"street.toml: command {number}")


WAYS = ("observe", "poll", "write", "toggle", "post")


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_lamp_ends_as_the_query_says_and_no_post_has_its_effect_twice(seed: int) -> None:
    run_virtual(_ten_minutes(seed))


async def _ten_minutes(seed: int) -> None:
    loop = asyncio.get_running_loop()
    random, network, gateway = Random(seed), Network(seed, Faults(0.3, 0.1, 0.5)), EngineGateway()
    lamps = [Lamp(network, f"10.0.{n // 200}.{n % 200 + 10}", WAYS[n % len(WAYS)]) for n in range(LAMPS)]
    rules = ResourceRules(commands=tuple(rule(lamp, number) for number, lamp in enumerate(lamps)))
    wanted = ["OFF"] * LAMPS
    changes = [0] * LAMPS

    def change(number: int, state: str) -> None:
        wanted[number] = state
        changes[number] += 1
        node = f"<{BASE}lamp/{number}>"
        gateway.write(
            f"DELETE {{ {node} gateway:desiredState ?was }} INSERT {{ {node} gateway:desiredState '{state}' }} "
            f"WHERE {{ OPTIONAL {{ {node} gateway:desiredState ?was }} }}"
        )

    async def open_endpoint(settings: CoapSettings, counters: EndpointCounters) -> Endpoint:
        return network.endpoint("10.9.0.1", settings=settings)

    adapter = CoapAdapter(
        SETTINGS,
        AdapterContext(gateway, BASE, now=lambda: NOON),
        CoapMachine(interfaces=lambda: (), monotonic=loop.time, open_endpoint=open_endpoint),
        files=rules,
    )
    objects: list[int] = []
    async with beside(adapter.run()) as task:
        for number in range(LAMPS):
            change(number, "ON 0")
        while loop.time() < CHANGING_S:
            await asyncio.sleep(random.uniform(0, 1))
            number = random.randrange(LAMPS)
            change(number, f"ON {changes[number]}")  # each state is new, so that a late repetition is seen
            if random.random() < 0.05:
                lamp = random.choice(lamps)
                if lamp.way != "post":  # nothing tells that it has forgotten its state
                    lamp.boot()
            if len(objects) < 2 and loop.time() > CHANGING_S / 2 * (len(objects) + 0.5):
                gc.collect()
                objects.append(len(gc.get_objects()))
        await asyncio.sleep(SETTLING_S)
        for number, lamp in enumerate(lamps):
            refusals = gateway.found(f"<{BASE}lamp/{number}/actuation> gateway:refused ?x")
            if lamp.way == "post" and lamp.state != wanted[number]:
                assert refusals == ["no answer"]  # it is not known, and may not be sent twice
            else:
                assert (lamp.way, number, lamp.state) == (lamp.way, number, wanted[number])
        assert [lamp.doubled for lamp in lamps if lamp.doubled] == []
        for lamp in lamps:
            if lamp.way == "post":
                assert sorted(set(lamp.executed)) == sorted(lamp.executed)
        assert not task.done()
        assert adapter.counters.failed > 50
        assert adapter.counters.observations.notifications > 50
    # What waits differs by a tenth between two moments; what every exchange left behind would be a multiple.
    assert objects[1] < objects[0] * 1.25
