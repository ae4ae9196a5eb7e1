"""The last message of each topic and resource that is read, for people who ask how it became triples.

They are in memory only: the payload of a device may hold a secret, and the change log is kept and shipped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

import msgspec

from lamplighter.engine.client import KeptMessage, MessagePlace

# Topics and resources; those whose message is the oldest are forgotten first.
PLACES_MAX = 2_000
# Of all payloads.
BYTES_MAX = 1024 * 1024
# Of one payload; of a longer one, the beginning is kept.
PAYLOAD_BYTES_MAX = 8 * 1024
# Of a topic; messages of longer ones are not kept.
PLACE_CHARS_MAX = 1_000
# Of an answer as JSON; the gateway takes 128 KiB.
ANSWER_BYTES_MAX = 100 * 1024


class LastMessages:
    """The last message of each place."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], KeptMessage] = OrderedDict()
        self._bytes = 0

    def keep(
        self,
        place: str,
        payload: bytes,
        received: datetime,
        *,
        broker: str = "",
        retained: bool = False,
        content_format: int | None = None,
    ) -> None:
        """Replaces the message of a place."""
        if len(place) > PLACE_CHARS_MAX:
            return
        kept = payload[:PAYLOAD_BYTES_MAX]
        before = self._kept.pop((broker, place), None)
        if before is not None:
            self._bytes -= len(before.payload)
        self._bytes += len(kept)
        self._kept[broker, place] = KeptMessage(
            place, kept, received, broker, retained, content_format, len(kept) < len(payload)
        )
        while len(self._kept) > PLACES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._kept.popitem(last=False)[1].payload)

    def find(self, places: Sequence[MessagePlace]) -> list[KeptMessage]:
        """The messages of places, in order, as far as an answer has room for them."""
        found, room = [], ANSWER_BYTES_MAX
        for asked in places:
            message = self._kept.get((asked.broker, asked.place))
            if message is not None and (room := room - len(msgspec.json.encode(message)) - 1) >= 0:
                found.append(message)
        return found
