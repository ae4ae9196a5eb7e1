"""One request to one device, and its whole answer: address check, bodies in blocks, retransmission, time limits.

A device gets one request at a time (RFC 7252 section 4.7), and all devices together get as many as the settings say.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import aiocoap
import aiocoap.error

from lamplighter.adapters.coap.blocks import Block, BlockError, BodyIn, BodyOut
from lamplighter.adapters.coap.endpoint import Endpoint
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.devices.sender import Outdated
from lamplighter.adapters.mapping.uris import host_and_port
from lamplighter.adapters.networks import Address, Networks
from lamplighter.adapters.resources.exchange import BODY_BYTES_MAX, DeviceAnswer, DeviceRequest, always
from lamplighter.engine.errors import PayloadError, UpstreamError

# For a request with all its blocks.
TRANSFER_S_MAX = 600.0
# How often a body that changes during its transfer is asked for.
TRANSFERS_MAX = 3
# How often it is checked whether a request that waits for its answer is outdated.
CHECK_S = 0.1

Opener = Callable[[aiocoap.Message], aiocoap.Message]
# Protects a request for one device; returns what checks its answers and removes their protection. Both raise
# UpstreamError. The protected request has neither remote nor token.
Seal = Callable[[aiocoap.Message], tuple[aiocoap.Message, Opener]]
# The seal of a device, by its name in the settings ("" if the rule names none), the URI and the address. Raises
# PayloadError if the device may not be addressed without one.
Seals = Callable[[str, str, Address], Seal | None]


class CheckedPeer(NamedTuple):
    """A device whose address was checked."""

    remote: Any
    seal: Seal | None


def no_seal(device: str, uri: str, address: Address) -> Seal | None:
    return None


def failure(exception: Any) -> UpstreamError:
    """The library's error as one of ours. Some come as classes."""
    if isinstance(exception, aiocoap.error.TimeoutError):
        return UpstreamError("no answer")
    if exception is aiocoap.error.MessageError or isinstance(exception, aiocoap.error.MessageError):
        return UpstreamError("the device rejected the message")
    if isinstance(exception, aiocoap.error.LibraryShutdown):
        return UpstreamError("the adapter stops")
    return UpstreamError(str(exception.__cause__ or exception) or type(exception).__name__)


