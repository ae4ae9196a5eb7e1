"""Numbers and names of subscriptions.

A name (spuid) is a UUID of version 4 in the form of SEPA's broker (protocol 2.3). It is computed from the
subscription's number and back, so a million subscriptions need no table of names. A name is no secret: it can be
derived from another one, so the gateway checks who owns a subscription.
"""

from __future__ import annotations

import re
import secrets
import uuid

from lamplighter.engine.matching.shapes import SharedQuery

_PREFIX = "sepa://subscription/"
_DIGITS = 12
_BITS = 4 * _DIGITS
_LAST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")


class SubscriptionNumbers:
    """Maps each subscription's number to its unit. Numbers increase and are never reused.

    The units stand in chunks of a fixed size; a chunk is freed when its last subscription ends.
    """

    CHUNK = 256

    def __init__(self) -> None:
        self._chunks: dict[int, list[SharedQuery | None]] = {}
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        chunk = self._chunks.get(number // self.CHUNK, [])
        place = number % self.CHUNK
        return place < len(chunk) and chunk[place] is not None

    def __getitem__(self, number: int) -> SharedQuery:
        if number not in self:
            raise KeyError(number)
        unit = self._chunks[number // self.CHUNK][number % self.CHUNK]
        assert unit is not None
        return unit

    def add(self, unit: SharedQuery) -> int:
        """Gives a subscriber of the unit its number."""
        number = self._next
        self._next += 1
        self._count += 1
        self._chunks.setdefault(number // self.CHUNK, []).append(unit)
        return number

    def pop(self, number: int) -> SharedQuery:
        """Removes a number and returns its unit. Raises KeyError."""
        unit = self[number]
        self._count -= 1
        chunk = self._chunks[number // self.CHUNK]
        chunk[number % self.CHUNK] = None
        if len(chunk) == self.CHUNK and not any(chunk):
            del self._chunks[number // self.CHUNK]
        return unit


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
