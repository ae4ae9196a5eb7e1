"""The checks of the CoAP server, in their order, and the bounds for sources that are not verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

import aiocoap
import pytest
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.admission import ANSWER_BYTES_MIN, FACTOR, REQUESTS_BURST
from lamplighter.adapters.coap.answers import KEPT_MAX, KeptAnswers
from lamplighter.adapters.coap.blocks import BODIES_MAX, Block
from lamplighter.adapters.coap.callers import Callers
from lamplighter.adapters.coap.context_files import make_context
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.links import Link
from lamplighter.adapters.coap.observers import OBSERVERS_OF_SOURCE_MAX
from lamplighter.adapters.coap.serving import SiteAnswer, SiteCaller, SiteEntry, SiteMethod, SitePath, SiteRequest
from lamplighter.adapters.coap.settings import CoapDeviceSettings
from lamplighter.adapters.coap.site import DELAYED_MAX, Site
from lamplighter.adapters.networks import Networks
from tests.support.amounts import Amounts
from tests.support.coap_datagrams import mutants
from tests.support.coap_site import (
    ACCEPT,
    BLOCK1,
    CONTENT_FORMAT,
    ETAG,
    PROXY_URI,
    REQUEST_TAG,
    SIZE1,
    URI_QUERY,
    Asker,
    Shelf,
    coap_site,
)
from tests.support.coap_wire import WireAddress
from tests.support.event_loops import until
from tests.support.oscore_devices import Device
from tests.support.raw_coap import (
    ACK,
    BLOCK2,
    CON,
    ECHO,
    GET,
    MAX_AGE,
    NON,
    OBSERVE,
    POST,
    PUT,
    RST,
    URI_PATH,
    Datagram,
    RawPeer,
    raw_peer,
)

DELETE = 4
LONG = bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("method", "path", "payload", "options", "code"),
    [
        (GET, "long", b"", ((9_999, b"x"),), Code.BAD_OPTION),
        (PUT, "box", b"", ((5, b""),), Code.BAD_OPTION),  # If-None-Match
        (GET, "long", b"", ((PROXY_URI, b"coap://other/"),), Code.PROXYING_NOT_SUPPORTED),
        (GET, "nothing", b"", (), Code.NOT_FOUND),
        (GET, "long/below", b"", (), Code.NOT_FOUND),
        (GET, "", b"", (), Code.NOT_FOUND),
        (GET, "", b"", ((URI_PATH, b"long"), (URI_PATH, b"")), Code.NOT_FOUND),
        (GET, "secret", b"", (), Code.FORBIDDEN),
        (DELETE, "long", b"", (), Code.METHOD_NOT_ALLOWED),
        (GET, "box", b"", (), Code.METHOD_NOT_ALLOWED),
        (5, "long", b"", (), Code.METHOD_NOT_ALLOWED),  # FETCH
        (GET, "long", b"", ((ACCEPT, b"\x3c"),), Code.NOT_ACCEPTABLE),
        (POST, "box", b"x", ((CONTENT_FORMAT, b"\x32"),), Code.UNSUPPORTED_CONTENT_FORMAT),
        (POST, "box", b"x", ((SIZE1, b"\x07\xd1"),), Code.REQUEST_ENTITY_TOO_LARGE),
        (POST, "box", bytes(2_001), (), Code.REQUEST_ENTITY_TOO_LARGE),
        (POST, "box", bytes(64), ((BLOCK1, b"\x1a"),), Code.REQUEST_ENTITY_INCOMPLETE),
        (POST, "box", bytes(60), ((BLOCK1, b"\x0a"),), Code.BAD_REQUEST),  # a block that is too short
        (POST, "box", b"bad", (), Code.BAD_REQUEST),
        (GET, "long", b"", ((BLOCK2, b"\x16"),), Code.BAD_REQUEST),  # a block behind the end
        (POST, "full", b"", (), Code.SERVICE_UNAVAILABLE),
        (GET, "broken", b"", (), Code.INTERNAL_SERVER_ERROR),
        (GET, ".well-known/core", b"", ((URI_QUERY, b"=x"),), Code.BAD_REQUEST),
        (GET, "long", b"", ((9, b"\x09\x01x"),), Code.UNAUTHORIZED),  # OSCORE with an unknown key
    ],
)
async def test_each_fault_has_its_code_and_is_counted(
    method: int, path: str, payload: bytes, options: tuple[tuple[int, bytes], ...], code: Code
) -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (site, peer):
        answer = await Asker(peer).ask(method, path, payload, *options)
        assert answer.code == code
        assert len(answer.payload) <= 60
        assert site.counters.refused == {code.dotted: 1}
        assert site.counts()["requests_refused"] == 1
        if code == Code.REQUEST_ENTITY_TOO_LARGE:
            assert answer.option(SIZE1) == b"\x07\xd0"
        if code == Code.SERVICE_UNAVAILABLE:
            assert answer.option(MAX_AGE) == b"\x0a"
        assert (await Asker(peer).ask(PUT, "box", b"good", token=b"next")).code == Code.CHANGED


async def test_an_unprotected_request_needs_a_permitted_network_or_a_device_without_a_key() -> None:
    shelf = Shelf()
    async with coap_site(shelf, plain=()) as (_site, peer):
        assert (await Asker(peer).ask(PUT, "box", b"x")).code == Code.UNAUTHORIZED
        core = await Asker(peer).ask(GET, ".well-known/core", token=b"core")
        assert (core.code, core.payload) == (Code.CONTENT, b"</.well-known/core>;ct=40")
        assert shelf.requests == []
    lamp = CoapDeviceSettings(address="127.0.0.1", security="plain")
    async with coap_site(shelf, plain=(), devices={"lamp": lamp}) as (_site, peer):
        assert (await Asker(peer).ask(GET, "secret")).code == Code.CONTENT
        assert shelf.requests[-1].caller.device == "lamp"


@dataclass
class ProtectedAsker:
    """Sends requests under OSCORE, and repeats them with the Echo value that is asked for."""

    device: Device
    peer: RawPeer
    mid: int = 0

    async def ask(self, **options: Any) -> tuple[aiocoap.Message, Any]:
        """The first answer, and what verifies further ones."""
        echo = b""
        while True:
            self.mid += 1
            inner = aiocoap.Message(code=aiocoap.GET, **options)
            inner.opt.echo = echo or None
            outer, request = self.device.context.protect(inner)
            outer.opt.observe = inner.opt.observe
            outer.mtype, outer.mid, outer.token = aiocoap.CON, self.mid, b"o%d" % self.mid
            self.peer.send(outer.encode())
            found = await self.told(request)
            if found.code != Code.UNAUTHORIZED or not found.opt.echo or echo:
                return found, request
            echo = found.opt.echo

    async def told(self, request: Any) -> aiocoap.Message:
        """The next verified answer to a request."""
        received = await self.peer.receive()
        if received.kind == CON:
            self.peer.send(Datagram(ACK, 0, received.mid))
        answer = aiocoap.Message.decode(received.encoded())
        if answer.opt.oscore is None:
            return answer
        answer.opt.observe = None  # the number of a protected notification is its sender number
        found: aiocoap.Message = self.device.context.unprotect(answer, request)[0]
        return found


@asynccontextmanager
async def protected(folder: Path, shelf: Shelf) -> AsyncIterator[tuple[Site, ProtectedAsker]]:
    """A site that takes no unprotected requests, and the device "lamp"."""
    device = Device(folder / "device", make_context(folder / "contexts", "lamp", "192.0.2.1"))
    contexts = Contexts.load(folder / "contexts")
    try:
        async with coap_site(shelf, plain=(), contexts=contexts) as (site, peer):
            yield site, ProtectedAsker(device, peer)
    finally:
        contexts.close()
        device.context._destroy()


async def test_a_protected_request_is_of_its_device_and_its_answer_is_protected(tmp_path: Path) -> None:
    shelf = Shelf(text=LONG)
    async with protected(tmp_path, shelf) as (_, asker):
        found, _ = await asker.ask(uri_path=("secret",))
        assert (found.code, found.payload) == (Code.CONTENT, LONG[:1024])
        assert found.opt.block2.more
        caller = shelf.requests[-1].caller
        assert (caller.device, caller.protected, caller.verified) == ("lamp", True, True)
        refused, _ = await asker.ask(uri_path=("nothing",))
        assert refused.code == Code.NOT_FOUND


async def test_an_observer_with_a_key_gets_protected_notifications(tmp_path: Path) -> None:
    shelf = Shelf()
    async with protected(tmp_path, shelf) as (site, asker):
        found, request = await asker.ask(uri_path=("state",), observe=0)
        assert (found.code, found.payload, site.observers) == (Code.CONTENT, b"0", 1)
        for state in (b"1", b"2"):
            shelf.state = state
            shelf.changed.set()
            assert (await asker.told(request)).payload == state


async def test_an_unverified_source_gets_no_large_answer_until_it_repeats_the_echo_value() -> None:
    shelf = Shelf(text=LONG)
    async with coap_site(shelf) as (site, peer):
        asker = Asker(peer, echo=False)
        for extra in (0, 10, 100, 200):
            first = await asker.once(GET, "long", b"", (URI_QUERY, bytes(extra)))
            assert first.code == Code.CONTENT
            assert first.option(BLOCK2) is not None
            assert first.option(ECHO) is not None
            assert first.payload == LONG[: len(first.payload)]
        assert all(given <= max(FACTOR * asked, ANSWER_BYTES_MIN) for asked, given in asker.sizes)
        second = await asker.once(GET, "long", b"", (BLOCK2, b"\x16"))
        assert (second.code, second.payload) == (Code.UNAUTHORIZED, b"")
        assert await Asker(peer).whole("long") == LONG
        assert site.counters.echo_requested == 1


async def test_a_forged_source_changes_nothing_where_writes_need_echo() -> None:
    shelf = Shelf()
    async with coap_site(shelf, echo_writes=True) as (site, peer):
        asker = Asker(peer, echo=False)
        for echo in ((), ((ECHO, b"12345678"),), ((ECHO, b"1"),)):
            answer = await asker.once(POST, "box", b"ON", *echo)
            assert (answer.code, answer.payload) == (Code.UNAUTHORIZED, b"")
        assert shelf.requests == []
        assert site.counters.echo_requested == 3
        assert (await Asker(peer).ask(POST, "box", b"ON", token=b"e")).code == Code.CHANGED
        assert (await asker.once(POST, "box", b"OFF", token=b"f")).code == Code.CHANGED  # verified now
        assert [one.body for one in shelf.requests] == [b"ON", b"OFF"]
        assert all(one.caller.verified for one in shelf.requests)
    async with coap_site(shelf) as (_site, peer):
        assert (await Asker(peer, echo=False).once(POST, "box", b"ON")).code == Code.CHANGED
        assert not shelf.requests[-1].caller.verified


async def test_a_body_in_blocks_arrives_whole() -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (_site, peer):
        asker, body = Asker(peer), LONG[:1_500]
        codes = []
        for number in range(24):
            part = body[number * 64 : number * 64 + 64]
            block = (number << 4 | (8 if len(part) == 64 and number < 23 else 0) | 2).to_bytes(2, "big").lstrip(b"\0")
            answer = await asker.ask(PUT, "box", part, (BLOCK1, block), (REQUEST_TAG, b"tag"))
            assert answer.option(BLOCK1) == block
            codes.append(answer.code)
        assert codes == [Code.CONTINUE] * 23 + [Code.CHANGED]
        assert [one.body for one in shelf.requests] == [body]
        blocks = [(number << 4 | 8 | 6).to_bytes(2, "big").lstrip(b"\0") for number in range(2)]
        assert (await asker.ask(PUT, "box", bytes(1024), (BLOCK1, blocks[0]))).code == Code.CONTINUE
        assert (await asker.ask(PUT, "box", bytes(1024), (BLOCK1, blocks[1]))).code == Code.REQUEST_ENTITY_TOO_LARGE


async def test_a_known_body_is_not_sent_again() -> None:
    async with coap_site(Shelf()) as (_site, peer):
        asker = Asker(peer)
        first = await asker.ask(GET, "long")
        tag = first.option(ETAG)
        assert tag is not None
        same = await asker.ask(GET, "long", b"", (ETAG, tag))
        assert (same.code, same.payload) == (Code.VALID, b"")
        other = await asker.ask(GET, "long", b"", (ETAG, b"other"))
        assert (other.code, other.payload) == (Code.CONTENT, b"short")


async def test_all_blocks_are_of_one_state() -> None:
    shelf = Shelf(text=LONG)
    async with coap_site(shelf) as (_site, peer):
        asker = Asker(peer)
        for _ in range(2):
            first = await asker.ask(GET, "long", b"", (BLOCK2, b"\x06"))
            value = first.option(ECHO)
            if value is not None:
                first = await asker.ask(GET, "long", b"", (BLOCK2, b"\x06"), (ECHO, value))
        shelf.text = b"other" * 1000
        second = await asker.ask(GET, "long", b"", (BLOCK2, b"\x16"))
        assert second.payload == LONG[1024:2048]
        assert second.option(ETAG) == first.option(ETAG)


async def _observing(peer: RawPeer, token: bytes, kind: int = CON) -> Datagram:
    """Registers, and returns the first notification."""
    answer = None
    for mid, echo in ((100, ()), (101, None)):
        options: Any = echo if echo is not None else ((ECHO, answer.option(ECHO)),) if answer else ()
        path = (URI_PATH, b"state")
        peer.send(Datagram(kind, GET, mid + token[0] * 2, token, ((OBSERVE, b""), path, *options)))
        answer = await peer.receive()
        if answer.code == Code.CONTENT:
            break
    assert answer is not None
    return answer


async def test_an_observer_gets_each_state_until_it_cancels() -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (site, peer):
        first = await _observing(peer, b"o")
        numbers = [int.from_bytes(first.option(OBSERVE) or b"", "big")]
        assert first.payload == b"0"
        for n in range(1, 4):
            shelf.state = b"%d" % n
            shelf.changed.set()
            told = await peer.receive()
            assert (told.kind, told.payload, told.token) == (CON, b"%d" % n, b"o")
            numbers.append(int.from_bytes(told.option(OBSERVE) or b"", "big"))
            peer.send(Datagram(2, 0, told.mid))
        assert numbers == sorted(set(numbers))
        assert (site.observers, site.counters.notifications) == (1, 3)
        peer.send(Datagram(CON, GET, 9, b"o", ((OBSERVE, b"\x01"), (URI_PATH, b"state"))))
        last = await peer.receive()
        assert (last.code, last.option(OBSERVE)) == (Code.CONTENT, None)
        await until(lambda: shelf.observed == 0 and site.observers == 0)


async def test_a_reset_ends_an_observation() -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (site, peer):
        await _observing(peer, b"o")
        shelf.changed.set()
        told = await peer.receive()
        peer.send(Datagram(RST, 0, told.mid))
        await until(lambda: shelf.observed == 0 and site.observers == 0)


async def test_observe_needs_a_verified_source_and_has_a_bound_for_each() -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (site, peer):
        refused = await Asker(peer, echo=False).once(GET, "state", b"", (OBSERVE, b""))
        assert (refused.code, site.observers) == (Code.UNAUTHORIZED, 0)
        for n in range(OBSERVERS_OF_SOURCE_MAX):
            assert (await _observing(peer, b"%c" % (n + 10))).option(OBSERVE) is not None
        beyond = await _observing(peer, b"%c" % 200)
        assert (beyond.code, beyond.option(OBSERVE)) == (Code.CONTENT, None)
        for n in range(OBSERVERS_OF_SOURCE_MAX):  # each can be renewed, though there is no room
            assert (await _observing(peer, b"%c" % (n + 10))).option(OBSERVE) is not None
        await until(lambda: shelf.observed == site.observers == OBSERVERS_OF_SOURCE_MAX)


async def test_unconfirmable_notifications_are_confirmed_now_and_then() -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (_site, peer):
        assert (await _observing(peer, b"o", NON)).kind == NON
        kinds = []
        for n in range(25):
            shelf.state = b"%d" % n
            shelf.changed.set()
            told = await peer.receive()
            kinds.append(told.kind)
            if told.kind == CON:
                peer.send(Datagram(2, 0, told.mid))
        assert kinds.count(CON) == 1


class _Remote:
    """A peer whose request came by multicast."""

    is_multicast = False
    is_multicast_locally = True
    sockaddr = ("127.0.0.1", 5683, 0, 0)


class _Pipe:
    def __init__(self, *options: tuple[str, Any]) -> None:
        self.request = aiocoap.Message(code=aiocoap.GET)
        self.request.remote = _Remote()
        for name, value in options:
            setattr(self.request.opt, name, value)
        self.answers: list[aiocoap.Message] = []

    def add_response(self, message: aiocoap.Message, is_last: bool) -> None:
        assert is_last
        self.answers.append(message)


@pytest.mark.parametrize(
    ("path", "query", "answered"),
    [
        ((".well-known", "core"), ("rt=lamp",), True),
        ((".well-known", "core"), ("rt=other",), False),
        ((".well-known", "core"), (), False),
        (("long",), ("x=1",), False),
    ],
)
async def test_a_multicast_request_is_answered_only_with_what_matches_its_filter(
    path: tuple[str, ...], query: tuple[str, ...], answered: bool
) -> None:
    callers = Callers(Contexts(), {}, Networks(("127.0.0.0/8",), "coap.plain"))
    site = Site(callers, [Shelf()], echo_writes=False, leisure=lambda: 0.0)
    pipe = _Pipe(("uri_path", path), ("uri_query", query))
    await site.render_to_pipe(pipe)
    [answer] = pipe.answers
    assert (answer.opt.no_response is None) == answered
    if answered:
        assert answer.payload == b'</state>;rt="lamp";obs'


async def test_few_answers_to_multicast_requests_wait() -> None:
    """Their sources can be forged, and each would hold the place of another request."""
    callers = Callers(Contexts(), {}, Networks(("127.0.0.0/8",), "coap.plain"))
    site = Site(callers, [Shelf()], echo_writes=False, leisure=lambda: 60.0)
    pipes = [_Pipe(("uri_path", (".well-known", "core")), ("uri_query", ("rt=lamp",))) for _ in range(2 * DELAYED_MAX)]
    tasks = [asyncio.ensure_future(site.render_to_pipe(pipe)) for pipe in pipes]
    await until(lambda: sum(task.done() for task in tasks) == DELAYED_MAX)
    assert all(pipe.answers[0].opt.no_response is not None for pipe in pipes[DELAYED_MAX:])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert site._delayed == 0


@pytest.mark.parametrize("number", [3, 7, ACCEPT, BLOCK1, BLOCK2])
async def test_a_critical_option_that_comes_twice_is_refused(number: int) -> None:
    async with coap_site(Shelf()) as (_, peer):
        answer = await Asker(peer).ask(GET, "long", b"", (number, b"\x06"), (number, b"\x06"))
        assert (answer.code, answer.payload) == (Code.BAD_OPTION, b"option %d" % number)


async def test_forged_sources_fill_only_half_of_the_room_for_bodies() -> None:
    shelf = Shelf()
    async with coap_site(shelf) as (site, peer):
        for number in range(BODIES_MAX):  # as by sources that were verified once
            if not site._bodies.is_crowded:
                site._bodies.add(number, "name", Block(0, True, 0), bytes(16), site._monotonic())
        assert len(site._bodies) == BODIES_MAX // 2
        first = (BLOCK1, b"\x08")
        refused = await Asker(peer, echo=False).ask(POST, "box", bytes(16), first, token=b"x")
        assert refused.code == Code.UNAUTHORIZED and refused.option(ECHO)
        assert len(site._bodies) == BODIES_MAX // 2
        asker = Asker(peer)
        assert (await asker.ask(POST, "box", bytes(16), first)).code == Code.CONTINUE
        assert (await asker.ask(POST, "box", b"end", (BLOCK1, b"\x10"))).code == Code.CHANGED
        assert shelf.requests[-1].body == bytes(16) + b"end"


async def test_a_source_that_sends_too_much_gets_no_answer() -> None:
    async with coap_site(Shelf()) as (site, peer):
        for mid in range(500):
            peer.send(Datagram(NON, GET, mid, b"%d" % mid, ((URI_PATH, b"nothing"),)))
            if mid % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: site.counters.requests >= 100)
        assert site.counters.requests < 500


def test_a_long_request_counts_as_several() -> None:
    callers = Callers(Contexts(), {}, Networks((), "coap.plain"))
    site = Site(callers, (), echo_writes=False, monotonic=lambda: 0.0)
    sizes = {"192.0.2.1": 100, "192.0.2.2": 1_100, "192.0.2.3": 4_096}  # the last one counts as three
    admitted = [sum(site.admits(WireAddress(host, 1), size) for _ in range(200)) for host, size in sizes.items()]
    assert admitted == [REQUESTS_BURST, REQUESTS_BURST, REQUESTS_BURST // 3]


async def test_fuzzed_requests_reach_no_handler_of_the_loop_and_the_server_works_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, amounts: Amounts
) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.admission.REQUESTS_BURST", 1e9)
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    shelf = Shelf(text=LONG)
    box = (URI_PATH, b"box")
    seeds = (
        Datagram(CON, GET, 1, b"a", ((OBSERVE, b""), (URI_PATH, b"state"), (ACCEPT, b""), (BLOCK2, b"\x02"))),
        Datagram(CON, POST, 2, b"b", (box, (CONTENT_FORMAT, b""), (BLOCK1, b"\x08"), (SIZE1, b"\x40")), bytes(16)),
        Datagram(NON, PUT, 3, b"", (box, (ECHO, b"12345678"), (REQUEST_TAG, b"tag")), b"x"),
        Datagram(CON, GET, 4, b"d", ((ETAG, b"etag"), (URI_PATH, b"long"), (URI_QUERY, b"a=b"), (BLOCK2, b"\x16"))),
        Datagram(CON, GET, 5, b"e", ((URI_PATH, b".well-known"), (URI_PATH, b"core"), (URI_QUERY, b"rt=lamp*"))),
        Datagram(CON, POST, 6, b"f", ((9, b"\x09\x01x"), (PROXY_URI, b"coap://a/")), b"oscore"),
    )
    async with coap_site(shelf) as (site, peer):
        asker = Asker(peer)
        for n, data in enumerate(mutants(Random(11), amounts.of(5_000), seeds)):
            peer.send(data)
            if n % 100 == 99:
                await asker.once(PUT, "box", b"x", token=b"p%d" % n)
        assert (await asker.ask(PUT, "box", b"last", token=b"last")).code == Code.CHANGED
        assert site.counters.requests > amounts.of(1_000)
        assert set(site.counters.refused) >= {"4.00", "4.01", "4.02", "4.04", "4.05"}
        assert "5.00" not in site.counters.refused
    assert faults == []
    assert "failed" not in caplog.text


@dataclass
class _Costly:
    """A resource that counts as ten further requests."""

    handled: int = 0

    def entry(self, path: SitePath) -> SiteEntry | None:
        return SiteEntry({"GET": SiteMethod(self._handle, cost=lambda request: 10)})

    def links(self, caller: SiteCaller) -> Iterable[Link]:
        return ()

    async def _handle(self, request: SiteRequest) -> SiteAnswer:
        self.handled += 1
        return SiteAnswer(Code.CONTENT, bytes(2_000))


async def test_costly_requests_have_a_rate_for_each_source_and_for_all_that_may_be_forged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lamplighter.adapters.coap.admission.REQUESTS_PER_S", 1e-4)
    costly = _Costly()
    async with coap_site(costly) as (site, peer):
        asker = Asker(peer, echo=False)
        assert site._may_take(site._costs, ip_address("::"), REQUESTS_BURST - 10)  # as by forged sources
        answers = [await asker.ask(GET, "any") for _ in range(3)]
        assert [one.code for one in answers] == [Code.CONTENT, Code.UNAUTHORIZED, Code.UNAUTHORIZED]
        assert costly.handled == 1
        echo = answers[-1].option(ECHO)
        assert echo is not None
        assert (await asker.ask(GET, "any", b"", (ECHO, echo))).code == Code.CONTENT
        while (answer := await asker.ask(GET, "any")).code == Code.CONTENT:
            further = await asker.ask(GET, "any", b"", (BLOCK2, b"\x16"))  # a further block costs nothing
            assert further.code == Code.CONTENT
        assert (answer.code, answer.option(MAX_AGE)) == (Code.TOO_MANY_REQUESTS, b"\x01")
        assert costly.handled == REQUESTS_BURST // 10


async def test_sources_that_may_be_forged_do_not_displace_the_answers_of_others() -> None:
    shelf = Shelf(text=LONG)
    async with coap_site(shelf) as (_, peer):
        asker = Asker(peer)
        assert (await asker.ask(GET, "state", b"", (OBSERVE, b""))).code == Code.CONTENT  # verifies the source
        assert (await asker.ask(GET, "long")).payload == LONG[:1_024]
        with raw_peer(peer._to[1]) as forged:
            for number in range(KEPT_MAX + 1):
                await Asker(forged, echo=False).ask(GET, "long", b"", (URI_QUERY, b"%d" % number), token=b"%d" % number)
        before = len(shelf.requests)
        assert (await asker.ask(GET, "long", b"", (BLOCK2, b"\x16"))).payload == LONG[1_024:2_048]
        assert len(shelf.requests) == before


def test_kept_answers_are_bounded_and_expire() -> None:
    kept = KeptAnswers()
    for n in range(KEPT_MAX + 1):
        kept.keep(n, SiteAnswer(Code.CONTENT, b"x"), 0.0)
    assert kept.get(0, 1.0) is None
    assert kept.get(1, 1.0) is not None
    assert kept.get(1, 61.0) is None
    kept.keep("large", SiteAnswer(Code.CONTENT, bytes(1 << 20)), 2.0)
    assert kept.get(KEPT_MAX, 2.0) is None
