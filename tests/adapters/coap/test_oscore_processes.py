"""OSCORE between two processes on loopback, both directions, while the one of the gateway is killed and started again.

This process is the device, with aiocoap's own OSCORE context. It sees all datagrams of the gateway, so it can tell that
no sender number is used twice, and it sends old requests again, so it can tell that none is taken twice.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiocoap import ACK, CHANGED, CON, CONTENT, GET, NON, POST, Message, oscore

from lamplighter.adapters.coap.context_files import make_context
from tests.support.amounts import Amounts
from tests.support.event_loops import until
from tests.support.oscore_devices import Device
from tests.support.places import ROOT

LIMIT_S = 120.0
RESEND_S = 2.0


class Wire(asyncio.DatagramProtocol):
    """The socket of the device. It answers all commands, and checks and notes each protected datagram."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.commands: list[bytes] = []
        self.notifications = 0
        self.refused = 0
        self.datagrams = 0
        self.answers: dict[bytes, list[Message]] = {}
        self._sent: dict[tuple[str, bytes], bytes] = {}  # nonce -> ciphertext
        self._requests: dict[bytes, bytes] = {}  # token of an own request -> its number
        self._given: dict[tuple[Any, int, bytes], bytes] = {}  # answers, for retransmissions
        self._observation: tuple[bytes, Any] | None = None
        self._observer: tuple[Any, bytes, Any] | None = None
        self.told: list[Message] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.datagrams += 1
        message = Message.decode(data)
        if message.opt.oscore is not None:
            self._note(message)
        if message.code.is_request():
            key = (address, message.mid, message.token)
            if key not in self._given:
                self._given[key] = self._answer(message, address)
            self.transport.sendto(self._given[key], address)
        elif message.code.is_response():
            if message.mtype is CON:
                self.transport.sendto(Message(code=0, _mtype=ACK, _mid=message.mid).encode(), address)
            if self._observation and message.token == self._observation[0] and message.opt.oscore is not None:
                self.device.context.unprotect(message, self._observation[1])
                self.notifications += 1
            else:
                self.answers.setdefault(message.token, []).append(message)

    def _note(self, message: Message) -> None:
        """Fails if the gateway has used this nonce for something else."""
        flags = message.opt.oscore[0] if message.opt.oscore else 0
        own = message.opt.oscore[1 : 1 + (flags & 7)]
        nonce = ("own", own) if own else ("request", self._requests[message.token])
        before = self._sent.setdefault(nonce, message.payload)
        assert before == message.payload, f"nonce {nonce} was used for two messages"

    def _answer(self, message: Message, address: Any) -> bytes:
        try:
            inner, ids = self.device.context.unprotect(message)
            if inner.code is GET:
                self._observer = address, message.token, ids
                outer = self._notification()
            else:
                self.commands.append(inner.payload)
                outer, _ = self.device.context.protect(Message(code=CHANGED), ids)
        except oscore.ReplayErrorWithEcho as error:
            outer = error.to_message()
        except oscore.ProtectionInvalid:
            self.refused += 1
            raise
        outer.mtype, outer.mid, outer.token = ACK, message.mid, message.token
        return outer.encode()  # type: ignore[no-any-return]

    def _notification(self) -> Message:
        """The next notification to the observer. Its payload counts."""
        assert self._observer is not None
        message = Message(code=CONTENT, payload=b"%d" % len(self.told), observe=0)
        outer, _ = self.device.context.protect(message, self._observer[2])
        outer.opt.observe = len(self.told)
        self.told.append(outer)
        return outer

    @property
    def observer_port(self) -> int:
        return 0 if self._observer is None else self._observer[0][1]

    def tell(self) -> None:
        """Tells the observer something new."""
        self._tell(self._notification())

    def tell_again(self, told: Message) -> None:
        """Tells the observer something that it was told, as an attacker would: as new, and to its newest request."""
        copy = Message(code=told.code, oscore=told.opt.oscore, payload=told.payload)
        copy.opt.observe = len(self.told) + 1000
        self._tell(copy)

    def _tell(self, outer: Message) -> None:
        assert self._observer is not None
        address, token, _ = self._observer
        outer.mtype, outer.mid, outer.token = NON, random.randrange(1 << 16), token
        self.transport.sendto(outer.encode(), address)

    def protected(self, message: Message) -> tuple[Message, Any]:
        outer, ids = self.device.context.protect(message)
        return outer, ids

    async def exchange(self, outer: Message, port: int) -> Message:
        """The first answer to a message. It is sent until the answer is there, as CoAP does."""
        outer.mtype, outer.mid, outer.token = CON, random.randrange(1 << 16), random.randbytes(8)
        number = outer.opt.oscore[1 : 1 + (outer.opt.oscore[0] & 7)]
        self._requests[outer.token] = number
        data = outer.encode()
        async with asyncio.timeout(LIMIT_S):
            while outer.token not in self.answers:
                self.transport.sendto(data, ("127.0.0.1", port))
                for _ in range(int(RESEND_S / 0.01)):
                    await asyncio.sleep(0.01)
                    if outer.token in self.answers:
                        break
        return self.answers[outer.token][0]

    async def observe(self, port: int) -> None:
        """Registers an observation; `notifications` counts."""
        echo = None
        while True:
            outer, ids = self.protected(Message(code=GET, uri_path=["state"], observe=0, echo=echo))
            outer.mtype, outer.mid, outer.token = CON, random.randrange(1 << 16), random.randbytes(8)
            self._requests[outer.token] = outer.opt.oscore[1 : 1 + (outer.opt.oscore[0] & 7)]
            self.transport.sendto(outer.encode(), ("127.0.0.1", port))
            self._observation = None
            await until(lambda token=outer.token: token in self.answers)  # type: ignore[misc]
            first, _ = self.device.context.unprotect(self.answers[outer.token][0], ids)
            if not first.opt.echo:
                self._observation = (outer.token, ids)
                return
            echo = first.opt.echo


