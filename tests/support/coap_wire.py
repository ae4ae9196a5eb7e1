"""Endpoints in memory, over a network with faults, in a loop with virtual time: ten minutes pass in a second.

All faults follow from a seed, and no time passes but by the loop, so a run repeats exactly if the rest of it does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from ipaddress import IPv4Address
from random import Random
from typing import Any, NamedTuple, TypeVar

import aiocoap

from lamplighter.adapters.coap.endpoint import Confirmable, Endpoint, EndpointCounters
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.networks import Address

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, its clock goes on to the next timer. What is for a thread runs at once: it would take
    real time, in which the clock goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._select: Callable[[float | None], list[Any]] = self._selector.select
        self._selector.select = self._jump

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _jump(self, timeout: float | None) -> list[Any]:
        ready = self._select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and for no time")
        if not ready and timeout:
            self._now += timeout
        return ready


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine, run in a `VirtualLoop`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


class Faults(NamedTuple):
    """loss, duplicates: shares of the datagrams; delay_s: of each copy, at random up to this, so that copies overtake
    each other."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_s: float = 0.0

    def delays(self, chance: Random) -> list[float]:
        """When the copies of a datagram arrive."""
        copies = 1 + (chance.random() < self.duplicates)
        return [chance.uniform(0, self.delay_s) for _ in range(copies) if chance.random() >= self.loss]


class WireAddress:
    """A peer on the network."""

    scheme = "coap"
    maximum_block_size_exp = 6
    is_multicast = is_multicast_locally = False
    pktinfo = None

    def __init__(self, host: str, port: int) -> None:
        self.place = host, port
        self.sockaddr = (host, port, 0, 0)
        self.hostinfo = f"{host}:{port}"
        self.uri_base = f"coap://{self.hostinfo}"

    def __hash__(self) -> int:
        return hash(self.place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WireAddress) and self.place == other.place

    def as_response_address(self) -> WireAddress:
        return self


class Network:
    """Carries datagrams between its wires. sent: datagrams so far; carries: whether a datagram may arrive now."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.faults = faults
        self.sent = 0
        self.wires: dict[tuple[str, int], Wire] = {}
        self.carries: Callable[[WireAddress, WireAddress], bool] = lambda source, target: True
        self._random = Random(seed)
        random.seed(seed)  # the library's time-outs and our pauses follow from it

    def carry(self, source: WireAddress, target: WireAddress, data: bytes) -> None:
        self.sent += 1
        for delay in self.faults.delays(self._random):
            asyncio.get_running_loop().call_later(max(delay, 1e-4), self._arrive, source, target, data)

    def _arrive(self, source: WireAddress, target: WireAddress, data: bytes) -> None:
        wire = self.wires.get(target.place)
        if wire is not None and self.carries(source, target):
            wire.endpoint.messages.receive(data, source)

    def endpoint(
        self, host: str, port: int = 5683, *, site: Any = None, settings: CoapSettings | None = None
    ) -> Endpoint:
        """A new endpoint at an address; it replaces one that is there, like a device that reboots."""
        tuning = None if settings is None else Confirmable(settings)
        endpoint = Endpoint(EndpointCounters(), site=site, tuning=tuning, requests_max=200)
        endpoint.attach(Wire(self, endpoint, WireAddress(str(IPv4Address(host)), port)))
        return endpoint


class Wire:
    """The interface of one endpoint."""

    def __init__(self, network: Network, endpoint: Endpoint, own: WireAddress) -> None:
        self.endpoint = endpoint
        self.own = own
        self.port = own.place[1]
        self._network = network
        network.wires[own.place] = self

    def address(self, ip: Address, port: int, scope: int) -> WireAddress:
        return WireAddress(str(ip), port)

    def send(self, message: Any) -> None:
        self.send_datagram(message.encode(), message.remote)

    def send_datagram(self, data: bytes, remote: WireAddress) -> None:
        self._network.carry(self.own, remote, data)

    async def shutdown(self) -> None:
        if self._network.wires.get(self.own.place) is self:
            del self._network.wires[self.own.place]


class WireSensor:
    """A device with one resource at all paths, and its observers. A reboot forgets them.

    state: its body; code, content_format, max_age: of its answers; observable: whether it offers Observe. requests:
    the paths of the requests, those with Observe with its value.
    """

    def __init__(self, network: Network, host: str, state: bytes = b"0", *, observable: bool = True) -> None:
        self.state = state
        self.code = aiocoap.CONTENT
        self.content_format: int | None = None
        self.max_age = 10
        self.observable = observable
        self.requests: list[tuple[str, int | None]] = []
        self._network, self._host = network, host
        self.boot()

    def boot(self) -> None:
        self._observers: dict[Any, Any] = {}
        self._number = 1
        self.endpoint = self._network.endpoint(self._host, site=self)

    @property
    def observers(self) -> int:
        return len(self._observers)

    async def render_to_pipe(self, pipe: Any) -> None:
        observers, key = self._observers, object()
        self.requests.append(("/".join(pipe.request.opt.uri_path), pipe.request.opt.observe))
        if pipe.request.opt.observe != 0 or not self.observable or not self.code.is_successful():
            pipe.add_response(self._answer(None), is_last=True)
            return
        observers[key] = pipe
        try:
            pipe.add_response(self._answer(self._number), is_last=False)
            await asyncio.Event().wait()
        finally:
            del observers[key]

    def change(self, state: bytes) -> None:
        self.state = state
        self.notify(1)

    def notify(self, ahead: int) -> None:
        """Sends the state with a number that is so much after the last one. One that is not newer is an old one."""
        self._number += ahead
        for pipe in list(self._observers.values()):
            pipe.add_response(self._answer(self._number), is_last=False)

    def _answer(self, number: int | None) -> aiocoap.Message:
        return aiocoap.Message(
            code=self.code,
            payload=self.state,
            observe=number,
            max_age=self.max_age,
            content_format=self.content_format,
        )
