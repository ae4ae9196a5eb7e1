"""Rules -> states of devices, with the engine in this process, libcoap's server and lamps in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import aiocoap
import msgspec
import pytest
from msgspec.structs import replace

from lamplighter.adapters.coap.adapter import CoapAdapter
from lamplighter.adapters.coap.admission import Origin
from lamplighter.adapters.coap.context_files import make_context
from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.serving import SiteCaller, SiteRefusal, SiteRequest
from lamplighter.adapters.coap.settings import CoapDeviceSettings, CoapSettings
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.resource_commands import resource_command
from lamplighter.adapters.mapping.tables import ResourceCommandTable
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.states import STARTS_BURST, STARTS_PER_S
from lamplighter.engine.terms import literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.coap_gateway import EngineGateway
from tests.support.coap_peers import free_udp_port, libcoap_server
from tests.support.coap_wire import Faults, Network, run_virtual
from tests.support.event_loops import beside, until
from tests.support.oscore_devices import Device

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
BASE = "http://gateway.example/"
LAMP = f"<{BASE}actuator/hall>"
REAL = CoapSettings(networks=("127.0.0.0/8",), retry_min_s=0.05, retry_max_s=0.2)
VIRTUAL = CoapSettings(networks=("10.0.0.0/8",))
URI = "coap://10.0.1.1/lamp"
REPORTED = f"{LAMP} gateway:reportedState ?x"
ACKNOWLEDGED = f"{LAMP[:-1]}/actuation> sosa:hasSimpleResult ?x"
REFUSED = f"{LAMP[:-1]}/actuation> gateway:refused ?x"
DEVICE = f"<{BASE}device/coap/10.0.1.1~5683>"
LINKS = b'</lamp>;rt="light";if="core.a";ct=0'


def rules(*tables: dict[str, Any]) -> ResourceRules:
    made = [
        resource_command(
            msgspec.convert(table, ResourceCommandTable),
            prefixes=PREFIXES,
            base_iri=BASE,
            place=f"home.toml: command {number}",
        )
        for number, table in enumerate(tables, 1)
    ]
    return ResourceRules(commands=tuple(made))


def hall(**keys: Any) -> ResourceRules:
    return rules({"actuator": "actuator/hall", "resource": URI} | keys)


def desire(gateway: EngineGateway, state: str, actuator: str = LAMP) -> None:
    gateway.write(
        f"DELETE {{ {actuator} gateway:desiredState ?was }} INSERT {{ {actuator} gateway:desiredState {state} }} "
        f"WHERE {{ OPTIONAL {{ {actuator} gateway:desiredState ?was }} }}"
    )


class Lamp:
    """A device in memory. refuses: code and text instead of a success. received: methods, paths and bodies of what
    changes its state; at: when. states: by path. observers: whether Observe is offered."""

    def __init__(self, network: Network, host: str = "10.0.1.1") -> None:
        self.network, self.host = network, host
        self.refuses: tuple[Any, bytes] | None = None
        self.received: list[tuple[str, str, bytes]] = []
        self.formats: list[int | None] = []
        self.at: list[float] = []
        self.boots = 0
        self.offers_observe = False
        self.readable = True
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        self.states: dict[str, bytes] = {}
        self.changed = asyncio.Event()
        self.number = 1
        self.endpoint = self.network.endpoint(self.host, site=self)

    def set(self, path: str, body: bytes) -> None:
        self.states[path] = body
        self.number += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def render_to_pipe(self, pipe: Any) -> None:
        request = pipe.request
        path = "/".join(request.opt.uri_path)
        if request.code == aiocoap.GET:
            await self._get(pipe, path)
            return
        if self.refuses is not None:
            code, text = self.refuses
            pipe.add_response(aiocoap.Message(code=code, payload=text), is_last=True)
            return
        self.received.append((request.code.name, path, bytes(request.payload)))
        self.formats.append(None if request.opt.content_format is None else int(request.opt.content_format))
        self.at.append(asyncio.get_running_loop().time())
        self.set(path, bytes(request.payload))
        pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)

    async def _get(self, pipe: Any, path: str) -> None:
        if path == "boot":
            pipe.add_response(aiocoap.Message(code=aiocoap.CONTENT, payload=b"%d" % self.boots), is_last=True)
        elif not self.readable:
            pipe.add_response(aiocoap.Message(code=aiocoap.METHOD_NOT_ALLOWED), is_last=True)
        elif not self.offers_observe or pipe.request.opt.observe != 0:
            pipe.add_response(self._state(path), is_last=True)
        else:
            while True:
                changed, answer = self.changed, self._state(path)
                if answer.code != aiocoap.CONTENT:
                    pipe.add_response(answer, is_last=True)
                    return
                answer.opt.observe = self.number
                pipe.add_response(answer, is_last=False)
                await changed.wait()

    def _state(self, path: str) -> aiocoap.Message:
        if path not in self.states:
            return aiocoap.Message(code=aiocoap.NOT_FOUND)
        return aiocoap.Message(code=aiocoap.CONTENT, payload=self.states[path])


class Home:
    """A lamp, the gateway and the adapter, in virtual time."""

    def __init__(
        self, network: Network, settings: CoapSettings, files: ResourceRules, gateway: EngineGateway, *, dataset: bool
    ) -> None:
        self.network, self.gateway, self.lamp = network, gateway, Lamp(network)

        async def open_endpoint(settings: CoapSettings, counters: EndpointCounters) -> Endpoint:
            return network.endpoint("10.0.0.1", settings=settings)

        self.adapter = CoapAdapter(
            settings,
            AdapterContext(self.gateway, BASE, now=lambda: NOON),
            CoapMachine(interfaces=lambda: (), monotonic=asyncio.get_running_loop().time, open_endpoint=open_endpoint),
            files=files,
            rules=DatasetRules(BASE, kind="coap") if dataset else None,
        )


@asynccontextmanager
async def home(
    files: ResourceRules | None = None,
    settings: CoapSettings = VIRTUAL,
    *,
    dataset: bool = False,
    gateway: EngineGateway | None = None,
) -> AsyncIterator[Home]:
    """gateway: that of an earlier run."""
    found = Home(
        Network(1, Faults()),
        settings,
        ResourceRules() if files is None else files,
        gateway or EngineGateway(),
        dataset=dataset,
    )
    async with beside(found.adapter.run()) as task:
        await asyncio.sleep(1)
        yield found
        assert not task.done(), task.exception()


def virtually(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


# Readings.


@virtually
async def test_a_stream_that_is_read_is_not_posted_too_and_both_have_one_limit() -> None:
    t = {"property": "gateway:temperature", "payload": "number", "feature": "room"}
    read = {"stream": t | {"resource": "coap://10.0.1.1/t", "sensor": "sensor/t", "observe": "never", "poll_s": 1}}
    posted = {"stream": t | {"path": "posted/{n}", "sensor": "sensor/{n}"}}
    settings = replace(VIRTUAL, streams_max=2, server=CoapServerSettings(port=0))

    async def post(here: Home, name: str) -> str:
        assert here.adapter._running is not None and here.adapter._running.server is not None
        resource = here.adapter._running.server.posted.entry(("posted", name))
        assert resource is not None
        caller = SiteCaller(Origin(ip_address("10.0.1.1"), 5683))
        try:
            await resource.methods["POST"].handle(SiteRequest("POST", ("posted", name), caller, (), b"1", 0))
        except SiteRefusal as error:
            return str(error)
        return ""

    async with home(settings=settings, dataset=True) as here:
        for rule in (read, posted):
            here.gateway.write(f"INSERT DATA {{ [] a gateway:Mapping ; gateway:rule {literal(json.dumps(rule))} }}")
        here.lamp.states["t"] = b"20"
        await asyncio.sleep(5)
        assert "belongs to another source" in await post(here, "t")
        assert await post(here, "a") == ""
        assert "belongs to another source" in await post(here, "b")  # the third stream
        assert here.gateway.found("?o sosa:madeBySensor ?s ; sosa:hasSimpleResult ?x") == ["1", "20"]


# What is sent.


@virtually
async def test_a_rule_of_a_file_sends_its_payload_in_its_format_and_the_actuation_says_how() -> None:
    files = hall(content_format="json", payload='{"on": {json}}', state={"member": "on"})
    async with home(files) as here:
        desire(here.gateway, "true")
        await asyncio.sleep(1)
        assert here.lamp.received == [("PUT", "lamp", b'{"on": true}')]
        assert here.lamp.formats == [50]
        found = here.gateway.found
        assert found(ACKNOWLEDGED) == ["true"]
        assert found(f"{LAMP[:-1]}/actuation> gateway:cause ?x") == ["notification"]
        assert found(f"{LAMP[:-1]}/actuation> gateway:answer ?x") == ["2.04"]
        assert found(f"{LAMP[:-1]}/actuation> gateway:target ?x") == [URI]
        assert found(f"{LAMP[:-1]}/actuation> gateway:byRule ?x") == ["home.toml: command 1"]
        assert len(found(f"{LAMP[:-1]}/actuation> gateway:followed ?x")) == 1


@virtually
async def test_a_query_gives_each_of_its_rows_a_resource() -> None:
    query = (
        "SELECT ?actuator ?state ?n ?level WHERE "
        "{ ?actuator gateway:desiredState ?state ; <x:n> ?n OPTIONAL { ?actuator <x:l> ?level } }"
    )
    table = {
        "query": query,
        "resource": "coap://10.0.1.1/{n}",
        "content_format": "json",
        "payload": '{"on": {json}, "level": {level}}',
        "state": False,
    }
    async with home(rules(table)) as here:
        here.gateway.write(f"INSERT DATA {{ {LAMP} <x:n> 1, 2 ; <x:l> 5 ; gateway:desiredState true }}")
        await asyncio.sleep(1)
        assert sorted(here.lamp.received) == [
            ("PUT", "1", b'{"on": true, "level": 5}'),
            ("PUT", "2", b'{"on": true, "level": 5}'),
        ]
        here.gateway.write(f"DELETE DATA {{ {LAMP} <x:n> 2 ; <x:l> 5 }} ; INSERT DATA {{ {LAMP} <x:l> 6 }}")
        await asyncio.sleep(1)
        assert here.lamp.received[2:] == [("PUT", "1", b'{"on": true, "level": 6}')]
        assert here.adapter.status().startswith("1 actuator, 3 commands acknowledged")


@virtually
async def test_a_query_that_does_not_work_stops_no_other_rule() -> None:
    broken = {"resource": "coap://10.0.1.1/{n}", "state": False}
    tables = [broken | {"query": query} for query in ("SELECT ?actuator ?state { ?actuator <x:s> ?state }", "no query")]
    async with home(rules(*tables, {"actuator": "actuator/hall", "resource": URI})) as here:
        desire(here.gateway, "'ON'")
        await asyncio.sleep(1)
        assert here.lamp.received == [("PUT", "lamp", b"ON")]


@virtually
async def test_a_row_that_names_no_resource_is_counted_and_the_others_are_served() -> None:
    query = "SELECT ?actuator ?state ?uri { ?actuator gateway:desiredState ?state ; <x:uri> ?uri }"
    async with home(rules({"query": query, "resource": "{uri}", "state": False})) as here:
        other = f"<{BASE}actuator/other>"
        here.gateway.write(f"INSERT DATA {{ {LAMP} <x:uri> <{URI}> . {other} <x:uri> <http://10.0.1.1/lamp> }}")
        for actuator in (LAMP, other):
            desire(here.gateway, "'ON'", actuator)
        await asyncio.sleep(1)
        assert here.lamp.received == [("PUT", "lamp", b"ON")]
        assert here.adapter.counters.rejected_rows == 1


@virtually
async def test_coap_query_is_for_actuators_without_a_rule() -> None:
    other = f"<{BASE}actuator/other>"
    async with home(hall(payload="it is {value}", state=False)) as here:
        for actuator in (LAMP, other):
            here.gateway.write(f"INSERT DATA {{ {actuator} gateway:coapResource <coap://10.0.1.1/plain> }}")
            desire(here.gateway, "'ON'", actuator)
        await asyncio.sleep(1)
        assert sorted(here.lamp.received) == [("PUT", "lamp", b"it is ON"), ("PUT", "plain", b"ON")]
        here.adapter.remap(ResourceRules())
        desire(here.gateway, "'OFF'", other)
        await asyncio.sleep(1)
        assert here.lamp.received[-1] == ("PUT", "plain", b"OFF")  # of both actuators for it, the greatest holds


@virtually
async def test_a_reload_of_equal_rules_sends_nothing() -> None:
    async with home(hall()) as here:
        desire(here.gateway, "'ON'")
        await asyncio.sleep(1)
        here.adapter.remap(hall())
        await asyncio.sleep(1)
        assert len(here.lamp.received) == 1
        here.adapter.remap(hall(payload="now {value}"))
        desire(here.gateway, "'OFF'")
        await asyncio.sleep(1)
        assert here.lamp.received[-1] == ("PUT", "lamp", b"now OFF")


@virtually
async def test_a_rule_in_the_dataset_that_an_actuator_points_to_is_used() -> None:
    async with home(dataset=True) as here:
        rule = json.dumps({"command": {"resource": URI, "values": {"true": "1", "false": "0"}}})
        text = json.dumps(rule)
        here.gateway.write(
            f"INSERT DATA {{ <x:m> a gateway:Mapping ; gateway:rule {text} . {LAMP} gateway:command <x:m> }}"
        )
        desire(here.gateway, "true")
        await asyncio.sleep(1)
        assert here.lamp.received == [("PUT", "lamp", b"1")]
        await asyncio.sleep(1)
        assert here.gateway.found(REPORTED) == ["true"]


# What devices report.


@pytest.mark.parametrize("offers_observe", [True, False])
def test_a_device_that_is_switched_by_hand_is_switched_back(offers_observe: bool) -> None:
    async def test() -> None:
        async with home(hall()) as here:
            here.lamp.offers_observe = offers_observe
            desire(here.gateway, "'ON'")
            await asyncio.sleep(1)
            assert here.gateway.found(REPORTED) == ["ON"]
            here.lamp.set("lamp", b"OFF")
            await asyncio.sleep(70)
            assert here.lamp.states["lamp"] == b"ON"
            assert len(here.lamp.received) == 2
            assert here.gateway.found(REPORTED) == ["ON"]
            assert here.gateway.found(f"{LAMP[:-1]}/actuation> gateway:cause ?x") == ["client"]

    run_virtual(test())


@virtually
async def test_an_idle_street_writes_nothing() -> None:
    async with home(hall(reassert_s=10)) as here:
        desire(here.gateway, "'ON'")
        await asyncio.sleep(30)
        texts = len(here.gateway.texts)
        await asyncio.sleep(500)
        assert len(here.lamp.received) > 40
        assert [text for text in here.gateway.texts[texts:] if "counters" not in text] == []


@virtually
async def test_a_state_that_cannot_be_read_is_written_at_the_interval_of_the_settings() -> None:
    async with home(hall()) as here:
        here.lamp.readable = False
        desire(here.gateway, "'ON'")
        await asyncio.sleep(200)
        pauses = [after - before for before, after in zip(here.lamp.at, here.lamp.at[1:], strict=False)]
        assert len(pauses) == 3
        assert all(50 < pause < 70 for pause in pauses)


@virtually
async def test_a_device_whose_epoch_changes_gets_its_state_again() -> None:
    async with home(hall(epoch="/boot", state=False, reassert_s=0)) as here:
        desire(here.gateway, "'ON'")
        await asyncio.sleep(100)
        assert len(here.lamp.received) == 1
        here.lamp.boot()
        await asyncio.sleep(100)
        assert len(here.lamp.received) == 2


def test_a_device_that_always_says_that_it_started_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def booted() -> int:
        async with home(hall(epoch="/boot", state=False, reassert_s=0)) as here:
            desire(here.gateway, "'ON'")
            for _ in range(40):
                await asyncio.sleep(100)
                here.lamp.boot()
            await asyncio.sleep(100)
            return len(here.lamp.received)

    caplog.set_level("INFO")
    assert run_virtual(booted()) > 35
    logged = [one for one in caplog.records if "started again" in one.message]
    assert STARTS_BURST < len(logged) <= STARTS_BURST + 41 * 100 * STARTS_PER_S + 1


@virtually
async def test_a_restarted_adapter_checks_the_state_instead_of_writing_it() -> None:
    async with home(hall()) as here:
        here.lamp.set("lamp", b"ON")
        here.gateway.write(
            f"INSERT DATA {{ {LAMP} gateway:desiredState 'ON' . <x:a> sosa:madeByActuator {LAMP} ; "
            "sosa:hasSimpleResult 'ON' }"
        )
        desire(here.gateway, "'ON'")
        await asyncio.sleep(100)
        assert here.lamp.received == []
        assert here.gateway.found(REPORTED) == ["ON"]


# Refusals and absence.


@virtually
async def test_the_text_of_a_refusal_is_a_triple_until_the_device_takes_the_state() -> None:
    async with home(hall()) as here:
        here.lamp.refuses = (aiocoap.BAD_REQUEST, b"want json\n")
        desire(here.gateway, "'ON'")
        await asyncio.sleep(100)
        assert here.gateway.found(REFUSED) == ["4.00: want json"]
        assert sum("gateway#refused" in text for text in here.gateway.texts) == 1
        assert "1 refuse their state" in here.adapter.status()
        here.lamp.refuses = None
        await asyncio.sleep(60)
        assert here.gateway.found(REFUSED) == []
        assert here.gateway.found(ACKNOWLEDGED) == ["ON"]


@virtually
async def test_whether_a_device_answers_is_in_the_dataset() -> None:
    async with home(hall()) as here:
        here.network.carries = lambda source, target: False
        desire(here.gateway, "'ON'")
        await asyncio.sleep(30)
        found = here.gateway.found
        assert found(f"{DEVICE} gateway:online ?x") == ["false"]
        assert found(f"{DEVICE} gateway:unreachable ?x") == ["no answer"]
        assert found(f"{DEVICE} sosa:hosts ?x") == [LAMP.strip("<>")]
        assert found(f"{DEVICE} gateway:coapAddress ?x") == ["10.0.1.1"]
        assert "1 devices do not answer" in here.adapter.status()
        here.network.carries = lambda source, target: True
        await asyncio.sleep(60)
        assert found(f"{DEVICE} gateway:online ?x") == ["true"]
        assert found(f"{DEVICE} gateway:unreachable ?x") == []
        assert len(found(f"{DEVICE} gateway:lastSeen ?x")) == 1
        here.adapter.remap(ResourceRules())
        await asyncio.sleep(5)
        assert found(f"{DEVICE} ?p ?x") == []


def told(gateway: EngineGateway, device: str) -> dict[str, list[str]]:
    """What the default graph says of a device, without what rules and types say."""
    names = ("online", "lastSeen", "coapAddress", "unreachable", "adoption")
    found = {name: gateway.found(f"<{BASE}device/coap/{device}> gateway:{name} ?x") for name in names}
    return {name: texts for name, texts in found.items() if texts}


def of_address(gateway: EngineGateway) -> list[str]:
    """The devices with a state."""
    return gateway.found("?device gateway:coapAddress ?a BIND(STRAFTER(STR(?device), 'device/coap/') AS ?x)")


def entry(here: Home, identity: str) -> Entry:
    rows = here.gateway.engine.query(Registry(BASE).query)
    names = "announcement", "adoption", "name", "area"
    found = [Registry(BASE).entry([row.get(name) for name in names]) for row in rows]
    return next(one for one in found if one.identity == identity)


def adopt(here: Home, identity: str) -> str:
    """The IRI of its actuator."""
    found = entry(here, identity)
    here.gateway.write(Registry(BASE).adoption(found))
    return Registry(BASE).actuator_iri(found.device.actuators[0])


def discover(here: Home, base: str = "coap://10.0.1.1") -> None:
    device = propose(parse_links(LINKS), base=base, place=base).device
    assert device is not None
    here.gateway.write(str(Registry(BASE).announced(None, device, "ask")))


async def register(here: Home, host: str = "10.0.1.1") -> None:
    """The lamp registers itself."""
    assert here.adapter._running is not None and here.adapter._running.found is not None
    resource = here.adapter._running.found.site.entry(("rd",))
    assert resource is not None
    caller = SiteCaller(Origin(ip_address(host), 5683))
    await resource.methods["POST"].handle(SiteRequest("POST", ("rd",), caller, ("ep=hall", "lt=600"), LINKS, 40))


@virtually
async def test_a_device_with_a_rule_that_is_discovered_and_adopted_stays_one_resource() -> None:
    async with home(hall(), dataset=True) as here:
        desire(here.gateway, "'ON'")
        await asyncio.sleep(5)
        assert told(here.gateway, "10.0.1.1~5683")["online"] == ["true"]
        discover(here)
        own = adopt(here, "coap/10.0.1.1~5683")
        await asyncio.sleep(5)
        found = told(here.gateway, "10.0.1.1~5683")
        assert (found["online"], found["adoption"], found["coapAddress"]) == (["true"], ["adopted"], ["10.0.1.1"])
        assert set(here.gateway.found(f"{DEVICE} sosa:hosts ?x")) == {LAMP.strip("<>"), own.strip("<>")}
        here.adapter.remap(ResourceRules())
        await asyncio.sleep(5)
        assert here.gateway.found(f"{DEVICE} sosa:hosts ?x") == [own.strip("<>")]
        assert of_address(here.gateway) == ["10.0.1.1~5683"]
        here.gateway.write(Registry(BASE).removal(entry(here, "coap/10.0.1.1~5683")))
        await asyncio.sleep(5)
        assert here.gateway.found(f"{DEVICE} ?p ?x") == []


@virtually
async def test_a_device_that_registered_and_was_adopted_has_its_state_wherever_it_is() -> None:
    async with home(hall(), dataset=True) as here:
        desire(here.gateway, "'ON'")
        await asyncio.sleep(5)
        assert of_address(here.gateway) == ["10.0.1.1~5683"]
        await register(here)
        await asyncio.sleep(2)
        adopt(here, "coap/hall")
        await asyncio.sleep(5)
        assert of_address(here.gateway) == ["hall"] and told(here.gateway, "10.0.1.1~5683") == {}
        assert here.gateway.found(f"{DEVICE} ?p ?x") == []
        found = told(here.gateway, "hall")
        assert (found["online"], found["adoption"], found["coapAddress"]) == (["true"], ["adopted"], ["10.0.1.1"])
        hosted = here.gateway.found(f"<{BASE}device/coap/hall> sosa:hosts ?x")
        assert hosted == [f"{BASE}actuator/coap/hall/lamp", LAMP.strip("<>")]
        here.adapter.remap(ResourceRules())
        Lamp(here.network, "10.0.1.2")
        await register(here, "10.0.1.2")
        await asyncio.sleep(15)
        assert of_address(here.gateway) == ["hall"]
        found = told(here.gateway, "hall")
        assert (found["online"], found["coapAddress"]) == (["true"], ["10.0.1.2"])
        assert here.gateway.found(f"<{BASE}device/coap/hall> sosa:hosts ?x") == [f"{BASE}actuator/coap/hall/lamp"]
        here.network.carries = lambda source, target: False
        desire(here.gateway, "true", f"<{BASE}actuator/coap/hall/lamp>")
        await asyncio.sleep(60)
        found = told(here.gateway, "hall")
        assert (found["online"], found["unreachable"]) == (["false"], ["no answer"])
        assert [one.device for one in here.adapter.health().worst] == ["coap/hall"]
        await asyncio.sleep(700)  # its lifetime is over
        assert told(here.gateway, "hall")["online"] == ["false"]


@virtually
async def test_a_refusal_names_the_device_as_the_command_does() -> None:
    async with home(dataset=True) as here:
        discover(here)
        own = adopt(here, "coap/10.0.1.1~5683")
        here.lamp.refuses = aiocoap.BAD_REQUEST, b"want json"
        desire(here.gateway, "true", own)
        await asyncio.sleep(10)
        (one,) = here.adapter.health().worst
        assert (one.device, one.reason) == ("coap/10.0.1.1~5683", "/lamp: 4.00: want json")


@virtually
async def test_what_is_said_of_devices_whose_rules_went_while_the_adapter_was_stopped_goes_at_its_start() -> None:
    files = rules(*({"actuator": f"actuator/{n}", "resource": f"coap://10.0.1.{n}/lamp"} for n in (1, 2, 3)))
    async with home(files, dataset=True) as here:
        for n in (2, 3):
            Lamp(here.network, f"10.0.1.{n}")
        for n in (1, 2, 3):
            desire(here.gateway, "'ON'", f"<{BASE}actuator/{n}>")
        await asyncio.sleep(5)
        assert len(of_address(here.gateway)) == 3
        here.gateway.write(
            f"INSERT DATA {{ <{BASE}device/coap/10.0.1.1~5683> rdfs:label 'mine' . "
            f"<{BASE}device/other> gateway:coapAddress '10.0.1.1' }}"
        )
    kept = told(here.gateway, "10.0.1.3~5683")
    third = ResourceRules(commands=(files.commands[2],))
    async with home(third, gateway=here.gateway, dataset=True) as again:
        again.network.carries = lambda source, target: False  # the third one need not answer
        await asyncio.sleep(5)
        assert of_address(again.gateway) == ["", "10.0.1.3~5683"]
        assert told(again.gateway, "10.0.1.3~5683") == kept
        assert again.gateway.found(f"<{BASE}device/coap/10.0.1.2~5683> ?p ?x") == []
        assert again.gateway.found(f"<{BASE}device/coap/10.0.1.1~5683> ?p ?x") == ["mine"]


@virtually
async def test_a_post_without_an_answer_is_sent_once_and_the_actuation_says_so() -> None:
    async with home(hall(method="POST", state=False, reassert_s=5)) as here:
        here.network.carries = lambda source, target: source.place[0] != "10.0.1.1"
        desire(here.gateway, "'ON'")
        await asyncio.sleep(200)
        here.network.carries = lambda source, target: True
        await asyncio.sleep(200)
        assert here.lamp.received == [("POST", "lamp", b"ON")]
        assert here.gateway.found(REFUSED) == ["no answer"]
        desire(here.gateway, "'OFF'")
        await asyncio.sleep(100)
        assert here.lamp.received[1:] == [("POST", "lamp", b"OFF")]
        assert here.gateway.found(REFUSED) == []


@virtually
async def test_before_a_post_the_state_is_read() -> None:
    async with home(hall(method="POST")) as here:
        here.lamp.set("lamp", b"ON")
        desire(here.gateway, "'ON'")
        await asyncio.sleep(200)
        assert here.lamp.received == []
        assert here.gateway.found(ACKNOWLEDGED) == ["ON"]
        desire(here.gateway, "'OFF'")
        await asyncio.sleep(200)
        assert here.lamp.received == [("POST", "lamp", b"OFF")]


# libcoap.


@asynccontextmanager
async def real(files: ResourceRules, settings: CoapSettings = REAL) -> AsyncIterator[EngineGateway]:
    gateway = EngineGateway()
    async with beside(CoapAdapter(settings, AdapterContext(gateway, BASE), CoapMachine(), files=files).run()) as task:
        yield gateway
        assert not task.done(), task.exception()


@pytest.mark.parametrize("observe", ["auto", "never"])
async def test_a_rebooted_libcoap_lamp_gets_its_state_within_its_interval_without_a_command(observe: str) -> None:
    with libcoap_server() as server:
        table = {"actuator": "actuator/hall", "resource": server.uri("lamp"), "reassert_s": 1, "observe": observe}
        async with real(rules(table)) as gateway:
            desire(gateway, "'ON'")
            await until(lambda: gateway.found(ACKNOWLEDGED) == ["ON"])
            for _ in range(2):
                server.stop()
                await asyncio.to_thread(server.start)
                assert server.get("lamp") in ("", "ON")
                await until(lambda: server.get("lamp") == "ON")


async def test_a_libcoap_lamp_that_is_switched_by_another_client_is_switched_back() -> None:
    with libcoap_server() as server:
        async with real(rules({"actuator": "actuator/hall", "resource": server.uri("lamp")})) as gateway:
            desire(gateway, "'ON'")
            await until(lambda: gateway.found(REPORTED) == ["ON"])
            context = await aiocoap.Context.create_client_context(transports=["simple6"])
            try:
                message = aiocoap.Message(code=aiocoap.PUT, uri=server.uri("lamp"), payload=b"OFF")
                await context.request(message).response
            finally:
                await context.shutdown()
            await until(lambda: gateway.found(f"{LAMP[:-1]}/actuation> gateway:cause ?x") == ["client"])
            assert server.get("lamp") == "ON"


async def test_a_device_that_needs_a_key_is_sent_nothing() -> None:
    with libcoap_server() as server:
        files = rules({"actuator": "actuator/hall", "resource": server.uri("lamp")})
        async with real(files, replace(REAL, plain=())) as gateway:
            desire(gateway, "'ON'")
            await until(lambda: len(gateway.found(REFUSED)) == 1)
            assert "coap.plain" in gateway.found(REFUSED)[0]
            assert server.get("lamp") == ""


class ServerAt(NamedTuple):
    host: str
    port: int
    requests_max: int


class KeyedLamp:
    """A lamp that takes only requests that its key protects. plain: requests that were not protected."""

    def __init__(self, folder: Path, half: dict[str, str]) -> None:
        self.device, self.state, self.plain = Device(folder, half), b"", 0

    async def render_to_pipe(self, pipe: Any) -> None:
        if pipe.request.opt.oscore is None:
            self.plain += 1
            pipe.add_response(aiocoap.Message(code=aiocoap.UNAUTHORIZED), is_last=True)
            return
        request, key = self.device.context.unprotect(pipe.request)
        if request.code == aiocoap.PUT:
            self.state = bytes(request.payload)
            answer = aiocoap.Message(code=aiocoap.CHANGED)
        else:
            answer = aiocoap.Message(code=aiocoap.CONTENT, payload=self.state)
        sealed, _ = self.device.context.protect(answer, key)
        pipe.add_response(sealed, is_last=True)


async def test_a_device_with_a_key_gets_protected_requests_only(tmp_path: Path) -> None:
    port = free_udp_port()
    lamp = KeyedLamp(tmp_path / "lamp", make_context(tmp_path / "contexts", "hall", f"127.0.0.1:{port}"))
    endpoint = await Endpoint.server(ServerAt("127.0.0.1", port, 200), lamp, EndpointCounters())
    files = rules({"actuator": "actuator/hall", "resource": f"coap://127.0.0.1:{port}/lamp"})
    gateway = EngineGateway()
    try:
        for state in ("ON", "OFF"):  # and by another run of the adapter
            adapter = CoapAdapter(
                REAL, AdapterContext(gateway), CoapMachine(tmp_path / "contexts", secure=True), files=files
            )
            async with beside(adapter.run()):
                desire(gateway, f"'{state}'")
                await until(lambda state=state: gateway.found(REPORTED) == [state])  # type: ignore[misc]
                assert gateway.found(ACKNOWLEDGED) == [state]
        assert lamp.plain == 0
    finally:
        await endpoint.close()
        lamp.device.context._destroy()


async def test_a_key_that_is_made_while_the_adapter_runs_is_used_at_once(tmp_path: Path) -> None:
    port = free_udp_port()
    with libcoap_server() as server:  # a device without a key, whose requests go on
        files = rules(
            {"actuator": "actuator/hall", "resource": f"coap://127.0.0.1:{port}/lamp"},
            {"actuator": "actuator/stairs", "resource": server.uri("lamp")},
        )
        settings = replace(
            REAL, devices={"stairs": CoapDeviceSettings(address=f"127.0.0.1:{server.port}", security="plain")}
        )
        gateway = EngineGateway()
        adapter = CoapAdapter(
            settings, AdapterContext(gateway), CoapMachine(tmp_path / "contexts", secure=True), files=files
        )
        async with beside(adapter.run()):
            desire(gateway, "'ON'")
            await until(lambda: len(gateway.found(REFUSED)) == 1)
            half = make_context(tmp_path / "contexts", "hall", f"127.0.0.1:{port}")
            lamp = KeyedLamp(tmp_path / "lamp", half)
            endpoint = await Endpoint.server(ServerAt("127.0.0.1", port, 200), lamp, EndpointCounters())
            try:
                await until(lambda: gateway.found(REPORTED) == ["ON"])
                assert (lamp.plain, lamp.state) == (0, b"ON")
                desire(gateway, "'ON'", f"<{BASE}actuator/stairs>")
                await until(lambda: server.get("lamp") == "ON")
            finally:
                await endpoint.close()
                lamp.device.context._destroy()
