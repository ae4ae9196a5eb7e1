"""The resource directory in the dataset: stored before the answer, restored, expired; the engine is in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from lamplighter.adapters.coap import registrations
from lamplighter.adapters.coap.admission import Origin
from lamplighter.adapters.coap.directory import LINKS_MAX, Registration
from lamplighter.adapters.coap.directory_site import ENDPOINTS, LINKS_OF_REQUEST, RESOURCES, DirectorySite
from lamplighter.adapters.coap.registrations import (
    FETCHES_MAX,
    RETURNS_BURST,
    RETURNS_PER_S,
    SOURCE_FETCHES_MAX,
    SOURCE_REGISTRATIONS_MAX,
    Event,
    Registrations,
    machine_of,
    registrant_of,
)
from lamplighter.adapters.coap.serving import SiteAnswer, SiteCaller, SiteRefusal, SiteRequest
from lamplighter.adapters.resources.exchange import DeviceAnswer, DeviceRequest
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, QueueFullError, RefusedError, UpstreamError
from tests.support.desired_states import BASE, StatesGateway
from tests.support.event_loops import beside, settled, until

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
LAMP = b'</lamp>;rt="light";if="core.a"'
NODES = "GRAPH ?g { ?node a gateway:Registration ; gateway:endpointName ?x }"
EXPIRIES = "GRAPH ?g { ?node gateway:expires ?e BIND(STR(?e) AS ?x) }"


def caller(ip: str = "192.168.7.20", port: int = 5683, *, key: str = "", zone: str = "") -> SiteCaller:
    return SiteCaller(Origin(ip_address(ip), port), zone, key, bool(key))


@dataclass
class Clock:
    seconds: float = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Noted:
    """A listener of registrations."""

    events: list[tuple[Event, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def ready(self) -> None:
        pass

    def took(self, event: Event, registration: Registration) -> None:
        self.events.append((event, registration.endpoint))

    def identity(self, registration: Registration) -> str:
        return f"coap/{registration.endpoint}"

    def note(self, place: str, reason: str) -> None:
        self.notes.append(f"{place}: {reason}")


@dataclass
class Links:
    """Exchanges with devices. answers: the next ones; none: the device does not answer yet."""

    answers: asyncio.Queue[DeviceAnswer | UpstreamError] = field(default_factory=asyncio.Queue)
    asked: list[DeviceRequest] = field(default_factory=list)

    async def request(self, request: DeviceRequest) -> DeviceAnswer:
        self.asked.append(request)
        answer = await self.answers.get()
        if isinstance(answer, UpstreamError):
            raise answer
        return answer


@dataclass
class Stand:
    """A directory with what is around it."""

    gateway: Any = field(default_factory=StatesGateway)
    clock: Clock = field(default_factory=Clock)
    heard: Noted = field(default_factory=Noted)
    links: Links = field(default_factory=Links)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Registrations]:
        exchanges: Any = self.links
        self.heard.events.clear()
        one = Registrations(
            self.gateway, exchanges, self.heard, base_iri=BASE, now=self.clock.now, monotonic=self.clock.monotonic
        )
        async with beside(one.run()):
            await until(lambda: one.ready)
            yield one


async def asked(
    one: Registrations, method: str, path: str, *query: str, body: bytes = b"", by: SiteCaller | None = None
) -> SiteAnswer | str:
    """The answer to a request, or the code and the reason of its refusal."""
    entry = DirectorySite(one).entry(tuple(path.split("/")))
    assert entry is not None
    by = caller() if by is None else by
    request = SiteRequest(method, tuple(path.split("/")), by, query, body, 40 if body else None)
    assert entry.methods[method].takes(request.content_format)
    try:
        return await entry.methods[method].handle(request)
    except SiteRefusal as refusal:
        return f"{refusal.code.dotted} {refusal.reason}".strip()


async def registered(one: Registrations, name: str = "hall", *query: str, by: SiteCaller | None = None) -> str:
    answer = await asked(one, "POST", "rd", f"ep={name}", *query, body=LAMP, by=by)
    assert isinstance(answer, SiteAnswer) and answer.code.dotted == "2.01"
    return "/".join(answer.location)


def body(answer: SiteAnswer | str) -> str:
    assert isinstance(answer, SiteAnswer) and answer.content_format == 40
    return answer.body.decode()


async def test_a_registration_is_stored_and_outlives_a_restart() -> None:
    stand = Stand()
    async with stand.running() as one:
        place = await registered(one, "hall", "d=floor1", "lt=600", "et=oic.d.light", "base=coap://192.168.7.21:61616")
        assert stand.gateway.found(NODES) == ["hall"]
        assert stand.gateway.found(EXPIRIES) == ["2026-11-23T12:10:00Z"]
        assert stand.gateway.found("GRAPH ?g { ?node gateway:ofDevice ?x }") == [f"{BASE}device/coap/hall"]
        endpoints = body(await asked(one, "GET", "rd-lookup/ep"))
        assert endpoints == (
            f'</{place}>;ep="hall";d="floor1";base="coap://192.168.7.21:61616";rt="core.rd-ep";et="oic.d.light"'
        )
        resources = body(await asked(one, "GET", "rd-lookup/res"))
        assert resources == '<coap://192.168.7.21:61616/lamp>;rt="light";if="core.a"'
        assert body(await asked(one, "GET", place)) == LAMP.decode()
    stand.clock.seconds = 400
    async with stand.running() as one:
        assert stand.heard.events == [("restored", "hall")]
        assert body(await asked(one, "GET", "rd-lookup/ep")) == endpoints
        assert body(await asked(one, "GET", "rd-lookup/res")) == resources
        stand.clock.seconds = 599
        one.expire()
        assert len(one.directory) == 1
        stand.clock.seconds = 600
        one.expire()
        assert stand.heard.events == [("restored", "hall"), ("ended", "hall")]
        await settled()
        assert stand.gateway.found("GRAPH ?g { ?x gateway:coapBase ?y }") == []
        assert await asked(one, "GET", place) == "4.04 there is no such registration; register again"
        assert one.counts() == {"registrations": 0, "registrations_expired": 1, "registrations_failed": 0}


@pytest.mark.parametrize(
    ("away_s", "left_s"), [(10_000.0, 60.0), (-10_000_000.0, 600.0)], ids=["late", "clock set back"]
)
async def test_lifetimes_go_on_within_bounds(away_s: float, left_s: float) -> None:
    stand = Stand()
    async with stand.running() as one:
        await registered(one, "hall", "lt=600")
    stand.clock.seconds = away_s
    async with stand.running() as one:
        due = one.directory.next_due()
        assert due is not None and due - away_s == left_s


async def test_an_update_and_a_removal_are_stored() -> None:
    stand = Stand()
    async with stand.running() as one:
        place = await registered(one, "hall", "lt=600")
        stand.clock.seconds = 300
        answer = await asked(one, "POST", place, "lt=900")
        assert isinstance(answer, SiteAnswer) and answer.code.dotted == "2.04"
        assert stand.gateway.found(EXPIRIES) == ["2026-11-23T12:20:00Z"]
        answer = await asked(one, "DELETE", place)
        assert isinstance(answer, SiteAnswer) and answer.code.dotted == "2.02"
        assert stand.gateway.found(EXPIRIES) == []
        assert stand.heard.events == [("registered", "hall"), ("updated", "hall"), ("ended", "hall")]
        assert await asked(one, "POST", place) == "4.04 there is no such registration; register again"


@pytest.mark.parametrize(
    ("method", "path", "query", "sent", "answer"),
    [
        ("POST", "rd", [], LAMP, "4.00 the endpoint name is missing; write ep=NAME"),
        ("POST", "rd", ["ep=a"], b"<", "4.00 links, character 1"),
        ("POST", ".well-known/rd", ["ep=a", "base=coap://192.168.7.1"], b"", "4.00 a simple registration has no base"),
        ("GET", "rd-lookup/res", ["page=1"], b"", "4.00 page is used with count only"),
        ("DELETE", "rd/0123", [], b"", "4.04"),
    ],
)
async def test_wrong_requests_are_refused(method: str, path: str, query: list[str], sent: bytes, answer: str) -> None:
    async with Stand().running() as one:
        said = await asked(one, method, path, *query, body=sent)
        assert isinstance(said, str) and said.startswith(answer)
        assert len(one.directory) == 0


@pytest.mark.parametrize("path", ["rd/0123", ".well-known/rd"])
async def test_what_needs_no_body_takes_none(path: str) -> None:
    async with Stand().running() as one:
        entry = DirectorySite(one).entry(tuple(path.split("/")))
        assert entry is not None and not entry.methods["POST"].takes(40)
        request = SiteRequest("POST", tuple(path.split("/")), caller(), ("ep=a",), b"</a>")
        with pytest.raises(SiteRefusal, match="no body"):
            await entry.methods["POST"].handle(request)


async def test_before_the_dataset_is_read_nothing_is_answered() -> None:
    exchanges: Any = Links()
    one = Registrations(StatesGateway(), exchanges, Noted(), base_iri=BASE)
    for method, path in (("POST", "rd"), ("POST", ".well-known/rd"), ("GET", "rd-lookup/ep"), ("DELETE", "rd/0")):
        sent = LAMP if path == "rd" else b""
        assert await asked(one, method, path, "ep=a", body=sent) == "5.03"


class Refusing(StatesGateway):
    """Gives these answers first, each to one message."""

    def __init__(self, *errors: GatewayError) -> None:
        super().__init__()
        self.errors = list(errors)

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        if self.errors:
            error = self.errors.pop(0)
            return [error for _ in requests]
        return await super().updates(requests)


async def test_the_answer_waits_until_the_gateway_has_the_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "back_off_s", lambda *_: 0)
    stand = Stand(Refusing(QueueFullError("full"), QueueFullError("full")))
    async with stand.running() as one:
        await registered(one)
        assert stand.gateway.errors == [] and stand.gateway.found(NODES) == ["hall"]


async def test_a_registration_that_is_not_stored_is_refused() -> None:
    stand = Stand(Refusing(RefusedError("forbidden", 403, "not permitted")))
    async with stand.running() as one:
        assert await asked(one, "POST", "rd", "ep=hall", body=LAMP) == "5.03"


async def test_one_source_cannot_fill_the_directory() -> None:
    stand = Stand()
    async with stand.running() as one:
        for number in range(SOURCE_REGISTRATIONS_MAX):
            await registered(one, f"lamp{number}", by=caller("2001:db8::1", number + 1))
        another = caller("2001:db8::2")  # another address of the same machine
        assert str(await asked(one, "POST", "rd", "ep=more", body=LAMP, by=another)).startswith("5.03 one source has")
        assert str(await asked(one, "POST", ".well-known/rd", "ep=more", by=another)).startswith("5.03 one source has")
        await registered(one, "lamp7", by=another)
        await registered(one, "more", by=caller("2001:db8:0:1::1"))
        await registered(one, "protected", by=caller("2001:db8::2", key="hall"))
        await asked(one, "DELETE", await registered(one, "lamp8", by=another))
        await registered(one, "another", by=another)
    async with stand.running() as one:
        assert str(await asked(one, "POST", "rd", "ep=last", body=LAMP, by=another)).startswith("5.03 one source has")


async def test_an_endpoint_belongs_to_its_security_context() -> None:
    async with Stand().running() as one:
        place = await registered(one, by=caller(key="hall"))
        refused = "4.03 the endpoint is registered by another security context"
        for other in (caller(), caller(key="door")):
            assert await asked(one, "POST", "rd", "ep=hall", body=LAMP, by=other) == refused
            assert await asked(one, "POST", ".well-known/rd", "ep=hall", by=other) == refused
            assert await asked(one, "DELETE", place, by=other) == refused


def test_a_caller_is_known_by_its_address() -> None:
    made = registrant_of(caller("fe80::1%eth0", 61616, zone="eth0"))
    assert (made.base, made.owner, made.zone) == ("coap://[fe80::1]:61616", "", "eth0")
    assert registrant_of(caller(key="hall")).owner == "hall"
    assert machine_of(caller("192.168.7.20", 1)) == machine_of(caller("192.168.7.20", 2)) == "192.168.7.20"


# --- simple registration ---


def links(text: bytes = LAMP, code: str = "2.05", format_: int | None = 40) -> DeviceAnswer:
    return DeviceAnswer(code, text, format_, None, None, NOON, NOON)


async def test_a_simple_registration_fetches_the_links_of_the_source() -> None:
    stand = Stand()
    async with stand.running() as one:
        for _ in range(3):  # the device repeats itself
            answer = await asked(one, "POST", ".well-known/rd", "ep=hall", "lt=600")
            assert isinstance(answer, SiteAnswer) and answer.code.dotted == "2.04"
        await settled()
        assert [request.uri for request in stand.links.asked] == ["coap://192.168.7.20:5683/.well-known/core"]
        assert len(one.directory) == 0
        stand.links.answers.put_nowait(links())
        await settled()
        assert body(await asked(one, "GET", "rd-lookup/res")).startswith("<coap://192.168.7.20:5683/lamp>")
        assert stand.gateway.found(NODES) == ["hall"] and stand.heard.notes == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (links(code="4.04"), "the device answered 4.04 instead of its links"),
        (links(format_=0), "the device answered 2.05 instead of its links"),
        (links(b"no links"), "links, character 1"),
        (UpstreamError("no answer"), "no answer"),
    ],
)
async def test_a_simple_registration_that_fails_is_noted(answer: DeviceAnswer | UpstreamError, reason: str) -> None:
    stand = Stand()
    async with stand.running() as one:
        await asked(one, "POST", ".well-known/rd", "ep=hall", by=caller(key="hall"))
        stand.links.answers.put_nowait(answer)
        await settled()
        assert stand.links.asked[0].device == "hall"
        assert len(one.directory) == 0 and one.counts()["registrations_failed"] == 1
        assert [note.partition("core: simple registration: ")[2][: len(reason)] for note in stand.heard.notes] == [
            reason
        ]


async def test_fetches_are_bounded_and_end_with_the_directory() -> None:
    stand = Stand()
    async with stand.running() as one:
        for number in range(FETCHES_MAX):
            by = caller(f"192.168.7.{number // SOURCE_FETCHES_MAX}")
            await asked(one, "POST", ".well-known/rd", f"ep={number}", by=by)
            if number == SOURCE_FETCHES_MAX - 1:  # further ports of the source are still that source
                assert await asked(one, "POST", ".well-known/rd", "ep=more", by=by) == "5.03"
        assert await asked(one, "POST", ".well-known/rd", "ep=more", by=caller("192.168.8.1")) == "5.03"
        await settled()
        assert len(stand.links.asked) == FETCHES_MAX
        assert all(request.retried for request in stand.links.asked)  # these leave half of the slots free
    await settled()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("coap links")]


async def test_links_that_do_not_come_in_time_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.registrations.FETCH_S", 0.01)
    stand = Stand()
    async with stand.running() as one:
        await asked(one, "POST", ".well-known/rd", "ep=slow")
        await until(lambda: one.counts()["registrations_failed"] >= 1)
        assert "did not come within 0.01 s" in stand.heard.notes[0]


async def test_a_lookup_costs_as_much_as_it_looks_at() -> None:
    async with Stand().running() as one:
        lookups = [DirectorySite(one).entry(path) for path in (ENDPOINTS, RESOURCES)]
        request = SiteRequest("GET", RESOURCES, caller())
        for number in range(2 * LINKS_OF_REQUEST // LINKS_MAX + 1):
            links = ",".join(f"</{n}>" for n in range(LINKS_MAX))
            one.directory.register([f"ep={number}"], links.encode(), registrant_of(caller()))
        for lookup in lookups:
            assert lookup is not None
            assert lookup.methods["GET"].cost(request) == 2


async def test_what_is_stored_costs_more_than_a_request() -> None:
    async with Stand().running() as one:
        request, costs = SiteRequest("POST", RESOURCES, caller()), {}
        for path in (("rd",), (".well-known", "rd"), ("rd", "id")):
            entry = DirectorySite(one).entry(path)
            assert entry is not None
            costs["/".join(path)] = {name: method.cost(request) for name, method in entry.methods.items()}
    assert costs == {"rd": {"POST": 4}, ".well-known/rd": {"POST": 4}, "rd/id": {"POST": 2, "DELETE": 2, "GET": 0}}


async def test_a_lookup_that_is_too_long_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.directory_site.LOOKUP_BYTES_MAX", 100)
    async with Stand().running() as one:
        for name in ("hall", "stairs"):
            await registered(one, name)
        refused = "4.00 the answer is too long; use page and count"
        assert await asked(one, "GET", "rd-lookup/ep") == refused
        assert body(await asked(one, "GET", "rd-lookup/ep", "count=1"))


async def test_who_registers_again_and_again_does_not_cause_commands_each_time() -> None:
    """The base of a registration can be the address of any device."""
    stand = Stand()
    async with stand.running() as one:
        bases = ["coap://192.168.7.30", "coap://192.168.7.30:5683", "coap://192.168.7.30/path", "coap://192.168.7.30/x"]
        for number in range(40):
            by = caller(f"192.168.8.{number}")
            await registered(one, f"e{number}", f"base={bases[number % len(bases)]}", by=by)
        events = [event for event, _ in stand.heard.events]
        assert events == ["registered"] * RETURNS_BURST + ["updated"] * (40 - RETURNS_BURST)
        await registered(one, "other", "base=coap://192.168.7.31")
        assert stand.heard.events[-1][0] == "registered"
        stand.clock.seconds += RETURNS_BURST / RETURNS_PER_S
        await registered(one, "e0", f"base={bases[0]}")
        assert stand.heard.events[-1][0] == "registered"


async def test_few_addresses_of_registrations_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.registrations.RETURNS_MAX", 3)
    stand = Stand()
    async with stand.running() as one:
        for number in range(5):
            await registered(one, "e", f"base=coap://192.168.7.{number}")
        assert [event for event, _ in stand.heard.events] == ["registered"] * 3 + ["updated"] * 2
        stand.clock.seconds += 61
        await registered(one, "e", "base=coap://192.168.7.9")
        assert stand.heard.events[-1][0] == "registered"
        assert len(one._returns) == 1


def test_only_permitted_callers_see_the_directory() -> None:
    one: Any = None
    site = DirectorySite(one)
    assert [link.first("rt") for link in site.links(caller())] == ["core.rd", "core.rd-lookup-ep", "core.rd-lookup-res"]
    assert list(site.links(caller()._replace(permitted=False))) == []
    assert site.entry(("rd", "1", "2")) is None and site.entry(("lamp",)) is None
    entry = site.entry((".well-known", "rd"))
    assert entry is not None and entry.methods["POST"].verified


# --- what is in the dataset ---


def broken(change: Callable[[str], str]) -> str:
    text = registrations.RegistrationTriples(BASE).update(
        Registration("0", "hall", "", "coap://192.168.7.20", False, 600, 0, ()), "", NOON, ""
    )
    return change(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"600"^^', '"soon"^^'),
        ("2026-11-23T12:00:00Z", "tomorrow"),
        ("2026-11-23T12:00:00Z", "2026-11-23T12:00:00"),
        ('parameters> "{}"', 'parameters> "[]"'),
        ('parameters> "{}"', 'parameters> "{"'),
        ('parameters> "{}"', 'parameters> "{\\"attributes\\": [1]}"'),
        ('links> ""', 'links> "<"'),
        ('links> ""', 'links> "<a>"'),
        ('links> ""', 'links> "</../a>"'),
        ('endpointName> "hall"', 'endpointName> "a\\tb"'),
        ("coap://192.168.7.20", "coap://[192"),
    ],
)
async def test_what_others_wrote_into_the_graph_is_left_alone(before: str, after: str) -> None:
    stand = Stand()
    text = broken(lambda text: text.replace(before, after))
    assert after in text
    stand.gateway.write(text)
    async with stand.running() as one:
        assert len(one.directory) == 0
        await registered(one, "door")
