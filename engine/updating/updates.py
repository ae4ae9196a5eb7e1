"""Updates: request text -> quad delta, by a plan for frequent shapes, by the store for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from lamplighter.engine.access import EVERY, FULL, Access, Graphs
from lamplighter.engine.delta import DELTA_QUADS_MAX, QuadDelta
from lamplighter.engine.errors import LimitExceededError, RequestError
from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.sparql.cursor import constant_spans
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.requests import REQUEST_BYTES_MAX, canonical
from lamplighter.engine.sparql.skeletons import TEXT_MAX, Lifted, Lifter, Recogniser, recogniser, skeleton_of
from lamplighter.engine.sparql.text_cache import Remembered
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Term
from lamplighter.engine.updating.by_plan import UpdatePlan
from lamplighter.engine.updating.by_store import (
    Modification,
    Resolved,
    UsingGraphs,
    quad_delta,
    resolved,
)
from lamplighter.engine.work import TooMuchWork, Work

SHAPES_MAX = 512
"""Shapes in the cache; the least recently used one is evicted first."""
SHAPES_CHARACTERS_MAX = 512 * 1024
"""Characters of all cached skeletons, each counted once and once more for each plan. A plan takes about forty bytes a
character."""
RECOGNISED_MAX = 8
"""Shapes whose recognisers are tried before a text is lifted."""
RECOGNISED_CHARACTERS_MAX = 4096
"""Characters of the longest text that gets a recogniser; `re` caches the last 512 expressions."""
PLANS_MAX = 64
"""Plans of one shape, which differ in their fixed constants, such as predicates."""


class _UpdateShape:
    """A skeleton that the store has accepted.

    fixed: numbers of the fixed constants, None before the first plan. plans: by the fixed constants; None if only the
    store can evaluate the request.
    """

    __slots__ = ("fixed", "plans")

    def __init__(self) -> None:
        self.fixed: tuple[int, ...] | None = None
        self.plans: dict[tuple[Term, ...], UpdatePlan | None] = {}


class Updates:
    """Computes deltas of update requests, and caches their plans. The dataset is unchanged."""

    def __init__(
        self,
        store: QuadStore,
        cts: Cts,
        lifter: Lifter,
        work: Work,
        quads_max: int = DELTA_QUADS_MAX,
        slices: Slices = Slices(),  # noqa: B008 - it has no state
    ) -> None:
        self._work = work
        self._slices = slices
        self._store = store
        self._cts = cts
        self._lifter = lifter
        self._quads_max = quads_max
        self._shapes = Remembered[str, _UpdateShape](SHAPES_MAX, SHAPES_CHARACTERS_MAX)
        self._recognised: list[tuple[Recogniser, UpdatePlan]] = []

    def delta(
        self,
        text: str,
        *,
        now: Callable[[], datetime],
        new_blank_node: Callable[[], Term],
        using: UsingGraphs | None,
        access: Access = FULL,
        operations: Sequence[Resolved] | None = None,
    ) -> QuadDelta:
        """The net effect that a request would have now. Raises RequestError, StoreError.

        operations: the operations of the text, if it has been read before; the store then evaluates them.
        """
        read = access.read
        if operations is None and len(text) > TEXT_MAX:  # too long for a skeleton
            self._slices.begin(len(text))
            with self._slices.beside():
                operations = resolved(text, now())
        if operations is not None:
            return self._by_store(text, now(), new_blank_node, using, access, operations)
        if not using:
            recognised = self._recognised_as(text)
            if recognised is not None and (read.every or recognised[0].reads_within(read, recognised[1])):
                plan, terms = recognised
                return self._by_plan(plan, terms, new_blank_node, access)
        lifted = None if using else self._lift(text)
        shape = None
        if lifted is not None:
            shape = self._shapes.get(lifted.skeleton)
            if shape is not None:
                known = self._plan(text, lifted, shape)
                if known is not None and (read.every or known.reads_within(read, lifted.terms)):
                    self._recognise(text, lifted, known)
                    return self._by_plan(known, lifted.terms, new_blank_node, access)
        delta = self._by_store(text, now(), new_blank_node, using, access, None)
        if lifted is not None and shape is None:
            self._remember(lifted.skeleton, _UpdateShape())
        return delta

    def _by_store(
        self,
        text: str,
        now: datetime,
        new_blank_node: Callable[[], Term],
        using: UsingGraphs | None,
        access: Access,
        operations: Sequence[Resolved] | None,
    ) -> QuadDelta:
        return quad_delta(
            text,
            self._store,
            now=now,
            new_blank_node=new_blank_node,
            using=using or UsingGraphs(),
            access=access,
            quads_max=self._quads_max,
            operations=operations,
            slices=self._slices,
        )

    def _recognised_as(self, text: str) -> tuple[UpdatePlan, list[Term]] | None:
        for known, plan in self._recognised:
            try:
                terms = known.terms(text)
            except (SyntaxError, ValueError, RuntimeError):
                return None  # a constant is invalid; the parser has the better message
            if terms is not None:
                return plan, terms
        return None

    def _by_plan(
        self, plan: UpdatePlan, terms: list[Term], new_blank_node: Callable[[], Term], access: Access
    ) -> QuadDelta:
        self._work.begin()
        try:
            return plan.delta(terms, self._store, new_blank_node, access.write, self._quads_max, self._slices)
        except TooMuchWork as error:
            raise LimitExceededError(f"the update needs {error}") from error

    def evaluations(self, text: str, read: Graphs = EVERY) -> list[str]:
        """The SELECT queries that the store would run for an update now; none if a plan serves it.

        read: the graphs that the client may read. A plan that reads others does not serve the client.
        """
        recognised = self._recognised_as(text)
        if recognised is not None and recognised[0].reads_within(read, recognised[1]):
            return []
        lifted = self._lift(text)
        shape = None if lifted is None else self._shapes.get(lifted.skeleton)
        if lifted is not None and shape is not None:
            plan = self._plan(text, lifted, shape)
            if plan is not None and plan.reads_within(read, lifted.terms):
                return []
        operations = resolved(text, datetime(1970, 1, 1))
        return [operation.query for operation in operations if isinstance(operation, Modification)]

    def _lift(self, text: str) -> Lifted | None:
        if len(text) <= REQUEST_BYTES_MAX:
            with suppress(RequestError, SyntaxError, ValueError, RuntimeError):  # the parser has the better message
                return self._lifter.lift(text)
        return None

    def _plan(self, text: str, lifted: Lifted, shape: _UpdateShape) -> UpdatePlan | None:
        if shape.fixed is not None:
            terms = lifted.terms
            key = tuple([terms[number] for number in shape.fixed])
            if key in shape.plans:
                return shape.plans[key]
        return self._compile(text, lifted, shape)

    def _compile(self, text: str, lifted: Lifted, shape: _UpdateShape) -> UpdatePlan | None:
        if len(self._store) > LONG:  # the plan's predicates are indexed
            self._slices.begin(len(self._store))
        found = list(tokens(text))
        start = len(lifted.prologue)
        body = [token for token in found if token.start >= start]
        plan: UpdatePlan | None = None
        fixed: tuple[int, ...] = ()
        if skeleton_of(text, start, body, constant_spans(body)) == lifted.skeleton:
            with suppress(Unsupported):
                plan = UpdatePlan(body, lifted.terms, lambda raw: canonical("", raw), self._cts, self._work)
                fixed = plan.fixed
        shape.fixed = fixed
        # A shape may use a quarter of the cache only, so that it is never evicted to make room for its own plans.
        plans_max = min(PLANS_MAX, SHAPES_CHARACTERS_MAX // 4 // (1 + len(lifted.skeleton)))
        while len(shape.plans) >= plans_max:
            self._close(next(iter(shape.plans)), shape)
        shape.plans[tuple(lifted.terms[number] for number in fixed)] = plan
        self._remember(lifted.skeleton, shape)
        return plan

    def _recognise(self, text: str, lifted: Lifted, plan: UpdatePlan) -> None:
        """Adds a recogniser for the shape of a text, in place of the oldest one."""
        if any(known is plan for _, known in self._recognised):
            # The shape has a recogniser for texts with other equal constants; the two would replace each other.
            return
        if len(text) > RECOGNISED_CHARACTERS_MAX:
            return
        start = len(lifted.prologue)
        body = [token for token in tokens(text) if token.start >= start]
        spans = [(body[first].start, body[end - 1].end) for first, end in constant_spans(body)]
        found = recogniser(text, lifted, self._lifter, spans, set(plan.fixed))
        if found is not None:
            self._recognised.insert(0, (found, plan))
            del self._recognised[RECOGNISED_MAX:]

    def _remember(self, skeleton: str, shape: _UpdateShape) -> None:
        for _, forgotten in self._shapes.put(skeleton, shape, len(skeleton) * (1 + len(shape.plans))):
            for key in list(forgotten.plans):
                self._close(key, forgotten)

    def _close(self, key: tuple[Term, ...], shape: _UpdateShape) -> None:
        plan = shape.plans.pop(key)
        if plan is not None:
            plan.close()
            self._recognised = [known for known in self._recognised if known[1] is not plan]
