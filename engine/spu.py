"""SPU: the SPARQL processing unit of a subscription (Roffia 2016, III): state + quad delta -> binding delta."""

from collections.abc import Sequence
from typing import Protocol

from engine.delta import BindingDelta, QuadDelta, binding_delta
from engine.store import QuadStore
from engine.terms import Bag, Term


class Spu(Protocol):
    """One subscribed query with what it remembers.

    spu_class: how the result is kept up to date, told to the subscriber.
    """

    spu_class: str

    @property
    def result(self) -> Bag:
        """The current result, in the order in which the query gave it."""
        ...

    def follow(self, delta: QuadDelta) -> BindingDelta:
        """What the delta, already applied to the store, changes in the result. Called for touched SPUs only."""
        ...


class ReevaluatingSpu:
    """Runs its query again and compares: right for every query, at the price of the whole query."""

    spu_class = "re-evaluated"

    def __init__(
        self,
        store: QuadStore,
        text: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
    ) -> None:
        """Evaluates the query for the first time. Raises StoreError when that fails."""
        self._store = store
        self._text = text
        self._default_graphs = default_graphs
        self._named_graphs = named_graphs
        self.result = self._evaluated()

    def follow(self, delta: QuadDelta) -> BindingDelta:
        before, self.result = self.result, self._evaluated()
        return binding_delta(before, self.result)

    def _evaluated(self) -> Bag:
        return self._store.select(self._text, self._default_graphs, self._named_graphs)
