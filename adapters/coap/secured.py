"""OSCORE (RFC 8613): protects and unprotects messages of both directions.

Importing this module loads cryptography, so `contexts` imports it with the first context. A message that cannot be
verified changes nothing; an answer that reports so is unprotected, and is never trusted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiocoap import Message, error, oscore
from aiocoap.numbers import codes

from lamplighter.adapters.coap.context_files import Key, Numbers, Window
from lamplighter.adapters.devices.draft import plain
from lamplighter.engine.errors import UpstreamError

_NUMBER_BITS, _KID_BIT, _KID_CONTEXT_BIT = 0b111, 0b1000, 0b10000
_KNOWN_BITS = _NUMBER_BITS | _KID_BIT | _KID_CONTEXT_BIT
_NUMBER_BYTES_MAX = 5
# Classes of codes (RFC 7252 section 5.9).
_ANSWERS = (2, 4, 5)
_REASON_BYTES_MAX = 60
# What aiocoap raises for a message that it cannot verify, or whose plaintext is no message.
_UNREADABLE = (error.Error, ValueError, IndexError)


class SecuredContext(oscore.CanProtect, oscore.CanUnprotect, oscore.SecurityContextUtils):  # type: ignore[misc]
    """The keys of one device. aiocoap's own class with files would reuse numbers if its file is lost or not written."""

    def __init__(self, key: Key, numbers: Numbers) -> None:
        self.name = key.name
        self.alg_aead = oscore.algorithms[oscore.DEFAULT_ALGORITHM]
        self.hashfun = oscore.hashfunctions[oscore.DEFAULT_HASHFUNCTION]
        self.sender_id, self.recipient_id, self.id_context = key.sender_id, key.recipient_id, key.id_context
        self.derive_keys(key.salt, key.secret)
        self.recipient_replay_window = oscore.ReplayWindow(oscore.DEFAULT_WINDOWSIZE, lambda: None)
        # Without a window the end was unclean: what came after the last stored one is unknown, so the first request is
        # challenged (RFC 8613 appendix B.1.2).
        if numbers.window is not None:
            index, bitfield = numbers.window
            self.recipient_replay_window.initialize_from_persisted({"index": index, "bitfield": bitfield})
        self.echo_recovery: bytes | None = secrets.token_bytes(8)
        self.numbers = numbers

    def new_sequence_number(self) -> int:
        """Raises UpstreamError if the number cannot be stored."""
        return self.numbers.take()

    def post_seqnoincrease(self) -> None:
        """Nothing: `new_sequence_number` gives only numbers that are stored."""

    def ended(self) -> Window | None:
        """The final replay window, None if it is unknown. Requests that arrive later are refused."""
        # Without an Echo value, and with a window that is not initialized, the library refuses each request.
        window, self.echo_recovery = self.recipient_replay_window, None
        self.recipient_replay_window = oscore.ReplayWindow(oscore.DEFAULT_WINDOWSIZE, lambda: None)
        return (window._index, window._bitfield) if window.is_initialized() else None


# --- requests of the gateway ----------------------------------------------------------------------------------


class SentRequest:
    """A protected request, and the check of its answers. A repeated or renewed request is a new one.

    outer: the message to send. Retransmissions send the same bytes, so they need no new number.
    """

    def __init__(self, context: SecuredContext, message: Message) -> None:
        """message: without remote and token, which belong to `outer`. Raises UpstreamError if there is no number."""
        self._context = context
        self._observes = message.opt.observe == 0
        self._newest = -2  # less than the number of a notification without one (RFC 8613 section 7.4.1)
        self.outer, self._request = context.protect(message)

    def inner(self, answer: Message) -> Message:
        """The verified answer or notification. The observe option of a notification is its sender number, or -1.

        Sender numbers of notifications grow (RFC 8613 section 7.4.1); an old or repeated one is refused. A 4.01 with
        an Echo option asks for the request with this option. Raises UpstreamError for what cannot be verified; an
        observation ignores such a message, because everybody can send it.
        """
        if answer.opt.oscore is None:
            text = plain(answer.payload[:_REASON_BYTES_MAX].decode("utf-8", "replace"))
            raise UpstreamError(f"the device answered without OSCORE: {answer.code.dotted} {text}".rstrip())
        # The outer Observe option is not protected and a proxy may change it; the library would take it for the inner
        # one (RFC 8613 section 4.1.3.5).
        outer_observe, answer.opt.observe = answer.opt.observe, None
        try:
            number = _option(answer.opt.oscore).number
            found, _ = self._context.unprotect(answer, self._request)
        except _UNREADABLE as fault:
            raise UpstreamError(f"the answer cannot be verified with OSCORE: {fault}") from fault
        finally:
            answer.opt.observe = outer_observe
        # A protected message must not hold another one, or a request.
        if found.code.class_ not in _ANSWERS or found.opt.oscore is not None:
            raise UpstreamError(f"the answer contains no answer, but code {found.code.dotted}")
        if found.opt.observe is not None:
            # The partial IV of a notification is its number. The first answer may have none, as it uses that of the
            # request.
            newest = -1 if number is None else int.from_bytes(number, "big")
            if not self._observes or newest <= self._newest:
                raise UpstreamError("the notification is old or repeated" if self._observes else "unasked notification")
            self._newest = found.opt.observe = newest
        found.remote = answer.remote
        return found


