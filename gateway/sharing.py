"""Sharing: what all clients use together, and the part of it that one client may have.

The rule of `engine.sharing` holds for every shared room, whatever it counts. Where requests wait instead of being
refused, clients have their turns one after another. Where something can be dropped instead, the client that has most of
it loses it.

A client is named by `Caller.client`. "" stands for those that have no share, because they belong to the operator: they
may take all that is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from lamplighter.engine.sharing import Usage, refusal


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


class Steady(asyncio.Event):
    """Set while no step changes the dataset."""

    async def wait(self) -> Literal[True]:
        """Returns while it is set. Behind several steps in a row it is cleared again before others go on."""
        while not self.is_set():
            await super().wait()
        return True


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
