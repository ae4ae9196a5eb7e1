"""Plots as inline SVG: text stays text, and colours follow the page's light and dark themes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from lamplighter.cloud_sync.fleet.jobs.texts import printable, short, unit_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lamplighter.cloud_sync.fleet.report.content import Row

HEALTH = ("good", "watch", "bad", "silent")
# Inches of 72 units: about the pixels of a phone, so that text is legible if a plot fills the screen's width.
_WIDTH = 4.6

# Of a value in a plot; the tables have the others. One of them would make a line of all others, or stop matplotlib.
_DRAWN_MAX = 1e100
_LABEL_MAX = 26
_Z_TICKS = (0, 5, 10, 30, *(10**power for power in range(2, 16)))

# Placeholder colours, and the page's variables that replace them.
_TEXT, _LINE = "#000001", "#000002"
SERIES = tuple(f"#00000{digit}" for digit in "3456789a")
_HEALTH = {"good": "#00001a", "watch": "#00001b", "bad": "#00001c", "silent": "#00001d"}
_OF_PAGE = {
    _TEXT: "currentColor",
    _LINE: "var(--line)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)},
    **{colour: f"var(--{health})" for health, colour in _HEALTH.items()},
}

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a sensor may be called $x
    "font.size": 10,
    "legend.fontsize": 9.5,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": _LINE,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "grid.color": _LINE,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.constrained_layout.use": True,
    "timezone": "UTC",
}


def gap_lines(streams: Sequence[Row], gaps: Sequence[Row], until: datetime) -> str:
    """A line per stream, with its gaps on it; a gap without an end lasts until `until`."""

    def draw(axes: Axes) -> None:
        at = {(row["gw"], row["stream"]): number for number, row in enumerate(streams)}
        for name, colour in (("sensor", _HEALTH["bad"]), ("gateway", _HEALTH["silent"])):
            rows = [row for row in gaps if row["reason"] == name]
            for number, row in enumerate(rows):
                start, end = row["start"], row["end"] or until
                label = f"{name} silent" if number == 0 else None
                axes.broken_barh(
                    [(start, end - start)], (at[row["gw"], row["stream"]] - 0.35, 0.7), color=colour, label=label
                )
        axes.set_yticks(
            range(len(streams)), [f"{label_of(row['gw'], 10)} {label_of(short(row['stream']), 16)}" for row in streams]
        )
        axes.set_ylim(len(streams) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        _of_time(axes, 4)
        _legend(axes)

    return _plot(draw, 0.9 + 0.2 * len(streams))


def trend(rows: Sequence[Row], unit: str | None, colour: str) -> str:
    """The median by hour, with the range from the 5th to the 95th percentile; for booleans the share of true. Empty
    without a value."""
    rows = drawable(rows, "mean", "min", "p05", "p50", "p95", "max")
    if not rows:
        return ""
    shares = all(row[name] in (0, 1) for row in rows for name in ("min", "p05", "p50", "p95", "max"))

    def draw(axes: Axes) -> None:
        # An hour without readings is a hole, not a straight line.
        parts = _unbroken(rows)
        for part in parts:
            hours = [row["hour"] for row in part]
            if not shares:
                low, high = [row["p05"] for row in part], [row["p95"] for row in part]
                axes.fill_between(hours, low, high, color=colour, alpha=0.25, linewidth=0)
            middle = [row["mean" if shares else "p50"] for row in part]
            axes.plot(hours, middle, color=colour, linewidth=1.4, marker="." if len(part) == 1 else "")
        axes.set_ylabel("share of yes" if shares else "" if unit is None else label_of(unit_name(unit)))
        _of_time(axes)

    return _plot(draw, 1.9)


def anomaly_points(rows: Sequence[Row]) -> str:
    """Robust z-scores over time, by property. Empty without a value."""
    rows = drawable(rows, "z")
    if not rows:
        return ""

    def draw(axes: Axes) -> None:
        properties = sorted({row["property"] or "" for row in rows})
        for number, name in enumerate(properties):
            own = [row for row in rows if (row["property"] or "") == name]
            colour = SERIES[min(number, len(SERIES) - 1)]
            shown = label_of(short(name)) if number < len(SERIES) - 1 or len(properties) <= len(SERIES) else "others"
            label = shown if number < len(SERIES) else None
            axes.scatter([row["time"] for row in own], [row["z"] for row in own], s=9, color=colour, label=label)
        axes.axhline(0, color=_TEXT, linewidth=0.8)
        axes.set_yscale("symlog", linthresh=10)
        axes.yaxis.set_major_locator(FixedLocator(sorted({sign * tick for tick in _Z_TICKS for sign in (-1, 1)})))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylabel("robust z-score")
        _of_time(axes)
        _legend(axes)

    return _plot(draw, 2.6)


def energy_bars(rows: Sequence[Row]) -> str:
    """Energy of all lamps by day."""

    def draw(axes: Axes) -> None:
        last = rows[-1]["day"]
        axes.set_xlim(min(rows[0]["day"], last - timedelta(days=6)) - timedelta(days=1), last + timedelta(days=1))
        axes.bar([row["day"] for row in rows], [row["kwh"] for row in rows], color=SERIES[1], width=0.8)
        axes.set_ylabel("kWh a day")
        axes.set_ylim(bottom=0)
        axes.grid(axis="x", visible=False)
        _of_time(axes)

    return _plot(draw, 2.0)


def reaction_ranges(rows: Sequence[Row]) -> str:
    """Median, 95th and 99th percentile and maximum of the times of commands and of acknowledgements."""

    def draw(axes: Axes) -> None:
        kinds = (("reaction", "command", SERIES[0]), ("acknowledged", "acknowledgement", SERIES[1]))
        for shift, (kind, name, colour) in zip((-0.16, 0.16), kinds, strict=True):
            marked = False
            for number, row in enumerate(rows):
                values = [row[f"{kind}_{share}_ms"] for share in ("p50", "p95", "p99", "max")]
                if any(value is None for value in values):
                    continue
                values = [max(value, 0.001) for value in values]  # on a logarithmic axis
                axes.plot(values, [number + shift] * 4, color=colour, linewidth=1.2, marker="|", markersize=6)
                axes.plot(
                    values[:1], [number + shift], color=colour, marker="o", markersize=4, label=None if marked else name
                )
                marked = True
        names = [label_of(f"{short(row['property'] or '')}: {row['value']}") for row in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("ms after the reading: median (dot), 95th, 99th percentile, largest")
        _legend(axes)

    return _plot(draw, 1.1 + 0.35 * len(rows))


def fleet_map(rows: Sequence[Row]) -> str:
    """A map of the gateways with their health."""

    def draw(axes: Axes) -> None:
        for health, marker in zip(HEALTH, "os^x", strict=True):
            own = [row for row in rows if row["health"] == health]
            if own:
                axes.scatter(
                    [row["longitude"] for row in own], [row["latitude"] for row in own],
                    s=14, color=_HEALTH[health], marker=marker, label=health,
                )  # fmt: skip
        axes.set_xlabel("longitude")
        axes.set_ylabel("latitude")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.ticklabel_format(useOffset=False)
        axes.margins(0.08)
        _legend(axes)

    return _plot(draw, 3.4)


def drawable(rows: Sequence[Row], *names: str) -> list[Row]:
    """The rows whose values a plot can show."""
    return [row for row in rows if all(row[name] is None or abs(row[name]) < _DRAWN_MAX for name in names)]


def label_of(text: str, size: int = _LABEL_MAX) -> str:
    """A text as a label: one line, truncated at the start."""
    # At the start, because the end distinguishes names.
    line = printable(text)
    return line if len(line) <= size else f"…{line[1 - size :]}"


def _plot(draw: Callable[[Axes], None], height: float) -> str:
    """The drawing of `draw` as an ``<svg>`` element. The page sets its size, title and colours."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Only the widths of the font are used. Browsers have the glyphs that it lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = Figure(figsize=(_WIDTH, height))
        draw(figure.subplots())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True)
    return _inline(out.getvalue())


