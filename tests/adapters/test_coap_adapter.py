"""The adapter against real CoAP servers: aiocoap's in this process, and libcoap's."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import aiocoap
import aiocoap.resource
import pytest
from msgspec.structs import replace

from lamplighter.adapters.coap.adapter import SETTINGS_PLACE, CoapAdapter
from lamplighter.adapters.coap.endpoint import Endpoint
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.devices.desired import Sending, actuation_update
from lamplighter.adapters.devices.output import QUERY
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import ConfigurationError, GatewayError, UnsupportedRequestError
from lamplighter.engine.terms import Bag, Term, iri, literal
from lamplighter.gateway.systemd import fields
from tests.support.amounts import Amounts
from tests.support.coap_peers import LibcoapServer, free_udp_port, libcoap_server
from tests.support.event_loops import until

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
LOOPBACK = ("127.0.0.0/8", "::1/128")
VARIABLES = ("actuator", "resource", "payload")
NO_SERVER = CoapServerSettings(enabled=False)
QUICK = CoapSettings(
    server=NO_SERVER,
    networks=LOOPBACK,
    ack_timeout_s=0.2,
    answer_timeout_s=5,
    retry_min_s=0.01,
    retry_max_s=0.1,
    reassert_s=0,
)
WAIT_S = 120
Row = tuple[Term, Term, Term]


# Stand-ins: the gateway's client, lamps.


@dataclass
class Gateway:
    """Yields the notifications that the test gives, and keeps the updates of actuations. refusals: of updates, first,
    in order."""

    taken: list[str] = field(default_factory=list)
    refusals: list[GatewayError] = field(default_factory=list)
    variables: Sequence[str] = VARIABLES
    sequence: int = -1
    queries: list[str] = field(default_factory=list)
    _notifications: asyncio.Queue[Notification | GatewayError] = field(default_factory=asyncio.Queue)
    _waiting: bool = False

    def whole(self, *rows: Row) -> None:
        """The first notification, or that after an interruption."""
        self.sequence = 0
        self._notifications.put_nowait(Notification("spuid", 0, self._bag(rows), self._bag([])))

    def change(self, *, added: Iterable[Row] = (), removed: Iterable[Row] = ()) -> None:
        self.sequence += 1
        self._notifications.put_nowait(Notification("spuid", self.sequence, self._bag(added), self._bag(removed)))

    def all_taken(self) -> bool:
        """Whether the adapter waits for the next notification, and so has seen all before it."""
        return self._notifications.empty() and self._waiting

    def fail(self, error: GatewayError) -> None:
        self._notifications.put_nowait(error)

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        if sparql == QUERY:
            yield Notification("states", 0, Bag(("actuator",), []), Bag(("actuator",), []))
            await asyncio.Event().wait()
        self.queries.append(sparql)
        while True:
            self._waiting = True
            notification = await self._notifications.get()
            self._waiting = False
            if isinstance(notification, GatewayError):
                raise notification
            yield notification

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        return [self._update(request) for request in requests]

    def _update(self, request: UpdateRequest) -> UpdateAnswer | GatewayError:
        cause = request.cause
        assert cause is not None
        if "reportedState" in request.sparql:
            assert (cause.kind, cause.id) == ("coap", "reported states")
            return UpdateAnswer(sequence=1, delayed=None)
        assert (cause.kind, cause.id[:7]) == ("coap", "coap://")
        if self.refusals:
            return self.refusals.pop(0)
        self.taken.append(request.sparql)
        return UpdateAnswer(sequence=1, delayed=None)

    def _bag(self, rows: Iterable[Row]) -> Bag:
        return Bag(self.variables, rows)


@dataclass
class Lamps:
    """An aiocoap server on 127.0.0.1: a device whose resources are the given paths; others are 4.04.

    received: (path, payload) in order. requests_max: the most that were being answered at a time.
    """

    paths: Sequence[str] = ("1", "2")
    port: int = field(default_factory=free_udp_port)
    received: list[tuple[str, str]] = field(default_factory=list)
    requests: list[aiocoap.Message] = field(default_factory=list)
    answer_delay_s: float = 0
    busy: asyncio.Event | None = None  # until it is set nothing is answered
    code: aiocoap.Code = aiocoap.CHANGED
    options: dict[str, Any] = field(default_factory=dict)  # of answers
    answering: int = 0
    requests_max: int = 0
    _context: aiocoap.Context | None = None

    async def start(self) -> None:
        site = aiocoap.resource.Site()
        for path in self.paths:
            site.add_resource([path], _Lamp(self, path))
        self._context = await aiocoap.Context.create_server_context(
            site, bind=("127.0.0.1", self.port), transports=["simplesocketserver"]
        )

    async def stop(self) -> None:
        if self._context is not None:
            await self._context.shutdown()
            self._context = None

    def row(self, path: str, state: str) -> Row:
        return lamp_row(self.port, path, state)

    def states(self, path: str) -> list[str]:
        return [state for found, state in self.received if found == path]


class _Lamp(aiocoap.resource.Resource):  # type: ignore[misc]  # the library ships no types
    def __init__(self, lamps: Lamps, path: str) -> None:
        super().__init__()
        self._lamps, self._path = lamps, path

    async def render_put(self, request: aiocoap.Message) -> aiocoap.Message:
        lamps = self._lamps
        lamps.received.append((self._path, request.payload.decode()))
        lamps.requests.append(request)
        lamps.answering += 1
        lamps.requests_max = max(lamps.requests_max, lamps.answering)
        try:
            await asyncio.sleep(lamps.answer_delay_s)  # how long the device takes
            if lamps.busy is not None:
                await lamps.busy.wait()
        finally:
            lamps.answering -= 1
        answer = aiocoap.Message(code=lamps.code)
        for name, value in lamps.options.items():
            setattr(answer.opt, name, value)
        return answer


def lamp_row(port: int, path: str, state: str) -> Row:
    return iri(f"http://street.example/lamp/{port}/{path}"), iri(f"coap://127.0.0.1:{port}/{path}"), literal(state)


@asynccontextmanager
async def lamps_running(*paths: str, away: bool = False) -> AsyncIterator[Lamps]:
    """A device, stopped at the end; away: not yet started."""
    lamps = Lamps(paths or ("1", "2"))
    if not away:
        await lamps.start()
    try:
        yield lamps
    finally:
        await lamps.stop()


@asynccontextmanager
async def adapter_running(gateway: Gateway, settings: CoapSettings = QUICK) -> AsyncIterator[CoapAdapter]:
    adapter = CoapAdapter(settings, AdapterContext(cast(Any, gateway), now=lambda: NOON), CoapMachine())
    task = asyncio.create_task(adapter.run(), name="adapter")
    try:
        yield adapter
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


def workers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("coap <http://")]


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Lines with the text, WARNING and above, or INFO of the adapter."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


class SilentDevice(asyncio.DatagramProtocol):
    """Receives requests and does not answer, or as often as the test says. answered: called after each answer."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.answers = 0
        self.answered: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.payloads.append(aiocoap.Message.decode(data).payload.decode())
        token = data[4 : 4 + (data[0] & 0x0F)]
        acknowledgement = bytes([0x60 | len(token), int(aiocoap.CHANGED)]) + data[2:4] + token
        for _ in range(self.answers):
            self._transport.sendto(acknowledgement, address)
            self.answered()


