"""Small tables of results: plain text for `repr`, HTML for notebooks. Both have a bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

ROWS_MAX = 20
COLUMNS_MAX = 12
CELL_CHARACTERS_MAX = 80
SAMPLE = 4

Row = Sequence[str | None]


def count_text(number: int, noun: str, form: str = "") -> str:
    """``1 row``, ``2 rows``. form: the number's format; ``,`` gives ``2,000 rows``."""
    return f"{number:{form}} {noun}" if number == 1 else f"{number:{form}} {noun}s"


def sample(values: Sequence[object]) -> str:
    """The first `SAMPLE` values in brackets, each in a bounded number of characters, and how many more there are."""
    shown = [_cell(repr(value), 4 * CELL_CHARACTERS_MAX) for value in values[:SAMPLE]]
    more = [f"... {len(values) - SAMPLE} more"] if len(values) > SAMPLE else []
    return f"[{', '.join([*shown, *more])}]"


def text_table(title: str, headings: Sequence[str], rows: Iterable[Row], count: int, rows_max: int = ROWS_MAX) -> str:
    """A title, the headings and the first `rows_max` rows, in columns. count: how many rows there are."""
    shown = [[_cell(cell) for cell in row[:COLUMNS_MAX]] for row in islice(rows, rows_max)]
    if not shown:
        return title
    names = [_cell(name) for name in headings[:COLUMNS_MAX]]
    widths = [max(len(row[column]) for row in (names, *shown)) for column in range(len(names))]
    lines = [names, ["-" * width for width in widths], *shown]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([title, *table, *_rest(headings, count, rows_max)])


def html_table(title: str, headings: Sequence[str], rows: Iterable[Row], count: int) -> str:
    """The same as an HTML table, all texts escaped."""
    from html import escape  # its table of entities takes 0.3 MB, and a gateway has no notebook

    shown = [[_cell(cell) for cell in row[:COLUMNS_MAX]] for row in islice(rows, ROWS_MAX)]
    head = "".join(f"<th>{escape(_cell(name))}</th>" for name in headings[:COLUMNS_MAX])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in shown)
    rest = "".join(f"<p>{escape(line)}</p>" for line in _rest(headings, count))
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div><table><caption>{escape(title)}</caption>{table}</table>{rest}</div>"


def changes(added: Iterable[Row], removed: Iterable[Row]) -> Iterable[Row]:
    """Rows with a sign before each: + for an added one, - for a removed one."""
    for sign, rows in (("-", removed), ("+", added)):
        for row in islice(rows, ROWS_MAX):
            yield (sign, *row)


def _cell(text: str | None, most: int = CELL_CHARACTERS_MAX) -> str:
    """A text without control characters, cut to so many; empty for None."""
    if text is None:
        return ""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return cut if cut.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in cut)


def _rest(headings: Sequence[str], count: int, rows_max: int = ROWS_MAX) -> list[str]:
    """What the table does not show."""
    more = [count_text(count - rows_max, "more row")] if count > rows_max else []
    if len(headings) > COLUMNS_MAX:
        more.append(count_text(len(headings) - COLUMNS_MAX, "more column"))
    return [f"... {' and '.join(more)}"] if more else []
