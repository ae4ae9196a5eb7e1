"""Queries of profiles as resources: formats, bindings, permissions, and what observers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.queries import COST, ROWS_MAX, SUBSCRIPTIONS_MAX, QueryResources
from lamplighter.adapters.coap.results import result_body
from lamplighter.adapters.coap.serving import SiteAnswer, SiteRefusal, SiteRequest
from lamplighter.adapters.coap.site import Site
from lamplighter.adapters.mapping import cbor
from lamplighter.engine.client import Notification
from lamplighter.engine.errors import PayloadError, QueueFullError, UnsupportedRequestError, UpstreamError
from lamplighter.engine.protocol import jsap
from lamplighter.engine.terms import XSD, Bag, iri, literal
from tests.support.coap_site import ACCEPT, URI_QUERY, Asker, coap_site
from tests.support.event_loops import beside, until
from tests.support.raw_coap import ACK, CON, ECHO, GET, MAX_AGE, OBSERVE, URI_PATH, Datagram, RawPeer

EMPTY = Bag(("state",))
ON, OFF = (Bag(("state",), [(literal(one),)]) for one in ("ON", "OFF"))
PROFILE = jsap.parse(
    json.dumps(
        {
            "host": "gateway.example",
            "namespaces": {"ex": "http://example.org/ns#"},
            "queries": {
                "LAMP_STATE": {
                    "sparql": "SELECT ?state WHERE { ?lamp ex:state ?state }",
                    "forcedBindings": {"lamp": {"type": "uri", "value": ""}},
                },
                "ALL": {"sparql": "SELECT ?state WHERE { ?lamp ex:state ?state }"},
            },
        }
    ).encode()
)
LAMP = (URI_QUERY, b"lamp=ex:lamp")


@dataclass
class FakeClient:
    """Answers queries with `result`; subscriptions get what is put into their queues."""

    result: Bag | Exception = field(default_factory=lambda: ON)
    asked: list[str] = field(default_factory=list)
    queues: list[asyncio.Queue[Notification | Exception]] = field(default_factory=list)
    ended: int = 0

    async def query(self, sparql: str) -> Bag:
        self.asked.append(sparql)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def subscribe(self, sparql: str) -> AsyncGenerator[Notification, None]:
        self.asked.append(sparql)
        queue: asyncio.Queue[Notification | Exception] = asyncio.Queue()
        self.queues.append(queue)
        try:
            while True:
                one = await queue.get()
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            self.ended += 1

    def tell(self, sequence: int, added: Bag, removed: Bag = EMPTY) -> None:
        self.queues[-1].put_nowait(Notification("spuid", sequence, added, removed))


def query_resources(client: FakeClient, allowed: frozenset[str] | None = None) -> QueryResources:
    found = QueryResources(client, lambda caller: allowed)
    found.change_profiles({"street": PROFILE})
    return found


@asynccontextmanager
async def served(
    client: FakeClient, allowed: frozenset[str] | None = None
) -> AsyncIterator[tuple[QueryResources, Site, RawPeer]]:
    queries = query_resources(client, allowed)
    async with beside(queries.run()), coap_site(queries) as (site, peer):
        yield queries, site, peer


async def test_a_get_has_the_result_in_the_format_that_is_accepted() -> None:
    client = FakeClient()
    async with served(client) as (_, _, peer):
        asker = Asker(peer)
        answer = json.loads(await asker.whole("queries/LAMP_STATE", LAMP))
        assert answer["results"]["bindings"] == [{"state": {"type": "literal", "value": "ON"}}]
        assert "<http://example.org/ns#lamp> ex:state ?state" in " ".join(client.asked[0].split())
        text = await asker.ask(GET, "queries/street/LAMP_STATE", b"", LAMP, (ACCEPT, b""))
        assert (text.code, text.payload) == (Code.CONTENT, b"ON")


@pytest.mark.parametrize(
    ("path", "options", "code"),
    [
        ("queries/NONE", (), Code.NOT_FOUND),
        ("queries/other/ALL", (), Code.NOT_FOUND),
        ("queries", (), Code.NOT_FOUND),
        ("queries/street/ALL/more", (), Code.NOT_FOUND),
        ("queries/LAMP_STATE", (), Code.BAD_REQUEST),  # a binding is missing
        ("queries/ALL", (LAMP,), Code.BAD_REQUEST),  # not declared
        ("queries/LAMP_STATE", (LAMP, LAMP), Code.BAD_REQUEST),
        ("queries/LAMP_STATE", ((URI_QUERY, b"lamp=no iri> }"),), Code.BAD_REQUEST),
        ("queries/ALL", ((ACCEPT, b"\x28"),), Code.NOT_ACCEPTABLE),
        ("queries/ALL", ((ACCEPT, b"\x6e"),), Code.NOT_ACCEPTABLE),  # SenML without ?v
    ],
)
async def test_faults_of_a_request(path: str, options: tuple[tuple[int, bytes], ...], code: Code) -> None:
    async with served(FakeClient()) as (_, _, peer):
        assert (await Asker(peer).ask(GET, path, b"", *options)).code == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnsupportedRequestError("no"), Code.INTERNAL_SERVER_ERROR),
        (QueueFullError("full"), Code.SERVICE_UNAVAILABLE),
        (UpstreamError("closed"), Code.SERVICE_UNAVAILABLE),
    ],
)
async def test_faults_of_the_gateway(error: Exception, code: Code) -> None:
    async with served(FakeClient(error)) as (_, _, peer):
        answer = await Asker(peer).ask(GET, "queries/ALL")
        assert answer.code == code
        assert (answer.option(MAX_AGE) is not None) == (code == Code.SERVICE_UNAVAILABLE)


async def test_a_device_reads_only_the_queries_that_it_may() -> None:
    for allowed, code in (("ALL", Code.CONTENT), ("street/ALL", Code.CONTENT), ("LAMP_STATE", Code.FORBIDDEN)):
        async with served(FakeClient(), frozenset((allowed,))) as (_, _, peer):
            assert (await Asker(peer).ask(GET, "queries/ALL")).code == code
            core = await Asker(peer).whole(".well-known/core")
            assert (b"</queries/ALL>" in core) == (code == Code.CONTENT)


async def test_a_name_of_two_profiles_needs_its_profile() -> None:
    async with served(FakeClient()) as (queries, _, peer):
        queries.change_profiles({"street": PROFILE, "house": PROFILE})
        asker = Asker(peer)
        assert (await asker.ask(GET, "queries/ALL")).code == Code.NOT_FOUND
        assert (await asker.ask(GET, "queries/house/ALL")).code == Code.CONTENT
        assert b"</queries/house/ALL>" in await asker.whole(".well-known/core")


async def test_observers_share_a_subscription_and_get_the_whole_result_when_it_changes() -> None:
    client = FakeClient()
    async with served(client) as (queries, site, peer):
        asker = Asker(peer)
        echo = (await Asker(peer, echo=False).once(GET, "queries/ALL", b"", (OBSERVE, b""))).option(ECHO)
        assert echo is not None
        for n, token in enumerate((b"a", b"b")):
            path = ((URI_PATH, b"queries"), (URI_PATH, b"ALL"), (ACCEPT, b""), (ECHO, echo))
            peer.send(Datagram(CON, GET, 900 + n, token, ((OBSERVE, b""), *path)))
            if not n:
                await until(lambda: bool(client.queues))
                client.tell(0, ON)
            first = await _notification(peer)
            assert (first.token, first.payload) == (token, b"ON")
        assert queries.subscriptions == 1
        client.tell(1, Bag(("state",)), Bag(("state",)))  # nothing that can be seen
        client.tell(2, OFF, ON)
        told = [await _notification(peer) for _ in range(2)]
        assert {(one.token, one.payload) for one in told} == {(b"a", b"OFF"), (b"b", b"OFF")}
        assert len(client.asked) == 1
        assert (await asker.ask(GET, "queries/ALL", b"", (ACCEPT, b""))).payload == b"OFF"
        assert len(client.asked) == 1  # the result that is followed
        client.queues[-1].put_nowait(UnsupportedRequestError("it has ended"))
        ends = [await _notification(peer) for _ in range(2)]
        assert {one.code for one in ends} == {Code.INTERNAL_SERVER_ERROR}
        await until(lambda: site.observers == 0)


async def _notification(peer: RawPeer) -> Datagram:
    """The next answer; a confirmable one is acknowledged."""
    while True:
        found = await peer.receive()
        if found.kind == CON:
            peer.send(Datagram(ACK, 0, found.mid))
        if found.code:
            return found


async def test_an_unused_subscription_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.queries.LINGER_S", 0.0)
    client = FakeClient()
    async with served(client) as (queries, _, _):
        states = queries._observe(_request())
        asking = asyncio.ensure_future(_next(states))
        await until(lambda: bool(client.queues))
        client.tell(0, ON)
        assert (await asking).code == Code.CONTENT
        await states.aclose()
        await until(lambda: client.ended == 1 and queries.subscriptions == 0)


async def test_a_query_beyond_the_bound_is_answered_and_not_observed() -> None:
    client = FakeClient()
    async with served(client) as (queries, site, peer):
        held = [queries._observe(_request(f"ex:l{n}")) for n in range(SUBSCRIPTIONS_MAX)]
        asking = [asyncio.ensure_future(_next(one)) for one in held]
        await until(lambda: len(client.queues) == SUBSCRIPTIONS_MAX)
        answer = await Asker(peer).ask(GET, "queries/ALL", b"", (OBSERVE, b""))
        assert (answer.code, answer.option(OBSERVE), site.observers) == (Code.CONTENT, None, 0)
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)


async def test_a_subscription_without_observers_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.queries.SUBSCRIPTIONS_MAX", 2)
    client = FakeClient()
    async with served(client) as (queries, _, _):
        observed = [queries._observe(_request(f"ex:l{number}")) for number in range(3)]
        for number, states in enumerate(observed):
            asking = asyncio.ensure_future(_next(states))
            await until(lambda count=number: len(client.queues) > count)
            client.tell(0, ON)
            assert (await asking).code == Code.CONTENT
            if number:
                await states.aclose()
        await until(lambda: client.ended == 1)
        assert queries.subscriptions == 2
        assert queries._ready(queries._bound_text(_request("ex:l0"))) is not None
        await observed[0].aclose()


async def test_a_followed_query_costs_nothing() -> None:
    client = FakeClient()
    async with served(client) as (queries, _, _):
        assert queries._cost(_request()) == COST
        with pytest.raises(SiteRefusal):
            queries._cost(SiteRequest("GET", ("queries", "LAMP_STATE"), None, ("lamp",)))  # type: ignore[arg-type]
        states = queries._observe(_request())
        asking = asyncio.ensure_future(_next(states))
        await until(lambda: bool(client.queues))
        client.tell(0, ON)
        await asking
        assert queries._cost(_request()) == 0
        await states.aclose()


async def test_a_failing_query_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    async with served(client) as (queries, _, _):
        for number in range(5):
            asking = asyncio.ensure_future(_next(queries._observe(_request(f"ex:l{number}"))))
            await until(lambda count=number: len(client.queues) > count)
            client.queues[-1].put_nowait(UnsupportedRequestError("this query is not supported"))
            with pytest.raises(SiteRefusal):
                await asking
    assert len([one for one in caplog.records if "not followed" in one.message]) == 1


def _request(lamp: str = "ex:lamp") -> SiteRequest:
    return SiteRequest("GET", ("queries", "LAMP_STATE"), None, (f"lamp={lamp}",))  # type: ignore[arg-type]


async def _next(states: AsyncGenerator[SiteAnswer, None]) -> SiteAnswer:
    return await anext(states)


async def test_a_long_result_is_refused() -> None:
    client = FakeClient(Bag(("state",), [(literal("x" * 70_000),)]))
    with pytest.raises(SiteRefusal) as refusal:
        await query_resources(client)._handle(_request())
    assert refusal.value.code == Code.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize("rows", [ROWS_MAX + 1, 3_000])
async def test_the_work_for_a_long_result_is_done_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Bag] = []
    monkeypatch.setattr(
        "lamplighter.adapters.coap.queries.result_body",
        lambda result, number: made.append(result) or result_body(result, number),  # type: ignore[func-returns-value]
    )
    client = FakeClient(Bag(("state",), [(literal(f"{n} {'x' * 20}"),) for n in range(rows)]))
    async with served(client) as (queries, _, _):
        for _ in range(5):
            with pytest.raises(SiteRefusal, match="too long"):
                await queries._handle(_request())
        assert len(client.asked) == 1
        states = queries._observe(_request())
        asking = asyncio.ensure_future(_next(states))
        await until(lambda: bool(client.queues))
        assert isinstance(client.result, Bag)
        client.tell(0, client.result)
        with pytest.raises(SiteRefusal, match="too long"):
            await asking
        for _ in range(5):
            with pytest.raises(SiteRefusal, match="too long"):
                await queries._handle(_request())
    assert len(made) == (0 if rows > ROWS_MAX else 2)


def test_results_in_senml() -> None:
    rows = [
        (literal("a"), literal("21.5", datatype=f"{XSD}decimal"), literal("Cel"), None),
        (literal("b"), literal("true", datatype=f"{XSD}boolean"), None, None),
        (
            literal("c"),
            iri("http://example.org/ns#on"),
            None,
            literal("2026-11-21T12:00:00Z", datatype=f"{XSD}dateTime"),
        ),
        (literal("d"), literal("7", datatype=f"{XSD}integer"), None, None),
        (literal("e"), literal("NaN", datatype=f"{XSD}double"), None, None),
    ]
    result = Bag(("n", "v", "u", "t"), rows)
    expected = [
        {"n": "a", "u": "Cel", "v": 21.5},
        {"n": "b", "vb": True},
        {"n": "c", "vs": "http://example.org/ns#on", "t": 1795262400.0},
        {"n": "d", "v": 7},
        {"n": "e", "vs": "NaN"},
    ]
    assert json.loads(result_body(result, 110)) == expected
    decoded = cbor.decode(result_body(result, 112))
    assert [one[0] for one in decoded] == ["a", "b", "c", "d", "e"]
    assert [list(one) for one in decoded] == [[0, 1, 2], [0, 4], [0, 3, 6], [0, 2], [0, 3]]
    assert result_body(Bag(result.variables, reversed(rows)), 110) == result_body(result, 110)
    assert cbor.decode(result_body(ON, 60)) == ON.to_json()
    with pytest.raises(PayloadError, match="one variable and one row"):
        result_body(result, 0)
    with pytest.raises(PayloadError, match="xsd:dateTime"):
        result_body(Bag(("v", "t"), [(literal("1"), literal("now"))]), 110)
