"""Requests and polls of polled devices, with a protocol of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lamplighter.adapters.devices.sender import Outdated
from lamplighter.adapters.networks import NotAllowedError
from lamplighter.adapters.resources.exchange import DeviceRequest, ObservationCounters, Observed, ObservedResource
from lamplighter.adapters.resources.polled import DeviceReply, PolledExchanges, PolledObservation, PolledProtocol
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.engine.errors import PayloadError, UpstreamError
from tests.support.event_loops import beside, settled, until

PATIENT = PolledSettings(retry_min_s=3600, retry_max_s=3600, concurrency_max=4)
HASTY = PolledSettings(retry_min_s=0.001, retry_max_s=0.002, answer_timeout_s=0.05)


class Devices(PolledProtocol):
    """A protocol. reply: what it does with a request; asked: the URIs, in order; most: requests at the same time."""

    def __init__(self, reply: Callable[[DeviceRequest], Any] = lambda request: DeviceReply("200", b"1", 0)) -> None:
        self.reply, self.asked = reply, list[str]()
        self.now = self.most = 0
        self.go = asyncio.Event()
        self.go.set()

    async def read(self, request: DeviceRequest) -> DeviceReply:
        self.asked.append(request.uri)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.go.wait()
        finally:
            self.now -= 1
        found = self.reply(request)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, DeviceReply)
        return found

    async def write(self, request: DeviceRequest) -> DeviceReply:
        return await self.read(request)

    async def close(self) -> None:
        raise AssertionError("the adapter closes it")


def exchanges(devices: Devices, settings: PolledSettings = PATIENT) -> PolledExchanges:
    return PolledExchanges(devices, settings, kind="http-devices", table="http_devices")


def get(uri: str, **keys: Any) -> DeviceRequest:
    return DeviceRequest(uri, "GET", **keys)


async def test_a_silent_device_gets_one_request_for_all_of_its_resources() -> None:
    devices = Devices(lambda request: UpstreamError("no route") if "//a" in request.uri else DeviceReply("200"))
    ours = exchanges(devices)
    uris = [f"http://a/{number}" for number in range(50)]
    found = await asyncio.gather(*(ours.request(get(one, retried=True)) for one in uris), return_exceptions=True)
    assert [str(one) for one in found] == ["no route"] * 50
    assert len(devices.asked) == 1
    assert (await ours.request(get("http://b/"))).successful, "the others are asked"


async def test_a_device_gets_one_request_at_a_time_and_all_together_as_many_as_the_settings_say() -> None:
    devices = Devices()
    devices.go.clear()
    ours = exchanges(devices)
    one = [asyncio.ensure_future(ours.request(get(f"http://a/{number}"))) for number in range(9)]
    await settled()
    assert devices.most == 1
    retries = [asyncio.ensure_future(ours.request(get(f"http://r{number}/", retried=True))) for number in range(9)]
    await settled()
    assert devices.now == 1 + PATIENT.concurrency_max // 2, "retries use half of the slots"
    others = [asyncio.ensure_future(ours.request(get(f"http://o{number}/"))) for number in range(9)]
    await settled()
    assert devices.now == PATIENT.concurrency_max
    devices.go.set()
    assert all(answer.successful for answer in await asyncio.gather(*one, *retries, *others))


async def test_an_outdated_request_is_not_sent_and_a_late_one_is_a_failure() -> None:
    devices = Devices()
    with pytest.raises(Outdated):
        await exchanges(devices).request(get("http://a/", is_current=lambda: False))
    assert not devices.asked
    devices.go.clear()
    with pytest.raises(UpstreamError, match="no answer in time"):
        await exchanges(devices, HASTY).request(get("http://a/"))
    with pytest.raises(PayloadError, match="more than 65,536"):
        await exchanges(devices).request(DeviceRequest("http://a/", "PUT", bytes(65_537)))


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (DeviceReply("200", b"1"), "polled"),
        (DeviceReply("404", b"gone"), "refused"),
        (UpstreamError("no answer"), "unreachable"),
        (PayloadError("too long"), "refused"),
        (NotAllowedError("outside"), "withheld"),
        (KeyError("a fault of the protocol"), "refused"),
    ],
)
async def test_a_poll_says_what_came_of_it_and_goes_on(reply: Any, state: str) -> None:
    devices = Devices(lambda request: reply)
    states: list[Observed] = []
    counters = ObservationCounters()
    observed = PolledObservation(exchanges(devices, HASTY), ObservedResource("http://a/", poll_s=0.001), counters)
    async with beside(observed.run(states.append)):
        await until(lambda: observed.status.state == state and len(devices.asked) > 3)
        devices.reply = lambda request: DeviceReply("200", b"2")
        await until(lambda: bool(states) and states[-1].body == b"2" and observed.status.state == "polled")
        await observed.cancel()
    assert observed.status.state == "ended" and counters.polls == len(states)


async def test_a_poll_is_made_at_once_when_it_is_asked_for() -> None:
    devices = Devices()
    observed = PolledObservation(exchanges(devices), ObservedResource("http://a/", poll_s=3600), ObservationCounters())
    async with beside(observed.run(lambda state: None)):
        await until(lambda: len(devices.asked) == 1)
        await settled()
        observed.renew()
        await until(lambda: len(devices.asked) == 2)
