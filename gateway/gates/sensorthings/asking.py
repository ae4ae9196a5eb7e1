"""Queries with a caller's permissions, and their rows as terms."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from lamplighter.engine.terms import Term, term_from_json
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller

_BYTES_MAX = 8 * 1024 * 1024
"""Of the answer to one query."""
_JSON = "application/sparql-results+json"
SLICE = 200
"""Rows or entities that are read or written before other tasks have a turn."""


class _TermMember(msgspec.Struct):
    type: str
    value: Any
    datatype: str | None = None
    language: str | None = msgspec.field(default=None, name="xml:lang")
    direction: str | None = msgspec.field(default=None, name="its:dir")

    def term(self) -> Term:
        members: dict[str, Any] = {"type": self.type, "value": self.value}
        for name, text in (("datatype", self.datatype), ("xml:lang", self.language), ("its:dir", self.direction)):
            if text is not None:
                members[name] = text
        return term_from_json(members)


class _Results(msgspec.Struct):
    bindings: list[dict[str, msgspec.Raw]] = []


class _Answer(msgspec.Struct):
    results: _Results = msgspec.field(default_factory=_Results)
    boolean: bool = False


async def rows(runner: Runner, caller: Caller, text: str) -> list[dict[str, Term]]:
    """The solutions of a SELECT query, by variable. Raises GatewayError."""
    answer = await _answer(runner, caller, text)
    found = []
    for number, binding in enumerate(answer.results.bindings):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        found.append({name: msgspec.json.decode(raw, type=_TermMember).term() for name, raw in binding.items()})
    return found


async def ask(runner: Runner, caller: Caller, text: str) -> bool:
    """The answer to an ASK query. Raises GatewayError."""
    return (await _answer(runner, caller, text)).boolean


async def _answer(runner: Runner, caller: Caller, text: str) -> _Answer:
    answer = await runner.queries.query(runner.queries.outline(text), _JSON, caller=caller)
    return msgspec.json.decode(await answer.whole(_BYTES_MAX), type=_Answer)
