"""The layers of the endpoint, each gap of the library's own, with plain sockets and libcoap as peers."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib.metadata
import ipaddress
import itertools
import logging
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiocoap
import pytest
from aiocoap.messagemanager import MessageManager
from aiocoap.numbers.contentformat import ContentFormat
from aiocoap.numbers.optionnumbers import OptionNumber
from aiocoap.protocol import Context
from aiocoap.tokenmanager import TokenManager
from aiocoap.transports.udp6 import MessageInterfaceUDP6, UDP6EndpointAddress

from lamplighter.adapters.coap import endpoint as module
from lamplighter.adapters.coap.blocks import Block, PartialBodies
from lamplighter.adapters.coap.endpoint import (
    ANSWERS_BYTES_MAX,
    ANSWERS_MAX,
    ANSWERS_S,
    OPTIONS_MAX,
    QUEUED_MAX,
    REMOTES_MAX,
    CoapMessages,
    DatagramError,
    Endpoint,
    EndpointCounters,
    read_datagram,
)
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.engine.errors import UpstreamError
from tests.support.coap_datagrams import fuzz, mutants
from tests.support.coap_peers import CLIENT_COMMANDS, free_udp_port, libcoap_server
from tests.support.coap_wire import Faults, Network, WireAddress, run_virtual
from tests.support.components import missing, require_command
from tests.support.event_loops import settled, until
from tests.support.places import ROOT
from tests.support.raw_coap import (
    ACK,
    CHANGED,
    CON,
    CONTENT,
    GET,
    NON,
    OBSERVE,
    PUT,
    RST,
    URI_PATH,
    Datagram,
    RawPeer,
    raw_peer,
)

LOOPBACK = ipaddress.ip_address("127.0.0.1")
SETTINGS = CoapSettings(ack_timeout_s=60)  # nothing is sent again during a test
PATH = (URI_PATH, b"lamp")


class Place(NamedTuple):
    host: str = "127.0.0.1"
    port: int = 0
    requests_max: int = 200


EVERY = Place()


@dataclass
class Answering:
    """A site that answers at once, or keeps the pipes of observers and of requests for /slow."""

    requests: list[aiocoap.Message] = field(default_factory=list)
    pipes: list[Any] = field(default_factory=list)
    ended: int = 0

    async def render_to_pipe(self, pipe: Any) -> None:
        request = pipe.request
        self.requests.append(request)
        if request.opt.observe != 0 and request.opt.uri_path != ("slow",):
            pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED, payload=b"%d" % len(self.requests)), is_last=True)
            return
        self.pipes.append(pipe)
        try:
            if request.opt.observe == 0:
                pipe.add_response(aiocoap.Message(code=aiocoap.CONTENT, payload=b"0", observe=1), is_last=False)
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    def notify(self, observer: int, number: int) -> None:
        message = aiocoap.Message(code=aiocoap.CONTENT, payload=b"%d" % number, observe=number)
        self.pipes[observer].add_response(message, is_last=False)


@asynccontextmanager
async def client(settings: CoapSettings = SETTINGS) -> AsyncIterator[Endpoint]:
    found = await Endpoint.client(settings, EndpointCounters())
    try:
        yield found
    finally:
        await found.close()


@asynccontextmanager
async def server(site: Any, counters: EndpointCounters, place: Place = EVERY, **more: Any) -> AsyncIterator[Endpoint]:
    found = await Endpoint.server(place, site, counters, **more)
    try:
        yield found
    finally:
        await found.close()


def request(endpoint: Endpoint, port: int, payload: bytes = b"ON", **options: Any) -> aiocoap.Message:
    code = options.pop("code", aiocoap.PUT)
    message = aiocoap.Message(code=code, uri=f"coap://127.0.0.1:{port}/lamp", payload=payload, **options)
    message.remote = endpoint.address(LOOPBACK, port)
    return message


def put(port: int, payload: bytes = b"ON", kind: int = CON, mid: int = 1, token: bytes = b"ab") -> Datagram:
    return Datagram(kind, PUT, mid, token, (PATH,), payload)


# What is used of the library.

INNER = {
    TokenManager: set[str](),
    MessageManager: {
        "_active_exchanges",
        "_backlogs",
        "_continue_backlog",
        "_deduplicate_message",
        "_next_message_id",
        "_piggyback_opportunities",
        "_send_initially",
        "_store_response_for_duplicates",
    },
    MessageInterfaceUDP6: {"_create_transport_endpoint", "_ctx"},
    ContentFormat: {"_value2member_map_"},
    OptionNumber: {"_value2member_map_"},
}
"""class -> its inner attributes that `adapters.coap.endpoint` uses."""


async def test_the_library_has_each_inner_attribute_that_is_used() -> None:
    assert importlib.metadata.version("aiocoap") == "0.4.17"
    tokens = TokenManager(Context())
    messages = MessageManager(tokens)
    found = [tokens, messages, MessageInterfaceUDP6(messages, messages.log, messages.loop), ContentFormat, OptionNumber]
    tree = ast.parse((ROOT / "adapters/coap/endpoint.py").read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    inner = {name for name in used if name.startswith("_") and not name.startswith("__")}
    for kind, names in zip(found, INNER.values(), strict=True):
        assert names == {name for name in inner if hasattr(kind, name)}, kind
    for name in ("outgoing_requests", "incoming_requests", "context"):
        assert hasattr(tokens, name)
    for name in ("token_manager", "loop", "log"):
        assert hasattr(messages, name)


async def test_the_layers_are_those_of_the_library() -> None:
    async with client() as endpoint:
        assert isinstance(endpoint.messages, CoapMessages)
        assert endpoint.messages.log.getEffectiveLevel() == logging.ERROR  # bad datagrams are counted, not logged
        link = endpoint._interface.transport.get_extra_info("socket")
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as plain:
            before = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, module.RECEIVE_BUFFER_BYTES)
            most = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == most >= before


# Requests.


async def test_a_token_is_random_or_chosen() -> None:
    async with client() as endpoint:
        with raw_peer() as device:
            tokens, events = [], []
            for chosen in (None, None, b"kept", b"kept"):
                endpoint.start(request(endpoint, device.port), events.append, chosen)
                received = await device.receive()
                tokens.append(received.token)
                device.answer(received, CHANGED)
                await until(lambda: len(events) == len(tokens))
    assert tokens[2:] == [b"kept", b"kept"]
    assert len(set(tokens[:2])) == 2
    assert {len(token) for token in tokens[:2]} == {8}


async def test_message_ids_count_for_each_peer_from_a_random_one() -> None:
    seen: dict[int, list[int]] = {}
    async with client() as endpoint:
        with raw_peer() as one, raw_peer() as two:
            events: list[Any] = []
            for device in (one, two, one, two):
                endpoint.start(request(endpoint, device.port), events.append)
                received = await device.receive()
                seen.setdefault(device.port, []).append(received.mid)
                device.answer(received, CHANGED)
                count = len(events)
                await until(lambda count=count: len(events) > count)
    assert all(second == (first + 1) & 0xFFFF for first, second in seen.values())


def test_ids_of_few_peers_are_remembered() -> None:
    async def counted() -> int:
        endpoint = Network(1, Faults()).endpoint("10.0.0.1")
        for n in range(REMOTES_MAX + 100):
            endpoint.messages._peer = WireAddress("10.0.0.2", n)
            endpoint.messages._next_message_id()
        return len(endpoint.messages._ids)

    assert run_virtual(counted()) == REMOTES_MAX


async def test_after_a_stopped_request_the_next_leaves_at_once_and_a_late_answer_is_ignored() -> None:
    async with client() as endpoint:
        with raw_peer() as device:
            old, new, both = [], [], []
            first = endpoint.start(request(endpoint, device.port, b"ON"), old.append)
            second = endpoint.start(request(endpoint, device.port, b"OFF"), new.append)
            third = endpoint.start(request(endpoint, device.port, b"DIM"), both.append)
            received = await device.receive()
            assert received.payload == b"ON"
            await settled()
            assert device.waiting() == []  # one message at a time (NSTART)
            third.stop()
            first.stop()
            then = await device.receive()
            assert then.payload == b"OFF"
            assert not second.acknowledged
            device.answer(received, CHANGED, b"late")
            device.answer(then, CHANGED)
            await until(lambda: bool(new))
            assert (old, both, len(new)) == ([], [], 1)
            assert second.acknowledged
            await settled()
            assert device.waiting() == []
            assert endpoint.messages._active_exchanges == {}
            assert endpoint.messages._backlogs == {}


async def test_a_separate_answer_acknowledges_its_request() -> None:
    async with client() as endpoint:
        with raw_peer() as device:
            events: list[Any] = []
            ongoing = endpoint.start(request(endpoint, device.port), events.append)
            received = await device.receive()
            device.send(Datagram(CON, CHANGED, 9, received.token))
            assert await device.receive() == Datagram(ACK, 0, 9)
            await until(lambda: bool(events))
            assert ongoing.acknowledged
            assert endpoint.messages._active_exchanges == {}


async def test_an_answer_with_a_wrong_token_or_address_is_ignored() -> None:
    async with client() as endpoint:
        with raw_peer() as device, raw_peer(endpoint.port) as stranger:
            events: list[Any] = []
            ongoing = endpoint.start(request(endpoint, device.port), events.append)
            received = await device.receive()
            stranger.answer(received, CHANGED)
            stranger.send(Datagram(CON, CHANGED, 9, received.token))
            assert await stranger.receive() == Datagram(RST, 0, 9)
            device.answer(received._replace(token=b"guess"), CHANGED)
            device.send(Datagram(NON, CHANGED, 9, b"guess"))
            counters = endpoint.messages._counters
            await until(lambda: counters.answers_unknown == 4)
            assert (events, ongoing.acknowledged) == ([], False)
            device.answer(received, CHANGED)
            await until(lambda: bool(events))


async def test_a_closed_port_fails_all_requests_to_the_peer() -> None:
    async with client() as endpoint:
        port = free_udp_port()
        events: list[Any] = []
        endpoint.start(request(endpoint, port, code=aiocoap.GET, observe=0), events.append)
        endpoint.start(request(endpoint, port), events.append)
        await until(lambda: len(events) == 2)
        assert ["refused" in str(event.exception.__cause__) for event in events] == [True, True]


async def test_an_unreachable_network_fails_the_request() -> None:
    async with client() as endpoint:
        events: list[Any] = []
        message = aiocoap.Message(code=aiocoap.GET, uri="coap://[ff02::1]/")
        message.remote = endpoint.address(ipaddress.ip_address("127.0.0.1"), 0)  # no peer has port 0
        endpoint.start(message, events.append)
        await until(lambda: bool(events))
        assert isinstance(events[0].exception, aiocoap.error.NetworkError)


async def test_requests_to_a_client_are_reset() -> None:
    async with client() as endpoint:
        with raw_peer(endpoint.port) as peer:
            peer.send(put(1, kind=NON))
            peer.send(put(1, mid=7))
            assert await peer.receive() == Datagram(RST, 0, 7)
            assert peer.waiting() == []


async def test_a_closed_endpoint_fails_its_requests() -> None:
    endpoint = await Endpoint.client(SETTINGS, EndpointCounters())
    with raw_peer() as device:
        events: list[Any] = []
        message = request(endpoint, device.port)
        endpoint.start(message, events.append)
        await endpoint.close()
        await endpoint.close()
        assert isinstance(events[0].exception, aiocoap.error.LibraryShutdown)


@pytest.mark.parametrize("turns", range(8))
async def test_an_endpoint_that_is_cancelled_while_it_opens_leaves_no_socket_behind(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    gc.collect()  # what others have left is not counted
    opened = len(list(Path("/proc/self/fd").iterdir()))
    opening = asyncio.create_task(Endpoint.client(SETTINGS, EndpointCounters()))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_open = opening.done()
    opening.cancel()
    await asyncio.wait([opening])
    if was_open:
        await opening.result().close()
    else:
        assert opening.cancelled()
    await settled()
    await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= opened, f"no more than {opened} open files")
    assert not faults
    assert not caplog.records


async def test_a_multicast_request_collects_an_answer_of_each_permitted_peer() -> None:
    async with client() as endpoint:
        with raw_peer() as device, raw_peer(endpoint.port) as other, raw_peer(endpoint.port) as stranger:
            message = aiocoap.Message(code=aiocoap.GET, uri="coap://127.0.0.1/.well-known/core")
            message.remote = endpoint.address(LOOPBACK, device.port)
            collecting = asyncio.create_task(
                endpoint.collect(message, 3600, lambda remote: remote.sockaddr[1] != stranger.port)
            )
            received = await device.receive()
            assert received.kind == NON
            for n, peer in enumerate((device, other, stranger, device)):
                peer.send(Datagram(NON, CONTENT, n, received.token, (), b"%d" % n))
            answers = endpoint._tokens.collecting[received.token][0]
            await until(lambda: len(answers) == 2)
            assert sorted(answer.payload for answer in answers.values()) == [b"0", b"1"]
            collecting.cancel()
            await asyncio.wait([collecting])
            assert endpoint._tokens.collecting == {}


async def test_libcoap_answers_a_multicast_request() -> None:
    with libcoap_server(options=("-g", "224.0.1.187", "-G", "lo"), everywhere=True) as device:
        async with client() as endpoint:
            message = aiocoap.Message(code=aiocoap.GET, uri="coap://224.0.1.187/.well-known/core")
            message.remote = endpoint.address(
                ipaddress.ip_address("224.0.1.187"), device.port, socket.if_nametoindex("lo")
            )
            collecting = asyncio.create_task(endpoint.collect(message, 3600))
            await settled()
            [(answers, _)] = endpoint._tokens.collecting.values()
            await until(lambda: bool(answers))  # libcoap waits for a random time of up to 5 s
            [answer] = answers.values()
            assert (answer.code, answer.opt.content_format) == (aiocoap.CONTENT, 40)
            collecting.cancel()
            await asyncio.wait([collecting])


# The server's side.


async def test_a_repeated_request_gets_the_same_answer_and_has_one_effect() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            answers = []
            for datagram in (put(1), put(1), put(1, b"OFF"), put(1, b"OFF"), put(1, mid=2, kind=NON)):
                peer.send(datagram)
                answers.append((await peer.receive()).payload)
            peer.send(put(1, mid=2, kind=NON))
            await until(lambda: counters.duplicates == 3)
    # A device that rebooted may use an id again: another datagram is another request.
    assert answers == [b"1", b"1", b"2", b"2", b"3"]
    assert len(site.requests) == 3


async def test_a_repeated_request_is_acknowledged_while_its_answer_takes_long() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            slow = Datagram(CON, PUT, 5, b"ab", ((URI_PATH, b"slow"),), b"ON")
            for _ in range(2):
                peer.send(slow)
                assert await peer.receive() == Datagram(ACK, 0, 5)
            site.pipes[0].add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)
            answer = await peer.receive()
            assert (answer.kind, answer.code, answer.token) == (CON, CHANGED, b"ab")
            peer.send(Datagram(ACK, 0, answer.mid))


def received(endpoint: Endpoint, n: int, payload: bytes = b"") -> None:
    """Takes a request, and stores an acknowledgement with the payload."""
    data = Datagram(NON, PUT, n & 0xFFFF, b"", (), b"x").encoded()
    message = read_datagram(data, WireAddress("10.0.0.2", n >> 16))
    endpoint.messages._digest = hash(data)
    assert not endpoint.messages._deduplicate_message(message)
    answer = aiocoap.Message(code=aiocoap.CHANGED, payload=payload, _mtype=ACK, _mid=n & 0xFFFF)
    answer.remote = message.remote
    endpoint.messages._store_response_for_duplicates(answer)


def test_few_requests_are_remembered_and_for_a_time() -> None:
    async def kept() -> list[tuple[int, int]]:
        endpoint, found = Network(1, Faults()).endpoint("10.0.0.1"), []
        messages = endpoint.messages
        for n in range(ANSWERS_MAX + 500):
            received(endpoint, n)
        found.append((len(messages._received), messages._answers_bytes))
        await asyncio.sleep(ANSWERS_S)
        received(endpoint, 1)
        found.append((len(messages._received), messages._answers_bytes))
        for n in range(6000):
            received(endpoint, n + 2, bytes(1000))
        assert messages._answers_bytes == sum(len(one.answer) for one in messages._received.values())
        found.append((len(messages._received), messages._answers_bytes))
        return found

    first, expired, large = run_virtual(kept())
    assert first == (ANSWERS_MAX, ANSWERS_MAX * 4)
    assert expired == (1, 4)
    assert large[0] == ANSWERS_BYTES_MAX // 1005
    assert large[1] <= ANSWERS_BYTES_MAX


async def test_above_the_limit_requests_get_no_answer() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters, Place(requests_max=2)) as endpoint:
        with raw_peer(endpoint.port) as peer:
            for n in range(3):
                peer.send(Datagram(NON, PUT, n, bytes([n]), ((URI_PATH, b"slow"),), b"ON"))
            await until(lambda: counters.requests_dropped == 1)
            site.pipes[0].add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)
            assert (await peer.receive()).code == CHANGED
            for n in (3, 4):  # an observer has its first answer at once, and does not count
                peer.send(Datagram(NON, GET, n, bytes([n]), ((OBSERVE, b""), PATH)))
                assert (await peer.receive()).code == CONTENT
            peer.send(put(1, mid=9))
            assert (await peer.receive()).code == CHANGED


def test_sources_share_the_requests_that_are_being_answered() -> None:
    """Of 200 places. A source is an IPv4 address, or an IPv6 network. The machine's own programs may take all."""

    async def accepted() -> list[int]:
        site = Answering()
        endpoint = Network(3, Faults()).endpoint("10.0.0.1", site=site)
        number = itertools.count()

        async def fill(*hosts: str) -> int:
            before = len(site.pipes)
            for host in hosts * (201 // len(hosts)):
                n = next(number)
                data = Datagram(NON, PUT, n, n.to_bytes(2), ((URI_PATH, b"slow"),), b"ON").encoded()
                endpoint.messages.receive(data, WireAddress(host, n))
                await settled()
            return len(site.pipes) - before

        found = [await fill("192.0.2.1", "::ffff:192.0.2.1"), await fill("2001:db8::1", "2001:db8::2")]
        found += [await fill("2001:db8:1::1"), await fill("127.0.0.1", "::1")]
        for pipe in site.pipes[:60]:
            pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)
        await settled()
        return [*found, await fill("192.0.2.1")]

    assert run_virtual(accepted()) == [100, 50, 25, 25, 10]


