"""Request ids: what a retry is answered, so that it has no second effect. Each client has ids of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.change_log import Record

REQUEST_IDS_MAX = 50_000
"""Request ids that are remembered: a retry within that many requests has no second effect."""
REQUEST_ID_CHARACTERS_MAX = 200
"""Of one, since so many are remembered."""

RequestKey = tuple[str, str]
"""The client that gave a request id, "" where clients have no names, and the id."""


@dataclass(frozen=True)
class Accepted:
    """An update that is durable: its sequence, and its id if it is delayed."""

    sequence: int
    delayed: str | None = None


class RequestIds:
    """The last ones, as the change log tells of them."""

    def __init__(self) -> None:
        self._accepted: OrderedDict[RequestKey, Accepted] = OrderedDict()

    def get(self, key: RequestKey | None) -> Accepted | None:
        """What the first request of that key was answered, None if it is the first."""
        return None if key is None else self._accepted.get(key)

    def remember(self, key: RequestKey, accepted: Accepted) -> None:
        self._accepted[key] = accepted
        if len(self._accepted) > REQUEST_IDS_MAX:
            self._accepted.popitem(last=False)

    def follow(self, record: Record) -> None:
        """Takes note of a record's request, if it has one with an id."""
        if record.request is not None:
            delayed = record.timer.id if record.timer else None
            self.remember((record.client or "", record.request), Accepted(record.seq, delayed))

    def state(self) -> list[tuple[str, int, str | None, str]]:
        """(id, sequence, id of the delayed update, client), oldest first, for a snapshot."""
        return [
            (request, accepted.sequence, accepted.delayed, client)
            for (client, request), accepted in self._accepted.items()
        ]

    def restore(self, state: Iterable[tuple[str, int, str | None, str]]) -> None:
        """Takes up what `state` gave."""
        for request, sequence, delayed, client in state:
            self.remember((client, request), Accepted(sequence, delayed))
