"""Observations: plain sockets, libcoap's server and an aiocoap sensor across their restarts, and a lossy network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import aiocoap
import pytest

from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.exchanges import Exchanges
from lamplighter.adapters.coap.observations import (
    FAILURES_MAX,
    STATES_BURST,
    STATES_PER_S,
    STEPS_BURST,
    STEPS_PER_S,
    Observation,
)
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.resources.exchange import DeviceRequest, ObservationCounters, Observed, ObservedResource
from lamplighter.engine.errors import UpstreamError
from tests.support.amounts import Amounts
from tests.support.coap_peers import free_udp_port, libcoap_server
from tests.support.coap_sensor import sensor_process
from tests.support.coap_wire import Faults, Network, WireSensor, run_virtual
from tests.support.event_loops import TIMEOUT_S, beside, settled, until
from tests.support.raw_coap import (
    ACK,
    BLOCK2,
    CON,
    CONTENT,
    CONTENT_FORMAT,
    ECHO,
    GET,
    MAX_AGE,
    NON,
    OBSERVE,
    RST,
    Datagram,
    RawPeer,
    raw_peer,
)
from tests.support.tables import each_row

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
PATIENT = CoapSettings(
    networks=("127.0.0.0/8",), ack_timeout_s=60, answer_timeout_s=100, retry_min_s=0.01, retry_max_s=0.05
)
VIRTUAL = CoapSettings(networks=("10.0.0.0/8",))
SOON = (0.05, 0.1)
NOT_FOUND = 0x84


class States(list[Observed]):
    """The states that an observation gave."""

    @property
    def bodies(self) -> list[bytes]:
        return [one.body for one in self]


@asynccontextmanager
async def exchanges(settings: CoapSettings = PATIENT, **more: Any) -> AsyncIterator[Exchanges]:
    endpoint = await Endpoint.client(settings, EndpointCounters())
    try:
        yield Exchanges(endpoint, Networks(settings.networks, "coap.networks"), settings, now=lambda: NOON, **more)
        assert endpoint._tokens.outgoing_requests == endpoint.messages._active_exchanges == {}
    finally:
        await endpoint.close()


@asynccontextmanager
async def observing(
    device: RawPeer, settings: CoapSettings = PATIENT, margin_s: tuple[float, float] = (5, 15), **options: Any
) -> AsyncIterator[tuple[Observation, States, ObservationCounters]]:
    """An observation of /lamp of a plain socket."""
    counters, states = ObservationCounters(), States()
    seals = {"seals": options.pop("seals")} if "seals" in options else {}
    async with exchanges(settings, **seals) as ours:
        resource = ObservedResource(f"coap://127.0.0.1:{device.port}/lamp", **options)
        observation = Observation(ours, resource, counters, margin_s=margin_s)
        async with beside(observation.run(states.append)):
            yield observation, states, counters
    assert observation.status.state == "ended"


async def registered(device: RawPeer, body: bytes = b"first", number: int = 1, *more: tuple[int, bytes]) -> Datagram:
    """Takes a registration and answers it."""
    request = await device.receive()
    assert (request.kind, request.option(OBSERVE), request.path) == (CON, b"", "lamp")
    observe = (OBSERVE, number.to_bytes(3, "big").lstrip(b"\0"))
    device.answer(request, CONTENT, body, sorted([observe, *more]))
    return request


async def acknowledged(device: RawPeer, mid: int) -> None:
    assert await device.receive() == Datagram(ACK, 0, mid)


async def serving(device: RawPeer, done: Callable[[], bool], body: bytes) -> None:
    """Answers registrations, and nothing else, until something is done."""
    async with asyncio.timeout(TIMEOUT_S):
        while not done():
            for request in device.waiting():
                if request.code == GET:
                    device.answer(request, CONTENT, body, [(OBSERVE, b"\x01")])
            await asyncio.sleep(0.001)


# Order and freshness.


async def test_each_newer_notification_is_taken_once() -> None:
    with raw_peer() as device:
        async with observing(device) as (observation, states, counters):
            request = await registered(device, b"1", 5)
            for body, number in ((b"2", 6), (b"old", 4), (b"2", 6), (b"3", 9), (b"old", 8), (b"4", 10)):
                await acknowledged(device, device.notify(request.token, body, number))
            device.notify(request.token, b"5", 11, kind=NON, options=[(CONTENT_FORMAT, b"\x32")])
            await until(lambda: len(states) == 5)
            assert states.bodies == [b"1", b"2", b"3", b"4", b"5"]
            assert [one.format for one in states] == [None] * 4 + [50]
            assert {(one.at, one.code) for one in states} == {(NOON, "2.05")}
            assert (counters.notifications, counters.notifications_outdated) == (4, 3)
            assert observation.status == ("observed", "")


async def test_a_notification_under_another_token_is_reset() -> None:
    with raw_peer() as device:
        async with observing(device) as (_, states, _):
            await registered(device)
            mid = device.notify(b"guess", b"forged", 9)
            assert await device.receive() == Datagram(RST, 0, mid)
            assert states.bodies == [b"first"]


async def test_the_registration_is_renewed_after_max_age_with_the_same_token() -> None:
    with raw_peer() as device:
        async with observing(device, margin_s=SOON) as (_, states, counters):
            first = await registered(device, b"1", 1000, (MAX_AGE, b""))
            second = await registered(device, b"2", 2, (MAX_AGE, b"\x3c"))  # the device rebooted and counts anew
            await acknowledged(device, device.notify(first.token, b"3", 3))
            await acknowledged(device, device.notify(first.token, b"old", 1001 + (1 << 23)))
            await until(lambda: counters.notifications_outdated == 1)
            assert first.token == second.token
            assert len(first.token) == 8
            assert states.bodies == [b"1", b"2", b"3"]
            assert (counters.observations_renewed, counters.notifications) == (1, 1)


async def test_a_notification_before_the_answer_to_a_renewal_is_in_order() -> None:
    with raw_peer() as device:
        async with observing(device) as (observation, states, counters):
            await registered(device, b"1", 5)
            await until(lambda: bool(states))
            observation.renew()
            again = await device.receive()
            await acknowledged(device, device.notify(again.token, b"old", 4))
            await acknowledged(device, device.notify(again.token, b"2", 6))
            device.send(Datagram(ACK, 0, again.mid))  # a separate answer
            await acknowledged(device, device.notify(again.token, b"3", 2))
            await until(lambda: len(states) == 3)
            assert states.bodies == [b"1", b"2", b"3"]
            assert counters.notifications_outdated == 1


@pytest.mark.parametrize(("option", "max_age_s", "fresh_s"), [(b"\x0a", None, 10), (None, None, 60), (b"\x0a", 5, 5)])
async def test_a_state_is_fresh_for_max_age(option: bytes | None, max_age_s: float | None, fresh_s: float) -> None:
    with raw_peer() as device:
        async with observing(device, max_age_s=max_age_s) as (observation, states, _):
            before = asyncio.get_running_loop().time()
            await registered(device, b"1", 1, *([] if option is None else [(MAX_AGE, option)]))
            await until(lambda: bool(states))
            after = asyncio.get_running_loop().time()
            assert before + fresh_s <= states[0].fresh_until <= after + fresh_s
            assert before + fresh_s + 5 <= observation._due <= after + fresh_s + 15


# Answers without Observe.


async def test_a_device_without_observe_is_polled_and_asked_again_later() -> None:
    with raw_peer() as device:
        async with observing(device, poll_s=0.02) as (observation, states, counters):
            device.answer(await device.receive(), CONTENT, b"0")
            polls = 0
            while (request := await device.receive()).option(OBSERVE) is None:
                polls += 1
                device.answer(request, CONTENT, b"%d" % polls)
                await until(lambda polls=polls: len(states) == polls + 1)
                assert observation.status.state == "polled"
            device.answer(request, CONTENT, b"observed", [(OBSERVE, b"\x01")])
            await until(lambda: observation.status.state == "observed")
            assert states.bodies == [b"%d" % n for n in range(polls + 1)] + [b"observed"]
            assert counters.polls == polls


async def test_a_rule_may_poll_only() -> None:
    with raw_peer() as device:
        async with observing(device, observe="never", poll_s=0.02, accept=60) as (observation, states, _):
            for n in range(3):
                request = await device.receive()
                assert (request.option(OBSERVE), request.option(17)) == (None, b"\x3c")
                code = NOT_FOUND if n == 1 else CONTENT
                device.answer(request, code, b"%d" % n)
                await until(lambda n=n: len(states) == n + 1)
            assert [one.code for one in states] == ["2.05", "4.04", "2.05"]
            await until(lambda: observation.status.state == "polled")


async def test_a_rule_may_require_observe() -> None:
    with raw_peer() as device:
        async with observing(device, observe="always", poll_s=0.02) as (observation, states, _):
            device.answer(await device.receive(), CONTENT, b"0")
            await until(lambda: observation.status == ("refused", "the device does not offer Observe"))
            await registered(device, b"1")
            await until(lambda: observation.status.state == "observed")
            assert states.bodies == [b"0", b"1"]


async def test_a_refusal_is_a_state_and_the_device_is_asked_again() -> None:
    with raw_peer() as device:
        async with observing(device) as (observation, states, _):
            device.answer(await device.receive(), NOT_FOUND, b"no lamp")
            await until(lambda: observation.status == ("refused", "4.04 no lamp"))
            await registered(device)
            await until(lambda: observation.status.state == "observed")
            assert [(one.code, one.body) for one in states] == [("4.04", b"no lamp"), ("2.05", b"first")]


async def test_a_device_may_end_the_observation() -> None:
    with raw_peer() as device:
        async with observing(device) as (_, states, _):
            request = await registered(device)
            device.send(Datagram(CON, NOT_FOUND, 7, request.token, (), b"removed"))
            await acknowledged(device, 7)
            again = await registered(device, b"2")
            assert again.token == request.token
            device.send(Datagram(CON, CONTENT, 8, request.token, (), b"unobserved"))
            await acknowledged(device, 8)
            await until(lambda: len(states) == 4)
            assert [one.code for one in states] == ["2.05", "4.04", "2.05", "2.05"]


class _Busy:
    """A device on the wire of a test, which causes as much work as it can. answered: requests so far."""

    def __init__(self, network: Network, *, ends: bool) -> None:
        self.answered, self._ends = 0, ends
        self._endpoint = network.endpoint("10.0.0.2", site=self)

    async def render_to_pipe(self, pipe: Any) -> None:
        self.answered += 1
        if pipe.request.opt.observe != 0:
            pipe.add_response(aiocoap.Message(code=aiocoap.CONTENT, payload=b"whole"), is_last=True)
            return
        number = 0
        while True:
            number += 1
            message = aiocoap.Message(code=aiocoap.CONTENT, payload=bytes(1_024), observe=number)
            message.opt.block2 = (0, True, 6)
            message.transport_tuning = aiocoap.Unreliable()
            pipe.add_response(message)
            await asyncio.sleep(0.01)
            if self._ends:
                pipe.add_response(aiocoap.Message(code=aiocoap.NOT_FOUND), is_last=True)
                return


@pytest.mark.parametrize("ends", [True, False])
def test_a_device_does_not_cause_one_request_after_the_other(ends: bool, amounts: Amounts) -> None:
    seconds = 200 if ends else amounts.of(200)

    async def asked() -> tuple[int, bool]:
        network = Network(1, Faults())
        device, states, counters = _Busy(network, ends=ends), States(), ObservationCounters()
        exchanges = Exchanges(network.endpoint("10.0.0.1"), Networks(("10.0.0.0/8",), "coap.networks"), VIRTUAL)
        observation = Observation(exchanges, ObservedResource("coap://10.0.0.2/lamp"), counters)
        async with beside(observation.run(states.append)):
            await asyncio.sleep(seconds)
            before = device.answered
            await observation.cancel()
        return before, b"whole" in states.bodies

    count, told = run_virtual(asked())
    assert 15 < count <= 2 * (STEPS_BURST + seconds * STEPS_PER_S) + 10
    assert told or ends


def test_of_states_that_come_too_fast_the_newest_is_taken(amounts: Amounts) -> None:
    seconds = amounts.of(20)

    async def taken() -> tuple[list[bytes], int]:
        loop, states, counters = asyncio.get_running_loop(), States(), ObservationCounters()
        network = Network(1, Faults())
        exchanges = Exchanges(network.endpoint("10.0.0.1"), Networks(("10.0.0.0/8",), "coap.networks"), VIRTUAL)
        lamp = WireSensor(network, "10.0.0.2")
        observation = Observation(exchanges, ObservedResource("coap://10.0.0.2/sensor"), counters)
        async with beside(observation.run(states.append)):
            await asyncio.sleep(1)
            began = loop.time()
            while loop.time() < began + seconds:
                lamp.change(b"%.3f" % loop.time())
                await asyncio.sleep(0.002)
            lamp.change(b"last")
            await asyncio.sleep(5)
        return states.bodies, counters.notifications_outdated

    bodies, outdated = run_virtual(taken())
    assert STATES_BURST < len(bodies) <= STATES_BURST + seconds * STATES_PER_S + 10
    assert bodies[-1] == b"last"
    assert outdated > amounts.of(300)
    numbers = [float(body) for body in bodies[1:-1]]
    assert numbers == sorted(numbers)


async def test_a_device_that_asks_for_its_echo_value_gets_it() -> None:
    with raw_peer() as device:
        async with observing(device) as (observation, states, _):
            device.answer(await device.receive(), 0x81, options=[(ECHO, b"12345678")])
            request = await registered(device)
            assert request.option(ECHO) == b"12345678"
            await until(lambda: observation.status.state == "observed")
            assert states.bodies == [b"first"]


# States in blocks.


def part(body: bytes, number: int) -> tuple[bytes, tuple[int, bytes]]:
    more = len(body) > (number + 1) * 1024
    value = number << 4 | more << 3 | 6
    return body[number * 1024 : number * 1024 + 1024], (BLOCK2, bytes([value]))


async def answered(device: RawPeer, request: Datagram, body: bytes) -> None:
    """Answers the request for the whole with all its blocks."""
    for number in range(-(-len(body) // 1024)):
        payload, option = part(body, number)
        device.answer(request, CONTENT, payload, [option])
        if option[1][0] & 8:
            request = await device.receive()


async def test_a_long_state_is_asked_for() -> None:
    one, two = bytes(2500), b"2" * 2000
    with raw_peer() as device:
        async with observing(device) as (_, states, _):
            payload, option = part(one, 0)
            request = await registered(device, payload, 1, option)
            whole = await device.receive()
            assert (whole.option(OBSERVE), whole.token == request.token) == (None, False)
            await answered(device, whole, one)
            payload, option = part(two, 0)
            mid = device.notify(request.token, payload, 2, options=[option])
            await acknowledged(device, mid)
            await answered(device, await device.receive(), two)
            await until(lambda: len(states) == 2)
            assert states.bodies == [one, two]


async def test_a_short_state_that_comes_during_a_transfer_is_the_newest() -> None:
    with raw_peer() as device:
        async with observing(device) as (_, states, _):
            body = bytes(2000)
            payload, option = part(body, 0)
            request = await registered(device, payload, 1, option)
            whole = await device.receive()
            await acknowledged(device, device.notify(request.token, b"newer", 2))
            await answered(device, whole, body)
            await acknowledged(device, device.notify(request.token, b"newest", 3))
            await until(lambda: len(states) == 2)
            assert states.bodies == [b"newer", b"newest"]


async def test_a_state_that_is_too_long_is_a_reason() -> None:
    with raw_peer() as device:
        async with observing(device, limit=1500) as (observation, states, _):
            payload, option = part(bytes(2500), 0)
            await registered(device, payload, 1, option)
            await answered(device, await device.receive(), bytes(2000))
            await until(lambda: observation.status.state == "refused")
            assert "1,500" in observation.status.reason
            assert states == []
            await device.receive()  # it registers again


# Failures.


async def test_an_unreachable_device_is_asked_until_it_answers() -> None:
    settings = CoapSettings(
        networks=("127.0.0.0/8",), ack_timeout_s=0.01, retransmissions_max=0, retry_min_s=0.01, retry_max_s=0.02
    )
    with raw_peer() as device:
        async with observing(device, settings) as (observation, states, _):
            requests = [await device.receive()]
            await until(lambda: observation.status.state == "unreachable")
            assert observation.status.reason == "no answer"
            requests += device.waiting()
            assert len(requests) >= FAILURES_MAX
            assert len({one.token for one in requests}) == 1
            await serving(device, lambda: observation.status.state == "observed", b"back")
            assert states.bodies[-1] == b"back"


async def test_an_address_outside_of_the_networks_is_a_reason() -> None:
    with raw_peer() as device:
        async with observing(device, CoapSettings(networks=("10.0.0.0/8",))) as (observation, _, _):
            await until(lambda: observation.status.state == "withheld")
            assert "coap.networks" in observation.status.reason
        assert device.waiting() == []


async def test_an_observation_that_another_request_ends_begins_again() -> None:
    """The library ends all requests to a device that does not answer one."""
    settings = CoapSettings(
        networks=("127.0.0.0/8",), ack_timeout_s=0.05, retransmissions_max=0, retry_min_s=0.01, retry_max_s=0.02
    )
    with raw_peer() as device:
        async with observing(device, settings) as (observation, states, counters):
            await serving(device, lambda: observation.status.state == "observed", b"1")
            before, renewed = len(states), counters.observations_renewed
            put = DeviceRequest(f"coap://127.0.0.1:{device.port}/lamp", "PUT", b"ON")
            with pytest.raises(UpstreamError):
                await observation._exchanges.request(put)
            await serving(device, lambda: counters.observations_renewed > renewed and len(states) > before, b"2")
            assert states.bodies[-1] == b"2"


# The end.


async def test_an_active_cancel_tells_the_device() -> None:
    with raw_peer() as device:
        async with observing(device) as (observation, states, _):
            request = await registered(device)
            await until(lambda: observation.status.state == "observed")
            ending = asyncio.create_task(observation.cancel())
            farewell = await device.receive()
            assert (farewell.option(OBSERVE), farewell.token, farewell.path) == (b"\x01", request.token, "lamp")
            device.answer(farewell, CONTENT, b"last")
            await ending
            assert observation.status.state == "ended"
            mid = device.notify(request.token, b"late", 2)
            assert await device.receive() == Datagram(RST, 0, mid)
            assert states.bodies == [b"first"]


async def test_a_cancelled_observation_that_is_not_registered_sends_nothing() -> None:
    with raw_peer() as device:
        async with observing(device, poll_s=3600) as (observation, _, _):
            device.answer(await device.receive(), CONTENT, b"0")
            await until(lambda: observation.status.state == "polled")
            await observation.cancel()
            assert device.waiting() == []


async def test_a_task_that_is_cancelled_sends_nothing() -> None:
    with raw_peer() as device:
        async with observing(device) as (observation, _, _):
            await registered(device)
            await until(lambda: observation.status.state == "observed")
        assert device.waiting() == []


def seal(message: aiocoap.Message) -> Any:
    """A protection whose number the payload says; the outer number is ignored."""
    sealed = aiocoap.Message(code=aiocoap.FETCH, observe=0, payload=b"sealed")

    def opened(answer: aiocoap.Message) -> aiocoap.Message:
        if not answer.payload.startswith(b"sealed "):
            raise UpstreamError("the answer is not protected")
        _, number, body = answer.payload.split(b" ")
        return aiocoap.Message(code=aiocoap.CONTENT, observe=int(number), payload=body)

    return sealed, opened


async def test_protected_notifications_are_taken_once() -> None:
    with raw_peer() as device:
        async with observing(device, seals=lambda name, uri, address: seal) as (observation, states, counters):
            request = await device.receive()
            assert (request.code, request.payload) == (5, b"sealed")
            device.answer(request, CONTENT, b"sealed 0 a", [(OBSERVE, b"\x01")])
            for outer, body in enumerate((b"sealed 7 b", b"forged", b"sealed 7 b", b"sealed 5 c", b"sealed 8 d"), 2):
                await acknowledged(device, device.notify(request.token, body, outer))
            observation.renew()
            again = await device.receive()
            await acknowledged(device, device.notify(request.token, b"of the registration before", 9))
            device.answer(again, CONTENT, b"sealed 9 e", [(OBSERVE, b"\x01")])
            await until(lambda: len(states) == 4)
            assert states.bodies == [b"a", b"b", b"d", b"e"]
            assert counters.notifications_outdated == 2


async def test_an_answer_without_protection_is_a_reason_and_ends_the_registration() -> None:
    with raw_peer() as device:
        async with observing(device, seals=lambda name, uri, address: seal) as (observation, states, _):
            for _ in range(FAILURES_MAX):
                device.answer(await device.receive(), 0x81, b"who?")
            await until(lambda: observation.status == ("unreachable", "the answer is not protected"))
            request = await device.receive()
            device.answer(request, CONTENT, b"sealed 0 a", [(OBSERVE, b"\x01")])
            await until(lambda: observation.status.state == "observed")
            device.send(Datagram(NON, NOT_FOUND, 3, request.token, (), b"forged"))
            device.answer(await device.receive(), CONTENT, b"sealed 1 b", [(OBSERVE, b"\x01")])
            await until(lambda: len(states) == 2)
            assert states.bodies == [b"a", b"b"]


# Libcoap and aiocoap as devices, which are killed.


async def test_a_libcoap_lamp_is_observed_across_its_reboots() -> None:
    """It loses its state and its observers, and is silent: the renewal finds out."""
    states, counters = States(), ObservationCounters()
    quick = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=5, retry_min_s=0.01, retry_max_s=0.1)
    with libcoap_server() as device:
        async with exchanges(quick) as ours:

            async def put(state: bytes) -> None:
                assert (await ours.request(DeviceRequest(device.uri("lamp"), "PUT", state, 0))).successful

            await put(b"0")
            resource = ObservedResource(device.uri("lamp"), max_age_s=0.1)
            observation = Observation(ours, resource, counters, margin_s=SOON)
            async with beside(observation.run(states.append)):
                for boot in range(3):
                    for n in range(3):
                        state = b"%d %d" % (boot, n)
                        await put(state)
                        await until(lambda state=state: states[-1:] and states[-1].body == state)
                    device.stop()
                    device.start()
                    await until(lambda: states[-1].code == "4.04")
                    assert observation.status.state in ("refused", "unreachable")
                await put(b"end")
                await until(lambda: observation.status.state == "observed")
                await observation.cancel()
    assert counters.observations_renewed >= 3


async def test_libcoap_sends_one_notification_a_change_after_renewals() -> None:
    states, counters = States(), ObservationCounters()
    with libcoap_server() as device:
        async with exchanges() as ours:

            async def put(state: bytes) -> None:
                assert (await ours.request(DeviceRequest(device.uri("lamp"), "PUT", state, 0))).successful

            await put(b"0")
            observation = Observation(ours, ObservedResource(device.uri("lamp")), counters)
            async with beside(observation.run(states.append)):
                for n in range(1, 4):
                    await until(lambda n=n: len(states) == n)
                    observation.renew()
                await until(lambda: len(states) == 4)
                for state in (b"1", b"2"):
                    await put(state)
                    await until(lambda state=state: states[-1].body == state)
                await observation.cancel()
                await put(b"3")
                await settled()
    assert states.bodies == [b"0"] * 4 + [b"1", b"2"]
    assert (counters.notifications, counters.observations_renewed) == (2, 3)


async def test_an_aiocoap_sensor_is_observed_across_its_restart() -> None:
    states, counters = States(), ObservationCounters()
    port = free_udp_port()
    quick = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=5, retry_min_s=0.01, retry_max_s=0.1)
    async with exchanges(quick) as ours:
        resource = ObservedResource(f"coap://127.0.0.1:{port}/count")
        observation = Observation(ours, resource, counters, margin_s=SOON)
        async with beside(observation.run(states.append)):
            for first in (1000, 100_000, 5000):
                with sensor_process(port, first):
                    known = len(states)
                    await until(lambda known=known: len(states) > known + 3)
                    await until(lambda first=first: int(states[-1].body) >= first + 3)
                await until(lambda: observation.status.state == "unreachable")
    values = [int(one.body) for one in states]
    for first in (1000, 100_000, 5000):
        run = [value for value in values if first <= value < first + 4000]
        assert run == sorted(run)
    assert counters.notifications >= 3


# A network in memory.


@each_row("seed", range(1, 6), is_amount=True)
def test_over_a_lossy_network_with_reboots_each_state_arrives(seed: int) -> None:
    """20 sensors for ten minutes with 30 % loss, duplicates, delays and reboots. Some minutes after the last change
    each observation has the state of its sensor, and little is left of what was."""

    async def observed() -> None:
        random, network = Random(seed), Network(seed, Faults(0.3, 0.1, 0.5))
        ours = Exchanges(
            network.endpoint("10.0.0.1", settings=VIRTUAL), Networks(VIRTUAL.networks, "coap.networks"), VIRTUAL
        )
        sensors = [WireSensor(network, f"10.0.1.{n}") for n in range(20)]
        counters, states = ObservationCounters(), [States() for _ in sensors]
        observations = [
            Observation(ours, ObservedResource(f"coap://10.0.1.{n}/value"), counters) for n in range(len(sensors))
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.run(seen.append)) for one, seen in zip(observations, states, strict=True)]
            loop = asyncio.get_running_loop()
            while loop.time() < 600:
                await asyncio.sleep(random.uniform(0, 2))
                sensor = random.choice(sensors)
                sensor.change(b"%d" % (int(sensor.state) + 1))
                if random.random() < 0.1:
                    random.choice(sensors).boot()
            await asyncio.sleep(180)
            assert [seen[-1].body for seen in states] == [sensor.state for sensor in sensors]
            assert counters.observations_renewed > 100
            assert counters.notifications_outdated > 0
            assert len(ours.endpoint._tokens.outgoing_requests) <= len(sensors)
            for task in tasks:
                task.cancel()
        await asyncio.sleep(1000)
        for endpoint in (ours.endpoint, *(sensor.endpoint for sensor in sensors)):
            messages, tokens = endpoint.messages, endpoint._tokens
            assert messages._active_exchanges == messages._backlogs == tokens.outgoing_requests == {}
            assert len(tokens.incoming_requests) <= 1

    run_virtual(observed())


def test_a_device_without_observe_is_polled_and_asked_again_within_an_hour() -> None:
    async def asked() -> tuple[list[float], list[float], int]:
        network, polls, registrations = Network(1, Faults()), [], []

        class Plain:
            async def render_to_pipe(self, pipe: Any) -> None:
                seen = polls if pipe.request.opt.observe is None else registrations
                seen.append(asyncio.get_running_loop().time())
                pipe.add_response(aiocoap.Message(code=aiocoap.CONTENT, payload=b"1"), is_last=True)

        network.endpoint("10.0.1.1", site=Plain())
        ours = Exchanges(
            network.endpoint("10.0.0.1", settings=VIRTUAL), Networks(VIRTUAL.networks, "coap.networks"), VIRTUAL
        )
        resource, counters = ObservedResource("coap://10.0.1.1/value", poll_s=600), ObservationCounters()
        async with beside(Observation(ours, resource, counters).run(lambda state: None)):
            await asyncio.sleep(7000)
        return registrations, polls, counters.polls

    registrations, polls, counted = run_virtual(asked())
    assert [round(at / 600) for at in registrations] == [0, 6]
    assert [round(at / 600) for at in polls] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert counted == 10
