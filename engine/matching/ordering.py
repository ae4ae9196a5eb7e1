"""ORDER BY with LIMIT: the first rows of a unit, kept in order.

The plan of such a query follows its rows as without ORDER BY, with the values of the sort keys in further columns. Each
unit keeps the rows up to some way behind its window; what enters and leaves the window is the change of its result.
When so many rows were removed that the kept ones do not reach the end of the window, the plan evaluates them again.

Rows that SPARQL leaves in any order are ordered by their terms, column by column: the first unlike terms decide, as
texts in N-Triples syntax, unbound first. So the window follows from the dataset alone, for every subscriber and after
a restart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import total_ordering
from heapq import nsmallest
from typing import Any

from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.values import order_key
from lamplighter.engine.sparql.algebra import Distinct, Extend, Node, OrderKey, Part, Project, Slice, Variable, visible
from lamplighter.engine.terms import Binding, lexical
from lamplighter.engine.work import VALUE, Meter

ORDERED = "ordered"
# LIMIT and OFFSET together. A unit keeps twice as many rows and `SPARE` more; with more, the store evaluates it.
ROWS_MAX = 10_000
SPARE = 256

# The sort keys of a row, then the row with the text "" for an unbound variable.
Entry = tuple[Any, ...]


@dataclass(frozen=True)
class Window:
    """What a shape's units show of their rows. It makes entries of rows.

    keys: (column, descending) of each sort key in a row of the plan; columns: how many columns of the row are shown;
    start, end: the window.
    """

    keys: tuple[tuple[int, bool], ...]
    columns: int
    start: int
    end: int

    def entry(self, row: Binding) -> Entry:
        """The row's place in the order."""
        keys = [
            _Descending(order_key(row[column])) if descending else order_key(row[column])
            for column, descending in self.keys
        ]
        # The row itself is the last key, so that the order is total and the same after a restart.
        return (*keys, tuple([term or "" for term in row[: self.columns]]))


@total_ordering
class _Descending:
    """A sort key that stands in reverse order."""

    __slots__ = ("_key",)

    def __init__(self, key: tuple[Any, ...]) -> None:
        self._key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self._key == other._key

    def __lt__(self, other: _Descending) -> bool:
        return other._key < self._key

    def __hash__(self) -> int:
        return hash(self._key)


def without_window(node: Node, columns: Sequence[Variable]) -> tuple[Node, tuple[Variable, ...], Window | None]:
    """The node without its outermost LIMIT and OFFSET, the columns of its rows, and the window that was taken off.

    The first columns are the given ones; sort keys follow. Raises Unsupported.
    """
    if not isinstance(node, Slice):
        return node, tuple(columns), None
    if node.reduced:
        raise Unsupported("REDUCED")
    if not node.order:
        raise Unsupported("LIMIT or OFFSET without ORDER BY")
    start, size = _integer(node.offset), _integer(node.limit)
    if node.limit is None:
        raise Unsupported("OFFSET without LIMIT")
    if start + size > ROWS_MAX:
        raise Unsupported(f"LIMIT and OFFSET beyond row {ROWS_MAX}")
    # DISTINCT is between the window and the projection: duplicates go before rows are counted.
    project = node.node.node if isinstance(node.node, Distinct) else node.node
    assert isinstance(project, Project)
    inner, names, keys = project.node, list(columns), []
    for number, key in enumerate(node.order):
        if isinstance(node.node, Distinct) and not _follows(key, project):
            raise Unsupported("DISTINCT, ordered by more than the columns of the result")
        inner, name = _key_column(inner, key, number)
        if name is not None:
            if name not in names:
                names.append(name)
            keys.append((names.index(name), key.descending))
    rows: Node = Project(inner, (*project.variables, *names[len(columns) :]))
    if isinstance(node.node, Distinct):
        rows = Distinct(rows)
    return rows, tuple(names), Window(tuple(keys), len(columns), start, start + size)


def _integer(part: Part | None) -> int:
    return int(lexical(part)) if isinstance(part, str) else 0


def _follows(key: OrderKey, project: Project) -> bool:
    """Whether the value of a sort key follows from the projected variables."""
    return not key.expression.exists and set(key.expression.variables) <= set(project.variables)


def _key_column(node: Node, key: OrderKey, number: int) -> tuple[Node, Variable | None]:
    """The node with the value of a sort key, and its variable; None if that is always unbound."""
    match key.expression.parts:
        case (Variable() as variable,):
            return node, variable if variable in visible(node) else None
    variable = Variable(f"sort key {number}")
    return Extend(node, variable, key.expression), variable


