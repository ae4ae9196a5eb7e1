"""The printed tables of `make bench ARGS=paper`: those of Roffia 2016 beside what was measured here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import paper
from benchmarks.text_table import MISSING, duration, number, table

_ROADS = ("1...100", "101...200", "201...300", "301...310")
_IMPLEMENTATIONS = ("LUTT on", "LUTT off", "LUTT off, estimate", "naive", "Lamplighter")


def blocks(result: dict[str, Any]) -> list[str]:
    """The tables and lists of the part, in the paper's order."""
    return [
        *(_table_9(name, result[name]) for name in ("LAMP", "ROAD")),
        _spreads("table 10, T_UPDATE of an update", 1e3, "ms", result, _updates),
        _spreads("table 11, T_LUTT of an update and a subscription", 1e6, "us", result, _checks),
        _table_12(result),
        _spreads("table 13, T_BOOSTER of an update and a subscription", 1e3, "ms", result, _of_grain("booster")),
        _spreads("table 14, T_NOTIFY of a notification", 1e6, "us", result, _of_grain("notify")),
        _table_15(result),
        _speedup(result["speedup"]),
        _parallel(result["parallel"]),
        "\n".join(f"plot: {path}" for path in result["plots"]),
    ]


def _table_9(name: str, experiment: dict[str, Any]) -> str:
    """Columns: the paper's figures with and without LUTT, and each implementation here."""
    columns: list[tuple[str, Mapping[str, float]]] = [
        ("paper, on", paper.LUTT[name]["on"]),
        ("paper, off", paper.LUTT[name]["off"]),
        *((label, experiment["implementations"][label]) for label in _IMPLEMENTATIONS),
    ]
    rows = [[f"table 9, {name}", *(label for label, _ in columns)]]
    for label, key, form in (
        ("T_UPDATE", "update", _seconds),
        ("T_LUTT", "lutt", _seconds),
        ("T_BOOSTER", "booster", _seconds),
        ("T_NOTIFY", "notify", _seconds),
        ("T_TOTAL", "total", _seconds),
        ("Ups", "Ups", number),
        ("Sps", "Sps", number),
        ("Tps", "Tps", number),
        ("NLmin", "NLmin", duration),
        ("NLmax", "NLmax", duration),
        ("E2E", "E2E", number),
    ):
        rows.append([label, *(form(values.get(key) or None) for _, values in columns)])
    run = (values.get("updates run") for _, values in columns)
    rows.append(["updates that were run", *(MISSING if not count else f"{count:,.0f}" for count in run)])
    return (
        f"{table(rows)}\n{experiment['notifications']:,} notifications; all implementations have the same "
        "for the updates that were run"
    )


def _seconds(value: float | None) -> str:
    if value is None or value < 1:
        return duration(value)
    return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"


Cells = Callable[[str, dict[str, Any]], list[tuple[str, Sequence[Any], Sequence[Any], Sequence[Any]]]]
"""(experiment, its result) -> label, and cells by size of road: the paper's, those of its algorithm here, ours."""


def _spreads(title: str, scale: float, unit: str, result: dict[str, Any], cells_of: Cells) -> str:
    """Mean, standard deviation, minimum and maximum, three times."""
    rows = [[f"{title} ({unit})", "paper", "", "", "", "here", "", "", "", "Lamplighter", "", "", ""]]
    rows.append(["", *(["mean", "dev.", "min", "max"] * 3)])
    for name in ("LAMP", "ROAD"):
        for label, theirs, here, ours in cells_of(name, result[name]):
            for row, roads in enumerate(_ROADS):
                cells = [theirs[row], here[row], ours[row]]
                rows.append(
                    [f"{name} {roads}{label}", *(text for cell in cells for text in _four(_as_spread(cell), scale))]
                )
    return table(rows)


def _as_spread(cell: Any) -> paper.Spread | None:
    if cell is None or isinstance(cell, paper.Spread):
        return cell
    return paper.Spread(*(cell[key] for key in paper.Spread._fields))


def _four(spread: paper.Spread | None, scale: float) -> list[str]:
    if spread is None:
        return [MISSING] * 4
    return [_figures(value * scale) for value in spread]


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}" if value >= 0.001 else f"{value:.4f}"


