"""Content -> the page: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lamplighter.cloud_sync.fleet.jobs.results import RESULTS
from lamplighter.cloud_sync.fleet.jobs.texts import cell, short, unit_name, value_text
from lamplighter.cloud_sync.fleet.report import plots
from lamplighter.cloud_sync.fleet.report.content import ROWS_MAX, TREND, Content

_MARKS = {"good": "✓", "watch": "!", "bad": "✗", "silent": "…"}


def page(content: Content) -> str:
    """The HTML. Values of rows are escaped: they are text, never markup."""
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "shown": value_text, "minute": minute, "replace_title": _plot_image}
    style = Markup(files(__package__).joinpath("page.css").read_text())  # ours
    return (
        environment.get_template("page.html.j2")
        .render(
            c=content,
            style=style,
            marks=_MARKS,
            healths=plots.HEALTH,
            rows_max=ROWS_MAX,
            folders={name: result.job for name, result in RESULTS.items()},
            titles={name: result.title for name, result in RESULTS.items()},
            summary=_summary(content),
            qualities=sorted(content.by_quality.items(), key=lambda item: -item[1]),
            trends_cut=content.since is not None
            and content.until is not None
            and content.until - content.since > TREND,
            **_plots(content),
        )
        .lstrip()
    )


def minute(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _summary(content: Content) -> list[tuple[str, str]]:
    up = content.by_health.get("good", 0)
    return [
        ("gateways", f"{content.gateways.all:,}"),
        ("of them are well", f"{up:,}"),
        ("readings", f"{content.readings:,}"),
        ("sensors with gaps", f"{content.gap_streams.all:,}"),
        ("silent sensors", f"{content.dead.all:,}"),
        ("anomalies", f"{content.anomalies.all:,}"),
        ("kWh of lamps", f"{content.kwh:,.1f}"),
    ]


def _plots(content: Content) -> Mapping[str, Any]:
    """The plots of the template; an empty text if there is nothing to draw."""
    placed = [row for row in content.gateways.rows if _is_on_earth(row["latitude"], row["longitude"])]
    trends = [
        (_property_label(name, unit), Markup(svg))
        for number, ((name, unit), rows) in enumerate(content.trends.items())
        if (svg := plots.trend(rows, unit, plots.SERIES[number % len(plots.SERIES)]))
    ]
    drawn = {
        "map": plots.fleet_map(placed) if len(placed) > 1 else "",
        "gaps_plot": plots.gap_lines(content.gap_streams.rows, content.gaps, content.as_of) if content.gaps else "",
        "anomalies_plot": plots.anomaly_points(content.anomalies.rows),
        "energy_plot": plots.energy_bars(content.lamp_totals) if content.lamp_totals else "",
        "reactions_plot": plots.reaction_ranges(content.reactions.rows) if content.reactions.rows else "",
    }
    # matplotlib escapes the texts of its plots.
    return {"trend_plots": trends, **{name: Markup(svg) for name, svg in drawn.items()}}


def _is_on_earth(latitude: float | None, longitude: float | None) -> bool:
    return latitude is not None and longitude is not None and abs(latitude) <= 90 and abs(longitude) <= 180


def _property_label(name: str | None, unit: str | None) -> str:
    text = short(name) if name else "no property"
    return text if unit is None else f"{text} ({unit_name(unit)})"


def _plot_image(svg: Markup, title: str) -> Markup:
    """The plot as an image with a label for screen readers. The table below it has the numbers."""
    head, end, rest = str(svg).partition(">")
    return Markup(f'{head} role="img"><title>{escape(title)}</title>{rest}') if end else svg