@asynccontextmanager
async def silent_device(port: int) -> AsyncIterator[SilentDevice]:
    transport, device = await asyncio.get_running_loop().create_datagram_endpoint(
        SilentDevice, local_addr=("127.0.0.1", port)
    )
    try:
        yield device
    finally:
        transport.close()


# What is sent.


async def test_a_wanted_state_is_put_and_its_acknowledgement_recorded() -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.received == [("1", "ON")]
        request = lamps.requests[0]
        assert (request.mtype, request.opt.content_format) == (aiocoap.CON, aiocoap.numbers.ContentFormat.TEXT)
        actuator, resource, result = lamps.row("1", "ON")
        sending = Sending(NOON, "notification", "2.04", SETTINGS_PLACE, resource.strip("<>"), None)
        assert gateway.taken == [actuation_update(actuator, result, NOON, sending)]
        assert (adapter.counters.sent, adapter.counters.acknowledged, adapter.counters.failed) == (1, 1, 0)
        assert gateway.queries == [QUICK.query]


async def test_each_change_is_sent_once_and_a_resource_at_rest_has_no_task() -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway):
        gateway.whole(lamps.row("1", "ON"), lamps.row("2", "ON"))
        await until(lambda: len(gateway.taken) == 2)
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "ON")])
        await until(lambda: len(gateway.taken) == 3)
        assert lamps.states("1") == ["ON", "OFF"]
        assert lamps.states("2") == ["ON"]
        await until(lambda: workers() == [])


async def test_a_repeated_whole_result_sends_only_what_differs_from_the_acknowledged() -> None:
    gateway = Gateway()
    async with lamps_running("1", "2", "3") as lamps, adapter_running(gateway):
        gateway.whole(lamps.row("1", "ON"), lamps.row("2", "ON"))
        await until(lambda: len(gateway.taken) == 2)
        gateway.whole(lamps.row("1", "ON"), lamps.row("2", "OFF"), lamps.row("3", "ON"))
        await until(lambda: len(gateway.taken) == 4)
        assert lamps.states("1") == ["ON"]
        assert lamps.states("2") == ["ON", "OFF"]
        assert lamps.states("3") == ["ON"]


