"""Outbox: the messages that wait to be sent to one client, bounded in bytes (design 4.2).

A notification gets its number when it is taken out to be sent, so notifications that wait for a slow client can be
composed. When many bytes wait, all queued notifications of a subscription become one net notification, at the place of
the first. Nothing is moved backwards, so an answer never overtakes what it confirms. A client for which still too much
waits is disconnected; it connects again and starts from a fresh first result, or resumes. While nothing waits, a
message may go out at once.

The text of long results is made when they are taken out, in parts between which others go on: neither the loop nor the
updates of others wait for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from lamplighter.engine.client.sending import LongMessage
from lamplighter.engine.protocol import Results, around, committed_message, results_message
from lamplighter.engine.terms import Bag, Binding
from lamplighter.gateway.state.client_budgets import ClientBudget

_ENVELOPE_BYTES = 128  # bytes of a notification besides its results, on the wire and roughly in memory
# Bindings that are composed in one go, which takes 0.1 s, mostly to write what is left. 700,000 took 1.6 s. What has
# more is left as it is, so that its client is disconnected.
COMPOSED_ROWS_MAX = 50_000


Message = bytes | LongMessage


class SequenceCounter:
    """The numbering of one subscription's notifications at its client. sequence: of the last one that was sent; alias:
    what they carry; names_commits: whether they name their commits."""

    __slots__ = ("alias", "names_commits", "sequence", "spuid")

    def __init__(self, spuid: str, alias: str | None = None, *, names_commits: bool = False) -> None:
        self.spuid = spuid
        self.alias = alias
        self.names_commits = names_commits
        self.sequence = 0


def notification(numbering: SequenceCounter, sequence: int, results: Results) -> bytes:
    if numbering.names_commits:
        return committed_message(numbering.spuid, sequence, results, numbering.alias)
    return results_message(numbering.spuid, sequence, results, numbering.alias)


class _Queued(NamedTuple):
    """A notification that has no number yet."""

    numbering: SequenceCounter
    results: Results

    @property
    def size(self) -> int:
        return self.results.size + _ENVELOPE_BYTES


class _Unwritten(NamedTuple):
    """A message with long results. made: makes it, when their text is made; first: whether it is a first result."""

    results: Results
    made: Callable[[], Message]
    first: bool

    @property
    def size(self) -> int:
        return self.results.size + _ENVELOPE_BYTES


async def write(results: Results) -> None:
    """Makes the text of results; others go on meanwhile."""
    for _ in results.writing():
        await asyncio.sleep(0)


class _Replay:
    """Messages that are stored elsewhere and built one by one as they are sent. size: of all, in bytes."""

    __slots__ = ("messages", "size")

    def __init__(self, messages: Iterator[Message], size: int) -> None:
        self.messages = messages
        self.size = size


class SendBudget:
    """The bytes that wait for all clients of a gate, or are being sent to them. bytes_max: above it, connections are
    closed until the others wait for no more. Of those with at least the mean, it is the one that has taken no message
    for longest."""

    # One connection alone may exceed it: a first result is one message.

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[Outbox, int] = {}  # the one that took a message last is the last

    def count(self, outbox: Outbox, size: int, *, took: bool = False) -> None:
        """size: what waits for this client now; took: whether it has taken a message."""
        # Taking a message moves it to the end of the dictionary, whose order is that of the last messages.
        before = self._sizes.pop(outbox, 0) if took or not size else self._sizes.get(outbox, 0)
        if size:
            self._sizes[outbox] = size
        self._bytes += size - before
        while self._bytes > self._bytes_max and len(self._sizes) > 1:
            # Not simply the slowest: one with little waiting would be closed for what others hold.
            mean = self._bytes / len(self._sizes)
            slowest = next(one for one, waiting in self._sizes.items() if waiting >= mean)
            slowest.overflow("websocket.unsent_bytes_max")


class Outbox:
    """Messages in the order in which they are to be sent. put, notify and replay never wait; get does.

    replay_bytes_max: of replays that wait. They do not count in bytes_max: a client asks for them when it comes back,
    so they must not disconnect it. composed: called after each composing; send_budget: counts it with others; at_once:
    sends a message if it does not have to wait, and returns whether it did.
    """

    def __init__(
        self,
        bytes_max: int,
        *,
        replay_bytes_max: int = 0,
        composed: Callable[[], None] = lambda: None,
        send_budget: SendBudget | None = None,
        at_once: Callable[[Message], bool] = lambda message: False,
    ) -> None:
        self._bytes_max = bytes_max
        self._send_budget = send_budget or SendBudget(sys.maxsize)
        self._replay_bytes_max = replay_bytes_max
        self._composed = composed
        self._at_once = at_once
        self._waits = False  # whether `get` waits, so that no earlier message is unsent
        self._messages: deque[Message | _Queued | _Unwritten | _Replay] = deque()
        self._counted = 0  # messages that are neither replays nor long first results
        self._bytes = 0  # bytes of those
        self._first_bytes = 0  # of long first results
        self._replay_bytes = 0
        self._sending = 0  # bytes of the message that was taken last
        self._fresh_bytes = 0  # put since the last composing
        self._composed_bytes = 0  # bytes that it left
        self._filled = asyncio.Event()
        self._closed = False
        self.overflowed = asyncio.Event()
        self.exceeded = ""  # the setting whose limit it exceeded
        self.share: ClientBudget | None = None  # the shares of its client, if the client has a name

    def allow(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        """Messages that wait; a replay counts as one."""
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Adds a message. A single one may exceed the limit: a first result is one message."""
        if not (self._waits and self._at_once(message)):
            self._add(message, len(message))

    def put_long(self, results: Results, made: Callable[[], Message], *, first: bool) -> None:
        """Adds a message with long results, which `made` makes when their text is made. first: whether it is a first
        result. A client that has asked for several of them is not slow, so they count in the sum of all clients
        only."""
        entry = _Unwritten(results, made, first)
        self._add(entry, entry.size)

    def notify(self, numbering: SequenceCounter, results: Results) -> None:
        """Adds a notification, which may be composed with others of the same numbering."""
        # A connection that waits for messages needs no task switch for one that fits into the send buffer.
        if (
            self._waits
            and not results.is_long
            and self._at_once(notification(numbering, numbering.sequence + 1, results))
        ):
            numbering.sequence += 1
            return
        queued = _Queued(numbering, results)
        self._add(queued, queued.size)

    def replay(self, messages: Iterator[Message], size: int) -> None:
        """Adds messages that are built as they are sent. size: bytes that they keep in memory, at most."""
        if self._closed or not size:
            return
        self._messages.append(_Replay(messages, size))
        self._waits = False
        # Replays keep what they will send, and are counted by what they keep.
        self._replay_bytes += size
        self._filled.set()
        if self._replay_bytes > self._replay_bytes_max:
            self.overflow("resume.bytes_max")

    async def get(self) -> Message:
        """The next message. It is being sent until the next call."""
        self._sending = 0
        if not self._messages:
            self._send_budget.count(self, 0)
        message = await self._next()
        # It still takes memory: the socket has it until the next call.
        self._count_sending(len(message), took=True)
        return message

    def _count_sending(self, size: int, *, took: bool = False) -> None:
        self._sending = 0 if self._closed else size
        self._send_budget.count(self, self._bytes + self._first_bytes + self._sending, took=took)

    async def _next(self) -> Message:
        while True:
            while not self._messages:
                self._filled.clear()
                self._waits = not self._closed
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
            if isinstance(entry, _Unwritten) and entry.first:
                self._first_bytes -= entry.size
            else:
                self._counted -= 1
                self._bytes -= len(entry) if isinstance(entry, (bytes, LongMessage)) else entry.size
            if isinstance(entry, (bytes, LongMessage)):
                return entry
            if entry.results.is_long:
                self._count_sending(entry.size)
                await write(entry.results)
            if isinstance(entry, _Unwritten):
                return entry.made()
            numbering = entry.numbering
            numbering.sequence += 1
            if not entry.results.is_long:
                return notification(numbering, numbering.sequence, entry.results)
            return LongMessage(around(partial(notification, numbering, numbering.sequence), entry.results))

    def _add(self, entry: Message | _Queued | _Unwritten, size: int) -> None:
        if self._closed:
            return
        self._messages.append(entry)
        self._waits = False
        if isinstance(entry, _Unwritten) and entry.first:
            self._first_bytes += size
        else:
            self._counted += 1
            self._bytes += size
            self._fresh_bytes += size
        # Composing reads everything that waits, so it is done only after enough new messages.
        if self._bytes * 2 > self._bytes_max and self._fresh_bytes * 4 >= self._composed_bytes:
            self._compose()
        # A single message may be larger than the limit, such as a first result: nobody is slow because of it.
        if self._bytes > self._bytes_max and self._counted > 1:
            self.overflow("websocket.outbox_bytes_max")
            return
        self._filled.set()
        if self.share is not None:
            self.share.on_growth(self)
        self._send_budget.count(self, self._bytes + self._first_bytes + self._sending)

    def overflow(self, exceeded: str) -> None:
        """Drops all messages: the client is to be disconnected. exceeded: the setting."""
        self.exceeded = exceeded
        self.close()
        self.overflowed.set()

    def close(self) -> None:
        """Drops all messages, also later ones: the connection ends."""
        self._closed = True
        self._waits = False
        self._messages.clear()
        # Counted back at once: the connection may take seconds to close, and others need the room.
        self._counted = self._bytes = self._first_bytes = self._replay_bytes = self._sending = 0
        self._send_budget.count(self, 0)

    def _compose(self) -> None:
        queued: dict[SequenceCounter, list[Results]] = {}
        for entry in self._messages:
            if isinstance(entry, _Queued):
                queued.setdefault(entry.numbering, []).append(entry.results)
        several, rows = {}, 0
        for numbering, found in queued.items():
            rows += sum(len(one.added) + len(one.removed) for one in found)
            # Composing runs in the loop, so its rows are bounded; the others stay as they are.
            if len(found) > 1 and rows <= COMPOSED_ROWS_MAX:
                several[numbering] = found
        if several:
            self._messages = deque(self._net(several))
            counted = [
                entry
                for entry in self._messages
                if not isinstance(entry, _Replay) and not (isinstance(entry, _Unwritten) and entry.first)
            ]
            self._counted = len(counted)
            self._bytes = sum(
                len(entry) if isinstance(entry, (bytes, LongMessage)) else entry.size for entry in counted
            )
            self._composed()
        # Next time when a quarter of what is left has come again, so that the cost stays proportional to the messages.
        self._fresh_bytes, self._composed_bytes = 0, self._bytes

    def _net(self, several: dict[SequenceCounter, list[Results]]) -> Iterator[Message | _Queued | _Unwritten | _Replay]:
        """The messages, where those of a numbering with several results are one, at the place of the first."""
        for entry in self._messages:
            if not isinstance(entry, _Queued) or entry.numbering not in several:
                yield entry
                continue
            found = several[entry.numbering]
            net = compose(found) if found else None
            found.clear()  # the others are part of it
            if net is not None:
                yield _Queued(entry.numbering, net)


def compose(several: Iterable[Results]) -> Results | None:
    """The change that several changes of one subscription make together, in order; None when they make none. Bags: a
    binding that is added twice and removed once is added once. No binding is in both parts."""
    # Removed and added rows as counts of one dictionary: a row that left and came back cancels out.
    net: dict[Binding, int] = {}
    variables: tuple[str, ...] = ()
    commit: tuple[int, int] | None = None
    for results in several:
        variables, commit = results.added.variables, results.commit
        for row in results.removed.rows:
            net[row] = net.get(row, 0) - 1
        for row in results.added.rows:
            net[row] = net.get(row, 0) + 1
    added = [row for row, count in net.items() for _ in range(count)]
    removed = [row for row, count in net.items() for _ in range(-count)]
    return Results(Bag(variables, added), Bag(variables, removed), commit) if added or removed else None
