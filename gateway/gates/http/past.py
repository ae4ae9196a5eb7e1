"""The past: records of the change log, and why actuators were switched."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lamplighter.engine.errors import MalformedRequestError, QueueFullError
from lamplighter.gateway.gates.http.answers import JSON, gone
from lamplighter.gateway.gates.http.parameters import UrlParameters
from lamplighter.gateway.gates.http.places import WAITED
from lamplighter.gateway.history.log_page import QUADS_DEFAULT, QUADS_MAX, RECORDS_MAX, LogRange
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.delayed import at_moment

LAST_DEFAULT = 100
WAIT_S_MAX = 30.0
WAITING_MAX = 64
"""Requests that wait for a record at the same time."""
WAITING_PER_CLIENT_MAX = 8
OUTCOMES_MAX = 100


class PastRequests:
    """The handlers; all need an operator."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: Counter[str] = Counter()

    async def log(self, request: Request, caller: Caller) -> Response:
        """A page of the change log. With `wait`, the answer comes when there is a record behind `after`."""
        asked = UrlParameters(request, ("after", "from", "to", "last", "quads", "wait"))
        after, begin, to = (self._place(asked.record(name)) for name in ("after", "from", "to"))
        last, wait = asked.number("last", RECORDS_MAX), asked.seconds("wait", WAIT_S_MAX)
        ranged = any(one is not None for one in (begin, to, last))
        if after is not None and ranged:
            raise MalformedRequestError("after comes without from, to and last")
        if wait is not None and after is None:
            raise MalformedRequestError("wait needs after: the record behind which you want the next ones")
        if after is None and not ranged:
            last = LAST_DEFAULT
        quads = asked.number("quads", QUADS_MAX) or QUADS_DEFAULT
        if wait and isinstance(after, tuple):
            with self._one_more(request, caller):
                await self._wait(request, after, wait)
        found = await self._runner.past.records(LogRange(after, begin, to, last, quads))
        return Response(found, media_type=JSON, headers={"Cache-Control": "no-store"})

    async def explain(self, request: Request, caller: Caller, *, newest: bool = False) -> Response:
        """Why an actuator was switched, or the newest outcomes of all actuators. newest: a request without parameters
        asks for those."""
        asked = UrlParameters(request, ("actuation", "at", "last"))
        actuation, at, last = asked.text("actuation"), asked.text("at"), asked.number("last", OUTCOMES_MAX)
        if newest and actuation is None and last is None:
            last = OUTCOMES_MAX
        if (actuation is None) == (last is None):
            raise MalformedRequestError("send actuation, the IRI of an actuation or actuator, or last, a number")
        if actuation is None:
            if at is not None:
                raise MalformedRequestError("at comes with actuation")
            assert last is not None
            found = await self._runner.past.outcomes(last)
        else:
            found = await self._runner.past.explanation(actuation, None if at is None else at_moment(at))
        return Response(found, media_type=JSON, headers={"Cache-Control": "no-store"})

    def _place(self, named: Place | str | None) -> Place | str | None:
        """A sequence without an epoch is of the newest epoch that has it, of which the newest one needs no search."""
        if not isinstance(named, str):
            return named
        epoch, newest = self._runner.log.tail.acknowledged
        return (epoch, int(named)) if epoch == 1 or int(named) <= newest else named

    async def _wait(self, request: Request, after: Place, seconds: float) -> None:
        """Raises ClientDisconnect."""
        begun = perf_counter()
        waited = asyncio.ensure_future(self._runner.log.tail.wait(after, seconds))
        left = asyncio.ensure_future(gone(request.receive))
        try:
            await asyncio.wait({waited, left}, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                raise ClientDisconnect
        finally:
            waited.cancel()
            left.cancel()
            request.scope[WAITED] = perf_counter() - begun

    @contextmanager
    def _one_more(self, request: Request, caller: Caller) -> Iterator[None]:
        """Counts a request that waits. Raises QueueFullError."""
        client = request.scope.get("client")
        name = caller.name or (client[0] if client else "")
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
