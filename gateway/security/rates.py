"""Whose rate it is that is limited, and the error of who exceeds it."""

from __future__ import annotations

import math
from ipaddress import IPv6Address, ip_address

from lamplighter.engine.errors import QueueFullError


def network(address: str) -> str:
    """The part of an address that one machine cannot change at will: all of IPv4, the first half of IPv6."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped is not None else str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)


def too_many(wait_s: float, reason: str) -> QueueFullError:
    """The error for a caller that has to wait. It says whole seconds, which suffice."""
    whole_s = max(1, math.ceil(wait_s))
    error = QueueFullError(f"{reason}; try again in {whole_s} s")
    error.retry_after_s = whole_s
    return error
