"""Requests that change the dataset: updates, delayed ones, and writes of whole graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from lamplighter.engine.access import Access
from lamplighter.engine.change_log import Cause, Missed
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, MalformedRequestError, UnknownDelayedError, UnknownGraphError
from lamplighter.engine.protocol import Priority, Results
from lamplighter.engine.terms import Bag, Quad
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.engine.updating.graph_store import GraphWrite
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import LiveSettings, OrderedLane, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.state.request_ids import REQUEST_ID_CHARACTERS_MAX, Accepted
from lamplighter.gateway.workers.dry_runs import DryRun, DryRuns, ParseJob

DELTA_QUADS_MAX = 1_000
"""Quads of a delta in an answer. Writing them takes some milliseconds."""
DELTA_CHARACTERS_MAX = 256 * 1024
"""Characters of their terms together."""
_COLUMNS = ("subject", "predicate", "object", "graph")


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
    lane: OrderedLane | None = None
    caller: Caller = ANYBODY
    tells_delta: bool = False
    priority: Priority = Priority.NORMAL


class QueuedUpdate(msgspec.Struct, frozen=True, eq=False):
    """An update in the queue. request: its text, which is read once."""

    call: UpdateCall
    request: Request
    caller: Caller
    lane: OrderedLane | None
    priority: Priority


class QueuedWrite(msgspec.Struct, frozen=True, eq=False):
    """A graph that is to be replaced, added to or dropped."""

    write: GraphWrite
    cause: Cause
    caller: Caller
    priority: Priority
    lane: OrderedLane | None = None


class Cancellation(msgspec.Struct, frozen=True, eq=False):
    """A delayed update that is to be cancelled."""

    name: str
    cause: Cause
    caller: Caller
    priority: Priority = Priority.NORMAL
    lane: OrderedLane | None = None


@dataclass(slots=True, eq=False, repr=False)
class UpdateRequests:
    """Serves these requests. Each is answered when its record is durable, or changed nothing."""

    _queue: Queue
    _ledger: Ledger
    _reactions: Reactions
    _delays: Delays
    _dry_runs: DryRuns
    _current: LiveSettings

    def update(self, call: UpdateCall) -> asyncio.Future[Accepted]:
        """The outcome is Accepted when the update is durable, or a GatewayError when nothing was changed."""
        request = self._ledger.engine.request(call.sparql, call.using)
        request.tried_first = True
        outcome = self._queue.submit(QueuedUpdate(call, request, call.caller, call.lane, call.priority))
        self._queue.counters.updates += 1
        return outcome

    def check_update(self, queued: QueuedUpdate) -> DryRun | ParseJob | None:
        """What has to pass before it runs: nothing if a plan serves it, before a retry, and behind a refused one of its
        message."""
        call, access = queued.call, queued.call.caller.access
        now = call.delay is None and call.at is None
        if (now and queued.request.has_plan(access)) or (call.batch is not None and call.batch.refused is not None):
            return None
        if call.request_id is not None and self._ledger.knowledge.request_ids.get((call.caller.name, call.request_id)):
            return None
        return self._dry_runs.of_update(queued.request, access, evaluated=now)

    def run_update(self, queued: QueuedUpdate) -> Accepted:
        """Raises GatewayError; nothing has changed then."""
        call, ledger, batch = queued.call, self._ledger, queued.call.batch
        if batch is not None and batch.refused is not None:
            raise batch.refused
        try:
            access, client = self._current.access(call.caller), call.caller.name or None
            if call.request_id is not None:
                if len(call.request_id) > REQUEST_ID_CHARACTERS_MAX:
                    raise MalformedRequestError(f"a request id has {REQUEST_ID_CHARACTERS_MAX} characters at most")
                accepted = ledger.knowledge.request_ids.get((call.caller.name, call.request_id))
                if accepted is not None:
                    return accepted
            self._reactions.new_request()
            if call.delay is not None or call.at is not None:
                if call.using:
                    raise MalformedRequestError("a delayed update names its graphs in its text, by USING or WITH")
                when = (call.delay, call.at, call.missed)
                return self._delays.add(queued.request, *when, call.cause, call.request_id, client, access)
            if call.missed is not None:
                raise MalformedRequestError("missed applies to delayed updates only; add delay or at")
            delta = ledger.evaluations.prepare(queued.request, access)
            # The next number tells that there was something to delete: where that is not to be seen each has one.
            if call.request_id or any(delta) or access.blind:
                sequence = ledger.commit(delta, call.cause, call.request_id, client).sequence
            else:
                sequence = ledger.skip()  # nothing to tell, not even later
            return Accepted(sequence, delta=visible_delta(delta, access) if call.tells_delta else None)
        except GatewayError as error:
            if batch is not None:
                batch.refused = error if error.retriable else None
            raise

    def write_graph(
        self, write: GraphWrite, cause: Cause, caller: Caller = ANYBODY, priority: Priority = Priority.NORMAL
    ) -> asyncio.Future[bool]:
        """Has a whole graph replaced, added to or dropped by one commit. The outcome is whether it is a new one, which
        is not told to those who may not read it."""
        outcome = self._queue.submit(QueuedWrite(write, cause, caller, priority))
        self._queue.counters.updates += 1
        return outcome

    def run_write(self, queued: QueuedWrite) -> bool:
        """Raises GatewayError; nothing has changed then."""
        write, ledger, access = queued.write, self._ledger, self._current.access(queued.caller)
        self._reactions.new_request()
        try:
            delta = ledger.engine.prepare_write(write, access=access)
        except UnknownGraphError:
            if write.graph in access.read:
                raise
            delta = QuadDelta()
        # No number may tell what is in a graph that the client may not read.
        if any(delta) or access.blind:
            ledger.commit(delta, queued.cause, client=queued.caller.name or None)
        return write.graph in delta.created and write.graph in access.read

    def cancel(self, name: str, cause: Cause, caller: Caller = ANYBODY) -> asyncio.Future[None]:
        """Cancels a delayed update of the caller's, of anybody's if it is an operator."""
        return self._queue.submit(Cancellation(name, cause, caller))

    def run_cancellation(self, queued: Cancellation) -> None:
        """Raises UnknownDelayedError, ChangeLogError."""
        name, caller, delayed = queued.name, queued.caller, self._ledger.knowledge.delayed
        if (delayed.pending.get(name) if caller.operator else delayed.of(caller.name, name)) is None:
            raise UnknownDelayedError(f"no delayed update {name!r} is pending; GET /delayed lists them")
        self._reactions.flush_pending()
        self._delays.cancel(name, queued.cause)
        self._delays.rearm()


def visible_delta(delta: QuadDelta, access: Access) -> Results | None:
    """The readable quads that an update added and removed, as results with an unbound graph for the default graph.

    None if there are more than `DELTA_QUADS_MAX`, or if their terms are longer than `DELTA_CHARACTERS_MAX`.
    """
    readable = access.read

    def visible(quads: Sequence[Quad]) -> list[Quad]:
        return list(islice((quad for quad in quads if quad.g in readable), DELTA_QUADS_MAX + 1))

    added, removed = visible(delta.added), visible(delta.removed)
    characters = sum(len(term) for quad in (*added, *removed) for term in quad if term is not None)
    if len(added) + len(removed) > DELTA_QUADS_MAX or characters > DELTA_CHARACTERS_MAX:
        return None
    return Results(Bag(_COLUMNS, added), Bag(_COLUMNS, removed))
