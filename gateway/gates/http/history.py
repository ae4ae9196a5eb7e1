"""The history of readings and actuators, and the logbook."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import ConfigurationError, MalformedRequestError
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.clock import iso, moment_of_us, since_1970_us
from lamplighter.gateway.gates.http.answers import JSON, JsonAnswer
from lamplighter.gateway.gates.http.calls import RequestTurns
from lamplighter.gateway.gates.http.kept import KeptResult
from lamplighter.gateway.gates.http.negotiation import negotiate
from lamplighter.gateway.gates.http.parameters import Parameters, UrlParameters, parameters
from lamplighter.gateway.history.charts import POINTS_DEFAULT, POINTS_MAX, ChartRange
from lamplighter.gateway.history.explanation import full_iri
from lamplighter.gateway.history.logbook import ENTRIES_DEFAULT, ENTRIES_MAX, KIND_NAMES, LogbookRange
from lamplighter.gateway.history.subjects import QUERY, STATES, Subject, Subjects, unit_text, without_description
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.page.rows import csv_text
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.delayed import at_moment, delay_us

HISTORY = Parameters(("iri", "name", "since", "until", "points"))
LOGBOOK = Parameters(
    ("since", "until", "device", "room", "application", "person", "before", "last"), repeated=("kind",)
)
AT_ONCE_MAX, WAITING_MAX = 2, 64  # requests that look into it
SINCE_DEFAULT = "24h"
_Found = TypeVar("_Found")
_CSV = "text/csv"
_EVER = "9999"
_BACK = re.compile(r"([0-9]{1,6})(s|min|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


class HistoryRequests:
    """The handlers."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)
        self._kept = KeptResult[Subjects](runner)

    async def history(self, request: Request, caller: Caller) -> Response:
        """The values of one reading or actuator. Who may read its graph may see them."""
        asked = parameters(request)
        media_type = negotiate(request, (JSON, _CSV)).format
        iri, name = asked.text("iri"), asked.text("name")
        if (iri is None) == (name is None):
            raise MalformedRequestError("send either iri, that of a reading or actuator, or name, what it is called")
        since_us, until_us = time_range(asked, self._runner, SINCE_DEFAULT)
        points = asked.number("points", POINTS_MAX, 2) or POINTS_DEFAULT
        subject = await self._subject(iri, name, caller)
        readable = self._runner.access(caller).read
        newest = self._runner.log.tail.acknowledged
        now_us = since_1970_us(self._runner.log.clock.wall())
        wanted = ChartRange(subject.term, since_us, until_us, points, readable, newest, now_us, subject.sources)
        chart = msgspec.json.decode(await self._runner.past.chart(wanted, caller))
        headers = {"Cache-Control": "no-store", "Vary": "Accept"}
        if media_type == _CSV:
            return Response(await asyncio.to_thread(_csv, chart), media_type=_CSV, headers=headers)
        span = {"since": iso(moment_of_us(since_us)), "until": iso(moment_of_us(until_us))}
        return JsonAnswer({**_about(subject), **span, **chart}, headers=headers)

    async def logbook(self, request: Request, caller: Caller) -> Response:
        """What happened, newest first; for operators, as the log."""
        asked = parameters(request)
        kinds = frozenset(asked.values("kind") or ())
        if unknown := kinds - set(KIND_NAMES):
            raise MalformedRequestError(f"kind: {min(unknown)[:100]!r} is none of {', '.join(KIND_NAMES)}")
        before = asked.record("before")
        if isinstance(before, str):
            raise MalformedRequestError("before: write a record with its epoch, such as 1/17: the next of a page")
        since_us, until_us = time_range(asked, self._runner, "1970-01-01T00:00:00Z")
        last = asked.number("last", ENTRIES_MAX) or ENTRIES_DEFAULT
        device, room = asked.text("device"), asked.text("room")

        def terms_and_labels(subjects: Subjects) -> tuple[set[Term] | None, dict[Term, str]]:
            asked_for = ((device, subjects.about), (room, subjects.in_room))
            some = [find(text) for text, find in asked_for if text is not None]
            return set.intersection(*some) if some else None, subjects.labels_of_all

        about, labels = await self._look_up(terms_and_labels, caller)
        wanted = LogbookRange(
            newest=self._runner.log.tail.acknowledged,
            since=iso(moment_of_us(since_us)),
            # Where the clock was set back, some records are of later than now.
            until=_EVER if asked.text("until") is None else iso(moment_of_us(until_us)),
            last=last,
            before=before,
            about=None if about is None else frozenset(about),
            kinds=kinds,
            application=asked.text("application") or "",
            client=asked.text("person") or "",
        )
        found = await self._runner.past.logbook(wanted, labels, caller)
        return Response(found, media_type=JSON, headers={"Cache-Control": "no-store"})

    async def _subject(self, iri: str | None, name: str | None, caller: Caller) -> Subject:
        if name is not None:
            return await self._look_up(lambda subjects: subjects.by_name(name), caller)
        assert iri is not None
        try:
            whole = full_iri(iri, self._runner.settings.gateway.base_iri)
        except ConfigurationError as error:
            raise MalformedRequestError(f"iri: {error}") from error
        return await self._look_up(lambda subjects: subjects.by_iri(iri), caller) or without_description(whole)

    async def _look_up(self, find: Callable[[Subjects], _Found], caller: Caller) -> _Found:
        """What is found among the readings and actuators that the caller may know of. Raises QueueFullError while too
        many wait."""
        base = self._runner.settings.gateway.base_iri
        async with self._turns.turn(caller):
            subjects = await self._kept.get(
                caller, (QUERY,), lambda found: Subjects(found[0], base), beside=base, valueless=STATES
            )
            # Of a large site, it takes too long for the loop.
            return await asyncio.to_thread(find, subjects)

    async def labels(self, caller: Caller) -> dict[Term, str]:
        """What people call readings, actuators and devices. Raises QueueFullError while too many wait."""
        return await self._look_up(lambda subjects: subjects.labels_of_all, caller)