async def test_rows_that_occur_twice_are_wanted_until_both_are_removed() -> None:
    gateway = Gateway()
    async with lamps_running(away=True) as lamps, adapter_running(gateway):
        twice = lamps.row("1", "ON")
        gateway.whole(twice, twice)
        gateway.change(removed=[twice])
        await until(lambda: len(workers()) == 1)
        await lamps.start()
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.received == [("1", "ON")]


async def test_a_separate_answer_counts_as_the_acknowledgement() -> None:
    """RFC 7252 section 5.2.2: an empty acknowledgement first, the answer in a message of its own later."""
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        lamps.answer_delay_s = aiocoap.TransportTuning.EMPTY_ACK_DELAY * 2
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.received == [("1", "ON")]
        assert adapter.counters.sent == 1


async def test_a_change_that_is_taken_back_before_its_turn_sends_nothing() -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway):
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1)
        lamps.busy = asyncio.Event()
        gateway.change(added=[lamps.row("2", "ON")])
        await until(lambda: lamps.answering == 1)
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "ON")])
        await until(lambda: len(workers()) == 2)
        gateway.change(added=[lamps.row("1", "ON")], removed=[lamps.row("1", "OFF")])
        await until(gateway.all_taken)
        lamps.busy.set()
        await until(lambda: workers() == [])
        assert lamps.received == [("1", "ON"), ("2", "ON")]


async def test_answers_that_come_twice_count_once(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    port = free_udp_port()
    async with silent_device(port) as device, adapter_running(gateway) as adapter:
        device.answers = 50
        gateway.whole(*(lamp_row(port, str(path), "ON") for path in range(20)))
        await until(lambda: len(gateway.taken) == 20)
        assert (adapter.counters.sent, adapter.counters.acknowledged) == (20, 20)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# Devices that are away.


async def test_only_the_newest_state_reaches_a_lamp_that_was_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    gateway = Gateway()
    async with lamps_running(away=True) as lamps, adapter_running(gateway) as adapter:
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: adapter.counters.retried >= 3)
        gateway.change(added=[lamps.row("1", "DIM")], removed=[lamps.row("1", "ON")])
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "DIM")])
        before = adapter.counters.failed
        await until(lambda: adapter.counters.failed >= before + 2)
        await lamps.start()
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.received == [("1", "OFF")]
        assert '"OFF"' in gateway.taken[0]
        counters = adapter.counters
        assert counters.acknowledged == 1
        assert counters.sent == counters.failed + 1
    assert len(said(caplog, "device unreachable")) == 1
    assert len(said(caplog, "device reachable again")) == 1


async def test_being_away_is_said_again_after_a_recovery(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway):
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1)
        for old, new in (("ON", "OFF"), ("OFF", "ON")):
            count = len(said(caplog, "device unreachable"))  # an observation may notice it first
            await lamps.stop()
            gateway.change(added=[lamps.row("1", new)], removed=[lamps.row("1", old)])
            await until(lambda count=count: len(said(caplog, "device unreachable")) > count)  # type: ignore[misc]
            count = len(gateway.taken)
            await lamps.start()
            await until(lambda count=count: len(gateway.taken) > count)  # type: ignore[misc]
        assert lamps.states("1") == ["ON", "OFF", "ON"]
    assert len(said(caplog, "device unreachable")) == 2


async def test_a_failed_attempt_may_have_been_acted_on_so_the_earlier_state_is_sent_again() -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1)
        await lamps.stop()
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "ON")])
        await until(lambda: adapter.counters.failed >= 1)
        gateway.change(added=[lamps.row("1", "ON")], removed=[lamps.row("1", "OFF")])
        await lamps.start()
        # An attempt with OFF may have been under way and reach the lamp after all; ON has to come again, and last.
        await until(lambda: len(lamps.states("1")) >= 2 and lamps.states("1")[-1] == "ON")
        await until(lambda: len(gateway.taken) == len(lamps.states("1")))


async def test_a_removed_row_ends_the_attempts() -> None:
    gateway = Gateway()
    async with lamps_running(away=True) as lamps, adapter_running(gateway) as adapter:
        gateway.whole(lamps.row("1", "ON"), lamps.row("2", "ON"))
        await until(lambda: adapter.counters.retried >= 2)
        gateway.change(removed=[lamps.row("1", "ON")])
        await until(lambda: len(workers()) == 1)
        gateway.whole()  # the other one goes with an interruption
        await until(lambda: workers() == [])
        await lamps.start()
        gateway.change(added=[lamps.row("2", "OFF")])
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.received == [("2", "OFF")]


