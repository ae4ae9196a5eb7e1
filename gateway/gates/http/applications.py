"""Applications: the list, one of them, and changes while the gateway runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.access import FULL
from lamplighter.engine.client.files import read_file
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, UnknownResourceError
from lamplighter.gateway.clock import iso
from lamplighter.gateway.gates.http.answers import JsonAnswer, Refusal
from lamplighter.gateway.gates.http.calls import RequestTurns, small_body
from lamplighter.gateway.gates.http.names import NameRequests
from lamplighter.gateway.gates.http.parameters import NONE, Parameters, parameters
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.log.snapshots import label
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.audit import audit
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.applications import (
    Application,
    application_texts,
    document_faults,
    parse_application,
)
from lamplighter.gateway.state.stored_applications import PROFILE_BYTES_MAX, StoredApplication, check_name
from lamplighter.gateway.texts import did_you_mean, nearest

AT_ONCE_MAX, WAITING_MAX = 1, 16  # changes that are checked at the same time, and those with them that may wait
HEADERS = {"Cache-Control": "no-store"}
_CHECK = Parameters(("check",))


class ApplicationRequests:
    """The handlers; all need an operator. folder: of the configuration file, beside which ``apps/`` is."""

    def __init__(self, runner: Runner, folder: Path, names: NameRequests) -> None:
        self._runner = runner
        self._names = names
        self._folder = folder
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    @property
    def routes(self) -> list[Route]:
        methods = frozenset({"GET", "HEAD", "PUT", "DELETE"})

        def table(request: Request) -> Parameters:
            return _CHECK if request.method == "PUT" else NONE

        return [
            Route("/applications", self.all, Permission.OPERATOR),
            Route("/applications/", self.one, Permission.OPERATOR, methods, table),
        ]

    async def all(self, request: Request, caller: Caller) -> Response:
        found = self._facts()
        return JsonAnswer({"total": len(found), "applications": list(found.values())}, headers=HEADERS)

    async def one(self, request: Request, caller: Caller) -> Response:
        """Raises QueueFullError while too many changes wait; otherwise as `ApplicationDeclarations`."""
        name: str = request.scope["below"]
        if request.method == "PUT":
            document = await small_body(request, PROFILE_BYTES_MAX)
            async with self._turns.turn(caller):
                return await self.store(name, document, caller, check=parameters(request).flag("check"))
        if request.method == "DELETE":
            return await self._remove(request, name, caller)
        facts = self._facts().get(name)
        if facts is None:
            raise self._unknown(name)
        delayed = await self._runner.declarations.pending(name)
        return JsonAnswer({**facts, **await self._document(name), "delayed": delayed}, headers=HEADERS)

    async def store(
        self,
        name: str,
        document: bytes,
        caller: Caller,
        *,
        check: bool = False,
        template: str = "",
        values: dict[str, Any] | None = None,
    ) -> Response:
        """Checks a document as `lamplighter check` does, and stores it. check: only says what storing it would say.
        template, values: what it was made from. Raises MalformedRequestError for a bad name; as
        `ApplicationDeclarations.store`."""
        try:
            check_name(name)
        except ConfigurationError as error:
            raise MalformedRequestError(str(error)) from error
        faults = await asyncio.to_thread(document_faults, name, document)
        if faults:
            listed = [{"place": one.place, "line": one.line, "problem": one.problem} for one in faults]
            return Refusal("bad_application", 400, "\n".join(map(str, faults)), HEADERS, {"faults": listed})
        directory = await self._names.directory(caller)
        texts = application_texts(parse_application(name, document))
        warnings = await asyncio.to_thread(directory.warnings, name, texts)
        now = iso(self._runner.log.clock.wall())
        application = StoredApplication(name, document.decode(), now, template, values or {})
        if check:
            await asyncio.to_thread(self._runner.declarations.check, application)
            known = self._facts().get(name)
            members = _answer(name, created=known is None, changed=False, warnings=warnings)
            return JsonAnswer(members, headers=HEADERS)
        done = await self._runner.declarations.store(application)
        if done.changed:
            audit("application put", name=name, client=caller.client, record=label(done.place))
        facts = self._facts()[name]
        members = _answer(name, created=done.created, changed=done.changed, warnings=warnings)
        members |= {"record": label(done.place)} | {key: facts[key] for key in ("version", "state", "problem")}
        return JsonAnswer(members, 201 if done.created else 200, HEADERS)

    async def _remove(self, request: Request, name: str, caller: Caller) -> Response:
        """Ends an application, and removes what a template wrote for it. Its delayed updates stay pending."""
        from lamplighter.gateway.templates.catalogue import periods_removal, rules_removal

        base = self._runner.settings.gateway.base_iri
        everything, came_from = replace(caller, access=FULL), cause(request, caller)
        # Rules first: after a failure, the request can be repeated. While it runs, it would declare its periods again.
        if self._runner.declarations.stored.get(name) is not None:
            await self._runner.updates.update(UpdateCall(rules_removal(name, base), came_from, caller=everything))
        place = await self._runner.declarations.remove(name)
        if place is None:
            raise self._unknown(name)
        await self._runner.updates.update(UpdateCall(periods_removal(name, base), came_from, caller=everything))
        audit("application removed", name=name, client=caller.client, record=label(place))
        members = {
            "name": name,
            "removed": True,
            "record": label(place),
            "delayed": await self._runner.declarations.pending(name),
        }
        return JsonAnswer(members, headers=HEADERS)

    def _unknown(self, name: str) -> UnknownResourceError:
        known = self._facts()
        return UnknownResourceError(f"no application has the name {name[:100]!r}{did_you_mean(nearest(name, known))}")

    # --- what is known of them ---

    def _facts(self) -> dict[str, dict[str, Any]]:
        """By name, in order."""
        declarations = self._runner.declarations
        components = {one.name: one for one in self._runner.figures.health.components()}
        found: dict[str, dict[str, Any]] = {}
        running = {one.name: one for one in declarations.declared}
        for name in sorted({*running, *(one.name for one in declarations.stored.applications)}):
            application, component = running.get(name), components.get(f"application/{name}")
            stored, outcome = declarations.stored.get(name), declarations.outcomes(name)
            problem = None if component is None or component.well else component
            template = stored.template if stored is not None else ""
            found[name] = {
                "name": name,
                "origin": "file" if name in declarations.declared.files else "stored",
                "state": self._state(application, None if problem is None else problem.state),
                "problem": None if problem is None else problem.reason,
                "remedy": None if problem is None else problem.cure,
                "version": None if application is None else application.digest,
                "template": template or None,
                "aggregators": [] if application is None else list(application.profile.aggregators),
                "changed": stored.changed or None if stored is not None else None,
                "reactions": 0 if outcome is None else outcome.reactions,
                "failed": 0 if outcome is None else outcome.failed,
            }
        return found

    def _state(self, application: Application | None, problem: str | None) -> str:
        if application is None:
            return "refused"
        if problem is None and self._runner.declarations.is_waiting(application):
            return "waiting"
        return problem or "running"

    async def _document(self, name: str) -> dict[str, Any]:
        """The document of one, and what it was made from."""
        declarations = self._runner.declarations
        stored = declarations.stored.get(name)
        if stored is not None and name not in declarations.declared.files:
            text, values = stored.profile.encode(), stored.values if stored.template else None
        else:
            path, values = self._folder / "apps" / f"{name}.jsap", None
            try:
                text = await asyncio.to_thread(read_file, path)
            except OSError as error:
                raise UnknownResourceError(
                    f"{path.name} cannot be read: {error.strerror}; reload the gateway"
                ) from error
        try:
            profile = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UnknownResourceError(f"apps/{name}.jsap has changed and is not JSON: {error}") from error
        return {"profile": profile, "values": values}


def _answer(name: str, *, created: bool, changed: bool, warnings: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name,
        "created": created,
        "changed": changed,
        "version": None,
        "record": None,
        "state": None,
        "problem": None,
        "warnings": warnings,
    }
