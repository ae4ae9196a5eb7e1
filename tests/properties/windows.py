"""Whether rows are a window of an ordered result that SPARQL allows: rows that tie at its ends are interchangeable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cmp_to_key, lru_cache

import pyoxigraph as ox

from tests.properties.sparql_texts import Cut
from tests.support.oracle import Answer, Row, Text

_EMPTY = ox.Store()


@lru_cache(maxsize=65536)
def compared(left: Text | None, right: Text | None) -> int | None:
    """Below 0 if left comes first (SPARQL 1.1 Query, 15.1), 0 for a tie, None where the order is left open."""
    if left == right:
        return 0
    if left is None or right is None:
        return -1 if left is None else 1
    ranks = [0 if term[0] == "_" else 2 if term[0] == '"' else 1 for term in (left, right)]
    if ranks[0] != ranks[1] or ranks[0] == 0:
        return ranks[0] - ranks[1] or None
    if ranks[0] == 1:
        return None if "<<(" in left + right else -1 if left[1:-1] < right[1:-1] else 1
    for sign, found in (("<", -1), (">", 1), ("=", 0)):
        if _EMPTY.query(f"ASK {{ FILTER ( {left} {sign} {right} ) }}"):
            return found
    return None


def is_window(whole: Answer, rows: Counter[Row], cut: Cut) -> bool:
    """Whether rows are those from cut.start to cut.end of the whole answer in some order that its keys allow.

    whole: its columns are those of rows, and the sort keys behind them. Where two keys have no order that SPARQL
    defines, only the number of rows is checked, and that they are there.
    """
    width = len(whole.variables) - len(cut.descending)
    there = Counter(row[:width] for row in whole.ordered)
    if not rows <= there or rows.total() != max(0, min(cut.end, there.total()) - cut.start):
        return False
    for column in range(width, len(whole.variables)):
        terms = sorted({row[column] for row in whole.ordered}, key=str)
        if any(compared(one, other) is None for one in terms for other in terms):
            return True

    def order(one: Row, other: Row) -> int:
        for column, descending in enumerate(cut.descending, width):
            found = compared(one[column], other[column]) or 0
            if found:
                return -found if descending else found
        return 0

    return _fits(_classes(sorted(whole.ordered, key=cmp_to_key(order)), order, width), rows, cut)


def _classes(ordered: Sequence[Row], order: object, width: int) -> list[Counter[Row]]:
    """The rows in order, those that tie together."""
    classes: list[Counter[Row]] = []
    before: Row | None = None
    for row in ordered:
        if before is None or order(before, row):  # type: ignore[operator]
            classes.append(Counter())
        classes[-1][row[:width]] += 1
        before = row
    return classes


def _fits(classes: Sequence[Counter[Row]], rows: Counter[Row], cut: Cut) -> bool:
    """Whether the rows are those of the classes within the window, and some of those at its two ends."""
    rest = Counter(rows)
    ends: list[tuple[Counter[Row], int]] = []
    first = 0
    for rows_of in classes:
        last = first + rows_of.total()
        inside = min(last, cut.end) - max(first, cut.start)
        if inside == rows_of.total():
            if not rows_of <= rest:
                return False
            rest -= rows_of
        elif inside > 0:
            ends.append((rows_of, inside))
        first = last
    if not ends:
        return not rest
    (one, size), (other, _) = ends[0], (*ends, (Counter(), 0))[1]
    least = sum(max(0, count - other[row]) for row, count in rest.items())
    most = sum(min(count, one[row]) for row, count in rest.items())
    return rest <= one + other and least <= size <= most
