"""CoAP devices that are found: by multicast on the loopback interface, by address, and by their registrations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import aiocoap
import pytest

from lamplighter.adapters.coap.directory import Registration
from lamplighter.adapters.coap.discovering import (
    GROUPS,
    CoapDiscovering,
    Searcher,
    machine_interfaces,
    of_registration,
)
from lamplighter.adapters.coap.discovery import Proposal, device_to_propose, distinct, propose
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.exchanges import Exchanges
from lamplighter.adapters.coap.links import Link, parse_links
from lamplighter.adapters.coap.names import DeviceNames
from lamplighter.adapters.coap.registrations import Event
from lamplighter.adapters.coap.server_settings import CoapDiscoverySettings
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.exchange import DeviceAnswer, DeviceRequest
from lamplighter.engine.errors import PayloadError, UpstreamError
from tests.support.coap_peers import libcoap_server
from tests.support.desired_states import BASE, StatesGateway
from tests.support.event_loops import beside, settled, until

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
PATIENT = CoapSettings(ack_timeout_s=60, answer_timeout_s=100)
LAMP = b'</lamp>;rt="light";if="core.a";ct=0'
HALL = Link("/lamp", (("rt", "light"), ("if", "core.a"), ("ct", "0")))


# --- searching ---


@asynccontextmanager
async def searching(port: int, *networks: str) -> AsyncIterator[Searcher]:
    permitted = Networks(networks, "coap.networks")
    endpoint = await Endpoint.client(PATIENT, EndpointCounters())
    try:
        yield Searcher(
            endpoint, Exchanges(endpoint, permitted, PATIENT), permitted, interfaces=lambda: ["lo", "gone"], port=port
        )
    finally:
        await endpoint.close()


async def test_a_device_on_the_network_is_found_by_multicast_and_by_its_address() -> None:
    with libcoap_server(everywhere=True, options=["-G", "lo", "-g", "224.0.1.187"]) as server:
        async with searching(server.port, "0.0.0.0/0") as searcher:  # it may answer from another interface
            found = list[Proposal]()
            while not found:  # libcoap answers after up to 5 s; a datagram may be lost
                found = list(await searcher.everywhere(seconds=6))
            device = found[0].device
            assert device is not None and device.identity.endswith(f"~{server.port}")
            assert f"{device.broker}/time" in {sensor.table["resource"] for sensor in device.sensors}
            for spelling in (device.broker.removeprefix("coap://"), f"{device.broker}/.well-known/core"):
                assert (await searcher.at(spelling)).device == device


async def test_addresses_outside_of_the_networks_are_not_asked() -> None:
    async with searching(5683, "127.0.0.0/8") as searcher:
        with pytest.raises(PayloadError, match=r"coap\.networks"):
            await searcher.at("192.0.2.1")
        with pytest.raises(PayloadError, match="multicast"):
            await searcher.at("224.0.1.187")
        with pytest.raises(PayloadError, match="DTLS"):
            await searcher.at("coaps://127.0.0.1")


def test_the_interfaces_of_the_machine_are_known() -> None:
    assert "lo" in machine_interfaces()


@dataclass
class Remote:
    sockaddr: tuple[str, int, int, int]


@dataclass
class Heard:
    """Endpoint and exchanges of a network: what devices answer to multicast, and when they are asked alone."""

    answers: list[aiocoap.Message] = field(default_factory=list)
    alone: dict[str, DeviceAnswer] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)

    def address(self, group: Any, port: int, interface: int) -> Any:
        return group, port, interface

    async def collect(self, message: aiocoap.Message, seconds: float, permits: Any) -> list[aiocoap.Message]:
        self.asked.append(message.remote)
        return [answer for answer in self.answers if permits(answer.remote)]

    async def request(self, request: DeviceRequest) -> DeviceAnswer:
        assert request.retried  # it leaves half of the slots free
        if request.uri not in self.alone:
            raise UpstreamError("no answer")
        return self.alone[request.uri]


def answer(ip: str, text: bytes = LAMP, port: int = 5683, **options: Any) -> aiocoap.Message:
    message = aiocoap.Message(code=aiocoap.CONTENT, payload=text)
    message.remote = Remote((ip, port, 0, 0))
    for name, value in ({"content_format": 40} | options).items():
        setattr(message.opt, name, value)
    return message


def searcher(heard: Any, *networks: str) -> Searcher:
    return Searcher(heard, heard, Networks(networks, "coap.networks"), interfaces=lambda: ["lo"])


async def test_each_device_is_found_once_and_only_within_the_networks() -> None:
    heard = Heard([answer("::ffff:192.168.7.20"), answer("fd00::1", port=61616), answer("::ffff:192.0.2.1")])
    found = await searcher(heard, "192.168.7.0/24", "fd00::/8").everywhere()
    assert [group for group, _, _ in heard.asked] == list(GROUPS)
    devices = [device.broker for device, *_ in found if device is not None]
    assert devices == ["coap://192.168.7.20", "coap://[fd00::1]:61616"]


async def test_links_that_do_not_fit_into_a_datagram_are_asked_for() -> None:
    whole = DeviceAnswer("2.05", LAMP + b',</fan>;rt="fan";if="core.a"', 40, None, None, NOON, NOON)
    heard = Heard(
        [answer(f"::ffff:192.168.7.{n}", block2=(0, True, 2)) for n in (20, 21)],
        {"coap://192.168.7.20/.well-known/core": whole},
    )
    first, second = await searcher(heard, "192.168.7.0/24").everywhere()
    assert first.device is not None and len(first.device.actuators) == 2
    assert second.device is None and [one.reason for one in second.problems] == ["no answer"]


@pytest.mark.parametrize("text", [b"<", b"\xff", b"</a>" + b",</a>" * 2_000, b'</a>;x="' + b"y" * 3_000 + b'"'])
async def test_hostile_links_are_a_problem_of_their_device(text: bytes) -> None:
    heard = Heard([answer("::ffff:192.168.7.20", text), answer("::ffff:192.168.7.21"), answer("fe80::1", LAMP)])
    found = await searcher(heard, "192.168.7.0/24", "fe80::/10").everywhere()
    assert [device.broker for device, *_ in found if device is not None] == ["coap://192.168.7.21"]
    assert sum(bool(one.problems) for one in found) == 2


async def test_other_answers_are_a_problem_of_their_device() -> None:
    heard = Heard([answer("::ffff:192.168.7.20", content_format=0)])
    (one,) = await searcher(heard, "192.168.7.0/24").everywhere()
    assert one.problems[0].reason == "the device answered 2.05 instead of its links"
    heard.alone["coap://192.168.7.20/.well-known/core"] = DeviceAnswer("4.04", b"", None, None, None, NOON, NOON)
    with pytest.raises(UpstreamError, match=r"4\.04"):
        await searcher(heard, "192.168.7.0/24").at("192.168.7.20")


def test_the_interval_of_multicast_is_long_or_none() -> None:
    assert CoapDiscoverySettings().multicast_s == 0
    with pytest.raises(ValueError, match="multicast disturbs all devices"):
        CoapDiscoverySettings(multicast_s=5)


# --- proposing ---


@dataclass
class Found:
    """A searcher that finds these devices."""

    proposals: list[Proposal] = field(default_factory=list)

    async def everywhere(self) -> list[Proposal]:
        return self.proposals


@dataclass
class Contacts:
    """heard: which devices answered, and when; ended: those whose registration has ended."""

    heard_of: list[tuple[str, datetime | None]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def heard(self, authority: str, at: datetime | None = None) -> None:
        self.heard_of.append((authority, at))

    def failed(self, authority: str, resource: str, reason: str) -> None:
        assert reason == "its registration has ended"
        self.ended.append(authority)

    def withheld(self, authority: str, resource: str, reason: str) -> None: ...


@asynccontextmanager
async def discovering(
    gateway: StatesGateway,
    returned: list[str] | None = None,
    found: Any = None,
    contacts: Contacts | None = None,
    names: DeviceNames | None = None,
    **settings: Any,
) -> AsyncIterator[CoapDiscovering]:
    searcher: Any = Found() if found is None else found
    one = CoapDiscovering(
        AdapterContext(gateway, BASE, now=lambda: NOON),
        searcher,
        CoapDiscoverySettings(**settings),
        returned=([] if returned is None else returned).append,
        contacts=contacts or Contacts(),
        names=names or DeviceNames(BASE),
    )
    async with beside(one.run()):
        await one.ready()
        yield one


def registration(name: str = "hall", *found: Link, base: str = "coap://192.168.7.20:5683") -> Registration:
    return Registration(name, name, "", base, False, 600, 0, found or (HALL,))


def states(gateway: StatesGateway) -> list[str]:
    name = "BIND(CONCAT(STRAFTER(STR(?device), 'coap/'), ' ', ?adoption) AS ?x)"
    return gateway.found(f"GRAPH ?g {{ ?device gateway:adoption ?adoption }} {name}")


def rules(gateway: StatesGateway) -> int:
    return len(gateway.found("?x a gateway:Mapping"))


async def test_a_registered_device_is_offered_and_used_once_it_is_adopted() -> None:
    gateway, returned, contacts, names = StatesGateway(), list[str](), Contacts(), DeviceNames(BASE)
    async with discovering(gateway, returned, contacts=contacts, names=names) as one:
        one.took("registered", registration())
        await settled()
        assert states(gateway) == ["hall proposed"] and (rules(gateway), contacts.heard_of) == (0, [])
        assert returned == ["192.168.7.20"]
        assert one.identity(registration()) == "coap/hall"
        assert names.identity("192.168.7.20") == "coap/192.168.7.20~5683"
        gateway.write(one.feed.registry.adoption(one.feed.entries["coap/hall"]))
        await settled()
        assert states(gateway) == ["hall adopted"] and rules(gateway) == 1
        assert contacts.heard_of == [("192.168.7.20", NOON)] and names.identity("192.168.7.20") == "coap/hall"
        one.took("updated", registration())
        assert returned == ["192.168.7.20"] and len(contacts.heard_of) == 2
        one.took("ended", registration())
        await settled()
        assert states(gateway) == ["hall adopted"] and (rules(gateway), contacts.ended) == (1, ["192.168.7.20"])
        one.took("registered", registration(base="coap://192.168.7.99"))
        await until(lambda: bool(gateway.found("?m gateway:rule ?x FILTER(CONTAINS(?x, '192.168.7.99'))")))
        await until(lambda: names.identity("192.168.7.99") == "coap/hall")
        assert names.identity("192.168.7.20") == "coap/192.168.7.20~5683"
        assert contacts.heard_of[2:] == [("192.168.7.99", NOON)]
        assert returned == ["192.168.7.20", "192.168.7.99"]


def at(base: str, text: bytes = LAMP) -> Proposal:
    return propose(parse_links(text), base=base, place=f"{base}/.well-known/core")


async def test_a_device_that_registers_after_its_adoption_stays_the_same() -> None:
    gateway, names = StatesGateway(), DeviceNames(BASE)
    own = replace(registration(), proven=True)
    async with discovering(gateway, found=Found([at("coap://192.168.7.20")]), names=names, multicast_s=3600) as one:
        await until(lambda: states(gateway) == ["192.168.7.20~5683 proposed"])
        gateway.write(one.feed.registry.adoption(one.feed.entries["coap/192.168.7.20~5683"]))
        await settled()
        one.took("registered", own)
        await until(lambda: one.feed.entries["coap/192.168.7.20~5683"].device.endpoint == "hall")
        assert states(gateway) == ["192.168.7.20~5683 adopted"]
        one.took("registered", replace(own, base="coap://192.168.7.99:5683"))
        await until(lambda: names.identity("192.168.7.99") == "coap/192.168.7.20~5683")
        assert states(gateway) == ["192.168.7.20~5683 adopted"] and rules(gateway) == 1
        one.took("registered", registration("other"))  # the address is of another device now
        await until(lambda: len(states(gateway)) == 2)
        assert states(gateway) == ["192.168.7.20~5683 adopted", "other proposed"]
        taken = at("coap://192.168.7.20").device
        assert taken is not None and "it is at coap://192.168.7.99 now" in str(
            device_to_propose(taken, one.feed.entries)
        )
    async with discovering(gateway, names=names) as one:  # after a restart, too
        one.took("restored", replace(own, base="coap://192.168.7.99:5683"))
        await settled()
        assert states(gateway) == ["192.168.7.20~5683 adopted", "other proposed"]
        found = at("coap://192.168.7.99").device
        assert found is not None
        assert "is known as coap/192.168.7.20~5683, hall: adopted" in str(device_to_propose(found, one.feed.entries))


async def test_an_address_that_was_only_claimed_does_not_take_an_adopted_device_over() -> None:
    gateway = StatesGateway()
    async with discovering(gateway, found=Found([at("coap://192.168.7.20")]), multicast_s=3600) as one:
        await until(lambda: states(gateway) == ["192.168.7.20~5683 proposed"])
        gateway.write(one.feed.registry.adoption(one.feed.entries["coap/192.168.7.20~5683"]))
        await settled()
        one.took("registered", registration())
        await settled()
        assert states(gateway) == ["192.168.7.20~5683 adopted", "hall proposed"]


async def test_a_registration_replaces_what_was_proposed_of_its_address() -> None:
    gateway = StatesGateway()
    async with discovering(gateway, found=Found([at("coap://192.168.7.20")]), multicast_s=3600) as one:
        await until(lambda: states(gateway) == ["192.168.7.20~5683 proposed"])
        one.took("registered", registration())
        await until(lambda: states(gateway) == ["hall proposed"])


async def test_a_device_with_two_addresses_is_offered_once_if_its_links_name_it() -> None:
    named = LAMP + b',</>;ep="urn:dev:mac:0024befffe804ff1"'
    gateway, found = StatesGateway(), Found([at("coap://[fd00::20]", named), at("coap://192.168.7.20", named)])
    async with discovering(gateway, found=found, multicast_s=60) as one:
        await until(lambda: states(gateway) == ["192.168.7.20~5683 proposed"])
        assert one.counts() == {"devices_found": 1}
    remembered = dict[str, str]()
    first = [at("coap://[fd00::20]", named), at("coap://192.168.7.20", named), at("coap://192.168.7.21")]
    bases = [one.device.broker for one in distinct(first, {"coap/fd00==20~5683"}, remembered) if one.device]
    assert bases == ["coap://[fd00::20]", "coap://192.168.7.21"]
    again = distinct(first[1:], {"coap/fd00==20~5683"}, remembered)
    assert [one.device.broker for one in again if one.device] == ["coap://192.168.7.21"]
    unnamed = [at("coap://[fd00::20]"), at("coap://192.168.7.20")]
    assert len(list(distinct(unnamed, (), {}))) == 2


async def test_what_nobody_decided_about_is_forgotten_with_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = StatesGateway()
    async with discovering(gateway) as one:
        some = registration("hall", HALL, Link("/a", (("rt", "temperature"), ("frobnicate", "1"))))
        one.took("restored", some)
        await settled()
        assert states(gateway) == ["hall proposed"]
        (noted,) = (problem for problems in one._left_out.values() for problem in problems)
        ended: list[Problem] = []
        monkeypatch.setattr(one.feed, "note", ended.append)
        one.took("ended", some)
        await until(lambda: states(gateway) == [])
        assert [(problem.about, problem.reason) for problem in ended] == [(noted.about, "")]
        assert not one._left_out


async def test_an_ignored_device_stays_ignored() -> None:
    gateway = StatesGateway()
    async with discovering(gateway) as one:
        one.took("registered", registration())
        await settled()
        gateway.write(one.feed.registry.ignoring(one.feed.entries["coap/hall"]))
        events: tuple[Event, ...] = ("ended", "registered")
        for event in events:
            one.took(event, registration())
            await settled()
            assert states(gateway) == ["hall ignored"]


async def test_registrations_that_cannot_be_used_are_problems() -> None:
    gateway, returned = StatesGateway(), list[str]()
    async with discovering(gateway, returned) as one:
        one.took("registered", registration("a", base="coap+tcp://192.168.7.20"))
        one.took("registered", registration("b", Link("coap://192.168.7.99/lamp", (("rt", "light"), ("if", "core.a")))))
        one.note("coap://192.168.7.21", "no links")
        await settled()
        assert states(gateway) == [] and returned == ["192.168.7.20"]
        assert one.identity(registration("a", base="coap+tcp://192.168.7.20")) == ""
        assert len(gateway.found("GRAPH ?g { ?problem a gateway:ReportedProblem ; gateway:reason ?x }")) == 3


async def test_proposals_are_bounded() -> None:
    gateway = StatesGateway()
    async with discovering(gateway, devices_max=2) as one:
        for number in range(4):
            one.took("registered", registration(f"lamp{number}"))
        await settled()
        assert states(gateway) == ["lamp0 proposed", "lamp1 proposed"]
        (reason,) = gateway.found("GRAPH ?g { ?problem a gateway:ReportedProblem ; gateway:reason ?x }")
        assert "coap.discovery.devices_max" in reason
        gateway.write(one.feed.registry.adoption(one.feed.entries["coap/lamp0"]))
        await settled()
        one.took("registered", registration("lamp4"))
        await settled()
        assert states(gateway) == ["lamp0 adopted", "lamp1 proposed", "lamp4 proposed"]


async def test_what_multicast_finds_is_offered_once() -> None:
    gateway = StatesGateway()
    found = Found([at("coap://192.168.7.20"), at("coap://192.168.7.21"), at("coap://[fe80::1%eth0]")])
    async with discovering(gateway, found=found, multicast_s=3600) as one:
        one.took("registered", registration())
        await until(lambda: states(gateway) == ["192.168.7.21~5683 proposed", "hall proposed"])
        assert one.counts() == {"devices_found": 1}
    async with discovering(gateway):
        await settled()
        assert states(gateway) == ["192.168.7.21~5683 proposed", "hall proposed"]


def test_a_registered_device_has_the_name_of_its_endpoint() -> None:
    device = of_registration(registration()).device
    assert device is not None and (device.broker, device.name) == ("coap://192.168.7.20", "hall")
    assert str(ip_address("192.168.7.20")) in device.broker
