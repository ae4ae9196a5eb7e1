"""A CoAP server on 127.0.0.1 with resources of a test, and requests of a plain socket to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.callers import Callers
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.links import Link
from lamplighter.adapters.coap.serving import (
    SiteAnswer,
    SiteCaller,
    SiteEntry,
    SiteMethod,
    SitePath,
    SiteRefusal,
    SiteRequest,
    SiteResource,
)
from lamplighter.adapters.coap.settings import CoapDeviceSettings
from lamplighter.adapters.coap.site import Site
from lamplighter.adapters.networks import Networks
from tests.support.raw_coap import ACK, BLOCK2, CON, ECHO, URI_PATH, Datagram, RawPeer, raw_peer

BLOCK1, SIZE1, REQUEST_TAG, ETAG, URI_QUERY, ACCEPT, CONTENT_FORMAT, PROXY_URI = 27, 60, 292, 4, 15, 17, 12, 35
LOOPBACK = ("127.0.0.0/8",)


@dataclass
class Shelf:
    """The resource of tests. `/long` is long; `/state` is observed; `/box` takes text up to 2,000 bytes; `/secret` is
    of the device "lamp"; `/full` has no room. changed: set by a test that has changed the state."""

    text: bytes = b"short"
    state: bytes = b"0"
    requests: list[SiteRequest] = field(default_factory=list)
    observed: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def entry(self, path: SitePath) -> SiteEntry | None:
        read = SiteMethod(self._read, gives=(0, 50), observe=self._states if path == ("state",) else None)
        box = SiteMethod(self._store, takes=lambda number: number in (None, 0))
        entries = {
            "long": SiteEntry({"GET": read}),
            "state": SiteEntry({"GET": read}),
            "box": SiteEntry({"POST": box, "PUT": box}, body_bytes_max=2_000),
            "secret": SiteEntry({"GET": read}, permits=lambda caller: caller.device == "lamp"),
            "full": SiteEntry({"POST": SiteMethod(self._full)}),
            "broken": SiteEntry({"GET": SiteMethod(self._fail)}),
        }
        return entries.get(path[0]) if len(path) == 1 else None

    def links(self, caller: SiteCaller) -> Iterable[Link]:
        return [Link("/state", (("rt", "lamp"), ("obs", None)))] if caller.permitted else []

    async def _read(self, request: SiteRequest) -> SiteAnswer:
        self.requests.append(request)
        return SiteAnswer(Code.CONTENT, self.state if request.path == ("state",) else self.text, 0)

    async def _store(self, request: SiteRequest) -> SiteAnswer:
        self.requests.append(request)
        if request.body == b"bad":
            raise SiteRefusal(Code.BAD_REQUEST, "what is bad " * 10)
        return SiteAnswer(Code.CHANGED)

    async def _full(self, request: SiteRequest) -> SiteAnswer:
        raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=10)

    async def _fail(self, request: SiteRequest) -> SiteAnswer:
        raise RuntimeError("a fault of the handler")

    async def _states(self, request: SiteRequest) -> AsyncGenerator[SiteAnswer, None]:
        self.observed += 1
        try:
            while True:
                yield SiteAnswer(Code.CONTENT, self.state, 0)
                await self.changed.wait()
                self.changed.clear()
        finally:
            self.observed -= 1


class SitePlace(NamedTuple):
    host: str = "127.0.0.1"
    port: int = 0
    requests_max: int = 200


@asynccontextmanager
async def coap_site(
    *resources: SiteResource,
    plain: Sequence[str] = LOOPBACK,
    echo_writes: bool = False,
    devices: Mapping[str, CoapDeviceSettings] | None = None,
    contexts: Contexts | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[Site, RawPeer]]:
    """The site, and a peer whose datagrams go to it. monotonic: seconds, by which it bounds the rate of requests."""
    callers = Callers(contexts or Contexts(), devices or {}, Networks(plain, "coap.plain"))
    site = Site(callers, resources, echo_writes=echo_writes, monotonic=monotonic)
    endpoint = await Endpoint.server(SitePlace(), site, EndpointCounters(), admits=site.admits)
    try:
        with raw_peer(endpoint.port) as peer:
            yield site, peer
    finally:
        await endpoint.close()


class Asker:
    """Sends requests with message ids and tokens of their own. echo: repeats the Echo value that is asked for."""

    def __init__(self, peer: RawPeer, *, echo: bool = True) -> None:
        self._peer = peer
        self._echo = echo
        self._mid = 0
        self.sizes: list[tuple[int, int]] = []
        """Bytes of each request, and of its answer."""

    async def ask(
        self, method: int, path: str, payload: bytes = b"", *options: tuple[int, bytes], token: bytes = b""
    ) -> Datagram:
        """The answer."""
        answer = await self.once(method, path, payload, *options, token=token)
        value = answer.option(ECHO)
        if self._echo and answer.code == Code.UNAUTHORIZED and value is not None:
            answer = await self.once(method, path, payload, *options, (ECHO, value), token=token)
        return answer

    async def once(
        self, method: int, path: str, payload: bytes = b"", *options: tuple[int, bytes], token: bytes = b""
    ) -> Datagram:
        self._mid += 1
        token = token or b"t%d" % self._mid
        segments = tuple((URI_PATH, part.encode()) for part in path.split("/") if part)
        in_order = tuple(sorted((*segments, *options), key=lambda one: one[0]))
        request = Datagram(CON, method, self._mid, token, in_order, payload)
        self._peer.send(request)
        while True:
            answer = await self._peer.receive()
            if answer.kind == CON:  # it came late; what is not acknowledged keeps the next one back (NSTART)
                self._peer.send(Datagram(ACK, 0, answer.mid))
            if answer.token == token and answer.code:
                self.sizes.append((len(request.encoded()), len(answer.encoded())))
                return answer

    async def whole(self, path: str, *options: tuple[int, bytes]) -> bytes:
        """The body of a GET, with all blocks, each of the size that the server chooses."""
        body, number, exponent = b"", 0, 6
        echo: tuple[tuple[int, bytes], ...] = ()
        while True:
            value = (number << 4 | exponent).to_bytes(2, "big").lstrip(b"\0")
            block = ((BLOCK2, value),) if number else ()
            answer = await self.ask(1, path, b"", *options, *block, *echo)
            assert answer.code == Code.CONTENT, answer
            found = answer.option(ECHO)
            echo = ((ECHO, found),) if found is not None else ()
            body += answer.payload
            option = answer.option(BLOCK2)
            if option is None:
                return body
            given = int.from_bytes(option, "big")
            exponent = given & 7
            if not given & 8:
                return body
            number = len(body) >> (exponent + 4)
