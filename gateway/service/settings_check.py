"""The check of the settings for the web page: ``lamplighter check`` in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import QueueFullError, UpstreamError
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.security.callers import Caller

TIME_S = 60.0
ANSWER_BYTES_MAX = 1024 * 1024
_CODES = frozenset({0, 2})  # of a check that has looked at everything


class SettingsCheck:
    """The handler; it needs an operator. options: of the command line, as of `Configuration`."""

    # Not in this process: it looks at everything that a start reads, for a tenth of a second or more.

    def __init__(self, options: Sequence[str]) -> None:
        self._command = (sys.executable, "-m", "lamplighter.gateway", "check", "--json", *options)
        self._checking = False

    @property
    def route(self) -> Route:
        return Route("/settings/check", self.check, Permission.OPERATOR)

    async def check(self, request: Request, caller: Caller) -> Response:
        """What `lamplighter check --json` prints of the files as they are now. Raises QueueFullError while another
        check runs, UpstreamError when it takes too long or fails."""
        if self._checking:
            raise QueueFullError("another check of the settings is running; try again later")
        self._checking = True
        try:
            return Response(await self._output(), media_type=JSON, headers={"Cache-Control": "no-store"})
        finally:
            self._checking = False

    async def _output(self) -> bytes:
        process = await asyncio.create_subprocess_exec(*self._command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
        assert process.stdout
        try:
            async with asyncio.timeout(TIME_S):
                found = await process.stdout.read(ANSWER_BYTES_MAX)
                while part := await process.stdout.read(ANSWER_BYTES_MAX - len(found)):
                    found += part
                code = await process.wait()
        except TimeoutError:
            raise UpstreamError(f"the check took longer than {TIME_S:g} s; run `lamplighter check`") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if code not in _CODES or not found:
            raise UpstreamError(f"the check ended with {code}; run `lamplighter check`")
        return found
