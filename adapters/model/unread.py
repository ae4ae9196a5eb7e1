"""Topics and resources that arrive and that no rule reads, for people who ask what the gateway does not understand.

They are in memory only, as the last messages that are read (`last_messages`). Whoever may publish chooses the places.
So their number is bounded, in all and for each beginning, and what came once only makes room first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from lamplighter.engine.client import KeptMessage

# Places, and those with one beginning: the first level of a topic, or a host.
PLACES_MAX, OF_BEGINNING_MAX = 1_000, 200
# Of a payload that is kept, and of a place; messages of longer places are counted only.
PAYLOAD_BYTES_MAX, PLACE_CHARS_MAX = 1024, 200
# Places without room that are counted.
OTHERS_MAX = 10_000
# A place without a message for so long is forgotten.
FORGOTTEN_AFTER = timedelta(days=2)
# How often at most room is made, since it looks at all places.
ROOM_EACH = timedelta(minutes=1)
# Of an answer as JSON; the gateway takes 128 KiB.
ANSWER_BYTES_MAX = 100 * 1024


@dataclass(slots=True)
class _Unread:
    """The last message of a place, and how many came."""

    payload: bytes
    cut: bool
    received: datetime
    retained: bool
    count: int


class UnreadMessages:
    """The last message of each place. noted: places since the start, also those that were forgotten; asked: set when
    somebody has asked for them."""

    def __init__(self) -> None:
        self.noted = 0
        self.asked = asyncio.Event()
        self._places: dict[tuple[str, str], _Unread] = {}
        self._beginnings: Counter[tuple[str, str]] = Counter()
        self._others: set[int] = set()  # hashes of places that had no room since some was made
        self._room_made: datetime | None = None

    def __len__(self) -> int:
        return len(self._places)

    def note(self, place: str, payload: bytes, received: datetime, *, broker: str = "", retained: bool = False) -> None:
        """Takes a message that no rule reads. received: an aware datetime."""
        kept, cut = bytes(payload[:PAYLOAD_BYTES_MAX]), len(payload) > PAYLOAD_BYTES_MAX
        known = self._places.get((broker, place))
        if known is not None:
            known.payload, known.cut, known.received, known.retained = kept, cut, received, retained
            known.count += 1
            return
        beginning = broker, _beginning(place)
        if self._is_full(beginning) and (self._room_made is None or received - self._room_made >= ROOM_EACH):
            self._make_room(received)
        if self._is_full(beginning) or len(place) > PLACE_CHARS_MAX:
            if len(self._others) < OTHERS_MAX:
                self._others.add(hash((broker, place)))
            return
        self.noted += 1
        self._places[broker, place] = _Unread(kept, cut, received, retained, 1)
        self._beginnings[beginning] += 1

    def forget(self, broker: str, place: str) -> None:
        """A rule reads the place now."""
        if self._places.pop((broker, place), None) is not None:
            self._forget_beginning((broker, _beginning(place)))

    def places(self, broker: str) -> list[str]:
        """Those of a broker."""
        return [place for of, place in self._places if of == broker]

    def find(self) -> tuple[Sequence[KeptMessage], int]:
        """Those with the most messages, as far as an answer has room, and how many others there are."""
        self.asked.set()
        self._forget_old(max((one.received for one in self._places.values()), default=None))
        found: list[KeptMessage] = []
        room = ANSWER_BYTES_MAX
        for (broker, place), one in sorted(self._places.items(), key=lambda item: (-item[1].count, item[0])):
            message = KeptMessage(place, one.payload, one.received, broker, one.retained, cut=one.cut, count=one.count)
            room -= len(msgspec.json.encode(message)) + 1
            if room < 0:
                break
            found.append(message)
        return found, len(self._places) - len(found) + len(self._others)

    def _is_full(self, beginning: tuple[str, str]) -> bool:
        return len(self._places) >= PLACES_MAX or self._beginnings[beginning] >= OF_BEGINNING_MAX

    def _make_room(self, now: datetime) -> None:
        """Forgets places that are old. If there are none, and no room at all, those of one message, of which a flood
        consists."""
        self._room_made = now
        self._others.clear()
        if not self._forget_old(now) and len(self._places) >= PLACES_MAX:
            self._forget_all([key for key, one in self._places.items() if one.count == 1])

    def _forget_old(self, now: datetime | None) -> bool:
        """Returns whether there were any."""
        old = [key for key, one in self._places.items() if now is not None and now - one.received >= FORGOTTEN_AFTER]
        self._forget_all(old)
        return bool(old)

    def _forget_all(self, keys: Sequence[tuple[str, str]]) -> None:
        for broker, place in keys:
            self.forget(broker, place)

    def _forget_beginning(self, beginning: tuple[str, str]) -> None:
        self._beginnings[beginning] -= 1
        if not self._beginnings[beginning]:
            del self._beginnings[beginning]


def _beginning(place: str) -> str:
    scheme, _, rest = place.rpartition("://")
    return f"{scheme}{rest.partition('/')[0]}"