class OrderedRows:
    """The rows of one unit that are in its window or near it.

    A change is computed aside (`change`) and takes effect with `settle`; `forget` drops it.
    """

    __slots__ = ("_complete", "_entries", "_evaluated", "_meter", "_next", "_window")

    def __init__(self, window: Window, evaluated: Callable[[], Sequence[Binding]], meter: Meter) -> None:
        """evaluated: all rows of the plan at this moment; it is called when they are needed, and may raise."""
        self._window = window
        self._evaluated = evaluated
        self._meter = meter
        self._entries: list[Entry] | None = None
        self._complete = False  # whether there are no other rows than those of the entries
        self._next: tuple[list[Entry], bool] | None = None

    @property
    def window_rows(self) -> list[Binding] | None:
        """The rows in the window, in order, before a change that is not settled; None if they never were evaluated."""
        return None if self._entries is None else self._window_rows(self._entries)

    @property
    def size(self) -> int:
        """The number of rows in memory."""
        return len(self._entries or ())

    def rows(self) -> list[Binding]:
        """The rows in the window, in order. Raises what the plan raises."""
        if self._entries is None:
            self._entries, self._complete = self._fill()
        return self._window_rows(self._entries)

    def change(self, removed: Iterable[Binding], added: Iterable[Binding]) -> tuple[list[Binding], list[Binding]]:
        """The rows that leave and enter the window. Raises what the plan raises.

        removed, added: the change of the plan's rows, net. All other rows must be as before.
        """
        start, end = self._window.start, self._window.end
        before = self._entries
        assert before is not None
        # A copy: a commit that fails drops it.
        entries, complete = before.copy(), self._complete
        gone: list[Entry] = []
        come: list[Entry] = []
        # Added first: removed first, a window could run out of rows that are about to come.
        for entry in self._counted_entries(added):
            self._add(entries, entry, complete, gone, come)
        for entry in self._counted_entries(removed):
            self._remove(entries, entry, complete, gone, come)
        # Spare rows are used up, so the rows behind them are asked for again.
        if len(entries) < end and not complete:
            entries, complete = self._fill()
            gone, come = before[start:end], entries[start:end]
        elif len(entries) > self._most:
            del entries[self._most :]
            complete = False
        self._next = entries, complete
        left, entered = (Counter([_row(entry) for entry in some]) for some in (gone, come))
        return list((left - entered).elements()), list((entered - left).elements())

    def _add(self, entries: list[Entry], entry: Entry, complete: bool, gone: list[Entry], come: list[Entry]) -> None:
        """Adds an entry, and collects what enters the window and what is pushed out of it."""
        start, end = self._window.start, self._window.end
        if not complete and (not entries or entry > entries[-1]):
            return  # it is among the rows that are not kept
        rank = bisect_left(entries, entry)
        entries.insert(rank, entry)
        if rank < end:
            if len(entries) > max(rank, start):
                come.append(entries[max(rank, start)])
            if len(entries) > end:
                gone.append(entries[end])

    def _remove(self, entries: list[Entry], entry: Entry, complete: bool, gone: list[Entry], come: list[Entry]) -> None:
        start, end = self._window.start, self._window.end
        rank = bisect_left(entries, entry)
        # It was among the rows that are not kept.
        if rank == len(entries) and not complete:
            return
        assert rank < len(entries) and entries[rank] == entry, "a row is removed that was not there"
        if rank < end:
            if len(entries) > max(rank, start):
                gone.append(entries[max(rank, start)])
            if len(entries) > end:
                come.append(entries[end])
        del entries[rank]

    def settle(self) -> None:
        """Makes the last change take effect."""
        if self._next is not None:
            self._entries, self._complete = self._next
            self._next = None

    def forget(self) -> None:
        """Drops a change that was not settled."""
        self._next = None

    @property
    def _most(self) -> int:
        return 2 * self._window.end + SPARE

    def _fill(self) -> tuple[list[Entry], bool]:
        entries = list(self._counted_entries(self._evaluated()))
        return nsmallest(self._most, entries), len(entries) <= self._most

    def _counted_entries(self, rows: Iterable[Binding]) -> Iterator[Entry]:
        """The entries of rows, counted one by one."""
        # One by one, so that other tasks run in between.
        for row in rows:
            self._meter.take(VALUE)
            yield self._window.entry(row)

    def _window_rows(self, entries: Sequence[Entry]) -> list[Binding]:
        return [_row(entry) for entry in entries[self._window.start : self._window.end]]


def _row(entry: Entry) -> Binding:
    terms = entry[-1]
    return tuple([term or None for term in terms]) if "" in terms else terms