async def test_a_source_that_is_not_admitted_gets_no_answer() -> None:
    site, counters = Answering(), EndpointCounters()
    async with AsyncExitStack() as stack:
        with raw_peer() as one, raw_peer() as two:
            endpoint = await stack.enter_async_context(
                server(site, counters, admits=lambda remote, size: remote.sockaddr[1] == one.port)
            )
            for peer in (two, one):
                peer._to = ("127.0.0.1", endpoint.port)
                peer.send(put(1))
            assert (await one.receive()).code == CHANGED
            assert two.waiting() == []
    assert counters.requests_dropped == 1


async def test_a_second_server_on_the_port_is_refused() -> None:
    async with server(Answering(), EndpointCounters()) as endpoint:
        with pytest.raises(UpstreamError, match=str(endpoint.port)):
            await Endpoint.server(Place(port=endpoint.port), Answering(), EndpointCounters())


async def observed(peer: RawPeer, token: bytes = b"ob", mid: int = 9, kind: int = CON) -> None:
    peer.send(Datagram(kind, GET, mid, token, ((OBSERVE, b""), PATH)))
    assert (await peer.receive()).payload == b"0"


async def test_a_newer_notification_replaces_a_queued_one() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            await observed(peer)
            await observed(peer, b"o2", mid=10)
            for number in range(2, 52):
                site.notify(0, number)
                site.notify(1, number)
            first = await peer.receive()
            queue = endpoint.messages._backlogs[next(iter(endpoint.messages._backlogs))]
            assert [(message.token, message.payload) for message, _ in queue] == [(b"o2", b"51"), (b"ob", b"51")]
            assert (first.token, first.payload) == (b"ob", b"2")
            for token in (b"o2", b"ob"):
                peer.send(Datagram(ACK, 0, first.mid))
                first = await peer.receive()
                assert (first.token, first.payload) == (token, b"51")
            assert counters.notifications_replaced == 97


