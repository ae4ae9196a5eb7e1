"""Requests to devices: libcoap's, plain sockets, and devices on a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import aiocoap
import pytest

from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.exchanges import Exchanges, Seal, no_seal, uri_message
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.devices.sender import Outdated
from lamplighter.adapters.networks import Address, Networks
from lamplighter.adapters.resources.exchange import DeviceAnswer, DeviceRequest
from lamplighter.engine.errors import PayloadError, UpstreamError
from tests.support.coap_peers import free_udp_port, libcoap_server
from tests.support.coap_wire import Faults, Network, run_virtual
from tests.support.event_loops import settled, until
from tests.support.raw_coap import (
    ACK,
    BLOCK2,
    CHANGED,
    CON,
    CONTENT,
    CONTINUE,
    ECHO,
    RST,
    Datagram,
    RawPeer,
    raw_peer,
)
from tests.support.tables import each_row
from tests.support.udp_proxy import udp_proxy

BLOCK1, SIZE1, SIZE2, REQUEST_TAG = 27, 60, 28, 292
PATIENT = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=60, answer_timeout_s=100)
"""Nothing is sent again during a test."""
QUICK = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=0.1, retransmissions_max=10, answer_timeout_s=100)
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


@asynccontextmanager
async def exchanges(settings: CoapSettings = PATIENT, **more: Any) -> AsyncIterator[Exchanges]:
    endpoint = await Endpoint.client(settings, EndpointCounters())
    networks = Networks(settings.networks, "coap.networks")
    try:
        yield Exchanges(endpoint, networks, settings, now=lambda: NOON, **more)
        messages = endpoint.messages
        assert (messages._active_exchanges, messages._backlogs, endpoint._tokens.outgoing_requests) == ({}, {}, {})
    finally:
        await endpoint.close()


def put(port: int, body: bytes = b"ON", **more: Any) -> DeviceRequest:
    return DeviceRequest(f"coap://127.0.0.1:{port}/lamp", "PUT", body, 0, **more)


def get(port: int, path: str = "lamp", **more: Any) -> DeviceRequest:
    return DeviceRequest(f"coap://127.0.0.1:{port}/{path}", "GET", **more)


def block(number: int, more: bool, exponent: int) -> bytes:
    value = number << 4 | more << 3 | exponent
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def number_of(option: bytes | None) -> tuple[int, bool, int]:
    value = int.from_bytes(option or b"", "big")
    return value >> 4, bool(value & 8), value & 7


@asynccontextmanager
async def asking(device: RawPeer, request: DeviceRequest, settings: CoapSettings = PATIENT) -> AsyncIterator[Any]:
    """A request to a plain socket, as a task that the block answers."""
    async with exchanges(settings) as ours:
        task = asyncio.create_task(ours.request(request))
        yield task
        await asyncio.wait([task])


# Libcoap's server.


async def test_a_state_is_put_and_read_back() -> None:
    with libcoap_server() as device:
        async with exchanges() as ours:
            made = await ours.request(put(device.port))
            changed = await ours.request(put(device.port, b"OFF"))
            read = await ours.request(get(device.port))
            missing = await ours.request(get(device.port, "other"))
    assert made == DeviceAnswer("2.01", b"", None, None, None, NOON, NOON)
    assert changed.code == "2.04"
    assert (read.code, read.body) == ("2.05", b"OFF")
    assert (missing.code, missing.successful) == ("4.04", False)


async def test_long_bodies_go_in_blocks_both_ways() -> None:
    """Read over a lossy link. libcoap 4.3.1 takes a last block that is sent again for another body."""
    body = bytes(Random(3).randrange(32, 127) for _ in range(5000))
    with libcoap_server() as device:
        async with udp_proxy(device.port, Faults(), 11) as link, exchanges(QUICK) as ours:
            data = get(link.port, "example_data")
            written = await ours.request(data._replace(method="PUT", body=body, format=0))
            link.faults = Faults(0.2, 0.1, 0.02)
            read = await ours.request(data)
    assert written.successful
    assert (read.code, read.body) == ("2.05", body)
    assert link.dropped > 0


async def test_a_silent_device_gives_no_answer() -> None:
    quick = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=0.01, retransmissions_max=1)
    with raw_peer() as device:
        async with exchanges(quick) as ours:
            with pytest.raises(UpstreamError, match="no answer"):
                await ours.request(put(device.port))
        assert len(device.waiting()) == 2


async def test_a_device_that_acknowledges_and_never_answers_gives_no_answer() -> None:
    settings = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=60, answer_timeout_s=0.2)
    with raw_peer() as device:
        async with asking(device, put(device.port), settings) as task:
            device.send(Datagram(ACK, 0, (await device.receive()).mid))
        with pytest.raises(UpstreamError, match="no answer"):
            task.result()


async def test_a_closed_port_gives_the_reason() -> None:
    async with exchanges() as ours:
        with pytest.raises(UpstreamError, match="refused"):
            await ours.request(put(free_udp_port()))


async def test_a_device_that_resets_gives_the_reason() -> None:
    with raw_peer() as device:
        async with asking(device, put(device.port)) as task:
            device.send(Datagram(RST, 0, (await device.receive()).mid))
        with pytest.raises(UpstreamError, match="rejected"):
            task.result()


async def test_an_address_outside_of_the_networks_is_refused_before_a_datagram() -> None:
    with raw_peer() as device:
        async with exchanges(CoapSettings(networks=("10.0.0.0/8",))) as ours:
            with pytest.raises(PayloadError, match=r"coap\.networks"):
                await ours.request(put(device.port))
        assert device.waiting() == []


async def test_requests_that_cannot_be_sent_are_refused() -> None:
    async with exchanges() as ours:
        with pytest.raises(PayloadError, match="65,536"):
            await ours.request(put(1, bytes(65_537)))
        with pytest.raises(PayloadError, match="valid"):
            uri_message("GET", "coap://127.0.0.1/%ff")


async def test_the_end_of_the_endpoint_fails_a_request() -> None:
    with raw_peer() as device:
        endpoint = await Endpoint.client(PATIENT, EndpointCounters())
        ours = Exchanges(endpoint, Networks(PATIENT.networks, "coap.networks"), PATIENT)
        task = asyncio.create_task(ours.request(put(device.port)))
        await device.receive()
        await endpoint.close()
        with pytest.raises(UpstreamError, match="stops"):
            await task


# One at a time, and only what is still wanted.


async def test_a_device_gets_one_request_at_a_time() -> None:
    with raw_peer() as device, raw_peer() as other:
        async with exchanges() as ours:
            tasks = [
                asyncio.create_task(ours.request(put(one.port, text)))
                for one in (device, other)
                for text in (b"1", b"2")
            ]
            first, elsewhere = await device.receive(), await other.receive()
            assert (first.payload, elsewhere.payload) == (b"1", b"1")
            device.send(Datagram(ACK, 0, first.mid))  # the answer is still to come
            await settled()
            assert device.waiting() == []
            device.send(Datagram(CON, CHANGED, 9, first.token))
            assert await device.receive() == Datagram(ACK, 0, 9)
            device.answer(await device.receive(), CHANGED)
            other.answer(elsewhere, CHANGED)
            other.answer(await other.receive(), CHANGED)
            assert [(await task).code for task in tasks] == ["2.04"] * 4


async def test_few_requests_are_under_way_and_of_retries_half_as_many() -> None:
    settings = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=60, concurrency_max=4)
    peers = [RawPeer() for _ in range(8)]
    try:
        async with exchanges(settings) as ours:
            tasks = [asyncio.create_task(ours.request(put(one.port, retried=True))) for one in peers[:4]]
            await settled()
            tasks += [asyncio.create_task(ours.request(put(one.port))) for one in peers[4:]]
            await until(lambda: len(ours.endpoint._tokens.outgoing_requests) == 4)
            await settled()
            assert [len(one.waiting()) for one in peers] == [1, 1, 0, 0, 1, 1, 0, 0]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    finally:
        for one in peers:
            one.close()


async def test_an_outdated_request_ends_and_the_next_leaves() -> None:
    wanted = b"ON"

    def current(state: bytes) -> Callable[[], bool]:
        return lambda: wanted == state

    with raw_peer() as device:
        async with exchanges() as ours:
            on = asyncio.create_task(ours.request(put(device.port, b"ON", is_current=current(b"ON"))))
            dim = asyncio.create_task(ours.request(put(device.port, b"DIM", is_current=current(b"DIM"))))
            off = asyncio.create_task(ours.request(put(device.port, b"OFF", is_current=current(b"OFF"))))
            old = await device.receive()
            wanted = b"OFF"
            new = await device.receive()
            assert new.payload == b"OFF"
            device.answer(old, CHANGED)
            device.answer(new, CHANGED)
            assert (await off).code == "2.04"
            for task in (on, dim):
                with pytest.raises(Outdated):
                    await task


async def test_a_cancelled_request_is_not_sent_again() -> None:
    with raw_peer() as device:
        async with exchanges() as ours:
            first = asyncio.create_task(ours.request(put(device.port, b"ON")))
            await device.receive()
            first.cancel()
            second = asyncio.create_task(ours.request(put(device.port, b"OFF")))
            received = await device.receive()
            assert received.payload == b"OFF"
            device.answer(received, CHANGED)
            await second
            assert device.waiting() == []


# Bodies in blocks.


@pytest.mark.parametrize("exponent", [6, 4, 2])
async def test_a_device_chooses_the_size_of_blocks(exponent: int) -> None:
    body, received = bytes(range(256)) * 10, bytearray()
    with raw_peer() as device:
        async with asking(device, put(device.port, body)) as task:
            tags = set()
            while len(received) < len(body):
                part = await device.receive()
                number, more, size = number_of(part.option(BLOCK1))
                assert number << size + 4 == len(received)
                assert (part.option(SIZE1) == b"\x0a\x00") is (number == 0)
                received += part.payload
                tags.add(part.option(REQUEST_TAG))
                answer = CONTINUE if more else CHANGED
                device.answer(part, answer, options=[(BLOCK1, block(number, more, exponent))])
        assert task.result().code == "2.04"
    assert received == body
    assert len(tags) == 1


async def test_a_device_that_takes_smaller_bodies_only_says_the_size_of_blocks() -> None:
    with raw_peer() as device:
        async with asking(device, put(device.port, b"x" * 100)) as task:
            whole = await device.receive()
            assert (whole.option(BLOCK1), len(whole.payload)) == (None, 100)
            device.answer(whole, 0x8D, options=[(BLOCK1, block(0, False, 2))])
            first = await device.receive()
            assert (number_of(first.option(BLOCK1)), len(first.payload)) == ((0, True, 2), 64)
            device.answer(first, CONTINUE, options=[(BLOCK1, block(0, True, 2))])
            device.answer(await device.receive(), CHANGED)
        assert task.result().code == "2.04"


async def test_a_body_that_is_too_large_for_the_device_is_its_answer() -> None:
    with raw_peer() as device:
        async with asking(device, put(device.port, bytes(3000))) as task:
            device.answer(await device.receive(), 0x8D, b"at most 1 kB")
        assert task.result()[:2] == ("4.13", b"at most 1 kB")


async def test_an_answer_that_changes_is_read_again() -> None:
    one, two = bytes(range(200)), bytes(reversed(range(200)))
    with raw_peer() as device:
        async with asking(device, get(device.port, accept=60)) as task:
            device.answer(await device.receive(), CONTENT, one[:64], [(4, b"1"), (BLOCK2, block(0, True, 2))])
            device.answer(await device.receive(), CONTENT, two[64:128], [(4, b"2"), (BLOCK2, block(1, True, 2))])
            for number in range(4):
                part = await device.receive()
                assert number_of(part.option(BLOCK2))[0] == number
                assert part.option(17) == b"\x3c"
                text = two[number * 64 : number * 64 + 64]
                device.answer(part, CONTENT, text, [(4, b"2"), (BLOCK2, block(number, number < 3, 2))])
        assert task.result().body == two


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ([(BLOCK2, block(0, True, 6)), (SIZE2, b"\x02\x00\x00")], PayloadError, "65,536"),
        ([(BLOCK2, block(0, True, 5))], PayloadError, "bytes"),  # the size is another
        ([(BLOCK2, block(0, True, 7))], PayloadError, "reserved"),
        ([(BLOCK2, block(3, True, 6))], UpstreamError, "byte 3,072"),
    ],
)
async def test_answers_with_wrong_blocks_are_errors(options: Any, error: type[Exception], says: str) -> None:
    with raw_peer() as device:
        async with asking(device, get(device.port)) as task:
            device.answer(await device.receive(), CONTENT, bytes(1024), options)
        with pytest.raises(error, match=says):
            task.result()


async def test_an_answer_without_an_end_is_refused() -> None:
    with raw_peer() as device:
        async with asking(device, get(device.port, limit=4096)) as task:
            for number in range(4):
                device.answer(await device.receive(), CONTENT, bytes(1024), [(BLOCK2, block(number, True, 6))])
        with pytest.raises(PayloadError, match="4,096"):
            task.result()


async def test_an_error_instead_of_a_block_is_an_error() -> None:
    with raw_peer() as device:
        async with asking(device, get(device.port)) as task:
            device.answer(await device.receive(), CONTENT, bytes(1024), [(BLOCK2, block(0, True, 6))])
            device.answer(await device.receive(), 0xA3)
        with pytest.raises(UpstreamError, match=r"5\.03"):
            task.result()


# Echo and protection.


@pytest.mark.parametrize("body", [b"ON", bytes(2000)])
async def test_a_device_that_asks_for_its_echo_value_gets_it(body: bytes) -> None:
    with raw_peer() as device:
        async with asking(device, put(device.port, body)) as task:
            refused = await device.receive()
            device.answer(refused, 0x81, options=[(ECHO, b"12345678")])
            again = await device.receive()
            assert (again.option(ECHO), again.payload) == (b"12345678", refused.payload)
            while again.option(BLOCK1) is not None and number_of(again.option(BLOCK1))[1]:
                device.answer(again, CONTINUE, options=[(BLOCK1, again.option(BLOCK1) or b"")])
                again = await device.receive()
                assert again.option(ECHO) == b"12345678"
            device.answer(again, CHANGED)
        assert task.result().code == "2.04"


async def test_a_device_that_repeats_its_echo_value_is_not_asked_for_ever() -> None:
    with raw_peer() as device:
        async with asking(device, put(device.port)) as task:
            for _ in range(2):
                device.answer(await device.receive(), 0x81, options=[(ECHO, b"12345678")])
        assert task.result().code == "4.01"


async def test_requests_to_a_device_with_a_seal_are_sealed() -> None:
    asked = []

    def seal(message: aiocoap.Message) -> Any:
        sealed = aiocoap.Message(code=aiocoap.POST, payload=b"sealed " + message.payload)

        def opened(answer: aiocoap.Message) -> aiocoap.Message:
            if not answer.payload.startswith(b"sealed "):
                raise UpstreamError("the answer is not protected")
            return aiocoap.Message(code=aiocoap.CHANGED, payload=answer.payload[7:])

        return sealed, opened

    def seals(device: str, uri: str, address: Address) -> Seal | None:
        asked.append((device, str(address)))
        return seal if device == "lamp" else no_seal(device, uri, address)

    with raw_peer() as device:
        async with exchanges(seals=seals) as ours:
            for text in (b"sealed done", b"done"):
                task = asyncio.create_task(ours.request(put(device.port, device="lamp")))
                received = await device.receive()
                assert (received.code, received.path, received.payload) == (2, "", b"sealed ON")
                device.answer(received, CHANGED, text)
                await asyncio.wait([task])
            with pytest.raises(UpstreamError, match="not protected"):
                task.result()
    assert asked == [("lamp", "127.0.0.1")] * 2


# A network in memory.


class Lamp:
    """effects: of requests, in order."""

    def __init__(self) -> None:
        self.effects: list[bytes] = []

    async def render_to_pipe(self, pipe: Any) -> None:
        self.effects.append(pipe.request.payload)
        await asyncio.sleep(Random(len(self.effects)).choice([0, 0, 0.5]))
        pipe.add_response(aiocoap.Message(code=aiocoap.CHANGED), is_last=True)


@each_row("seed", range(1, 6), is_amount=True)
def test_over_a_lossy_network_each_request_has_one_effect(seed: int) -> None:
    """50 lamps, 30 % loss, duplicates and delays."""

    async def switched() -> None:
        network = Network(seed, Faults(0.3, 0.1, 0.5))
        settings = CoapSettings(networks=("10.0.0.0/8",), ack_timeout_s=1, retransmissions_max=6, answer_timeout_s=300)
        ours = Exchanges(
            network.endpoint("10.0.0.1", settings=settings), Networks(settings.networks, "coap.networks"), settings
        )
        lamps = [Lamp() for _ in range(50)]
        endpoints = [network.endpoint(f"10.0.1.{n}", site=lamp) for n, lamp in enumerate(lamps)]
        states = [b"%d" % n for n in range(10)]

        answered: dict[int, list[bytes]] = {}

        async def switch(n: int) -> None:
            for state in states:
                with suppress(UpstreamError):  # whether it had its effect is then unknown
                    await ours.request(DeviceRequest(f"coap://10.0.1.{n}/lamp", "POST", state, 0))
                    answered.setdefault(n, []).append(state)

        await asyncio.gather(*(switch(n) for n in range(50)))
        for n, lamp in enumerate(lamps):
            assert lamp.effects == sorted(set(lamp.effects)), "an effect came twice, or too late"
            assert set(answered[n]) <= set(lamp.effects)
        assert sum(map(len, answered.values())) > 450
        await asyncio.sleep(1000)
        for one in (ours.endpoint, *endpoints):
            assert (one.messages._active_exchanges, one.messages._backlogs) == ({}, {})
            assert one._tokens.incoming_requests == one._tokens.outgoing_requests == {}
        assert len(ours._locks) == 0

    run_virtual(switched())
