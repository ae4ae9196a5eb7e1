"""Requests that wait for the next record of the change log, bounded in number."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from starlette.requests import ClientDisconnect, Request

from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.gates.http.answers import wait_for_disconnect
from lamplighter.gateway.gates.http.routes import WAITED
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.log.tail import LogTail
from lamplighter.gateway.security.callers import Caller

WAITING_MAX = 64  # requests that wait for a record at the same time
WAITING_PER_CLIENT_MAX = 8


class WaitingRequests:
    """Counts the requests that wait, by client."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def one_more(self, caller: Caller) -> Iterator[None]:
        """Counts a request that waits. Raises QueueFullError."""
        name = caller.client
        if self._waiting[name] >= WAITING_PER_CLIENT_MAX or self._waiting.total() >= WAITING_MAX:
            raise QueueFullError(
                f"{WAITING_PER_CLIENT_MAX} requests of this client, or {WAITING_MAX} of all, wait for records already; "
                "try again later"
            )
        self._waiting[name] += 1
        try:
            yield
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]


async def next_record(request: Request, tail: LogTail, after: Place, seconds: float) -> None:
    """Returns as `LogTail.wait`. Raises ClientDisconnect."""
    begun = perf_counter()
    waited = asyncio.ensure_future(tail.wait(after, seconds))
    left = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({waited, left}, return_when=asyncio.FIRST_COMPLETED)
        if left.done():
            raise ClientDisconnect
    finally:
        waited.cancel()
        left.cancel()
        request.scope[WAITED] = request.scope.get(WAITED, 0.0) + perf_counter() - begun