async def test_a_state_that_is_out_of_date_is_not_retransmitted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    gateway = Gateway()
    port = free_udp_port()
    settings = CoapSettings(
        server=NO_SERVER, networks=LOOPBACK, ack_timeout_s=0.3, retransmissions_max=1, retry_min_s=0.01
    )
    async with silent_device(port) as device, adapter_running(gateway, settings):
        gateway.whole(lamp_row(port, "1", "ON"))
        await until(lambda: device.payloads == ["ON"])
        gateway.change(added=[lamp_row(port, "1", "OFF")], removed=[lamp_row(port, "1", "ON")])
        await until(lambda: device.payloads.count("OFF") == 2)  # the newest one is
        assert device.payloads == ["ON", "OFF", "OFF"]
    assert [record for record in caplog.records if record.name.endswith(".aiocoap")] == []


async def test_an_attempt_that_is_given_up_is_not_retransmitted(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    port = free_udp_port()
    settings = CoapSettings(
        server=NO_SERVER,
        networks=LOOPBACK,
        ack_timeout_s=1.0,
        answer_timeout_s=0.05,
        retry_min_s=60.0,
        retry_max_s=60.0,
    )
    async with silent_device(port) as device, adapter_running(gateway, settings) as adapter:
        gateway.whole(lamp_row(port, "1", "ON"))
        await until(lambda: adapter.counters.failed == 1)
        await asyncio.sleep(1.6)  # the library would send it again after 1 to 1.5 s
        # An attempt may be given up before its first datagram, where the machine is busy.
        assert len(device.payloads) <= 1
    assert len(said(caplog, 'reason="no answer"')) == 1
    assert len(caplog.records) == 1


async def test_an_error_inside_the_library_concerns_one_device(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Endpoint.start

    def start_or_fail(endpoint: Endpoint, message: aiocoap.Message, *arguments: Any) -> Any:
        if message.opt.uri_path == ("bad",):
            raise RuntimeError("a bug")
        return start(endpoint, message, *arguments)

    monkeypatch.setattr(Endpoint, "start", start_or_fail)

    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        gateway.whole(lamp_row(free_udp_port(), "bad", "ON"), lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1 and adapter.counters.retried >= 1)
    assert len(said(caplog, 'reason="a bug"')) == 1


async def test_an_answer_to_a_state_that_is_out_of_date_is_awaited_before_the_newest_is_sent() -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway):
        lamps.busy = asyncio.Event()
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: lamps.answering == 1)
        gateway.change(added=[lamps.row("1", "DIM")], removed=[lamps.row("1", "ON")])
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "DIM")])
        await until(gateway.all_taken)
        lamps.busy.set()
        await until(lambda: len(gateway.taken) == 2)
        assert lamps.states("1") == ["ON", "OFF"]
        assert lamps.requests_max == 1


async def test_a_recovery_wakes_the_other_resources_of_the_device() -> None:
    gateway = Gateway()
    patient = CoapSettings(server=NO_SERVER, networks=LOOPBACK, retry_min_s=3600, retry_max_s=3600)
    async with lamps_running(away=True) as lamps, adapter_running(gateway, patient) as adapter:
        gateway.whole(lamps.row("1", "ON"), lamps.row("2", "ON"))
        await until(lambda: adapter.counters.failed == 2)
        await lamps.start()
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "ON")])
        await until(lambda: len(gateway.taken) == 2)
        assert sorted(lamps.received) == [("1", "OFF"), ("2", "ON")]


async def test_devices_that_are_away_leave_slots_to_the_others() -> None:
    gateway = Gateway()
    away = [free_udp_port() for _ in range(3)]
    settings = CoapSettings(
        server=NO_SERVER,
        networks=LOOPBACK,
        concurrency_max=2,
        ack_timeout_s=3600,
        answer_timeout_s=3600,
        retry_min_s=0.01,
        retry_max_s=0.01,
    )
    async with lamps_running() as lamps, adapter_running(gateway, settings) as adapter:
        gateway.whole(*(lamp_row(port, "1", "ON") for port in away))
        await until(lambda: adapter.counters.failed >= 3)  # closed ports: known at once
        async with silent_device(away[0]) as a, silent_device(away[1]) as b, silent_device(away[2]) as c:
            await until(lambda: bool(a.payloads or b.payloads or c.payloads))  # one waits for an hour now
            for state in range(50):  # far longer than the others need to come to their next attempt
                gateway.change(added=[lamps.row("1", str(state))], removed=[lamps.row("1", str(state - 1))])
                await until(lambda state=state: len(gateway.taken) == state + 1)  # type: ignore[misc]
            assert len(a.payloads + b.payloads + c.payloads) == 1