async def test_the_end_of_an_observation_drops_its_queued_notification() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            await observed(peer)
            for number in range(2, 6):
                site.notify(0, number)
            first = await peer.receive()
            peer.send(Datagram(RST, 0, first.mid))
            await until(lambda: site.ended == 1)
            assert endpoint.messages._backlogs == {}
            assert endpoint._tokens.incoming_requests == {}
            assert peer.waiting() == []


async def test_a_renewed_observation_replaces_the_one_with_its_token() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            await observed(peer)
            await observed(peer, mid=10)
            await until(lambda: site.ended == 1)
            assert len(endpoint._tokens.incoming_requests) == 1
            assert endpoint._tokens.answering.total == 0


async def test_few_confirmable_answers_wait_for_a_silent_peer() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            await observed(peer)
            site.notify(0, 2)
            for n in range(QUEUED_MAX + 5):
                peer.send(Datagram(CON, PUT, 100 + n, bytes([n]), ((URI_PATH, b"slow"),), b"ON"))
            await until(lambda: len(site.pipes) == QUEUED_MAX + 6)
            await until(lambda: endpoint.messages._piggyback_opportunities == {})
            for pipe in site.pipes[1:]:
                pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)
            [queue] = endpoint.messages._backlogs.values()
            assert len(queue) == QUEUED_MAX
            assert counters.requests_dropped == 5


