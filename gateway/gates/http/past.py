"""The past: records of the change log, and why actuators were switched."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.engine.terms import Term
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.gates.http.history import HistoryRequests
from lamplighter.gateway.gates.http.names import NameRequests
from lamplighter.gateway.gates.http.parameters import Parameters, parameters
from lamplighter.gateway.gates.http.waiting import WaitingRequests, next_record
from lamplighter.gateway.history.log_page import QUADS_DEFAULT, QUADS_MAX, RECORDS_MAX, LogRange
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.state.delayed import at_moment

LOG = Parameters(("after", "from", "to", "last", "quads", "wait"))
EXPLAIN = Parameters(("actuation", "at", "last"))
LAST_DEFAULT = 100
WAIT_S_MAX = 30.0
OUTCOMES_MAX = 100


class PastRequests:
    """The handlers; all need an operator."""

    def __init__(self, runner: Runner, names: NameRequests, history: HistoryRequests) -> None:
        self._runner = runner
        self._names = names
        self._history = history
        self._waiting = WaitingRequests()

    async def log(self, request: Request, caller: Caller) -> Response:
        """A page of the change log. With `wait`, the answer comes when there is a record behind `after`."""
        asked = parameters(request)
        after, begin, to = (self._place(asked.record(name)) for name in ("after", "from", "to"))
        last, wait = asked.number("last", RECORDS_MAX), asked.seconds("wait", WAIT_S_MAX)
        ranged = any(one is not None for one in (begin, to, last))
        if after is not None and ranged:
            raise MalformedRequestError("after comes without from, to and last")
        if wait is not None and after is None:
            raise MalformedRequestError("wait needs after: the record behind which you want the next ones")
        if after is None and not ranged:
            last = LAST_DEFAULT
        quads = asked.number("quads", QUADS_MAX) or QUADS_DEFAULT
        if wait and isinstance(after, tuple):
            with self._waiting.one_more(caller):
                await next_record(request, self._runner.log.tail, after, wait)
        found = await self._runner.past.records(LogRange(after, begin, to, last, quads), caller)
        return Response(found, media_type=JSON, headers={"Cache-Control": "no-store"})

    async def explain(self, request: Request, caller: Caller, *, newest: bool = False) -> Response:
        """Why an actuator was switched, or the newest outcomes of all. newest: for requests without parameters."""
        asked = parameters(request)
        actuation, at, last = asked.text("actuation"), asked.text("at"), asked.number("last", OUTCOMES_MAX)
        if newest and actuation is None and last is None:
            last = OUTCOMES_MAX
        if (actuation is None) == (last is None):
            raise MalformedRequestError("send actuation, the IRI of an actuation or actuator, or last, a number")
        if actuation is None:
            if at is not None:
                raise MalformedRequestError("at comes with actuation")
            assert last is not None
            found = await self._runner.past.outcomes(last, caller)
        else:
            until = None if at is None else at_moment(at)
            iri, unknown = await self._actuator(actuation, caller)
            labels: dict[Term, str] = {}
            with suppress(LimitExceededError):  # of a very large site: then its texts have IRIs
                labels = await self._history.labels(caller)
            found = await self._runner.past.explanation(iri or actuation, until, labels, caller, unknown)
        return Response(found, media_type=JSON, headers={"Cache-Control": "no-store"})

    async def _actuator(self, name: str, caller: Caller) -> tuple[str | None, str]:
        """As `NameDirectory.find_actuator`. An IRI needs no look at the dataset."""
        if name.startswith(("<", ":", "http:", "https:", "urn:")):
            return None, ""
        return (await self._names.directory(caller)).find_actuator(name)

    def _place(self, named: Place | str | None) -> Place | str | None:
        """A sequence without an epoch is of the newest epoch that has it, of which the newest one needs no search."""
        if not isinstance(named, str):
            return named
        epoch, newest = self._runner.log.tail.acknowledged
        return (epoch, int(named)) if epoch == 1 or int(named) <= newest else named