# Devices that refuse.


async def test_a_refused_command_is_said_once_and_a_new_state_is_tried_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        lamps.code = aiocoap.BAD_REQUEST
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: adapter.counters.retried >= 3)
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "ON")])
        await until(lambda: lamps.states("1").count("OFF") >= 2)
        assert all("gateway#refused" in text and '"4.00"' in text for text in gateway.taken)
        lamps.code = aiocoap.CHANGED
        await until(lambda: "hasSimpleResult" in gateway.taken[-1])
    assert len(said(caplog, "state refused")) == 2  # one per state
    assert all("reason=4.00" in line for line in said(caplog, "state refused"))
    assert len(said(caplog, "accepted again")) == 1
    assert said(caplog, "unreachable") == []


@pytest.mark.parametrize(("code", "again"), [(aiocoap.NOT_FOUND, False), (aiocoap.SERVICE_UNAVAILABLE, True)])
async def test_only_a_refusal_waits_longest(code: aiocoap.Code, again: bool) -> None:
    gateway = Gateway()
    settings = CoapSettings(server=NO_SERVER, networks=LOOPBACK, retry_min_s=0.01, retry_max_s=3600)
    closed = free_udp_port()
    async with lamps_running() as lamps, adapter_running(gateway, settings) as adapter:
        lamps.code = code
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: adapter.counters.failed == 1)
        gateway.change(added=[lamp_row(closed, "1", "ON")])  # its repetitions are the measure of time
        await until(lambda: adapter.counters.sent - len(lamps.received) >= 6)
        assert (len(lamps.received) > 1) == again


# Many devices.


async def test_requests_are_capped_over_all_devices_and_one_at_a_time_per_device() -> None:
    gateway = Gateway()
    settings = CoapSettings(server=NO_SERVER, networks=LOOPBACK, concurrency_max=3)
    paths = [str(path) for path in range(4)]
    most = 0
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(lamps_running(*paths)) for _ in range(5)]
        await stack.enter_async_context(adapter_running(gateway, settings))
        for device in devices:
            device.answer_delay_s = 0.02
        gateway.whole(*(device.row(path, "ON") for device in devices for path in paths))

        def all_recorded() -> bool:
            nonlocal most
            most = max(most, sum(device.answering for device in devices))
            return len(gateway.taken) == 20

        await until(all_recorded)
        for device in devices:
            assert sorted(device.received) == [(path, "ON") for path in paths]
            assert device.requests_max == 1
    assert 1 < most <= 3


async def test_a_hundred_devices_end_in_the_newest_state_and_see_no_older_one_after_a_newer(amounts: Amounts) -> None:
    """More devices than the library keeps sockets for in one context (64)."""
    gateway, last = Gateway(), amounts.of(19)
    patient = CoapSettings(server=NO_SERVER, networks=LOOPBACK, ack_timeout_s=5, answer_timeout_s=60, reassert_s=0)
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(lamps_running("1")) for _ in range(100)]
        adapter = await stack.enter_async_context(adapter_running(gateway, patient))
        gateway.whole(*(device.row("1", "0") for device in devices))
        for state in range(1, last + 1):
            for device in devices:
                old, new = device.row("1", str(state - 1)), device.row("1", str(state))
                gateway.change(added=[new], removed=[old])
            first = devices[state].received  # the others may be behind
            await until(lambda first=first, state=state: first[-1:] == [("1", str(state))])  # type: ignore[misc]
        await until(lambda: all(device.states("1")[-1:] == [str(last)] for device in devices))
        await until(lambda: workers() == [])
        assert adapter.counters.failed == 0
        for device in devices:
            assert device.states("1") == sorted(set(device.states("1")), key=int)  # in order, none twice


# Rows that are wrong.


async def test_of_two_rows_for_a_resource_the_greatest_holds_whatever_came_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway = Gateway()
    async with lamps_running() as lamps, adapter_running(gateway):
        gateway.whole(lamps.row("1", "ON"), lamps.row("1", "OFF"))
        gateway.change(added=[lamps.row("1", "DIM")])
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.received == [("1", "ON")]
        gateway.change(removed=[lamps.row("1", "ON"), lamps.row("1", "DIM")])
        await until(lambda: len(gateway.taken) == 2)
        assert lamps.received == [("1", "ON"), ("1", "OFF")]
        assert len(said(caplog, "coap conflict")) == 1
        gateway.change(added=[lamps.row("1", "ON")])
        await until(lambda: len(gateway.taken) == 3)
        assert len(said(caplog, "coap conflict")) == 2
        assert fields(caplog.records[-1])["DEVICE"].startswith("127.0.0.1:")


