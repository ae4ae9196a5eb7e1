"""Timing components and key performance indicators as Roffia 2016 defines them (IV.B, IV.C, appendix B)."""

import time
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, median
from typing import Any

from benchmarks import paper
from benchmarks import street_lighting as street

N, M = len(street.ROADS), 1004
FINE = 1000
"""Subscriptions below this number, counted from 0, are fine-grain, the others coarse-grain."""


class Lap:
    """Processor time of this thread from one call to the next, in seconds, less the cost of a call.

    readings: how often it was called. cost: seconds of one call, the median of many.
    """

    def __init__(self) -> None:
        self.cost, self.readings, self._last = 0.0, 0, 0.0
        self()
        self.cost = median(self() for _ in range(2_000))
        self.readings = 0

    def __call__(self) -> float:
        now = time.thread_time()
        spent = now - self._last - self.cost
        self._last = now
        self.readings += 1
        return max(spent, 0.0)


def row_of(index: int) -> int:
    """The row of the paper's tables, by size of road, that update 0, 1, 2, ... belongs to."""
    return paper.SIZES.index(street.lamps_of(index + 1))


def grain_of(number: int) -> str:
    """The column of the paper's tables that subscription 0, 1, 2, ... belongs to."""
    return paper.GRAINS[number >= FINE]


def sample(count: int) -> list[int]:
    """Numbers of updates: about so many of each size of road, evenly spaced, and those of the coarse-grain ones."""
    found = {road - 1 for road in street.COARSE_ROADS}
    for _, roads, _ in street.ROAD_TYPES:
        found.update(road - 1 for road in roads[:: max(1, len(roads) // count)])
    return sorted(found)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, standard deviation of the sample, minimum, maximum and number of values; None of no values."""
    if not values:
        return None
    mean = fmean(values)
    squares = sum((value - mean) ** 2 for value in values)
    deviation = sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return {"mean": mean, "deviation": deviation, "least": min(values), "most": max(values), "count": len(values)}


def whole(indices: Sequence[int], values: Sequence[float]) -> float:
    """The sum over all updates, from those that were run: the mean of each size of road, times its roads."""
    total = 0.0
    for row, (_, roads, _) in enumerate(street.ROAD_TYPES):
        total += len(roads) * fmean(value for index, value in zip(indices, values, strict=True) if row_of(index) == row)
    return total


def kpis(
    indices: Sequence[int],
    parts: Mapping[str, Sequence[float]],
    latencies: Sequence[tuple[float, float]],
    triples: float,
) -> dict[str, Any]:
    """The paper's table 1 and the sums of its components, in seconds.

    indices: the updates that were run; parts: the components of each. latencies: the least of a notification and that
    of the last one, of each update that notifies. triples: NuAVG.
    """
    sums = {part: whole(indices, values) for part, values in parts.items()}
    total = sum(sums.values())
    return {
        **sums,
        "total": total,
        "E2E": total / sums["update"] - 1,
        "NLmin": min(least for least, _ in latencies),
        "NLmax": max(most for _, most in latencies),
        "updates run": len(indices),
        **rates(total, triples),
    }


def rates(total: float, triples: float) -> dict[str, float]:
    """Ups, Sps and Tps. triples: NuAVG. Tps is NuAVG x Sps, as in the paper's tables."""
    ups = N / total
    return {"Ups": ups, "Sps": M * ups, "Tps": triples * M * ups}


def without_lutt(
    on: Mapping[str, float], hits: Sequence[Mapping[str, float] | None], triples: float, most: int
) -> dict[str, Any]:
    """The paper's own estimate without LUTT (table 9): each triple takes each BOOSTER as long as one that hits.

    on: the KPIs with LUTT. hits: T_BOOSTER of fine-grain subscriptions that are hit, by size of road; they have one
    triple each. triples, most: mean and maximum of Nu.
    """
    found = [cell for cell in hits if cell is not None]
    of_triple = sum(cell["mean"] * cell["count"] for cell in found) / sum(cell["count"] for cell in found)
    booster = of_triple * M * N * triples
    total = on["update"] + booster + on["notify"]
    return {
        "update": on["update"],
        "booster": booster,
        "notify": on["notify"],
        "total": total,
        "E2E": total / on["update"] - 1,
        "NLmax": of_triple * M * most,
        "updates run": 0,
        **rates(total, triples),
    }
