"""Paths of the HTTP gate: no two endpoints share one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.gates.http.routes import RELEASE, WAITED, CorsRules, HttpApplication, Permission, Route, Routes
from lamplighter.gateway.monitoring.figures import HttpCounters
from lamplighter.gateway.monitoring.timings import Timing
from lamplighter.gateway.security.browsers import Browsers
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.gatekeeper import OpenGatekeeper
from lamplighter.gateway.settings.security import SecuritySettings
from tests.support.tables import each_row


async def nothing(request: Request, caller: Caller) -> Response:
    raise AssertionError("nobody asks")


@each_row("path", ["/health", "/secure/health", "/graphs/"])
def test_two_things_are_not_served_at_one_path(path: str) -> None:
    def served(*paths: str) -> Routes:
        return Routes([Route(one, nothing, Permission.NOTHING) for one in paths], "/secure")

    served("/health", "/graphs", "/graphs/", "/")
    with pytest.raises(ConfigurationError, match=f"two resources have the path (/secure)?{path}"):
        served("/health", "/graphs", "/graphs/", path)


async def test_the_time_that_a_handler_only_waits_does_not_count() -> None:
    async def waits(request: Request, caller: Caller) -> Response:
        request.scope[WAITED] = 1000.0
        return Response()

    async def send(message: Message) -> None:
        pass

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    took = Timing()
    released: list[int] = []
    routes, cors = (
        Routes([Route("/a", waits, Permission.NOTHING)], ""),
        CorsRules(Browsers(SecuritySettings()), frozenset()),
    )
    application = HttpApplication(routes, OpenGatekeeper(), cors, HttpCounters(), took)
    scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/a", "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")], "state": {"listener": SimpleNamespace(local=False)}}
    await application(scope | {RELEASE: lambda: released.append(1)}, receive, send)
    assert took.total < 0
    assert released == [1]
