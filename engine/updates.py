"""Updates: request text -> quad delta, by a plan for shapes that come again, by the store for all others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from engine.cts import Cts
from engine.delta import QuadDelta
from engine.errors import RequestError
from engine.grammar import constant_spans
from engine.lexer import tokens
from engine.lifting import Lifted, Lifter, skeleton_of
from engine.sparql import REQUEST_BYTES_MAX, canonical
from engine.store import QuadStore
from engine.terms import Term
from engine.trees import Unsupported
from engine.update import UsingGraphs, quad_delta
from engine.update_plan import UpdatePlan

SHAPES_MAX = 512
"""Shapes of updates that are remembered, the last used ones."""
PLANS_MAX = 64
"""Plans for one shape, which differ in predicates."""


class _Shape:
    """A skeleton that the store has accepted. plans: by the constants that they were made with, None for no plan."""

    __slots__ = ("fixed", "plans")

    def __init__(self) -> None:
        self.fixed: tuple[int, ...] | None = None
        self.plans: dict[tuple[Term, ...], UpdatePlan | None] = {}


class Updates:
    """Computes deltas; the dataset is left as it was."""

    def __init__(self, store: QuadStore, cts: Cts, lifter: Lifter) -> None:
        self._store = store
        self._cts = cts
        self._lifter = lifter
        self._shapes: dict[str, _Shape] = {}

    def delta(
        self, text: str, *, now: datetime, new_blank_node: Callable[[], Term], using: UsingGraphs | None
    ) -> QuadDelta:
        """The net effect that a request would have now. Raises RequestError, StoreError."""
        lifted = None if using else self._lift(text)
        shape = None
        if lifted is not None:
            shape = self._shapes.get(lifted.skeleton)
            if shape is not None:
                plan = self._plan(text, lifted, shape)
                if plan is not None:
                    return plan.delta(lifted.terms, self._store, new_blank_node)
        delta = quad_delta(
            text,
            self._store,
            now=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            new_blank_node=new_blank_node,
            using=using or UsingGraphs(),
        )
        if lifted is not None and shape is None:
            while len(self._shapes) >= SHAPES_MAX:
                self._forget(next(iter(self._shapes)))
            self._shapes[lifted.skeleton] = _Shape()
        return delta

    def _lift(self, text: str) -> Lifted | None:
        if len(text) <= REQUEST_BYTES_MAX:
            with suppress(RequestError, SyntaxError, ValueError, RuntimeError):  # the parser says better what is wrong
                return self._lifter.lift(text)
        return None

    def _plan(self, text: str, lifted: Lifted, shape: _Shape) -> UpdatePlan | None:
        if len(self._shapes) > SHAPES_MAX // 2:  # the last used ones stay
            del self._shapes[lifted.skeleton]
            self._shapes[lifted.skeleton] = shape
        if shape.fixed is not None:
            terms = lifted.terms
            key = tuple([terms[number] for number in shape.fixed])
            if key in shape.plans:
                return shape.plans[key]
        return self._compile(text, lifted, shape)

    def _compile(self, text: str, lifted: Lifted, shape: _Shape) -> UpdatePlan | None:
        found = list(tokens(text))
        start = len(lifted.prologue)
        body = [token for token in found if token.start >= start]
        plan: UpdatePlan | None = None
        fixed: tuple[int, ...] = ()
        if skeleton_of(text, start, body, constant_spans(body)) == lifted.skeleton:
            with suppress(Unsupported):
                plan = UpdatePlan(body, lifted.terms, lambda raw: canonical("", raw), self._cts)
                fixed = plan.fixed
        shape.fixed = fixed
        if len(shape.plans) >= PLANS_MAX:
            self._close(next(iter(shape.plans)), shape)
        shape.plans[tuple(lifted.terms[number] for number in fixed)] = plan
        return plan

    def _forget(self, skeleton: str) -> None:
        shape = self._shapes.pop(skeleton)
        for key in list(shape.plans):
            self._close(key, shape)

    @staticmethod
    def _close(key: tuple[Term, ...], shape: _Shape) -> None:
        plan = shape.plans.pop(key)
        if plan is not None:
            plan.close()
