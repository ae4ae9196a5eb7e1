"""Outbox: what waits to be sent to one client, bounded in bytes (design 4.2).

A notification gets its number when it is taken out to be sent. So those that wait behind a client that reads slowly
can become one: when much waits, all queued notifications of a subscription are composed into one net notification,
in the place of the first. Nothing is moved backwards, so an answer never comes before what it confirms. A client
that lets more wait even so is disconnected; it connects again and starts from a fresh first result, or resumes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from lamplighter.engine.protocol import Results, results_message
from lamplighter.engine.terms import Bag, Binding
from lamplighter.gateway.state.shares import Share

_ENVELOPE_BYTES = 128
"""What a notification takes beside its results, on the wire and about as much while it waits."""


class Numbering:
    """The notifications of one subscription as its client counts them. sequence: of the last one that was sent."""

    __slots__ = ("sequence", "spuid")

    def __init__(self, spuid: str) -> None:
        self.spuid = spuid
        self.sequence = 0


class _Queued(NamedTuple):
    """A notification that has no number yet."""

    numbering: Numbering
    results: Results

    @property
    def size(self) -> int:
        return len(self.results.members) + _ENVELOPE_BYTES


class _Replay:
    """Messages that are kept elsewhere and are put together one by one as they are sent. size: of all, in bytes."""

    __slots__ = ("messages", "size")

    def __init__(self, messages: Iterator[bytes], size: int) -> None:
        self.messages = messages
        self.size = size


class Outbox:
    """Messages in the order in which they are to be sent. put, notify and replay never wait; get does.

    replay_bytes_max: what may wait of replays, which do not count against bytes_max: a client that comes back asks
    for them, so they must not be what it is disconnected for. composed: called after each composing.
    """

    def __init__(
        self, bytes_max: int, *, replay_bytes_max: int = 0, composed: Callable[[], None] = lambda: None
    ) -> None:
        self._bytes_max = bytes_max
        self._replay_bytes_max = replay_bytes_max
        self._composed = composed
        self._messages: deque[bytes | _Queued | _Replay] = deque()
        self._counted = 0  # messages that are no replays
        self._bytes = 0  # of those
        self._replay_bytes = 0
        self._fresh_bytes = 0  # put since the last composing
        self._composed_bytes = 0  # left by it
        self._filled = asyncio.Event()
        self.overflowed = asyncio.Event()
        self.share: Share | None = None
        """What it is part of, where its client has a name."""

    def allow(self, bytes_max: int) -> None:
        """Another limit from now on."""
        self._bytes_max = bytes_max

    @property
    def waiting_bytes(self) -> int:
        """What waits, replays not counted."""
        return self._bytes

    def __len__(self) -> int:
        """How many messages wait, a replay counted as one."""
        return len(self._messages)

    def put(self, message: bytes) -> None:
        """Adds a message. One alone may be larger than the limit: a first result goes out as one message."""
        self._add(message, len(message))

    def notify(self, numbering: Numbering, results: Results) -> None:
        """Adds a notification, which may be composed with others of the same numbering."""
        queued = _Queued(numbering, results)
        self._add(queued, queued.size)

    def replay(self, messages: Iterator[bytes], size: int) -> None:
        """Adds messages that are made as they are sent. size: how many bytes they keep from being freed, at most."""
        if self.overflowed.is_set() or not size:
            return
        self._messages.append(_Replay(messages, size))
        self._replay_bytes += size
        self._filled.set()
        if self._replay_bytes > self._replay_bytes_max:
            self.overflow()

    async def get(self) -> bytes:
        """The next message. What it returns counts as sent."""
        while True:
            while not self._messages:
                self._filled.clear()
                await self._filled.wait()
            entry = self._messages[0]
            if isinstance(entry, _Replay):
                message = next(entry.messages, None)
                if message is not None:
                    return message
                self._messages.popleft()
                self._replay_bytes -= entry.size
                continue
            self._messages.popleft()
            self._counted -= 1
            if isinstance(entry, bytes):
                self._bytes -= len(entry)
                return entry
            self._bytes -= entry.size
            numbering = entry.numbering
            numbering.sequence += 1
            return results_message(numbering.spuid, numbering.sequence, entry.results)

    def _add(self, entry: bytes | _Queued, size: int) -> None:
        if self.overflowed.is_set():
            return
        self._messages.append(entry)
        self._counted += 1
        self._bytes += size
        self._fresh_bytes += size
        # Each composing looks at everything that waits, so it has to be paid for by what came since the last one.
        if self._bytes * 2 > self._bytes_max and self._fresh_bytes * 4 >= self._composed_bytes:
            self._compose()
        if self._bytes > self._bytes_max and self._counted > 1:
            self.overflow()
            return
        self._filled.set()
        if self.share is not None:
            self.share.grown(self)

    def overflow(self) -> None:
        """The client is to be disconnected; nothing is sent any more, so nothing has to be kept."""
        self.overflowed.set()
        self._messages.clear()
        self._counted = self._bytes = self._replay_bytes = 0

    def _compose(self) -> None:
        queued: dict[Numbering, list[Results]] = {}
        for entry in self._messages:
            if isinstance(entry, _Queued):
                queued.setdefault(entry.numbering, []).append(entry.results)
        if any(len(several) > 1 for several in queued.values()):
            self._messages = deque(self._net(queued))
            counted = [entry for entry in self._messages if not isinstance(entry, _Replay)]
            self._counted = len(counted)
            self._bytes = sum(len(entry) if isinstance(entry, bytes) else entry.size for entry in counted)
            self._composed()
        self._fresh_bytes, self._composed_bytes = 0, self._bytes

    def _net(self, queued: dict[Numbering, list[Results]]) -> Iterator[bytes | _Queued | _Replay]:
        for entry in self._messages:
            if not isinstance(entry, _Queued):
                yield entry
                continue
            several = queued.pop(entry.numbering, None)
            if several is None:
                continue  # it is part of an earlier one
            net = several[0] if len(several) == 1 else composed(several)
            if net is not None:
                yield _Queued(entry.numbering, net)


def composed(several: Iterable[Results]) -> Results | None:
    """The change that several changes of one subscription make together, in order; None when they make none.

    Bags: what is added twice and removed once is added once. No binding is in both parts.
    """
    net: dict[Binding, int] = {}
    variables: tuple[str, ...] = ()
    for results in several:
        variables = results.added.variables
        for row in results.removed.rows:
            net[row] = net.get(row, 0) - 1
        for row in results.added.rows:
            net[row] = net.get(row, 0) + 1
    added = [row for row, count in net.items() for _ in range(count)]
    removed = [row for row, count in net.items() for _ in range(-count)]
    return Results(Bag(variables, added), Bag(variables, removed)) if added or removed else None