def time_range(asked: UrlParameters, runner: Runner, default: str) -> tuple[int, int]:
    """The times of `since` and `until`. default: of since. Raises MalformedRequestError."""
    now_us = since_1970_us(runner.log.clock.wall())
    until, since = asked.text("until"), asked.text("since") or default
    until_us = now_us if until is None else _moment_us("until", until)
    back = _BACK.fullmatch(since)
    if back is not None:
        since_us = until_us - int(back[1]) * _SECONDS[back[2]] * 1_000_000
    elif since.startswith("P"):
        try:
            since_us = until_us - delay_us(since)
        except MalformedRequestError as error:
            raise MalformedRequestError(f"since: {str(error).removeprefix('delay: ')}") from error
    else:
        since_us = _moment_us("since", since)
    if since_us >= until_us:
        raise MalformedRequestError("since has to be before until")
    if since_us < 0:
        raise MalformedRequestError("since is before 1970")
    return since_us, until_us


def _moment_us(name: str, text: str) -> int:
    try:
        return since_1970_us(at_moment(text))
    except MalformedRequestError as error:
        reason = str(error).removeprefix("at: ")
        raise MalformedRequestError(f"{name}: {reason}; since also takes a span such as 24h, 7d or PT90M") from error


def _about(subject: Subject) -> dict[str, Any]:
    return {
        "iri": lexical(subject.iri),
        "label": subject.label,
        "name": subject.name or None,
        "area": subject.area or None,
        "property": None if subject.observed is None else lexical(subject.observed),
        "unit": unit_text(subject.unit),
        "sensor": None if subject.sensor is None else lexical(subject.sensor),
        "feature": None if subject.feature is None else lexical(subject.feature),
    }


def _csv(chart: dict[str, Any]) -> str:
    columns: tuple[str, ...] = ("time", "mean", "min", "max", "count")
    found: list[Any] = chart["points"]
    if chart["kind"] != "number":
        columns = ("from", "to", "state", "changes")
        found = [(one["from"], one["to"], one["value"], one.get("changes", 1)) for one in chart["states"]]
    return csv_text([dict(zip(columns, row, strict=True)) for row in found], columns)
