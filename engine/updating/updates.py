"""Updates: what requests share: the plans of frequent shapes, the dataset, and the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import NamedTuple

from lamplighter.engine.access import Access, asserting
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import RequestError
from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.slices import LONG
from lamplighter.engine.sparql.cursor import constant_spans
from lamplighter.engine.sparql.exists_variables import own_names, with_own_variables
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.requests import canonical
from lamplighter.engine.sparql.skeletons import TEXT_MAX, Lifted, Lifter, Recogniser, recogniser, skeleton_of
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Term
from lamplighter.engine.updating.by_plan import UpdatePlan
from lamplighter.engine.updating.by_store import NO_GRAPHS, Resolved, UsingGraphs, quad_delta, resolved
from lamplighter.engine.work import Work

# Shapes in the cache; the least recently used one is evicted first.
SHAPES_MAX = 512
# Characters of all cached skeletons, each counted once and once more for each plan. A plan takes about forty bytes a
# character.
SHAPES_CHARACTERS_MAX = 512 * 1024
# Shapes whose recognisers are tried before a text is lifted.
RECOGNISED_MAX = 8
# Characters of the longest text that gets a recogniser; `re` caches the last 512 expressions.
RECOGNISED_CHARACTERS_MAX = 4096
# Plans of one shape, which differ in their fixed constants, such as predicates.
PLANS_MAX = 64
# Texts of a shape that are read without a plan: a plan takes 500 us to 2 ms. Data is read in about twice the time that
# a plan takes; a WHERE may need a trial.
WITHOUT_PLAN, DATA_WITHOUT_PLAN = 1, 16
# Texts that a plan has served when it gets a recogniser, which takes 300 us to 2 ms and saves 5 us a text.
SERVED_MIN = 16


class Unplanned(NamedTuple):
    """A text without a plan, which may become a frequent one. key: its fixed constants, hashed; 0 if not known."""

    lifted: Lifted
    key: int


# (plan, constants, what to tell `occurred`).
Found = tuple[UpdatePlan | None, list[Term], Unplanned | None]
# Of a text without a skeleton.
UNKNOWN: Found = (None, [], None)


class _UpdateShape:
    """A skeleton that the store has accepted.

    waiting: texts that are still read without a plan. fixed: numbers of the fixed constants, None before the first
    plan. plans: by the fixed constants; None if only the store can evaluate the request. seen: fixed constants that
    occurred without a plan, hashed.
    """

    __slots__ = ("fixed", "plans", "seen", "waiting")

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.fixed: tuple[int, ...] | None = None
        self.plans: dict[tuple[Term, ...], UpdatePlan | None] = {}
        self.seen: dict[int, None] = {}


def operations_of(texts: Sequence[str]) -> list[Resolved]:
    """The operations of texts, one after the other; each has the limits of a request. Raises RequestSyntaxError,
    UnsupportedRequestError, LimitExceededError."""
    return [operation for text in texts for operation in resolved(with_own_variables(text))]


class UpdatePlans:
    """Caches the plans of update requests by the shapes of their texts."""

    def __init__(self, store: QuadStore, cts: Cts, lifter: Lifter, work: Work) -> None:
        self._store = store
        self._cts = cts
        self._lifter = lifter
        self._work = work
        self._shapes = LruCache[str, _UpdateShape](SHAPES_MAX, SHAPES_CHARACTERS_MAX)
        self._recognised: list[tuple[Recogniser, UpdatePlan]] = []

    def find(self, text: str, using: UsingGraphs | None = None) -> Found:
        """The plan for a text, or what to tell `occurred`, or neither. using: the graphs that the protocol names; only
        the store evaluates such a request."""
        if using or len(text) > TEXT_MAX:
            return UNKNOWN
        for recogniser_, plan in self._recognised:
            try:
                terms = recogniser_.terms(text)
            except (SyntaxError, ValueError, RuntimeError):
                break  # a constant is invalid; the parser has the better message
            if terms is not None:
                return plan, terms, None
        lifted = self._lift(text)
        if lifted is None:
            return UNKNOWN
        shape = self._shapes.get(lifted.skeleton)
        if shape is None or shape.waiting:
            return None, lifted.terms, Unplanned(lifted, 0)
        key = None if shape.fixed is None else tuple([lifted.terms[number] for number in shape.fixed])
        if key is not None and key in shape.plans:
            found = shape.plans[key]
        elif key is None or hash(key) in shape.seen:
            found = self._compile(text, lifted, shape)
        else:
            return None, [], Unplanned(lifted, hash(key))
        if found is not None:
            found.served += 1
            if found.served >= SERVED_MIN:
                self._recognise(text, lifted, found)
        return found, lifted.terms, None

    def occurred(self, text: Unplanned, *, data: bool) -> None:
        """Counts a text that the store has accepted; one of the next with its skeleton is compiled. data: whether it
        has no WHERE."""
        skeleton = text.lifted.skeleton
        shape = self._shapes.get(skeleton)
        if shape is None:
            self._remember(skeleton, _UpdateShape((DATA_WITHOUT_PLAN if data else WITHOUT_PLAN) - 1))
        elif shape.waiting:
            shape.waiting -= 1
        else:
            shape.seen[text.key] = None
            if len(shape.seen) > PLANS_MAX:
                del shape.seen[next(iter(shape.seen))]

    def _lift(self, text: str) -> Lifted | None:
        with suppress(RequestError, SyntaxError, ValueError, RuntimeError):  # the parser has the better message
            return self._lifter.lift(text, self._shapes)
        return None

    def _compile(self, text: str, lifted: Lifted, shape: _UpdateShape) -> UpdatePlan | None:
        if len(self._store) > LONG:  # the plan's predicates are indexed
            self._work.slices.begin(len(self._store))
        found = list(tokens(text))
        start = len(lifted.prologue)
        body = [token for token in found if token.start >= start]
        plan: UpdatePlan | None = None
        fixed: tuple[int, ...] = ()
        if skeleton_of(text, start, body, constant_spans(body)) == lifted.skeleton:
            with suppress(Unsupported):
                names = own_names(body)
                body = [token._replace(text=names.get(index, token.text)) for index, token in enumerate(body)]
                plan = UpdatePlan(body, lifted.terms, lambda raw: canonical("", raw), self._cts, self._work)
                fixed = plan.fixed
        shape.fixed = fixed
        # A shape may use a quarter of the cache only, so that it is never evicted to make room for its own plans.
        plans_max = min(PLANS_MAX, SHAPES_CHARACTERS_MAX // 4 // (1 + len(lifted.skeleton)))
        while len(shape.plans) >= plans_max:
            self._close(next(iter(shape.plans)), shape)
        key = tuple(lifted.terms[number] for number in fixed)
        shape.seen.pop(hash(key), None)
        shape.plans[key] = plan
        self._remember(lifted.skeleton, shape)
        return plan

    def _recognise(self, text: str, lifted: Lifted, plan: UpdatePlan) -> None:
        """Adds the recogniser of a plan, in place of the oldest one."""
        if any(other is plan for _, other in self._recognised):
            # The shape has a recogniser for texts with other equal constants; the two would replace each other.
            return
        if plan.served == SERVED_MIN and len(text) <= RECOGNISED_CHARACTERS_MAX:  # once, since it may have none
            start = len(lifted.prologue)
            body = [token for token in tokens(text) if token.start >= start]
            spans = [(body[first].start, body[end - 1].end) for first, end in constant_spans(body)]
            plan.recogniser = recogniser(text, lifted, self._lifter, spans, set(plan.fixed))
        if plan.recogniser is not None:
            self._recognised.insert(0, (plan.recogniser, plan))
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


class Updates:
    """What update requests share: the plans, the dataset, and the limits. The dataset is unchanged.

    clock: the time for NOW(). quads_max: as in `quad_delta`. derives: whether there may be graphs that follow from
    others, which no request may write. `engine.updating.request.Request` decides which way a request takes.
    """

    def __init__(
        self,
        plans: UpdatePlans,
        store: QuadStore,
        work: Work,
        clock: Callable[[], datetime],
        new_blank_node: Callable[[], Term],
        quads_max: int,
    ) -> None:
        self.plans = plans
        self.store = store
        self.work = work
        self._clock = clock
        self.new_blank_node = new_blank_node
        self.quads_max = quads_max
        self.derives = False

    def permitted(self, access: Access) -> Access:
        """What a client with these permissions may do."""
        return asserting(access) if self.derives else access

    def operations(self, texts: Sequence[str]) -> Sequence[Resolved]:
        """The same, in slices."""
        slices, characters = self.work.slices, sum(map(len, texts))
        if characters > TEXT_MAX:
            slices.begin(characters)
        with slices.beside() if characters > TEXT_MAX else nullcontext():
            return operations_of(texts)

    def by_store(
        self, operations: Sequence[Resolved], using: UsingGraphs | None, access: Access, now: datetime | None
    ) -> QuadDelta:
        """The net effect that operations would have. Raises as `quad_delta`. now: None for that of the clock."""
        return quad_delta(
            operations,
            self.store,
            now=(self._clock() if now is None else now).astimezone(UTC),
            new_blank_node=self.new_blank_node,
            using=using or NO_GRAPHS,
            access=access,
            quads_max=self.quads_max,
            slices=self.work.slices,
        )
