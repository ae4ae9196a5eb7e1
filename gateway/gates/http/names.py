"""Names that people gave: of devices, their parts and rooms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.access import FULL
from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import Bag
from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.calls import RequestTurns
from lamplighter.gateway.gates.http.kept import KeptResult
from lamplighter.gateway.gates.http.parameters import Parameters, parameters
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller

if TYPE_CHECKING:  # it loads the adapters, which a gateway without devices does not need
    from lamplighter.gateway.devices.directory import NameDirectory

AT_ONCE_MAX, WAITING_MAX = 2, 64
LISTED_DEFAULT, LISTED_MAX = 200, 1000
_TAKEN = Parameters(("room", "search", "limit"), ("kind", "property"))


_Files = list[tuple[str, int, int, int]]


class NameRequests:
    """The handler; it needs an operator. folder: of the configuration file, beside which ``mapping/`` is."""

    def __init__(self, runner: Runner, folder: Path) -> None:
        self._runner = runner
        self._mapping = folder / "mapping"
        self._kept = KeptResult["NameDirectory"](runner)
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    @property
    def route(self) -> Route:
        return Route("/names", self.all, Permission.OPERATOR, parameters=_TAKEN)

    async def all(self, request: Request, caller: Caller) -> Response:
        """The first names of some kinds, and how many there are. Raises QueueFullError while too many wait."""
        from lamplighter.gateway.devices.directory import KINDS

        asked = parameters(request)
        kinds = asked.values("kind") or list(KINDS)
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise MalformedRequestError(f"kind: unknown value {unknown[0][:100]!r}; use {', '.join(KINDS)}")
        limit = asked.number("limit", LISTED_MAX) or LISTED_DEFAULT
        async with self._turns.turn(caller):
            directory = await self.directory(caller)
            found = await asyncio.to_thread(
                directory.select, kinds, asked.values("property") or (), asked.text("room"), asked.text("search") or ""
            )
        listed = [one.members() for one in found[:limit]]
        return JsonAnswer({"total": len(found), "names": listed}, headers={"Cache-Control": "no-store"})

    async def directory(self, caller: Caller) -> NameDirectory:
        """What can be named now, whatever graphs the operator may read."""
        from lamplighter.adapters.mapping.dataset_rules import QUERY as RULES
        from lamplighter.gateway.devices.directory import QUERY, VALUELESS, NameDirectory
        from lamplighter.gateway.devices.ruled import names_of_files, names_of_rows

        everything, base = replace(caller, access=FULL), self._runner.settings.gateway.base_iri
        files = await asyncio.to_thread(_stamps, self._mapping)

        def make(found: Sequence[Bag]) -> NameDirectory:
            rows, rules = found
            ruled = [*names_of_rows(rules, base), *names_of_files(self._mapping, base)]
            return NameDirectory.of(rows, base, ruled)

        return await self._kept.get(everything, (QUERY, RULES), make, beside=(base, files), valueless=VALUELESS)


def _stamps(folder: Path) -> _Files:
    """Of the files that `names_of_files` reads: another stamp is another content."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        with suppress(OSError):
            state = path.stat()
            found.append((path.name, state.st_ino, state.st_mtime_ns, state.st_size))
    return found
