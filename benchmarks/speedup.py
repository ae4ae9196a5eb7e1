"""The paper's BOOSTER against the naive algorithm as the result grows (Roffia 2016, III.D, formulas A1 to A3)."""

import gc
from collections.abc import Sequence
from statistics import median

from benchmarks import street_lighting as street
from benchmarks.components import Stopwatch
from benchmarks.measuring import Progress, flush, serialise
from benchmarks.reference import NaiveSpu, RawEndpoint, Spu
from benchmarks.reproduction_kpis import Lap
from lamplighter.engine import Engine

QUERY = f"PREFIX ns: <{street.NS}>\nSELECT ?lamp ?dimming WHERE {{ ?lamp ns:hasDimmingValue ?dimming }}"
"""All lamps: the paper's example of an application that follows any of many sensors."""

_REPETITIONS = 20
_NAIVE_S = 1.0


def speedup(sizes: Sequence[int], progress: Progress) -> list[dict[str, float]]:
    """For each number of rows N, with one row that changes: seconds of both algorithms, the speedup that A3 predicts
    from T_CMP, T_QUERY and T_QUERY*, the measured one, and what the engine takes."""
    return [_of_size(size, progress) for size in sizes]


def _of_size(size: int, progress: Progress) -> dict[str, float]:
    lamps = [(road, lamp) for road in street.ROADS for lamp in range(1, street.lamps_of(road) + 1)][:size]
    triples = (f'<{street.lamp_iri(*lamp)}> <{street.DIMMING}> "{street.start_value(*lamp)}" .\n' for lamp in lamps)
    document = "".join(triples).encode()
    updates = [street.lamp_update(*lamps[size // 2], str(value)) for value in range(1000, 1000 + _REPETITIONS)]

    endpoint = RawEndpoint(document)
    naive, spu, lap = NaiveSpu(QUERY, endpoint), Spu(QUERY, endpoint), Lap()
    queried, compared, boosted, asked = [], [], [], []
    gc.collect()
    for text in updates:
        removed, added = endpoint.update(text)
        lap()
        change = spu.boosted(spu.passed(removed), spu.passed(added))
        boosted.append(lap())
        spu.cts.query(f"ASK {{ {' '.join(added[0].terms)} }}")
        asked.append(lap())
        if sum(queried) + sum(compared) < _NAIVE_S:
            lap()
            rows = naive.queried()
            queried.append(lap())
            assert naive.compared(rows) == change
            compared.append(lap())
    query, comparison, booster, ask = median(queried), median(compared), median(boosted), median(asked)
    found = {
        "rows": size,
        "T_QUERY": query,
        "T_CMP": comparison / size**2,
        "T_QUERY*": ask,
        "naive": query + comparison,
        "booster": booster,
        "A3": size**2 / 2 * (comparison / size**2) / ask + query / ask / 2,
        "measured": (query + comparison) / booster,
        "engine": _engine(document, updates),
    }
    progress(f"{size:,} rows: naive {found['naive'] * 1e3:,.2f} ms, BOOSTER {booster * 1e6:,.0f} us")
    return found


def _engine(document: bytes, updates: Sequence[str]) -> float:
    """Seconds of matching and notification of an update (wall, median)."""
    with Engine() as engine:
        engine.load(document)
        engine.subscribe(QUERY)
        flush(engine)
        stopwatch, took = Stopwatch(engine), []
        for text in updates:
            stopwatch.reset()
            commit = engine.update(text)
            assert len(commit.notifications) == 1
            serialise(commit)
            took.append(sum(stopwatch.seconds[part] for part in ("lutt", "booster", "notify")))
        return median(took)
