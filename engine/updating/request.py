"""Request: an update request, read once for trial, permission check, plan and delta."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import RequestError, RequestSyntaxError
from lamplighter.engine.sparql.clock_function import EPOCH, at
from lamplighter.engine.sparql.requests import GraphOperation, QuadData
from lamplighter.engine.sparql.skeletons import TEXT_MAX
from lamplighter.engine.updating.by_store import Modification, Resolved, UsingGraphs, check_access, plain_resolved
from lamplighter.engine.updating.updates import UNKNOWN, Found, Updates
from lamplighter.engine.work import PlanExceededError, TooMuchWork


class Request(msgspec.Struct, eq=False):
    """An update request whose text is read once, when it is first needed.

    ::

        text ─┬─ plan and constants (a frequent shape) ─┬─▶ evaluations: the queries that a trial runs
              │                                         └─▶ delta: the net effect
              └─ operations (everything else) ──────────┬─▶ evaluations, delta
                                                        └─▶ check: permission for the graphs that the text names

    Plan and operations depend neither on the dataset nor on the time. A request may therefore wait, be tried in another
    process, and be prepared again when it was interrupted. It is committed once: the blank nodes of its data are made
    by the parser.

    text, using: as the client sent them. parts: of a text that is made of many, which are read one by one, each with
    the limits of a request. operations: None until the text is parsed; a process that parses large texts sets them.
    tried_first: whether `delta` raises PlanExceededError where the plan needs too much work; otherwise the store
    evaluates the request at once. Each method raises the errors of the text: RequestSyntaxError,
    UnsupportedRequestError, LimitExceededError.

    A Struct, because an instance is made for each update, and a class takes three times as long.
    """

    _updates: Updates
    text: str
    using: UsingGraphs | None = None
    parts: Sequence[str] = ()
    operations: Sequence[Resolved] | None = None
    tried_first: bool = False
    _found: Found | None = None
    _error: RequestError | None = None

    @property
    def large(self) -> bool:
        """Whether parsing the text takes long, 30 us a quad. Such a text has no plan."""
        return len(self.text) > TEXT_MAX

    @property
    def single(self) -> bool:
        """Whether the text is one operation that does not name its dataset."""
        operations = self._parsed()
        return len(operations) == 1 and not (isinstance(operations[0], Modification) and operations[0].chooses)

    @property
    def reads_graphs(self) -> bool:
        """Whether an operation reads whole graphs, such as COPY, and its WHERE, if it has one, says not all of what is
        read."""
        return any(isinstance(operation, GraphOperation) for operation in self._parsed())

    def check(self, access: Access) -> None:
        """Checks the text, and the permissions for the graphs that it names, without evaluating anything.

        Raises AccessDeniedError as well.
        """
        operations = self._parsed()
        access = self._updates.permitted(access)
        if not access.full:
            check_access(operations, access)

    def has_plan(self, access: Access = FULL) -> bool:
        """Whether a plan serves it for the client, which limits its own work."""
        plan, terms, _ = self._found = self._found or self._updates.plans.find(self.text, self.using)
        return plan is not None and plan.serves(access.read, terms)

    def evaluations(self, access: Access = FULL) -> list[str]:
        """The SELECT queries that the store would run for the client; none if a plan serves it.

        Their time is that of 1970, so that equal requests have equal queries. The store does not limit its work, so a
        caller that must not block should test the cost of these queries first.
        """
        if self.has_plan(access):
            return []
        return [at(operation.query, EPOCH) for operation in self._parsed() if isinstance(operation, Modification)]

    def delta(self, access: Access = FULL, now: datetime | None = None) -> QuadDelta:
        """The net effect that the request would have now; for `Engine.prepare`, which takes back what an error leaves.

        access: the client's permissions. now: the value of NOW(), None for the clock's. Raises AccessDeniedError,
        MalformedRequestError and StoreError as well.
        """
        updates = self._updates
        plan, terms, unplanned = self._found = self._found or updates.plans.find(self.text, self.using)
        if updates.derives:
            access = updates.permitted(access)
        if plan is not None and plan.serves(access.read, terms):
            try:
                updates.work.begin(in_turn=True)  # the store then evaluates what needs more
                return plan.delta(terms, updates.store, updates.new_blank_node, access.write, updates.quads_max)
            except TooMuchWork as error:
                self._found = UNKNOWN  # other requests of its shape keep the plan
                if self.tried_first:
                    raise PlanExceededError(f"the update needs {error}") from error
        operations = self.operations
        if operations is None and not self.parts and not self.large:
            operations = plain_resolved(self.text, None if unplanned is None else unplanned.lifted)
        checked = operations is None or operations is self.operations
        operations = operations or self._parsed()
        try:
            delta = updates.by_store(operations, self.using, access, now)
        except RequestSyntaxError:
            if not checked:
                self._parsed()  # has the place of the error
            raise
        self.operations = operations
        if unplanned is not None:
            updates.plans.occurred(unplanned, data=all(isinstance(operation, QuadData) for operation in operations))
        return delta

    @property
    def texts(self) -> Sequence[str]:
        """The texts that are read one by one."""
        return self.parts or (self.text,)

    def _parsed(self) -> Sequence[Resolved]:
        if self._error is not None:
            raise self._error
        if self.operations is None:
            try:
                self.operations = self._updates.operations(self.texts)
            except RequestError as error:
                self._error = error
                raise
        return self.operations
