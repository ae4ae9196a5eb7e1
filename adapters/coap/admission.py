"""What the server does for a source before it knows that the source is there: limits of size and rate. Pure, with a
passed clock and key.

The source address of a datagram can be forged. Until a source has shown that it receives our answers, by the Echo
option (RFC 9175) or under OSCORE, it gets no answer that is much larger than its request, so that the server cannot be
used to flood another machine (RFC 7252 section 11.3).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from lamplighter.adapters.networks import Address
from lamplighter.engine.pacing import TokenBuckets

ECHO_BYTES = 8
# An Echo value is valid in the slot in which it was made and in the next one.
ECHO_SLOT_S = 60
KEY_BYTES_MIN = 16
# How long a source counts as verified.
VERIFIED_S = 600.0
# Verified sources, and sources with a rate.
SOURCES_MAX = 4_096
# The answer to an unverified source has at most so many times the bytes of the request (RFC 9175 section 2.4).
FACTOR = 3
# An answer may have so many bytes whatever the request has: three times the smallest request with its Ethernet, IPv6
# and UDP headers, without those of the answer (RFC 9175 section 2.4).
ANSWER_BYTES_MIN = 136
# Sizes of blocks (RFC 7959).
BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 16, 1_024
REQUESTS_PER_S = 50.0
REQUESTS_BURST = 100.0
# A longer request counts as one for each so many bytes. A block of 1,024 bytes with its options is one.
REQUEST_BYTES = 2_048

_IPV6_NETWORK_BYTES = 8


class Origin(NamedTuple):
    """Address and port that a datagram comes from, as far as is known."""

    address: Address
    port: int


class Verified:
    """The sources that have shown that they receive our answers.

    key: random bytes of this process. monotonic: a clock in seconds. The source that was not heard of for the longest
    time is forgotten first; it verifies itself again.
    """

    def __init__(self, key: bytes, monotonic: Callable[[], float]) -> None:
        assert len(key) >= KEY_BYTES_MIN, "Echo values could be guessed"
        self._key = key
        self._monotonic = monotonic
        self._until: OrderedDict[Origin, float] = OrderedDict()

    def __contains__(self, source: Origin) -> bool:
        known = _normal(source)
        until = self._until.get(known)
        if until is None:
            return False
        if until <= self._monotonic():
            del self._until[known]
            return False
        self._until.move_to_end(known)
        return True

    def echo(self, source: Origin) -> bytes:
        """The value of the Echo option for a source. It says nothing to others and needs no memory."""
        return self._value(source, self._slot())

    def repeated(self, source: Origin, value: bytes) -> bool:
        """Whether a source repeats the Echo value that it was given. Then it is verified."""
        slot = self._slot()
        # All is compared in constant time, or an attacker could find a value byte by byte.
        good = any(hmac.compare_digest(value, self._value(source, one)) for one in (slot, slot - 1))
        if good:
            self.add(source)
        return good

    def add(self, source: Origin) -> None:
        """Verifies a source: by its Echo value, or after a request under OSCORE that passed the replay window."""
        known = _normal(source)
        self._until[known] = self._monotonic() + VERIFIED_S
        self._until.move_to_end(known)
        # A forgotten source costs one round trip; a full table would lock out new ones.
        if len(self._until) > SOURCES_MAX:
            self._until.popitem(last=False)

    def answer_bytes_max(self, source: Origin, request_bytes: int) -> int | None:
        """The most bytes that all answers to a request may have together, as CoAP messages; None: no limit."""
        return None if source in self else max(FACTOR * request_bytes, ANSWER_BYTES_MIN)

    def _slot(self) -> int:
        return int(self._monotonic() // ECHO_SLOT_S)

    def _value(self, source: Origin, slot: int) -> bytes:
        known = _normal(source)  # its text has the zone of a link-local address
        text = f"{known.address} {known.port} {slot}".encode()
        return hmac.digest(self._key, text, hashlib.sha256)[:ECHO_BYTES]


def block_bytes(answer_bytes_max: int, other_bytes: int) -> int | None:
    """The largest block of an answer that may have so many bytes; None if there is no room for the smallest one.

    other_bytes: of the answer without its payload.
    """
    room, size = answer_bytes_max - other_bytes, BLOCK_BYTES_MAX
    # Sizes of blocks are powers of two.
    while size > room and size >= BLOCK_BYTES_MIN:
        size //= 2
    return size if size >= BLOCK_BYTES_MIN else None


def request_rates() -> TokenBuckets:
    """The requests of each source that are read, by its `network`."""
    return TokenBuckets(REQUESTS_PER_S, REQUESTS_BURST, SOURCES_MAX)


def _normal(source: Origin) -> Origin:
    return Origin(_ipv4_of_mapped(source.address), source.port)


def _ipv4_of_mapped(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped one stands for."""
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def network(address: Address) -> bytes:
    """What one source may send from: an IPv4 address; of IPv6 the /64 network, which one machine may have, or the
    address itself if it is link-local."""
    meant = _ipv4_of_mapped(address)
    if isinstance(meant, IPv4Address):
        return meant.packed
    return str(meant).encode() if meant.is_link_local else meant.packed[:_IPV6_NETWORK_BYTES]