# --- requests of devices --------------------------------------------------------------------------------------


# Finds the context of a request by its kid and kid context.
ContextByKid = Callable[[bytes, bytes | None], SecuredContext | None]


class RefusedRequest(Exception):
    """A request that cannot be verified. answer: the message to send, which contains nothing secret."""

    def __init__(self, answer: Message, reason: str) -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True)
class ReceivedRequest:
    """A verified request of a device. It was not received before. inner: the message."""

    context: SecuredContext
    inner: Message
    _request: Any

    def outer(self, answer: Message) -> Message:
        """The protected answer or notification. Raises UpstreamError if it needs a number, and there is none."""
        observe = answer.opt.observe
        # With Observe the answer gets a number of its own. 0 makes the library see a notification; the true number is
        # for the outer message.
        protected, _ = self.context.protect(answer if observe is None else answer.copy(observe=0), self._request)
        protected.opt.observe = observe
        return protected


def received(by_kid: ContextByKid, message: Message) -> ReceivedRequest:
    """Verifies a request with an OSCORE option (RFC 8613 section 8.2). by_kid: as `Contexts.by_kid`.

    Raises RefusedRequest, and UpstreamError if an answer needs a number and there is none. After an unclean end, the
    first request of a device is refused with an Echo value, and the device repeats it with this value.
    """
    try:
        option = _option(message.opt.oscore)
        if option.kid is None or option.number is None:
            raise ValueError("no kid or no number")
    except ValueError as fault:
        raise _refusal(codes.BAD_OPTION, "Failed to decode COSE") from fault
    # An unknown kid is answered in the clear: there is no key to protect it with (RFC 8613 section 8.2).
    context = by_kid(option.kid, option.kid_context)
    if context is None:
        raise _refusal(codes.UNAUTHORIZED, "Security context not found")
    outer_observe, message.opt.observe = message.opt.observe, 0  # otherwise the inner one would be removed
    try:
        found, request = context.unprotect(message)
    except oscore.ReplayErrorWithEcho as fault:
        raise RefusedRequest(fault.to_message(), "Echo needed") from None
    except oscore.ReplayError as fault:
        raise _refusal(codes.UNAUTHORIZED, "Replay detected") from fault
    except _UNREADABLE as fault:
        raise _refusal(codes.BAD_REQUEST, "Decryption failed") from fault
    finally:
        message.opt.observe = outer_observe
    if not found.code.is_request() or found.opt.oscore is not None:
        raise _refusal(codes.BAD_REQUEST, "Decryption failed")
    if found.opt.observe != outer_observe:
        found.opt.observe = None  # a proxy does not take part in the observation
    found.remote = message.remote
    return ReceivedRequest(context, found, request)


def _refusal(code: Any, reason: str) -> RefusedRequest:
    return RefusedRequest(Message(code=code, payload=reason.encode(), max_age=0), reason)


@dataclass(frozen=True)
class _Option:
    """The value of an OSCORE option. number: the partial IV, None if it is absent."""

    number: bytes | None
    kid: bytes | None
    kid_context: bytes | None


def _option(value: bytes) -> _Option:
    """Raises ValueError for a value that is not as in RFC 8613 section 6.1."""
    # An empty value is all zero flags (RFC 8613 section 6.1).
    flags, rest = (value[0], value[1:]) if value else (0, b"")
    length = flags & _NUMBER_BITS
    if flags & ~_KNOWN_BITS or length > _NUMBER_BYTES_MAX or len(rest) < length:
        raise ValueError("unknown flags or a damaged number")
    number, rest = (rest[:length] if length else None), rest[length:]
    kid_context = None
    if flags & _KID_CONTEXT_BIT:
        if not rest or len(rest) < 1 + rest[0]:
            raise ValueError("damaged kid context")
        kid_context, rest = rest[1 : rest[0] + 1], rest[rest[0] + 1 :]
    if rest and not flags & _KID_BIT:
        raise ValueError("bytes after the end")
    return _Option(number, rest if flags & _KID_BIT else None, kid_context)