_colours = re.compile("#0000[01][0-9a-f]")


def _inline(document: str) -> str:
    """An SVG document -> an element of a page: without prolog, comments, metadata, size and ambiguous identifiers."""
    body = document[document.index("<svg") :].strip()
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    head, end, rest = body.partition(">")
    view = re.search(r'viewBox="[^"]*"', head)
    assert view is not None
    # Removes all identifiers but those of markers and clips, which are referenced and unique among plots.
    rest = re.sub(
        r' id="(?:figure|patch|axes|text|line2d|matplotlib\.axis|xtick|ytick|legend|[A-Z][A-Za-z]*Collection)_\d+"',
        "",
        rest,
    )
    rest = _colours.sub(lambda found: _OF_PAGE.get(found.group(), found.group()), rest)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {view.group()}{end}{rest}'
    )


def _of_time(axes: Axes, ticks: int = 7) -> None:
    locator = AutoDateLocator(minticks=2, maxticks=ticks, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(
            handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(labels)),
            columnspacing=1.0, handletextpad=0.4, borderaxespad=0.2,
        )  # fmt: skip


def _unbroken(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by hour, split where an hour is missing."""
    parts: list[list[Any]] = []
    for row in rows:
        if parts and (row["hour"] - parts[-1][-1]["hour"]).total_seconds() <= 3600:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
