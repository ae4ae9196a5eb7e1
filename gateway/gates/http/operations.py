"""Operations: health, figures, timers, subscriptions, backup and restore, for operators and monitoring."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import blake2b
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.change_log import SUFFIX
from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.gates.http.answers import JsonAnswer, is_known, stream_answer
from lamplighter.gateway.gates.http.calls import small_body
from lamplighter.gateway.gates.http.parameters import Parameters, parameters
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.history.restoring import Restored, difference, receive
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.monitoring.figures import LISTED_MAX
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.delayed import LISTED_MAX as DELAYED_LISTED_MAX
from lamplighter.gateway.workers.ad_hoc import Answer, again_if_stuck

LISTED = Parameters(("limit", "characters"))  # of lists: how many, and how much of each text
ECHO_BYTES_MAX = 64 * 1024
CHARACTERS_MAX = 9_999  # of the parameter `characters`
_CREDENTIALS = frozenset({"authorization", "cookie"})


class Operations:
    """The handlers of all paths but SPARQL's. about: the text page at ``/``."""

    def __init__(self, runner: Runner, about: str) -> None:
        self._runner = runner
        self._about = about
        self._backing_up = False
        self._start = secrets.token_hex(8)

    async def index(self, request: Request, caller: Caller) -> Response:
        return Response(self._about, media_type="text/plain")

    async def echo(self, request: Request, caller: Caller) -> Response:
        """The request as it was received (SEPA protocol 1.1), without credentials."""
        body = await small_body(request, ECHO_BYTES_MAX)
        headers = {name: value for name, value in request.headers.items() if name not in _CREDENTIALS}
        return JsonAnswer(
            {"method": request.method, "protocol": "HTTP", "headers": headers, "body": body.decode(errors="replace")}
        )

    async def pending(self, request: Request, caller: Caller) -> Response:
        """The tag of the answer leaves out the time, so that a list that is polled is sent when it has changed."""
        asked = parameters(request)
        limit, characters = asked.number("limit", DELAYED_LISTED_MAX), asked.number("characters", CHARACTERS_MAX)
        runner = self._runner
        tag = self._tag(caller.operator, caller.name, caller.sees_sequence, limit, characters, *runner.delayed_changes)
        if is_known(request, tag):
            return Response(status_code=304, headers={"ETag": tag})
        rows = runner.delayed_updates(caller, limit, characters)
        return JsonAnswer({"total": runner.delayed_count_of(caller), "delayed": rows}, headers={"ETag": tag})

    def _tag(self, *parts: object) -> str:
        """Different for different parts, and after a restart."""
        return f'"{blake2b(repr((self._start, *parts)).encode(), digest_size=12).hexdigest()}"'

    async def cancel(self, request: Request, caller: Caller) -> Response:
        name = request.scope["below"]
        await self._runner.updates.cancel(name, cause(request, caller), caller)
        return JsonAnswer({"cancelled": name})

    async def health(self, request: Request, caller: Caller) -> Response:
        """State, components and figures; only the state for callers that are not operators. 200 also if it is degraded:
        the gateway itself works, and a restart or rollback would not help."""
        status = self._runner.figures.status()
        told = status if caller.operator else {"status": status["status"]}
        return JsonAnswer(told, 200 if status["status"] in ("ok", "degraded") else 503)

    async def figures(self, request: Request, caller: Caller) -> Response:
        return JsonAnswer(self._runner.figures.monitoring())

    async def ready(self, request: Request, caller: Caller) -> Response:
        """Whether updates are accepted: the log can be written. It was recovered before anything is served."""
        # Names the component that refuses them, without the reason, because no authentication is required.
        component = self._runner.figures.health.unready()
        if component:
            return JsonAnswer({"ready": False, "component": component}, 503)
        return JsonAnswer({"ready": True})

    async def metrics(self, request: Request, caller: Caller) -> Response:
        from lamplighter.gateway.monitoring.metrics import exposition  # half a megabyte, where metrics are scraped

        text, media_type = exposition(self._runner.figures, ",".join(request.headers.getlist("accept")))
        return Response(text, media_type=media_type, headers={"Vary": "Accept"})

    async def subscriptions(self, request: Request, caller: Caller) -> Response:
        asked = parameters(request)
        limit, characters = asked.number("limit", LISTED_MAX), asked.number("characters", CHARACTERS_MAX)
        answer = JsonAnswer(self._runner.figures.subscriptions(limit, characters), headers={})
        tag = self._tag(answer.body)
        if is_known(request, tag):
            return Response(status_code=304, headers={"ETag": tag})
        answer.headers["ETag"] = tag
        return answer

    async def backup(self, request: Request, caller: Caller) -> Response:
        if self._backing_up:
            raise QueueFullError("another backup is running; try again later")
        self._backing_up = True
        try:
            return await again_if_stuck(lambda: self._begun_backup(request))
        except BaseException:
            self._backing_up = False
            raise

    async def _begun_backup(self, request: Request) -> Response:
        taken = await self._runner.backups.take_snapshot()
        head = taken.head
        name = f"{head.gw}-{head.epoch}-{head.seq:012d}{SUFFIX}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return await stream_answer(request, self._backup(taken.content), "application/zstd", headers)

    async def _backup(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        async with aclosing(answer.chunks()) as chunks:
            first = await anext(chunks, b"")  # without it the answer has not begun, and `backup` continues
            try:
                yield first
                async for chunk in chunks:
                    yield chunk
            finally:
                self._backing_up = False

    async def restore(self, request: Request, caller: Caller) -> Response:
        log = self._runner.log
        async with receive(log.disk, log.data / "snapshots", request.stream()) as path:
            return JsonAnswer(await again_if_stuck(lambda: self._restore_difference(path)))

    async def _restore_difference(self, path: Path) -> Restored:
        answer = await self._runner.backups.begin(path)
        try:
            found = await difference(answer)
            restored = await self._runner.backups.restore(found)
            if found.applications is not None:
                await self._runner.declarations.replace(found.applications)
            return restored
        finally:
            self._runner.backups.end()
