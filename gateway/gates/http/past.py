"""The past: records of the change log, and why actuators were switched."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lamplighter.engine.errors import MalformedRequestError, QueueFullError
from lamplighter.gateway.gates.http.answers import JSON, gone
from lamplighter.gateway.gates.http.calls import fields
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
_RECORD = re.compile(r"(?:([0-9]{1,9})/)?([0-9]{1,12})")
_NUMBER = re.compile(r"[0-9]{1,4}")
_SECONDS = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6})?")


class PastRequests:
    """The handlers; all need an operator."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: Counter[str] = Counter()

    async def log(self, request: Request, caller: Caller) -> Response:
        """A page of the change log. With `wait`, the answer comes when there is a record behind `after`."""
        asked = _UrlParameters(request, ("after", "from", "to", "last", "quads", "wait"))
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
        asked = _UrlParameters(request, ("actuation", "at", "last"))
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


class _UrlParameters:
    """The parameters of a URL. Raises MalformedRequestError for unknown ones, and where one occurs twice."""

    def __init__(self, request: Request, names: tuple[str, ...]) -> None:
        self._found = fields(request.scope["query_string"])
        for name, values in self._found.items():
            if name not in names:
                raise MalformedRequestError(f"unknown parameter {name[:100]!r}; use {', '.join(names)}")
            if len(values) > 1:
                raise MalformedRequestError(f"the parameter {name} occurs {len(values)} times; it may occur once")

    def text(self, name: str) -> str | None:
        return self._found[name][0] if name in self._found else None

    def record(self, name: str) -> Place | str | None:
        """A place, or a sequence without an epoch."""
        text = self.text(name)
        if text is None:
            return None
        found = _RECORD.fullmatch(text)
        if found is None:
            raise MalformedRequestError(f"{name}: write the sequence of a record, such as 17, or 1/17 for epoch 1")
        return found[2] if found[1] is None else (int(found[1]), int(found[2]))

    def number(self, name: str, most: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
            raise MalformedRequestError(f"{name}: write a number from 1 to {most}")
        return int(text)

    def seconds(self, name: str, most: float) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        if not _SECONDS.fullmatch(text) or float(text) > most:
            raise MalformedRequestError(f"{name}: write seconds from 0 to {most:g}")
        return float(text)