# Datagrams that are no messages.

BAD = [
    (b"", None),
    (b"\x40\x01\x00", None),
    (b"\x00\x01\x00\x07", None),  # version 0
    (b"\xc0\x01\x00\x07", None),
    (b"\x49\x01\x00\x07" + b"x" * 9, RST),  # a token of 9 bytes
    (b"\x42\x01\x00\x07a", RST),
    (b"\x40\x01\x00\x07\xb4lam", RST),  # an option that is cut off
    (b"\x40\x01\x00\x07\xf1x", RST),
    (b"\x40\x03\x00\x07\xb4lamp\xff", RST),  # the marker of a payload, and none
    (b"\x40\x20\x00\x07", RST),  # code classes that are reserved
    (b"\x40\x61\x00\x07", RST),
    (b"\x40\xe1\x00\x07", RST),
    (b"\x41\x00\x00\x07a", RST),  # an empty message with a token
    (b"\x50\x00\x00\x07", None),
    (b"\x60\x01\x00\x07", None),
    (b"\x70\x44\x00\x07", None),
    (b"\x50\x01\x00\x07\xb4lam", None),
    (b"\x42\x01\x00\x07ab\xb2\xc3\x28", 0x82),  # a path that is no UTF-8: 4.02 Bad Option
    (b"\x52\x01\x00\x07ab\xb2\xc3\x28", None),
    (b"\x42\x44\x00\x07ab\x82\xc3\x28", RST),
    (b"\x42\x01\x00\x07ab\xbe\x00\x00" + b"x" * 269, 0x82),  # a part of a path with 269 bytes
    (b"\x42\x01\x00\x07ab\xd4\x0a1234", 0x82),  # Block2 with 4 bytes
    (b"\x42\x01\x00\x07ab" + b"\xe0\xff\xff" * 2, RST),  # an option number above 65,535
]