async def test_a_bad_row_is_said_once_and_the_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    bad: Row = (iri("http://street.example/fan"), iri("http://fan/state"), literal("ON"))
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        gateway.whole(bad, lamps.row("1", "ON"))
        await until(lambda: len(gateway.taken) == 1)
        gateway.whole(bad, lamps.row("1", "OFF"))
        await until(lambda: len(gateway.taken) == 2)
        assert adapter.counters.rejected_rows == 1
        gateway.change(removed=[bad])
        gateway.change(added=[bad, lamps.row("2", "ON")])  # it came again
        await until(lambda: len(gateway.taken) == 3)
        assert adapter.counters.rejected_rows == 2
    assert len(said(caplog, "row rejected actuator=<http://street.example/fan>")) == 2


# The gateway's side.


async def test_a_query_without_the_variables_ends_the_run_with_their_names() -> None:
    gateway = Gateway(variables=("actuator", "resource", "status"))
    gateway.whole()
    with pytest.raises(ConfigurationError, match=r"\?payload"):
        await asyncio.wait_for(CoapAdapter(QUICK, AdapterContext(cast(Any, gateway)), CoapMachine()).run(), WAIT_S)


async def test_a_refused_subscription_ends_the_run_with_the_gateways_reason() -> None:
    gateway = Gateway()
    lamps = Lamps()
    gateway.whole(lamps.row("1", "ON"))  # a worker that never ends by itself
    gateway.fail(UnsupportedRequestError("SERVICE in a subscription"))
    with pytest.raises(UnsupportedRequestError, match="SERVICE"):
        await asyncio.wait_for(CoapAdapter(QUICK, AdapterContext(cast(Any, gateway)), CoapMachine()).run(), WAIT_S)
    assert workers() == []


async def test_a_record_that_is_refused_is_counted_and_the_lamp_is_served_on(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(refusals=[UnsupportedRequestError("not allowed")])
    async with lamps_running() as lamps, adapter_running(gateway) as adapter:
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: adapter.counters.unrecorded == 1)
        gateway.change(added=[lamps.row("1", "OFF")], removed=[lamps.row("1", "ON")])
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.states("1") == ["ON", "OFF"]
    assert [record.levelname for record in caplog.records if "not recorded" in record.getMessage()] == ["ERROR"]


# The end.


@pytest.mark.parametrize("moment", ["idle", "request", "wait", "name"])
async def test_a_cancelled_run_leaves_nothing_behind(moment: str, caplog: pytest.LogCaptureFixture) -> None:
    def files_open() -> int:
        descriptors = Path("/proc/self/fd")  # Linux only
        return len(list(descriptors.iterdir())) if descriptors.exists() else 0

    # In debug mode, asyncio reports what is not closed or not awaited.
    asyncio.get_running_loop().set_debug(True)
    gateway = Gateway()
    port = free_udp_port()
    patient = CoapSettings(
        server=NO_SERVER,
        networks=LOOPBACK,
        ack_timeout_s=3600,
        answer_timeout_s=3600,
        retry_min_s=3600,
        retry_max_s=3600,
    )
    tasks, files = asyncio.all_tasks(), files_open()
    async with lamps_running() as lamps, silent_device(port) as device:
        async with adapter_running(gateway, patient) as adapter:
            if moment == "idle":
                gateway.whole(lamps.row("1", "ON"))
                await until(lambda: len(gateway.taken) == 1)
            elif moment == "request":
                gateway.whole(lamp_row(port, "1", "ON"))
                await until(lambda: device.payloads == ["ON"])
            elif moment == "wait":
                gateway.whole(lamp_row(free_udp_port(), "1", "ON"))
                await until(lambda: adapter.counters.failed == 1)
            else:  # before the device is connected
                gateway.whole(lamps.row("1", "ON"))
                await until(lambda: adapter.counters.sent == 1)
        assert {task.get_name() for task in asyncio.all_tasks()} == {task.get_name() for task in tasks}
    await until(lambda: files_open() <= files)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING and record.name != "asyncio"] == [
        record for record in caplog.records if "device unreachable" in record.getMessage()
    ]


