"""Calls of tools: queries within their limits and updates with one effect, by the permissions of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from lamplighter.engine.change_log import Cause
from lamplighter.engine.tables import count_text
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.mcp.answers import ToolAnswer, boolean, first_rows, first_triples
from lamplighter.gateway.gates.mcp.tools import AnyTool, UpdateTool
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller

_JSON = "application/sparql-results+json"
_N_TRIPLES = "application/n-triples"


class ToolCalls:
    """The outcomes of calls. rows_max: rows or triples of one answer."""

    def __init__(self, runner: Runner, rows_max: int) -> None:
        self._runner = runner
        self._rows_max = rows_max

    async def call(self, tool: AnyTool, arguments: Mapping[str, Any], request: Request, caller: Caller) -> ToolAnswer:
        """request: the one over HTTP. Raises GatewayError."""
        if isinstance(tool, UpdateTool):
            return await self._update(tool, arguments, Cause("mcp", cause(request, caller).id), caller)
        return await self._query(tool.text(arguments), caller)

    async def _query(self, text: str, caller: Caller) -> ToolAnswer:
        query = self._runner.queries.outline(text)
        solutions = query.form in ("SELECT", "ASK")
        answer = await self._runner.queries.query(query, _JSON if solutions else _N_TRIPLES, caller=caller)
        if query.form == "ASK":
            return await boolean(answer.chunks())
        return await (first_rows if solutions else first_triples)(answer.chunks(), self._rows_max)

    async def _update(
        self, tool: UpdateTool, arguments: Mapping[str, Any], came_from: Cause, caller: Caller
    ) -> ToolAnswer:
        text, request_id = tool.request(arguments)
        declared = tool.application.profile.updates[tool.update]
        delayed = declared.delay is not None or declared.at is not None
        call = UpdateCall(
            text,
            came_from,
            request_id=request_id,
            delay=declared.delay,
            at=declared.at,
            missed=declared.missed if delayed else None,
            caller=caller,
            tells_delta=not delayed,
        )
        # A client that disconnects does not take its update back, as over HTTP.
        accepted = await asyncio.shield(self._runner.updates.update(call))
        content: dict[str, Any] = {"sequence": accepted.sequence} if caller.sees_sequence else {}
        if accepted.delayed is not None:
            content["delayed"] = accepted.delayed
            return ToolAnswer(content, f"The update is accepted and runs later. Its id is {accepted.delayed}.")
        if accepted.delta is None:
            return ToolAnswer(content, "Done.")
        added, removed = len(accepted.delta.added), len(accepted.delta.removed)
        content |= {"added": added, "removed": removed}
        text = f"Done: {count_text(added, 'quad')} added, {removed} removed."
        return ToolAnswer(
            content, text if caller.access.read.every else f"{text} Quads that you may not read do not count."
        )
