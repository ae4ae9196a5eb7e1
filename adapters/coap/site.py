"""The CoAP server: each request passes here, in this order; the first check that fails answers.

::

    datagram ─▶ rate ─▶ format ─▶ OSCORE ─▶ critical options ─▶ path ─▶ permission ─▶ method ─▶ Accept
             ─▶ content format ─▶ Echo ─▶ size and blocks ─▶ cost ─▶ handler ─▶ answer, in blocks

`admits` checks the rate, and the socket the format. `serving` says what resources are.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import aiocoap
from aiocoap.numbers.codes import Code
from aiocoap.numbers.optionnumbers import OptionNumber

from lamplighter.adapters.coap import links
from lamplighter.adapters.coap.admission import REQUEST_BYTES, Verified, network, request_rates
from lamplighter.adapters.coap.answers import (
    KeptAnswers,
    answer_message,
    block_option,
    fit_answer,
    message_bytes,
    refusal_message,
)
from lamplighter.adapters.coap.blocks import BlockError, PartialBodies
from lamplighter.adapters.coap.callers import Callers, ProtectsAnswers, origin_of
from lamplighter.adapters.coap.links import LINK_FORMAT, Link
from lamplighter.adapters.coap.observers import ObserverPlace, Observers
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
from lamplighter.adapters.model.failures import Failures
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.pacing import TokenBuckets

# At least each so manieth notification is confirmable, and one in `CONFIRMED_S`, so that an observer that has gone is
# noticed (RFC 7641 section 4.5).
CONFIRMED_EACH = 20
CONFIRMED_S = 3_600.0
# Answers to multicast requests are spread over this time. So many wait for it; further ones are not sent.
LEISURE_S, DELAYED_MAX = 2.0, 20
# A request that is sent again has the same id within a slot of this length.
REQUEST_SLOT_S = 600
# When a source that sends too many costly requests may try again.
RATE_WAIT_S = 1
WELL_KNOWN: SitePath = (".well-known", "core")

# Stands for all sources that are not verified, whose costly requests have one rate together: they can be forged.
_UNVERIFIED = IPv6Address("::")
_OBSERVE_NUMBERS = 1 << 24
_PROXY = (OptionNumber.PROXY_URI, OptionNumber.PROXY_SCHEME)
# The critical options that the server understands, besides those for proxies.
_CRITICAL = frozenset(
    (
        OptionNumber.URI_HOST,
        OptionNumber.URI_PORT,
        OptionNumber.URI_PATH,
        OptionNumber.URI_QUERY,
        OptionNumber.ACCEPT,
        OptionNumber.BLOCK1,
        OptionNumber.BLOCK2,
    )
)
_REPEATABLE = frozenset((OptionNumber.URI_PATH, OptionNumber.URI_QUERY))
# No-Response: no answer of any class (RFC 7967).
_NOTHING = 26


@dataclass(slots=True)
class SiteCounters:
    """Since the start. requests: that were read; refused: by code, such as "4.04"; echo_requested: requests that have
    to be repeated with an Echo value; notifications: sent to observers."""

    requests: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    echo_requested: int = 0
    notifications: int = 0


@dataclass(slots=True)
class _Exchange:
    """A request and where its answers go. message: verified; caller: who sent it; protects: makes the message to send;
    limit: bytes of the answer to an unverified source, None: no limit."""

    pipe: Any
    message: aiocoap.Message
    caller: SiteCaller
    protects: ProtectsAnswers | None
    limit: int | None

    @property
    def place(self) -> ObserverPlace:
        """As an observer."""
        request = self.pipe.request
        return ObserverPlace((request.remote, request.token), _observer_key(self.caller), self.caller.protected)

    def send(self, message: aiocoap.Message, *, last: bool = True) -> None:
        """Raises UpstreamError if the message cannot be protected."""
        if self.limit is not None:
            message.transport_tuning = aiocoap.Unreliable()  # a separate answer that is repeated would be too much
        if self.message.remote.is_multicast_locally and not message.code.is_successful():
            message.opt.no_response = _NOTHING
        sent = message if self.protects is None else self.protects.outer(message)
        sent.transport_tuning = message.transport_tuning  # protection makes another message, without it
        self.pipe.add_response(sent, is_last=last)


class Site:
    """Answers requests. callers: who they are; resources: what there is, the first one with an entry for a path counts.

    echo_writes: whether a source has to repeat an Echo value before it changes something. now: wall clock;
    monotonic: seconds; leisure: seconds before an answer to a multicast request.
    """

    def __init__(
        self,
        callers: Callers,
        resources: Sequence[SiteResource],
        *,
        echo_writes: bool,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        leisure: Callable[[], float] = lambda: random.uniform(0, LEISURE_S),
    ) -> None:
        self.counters = SiteCounters()
        # The key is of this process: after a restart each source proves its address again.
        self.verified = Verified(secrets.token_bytes(32), monotonic)
        self._callers = callers
        self._resources = resources
        self._echo_writes = echo_writes
        self._now, self._monotonic, self._leisure = now, monotonic, leisure
        self._rates, self._costs = request_rates(), request_rates()
        self._bodies = PartialBodies()
        # For sources that are verified, and for others: those must not displace the answers of the former.
        self._kept = {True: KeptAnswers(), False: KeptAnswers()}
        self._failures = Failures("coap")
        self._delayed = 0
        self._observers = Observers()
        # RFC 7641 section 3.4 compares modulo 2^24. Beginning with the time, numbers grow across a restart of the
        # gateway.
        self._observe_number = int(now().timestamp()) % _OBSERVE_NUMBERS
        core = SiteMethod(self._core, gives=(LINK_FORMAT,))
        self._well_known = SiteEntry({"GET": core}, public=True)

    @property
    def observers(self) -> int:
        return len(self._observers)

    def admits(self, remote: Any, size: int) -> bool:
        """Whether a request of a peer, of so many bytes, is read now."""
        return self._may_take(self._rates, origin_of(remote).origin.address, 1 + size // REQUEST_BYTES)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        found = self.counters
        by_code = {f"requests_{code.replace('.', '_')}": count for code, count in sorted(found.refused.items())}
        return {
            "requests": found.requests,
            "requests_refused": found.refused.total(),
            "echo_requested": found.echo_requested,
            "observers_notified": found.notifications,
        } | by_code

    async def render_to_pipe(self, pipe: Any) -> None:
        """Answers a request; the library calls it. It is cancelled when the peer does not want the answer any more."""
        message = pipe.request
        self.counters.requests += 1
        try:
            # First of all: until OSCORE has verified the request, options and payload are the words of anybody.
            received = self._callers.received(message)
        except SiteRefusal as refusal:  # not verified: nothing of the request is known
            caller = origin_of(message.remote)
            self._refuse(_Exchange(pipe, message, caller, None, self._limit(caller, message)), refusal)
            return
        caller, protects = received.caller, received.protects
        # A request that passed the replay window cannot come from a forged address and be new.
        if caller.protected:
            self.verified.add(caller.origin)
        elif message.opt.echo is not None:
            self.verified.repeated(caller.origin, message.opt.echo)
        exchange = _Exchange(pipe, received.message, caller, protects, self._limit(caller, message))
        try:
            await self._serve(exchange)
        except SiteRefusal as refusal:
            self._refuse(exchange, refusal)
        except UpstreamError:  # there is no sender number for a protected answer now, so there is no answer
            self.counters.refused["5.03"] += 1
            self._end(exchange)
        except Exception as error:
            self._failures.payload_error("/".join(exchange.message.opt.uri_path), error)
            self._refuse(exchange, SiteRefusal(Code.INTERNAL_SERVER_ERROR))

    # --- checks ---

    async def _serve(self, exchange: _Exchange) -> None:
        """Raises SiteRefusal, UpstreamError."""
        message, caller = exchange.message, exchange.caller
        if message.remote.is_multicast_locally:
            # RFC 7252 section 8.2.1: a multicast request is answered late, at random, or not at all. Without a query
            # every server of the network would answer.
            if message.opt.uri_path != WELL_KNOWN or not message.opt.uri_query or self._delayed >= DELAYED_MAX:
                raise SiteRefusal(Code.NOT_FOUND)
            self._delayed += 1
            try:
                # Leisure (RFC 7252 section 8.2), so that the answers of a group do not collide.
                await asyncio.sleep(self._leisure())
            finally:
                self._delayed -= 1
        _check_options(message)
        entry = self._entry(message.opt.uri_path)
        if entry is None:
            raise SiteRefusal(Code.NOT_FOUND)
        # 401 before 403 and 405: who may not use the gateway learns nothing of its methods.
        if not entry.public:
            if not caller.permitted:
                raise SiteRefusal(Code.UNAUTHORIZED, "use OSCORE")
            if not entry.permits(caller):
                raise SiteRefusal(Code.FORBIDDEN)
        method = entry.methods.get(message.code.name)
        if method is None:
            raise SiteRefusal(Code.METHOD_NOT_ALLOWED)
        accept, content_format = _number(message.opt.accept), _number(message.opt.content_format)
        if method.gives and accept is not None and accept not in method.gives:
            raise SiteRefusal(Code.NOT_ACCEPTABLE)
        if not method.takes(content_format):
            raise SiteRefusal(Code.UNSUPPORTED_CONTENT_FORMAT)
        observed = method.observe is not None and message.opt.observe == 0
        # The freshness of a write, and the return path of an observer, are proved by an Echo (RFC 9175 section 2.3), as
        # a forged address would make the gateway send for ever.
        wants_echo = method.verified or observed or (self._echo_writes and message.code is not Code.GET)
        if wants_echo and exchange.limit is not None:
            self._ask_for_echo(exchange)
            return
        # Not before the checks above: a part of a body is held in memory for a source that may have it.
        body = self._body(exchange, entry.body_bytes_max)
        if body is None:
            return
        request = SiteRequest(
            message.code.name,
            message.opt.uri_path,
            caller._replace(verified=exchange.limit is None),
            message.opt.uri_query,
            body,
            content_format,
            accept,
            _request_id(exchange, body, self._now()),
        )
        block = block_option(message.opt.block2)
        kept_key = _kept_key(request)
        # Block 0 is always made anew, so that a client that begins again sees the state of now; further blocks come
        # from the same answer.
        kept = None if block is None or not block.number else self._kept_for(exchange).get(kept_key, self._monotonic())
        if kept is None and (cost := method.cost(request)) and not self._may_cost(exchange, cost):
            return
        if observed and method.observe is not None and self._observers.may_take(exchange.place):
            # None if it cannot be observed now: the answer without the Observe option then says so, and is correct (RFC
            # 7641 section 4.1).
            async with aclosing(method.observe(request)) as states:
                if await self._observe(exchange, request, states):
                    return
        answer = await method.handle(request) if kept is None else kept
        if message.remote.is_multicast_locally and not answer.body:
            raise SiteRefusal(Code.NOT_FOUND)
        self._send(exchange, request, answer)

    def _entry(self, path: SitePath) -> SiteEntry | None:
        if path == WELL_KNOWN:
            return self._well_known
        if not path or any(not segment or "/" in segment for segment in path):
            return None
        return next((found for one in self._resources if (found := one.entry(path)) is not None), None)

    def _may_cost(self, exchange: _Exchange, cost: int) -> bool:
        """Whether a request of this cost is handled now; else it is answered. Raises SiteRefusal."""
        if exchange.limit is not None and not self._may_take(self._costs, _UNVERIFIED, cost):
            self._ask_for_echo(exchange)
            return False
        if not self._may_take(self._costs, exchange.caller.origin.address, cost):
            raise SiteRefusal(Code.TOO_MANY_REQUESTS, max_age=RATE_WAIT_S)
        return True

    def _may_take(self, rates: TokenBuckets, address: IPv4Address | IPv6Address, cost: float) -> bool:
        return not rates.take(network(address), self._monotonic(), cost)

    def _kept_for(self, exchange: _Exchange) -> KeptAnswers:
        return self._kept[exchange.limit is None]

    def _limit(self, caller: SiteCaller, message: aiocoap.Message) -> int | None:
        return self.verified.answer_bytes_max(caller.origin, message_bytes(message, len(message.token)))

    def _body(self, exchange: _Exchange, bytes_max: int) -> bytes | None:
        """The whole body of a request; None if there is none now, which is answered. Raises SiteRefusal."""
        message = exchange.message
        too_large = SiteRefusal(Code.REQUEST_ENTITY_TOO_LARGE, f"at most {bytes_max} bytes", size=bytes_max)
        if max(message.opt.size1 or 0, len(message.payload)) > bytes_max:
            raise too_large
        block = block_option(message.opt.block1)
        if block is None:
            return bytes(message.payload)
        if block.start + len(message.payload) + block.more > bytes_max:
            raise too_large
        caller = exchange.caller
        source = caller.device if caller.protected else caller.origin.address
        if block.more and exchange.limit is not None and self._bodies.is_crowded:
            self._ask_for_echo(exchange)  # the other half is for sources that are there
            return None
        try:
            body = self._bodies.add(source, _body_name(exchange), block, message.payload, self._monotonic())
        except BlockError as error:
            if error.fault == "limit":
                raise too_large from error
            gap = error.fault in ("gap", "changed")
            # 4.08 lets the client begin anew with block 0 (RFC 7959 section 2.9.2); other faults would occur again.
            raise SiteRefusal(Code.REQUEST_ENTITY_INCOMPLETE if gap else Code.BAD_REQUEST, str(error)) from error
        if body is None:
            # 2.31 with the same Block1 asks for the next block (RFC 7959 section 2.3).
            going_on = aiocoap.Message(code=Code.CONTINUE)
            going_on.opt.block1 = block
            exchange.send(going_on)
        return body

    # --- answers ---

    def _send(
        self,
        exchange: _Exchange,
        request: SiteRequest,
        answer: SiteAnswer,
        *,
        observe: int | None = None,
        confirmable: bool = False,
    ) -> None:
        """Sends an answer, or a notification with this number. What is longer than a block is kept for the next."""
        message = answer_message(answer, exchange.message, observe=observe)
        block = block_option(exchange.message.opt.block2)
        try:
            sent = fit_answer(message, block, exchange.limit, lambda: self.verified.echo(exchange.caller.origin))
        except BlockError as error:
            raise SiteRefusal(Code.BAD_REQUEST, str(error)) from error
        if sent is None:
            self._ask_for_echo(exchange)
            return
        if sent.opt.block2 is not None and sent.opt.block2.more:
            self._kept_for(exchange).keep(_kept_key(request), answer, self._monotonic())
        if confirmable:
            sent.transport_tuning = aiocoap.Reliable()
        exchange.send(sent, last=observe is None)

    def _refuse(self, exchange: _Exchange, refusal: SiteRefusal) -> None:
        self.counters.refused[refusal.code.dotted] += 1
        try:
            exchange.send(refusal_message(refusal, exchange.message))
        except UpstreamError:
            self._end(exchange)

    def _ask_for_echo(self, exchange: _Exchange) -> None:
        self.counters.echo_requested += 1
        message = aiocoap.Message(code=Code.UNAUTHORIZED)
        message.opt.echo = self.verified.echo(exchange.caller.origin)
        exchange.send(message)

    def _end(self, exchange: _Exchange) -> None:
        """Ends a request without an answer."""
        message = aiocoap.Message(code=Code.SERVICE_UNAVAILABLE)
        message.opt.no_response = _NOTHING
        # The library needs an answer to end the request, and sends none of this class (RFC 7967).
        exchange.pipe.add_response(message, is_last=True)

    # --- observers ---

    async def _observe(
        self, exchange: _Exchange, request: SiteRequest, states: AsyncGenerator[SiteAnswer, None]
    ) -> bool:
        """Notifies an observer of each state, until it is cancelled. Returns False if it cannot be observed now."""
        self._observers.take(exchange.place, exchange)
        try:
            answer = await anext(states, None)
            if answer is None:
                return False
            await self._notify(exchange, request, answer, states)
        finally:
            self._observers.free(exchange.place, exchange)
        raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=10)

    async def _notify(
        self, exchange: _Exchange, request: SiteRequest, answer: SiteAnswer, states: AsyncGenerator[SiteAnswer, None]
    ) -> None:
        """Returns when there are no further states."""
        sent, confirmed_at = 0, self._monotonic()
        coming: asyncio.Future[SiteAnswer | None] = asyncio.ensure_future(_next(states))
        try:
            while True:
                now = self._monotonic()
                # RFC 7641 section 4.5: an observer that has left, or whose address was forged, is found by a
                # confirmable notification without acknowledgement.
                confirmable = sent % CONFIRMED_EACH == CONFIRMED_EACH - 1 or now >= confirmed_at + CONFIRMED_S
                confirmed_at = now if confirmable else confirmed_at
                self._observe_number = (self._observe_number + 1) % _OBSERVE_NUMBERS
                self._send(exchange, request, answer, observe=self._observe_number, confirmable=confirmable)
                self.counters.notifications += sent > 0
                sent += 1
                await asyncio.wait([coming], timeout=confirmed_at + CONFIRMED_S - now)
                if coming.done():
                    following = coming.result()
                    if following is None:
                        return
                    answer, coming = following, asyncio.ensure_future(_next(states))
        finally:
            coming.cancel()
            await asyncio.wait([coming])

    # --- what there is ---

    async def _core(self, request: SiteRequest) -> SiteAnswer:
        try:
            conditions = links.criteria(request.query)
        except PayloadError as error:
            raise SiteRefusal(Code.BAD_REQUEST, str(error)) from error
        found: list[Link] = [Link("/.well-known/core", (("ct", str(LINK_FORMAT)),))]
        for one in self._resources:
            found += one.links(request.caller)
        return SiteAnswer(Code.CONTENT, links.links_text(links.filter_links(found, conditions)).encode(), LINK_FORMAT)


def _check_options(message: aiocoap.Message) -> None:
    """Raises SiteRefusal for critical options that the server does not understand, or that may not come again (RFC 7252
    section 5.4.5). The library checks none."""
    numbers = Counter(option.number for option in message.opt.option_list())
    critical = sorted(one for one in numbers if one.is_critical() and one not in _PROXY)
    wrong = [one for one in critical if one not in _CRITICAL or (numbers[one] > 1 and one not in _REPEATABLE)]
    if wrong:
        raise SiteRefusal(Code.BAD_OPTION, f"option {int(wrong[0])}")
    if numbers.keys() & set(_PROXY):
        raise SiteRefusal(Code.PROXYING_NOT_SUPPORTED)


def _request_id(exchange: _Exchange, body: bytes, now: datetime) -> str:
    message, caller = exchange.pipe.request, exchange.caller
    # A message id may come again after EXCHANGE_LIFETIME (RFC 7252 section 4.8.2). Then it is another request.
    slot = int(now.timestamp()) // REQUEST_SLOT_S
    source = f"{caller.device if caller.protected else caller.origin} {message.mid} {slot} {message.code.name} "
    options = exchange.message.opt
    parts = source.encode(), repr((options.uri_path, options.uri_query)).encode(), message.token, body
    return "coap-" + hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


async def _next(states: AsyncGenerator[SiteAnswer, None]) -> SiteAnswer | None:
    return await anext(states, None)


def _number(option: Any) -> int | None:
    return None if option is None else int(option)


def _body_name(exchange: _Exchange) -> tuple[Any, ...]:
    """What tells the bodies of one source apart."""
    message, options = exchange.message, exchange.message.opt
    return exchange.caller.origin.port, message.code, options.uri_path, options.uri_query, tuple(options.request_tag)


def _kept_key(request: SiteRequest) -> tuple[Any, ...]:
    return _observer_key(request.caller), request.method, request.path, request.query, request.accept


def _observer_key(caller: SiteCaller) -> Any:
    return caller.device if caller.protected else caller.origin.address
