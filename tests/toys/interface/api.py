"""``GET /toy``: whom the gateway greets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller


class Toy:
    def __init__(self, runner: Runner, settings: Any) -> None:
        self._runner = runner
        self._greeting = settings.toy.greeting

    def routes(self) -> Iterator[Route]:
        yield Route("/toy", self._answer, Permission.CALLER)

    def about(self) -> Iterator[tuple[str, str]]:
        yield "/toy", "greetings"

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def _answer(self, request: Request, caller: Caller) -> Response:
        found = await select(self._runner, caller, "SELECT ?who { <urn:toy> <urn:greets> ?who }", 1000)
        return JsonAnswer({self._greeting: [row["who"] for row in found.bindings()]})