async def test_an_answer_that_is_read_in_the_turn_of_the_cancellation_does_no_harm() -> None:
    raised: list[Any] = []
    loop = asyncio.get_running_loop()
    port = free_udp_port()
    gateway = Gateway()
    async with silent_device(port) as device, adapter_running(gateway):
        device.answers = 1

        def cancel() -> None:
            [worker] = [task for task in asyncio.all_tasks() if task.get_name().startswith("coap <http://")]
            # The loop cancels first, and reads the answer in the same turn.
            loop.call_soon(worker.cancel)

        device.answered = cancel
        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: raised.append(context))
        try:
            gateway.whole(lamp_row(port, "1", "ON"))
            await until(lambda: not workers() and device.payloads == ["ON"])
        finally:
            loop.set_exception_handler(handler)
    assert raised == []


async def test_the_adapter_can_run_again() -> None:
    gateway = Gateway()
    async with lamps_running() as lamps:
        adapter = CoapAdapter(QUICK, AdapterContext(cast(Any, gateway)), CoapMachine())
        for count in (1, 2):  # a new run knows of no acknowledgement
            gateway.whole(lamps.row("1", "ON"))
            task = asyncio.create_task(adapter.run())
            await until(lambda count=count: len(gateway.taken) == count)  # type: ignore[misc]
            task.cancel()
            await asyncio.wait([task])
        assert lamps.states("1") == ["ON", "ON"]


# libcoap's server.


