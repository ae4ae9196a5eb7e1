"""The change feed by Server-Sent Events, and the sending of long answers.

Nothing is queued for a client: the next changes are read from the log when it has taken those before. So a slow client
costs one part of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic, perf_counter
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lamplighter.engine.errors import GatewayError, QueueFullError
from lamplighter.gateway.gates.changes.forms import EVENTS, reset_event
from lamplighter.gateway.gates.changes.positions import FeedPositions
from lamplighter.gateway.gates.http.answers import wait_for_disconnect
from lamplighter.gateway.gates.http.routes import WAITED
from lamplighter.gateway.history.changes import PERMISSIONS, ResetError
from lamplighter.gateway.loop.past import ChangesAsked, ChangesFound
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.sharing import TotalBudget

_PIECE_BYTES: Final = 64 * 1024


class ChangeSending:
    """The bytes of all answers that are being sent. Clients may read slowly, so no more are read above a limit."""

    def __init__(self, bytes_max: int) -> None:
        self._room = TotalBudget(lambda: bytes_max, "websocket.unsent_bytes_max")

    def check(self, client: str) -> None:
        """Raises QueueFullError."""
        if why := self._room.refusal(client):
            raise QueueFullError(f"too many changes wait to be read: {why}; try again later")

    async def send(self, send: Send, client: str, body: bytes, *, more: bool) -> None:
        """Sends a part of an answer, piece by piece: the server waits before a piece, not behind it."""
        with self._room.hold(client, len(body)):
            for begin in range(0, len(body), _PIECE_BYTES):
                piece = body[begin : begin + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not more:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class ChangePage(Response):
    def __init__(
        self, sending: ChangeSending, client: str, body: bytes, headers: dict[str, str], media_type: str
    ) -> None:
        super().__init__(body, 200, headers, media_type)
        self._sending = sending
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # The headers are those of a GET.
        body = b"" if scope["method"] == "HEAD" else bytes(self.body)
        await self._sending.send(send, self._client, body, more=False)


@dataclass(frozen=True)
class ChangeFollower:
    """A client that follows the changes. positions: as it gets them."""

    runner: Runner
    caller: Caller
    positions: FeedPositions

    def check(self) -> None:
        """Raises ResetError if it may read other graphs now than when it asked."""
        if self.caller.registered:
            access = self.runner.access_of(self.caller.name)
            if access is None or access.read != self.caller.access.read:
                raise ResetError(PERMISSIONS)


class ChangeStream(Response):
    """The answer that is a stream."""

    def __init__(
        self,
        follower: ChangeFollower,
        request: Request,
        asked: ChangesAsked,
        found: ChangesFound,
        sending: ChangeSending,
        left: Callable[[], None],
    ) -> None:
        """found: the first part; left: called at the end."""
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept"}, EVENTS)
        del self.headers["content-length"]
        self._follower = follower
        self._asked = asked
        self._found = found
        self._sending = sending
        self._client = follower.caller.client
        # How often an event without data is sent: it keeps proxies from closing the connection, and tells the position.
        self._heartbeat_s = follower.runner.settings.websocket.ping_s
        self._left = left
        self._gone = asyncio.ensure_future(wait_for_disconnect(request.receive))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            last = b""
            try:
                await self._follow(send)
            except ResetError as error:
                last = reset_event(error.reason)
            except GatewayError:
                pass  # too many readers, say: the client comes back
            if not self._gone.done():
                await self._sending.send(send, self._client, last, more=False)
        finally:
            self._gone.cancel()
            self._left()
            scope[WAITED] = scope.get(WAITED, 0.0) + perf_counter() - begun

    async def _follow(self, send: Send) -> None:
        """Sends changes until the client leaves or the gateway stops. Raises ResetError, QueueFullError, StoreError."""
        follower, found, heartbeat = self._follower, self._found, 0.0
        tail = follower.runner.log.tail
        while not self._gone.done():
            # Before each part: permissions may have been taken away since the last.
            follower.check()
            now = monotonic()
            if found.count:
                await self._sending.send(send, self._client, found.body, more=True)
                heartbeat = now + self._heartbeat_s
            elif now >= heartbeat:
                position = b"id: %b\n\n" % follower.positions.text(found.at).encode()
                await self._sending.send(send, self._client, position, more=True)
                heartbeat = now + self._heartbeat_s
            if found.ended:
                # All is sent, and nothing more will come.
                if tail.closed:
                    return
                record = asyncio.ensure_future(tail.wait(found.at.place, max(0.0, heartbeat - monotonic())))
                waited: set[asyncio.Future[Any]] = {record, self._gone}
                try:
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    record.cancel()
            self._sending.check(self._client)
            self._asked = replace(self._asked, after=found.at)
            found = await follower.runner.past.changes(self._asked, follower.caller)
