"""Turns: few requests of a door are answered at the same time, since each needs a process or much of the loop."""

from __future__ import annotations

import asyncio
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


class RequestTurns:
    """Those of one door. at_once: answered at the same time; most: under way, those whose body is received too. Clients
    share these as `SharedRoom` says."""

    def __init__(self, at_once: int, most: int) -> None:
        self._turns = asyncio.Semaphore(at_once)
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
                async with self._turns:
                    return await answer(request, caller)

        return in_turn