@pytest.mark.parametrize(("data", "answer"), BAD)
async def test_a_bad_datagram_is_counted_and_rejected(data: bytes, answer: int | None) -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            peer.send(data)
            await until(lambda: counters.datagrams_malformed == 1)
            peer.send(b"\x40\x00\x12\x34")
            expected = [Datagram(RST, 0, 0x1234)]
            if answer is not None:
                rejected = Datagram(RST, 0, 7) if answer == RST else Datagram(ACK, answer, 7, b"ab")
                expected.insert(0, rejected)
            assert [await peer.receive() for _ in expected] == expected
    assert site.requests == []


@pytest.mark.parametrize(
    "option", [b"\x00", b"\x03\x01\x02\x03", b"\x0d\x01" + bytes(14), b"\x0e\x00\x00" + bytes(269)]
)
def test_options_are_counted_before_they_are_read(option: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A datagram has room for thousands of them."""
    read: list[bytes] = []
    monkeypatch.setattr(aiocoap.Message, "decode", staticmethod(lambda data, remote: read.append(data)))
    for payload in (b"", b"\xff" + b"x" * 200):
        with pytest.raises(DatagramError) as refused:
            read_datagram(b"\x42\x01\x00\x07ab\xb0" + option * OPTIONS_MAX + payload)
        assert refused.value.in_option
    assert read == []


def test_as_many_options_as_are_permitted_are_read() -> None:
    options = tuple((URI_PATH, b"x" * length) for length in (0, 12, 13, 255) for _ in range(OPTIONS_MAX // 4))
    message = read_datagram(Datagram(CON, GET, 7, b"ab", options, b"x" * 200).encoded())
    assert len(message.opt.uri_path) == OPTIONS_MAX


async def test_a_request_that_is_longer_than_a_datagram_may_be_is_not_taken_in_part() -> None:
    site, counters = Answering(), EndpointCounters()
    async with server(site, counters) as endpoint:
        with raw_peer(endpoint.port) as peer:
            for kind in (NON, CON):
                peer.send(put(1, b"x" * 5_000, kind, mid=7))
            assert await peer.receive() == Datagram(ACK, 0x8D, 7, b"ab", ((27, b"\x06"),))  # 4.13, in blocks
            peer.send(Datagram(CON, CONTENT, 8, b"ab", (), b"x" * 5_000))
            assert await peer.receive() == Datagram(RST, 0, 8)
            peer.send(put(1, b"x" * 4_000, mid=9))
            assert (await peer.receive()).code == CHANGED
    assert (len(site.requests), counters.datagrams_malformed) == (1, 3)


async def test_a_request_is_admitted_before_it_is_read() -> None:
    counters, sizes = EndpointCounters(), list[int]()

    def admits(remote: Any, size: int) -> bool:
        sizes.append(size)
        return False

    async with server(Answering(), counters, admits=admits) as endpoint:
        with raw_peer(endpoint.port) as peer:
            for data, _ in BAD:
                peer.send(data)
            peer.send(put(1, b"x" * 5_000))
            peer.send(b"\x40\x00\x12\x34")
            while await peer.receive() != Datagram(RST, 0, 0x1234):
                pass
    requests = [data for data, _ in BAD if len(data) >= 4 and data[0] >> 6 == 1 and 0 < data[1] < 32]
    assert sizes == [*map(len, requests), 4_096]
    assert counters.requests_dropped == len(sizes)
    assert counters.datagrams_malformed == len(BAD) - len(requests)


def test_an_elective_option_with_a_wrong_length_is_left_out() -> None:
    data = Datagram(CON, CONTENT, 1, b"a", ((OBSERVE, b"12345678"), (12, b""), (14, bytes(range(9)))), b"x").encoded()
    message = read_datagram(data)
    assert (message.opt.observe, message.opt.content_format, message.opt.max_age) == (None, 0, None)


def test_numbers_that_a_sender_makes_up_are_not_kept() -> None:
    """The library remembers them for good."""
    for n in range(2, 65_000, 2):
        read_datagram(Datagram(NON, PUT, 1, b"", ((12, n.to_bytes(2, "big")), (300 + n % 60_000, b"x"))).encoded())
    known = [len(kind._value2member_map_) for kind in (ContentFormat, OptionNumber)]
    assert max(known) < 1000
    assert ContentFormat(50) is ContentFormat.JSON


def test_mutated_datagrams_are_read_or_refused() -> None:
    counts: Counter[str] = Counter()
    for data in mutants(Random(5), 3000):
        try:
            message = read_datagram(data)
        except DatagramError as error:
            counts[f"refused {error.in_option}"] += 1
        else:
            counts["read"] += 1
            message.code.is_request()
    assert len(counts) == 3, counts


async def test_fuzzed_datagrams_leave_the_endpoint_as_it_was() -> None:
    """5,000 of them; the fault tests send 100,000."""
    await fuzz(5_000)


def test_many_peers_leave_little_behind() -> None:
    """Requests and observations of 1,000 peers that vanish."""

    async def left() -> tuple[int, ...]:
        network = Network(3, Faults())
        site = Answering()
        endpoint = network.endpoint("10.0.0.1", site=site)
        for n in range(1000):
            peer = WireAddress("10.0.0.2", n)
            endpoint.messages.receive(Datagram(CON, GET, 1, b"ob", ((OBSERVE, b""), PATH)).encoded(), peer)
            if n % 100 == 99:
                await settled()
        for n in range(1000):
            site.notify(n, 2)
            site.notify(n, 3)
        await asyncio.sleep(3600)
        messages, tokens = endpoint.messages, endpoint._tokens
        kept = (messages._active_exchanges, messages._backlogs, messages._piggyback_opportunities)
        return *map(len, (*kept, tokens.incoming_requests)), tokens.answering.total, site.ended - 1000

    assert run_virtual(left()) == (0, 0, 0, 0, 0, 0)


# Libcoap as the client.


async def libcoap_client(port: int, *options: str) -> asyncio.subprocess.Process:
    command = [require_command(*CLIENT_COMMANDS), "-B", "90", *options, f"coap://127.0.0.1:{port}/lamp"]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def test_libcoap_observes_until_it_ends() -> None:
    site = Answering()
    async with server(site, EndpointCounters()) as endpoint:
        process = await libcoap_client(endpoint.port, "-s", "600", "-w")
        await until(lambda: bool(site.pipes))
        for number in range(2, 5):
            site.notify(0, number)
            await until(lambda: endpoint.messages._active_exchanges == {})
        process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()
        assert output.split() == [b"0", b"2", b"3", b"4"]
        if not site.ended:
            site.notify(0, 5)  # refused by the system
        await until(lambda: site.ended == 1)
        assert endpoint._tokens.incoming_requests == {}


async def test_libcoap_sends_a_body_in_blocks(tmp_path: Path) -> None:
    bodies, received = PartialBodies(), []

    class Receiving:
        async def render_to_pipe(self, pipe: Any) -> None:
            request = pipe.request
            name = (int(request.code), request.opt.uri_path, request.opt.request_tag)
            option = request.opt.block1
            body = bodies.add(request.remote, name, Block(*option), request.payload, 0.0)
            answer = aiocoap.Message(code=aiocoap.CONTINUE if body is None else aiocoap.CHANGED, block1=option)
            if body is not None:
                received.append((body, request.opt.content_format))
            pipe.add_response(answer, is_last=True)

    text = bytes(Random(2).randrange(32, 127) for _ in range(3000))
    (tmp_path / "body").write_bytes(text)
    async with server(Receiving(), EndpointCounters()) as endpoint:
        process = await libcoap_client(
            endpoint.port, "-m", "post", "-t", "110", "-b", "256", "-f", str(tmp_path / "body")
        )
        await process.communicate()
    assert received == [(text, 110)]
    assert len(bodies) == 0


# Addresses.


@pytest.mark.parametrize("text", ["10.0.0.1", "fd00::1", "::1", "2001:db8::102:304", "::1.2.3.4"])
async def test_an_address_equals_the_one_that_the_system_gives(text: str) -> None:
    ip = ipaddress.ip_address(text)
    family = socket.AF_INET6
    packed = ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed
    async with client() as endpoint:
        address = endpoint.address(ip, 5683)
        assert address == UDP6EndpointAddress((socket.inet_ntop(family, packed), 5683, 0, 0), endpoint._interface)
        assert address.pktinfo is None
        scoped = endpoint.address(ip, 5683, 7)
        assert (scoped.sockaddr[3], scoped.pktinfo[16:20]) == (7, (7).to_bytes(4, sys.byteorder))


async def test_a_server_on_ipv6_answers() -> None:
    site = Answering()
    try:
        endpoint = await Endpoint.server(Place("::1"), site, EndpointCounters())
    except UpstreamError as error:
        missing(f"this machine has no IPv6: {error}")
    async with client() as ours:
        events: list[Any] = []
        message = aiocoap.Message(code=aiocoap.PUT, payload=b"ON")
        message.remote = ours.address(ipaddress.ip_address("::1"), endpoint.port)
        ours.start(message, events.append)
        await until(lambda: bool(events))
        assert events[0].message.code == aiocoap.CHANGED
    await endpoint.close()
