"""Sensors: simulated ones in virtual time, and libcoap's server and an aiocoap process across their restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import aiocoap
import msgspec
import pytest

from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.observations import ObservingExchanges
from lamplighter.adapters.coap.settings import CoapDeviceSettings, CoapSettings
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.dropped import DropWarnings
from lamplighter.adapters.devices.intervals import REPORTS_MIN
from lamplighter.adapters.mapping import ResourceRule, ResourceTable
from lamplighter.adapters.model.commits import StreamOwners
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources import sensors as module
from lamplighter.adapters.resources.basis import AdapterBasis
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.exchange import DeviceRequest
from lamplighter.adapters.resources.sensors import ResourceSensors
from lamplighter.engine.client import MessagePlace, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.coap_peers import free_udp_port, libcoap_server
from tests.support.coap_sensor import sensor_process
from tests.support.coap_wire import Faults, Network, WireSensor, run_virtual
from tests.support.desired_states import StatesGateway
from tests.support.event_loops import beside, until
from tests.support.mapping_rules import BASE, EX, NOON
from tests.support.tables import each_row

VIRTUAL = CoapSettings(networks=("10.0.0.0/8",))
REAL = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=5, retry_min_s=0.01, retry_max_s=0.1)


class Gateway(StatesGateway):
    """open: it answers while set; causes: topics of the updates."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[int] = []

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        await self.open.wait()
        self.batches.append(len(requests))
        return await super().updates(requests)

    def value(self, sensor: str) -> str | None:
        """The live result of a sensor."""
        found = self.found(f"?o sosa:madeBySensor <{BASE}sensor/{sensor}> ; sosa:hasSimpleResult ?x")
        return found[0] if found else None


class Contacts:
    """What the adapter was told of devices."""

    def __init__(self) -> None:
        self.online: dict[str, bool] = {}
        self.reasons: list[str] = []

    def heard(self, authority: str, at: datetime | None = None) -> None:
        self.online[authority] = True

    def failed(self, authority: str, resource: str, reason: str) -> None:
        self.online[authority] = False
        self.reasons.append(f"{resource}: {reason}")

    withheld = failed


class Parts:
    """Sensors with what surrounds them."""

    def __init__(
        self,
        exchanges: ObservingExchanges,
        *,
        elapsed: Callable[[], float] = time.monotonic,
        last: LastMessages | None = None,
        **keys: Any,
    ) -> None:
        """keys: of the settings."""
        self.gateway, self.contacts, self.problems = Gateway(), Contacts(), list[Problem]()
        settings = msgspec.structs.replace(exchanges.settings, **{"streams_max": 100, **keys})
        client: Any = self.gateway
        context = AdapterContext(client, now=exchanges.now, last=last or LastMessages())
        warnings = DropWarnings("coap", self.problems.append, sources=("coap", "coap"))
        owners = StreamOwners(settings.streams_max, warnings.reading, kind="coap")
        counters = ResourceCounters()
        basis = AdapterBasis("coap", settings, context, counters, None, warnings, owners)
        self.observations = counters.observations
        self.sensors = ResourceSensors(exchanges, basis, self.contacts, elapsed=elapsed)

    @property
    def reasons(self) -> list[str]:
        return [f"{problem.topic}: {problem.reason}" for problem in self.problems]

    @property
    def counts(self) -> dict[str, int]:
        return self.sensors.counters.counts()


def rule(resource: str, place: str = "", **keys: Any) -> ResourceRule:
    table = {"resource": resource, "property": "ex:level", "payload": "number"} | keys
    place = place or f"rule of {resource}"
    return ResourceRule(
        msgspec.convert(table, ResourceTable), prefixes=PREFIXES | {"ex": EX}, base_iri=BASE, place=place
    )


