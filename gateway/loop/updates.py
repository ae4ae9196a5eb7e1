"""Requests that change the dataset: updates, delayed ones, and writes of whole graphs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import msgspec

from lamplighter.engine.change_log import Cause, Missed
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, MalformedRequestError, UnknownDelayedError, UnknownGraphError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.engine.updating.graph_store import GraphWrite
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.loop.commits import Commits
from lamplighter.gateway.loop.current import current_access
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.evaluations import Evaluations
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import Lane, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.loop.visible_delta import visible_delta
from lamplighter.gateway.monitoring.figures import Counters
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.state.request_ids import REQUEST_ID_CHARACTERS_MAX, Accepted, RequestKey
from lamplighter.gateway.workers.large_updates import LargeUpdateParser, ParseJob
from lamplighter.gateway.workers.trials import Trial, Trials


@dataclass
class Batch:
    """Updates that came in one message, in order. refused: why one of them was refused for the moment.

    Those behind it are refused as well: they will be sent again together, and a later one must not overtake.
    """

    refused: GatewayError | None = None


class UpdateCall(msgspec.Struct, frozen=True, eq=False):
    """An update request as a gate hands it over.

    batch: shared by those that came in one message. caller: whose permissions count, and whose its request id is.
    tells_delta: whether the answer has the delta. priority: its class.

    A Struct, because an instance is made for each update, and a frozen dataclass takes four times as long.
    """

    sparql: str
    cause: Cause
    using: UsingGraphs | None = None
    request_id: str | None = None
    delay: str | None = None
    at: str | None = None
    missed: Missed | None = None
    batch: Batch | None = None
    lane: Lane | None = None
    caller: Caller = ANYBODY
    tells_delta: bool = False
    priority: Priority = Priority.NORMAL

    @property
    def request_key(self) -> RequestKey | None:
        return None if self.request_id is None else (self.caller.name, self.request_id)


@dataclass(slots=True, eq=False, repr=False)
class UpdateRequests:
    """The steps of these requests. Each is answered when its record is durable, or changed nothing."""

    _engine: Engine
    _ledger: Ledger
    _commits: Commits
    _evaluations: Evaluations
    _reactions: Reactions
    _delays: Delays
    _trials: Trials
    _large_updates: LargeUpdateParser
    _queue: Queue
    _timings: Timings
    _counters: Counters

    def update(self, call: UpdateCall) -> asyncio.Future[Accepted]:
        """The outcome is Accepted when the update is durable, or a GatewayError when nothing was changed."""
        request = self._engine.request(call.sparql, call.using)
        request.tried_first = True
        outcome = self._queue.submit(
            partial(self._accepted if call.batch is None else self._in_batch, call, request),
            call.lane,
            partial(self._trial, call, request),
            perf_counter(),
            priority=call.priority,
            client=call.caller.client,
        )
        self._counters.updates += 1
        return outcome

    def _trial(self, call: UpdateCall, request: Request) -> Trial | ParseJob | None:
        """What has to pass before it runs; nothing before a retry."""
        if call.request_id is not None and self._ledger.knowledge.request_ids.get(call.request_key):
            return None
        if request.large:
            return ParseJob(self._large_updates, request, partial(self._evaluation, call, request))
        return self._evaluation(call, request)

    def _evaluation(self, call: UpdateCall, request: Request) -> Trial | None:
        """A delayed update has its trial when it is due."""
        if call.delay is not None or call.at is not None:
            return None
        return self._trials.of_update(request, call.caller.access)

    def _in_batch(self, call: UpdateCall, request: Request) -> Accepted:
        batch = call.batch
        assert batch is not None
        if batch.refused is not None:
            raise batch.refused
        try:
            return self._accepted(call, request)
        except GatewayError as error:
            batch.refused = error if error.retriable else None
            raise

    def _accepted(self, call: UpdateCall, request: Request) -> Accepted:
        client, access = call.caller.name or None, current_access(call.caller, self._commits.access)
        if call.request_id is not None:
            if len(call.request_id) > REQUEST_ID_CHARACTERS_MAX:
                raise MalformedRequestError(f"a request id has {REQUEST_ID_CHARACTERS_MAX} characters at most")
            accepted = self._ledger.knowledge.request_ids.get(call.request_key)
            if accepted is not None:
                return accepted
        self._reactions.new_request()
        delayed = call.delay is not None or call.at is not None
        if call.missed is not None and not delayed:
            raise MalformedRequestError("missed applies to delayed updates only; add delay or at")
        if delayed:
            if call.using:
                raise MalformedRequestError("a delayed update names its graphs in its text, by USING or WITH")
            when = (call.delay, call.at, call.missed)
            return self._delays.add(request, *when, call.cause, call.request_id, client, access)
        delta = self._evaluations.prepare(request, access)
        # The next number tells that there was something to delete: where that is not to be seen each has one.
        if not (delta.changes or delta.kept or call.request_id or access.blind):
            self._timings.store_update.took(self._evaluations.evaluated_s)
            sequence = self._ledger.log.sequence  # nothing to tell, not even later
        else:
            sequence = self._commits.commit(delta, call.cause, call.request_id, client).sequence
        return Accepted(sequence, delta=visible_delta(delta, access) if call.tells_delta else None)

    def write_graph(
        self, write: GraphWrite, cause: Cause, caller: Caller = ANYBODY, priority: Priority = Priority.NORMAL
    ) -> asyncio.Future[bool]:
        """Has a whole graph replaced, added to or dropped by one commit. The outcome is whether it is a new one, which
        is not told to those who may not read it."""

        def run() -> bool:
            access = current_access(caller, self._commits.access)
            self._reactions.new_request()
            try:
                delta = self._engine.prepare_write(write, access=access)
            except UnknownGraphError:
                if write.graph in access.read:
                    raise
                delta = QuadDelta()
            # No number may tell what is in a graph that the client may not read.
            if delta.changes or delta.kept or access.blind:
                self._commits.commit(delta, cause, client=caller.name or None)
            return write.graph in delta.created and write.graph in access.read

        outcome = self._queue.submit(run, priority=priority, client=caller.client)
        self._counters.updates += 1
        return outcome

    def cancel(self, name: str, cause: Cause, caller: Caller = ANYBODY) -> asyncio.Future[None]:
        """Cancels a delayed update of the caller's, of anybody's if it is an operator."""

        def cancel() -> None:
            delayed = self._ledger.knowledge.delayed
            if (delayed.get(name) if caller.operator else delayed.of(caller.name, name)) is None:
                raise UnknownDelayedError(f"no delayed update {name!r} is pending; GET /delayed lists them")
            self._reactions.flush_pending()
            self._delays.cancel(name, cause)
            self._delays.changed()

        return self._queue.submit(cancel, client=caller.client)