async def shows(server: LibcoapServer, path: str, state: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await asyncio.to_thread(server.get, path) != state:
            pass


async def test_libcoap_lamps_follow_and_acknowledge() -> None:
    patient = replace(QUICK, ack_timeout_s=5, answer_timeout_s=60)
    with libcoap_server() as server:
        gateway = Gateway()
        paths = [f"lamp/{number}" for number in range(5)]
        async with adapter_running(gateway, patient) as adapter:
            gateway.whole(*(lamp_row(server.port, path, "ON") for path in paths))
            await until(lambda: len(gateway.taken) == 5)
            assert [server.get(path) for path in paths] == ["ON"] * 5
            gateway.change(
                added=[lamp_row(server.port, "lamp/3", "OFF")], removed=[lamp_row(server.port, "lamp/3", "ON")]
            )
            await until(lambda: len(gateway.taken) == 6)
            assert [server.get(path) for path in paths] == ["ON", "ON", "ON", "OFF", "ON"]
            assert adapter.counters.acknowledged == adapter.counters.sent == 6


async def test_a_libcoap_lamp_that_was_away_gets_the_newest_state() -> None:
    with libcoap_server() as server:
        server.stop()
        gateway = Gateway()
        on, off = lamp_row(server.port, "lamp", "ON"), lamp_row(server.port, "lamp", "OFF")
        async with adapter_running(gateway) as adapter:
            gateway.whole(on)
            await until(lambda: adapter.counters.retried >= 2)
            gateway.change(added=[off], removed=[on])
            await until(lambda: adapter.counters.retried >= 4)
            await asyncio.to_thread(server.start)
            await until(lambda: len(gateway.taken) == 1)
            assert server.get("lamp") == "OFF"


async def test_a_long_payload_goes_to_a_libcoap_lamp_in_blocks() -> None:
    """Its receive buffer holds no more than a block (RFC 7959)."""
    text = "".join(f"{number:05}" for number in range(1000))

    with libcoap_server() as server:
        gateway = Gateway()
        async with adapter_running(gateway):
            gateway.whole(lamp_row(server.port, "display", text))
            await until(lambda: len(gateway.taken) == 1)
            assert server.get("display") == text


async def test_a_libcoap_server_that_takes_no_more_resources_refuses(caplog: pytest.LogCaptureFixture) -> None:
    with libcoap_server(resources_max=1) as server:
        gateway = Gateway()
        async with adapter_running(gateway) as adapter:
            gateway.whole(lamp_row(server.port, "a", "ON"))
            await until(lambda: len(gateway.taken) == 1)
            gateway.change(added=[lamp_row(server.port, "b", "ON")])
            await until(lambda: adapter.counters.retried >= 2)
            assert adapter.counters.acknowledged == 1
            assert server.get("a") == "ON"
    assert len(said(caplog, "state refused")) == 1


async def test_a_libcoap_lamp_on_a_lossy_link_ends_in_the_newest_state() -> None:
    with libcoap_server(loss_percent=30) as server:
        gateway = Gateway()
        lossy = replace(QUICK, ack_timeout_s=0.05, retransmissions_max=2)
        async with adapter_running(gateway, lossy) as adapter:
            gateway.whole(lamp_row(server.port, "lamp", "0"))
            for state in range(1, 20):
                old, new = (lamp_row(server.port, "lamp", str(number)) for number in (state - 1, state))
                gateway.change(added=[new], removed=[old])
                await until(lambda state=state: f'"{state}"' in "".join(gateway.taken[-1:]))  # type: ignore[misc]
            await until(lambda: workers() == [])
            assert adapter.counters.acknowledged == len(gateway.taken)
        await shows(server, "lamp", "19")


# Which addresses are sent to.


async def test_a_device_outside_of_the_networks_is_told_once_and_sent_nothing(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    settings = replace(QUICK, networks=("private",))
    async with lamps_running() as lamps:
        rows = [
            (iri(f"http://street.example/lamp/{number}"), literal(f"coap://{host}:{lamps.port}/1"), literal("ON"))
            for number, host in enumerate(("127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "0x7f.1"))
        ]
        async with adapter_running(gateway, settings) as adapter:
            gateway.whole(*rows)
            # A thread resolves one of the names, so it may be behind the others.
            await until(lambda: "5 are outside of coap.networks" in adapter.status())
            await until(lambda: adapter.counters.outside >= 3 * len(rows) and len(gateway.taken) >= len(rows))
            assert (adapter.counters.sent, adapter.counters.failed) == (0, 0)
        assert lamps.received == []
        assert len(gateway.taken) == len(rows), "each is recorded once"
        for number in range(len(rows)):
            [update] = [text for text in gateway.taken if f"<http://street.example/lamp/{number}>" in text]
            assert "gateway#refused" in update
            assert "coap.networks" in update
    told = said(caplog, "coap target refused")
    assert len(told) == 5
    assert all("127.0.0.1 is in none of the networks; coap.networks allows " in record for record in told)


async def test_a_device_is_sent_to_once_its_network_is_there(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    found: list[Any] = []
    async with lamps_running() as lamps:
        adapter = CoapAdapter(
            replace(QUICK, networks=("private",)),
            AdapterContext(cast(Any, gateway)),
            CoapMachine(interfaces=lambda: found, monotonic=itertools.count(step=60).__next__),
        )
        running = asyncio.create_task(adapter.run())
        gateway.whole(lamps.row("1", "ON"))
        await until(lambda: adapter.counters.outside >= 1)
        found.append(ipaddress.ip_network("127.0.0.0/8"))
        await until(lambda: lamps.states("1") == ["ON"])
        await until(lambda: len(gateway.taken) == 2)
        assert ["gateway#refused" in update for update in gateway.taken] == [True, False]
        assert "outside" not in adapter.status()
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("payload", ["ON", "x" * 5000], ids=["one message", "in blocks"])
async def test_a_name_is_resolved_once_and_what_was_checked_is_sent_to(
    monkeypatch: pytest.MonkeyPatch, payload: str
) -> None:
    """A name whose second answer is another machine (DNS rebinding)."""
    plain, asked = socket.getaddrinfo, 0

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal asked
        if host not in ("lamp.example", b"lamp.example"):
            return plain(host, port, *arguments, **options)
        asked += 1
        return plain("127.0.0.1" if asked == 1 else "127.0.0.99", port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    gateway = Gateway()
    settings = replace(QUICK, networks=("127.0.0.1/32",))
    async with lamps_running() as lamps, adapter_running(gateway, settings):
        gateway.whole(
            (iri("http://street.example/lamp/1"), literal(f"coap://lamp.example:{lamps.port}/1"), literal(payload))
        )
        await until(lambda: len(gateway.taken) == 1)
        assert lamps.states("1") == [payload]
        assert {request.opt.uri_host for request in lamps.requests} == {"lamp.example"}
    assert asked <= 2  # once by each request: the PUT, and the GET of the state after it


@pytest.mark.parametrize(
    "options",
    [
        {"location_path": ("coap:", "", "127.0.0.1:{port}", "2")},
        {"location_query": ("coap://127.0.0.1:{port}/2",)},
        {"proxy_uri": "coap://127.0.0.1:{port}/2"},
        {"uri_host": "127.0.0.1", "uri_port": 1},
    ],
)
async def test_no_answer_leads_to_another_address(options: dict[str, Any]) -> None:
    gateway = Gateway()
    async with lamps_running() as elsewhere, lamps_running() as lamps:
        filled = {
            name: tuple(one.format(port=elsewhere.port) for one in value)
            if isinstance(value, tuple)
            else value.format(port=elsewhere.port)
            if isinstance(value, str)
            else value
            for name, value in options.items()
        }
        lamps.code = aiocoap.CREATED
        lamps.options = filled
        settings = replace(QUICK, networks=("127.0.0.1/32",))
        async with adapter_running(gateway, settings) as adapter:
            gateway.whole(lamps.row("1", "ON"))
            await until(lambda: adapter.counters.sent >= 1 and len(lamps.received) >= 1)
            await until(lambda: len(gateway.taken) + adapter.counters.failed >= 1)
        assert elsewhere.received == []