@asynccontextmanager
async def simulated(
    network: Network, rules: Sequence[ResourceRule], settings: CoapSettings = VIRTUAL, **options: Any
) -> AsyncIterator[Parts]:
    """Sensors over a network in memory. Time is the loop's."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    def now() -> datetime:
        return NOON + timedelta(seconds=loop.time() - began)

    exchanges = ObservingExchanges(
        network.endpoint("10.0.0.1", settings=settings),
        Networks(settings.networks, "coap.networks"),
        settings,
        now=now,
    )
    parts = Parts(exchanges, elapsed=loop.time, **options)
    parts.sensors.change_rules(rules)
    async with beside(parts.sensors.run()) as running:
        yield parts
        assert not running.done()


def uri(n: int, path: str = "value") -> str:
    return f"coap://10.0.1.{n}/{path}"


# Observing and polling.


def test_notifications_are_the_live_observation_and_old_ones_are_dropped() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"20")
        async with simulated(network, [rule(uri(1), unit="Cel")]) as parts:
            await asyncio.sleep(1)
            assert parts.gateway.value("10.0.1.1/value") == "20"
            for state, ahead in ((b"21", 1), (b"22", 2), (b"19", -1), (b"18", -1)):
                device.state = state
                device.notify(ahead)
                await asyncio.sleep(1)
            assert parts.gateway.value("10.0.1.1/value") == "22"
            assert parts.observations.notifications_outdated == 2
            assert parts.gateway.found("?o sosa:resultTime ?x") == ["2026-11-21T12:00:02.0001Z"]
            assert parts.gateway.found("?s gateway:mqttTopic ?x") == [uri(1)]
            assert parts.sensors.states() == (1, 0, 0, 0, 0)
            assert parts.contacts.online == {"10.0.1.1": True}
            assert parts.problems == []

    run_virtual(observed())


def test_the_last_state_is_kept_readable_or_not() -> None:
    async def kept() -> None:
        network, last = Network(1, Faults()), LastMessages()
        device = WireSensor(network, "10.0.1.1", b"20")
        async with simulated(network, [rule(uri(1), unit="Cel")], last=last):
            await asyncio.sleep(1)
            for state in (b"21", b"warm"):
                device.state = state
                device.notify(1)
                await asyncio.sleep(1)
                [found] = last.find([MessagePlace(uri(1))])
                assert (found.payload, found.content_format) == (state, None)

    run_virtual(kept())


def test_a_sensor_without_observe_is_polled() -> None:
    async def polled() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"1", observable=False)
        never = WireSensor(network, "10.0.1.2", b"1")
        rules = [rule(uri(1), poll_s=10), rule(uri(2), poll_s=10, observe="never")]
        async with simulated(network, rules) as parts:
            for n in range(1, 6):
                device.state = never.state = b"%d" % n
                await asyncio.sleep(10)
                assert parts.gateway.value("10.0.1.1/value") == str(n)
                assert parts.gateway.value("10.0.1.2/value") == str(n)
            assert parts.sensors.states().polled == 2
            assert {observe for _, observe in never.requests} == {None}
            assert parts.observations.polls >= 8

    run_virtual(polled())


@each_row("seed", range(1, 4), is_amount=True)
def test_over_a_lossy_network_with_reboots_each_reading_is_the_newest(seed: int) -> None:
    async def observed() -> None:
        random, network = Random(seed), Network(seed, Faults(0.3, 0.1, 0.5))
        devices = [WireSensor(network, f"10.0.1.{n}") for n in range(20)]
        async with simulated(network, [rule(uri(n)) for n in range(20)]) as parts:
            loop = asyncio.get_running_loop()
            while loop.time() < 300:
                await asyncio.sleep(random.uniform(0, 2))
                device = random.choice(devices)
                device.change(b"%d" % (int(device.state) + 1))
                if random.random() < 0.1:
                    random.choice(devices).boot()
            await asyncio.sleep(180)
            found = [parts.gateway.value(f"10.0.1.{n}/value") for n in range(20)]
            assert found == [device.state.decode() for device in devices]
            assert parts.observations.observations_renewed > 20
            assert parts.observations.notifications_outdated > 0

    run_virtual(observed())


def test_states_of_a_turn_are_written_together() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        devices = [WireSensor(network, f"10.0.1.{n}") for n in range(100)]
        async with simulated(network, [rule(uri(n)) for n in range(100)]) as parts:
            await asyncio.sleep(5)
            parts.gateway.batches.clear()
            for device in devices:
                device.change(b"7")
            await asyncio.sleep(1)
            assert parts.gateway.batches == [100]
            assert parts.counts["readings"] == 200

    run_virtual(observed())


def test_the_keys_for_repeats_are_as_over_mqtt() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        devices = [WireSensor(network, f"10.0.1.{n}", b"20") for n in range(3)]
        rules = [rule(uri(0), on_repeat="ignore"), rule(uri(1), dead_band=2), rule(uri(2), throttle_s=60)]
        async with simulated(network, rules) as parts:
            await asyncio.sleep(1)
            for device in devices:
                for state in (b"20.0", b"21"):
                    device.change(state)
                    await asyncio.sleep(1)
            assert [parts.gateway.value(f"10.0.1.{n}/value") for n in range(3)] == ["21", "20", "20"]
            await asyncio.sleep(60)
            assert parts.gateway.value("10.0.1.2/value") == "21"
            assert parts.counts["readings_repeated"] > 0

    run_virtual(observed())


def test_events_are_observations_of_their_own() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"1")
        async with simulated(network, [rule(uri(1))], model="event", events_kept=2) as parts:
            await asyncio.sleep(1)
            for state in (b"2", b"3"):
                device.change(state)
                await asyncio.sleep(1)
            assert parts.gateway.found("GRAPH ?g { ?o sosa:hasSimpleResult ?x }") == ["2", "3"]

    run_virtual(observed())


# Problems.


def test_a_state_that_cannot_be_read_is_a_problem_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"1")
        async with simulated(network, [rule(uri(1))]) as parts:
            await asyncio.sleep(1)
            device.content_format = 42
            for n in range(5):
                device.change(b"%d" % n)
                await asyncio.sleep(1)
            device.content_format = None
            device.change(b"warm")
            await asyncio.sleep(1)
            assert parts.counts["readings_unreadable"] == len(parts.problems) == 6
            assert parts.problems[0] == Problem("coap", "", uri(1), parts.problems[0].reason)
            assert "content format" in parts.problems[0].reason
            assert "number" in parts.problems[5].reason
            assert parts.gateway.value("10.0.1.1/value") == "1"

    run_virtual(observed())
    assert sum("coap reading dropped" in record.getMessage() for record in caplog.records) == 2


def test_a_refusal_is_a_problem_with_the_text_of_the_device() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"no such resource")
        device.code = aiocoap.NOT_FOUND
        async with simulated(network, [rule(uri(1))]) as parts:
            await asyncio.sleep(5)
            assert parts.reasons == [f"{uri(1)}: 4.04 no such resource"]
            assert parts.sensors.states().refused == 1
            assert parts.contacts.online == {"10.0.1.1": True}
            assert parts.gateway.updated == 0
            device.code, device.state = aiocoap.CONTENT, b"5"
            await asyncio.sleep(60)
            assert parts.gateway.value("10.0.1.1/value") == "5"

    run_virtual(observed())


def test_a_stream_belongs_to_the_first_rule_that_reads_it() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        WireSensor(network, "10.0.1.1", b"1")
        rules = [rule(uri(1), place="first", sensor="s", feature="f"), rule(uri(1, "b"), sensor="s", feature="f")]
        async with simulated(network, rules) as parts:
            await asyncio.sleep(2)
            assert parts.counts["readings"] == parts.counts["readings_refused"] == 1
            assert "by first" in parts.reasons[0]

    run_virtual(observed())


def test_more_resources_than_allowed_are_a_problem() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        devices = [WireSensor(network, f"10.0.1.{n}", b"1") for n in range(3)]
        async with simulated(network, [rule(uri(n)) for n in range(3)], resources_max=2) as parts:
            await asyncio.sleep(2)
            assert [device.observers for device in devices] == [1, 1, 0]
            assert "coap.resources_max" in parts.reasons[0]

    run_virtual(observed())


def test_a_device_outside_of_the_networks_is_a_problem_without_their_addresses() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"1")
        settings = CoapSettings(networks=("192.168.0.0/16",))
        async with simulated(network, [rule(uri(1))], settings) as parts:
            await asyncio.sleep(5)
            [reason] = parts.reasons
            assert "coap.networks" in reason and "192.168" not in reason
            assert "192.168.0.0/16" in parts.contacts.reasons[0]
            assert device.requests == []

    run_virtual(observed())


# Rules that change.


def test_rules_for_one_resource_share_an_observation() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b'{"t": 21, "h": 40}')
        device.content_format = 50
        keys = {"accept": "json", "poll_s": 60}
        rules = [
            rule(uri(1), "t", member="t", sensor="t", **keys),
            rule(uri(1), "h", member="h", sensor="h", **keys | {"poll_s": 5}),
        ]
        async with simulated(network, rules) as parts:
            await asyncio.sleep(2)
            assert (parts.gateway.value("")) is None
            found = parts.gateway.found("?o sosa:hasSimpleResult ?x")
            assert found == ["21", "40"]
            assert device.requests == [("value", 0)]
            assert parts.reasons == [f"{uri(1)}: h: observe, poll_s and max_age_s are those of t"]

    run_virtual(observed())


def test_rules_change_while_their_sensors_are_observed() -> None:
    """A resource without a rule is not observed any more, one that stays is not registered again, and one with another
    reading is asked for its state."""

    async def observed() -> None:
        network = Network(1, Faults())
        devices = [WireSensor(network, f"10.0.1.{n}", b"1") for n in range(4)]
        async with simulated(network, [rule(uri(n)) for n in range(3)]) as parts:
            await asyncio.sleep(2)
            parts.sensors.change_rules([rule(uri(1)), rule(uri(2), scale=10), rule(uri(3))])
            await asyncio.sleep(2)
            assert [device.observers for device in devices] == [0, 1, 1, 1]
            assert [observe for _, observe in devices[0].requests] == [0, 1]
            assert [observe for _, observe in devices[1].requests] == [0]
            assert [parts.gateway.value(f"10.0.1.{n}/value") for n in range(4)] == ["1", "1", "10", "1"]
            assert parts.sensors.hosted("10.0.1.0") is None
            assert parts.sensors.hosted("10.0.1.3") == {f"<{BASE}sensor/10.0.1.3/value>"}
            parts.sensors.change_rules([])
            await asyncio.sleep(2)
            assert [device.observers for device in devices] == [0, 0, 0, 0]
            assert parts.sensors.status() == ""

    run_virtual(observed())


def test_another_unit_describes_the_stream_again() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        WireSensor(network, "10.0.1.1", b"1")
        async with simulated(network, [rule(uri(1), unit="Cel")]) as parts:
            await asyncio.sleep(2)
            parts.sensors.change_rules([rule(uri(1), unit="K")])
            await asyncio.sleep(2)
            assert [unit.rpartition("/")[2] for unit in parts.gateway.found("?s qudt:hasUnit ?x")] == ["K"]

    run_virtual(observed())


# The gateway, and devices that do not answer.


def test_states_that_are_too_many_for_a_gateway_that_is_away_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STATES_MAX", 5)

    async def observed() -> None:
        network = Network(1, Faults())
        devices = [WireSensor(network, f"10.0.1.{n}") for n in range(20)]
        async with simulated(network, [rule(uri(n)) for n in range(20)]) as parts:
            await asyncio.sleep(5)
            parts.gateway.open.clear()
            for n in range(1, 4):
                for device in devices:
                    device.change(b"%d" % n)
                await asyncio.sleep(1)
            assert parts.sensors.counters.missed > 20
            parts.gateway.open.set()
            await asyncio.sleep(5)
            assert [parts.gateway.value(f"10.0.1.{n}/value") for n in range(20)] == ["3"] * 20

    run_virtual(observed())


def test_a_device_that_does_not_answer_is_reported_and_so_is_its_return() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"1")
        async with simulated(network, [rule(uri(1))]) as parts:
            await asyncio.sleep(2)
            network.carries = lambda source, target: False
            await asyncio.sleep(120)
            assert parts.contacts.online == {"10.0.1.1": False}
            assert parts.contacts.reasons == [f"{uri(1)}: no answer"]
            assert parts.sensors.states() == (0, 0, 1, 0, 1)
            assert parts.sensors.status() == ", 1 sensor resource, 1 of them unreachable, 1 reading committed"
            network.carries = lambda source, target: True
            device.change(b"2")
            await asyncio.sleep(60)
            assert parts.contacts.online == {"10.0.1.1": True}
            assert parts.gateway.value("10.0.1.1/value") == "2"

    run_virtual(observed())


def test_max_age_of_the_rule_or_of_the_device_decides_when_a_silent_device_is_asked() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        WireSensor(network, "10.0.1.1", b"1").max_age = 86_400
        WireSensor(network, "10.0.1.2", b"1").max_age = 86_400
        device = CoapDeviceSettings(address="10.0.1.2", security="plain", max_age_s=20)
        settings = CoapSettings(networks=VIRTUAL.networks, devices={"two": device})
        async with simulated(network, [rule(uri(1), max_age_s=20), rule(uri(2))], settings) as parts:
            await asyncio.sleep(2)
            network.carries = lambda source, target: False
            await asyncio.sleep(120)
            assert parts.contacts.online == {"10.0.1.1": False, "10.0.1.2": False}

    run_virtual(observed())


def test_a_device_that_misses_its_learned_intervals_is_asked_before_max_age() -> None:
    async def observed() -> None:
        network = Network(1, Faults())
        device = WireSensor(network, "10.0.1.1", b"1")
        device.max_age = 86_400
        async with simulated(network, [rule(uri(1))]) as parts:
            for n in range(REPORTS_MIN + 3):
                device.change(b"%d" % n)
                await asyncio.sleep(10)
            asked = len(device.requests)
            await asyncio.sleep(50)
            assert len(device.requests) == asked + 1  # it answers, so it is online
            assert parts.contacts.online == {"10.0.1.1": True}
            for n in range(REPORTS_MIN + 3):
                device.change(b"%d" % n)
                await asyncio.sleep(10)
            network.carries = lambda source, target: False
            await asyncio.sleep(180)
            assert parts.contacts.online == {"10.0.1.1": False}

    run_virtual(observed())


def test_the_end_of_the_client_ends_the_sensors() -> None:
    class Closed(Gateway):
        async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
            raise UpstreamError("the client is closed")

    async def observed() -> None:
        network = Network(1, Faults())
        WireSensor(network, "10.0.1.1", b"1")
        parts = Parts(
            ObservingExchanges(network.endpoint("10.0.0.1"), Networks(VIRTUAL.networks, "coap.networks"), VIRTUAL)
        )
        client: Any = Closed()
        parts.sensors._commits._client = client
        parts.sensors.change_rules([rule(uri(1))])
        with pytest.raises(ExceptionGroup) as caught:
            await parts.sensors.run()
        assert caught.group_contains(UpstreamError)

    run_virtual(observed())


# Real devices.


@asynccontextmanager
async def real(rules: Sequence[ResourceRule]) -> AsyncIterator[tuple[Parts, ObservingExchanges]]:
    endpoint = await Endpoint.client(REAL, EndpointCounters())
    try:
        exchanges = ObservingExchanges(endpoint, Networks(REAL.networks, "coap.networks"), REAL)
        parts = Parts(exchanges)
        parts.sensors.change_rules(rules)
        async with beside(parts.sensors.run()):
            yield parts, exchanges
    finally:
        await endpoint.close()


@pytest.mark.faults  # the sensor is silent for Max-Age and some seconds
async def test_libcoap_sensors_are_observed_across_their_restart() -> None:
    """/time changes by itself; a resource that was PUT is lost at the restart."""
    with libcoap_server() as device:
        made = device.uri("meter")
        rules = [rule(device.uri("time"), payload="text"), rule(made, max_age_s=0.1)]
        async with real(rules) as (parts, exchanges):
            name = f"127.0.0.1~{device.port}"

            async def put(state: bytes) -> None:
                assert (await exchanges.request(DeviceRequest(made, "PUT", state, 0))).successful

            for boot in (b"1", b"2"):
                await until(lambda: any(": 4.04" in reason for reason in parts.reasons))
                await put(boot)
                await until(lambda boot=boot: parts.gateway.value(f"{name}/meter") == boot.decode())
                before = parts.gateway.value(f"{name}/time")
                await until(lambda before=before: parts.gateway.value(f"{name}/time") != before)
                parts.problems.clear()
                device.stop()
                device.start()
            assert parts.observations.notifications > 0


@pytest.mark.faults  # the sensor is silent for Max-Age and some seconds
async def test_an_aiocoap_sensor_is_read_across_its_restart() -> None:
    port = free_udp_port()
    async with real([rule(f"coap://127.0.0.1:{port}/count")]) as (parts, _):
        for first in (1_000, 500_000, 5_000):
            with sensor_process(port, first):

                def counts(first: int = first) -> bool:
                    value = parts.gateway.value(f"127.0.0.1~{port}/count")
                    return value is not None and first + 3 <= int(value) < first + 400_000

                await until(counts)
            await until(lambda: parts.contacts.online == {f"127.0.0.1:{port}": False})
        assert parts.counts["readings"] > 9
        assert datetime.fromisoformat(parts.gateway.found("?o sosa:resultTime ?x")[0]) < datetime.now(UTC)
