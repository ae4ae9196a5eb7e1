"""Templates of applications: their options, and applications from values, as a preview or at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.access import FULL
from lamplighter.engine.errors import UnknownResourceError
from lamplighter.gateway.gates.http.answers import JsonAnswer, Refusal
from lamplighter.gateway.gates.http.applications import HEADERS, ApplicationRequests
from lamplighter.gateway.gates.http.calls import RequestTurns, json_body
from lamplighter.gateway.gates.http.names import NameRequests
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.applications import application_texts, parse_application
from lamplighter.gateway.texts import did_you_mean, nearest

if TYPE_CHECKING:  # as for devices
    from lamplighter.gateway.templates.values import MadeApplication, ValueFaultsError

BODY_BYTES_MAX = 64 * 1024
AT_ONCE_MAX, WAITING_MAX = 1, 16
_CONFLICT = "an application of this name is stored already; choose another name, or replace it"


class TemplateValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: of the application; empty: that of the template. values: by option. put: whether it is stored and runs, or
    is only shown; replace: also in place of a stored one. since: how far back it is tried, such as P1D."""

    name: str = ""
    values: dict[str, Any] = {}
    put: bool = False
    replace: bool = False
    since: str | None = msgspec.field(default=None, name="try")


class TemplateRequests:
    """The handlers; all need an operator."""

    def __init__(self, runner: Runner, names: NameRequests, applications: ApplicationRequests) -> None:
        self._runner = runner
        self._names = names
        self._applications = applications
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/templates", self.all, Permission.OPERATOR),
            Route("/templates/", self.make, Permission.OPERATOR, frozenset({"POST"})),
        ]

    async def all(self, request: Request, caller: Caller) -> Response:
        from lamplighter.gateway.templates.catalogue import TEMPLATES
        from lamplighter.gateway.templates.options import options_of

        found = [
            {"name": name, "summary": one.summary, "options": [option.members() for option in options_of(one)]}
            for name, one in TEMPLATES.items()
        ]
        return JsonAnswer({"templates": found}, headers=HEADERS)

    async def make(self, request: Request, caller: Caller) -> Response:
        """Raises QueueFullError while too many requests wait, UnknownResourceError; otherwise as
        `ApplicationRequests.store`."""
        from lamplighter.gateway.templates.catalogue import TEMPLATES, profile_text
        from lamplighter.gateway.templates.notes import clock_notes, lacking_settings, permission_notes
        from lamplighter.gateway.templates.values import ValueFaultsError, make

        template: str = request.scope["below"]
        if template not in TEMPLATES:
            hint = did_you_mean(nearest(template, TEMPLATES)) or "; GET /templates lists them"
            raise UnknownResourceError(f"no template has the name {template[:100]!r}{hint}")
        asked = await json_body(request, TemplateValues, BODY_BYTES_MAX)
        settings, name = self._runner.settings, asked.name or template
        async with self._turns.turn(caller):
            directory = await self._names.directory(caller)
            try:
                made = await asyncio.to_thread(make, template, name, asked.values, settings.gateway.base_iri, directory)
            except ValueFaultsError as error:
                return _refusal(error)
            if asked.put and not asked.replace and self._runner.declarations.stored.get(name) is not None:
                return Refusal("conflict", 409, f"{name}: {_CONFLICT}", HEADERS)
            document = profile_text(made.document).encode()
            texts = application_texts(parse_application(name, document))
            warnings = await asyncio.to_thread(directory.warnings, name, texts, made.new)
            tried = None
            if asked.since is not None:
                application = parse_application(name, document)
                tried = msgspec.Raw(await self._runner.past.rehearsal(application, asked.since, caller))
            put = None
            if asked.put:
                put = await self._store(request, caller, made, template, asked.values, document)
                if put.status_code >= 400:
                    return put
        answer = {
            "name": name,
            "template": template,
            "resolved": {
                option: [{"value": value, **thing.members()} for value, thing in things]
                for option, things in made.resolved.items()
            },
            "follows": made.follows,
            "profile": made.document,
            "rules": [{kind: table} for kind, table in made.tables.items()],
            "notes": [
                *lacking_settings(settings, "lamplighter.toml", made),
                *permission_notes(settings, made),
                *clock_notes(self._runner.log.clock, made),
            ],
            "warnings": warnings,
            "put": None if put is None else msgspec.Raw(put.body),
            "tried": tried,
        }
        return JsonAnswer(answer, 200 if put is None else put.status_code, HEADERS)

    async def _store(
        self,
        request: Request,
        caller: Caller,
        made: MadeApplication,
        template: str,
        values: dict[str, Any],
        document: bytes,
    ) -> Response:
        """Has the dataset know the devices that come with it, then the application runs."""
        store = partial(self._applications.store, made.choice.name, document, caller, template=template, values=values)
        everything = replace(caller, access=FULL)
        replaced = self._runner.declarations.stored.get(made.choice.name) is not None
        texts = [made.rules_update] * bool(made.tables or replaced) + [made.coap_update] * bool(made.coap)
        if texts and (checked := await store(check=True)).status_code >= 400:
            return checked  # rules of an application that is refused would stay
        for text in texts:
            await self._runner.updates.update(UpdateCall(text, cause(request, caller), caller=everything))
        return await store()


def _refusal(error: ValueFaultsError) -> Refusal:
    faults = [
        {
            "option": one.option,
            "value": one.value,
            "problem": one.problem,
            "candidates": [candidate.members() for candidate in one.candidates],
        }
        for one in error.faults
    ]
    text = "\n".join(f"{one.option}{one.value and f' {one.value!r}'}: {one.problem}" for one in error.faults)
    return Refusal("bad_values", 400, text, HEADERS, {"faults": faults})