class Gateway:
    """The process. taken: readings that it took; seen: what it was told; both in all its lives."""

    def __init__(self, folder: Path, port: int) -> None:
        self._arguments = [sys.executable, "-m", "tests.support.oscore_gateway", str(folder), str(port)]
        self.taken: list[str] = []
        self.seen: list[int] = []
        self.port = self.calls_from = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.port = 0
        self._process = await asyncio.create_subprocess_exec(*self._arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(LIMIT_S):
            while not self.port:
                assert not self._reading.done(), "the process has ended"
                await asyncio.sleep(0.01)

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            word, value = line.decode().split()
            if word == "port":
                self.port = int(value)
            elif word == "calls":
                self.calls_from = int(value)
            elif word == "took":
                self.taken.append(value)
            else:
                assert word == "saw"
                self.seen.append(int(value))

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None and self._reading is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[Wire, Gateway]]:
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.bind(("127.0.0.1", 0))
    port = link.getsockname()[1]
    half = make_context(tmp_path / "contexts", "hall", f"127.0.0.1:{port}")
    wire = Wire(Device(tmp_path / "device", half))
    faults: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: faults.append(context.get("exception") or context))
    transport, _ = await loop.create_datagram_endpoint(lambda: wire, sock=link)
    gateway = Gateway(tmp_path / "contexts", port)
    try:
        await gateway.start()
        yield wire, gateway
    finally:
        await gateway.end(signal.SIGKILL)
        transport.close()
        loop.set_exception_handler(None)
    assert faults == []


class Readings:
    """Readings of the device. sent: all protected messages, to send them again."""

    def __init__(self, wire: Wire, gateway: Gateway) -> None:
        self._wire, self._gateway = wire, gateway
        self.sent: list[Message] = []
        self.echoes = 0
        self._count = 0

    async def send(self) -> None:
        """One reading, which the gateway takes. After its crash this needs an Echo value."""
        echo = None
        for _ in range(2):
            self._count += 1  # each message has a reading of its own, so that none may be taken twice
            message = Message(code=POST, uri_path=["readings"], payload=b"%d" % self._count, echo=echo)
            outer, ids = self._wire.protected(message)
            self.sent.append(outer)
            answer = await self._wire.exchange(outer, self._gateway.port)
            inner, _ = self._wire.device.context.unprotect(answer, ids)
            if inner.code is CHANGED:
                return
            echo = inner.opt.echo
            self.echoes += 1
        raise AssertionError(f"not taken: {inner.code}")

    async def replay(self, count: int, chance: random.Random) -> None:
        for outer in chance.sample(self.sent, min(count, len(self.sent))):
            copy = Message(code=outer.code, oscore=outer.opt.oscore, payload=outer.payload)
            answer = await self._wire.exchange(copy, self._gateway.port)
            assert not answer.code.is_successful() or answer.opt.oscore is not None  # or a protected Echo value


def moved(count: Callable[[], int], by: int) -> Callable[[], bool]:
    start = count()
    return lambda: count() >= start + by


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.faults)])
async def test_killed_at_random_no_number_is_used_twice_and_no_replay_is_taken(
    tmp_path: Path, seed: int, amounts: Amounts
) -> None:
    chance = random.Random(seed)
    kills = amounts.of(6, least=2)
    async with two(tmp_path) as (wire, gateway):
        readings = Readings(wire, gateway)
        for _ in range(kills):
            for _ in range(chance.randrange(1, 4)):
                await readings.send()
            await wire.observe(gateway.port)
            await until(moved(lambda: wire.datagrams, chance.randrange(1, 400)))
            await notifications_are_seen_once(wire, gateway, chance)
            await gateway.end(signal.SIGKILL)
            await gateway.start()
            await readings.replay(5, chance)
        await readings.send()
        await readings.replay(len(readings.sent), chance)
        await until(moved(lambda: len(wire.commands), 5))
        assert readings.echoes == kills
        assert wire.refused == 0, "the device has seen no old number"
    assert [value for value, times in Counter(gateway.taken).items() if times > 1] == []
    assert gateway.seen == sorted(set(gateway.seen))
    assert len(gateway.taken) == len(readings.sent) - readings.echoes


async def notifications_are_seen_once(wire: Wire, gateway: Gateway, chance: random.Random) -> None:
    """Some new notifications, and old ones of this and earlier registrations between them."""
    await until(lambda: wire.observer_port == gateway.calls_from and len(wire.told) - 1 in gateway.seen)
    for _ in range(3):
        for told in [chance.choice(wire.told) for _ in range(3)]:
            wire.tell_again(told)
        wire.tell()  # arrives after them
        await until(lambda: len(wire.told) - 1 in gateway.seen)


async def test_restarts_of_both_sides_keep_the_key(tmp_path: Path) -> None:
    async with two(tmp_path) as (wire, gateway):
        readings = Readings(wire, gateway)
        await readings.send()
        for end in ("gateway", "device", "device crashes", "gateway"):
            if end == "gateway":
                await gateway.end(signal.SIGTERM)
                await gateway.start()
            elif end == "device":
                wire.device.restart()
            else:
                wire.device.crash()
            await readings.send()
            await until(moved(lambda: len(wire.commands), 3))
            await wire.observe(gateway.port)
            await until(moved(lambda: wire.notifications, 3))
        await readings.replay(len(readings.sent), random.Random(1))
        assert readings.echoes == 0, "after a clean end, no request is repeated"
        assert wire.refused == 0
    assert len(gateway.taken) == len(set(gateway.taken)) == len(readings.sent) == 5
