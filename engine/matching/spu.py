"""Re-evaluated SPUs, for queries without a plan (Roffia 2016, III: an SPU holds one query)."""

from collections.abc import Callable, Sequence

from lamplighter.engine.access import Dataset
from lamplighter.engine.delta import BindingDelta, binding_delta
from lamplighter.engine.matching.prices import Spent
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Bag, Binding

RE_EVALUATED = "re-evaluated"


class ReevaluatingSpu:
    """Runs its query again and compares the results: correct for every query, at the cost of the whole query.

    columns: the variables of the rows, in order. at: puts the instant in place of the clock, if the query has one.
    spent: the processor time of its evaluations in commits.
    """

    def __init__(
        self,
        store: QuadStore,
        text: str,
        columns: Sequence[str],
        dataset: Dataset | None,
        told: Sequence[Binding] | None = None,
        at: Callable[[str], str] | None = None,
    ) -> None:
        """Evaluates the query for the first time. Raises StoreError.

        told: the result that subscribers have, if the store's may differ from it because SPARQL allows several. The
        next change then leads from theirs to the store's.
        """
        self.spent = Spent()
        self._store = store
        self._text = text
        self._at = at or (lambda text: text)
        self._columns = tuple(columns)
        self._dataset = dataset or Dataset()
        self._result = self._evaluate()
        if told is not None:
            self._result = Bag(self._columns, told)

    @property
    def rows(self) -> tuple[Binding, ...]:
        """The current result, in the order of the query."""
        return self._result.rows

    def follow(self) -> BindingDelta:
        """The change of the result since the last evaluation. Raises StoreError; the next call then reports it all."""
        after = self._evaluate()
        change = binding_delta(self._result, after)
        self._result = after  # after the comparison, so that a failed call can be repeated
        return change

    def change_to(self, rows: Sequence[Binding]) -> BindingDelta:
        """The change from the last result to the rows of a plan that takes it from here."""
        return binding_delta(self._result, Bag(self._columns, rows))

    def _evaluate(self) -> Bag:
        found = self._store.select(self._at(self._text), *self._dataset.graphs(self._store.has_graph), name=self._text)
        if found.variables == self._columns:
            return found
        order = [found.variables.index(column) for column in self._columns]
        return Bag(self._columns, [tuple(row[index] for index in order) for row in found])
