"""Fuzzed datagrams, and endpoints that must withstand them."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import aiocoap

from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.settings import CoapSettings
from tests.support.raw_coap import (
    ACK,
    CON,
    CONTENT,
    GET,
    MAX_AGE,
    NON,
    OBSERVE,
    POST,
    PUT,
    RST,
    URI_PATH,
    Datagram,
    raw_peer,
)

TOKEN = b"observed"
PING = 0xFFFF
_PATH = ((URI_PATH, b"lamp"), (URI_PATH, "hâll".encode()))
SEEDS = (
    Datagram(CON, GET, 1, b"ab", ((OBSERVE, b""), *_PATH, (17, b"\x32"), (23, b"\x06"))),
    Datagram(
        CON, PUT, 2, b"abcd", (*_PATH, (12, b"\x32"), (15, b"x=1"), (27, b"\x0e"), (60, b"\x20\x00")), b'{"on":1}'
    ),
    Datagram(NON, POST, 3, b"", ((URI_PATH, b"readings"), (12, b"\x6e"), (252, b"12345678"), (292, b"tag")), b"[{}]"),
    Datagram(CON, CONTENT, 4, TOKEN, ((4, b"etag"), (OBSERVE, b"\x05"), (12, b""), (MAX_AGE, b"\x3c")), b"21.5"),
    Datagram(NON, CONTENT, 5, TOKEN, ((OBSERVE, b"\x06"), (23, b"\x0e")), bytes(1024)),
    Datagram(ACK, CONTENT, 6, TOKEN, ((8, b"rd"), (8, b"1")), b"x"),
    Datagram(ACK, 0, 7),
    Datagram(RST, 0, 8),
)


def mutants(random: Random, count: int, messages: Sequence[Datagram] = SEEDS) -> Iterator[bytes]:
    """Messages with up to three bytes changed, added, removed or cut off. A few are nothing but noise, or far too
    long."""
    seeds = [seed.encoded() for seed in messages]
    for n in range(count):
        if n % 20 == 0:
            yield bytes([0x40 | random.randrange(64)]) + random.randbytes(random.randrange(60))
            continue
        data = bytearray(random.choice(seeds))
        if n % 20 == 1:  # as many options, or as long, as it gets
            data += random.choice((b"\x00", b"\x01x", b"\xd1\x00x", b"\xff")) * random.choice((60, 70, 3_000, 6_000))
            yield bytes(data)
            continue
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data)) if data else 0
            match random.randrange(20):
                case 0:
                    del data[at:]
                case 1 | 2:
                    del data[at : at + 1]
                case 3 | 4:
                    data.insert(at, random.randrange(256))
                case _:
                    data[at : at + 1] = random.randbytes(1)
        yield bytes(data)


class _Site:
    """Answers everything, and keeps observers."""

    rendered = 0

    async def render_to_pipe(self, pipe: Any) -> None:
        self.rendered += 1
        if pipe.request.opt.observe == 0:
            pipe.add_response(aiocoap.Message(code=aiocoap.CONTENT, observe=1), is_last=False)
            await asyncio.Event().wait()
        pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED, payload=b"x"), is_last=True)


class _ServerPlace(NamedTuple):
    host: str = "127.0.0.1"
    port: int = 0
    requests_max: int = 200


async def fuzz(count: int) -> None:
    """Sends datagrams through the sockets of a server and of a client that observes. Then each does its work as before,
    and nothing reached the handler of the loop."""
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    site, counters, events = _Site(), EndpointCounters(), list[Any]()
    server = await Endpoint.server(_ServerPlace(), site, counters)
    client = await Endpoint.client(CoapSettings(ack_timeout_s=600), EndpointCounters())
    try:
        with raw_peer(server.port) as peer, raw_peer(client.port) as device:
            message = aiocoap.Message(code=aiocoap.GET, observe=0)
            message.remote = client.address(ipaddress.ip_address("127.0.0.1"), device.port)
            client.start(message, events.append, TOKEN)
            device.answer(await device.receive(), CONTENT, b"first", ((OBSERVE, b"\x01"),))
            for n, data in enumerate(mutants(Random(7), count)):
                one = peer if n % 4 else device
                one.send(data)
                if n % 200 > 195:
                    one.send(Datagram(CON, 0, PING))
                    while (await one.receive())[:3] != (RST, 0, PING):
                        pass
            peer.send(Datagram(CON, PUT, PING, b"last", _PATH, b"ON"))
            while (await peer.receive()).token != b"last":
                pass
            client.start(message.copy(), events.append, TOKEN)
            device.answer(await device.receive(), CONTENT, b"last", ((OBSERVE, b"\x01"),))
            while not (events and events[-1].message is not None and events[-1].message.payload == b"last"):
                await asyncio.sleep(0.005)
    finally:
        await client.close()
        await server.close()
    assert faults == []
    assert site.rendered > count / 20
    assert counters.datagrams_malformed > count / 10
