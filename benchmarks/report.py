"""The printed tables: the paper's figures beside ours, and each target with its limit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import paper, reproduction_report
from benchmarks.text_table import MISSING, duration, number, table


def summary(results: Mapping[str, dict[str, Any]]) -> str:
    """Everything that the given parts found out, as text."""
    blocks = [_kpis(results), _shares(results), _growth(results), _all_hit(results), _hot(results), _latency(results)]
    if "paper" in results:
        blocks += reproduction_report.blocks(results["paper"])
    blocks += [result["note"] for result in results.values() if "note" in result]
    blocks += [f"{name}: {result['unavailable']}" for name, result in results.items() if "unavailable" in result]
    blocks.append(_targets([limit for result in results.values() for limit in result.get("targets", ())]))
    return "\n\n".join(block for block in blocks if block)


def _kpis(results: Mapping[str, dict[str, Any]]) -> str:
    columns: list[tuple[str, dict[str, Any] | None, Mapping[str, float] | None, str]] = [
        ("LAMP paper", None, paper.LAMP, ""),
        ("LAMP", results.get("lamp"), None, "LAMP"),
        ("all lamps", results.get("lamp-all"), None, ""),
        ("ROAD paper", None, paper.ROAD, ""),
        ("ROAD FILTER", results.get("road-filter"), None, ""),
        ("ROAD IRI", results.get("road"), None, "ROAD"),
    ]
    columns = [column for column in columns if column[2] or "engine us" in (column[1] or {})]
    if not any(result for _, result, _, _ in columns):
        return ""
    timings = results.get("timings", {})
    rows = [["m = 1,004 subscriptions", *(name for name, *_ in columns)]]

    def row(label: str, cells: Iterable[str]) -> None:
        rows.append([label, *cells])

    def ours(result: dict[str, Any] | None, *path: str) -> Any:
        found: Any = result
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    for clock, label in (("cpu", "CPU"), ("wall", "wall")):
        for kpi in ("Ups", "Sps", "Tps"):
            if kpi == "Ups" or clock == "cpu":
                row(
                    f"{kpi} ({label})",
                    (number(theirs[kpi] if theirs else ours(result, clock, kpi)) for _, result, theirs, _ in columns),
                )
    for kpi in ("NLmin", "NLmax"):
        row(
            kpi,
            (
                duration(theirs[kpi] if theirs else ours(timings.get(experiment), kpi))
                for _, _, theirs, experiment in columns
            ),
        )
    for clock, label in (("cpu", "CPU"), ("wall", "wall")):
        values = (theirs["E2E"] if theirs else ours(result, clock, "E2E") for _, result, theirs, _ in columns)
        row(f"E2E ({label})", (MISSING if value is None else f"{value:+.3f}" for value in values))
    sums = (ours(result, "cpu", "E2E of sums") for _, result, _, _ in columns)
    row("E2E of sums (CPU)", (MISSING if value is None else f"{value:+.3f}" for value in sums))
    row("E2E least, most", (_range(ours(result, "cpu", "E2E range")) for _, result, _, _ in columns))
    row("LHR %", (f"{theirs['LHR'] if theirs else ours(result, 'LHR'):.2f}" for _, result, theirs, _ in columns))
    row(
        "notifications",
        (
            f"{int(theirs['notifications'] if theirs else ours(result, 'notifications')):,}"
            for _, result, theirs, _ in columns
        ),
    )
    row("engine us (CPU)", (number(ours(result, "engine us", "cpu")) for _, result, _, _ in columns))
    row("raw store us (CPU)", (number(ours(result, "raw us", "cpu")) for _, result, _, _ in columns))
    row("first run us, no log or JSON", (number(ours(result, "first run us")) for _, result, _, _ in columns))
    for name in ("raw store", "engine, loaded", "engine, with subscriptions", "engine, at the end"):
        row(f"MB {name}", (number(ours(result, "memory MB", name)) for _, result, _, _ in columns))
    return table(rows)


def _range(ends: Sequence[float] | None) -> str:
    return MISSING if ends is None else f"{ends[0]:+.2f} {ends[1]:+.2f}"


def _shares(results: Mapping[str, dict[str, Any]]) -> str:
    timings = results.get("timings", {})
    if "LAMP" not in timings:
        return ""
    rows = [["% of T_TOTAL", "LAMP paper", "LAMP", "ROAD paper", "ROAD IRI"]]
    for part in ("update", "lutt", "booster", "notify"):
        cells = []
        for experiment in ("LAMP", "ROAD"):
            theirs = paper.SHARES[experiment][part]
            cells += ["<< 1" if part == "notify" else f"{theirs:.0f}", f"{timings[experiment]['shares'][part]:.1f}"]
        rows.append([f"T_{part.upper()}", *cells])
    curves = [["ROAD, triples an update", *(str(size) for size in paper.SIZES)]]
    for part in ("update", "lutt", "booster", "notify"):
        curves.append([f"T_{part.upper()}", *(duration(seconds) for seconds in timings["curves"][part])])
    plots = "\n".join(f"plot: {path}" for path in timings["plots"])
    return f"{table(rows)}\n\n{table(curves)}\n{plots}"


def _growth(results: Mapping[str, dict[str, Any]]) -> str:
    rows = [["subscriptions", "updates", "us (CPU)", "raw us", "relative", "B each", "subscribes/s"]]
    for grain in ("fine", "coarse"):
        for step in results.get(grain, {}).get("sizes", ()):
            for profile, cost in step["us"].items():
                rows.append(
                    [
                        f"{step['subscriptions']:,} {grain}",
                        profile,
                        f"{cost:,.1f}",
                        f"{step['raw us'][profile]:,.1f}",
                        f"{step['relative'][profile]:.2f}",
                        number(step["bytes each"]),
                        number(step["subscribes/s"]),
                    ]
                )
    return table(rows) if len(rows) > 1 else ""


def _all_hit(results: Mapping[str, dict[str, Any]]) -> str:
    if "all-hit" not in results:
        return ""
    rows = [["all hit (appendix B.F)", "Ups", "notifications/s", "paper's model, 1 core", "E2E (CPU)"]]
    for experiment in ("lamp", "road"):
        for step in results["all-hit"][experiment]:
            rows.append(
                [
                    f"{experiment.upper()}, {step['subscribers']:,} subscribers",
                    number(step["Ups"]),
                    number(step["notifications/s"]),
                    number(step["paper notifications/s"]),
                    f"{step['E2E']:+.2f}",
                ]
            )
    return table(rows)


def _hot(results: Mapping[str, dict[str, Any]]) -> str:
    result = results.get("hot")
    if not result:
        return ""
    raw, window = result["raw us"], result["window"]
    return (
        f"one lamp, {result['values']:,} fresh values: {result['start us']:.1f} us an update at the start, "
        f"{result['end us']:.1f} us at the end (CPU), longest update {result['longest update ms']:.1f} ms, memory "
        f"{result['memory MB'][0]:.0f} MB at first, {max(result['memory MB']):.0f} at most, "
        f"{result['memory MB'][-1]:.0f} at the end;\nraw store: {raw[0]:.0f} us in the first {window:,} values, "
        f"{raw[-1]:.0f} us in the last of {window * len(raw):,}"
    )


def _latency(results: Mapping[str, dict[str, Any]]) -> str:
    result = results.get("latency")
    if not result:
        return ""
    rows = [["latency, us (CPU)", "engine", "with log and JSON"]]
    rows += [[f"first results, {name}", f"{us:,.1f}", ""] for name, us in result["first results us"].items()]
    for name, costs in result.items():
        if isinstance(costs, dict) and "with log and JSON" in costs:
            rows.append(
                [name.removesuffix("us").rstrip(" ,"), f"{costs['engine']:,.1f}", f"{costs['with log and JSON']:,.1f}"]
            )
    return table(rows)


def _targets(limits: Sequence[dict[str, Any]]) -> str:
    if not limits:
        return ""
    rows = [["target", "limit", "measured", ""]]
    for limit in limits:
        sign = ">=" if limit["at_least"] else "<="
        by = abs(limit["value"] - limit["limit"])
        rows.append(
            [
                limit["name"],
                f"{sign} {_plain(limit['limit'])}{limit['unit']}",
                f"{_plain(limit['value'])}{limit['unit']}",
                "met" if limit["met"] else f"missed by {_plain(by)}{limit['unit']}",
            ]
        )
    return table(rows)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 10 else f"{value:.3f}"
