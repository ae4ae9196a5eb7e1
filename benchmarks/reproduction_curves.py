"""The paper's figures 8 to 15 with its own values, those of its algorithm here, and the engine's."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import paper, plot

_PAPER, _HERE, _OURS = "Roffia 2016", "its algorithm here", "Lamplighter"
_CORES = (1, 2, 4, 8, 16)
_SPUS = (1, 10, 100, 1_000, 10_000)

Series = Mapping[str, Sequence[tuple[float, float]]]


class Figure(NamedTuple):
    """One plot. number: that of the paper's figure. scale: of y."""

    number: int
    title: str
    x_name: str
    y_name: str
    scale: float
    series: Series


def draw(result: dict[str, Any], out: Path) -> list[str]:
    """Writes figure-8.svg to figure-15.svg; their paths. result: as `reproduction.reproduction` makes it."""
    drawn = []
    for figure in (*_of_components(result["ROAD"]), *_all_hit(result, "lamp", 12), *_all_hit(result, "road", 14)):
        path = out / f"figure-{figure.number}.svg"
        title = f"{figure.title} (fig. {figure.number})"
        path.write_text(plot.svg(title, figure.x_name, figure.y_name, figure.series, scale=figure.scale))
        drawn.append(str(path))
    return drawn


def _of_components(road: dict[str, Any]) -> Iterator[Figure]:
    """Figures 8 to 11: the timing components of ROAD, by triples of the update."""
    here, ours = road["cells"], road["engine"]["cells"]

    def figure(number: int, title: str, series: Series) -> Figure:
        return Figure(number, title, "triples updated", "us", 1e6, series)

    yield figure(
        8,
        "T_UPDATE of one ROAD update",
        {_PAPER: _means(paper.UPDATE["ROAD"]), _HERE: _means(here["update"]), _OURS: _means(ours["update"])},
    )
    yield figure(
        9,
        "T_LUTT of one ROAD update and one subscription",
        {
            f"{_PAPER}, coarse": _means(paper.LUTT_CHECK["ROAD"]["coarse"]),
            f"{_PAPER}, fine": _means(paper.LUTT_CHECK["ROAD"]["fine"]),
            f"{_HERE}, coarse": _means(here["lutt"]["coarse"]),
            f"{_HERE}, fine": _means(here["lutt"]["fine"]),
            f"{_OURS}, 1/1,004": _means(ours["lutt"]),
        },
    )
    for number, part, published in ((10, "booster", paper.BOOSTER), (11, "notify", paper.NOTIFY)):
        yield figure(
            number,
            f"T_{part.upper()} of one coarse-grain subscription",
            {
                _PAPER: _means(published["ROAD"]["coarse"]),
                _HERE: _means(here[part]["coarse"]),
                _OURS: _means(ours[part]["coarse"]),
            },
        )


def _all_hit(result: dict[str, Any], experiment: str, number: int) -> Iterator[Figure]:
    """Figures 12 and 13, or 14 and 15: the experiments in which every subscriber is notified."""
    name, theirs = experiment.upper(), paper.ALL_HIT[experiment]
    measured = _components(result, name)
    yield Figure(
        number,
        f"All hit, {name}: notifications per second",
        "cores",
        "notifications/s",
        1.0,
        {
            f"{_PAPER}, (8)": [(n, paper.model_notifications_per_second(theirs, n)) for n in _CORES],
            f"{_HERE}, (8)": [(n, paper.model_notifications_per_second(measured, n)) for n in _CORES],
            f"{_OURS}, processes": _by_cores(result["parallel"], name),
        },
    )
    yield Figure(
        number + 1,
        f"All hit, {name}: updates per second",
        "subscriptions",
        "updates/s",
        1.0,
        {
            f"{_PAPER}, (7)": [(n, paper.model_updates_per_second(theirs, n)) for n in _SPUS],
            f"{_HERE}, (7)": [(n, paper.model_updates_per_second(measured, n)) for n in _SPUS],
            f"{_OURS}, all of it": [(step["subscribers"], step["Ups"]) for step in result["all hit"][experiment]],
        },
    )


def _means(cells: Sequence[Any]) -> list[tuple[float, float]]:
    """Points (size, mean). cells: of each size of road, None where nothing was measured."""
    return [
        (size, cell.mean if isinstance(cell, paper.Spread) else cell["mean"])
        for size, cell in zip(paper.SIZES, cells, strict=True)
        if cell is not None
    ]


def _components(result: dict[str, Any], experiment: str) -> dict[str, float]:
    """The components of the all-hit model, as the paper takes them from its tables: of a fine-grain subscription and
    LAMP, or of a coarse-grain one and ROAD with 100 triples."""
    cells = result[experiment]["cells"]
    grain, row = ("fine", 0) if experiment == "LAMP" else ("coarse", -1)
    return {
        "tu": cells["update"][row]["mean"],
        "tl": cells["lutt"][grain][row]["mean"],
        "tb": cells["booster"][grain][row]["mean"],
        "te": cells["notify"][grain][row]["mean"],
    }


def _by_cores(rows: Sequence[dict[str, Any]], experiment: str) -> list[tuple[float, float]]:
    """Notifications per second of processor time on the busiest core: one engine on one core, then parent and workers
    that keep their messages, each on a core of its own."""
    of_experiment = [row for row in rows if row["experiment"] == f"all hit, {experiment}, one query"]
    points = [(1, of_experiment[0]["subscribers"] / of_experiment[0]["alone"]["cpu"])]
    return points + [
        (1 + row["workers"], row["subscribers"] / max(row["keep"]["parent"], row["keep"]["slowest"]))
        for row in of_experiment
    ]
