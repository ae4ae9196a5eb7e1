"""Turns: few requests of a door are answered at the same time, since each needs a process or much of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.gates.http.calls import small_body
from lamplighter.gateway.gates.http.places import Handler
from lamplighter.gateway.gates.http.waiting import client_of
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.quotas import SharedRoom

BODY: Final = "lamplighter.body"
"""Key of a request's scope: its body, empty where its method has none."""
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class _Turns:
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


class RequestTurns:
    """Those of one door. at_once: answered at the same time; most: under way, those whose body is received too. Clients
    share these as `SharedRoom` says."""

    def __init__(self, at_once: int, most: int) -> None:
        self._turns = _Turns(at_once)
        self._under_way = SharedRoom(most)

    def of(self, answer: Handler, body_bytes_max: int) -> Handler:
        """A handler that has its turn. The body is received before, since a client may take long to send it.

        The handler raises LimitExceededError, and QueueFullError while too many requests of the client, or of all, are
        under way.
        """

        async def in_turn(request: Request, caller: Caller) -> Response:
            client = client_of(request, caller)
            if not self._under_way.has(client):
                raise QueueFullError("too many requests of this client, or of all, wait already; try again later")
            with self._under_way.held(client):
                request.scope[BODY] = await small_body(request, body_bytes_max) if request.method in _WITH_BODY else b""
                async with self._turns.of(client):
                    return await answer(request, caller)

        return in_turn
