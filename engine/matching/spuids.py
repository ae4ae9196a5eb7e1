"""Names of subscriptions (spuids): a UUID of version 4 in the form of SEPA's broker (protocol 2.3).

A name is computed from the subscription's number and back, so a million subscriptions need no table of names. A name is
no secret: it can be derived from another one, so the gateway checks who owns a subscription.
"""

from __future__ import annotations

import re
import secrets
import uuid

_PREFIX = "sepa://subscription/"
_DIGITS = 12
_BITS = 4 * _DIGITS
_LAST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")


class Spuids:
    """The names of one engine's subscriptions. They differ from those of all other engines."""

    def __init__(self) -> None:
        self._begin = f"{_PREFIX}{str(uuid.uuid4())[:-_DIGITS]}"
        self._mask = secrets.randbits(_BITS)

    def name(self, number: int) -> str:
        """The name of a subscription."""
        return f"{self._begin}{number ^ self._mask:012x}"

    def number(self, name: str) -> int | None:
        """The subscription's number; None for a name of another form or of another engine."""
        begin, last = name[:-_DIGITS], name[-_DIGITS:]
        if begin != self._begin or not _LAST.fullmatch(last):
            return None
        return int(last, 16) ^ self._mask
