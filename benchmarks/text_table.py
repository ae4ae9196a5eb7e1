"""Tables of text, and numbers and times in few characters."""

from collections.abc import Sequence

MISSING = "-"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns in line: the first one to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width) for index, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )


def number(value: float | None) -> str:
    if value is None:
        return MISSING
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.1f}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:,.1f}K"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} us"