class Exchanges:
    """Requests to devices by one endpoint. now: the time, with a time zone; seals: protects requests (OSCORE)."""

    def __init__(
        self,
        endpoint: Endpoint,
        networks: Networks,
        settings: CoapSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seals: Seals = no_seal,
    ) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.now = now
        self._networks = networks
        self._seals = seals
        self._slots = asyncio.Semaphore(settings.concurrency_max)
        # Devices that do not answer hold a slot for the whole of their time-outs. Those that do keep the other half.
        self._retry_slots = asyncio.Semaphore(max(1, settings.concurrency_max // 2))
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by authority, those in use

    async def request(self, request: DeviceRequest) -> DeviceAnswer:
        """The device's answer, whatever its code.

        Raises UpstreamError if there is none; PayloadError if the request cannot be sent as it is, or the answer is too
        large; Outdated.
        """
        if len(request.body) > BODY_BYTES_MAX:
            raise PayloadError(f"the body has more than {BODY_BYTES_MAX:,} bytes")
        async with self.turn(request.uri, retried=request.retried):
            try:
                async with asyncio.timeout(TRANSFER_S_MAX):
                    peer = await self.peer(request.uri, request.device)
                    return await _Transfer(self, request, peer).answer()
            except TimeoutError as error:
                raise UpstreamError(f"the transfer took longer than {TRANSFER_S_MAX:g} s") from error

    @asynccontextmanager
    async def turn(self, uri: str, *, retried: bool = False) -> AsyncIterator[None]:
        """While it is held, no other request goes to the device."""
        authority = urlsplit(uri).netloc
        lock = self._locks.setdefault(authority, asyncio.Lock())
        async with AsyncExitStack() as stack:
            # The lock of the device comes first: who waits for a device must not hold a slot that others could use.
            await stack.enter_async_context(lock)
            if retried:
                await stack.enter_async_context(self._retry_slots)
            await stack.enter_async_context(self._slots)
            yield

    async def peer(self, uri: str, device: str) -> CheckedPeer:
        """The device of a URI. Its name is resolved here, once, and not by the library, so that all datagrams go to the
        address that was checked. Raises PayloadError and UpstreamError."""
        host, port = host_and_port(uri)
        try:
            async with asyncio.timeout(self.settings.answer_timeout_s):
                address = await self._networks.resolve(host, port, socket.SOCK_DGRAM)
        except TimeoutError as error:
            raise UpstreamError(f"{host} was not resolved in time") from error
        return CheckedPeer(self.endpoint.address(address, port, _scope(address)), self._seals(device, uri, address))

    async def exchange(
        self,
        message: aiocoap.Message,
        peer: CheckedPeer,
        is_current: Callable[[], bool] = always,
        token: bytes | None = None,
    ) -> aiocoap.Message:
        """One message and its answer. Raises UpstreamError and Outdated."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(event: Any) -> None:
            if not answered.done():
                answered.set_result(event)

        if not is_current():
            raise Outdated
        sealed, opened = (message, None) if peer.seal is None else peer.seal(message)
        sealed.remote = peer.remote
        ongoing = self.endpoint.start(sealed, take, token)
        try:
            async with asyncio.timeout(self.settings.answer_timeout_s):
                while not answered.done():
                    # Looked at again and again, since a newer desired state makes this message wrong while it is
                    # retransmitted.
                    await asyncio.wait([answered], timeout=None if is_current is always else CHECK_S)
                    if not answered.done() and not is_current():
                        raise Outdated
        except TimeoutError as error:
            raise UpstreamError("no answer") from error
        finally:
            # Also on cancellation: it ends the retransmission, so that the next request to the device leaves at once.
            ongoing.stop()
        event = answered.result()
        if event.message is None:
            raise failure(event.exception) from event.exception if isinstance(event.exception, Exception) else None
        return event.message if opened is None else opened(event.message)


class _Transfer:
    """One request with the blocks of its body and of its answer."""

    def __init__(self, exchanges: Exchanges, request: DeviceRequest, peer: CheckedPeer) -> None:
        self._exchanges = exchanges
        self._request = request
        self._peer = peer
        self._echo: bytes | None = None
        self._tag = secrets.token_bytes(4)  # of another body, a block that was delayed has another one

    async def answer(self) -> DeviceAnswer:
        sent = self._exchanges.now()
        answer = await self._upload()
        body = await self._download(answer) if answer.code.is_successful() else bytes(answer.payload)
        options = answer.opt
        return DeviceAnswer(
            answer.code.dotted,
            body,
            None if options.content_format is None else int(options.content_format),
            options.etag,
            options.max_age,
            sent,
            self._exchanges.now(),
        )

    async def _upload(self) -> aiocoap.Message:
        """Sends the request, in blocks if it is long; the answer to the whole."""
        body = BodyOut(self._request.body)
        while True:
            block, payload = body.block()
            options: dict[str, Any] = {"payload": payload}
            if block.more or block.number:
                options |= {"block1": block, "request_tag": [self._tag]}
                if not block.number:
                    options["size1"] = len(self._request.body)
            answer = await self._exchange(**options)
            if body.answered(answer.code.dotted, _block(answer.opt.block1)):
                return answer

    async def _download(self, first: aiocoap.Message) -> bytes:
        """The body of the answer that begins with this one."""
        limit = self._request.limit
        if max(first.opt.size2 or 0, len(first.payload)) > limit:
            raise PayloadError(f"the answer has more than {limit:,} bytes")
        # A resource may change between two blocks: another ETag says so, and the transfer begins anew (RFC 7959 section
        # 2.4).
        for _ in range(TRANSFERS_MAX):
            body, answer, block = BodyIn(limit), first, _block(first.opt.block2)
            if block is None:
                return bytes(first.payload)
            try:
                while not body.add(block, answer.payload, answer.opt.etag):
                    answer = await self._exchange(block2=body.next(block.exponent))
                    block = self._next_block(answer)
                return bytes(body.body)
            except BlockError as error:
                if error.fault in ("limit", "size"):
                    raise PayloadError(f"the answer: {error}") from error
                # Asking again is safe for GET only.
                if error.fault == "gap" or self._request.method != "GET":
                    raise UpstreamError(f"the answer: {error}") from error
            first = await self._exchange(block2=Block(0, False, block.exponent))
            self._next_block(first)
        raise UpstreamError("the resource changes faster than it can be read")

    def _next_block(self, answer: aiocoap.Message) -> Block:
        """Raises UpstreamError if the answer is no block."""
        block = _block(answer.opt.block2)
        if block is None or not answer.code.is_successful():
            raise UpstreamError(f"the device answered {answer.code.dotted} instead of the next block")
        return block

    async def _exchange(self, **options: Any) -> aiocoap.Message:
        """One message of the request, once more if the device asks for its Echo value (RFC 9175 section 2.3)."""
        answer = await self._exchanges.exchange(self._message(options), self._peer, self._request.is_current)
        if answer.code == aiocoap.UNAUTHORIZED and answer.opt.echo and answer.opt.echo != self._echo:
            self._echo = answer.opt.echo
            answer = await self._exchanges.exchange(self._message(options), self._peer, self._request.is_current)
        return answer

    def _message(self, options: dict[str, Any]) -> aiocoap.Message:
        request = self._request
        block2 = options.get("block2")
        return uri_message(
            request.method,
            request.uri,
            # A request for a further block has no payload, so it has no format.
            content_format=request.format if block2 is None else None,
            accept=request.accept,
            echo=self._echo,
            **options,
        )


def uri_message(method: str, uri: str, *, payload: bytes = b"", **options: Any) -> aiocoap.Message:
    """A request without a peer. options: by the library's names; None: without. Raises PayloadError."""
    try:
        message = aiocoap.Message(code=getattr(aiocoap, method), uri=uri, payload=payload)
    except (aiocoap.error.Error, ValueError) as error:
        raise PayloadError(f"{uri} is not a valid coap:// URI: {error}") from error
    for name, value in options.items():
        if value is not None:
            setattr(message.opt, name, value)
    return message


def _block(option: Any) -> Block | None:
    return None if option is None else Block(*option)


def _scope(address: Address) -> int:
    """The number of the interface of a link-local address. Raises UpstreamError."""
    name = None if address.version == 4 else address.scope_id
    if name is None:
        return 0
    try:
        return int(name) if name.isdigit() else socket.if_nametoindex(name)
    except OSError as error:
        raise UpstreamError(f"there is no interface {name}") from error
