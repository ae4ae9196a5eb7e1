"""Re-evaluated SPUs, for queries without a plan (Roffia 2016, III: an SPU holds one query)."""

from collections.abc import Sequence

from lamplighter.engine.access import Dataset
from lamplighter.engine.delta import BindingDelta, binding_delta
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Bag, Binding

RE_EVALUATED = "re-evaluated"


class ReevaluatingSpu:
    """Runs its query again and compares the results: correct for every query, at the cost of the whole query.

    columns: the variables of the rows, in order.
    """

    def __init__(
        self,
        store: QuadStore,
        text: str,
        columns: Sequence[str],
        dataset: Dataset | None,
    ) -> None:
        """Evaluates the query for the first time. Raises StoreError."""
        self._store = store
        self._text = text
        self._columns = tuple(columns)
        self._dataset = dataset or Dataset()
        self._result = self._evaluated()

    @property
    def rows(self) -> tuple[Binding, ...]:
        """The current result, in the order of the query."""
        return self._result.rows

    def follow(self) -> BindingDelta:
        """The change of the result since the last evaluation. Raises StoreError; the next call then reports it all."""
        after = self._evaluated()
        change = binding_delta(self._result, after)
        self._result = after  # after the comparison, so that a failed call can be repeated
        return change

    def _evaluated(self) -> Bag:
        found = self._store.select(self._text, *self._dataset.graphs(self._store.has_graph))
        if found.variables == self._columns:
            return found
        order = [found.variables.index(column) for column in self._columns]
        return Bag(self._columns, [tuple(row[index] for index in order) for row in found])
