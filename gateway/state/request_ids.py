"""Request ids: the answers to retries, so that a retry has no second effect. They are removed with their client."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from lamplighter.engine.change_log import Record
from lamplighter.engine.protocol import Results

# Request ids that are remembered; for a new one, the client with the most of them loses its oldest.
REQUEST_IDS_MAX = 50_000
REQUEST_ID_CHARACTERS_MAX = 200  # characters of one, since many are remembered
REMOVED = "removed"  # the kind of cause of records that follow the removal of a client; its id is the client

RequestKey = tuple[str, str]  # the client of a request id, "" where clients have no names, and the id


class Accepted(msgspec.Struct, frozen=True):
    """A durable update: its sequence, and its id if it is delayed. delta: for the first answer, if asked for."""

    sequence: int
    delayed: str | None = None
    delta: Results | None = None


class RequestIds:
    """The most recent ones, from the change log. A flood of one client displaces only its own."""

    def __init__(self) -> None:
        self._accepted: dict[str, OrderedDict[str, Accepted]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: RequestKey | None) -> Accepted | None:
        """The answer to the first request of that key, None if it is the first."""
        mine = None if key is None else self._accepted.get(key[0])
        return None if mine is None or key is None else mine.get(key[1])

    def remember(self, key: RequestKey, accepted: Accepted) -> None:
        client, request = key
        mine = self._accepted.setdefault(client, OrderedDict())
        self._count += request not in mine
        mine[request] = accepted
        if self._count > REQUEST_IDS_MAX:
            # By name where several have as many, so that a replay of the log forgets the same ones.
            most = max(self._accepted, key=lambda name: (len(self._accepted[name]), name))
            self._accepted[most].popitem(last=False)
            self._count -= 1

    def forget(self, client: str) -> bool:
        """Forgets those of a removed client; returns whether it had any."""
        mine = self._accepted.pop(client, None)
        if mine is None:
            return False
        self._count -= len(mine)
        return True

    def clients(self) -> list[str]:
        return list(self._accepted)

    def most(self) -> int:
        """The largest number of one client."""
        return max(map(len, self._accepted.values()), default=0)

    def follow(self, record: Record) -> None:
        """Follows a record: its request id, if it has one, and the removal of a client."""
        if record.cause is not None and record.cause.kind == REMOVED:
            self.forget(record.cause.id)
        if record.request is not None:
            delayed = record.timer.id if record.timer else None
            self.remember((record.client or "", record.request), Accepted(record.seq, delayed))

    def state(self) -> list[tuple[str, int, str | None, str]]:
        """(id, sequence, id of the delayed update, client), of each client the oldest first, for a snapshot."""
        return [
            (request, accepted.sequence, accepted.delayed, client)
            for client, mine in sorted(self._accepted.items())
            for request, accepted in mine.items()
        ]

    def restore(self, state: Iterable[tuple[str, int, str | None, str]]) -> None:
        """Restores what `state` returned."""
        for request, sequence, delayed, client in state:
            self.remember((client, request), Accepted(sequence, delayed))
