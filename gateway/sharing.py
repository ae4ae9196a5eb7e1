"""Sharing: what all clients use together, and the part of it that one client may have.

One rule holds for every shared room, whatever it counts: a client may hold as much as it leaves free. One alone gets
half, the next one half of the rest, and so on. So none takes all of it from the others. Where requests wait instead of
being refused, clients have their turns one after another. Where something can be dropped instead, the client that has
most of it loses it.

A client is named by `Caller.client`. "" stands for those that have no share, because they belong to the operator: they
may take all that is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager


class Usage:
    """The use of one resource by each client. Clients that use nothing take no memory. total: of all."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.total = 0

    def add(self, client: str, amount: int = 1) -> None:
        """amount: negative to release."""
        self.total += amount
        now = self._of.get(client, 0) + amount
        if now:
            self._of[client] = now
        else:
            self._of.pop(client, None)

    def of(self, client: str) -> int:
        return self._of.get(client, 0)

    def most(self) -> int:
        """The largest use of one client."""
        return max(self._of.values(), default=0)

    def heaviest(self) -> str:
        return max(self._of, key=self.of)

    def __len__(self) -> int:
        """The number of clients that use it."""
        return len(self._of)


def fits(client: str, used: int, more: int, free: int) -> bool:
    """Whether a client that holds `used` may hold `more` of what is free."""
    if not client:
        return more <= free
    return used + 2 * more <= free + 1 and more <= free  # the last place of all can be taken, too


def refusal(client: str, used: int, more: int, free: int, room: str) -> str:
    """Why a client may not hold so much more, empty if it may; otherwise as `fits`. room: its name and size."""
    if fits(client, used, more, free):
        return ""
    if more > free:
        return f"{room} is reached"
    return f"this client holds {used} of {room}, and leaves {free} to others; a client may hold as much as it leaves"


class TotalBudget:
    """Room that all clients share, by the rule above. size: the current one. name: the setting, or what it is for, as
    it stands in an error."""

    def __init__(self, size: Callable[[], int], name: str) -> None:
        self._size = size
        self._name = name
        self.usage = Usage()  # what the clients hold; `add` does not ask for `refusal`

    @property
    def free(self) -> int:
        return self._size() - self.usage.total

    def refusal(self, client: str, more: int = 1) -> str:
        """Why a client may not hold so much more, empty if it may."""
        size = self._size()
        free = size - self.usage.total
        if not client and more <= free:  # asked by each request, and most come from the machine itself
            return ""
        return refusal(client, self.usage.of(client), more, free, f"{self._name} = {size}")

    @contextmanager
    def hold(self, client: str, amount: int = 1) -> Iterator[None]:
        """The client holds so much meanwhile. `refusal` is not asked."""
        self.usage.add(client, amount)
        try:
            yield
        finally:
            self.usage.add(client, -amount)


class ClientTurns:
    """at_once: turns at the same time. The clients that wait have theirs in turn, each client's requests in order."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the client whose turn is next is the first

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, deque()).append(turn)
            try:
                await turn
            except BaseException:
                if not turn.cancelled():  # it had its turn already
                    self._next()
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
