"""Rows of the views of the web page that show what operations answer: devices, records of the log, explanations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.devices import LISTED as DEVICES
from lamplighter.gateway.gates.http.devices import DeviceRequests
from lamplighter.gateway.gates.http.past import EXPLAIN, LOG, PastRequests
from lamplighter.gateway.gates.http.routes import Handler, Permission, Route
from lamplighter.gateway.page.rows import Row, csv_text, device_rows, link_rows, log_rows, outcome_rows
from lamplighter.gateway.security.callers import Caller

_HEADERS = {"Cache-Control": "no-store"}

_Rows = Callable[[Mapping[str, Any]], Sequence[Row]]


class PageOperations:
    """The handlers. They take the parameters of the operations, have their limits, and need an operator as they do."""

    def __init__(self, past: PastRequests, devices: DeviceRequests) -> None:
        self._past = past
        self._devices = devices

    def routes(self) -> Iterator[Route]:
        for view, operation, rows, taken in (
            ("log", self._past.log, log_rows, LOG),
            ("devices", self._devices.all, device_rows, DEVICES),
            ("explain", self._explain, _explain_rows, EXPLAIN),
        ):
            for suffix in ("json", "csv"):
                handler = _answering(operation, rows, suffix)
                yield Route(f"/page/{view}.{suffix}", handler, Permission.OPERATOR, parameters=taken)

    async def _explain(self, request: Request, caller: Caller) -> Response:
        """The newest outcomes, if the request has no parameter."""
        return await self._past.explain(request, caller, newest=True)


def _explain_rows(answer: Mapping[str, Any]) -> Sequence[Row]:
    return outcome_rows(answer) if "outcomes" in answer else link_rows(answer)


def _answering(operation: Handler, rows: _Rows, suffix: str) -> Handler:
    async def handler(request: Request, caller: Caller) -> Response:
        answer = await operation(request, caller)
        if answer.status_code != 200:
            return answer
        found = await asyncio.to_thread(lambda: rows(msgspec.json.decode(answer.body)))
        if suffix == "json":
            return JsonAnswer(found, headers=_HEADERS)
        return Response(await asyncio.to_thread(csv_text, found), media_type="text/csv", headers=_HEADERS)

    return handler
