"""ClientTurns: few requests of a door are answered at the same time, since each needs a process or much of the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.gates.http.calls import small_body
from lamplighter.gateway.gates.http.routes import Handler
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.sharing import ClientTurns, SharedRoom

BODY: Final = "lamplighter.body"
"""Key of a request's scope: its body, empty where its method has none."""
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class RequestTurns:
    """Those of one door. at_once: answered at the same time; most: under way, those whose body is received too."""

    def __init__(self, at_once: int, most: int) -> None:
        self._turns = ClientTurns(at_once)
        self._under_way = SharedRoom(lambda: most, "the number of requests that may wait here")

    def of(self, answer: Handler, body_bytes_max: int) -> Handler:
        """A handler that has its turn. The body is received before, since a client may take long to send it.

        The handler raises LimitExceededError, and QueueFullError while too many requests of the client, or of all, are
        under way.
        """

        async def in_turn(request: Request, caller: Caller) -> Response:
            with self._place(caller):
                request.scope[BODY] = await small_body(request, body_bytes_max) if request.method in _WITH_BODY else b""
                async with self._turns.of(caller.client):
                    return await answer(request, caller)

        return in_turn

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Begins with a turn of the caller's. Raises QueueFullError as a handler of `of`."""
        with self._place(caller):
            async with self._turns.of(caller.client):
                yield

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[None]:
        if why := self._under_way.refusal(caller.client):
            raise QueueFullError(f"{why}; try again later")
        with self._under_way.held(caller.client):
            yield
