"""`make bench ARGS=paper`: Roffia 2016 to the letter: tables 9 to 15, figures 8 to 15, the naive algorithm, cores.

LAMP and ROAD run on the paper's SPUs with LUTT, on the same without, on the naive algorithm (`benchmarks.reference`),
and on the engine, beside the same 1,004 subscriptions (Roffia 2016, V and appendix B).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import overhead, parallel, reproduction_curves, scaling, speedup
from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.measuring import Progress, target
from benchmarks.reproduction_kpis import N, sample, without_lutt
from benchmarks.reproduction_runs import FIRST_VALUE, EngineRun, naive_run, spu_run

EXPERIMENTS: dict[str, Callable[[str], list[str]]] = {"LAMP": street.lamp_profile, "ROAD": street.road_iri_profile}


def reproduction(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """All of it. Seconds; processor time if nothing else is said."""
    knowledge_base = street.document(bare=effort.bare)
    result: dict[str, Any] = {
        name: _experiment(name, knowledge_base, updates_of(FIRST_VALUE), updates_of, effort, progress)
        for name, updates_of in EXPERIMENTS.items()
    }
    result["speedup"] = speedup.speedup(effort.paper_rows, progress)
    result["overhead"] = overhead.overhead(EXPERIMENTS, effort, progress)
    for name in EXPERIMENTS:
        result["overhead"][name]["measuring"] = result[name]["engine"]["measuring"]
    sizes = effort.paper_subscribers
    result["all hit"] = scaling.all_hit(replace(effort, all_hit_lamp=sizes, all_hit_road=sizes), out, progress)
    result["parallel"] = parallel.parallel(effort, progress)
    result["plots"] = reproduction_curves.draw(result, out)
    result["targets"] = [
        target(
            f"{name}: T_TOTAL relative to the paper's algorithm on the same store",
            result[name]["implementations"]["Lamplighter"]["total"]
            / result[name]["implementations"]["LUTT on"]["total"],
            1.0,
        )
        for name in EXPERIMENTS
    ]
    return result


def _experiment(
    name: str,
    knowledge_base: bytes,
    updates: list[str],
    updates_of: Callable[[str], list[str]],
    effort: Effort,
    progress: Progress,
) -> dict[str, Any]:
    texts = [entry.text for entry in street.subscription_profile()]
    engine = EngineRun(knowledge_base, texts, updates_of, effort.paper_repetitions)
    progress(f"{name}: engine {engine.kpis['total']:.3f} s")
    some = sample(effort.paper_sample)
    on, cells = spu_run(knowledge_base, texts, updates, range(N) if effort.paper_whole else some, engine, lutt=True)
    progress(f"{name}: the paper's algorithm {on['total']:.1f} s")
    off, _ = spu_run(knowledge_base, texts, updates, some, engine, lutt=False)
    progress(f"{name}: without LUTT {off['total']:.1f} s, from {len(some)} updates")
    naive = naive_run(knowledge_base, texts, updates, some, engine)
    progress(f"{name}: naive {naive['total']:.1f} s, from {len(some)} updates")
    engine.kpis["E2E"] = engine.kpis["total"] / naive["update"] - 1  # against the raw store, as in the other parts
    return {
        "implementations": {
            "LUTT on": on,
            "LUTT off": off,
            "LUTT off, estimate": without_lutt(on, cells["booster"]["fine"], engine.triples, engine.triples_max),
            "naive": naive,
            "Lamplighter": engine.kpis,
        },
        "cells": cells,
        "engine": {"measuring": engine.measuring, "cells": engine.cells},
        "notifications": sum(map(len, engine.notified)),
    }