def _updates(name: str, experiment: dict[str, Any]) -> list[tuple[str, Sequence[Any], Sequence[Any], Sequence[Any]]]:
    return [("", paper.UPDATE[name], experiment["cells"]["update"], experiment["engine"]["cells"]["update"])]


def _checks(name: str, experiment: dict[str, Any]) -> list[tuple[str, Sequence[Any], Sequence[Any], Sequence[Any]]]:
    ours = experiment["engine"]["cells"]["lutt"]
    return [
        (f", {grain}", paper.LUTT_CHECK[name][grain], experiment["cells"]["lutt"][grain], ours)
        for grain in paper.GRAINS
    ]


def _of_grain(part: str) -> Cells:
    published = {"booster": paper.BOOSTER, "notify": paper.NOTIFY}[part]

    def cells(name: str, experiment: dict[str, Any]) -> list[tuple[str, Sequence[Any], Sequence[Any], Sequence[Any]]]:
        here, ours = experiment["cells"][part], experiment["engine"]["cells"][part]
        return [(f", {grain}", published[name][grain], here[grain], ours[grain]) for grain in paper.GRAINS]

    return cells


def _table_12(result: dict[str, Any]) -> str:
    rows = [["table 12, [Nb] and [Ne]", "paper", "triples here", "results here"]]
    for name in ("LAMP", "ROAD"):
        for grain in paper.GRAINS:
            for row, roads in enumerate(_ROADS):
                counted = (result[name]["cells"][kind][grain][row]["mean"] for kind in ("triples", "results"))
                theirs = f"{paper.HIT_TRIPLES[name][grain][row]:,}"
                rows.append([f"{name} {roads}, {grain}", theirs, *(f"{count:g}" for count in counted)])
    return table(rows)


def _table_15(result: dict[str, Any]) -> str:
    rows = [["table 15, overhead", "T_MEAS", "T_PROT", "T_OVERHEAD", "T_ELAPSED", "overhead %"]]
    for name in ("ROAD", "LAMP"):
        for label, values in ((f"{name}, paper", paper.OVERHEAD[name]), (name, result["overhead"][name])):
            both = values["measuring"] + values["protocol"]
            # The paper's run is measured and has T_MEAS in it; ours over HTTP is not.
            elapsed = values["elapsed"] + (0.0 if label.endswith("paper") else values["measuring"])
            rows.append(
                [
                    label,
                    *(_seconds(value) for value in (values["measuring"], values["protocol"], both, elapsed)),
                    f"{100 * both / elapsed:.0f}",
                ]
            )
    return table(rows)


def _speedup(steps: Sequence[Mapping[str, float]]) -> str:
    head = ["naive (A2) and BOOSTER (A1), rows", "T_QUERY", "N x N T_CMP", "T_NAIVE", "T_QUERY*", "BOOSTER"]
    rows = [[*head, "speedup by A3", "measured", "Lamplighter", "its speedup"]]
    for step in steps:
        rows.append(
            [
                f"{step['rows']:,}",
                *(
                    duration(seconds)
                    for seconds in (
                        step["T_QUERY"],
                        step["T_CMP"] * step["rows"] ** 2,
                        step["naive"],
                        step["T_QUERY*"],
                        step["booster"],
                    )
                ),
                number(step["A3"]),
                number(step["measured"]),
                duration(step["engine"]),
                number(step["naive"] / step["engine"]),
            ]
        )
    return table(rows)


def _parallel(rows_of: Sequence[Mapping[str, Any]]) -> str:
    """An update's time. Critical path: parent and slowest worker, by processor time, relative to one engine."""
    head = ["parallel mode", "subscribers", "workers", "one engine", "wall"]
    rows = [
        [*head, "critical path", "all CPU", "with messages returned: wall", "critical path", "all CPU", "MB a worker"]
    ]
    for row in rows_of:
        alone = row["alone"]
        cells = [row["experiment"], f"{row['subscribers']:,}", str(row["workers"]), duration(alone["cpu"])]
        for way in ("keep", "return"):
            run = row[way]
            cells += [
                duration(run["wall"]),
                f"{(run['parent'] + run['slowest']) / alone['cpu']:.2f}",
                f"{run['cpu'] / alone['cpu']:.2f}",
            ]
        rows.append([*cells, f"{row['worker MB']:.0f}"])
    return table(rows)
