"""Paths and parameters of the change feed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lamplighter.engine.errors import ChangeLogError, MalformedRequestError, QueueFullError
from lamplighter.gateway.gates.changes.forms import DATASETS, EVENTS, WRITERS
from lamplighter.gateway.gates.changes.positions import PositionsOf
from lamplighter.gateway.gates.changes.stream import ChangeFollower, ChangePage, ChangeSending, ChangeStream
from lamplighter.gateway.gates.http.answers import stream_answer
from lamplighter.gateway.gates.http.negotiation import negotiate
from lamplighter.gateway.gates.http.parameters import Parameters, parameters
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.waiting import WaitingRequests, next_record
from lamplighter.gateway.history.changes import CHANGES_MAX
from lamplighter.gateway.log.snapshots import place_of
from lamplighter.gateway.loop.past import ChangesAsked, ChangesFound
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.workers.ad_hoc import again_if_stuck

PATH: Final = "/changes"
SNAPSHOT: Final = "/changes/snapshot"
POSITION: Final = "Lamplighter-Position"  # the header with the position behind an answer
WAIT_S_MAX = 30.0
SNAPSHOTS_MAX = 2  # snapshots that are sent at the same time, one to each client


class ChangeFeed:
    """The door. `GET /changes?after=<position>` and `GET /changes/snapshot`."""

    def __init__(self, runner: Runner, settings: Settings, data: Path) -> None:
        """data: the data folder."""
        self._runner = runner
        self._data = data
        self._waiting = WaitingRequests()
        self._copying: set[str] = set()  # clients that a snapshot is sent to
        self._sending = ChangeSending(settings.websocket.unsent_bytes_max)
        self._made: PositionsOf | None = None

    def routes(self) -> Iterator[Route]:
        yield Route(PATH, self._changes, Permission.CALLER, parameters=Parameters(("after", "wait", "limit")))
        yield Route(SNAPSHOT, self._snapshot, Permission.CALLER)

    def about(self) -> Iterator[tuple[str, str]]:
        yield PATH, "changes of the dataset: ?after=<position>&wait=S as NDJSON or RDF Patch, or Server-Sent Events"
        yield SNAPSHOT, "the dataset and its position, from which a follower of /changes begins"

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    def _follower(self, caller: Caller) -> ChangeFollower:
        if self._made is None:
            self._made = PositionsOf(self._data, self._runner.log.disk, self._runner.log.gateway)
        return ChangeFollower(self._runner, caller, self._made(caller))

    # --- changes ---

    async def _changes(self, request: Request, caller: Caller) -> Response:
        asked = parameters(request)
        limit, wait = asked.number("limit", CHANGES_MAX) or CHANGES_MAX, asked.seconds("wait", WAIT_S_MAX)
        form = negotiate(request, WRITERS).format
        after, follower = asked.text("after"), self._follower(caller)
        positions = follower.positions
        if form == EVENTS:
            if wait is not None:
                raise MalformedRequestError("wait is for single answers; a stream of events waits by itself")
            after = request.headers.get("last-event-id") or after
        if after is None:
            at = await self._runner.past.position(self._runner.log.tail.acknowledged, caller)
        else:
            at = positions.read(after)
        wanted = ChangesAsked(at, caller.access.read, limit, partial(WRITERS[form], positions))
        single = form != EVENTS or request.method == "HEAD"
        with ExitStack() as stack:
            if wait or not single:
                stack.enter_context(self._waiting.one_more(caller))
            found = await self._first_changes(request, follower, wanted, wait or 0.0)
            if single:
                headers = {POSITION: positions.text(found.at), "Cache-Control": "no-store", "Vary": "Accept"}
                return ChangePage(self._sending, caller.client, found.body, headers, form)
            return ChangeStream(follower, request, wanted, found, self._sending, stack.pop_all().close)

    async def _first_changes(
        self, request: Request, follower: ChangeFollower, asked: ChangesAsked, wait_s: float
    ) -> ChangesFound:
        """The first changes behind a position, none when the time is up. Raises as `Past.changes`, ClientDisconnect."""
        tail, end = self._runner.log.tail, monotonic() + wait_s
        while True:
            self._sending.check(follower.caller.client)
            found = await self._runner.past.changes(asked, follower.caller)
            left_s = end - monotonic()
            if found.count or (found.ended and (left_s <= 0 or tail.closed or request.method == "HEAD")):
                follower.check()
                return found
            asked = replace(asked, after=found.at)
            if found.ended:
                await next_record(request, tail, found.at.place, left_s)
            elif await request.is_disconnected():
                raise ClientDisconnect

    # --- snapshots ---

    async def _snapshot(self, request: Request, caller: Caller) -> Response:
        form = negotiate(request, DATASETS).format
        follower, name = self._follower(caller), caller.client
        if name in self._copying or len(self._copying) >= SNAPSHOTS_MAX:
            raise QueueFullError(
                f"a snapshot is being sent to this client, or {SNAPSHOTS_MAX} to others; try again later"
            )
        self._copying.add(name)
        try:
            return await again_if_stuck(lambda: self._snapshot_response(request, follower, form, name))
        except BaseException:
            self._copying.discard(name)
            raise

    async def _snapshot_response(
        self, request: Request, follower: ChangeFollower, media_type: str, name: str
    ) -> Response:
        form, visible = DATASETS[media_type], follower.caller.access.read
        taken = await self._runner.backups.copy_dataset(partial(form.write, visible))
        try:
            if taken.head.seq == 0 and taken.head.epoch > 1:
                log = self._runner.log.path
                raise ChangeLogError("it cannot be written, so the dataset has no position", path=log, hint="try later")
            at = await self._runner.past.position(place_of(taken.head), follower.caller)
            follower.check()
        except BaseException:
            taken.content.abandon()
            raise
        positions = follower.positions
        headers = {POSITION: positions.text(at), "Cache-Control": "no-store", "Vary": "Accept"}
        begin, end = (part(positions, at, taken.head.ts) for part in (form.begin, form.end))
        chunks = self._dataset(taken.content.chunks(), begin, end, name)
        return await stream_answer(request, chunks, media_type, headers)

    async def _dataset(
        self, rows: AsyncGenerator[bytes, None], begin: bytes, end: bytes, name: str
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(rows) as chunks:
            first = await anext(chunks, b"")  # without it the answer has not begun, and `_snapshot` continues
            try:
                yield begin + first
                async for chunk in chunks:
                    yield chunk
                yield end
            finally:
                self._copying.discard(name)
