"""Readings that devices send: from the datagram to the update, with each refusal."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address

import msgspec
import pytest
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.admission import Origin
from lamplighter.adapters.coap.readings import WARNINGS_BURST, PostedReadings
from lamplighter.adapters.coap.serving import SiteCaller
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.mapping import PathRule, PathTable, cbor
from lamplighter.adapters.model.commits import ReadingCommits, StreamOwners
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.counters import ReadingCounters
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, UnsupportedRequestError
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.coap_site import CONTENT_FORMAT, Asker, coap_site
from tests.support.event_loops import beside, until
from tests.support.raw_coap import CON, GET, MAX_AGE, POST, PUT, URI_PATH, Datagram, RawPeer

BASE = "http://gateway.example/"
LOOPBACK = ip_address("127.0.0.1")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RULES = """
[[stream]]
path = "readings/{room}"
payload = "number"
property = "http://gateway.example/property/p"

[[stream]]
path = "senml/{room}"
payload = "senml"
sensor = "sensor/{room}/{n}"
property = "http://gateway.example/property/p"

[[stream]]
path = "json/{room}"
payload = "number"
member = "t"
property = "http://gateway.example/property/p"

[[stream]]
path = "lamp"
payload = "text"
property = "http://gateway.example/property/p"
devices = ["lamp"]
methods = ["PUT"]
"""
SENML_JSON, SENML_CBOR, CBOR, JSON = b"\x6e", b"\x70", b"\x3c", b"\x32"


def rules(text: str) -> list[PathRule]:
    tables = [msgspec.convert(table, PathTable) for table in tomllib.loads(text)["stream"]]
    return [PathRule(one, prefixes=PREFIXES, base_iri=BASE, place=one.path) for one in tables]


@dataclass
class FakeGateway:
    """Takes all updates. refuses: texts in updates that it refuses; held: it waits for its release."""

    connected: bool = True
    refuses: str = "nothing of this"
    requests: list[UpdateRequest] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        await self.released.wait()
        self.requests += requests
        return [
            UnsupportedRequestError("it is refused") if self.refuses in one.sparql else UpdateAnswer(number)
            for number, one in enumerate(requests)
        ]

    @property
    def text(self) -> str:
        return "\n".join(one.sparql for one in self.requests)


def posted(gateway: FakeGateway, warnings: list[tuple[str, str]] | None = None) -> PostedReadings:
    counters, said = ReadingCounters(), [] if warnings is None else warnings

    def warn(path: str, reason: str, *, lost: bool = False) -> None:
        said.append((path, reason))

    commits = ReadingCommits(gateway, kind="coap", settings=CoapSettings(streams_max=100), counters=counters, warn=warn)
    owners = StreamOwners(100, warn, kind="coap")
    found = PostedReadings(commits, owners, counters, AdapterContext(gateway, now=lambda: NOON), warn)
    found.change_rules(rules(RULES))
    return found


@asynccontextmanager
async def served(gateway: FakeGateway, *, held: bool = False) -> AsyncIterator[tuple[PostedReadings, RawPeer]]:
    if not held:
        gateway.released.set()
    readings = posted(gateway)
    async with beside(readings.run()), coap_site(readings) as (_, peer):
        yield readings, peer


@pytest.mark.parametrize(
    ("path", "payload", "options", "value"),
    [
        ("readings/hall", b"21.5", (), '"21.5"'),
        ("readings/hall", b"21.5", ((CONTENT_FORMAT, b""),), '"21.5"'),
        ("readings/hall", b"21.5", ((CONTENT_FORMAT, JSON),), '"21.5"'),
        ("json/hall", b'{"t": 21.5}', ((CONTENT_FORMAT, JSON),), '"21.5"'),
        ("json/hall", cbor.encode({"t": 21.5}), ((CONTENT_FORMAT, CBOR),), '"21.5"'),
        ("senml/hall", b'[{"n":"temperature","v":21.5}]', ((CONTENT_FORMAT, SENML_JSON),), '"21.5"'),
        ("senml/hall", cbor.encode([{0: "temperature", 2: 21.5}]), ((CONTENT_FORMAT, SENML_CBOR),), '"21.5"'),
    ],
)
async def test_a_reading_is_durable_before_its_answer(
    path: str, payload: bytes, options: tuple[tuple[int, bytes], ...], value: str
) -> None:
    gateway = FakeGateway()
    async with served(gateway, held=True) as (readings, peer):
        asking = asyncio.ensure_future(Asker(peer).ask(POST, path, payload, *options))
        await until(lambda: bool(readings._waiting_readings) or not readings._waiting)
        assert not asking.done()
        gateway.released.set()
        assert (await asking).code == Code.CHANGED
        assert value in gateway.text
        assert readings.counters.committed == 1
        assert {one.cause.id for one in gateway.requests if one.cause} == {path}


@pytest.mark.parametrize(
    ("method", "path", "payload", "options", "code"),
    [
        (POST, "other/hall", b"1", (), Code.NOT_FOUND),
        (POST, "readings", b"1", (), Code.NOT_FOUND),
        (GET, "readings/hall", b"", (), Code.METHOD_NOT_ALLOWED),
        (PUT, "lamp", b"ON", (), Code.FORBIDDEN),
        (POST, "senml/hall", b"[]", (), Code.UNSUPPORTED_CONTENT_FORMAT),
        (POST, "senml/hall", b"[]", ((CONTENT_FORMAT, JSON),), Code.UNSUPPORTED_CONTENT_FORMAT),
        (POST, "senml/hall", b"no JSON", ((CONTENT_FORMAT, SENML_JSON),), Code.BAD_REQUEST),
        (POST, "senml/hall", b'[{"n":"a","v":1},{"v":"x"}]', ((CONTENT_FORMAT, SENML_JSON),), Code.BAD_REQUEST),
        (POST, "readings/hall", b"", (), Code.BAD_REQUEST),
        (POST, "json/hall", b'{"x": 1}', ((CONTENT_FORMAT, JSON),), Code.BAD_REQUEST),
    ],
)
async def test_what_cannot_be_taken_is_refused_and_nothing_is_written(
    method: int, path: str, payload: bytes, options: tuple[tuple[int, bytes], ...], code: Code
) -> None:
    gateway = FakeGateway()
    async with served(gateway) as (_, peer):
        assert (await Asker(peer).ask(method, path, payload, *options)).code == code
        assert gateway.requests == []


async def test_a_refusal_of_the_gateway_is_the_answer_and_its_absence_too() -> None:
    gateway = FakeGateway(refuses='"13"')
    async with served(gateway) as (readings, peer):
        asker = Asker(peer)
        refused = await asker.ask(POST, "readings/hall", b"13")
        assert (refused.code, refused.payload) == (Code.BAD_REQUEST, b"it is refused")
        assert readings.counters.rejected == 1
        gateway.connected = False
        assert (await asker.ask(POST, "readings/hall", b"14")).code == Code.SERVICE_UNAVAILABLE
        gateway.connected = True
        assert (await asker.ask(POST, "readings/hall", b"14")).code == Code.CHANGED


async def test_one_source_does_not_take_all_warnings() -> None:
    warned: list[str] = []
    async with served(FakeGateway()) as (readings, peer):
        readings._warn = lambda path, reason: warned.append(path)
        for number in range(WARNINGS_BURST + 5):
            answer = await Asker(peer).ask(POST, f"readings/{number}", b"bad", token=b"%d" % number)
            assert answer.code == Code.BAD_REQUEST
        assert readings.counters.unreadable == WARNINGS_BURST + 5
        assert warned == [f"readings/{number}" for number in range(WARNINGS_BURST)]


async def test_a_body_is_not_read_while_too_many_readings_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.readings.WAITING_READINGS_MAX", 0)
    async with served(FakeGateway()) as (readings, peer):
        answer = await Asker(peer).ask(POST, "readings/hall", b"what cannot be read")
        assert (answer.code, answer.option(MAX_AGE)) == (Code.SERVICE_UNAVAILABLE, b"\x0a")
        assert readings.counters.unreadable == 0


async def test_a_request_that_comes_again_after_a_restart_has_the_same_request_ids() -> None:
    again = Datagram(CON, POST, 7, b"token", ((URI_PATH, b"readings"), (URI_PATH, b"hall")), b"21.5")
    ids = []
    gateway, others = FakeGateway(), FakeGateway()
    async with served(gateway) as (_, peer):
        for one in (gateway, others):  # the second is a process after a restart
            one.released.set()
            readings = posted(one)
            async with beside(readings.run()), coap_site(readings) as (_, target):
                peer._to = target._to
                peer.send(again)
                assert (await peer.receive()).code == Code.CHANGED
            ids.append([request.request_id for request in one.requests])
    assert ids[0] == ids[1]
    assert None not in ids[0]
    assert len(set(ids[0])) == len(ids[0])


async def test_links_name_the_paths_that_a_caller_may_write() -> None:
    readings = posted(FakeGateway())
    readings.change_rules(rules(RULES + RULES.replace("lamp", "a b").replace('devices = ["a b"]', "")))
    anyone, lamp = (SiteCaller(Origin(LOOPBACK, 1), device=name) for name in ("", "lamp"))
    assert [link.target for link in readings.links(anyone)] == ["/a%20b"]
    assert [link.target for link in readings.links(lamp)] == ["/lamp", "/a%20b"]
    assert list(readings.links(lamp._replace(permitted=False))) == []
