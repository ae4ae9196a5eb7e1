"""The experiments LAMP and ROAD on the engine and on the paper's two algorithms, which must notify the same."""

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks import paper
from benchmarks.components import COMPONENTS, Stopwatch, median_run, timed_run
from benchmarks.measuring import cost_of, flush, serialise
from benchmarks.reference import BasicQuery, NaiveSpu, RawEndpoint, RowDelta, Spu
from benchmarks.reproduction_kpis import Lap, M, N, grain_of, kpis, rates, row_of, spread
from lamplighter.engine import Engine
from lamplighter.engine.protocol import Results, results_message
from lamplighter.engine.terms import Bag

FIRST_VALUE, SECOND_VALUE = "100", "0"

Notified = dict[int, RowDelta]
"""What an update changes, by number of the subscription."""

_ROWS = range(len(paper.SIZES))


class EngineRun:
    """The engine's figures of one experiment.

    Its first run sets the value that the other implementations set, and is not timed. The others are, with and without
    the stopwatch. kpis: as `reproduction_kpis.kpis`; measuring: T_MEAS, the difference of both. triples, triples_max:
    mean and maximum of Nu. notified: the notifications of each update. cells: those of appendix B, as shares of one
    subscription: T_LUTT of all of them, T_BOOSTER and T_NOTIFY of those that are notified.
    """

    def __init__(
        self, knowledge_base: bytes, texts: Sequence[str], updates_of: Callable[[str], list[str]], repetitions: int
    ) -> None:
        engine = Engine()
        engine.load(knowledge_base)
        numbers = {engine.subscribe(text).spuid: number for number, text in enumerate(texts)}
        flush(engine)
        commits = [engine.update(text) for text in updates_of(FIRST_VALUE)]
        self.notified: list[Notified] = [
            {numbers[told.spuid]: RowDelta(list(told.removed), list(told.added)) for told in commit.notifications}
            for commit in commits
        ]
        changed = [len(commit.added) for commit in commits]
        self.triples, self.triples_max = fmean(changed), max(changed)
        del commits

        def untimed(updates: Sequence[str]) -> None:
            for text in updates:
                serialise(engine.update(text))
            flush(engine)

        values = [SECOND_VALUE, FIRST_VALUE] * repetitions
        gc.collect()
        alone = [cost_of(lambda value=value: untimed(updates_of(value))).cpu for value in values]  # type: ignore[misc]
        stopwatch, runs = Stopwatch(engine), list[list[dict[str, float]]]()
        watched = [
            cost_of(lambda value=value: runs.append(timed_run(engine, stopwatch, updates_of(value)))).cpu  # type: ignore[misc]
            for value in values
        ]
        engine.close()
        measured = median_run(runs)
        latencies = [
            update["lutt"] + update["booster"] + update["notify"] for update in measured if update["notifications"]
        ]
        self.measuring = median(watched) - median(alone)
        # The total is that of the runs without the stopwatch, and includes the flushes.
        self.kpis = kpis(
            range(N),
            {part: [update[part] for update in measured] for part in COMPONENTS},
            [(latency, latency) for latency in latencies],
            self.triples,
        ) | {"total": median(alone), **rates(median(alone), self.triples)}
        self.cells = _shares(measured, self.notified)


def _shares(measured: Sequence[Mapping[str, float]], notified: Sequence[Notified]) -> dict[str, Any]:
    cells: dict[str, Any] = {
        "update": [_of_row(range(N), [update["update"] for update in measured], row) for row in _ROWS],
        "lutt": [_of_row(range(N), [update["lutt"] / M for update in measured], row) for row in _ROWS],
    }
    for part in ("booster", "notify"):
        cells[part] = {}
        for grain in paper.GRAINS:
            indices = [index for index in range(N) if {grain_of(number) for number in notified[index]} == {grain}]
            shares = [measured[index][part] / len(notified[index]) for index in indices]
            cells[part][grain] = [_of_row(indices, shares, row) for row in _ROWS]
    return cells


def _of_row(indices: Sequence[int], values: Sequence[float], row: int) -> dict[str, float] | None:
    return spread([value for index, value in zip(indices, values, strict=True) if row_of(index) == row])


class _Tally:
    """What the runs of the paper's algorithms collect for their figures."""

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = indices
        self.parts: dict[str, list[float]] = {part: [] for part in COMPONENTS}
        self.latencies: list[tuple[float, float]] = []

    def add(self, update: float, lutt: float, booster: float, notify: float, shortest: float) -> None:
        """One update. shortest: the least latency of its notifications, infinite if there are none."""
        for part, seconds in zip(COMPONENTS, (update, lutt, booster, notify), strict=True):
            self.parts[part].append(seconds)
        if shortest < float("inf"):
            self.latencies.append((shortest, lutt + booster + notify))

    def kpis(self, triples: float) -> dict[str, Any]:
        return kpis(self.indices, self.parts, self.latencies, triples)


def spu_run(
    knowledge_base: bytes,
    texts: Sequence[str],
    updates: Sequence[str],
    indices: Sequence[int],
    engine: EngineRun,
    *,
    lutt: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The paper's sequential mode: for each update the endpoint, then all LUTTs, then each SPU that was hit.

    indices: the updates that are run. Returns the KPIs, and the cells of tables 10 to 14: one for each size of road, of
    LUTT and SPU also for each grain. Raises AssertionError if the notifications are not those of the engine.
    """
    endpoint = RawEndpoint(knowledge_base)
    spus = [Spu(text, endpoint, lutt=lutt) for text in texts]
    lap, tally, cells = Lap(), _Tally(indices), _Cells()
    gc.collect()
    for index in indices:
        lap()
        removed, added = endpoint.update(updates[index])
        update = lap()
        passed, checks = [], []
        for spu in spus:
            passed.append((spu.passed(removed), spu.passed(added)))
            checks.append(lap())
        booster = notify = 0.0
        shortest = float("inf")
        notified: Notified = {}
        for number, (gone, come) in enumerate(passed):
            cells.add("lutt", index, number, checks[number])
            if not gone and not come:
                continue
            lap()
            change = spus[number].boosted(gone, come)
            boosted = lap()
            booster += boosted
            if not change.removed and not change.added:
                continue
            lap()
            _message(spus[number].query, change)
            sent = lap()
            notify += sent
            shortest = min(shortest, checks[number] + boosted + sent)
            notified[number] = change
            cells.add_hit(index, number, boosted, sent, len(come), len(change.added))
        tally.add(update, sum(checks), booster, notify, shortest)
        _check(index, notified, engine)
    of_updates = [_of_row(indices, tally.parts["update"], row) for row in _ROWS]
    return tally.kpis(engine.triples) | {"measuring": lap.readings * lap.cost}, {
        "update": of_updates,
        **cells.spreads(),
    }


class _Cells:
    """What is measured of pairs of update and subscription, by size of road and grain."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], list[float]] = {}

    def add(self, kind: str, index: int, number: int, value: float) -> None:
        self._found.setdefault((kind, grain_of(number), row_of(index)), []).append(value)

    def add_hit(self, index: int, number: int, booster: float, notify: float, triples: int, results: int) -> None:
        """One notification."""
        self.add("booster", index, number, booster)
        self.add("notify", index, number, notify)
        self.add("triples", index, number, triples)
        self.add("results", index, number, results)

    def spreads(self) -> dict[str, dict[str, list[dict[str, float] | None]]]:
        return {
            kind: {grain: [spread(self._found.get((kind, grain, row), ())) for row in _ROWS] for grain in paper.GRAINS}
            for kind in ("lutt", "booster", "notify", "triples", "results")
        }


def naive_run(
    knowledge_base: bytes, texts: Sequence[str], updates: Sequence[str], indices: Sequence[int], engine: EngineRun
) -> dict[str, Any]:
    """The KPIs if each subscription is queried again after each update. T_BOOSTER is query and comparison, and T_UPDATE
    that of the raw store. Raises AssertionError as `spu_run`."""
    endpoint = RawEndpoint(knowledge_base)
    spus = [(NaiveSpu(text, endpoint), BasicQuery(text)) for text in texts]
    lap, tally = Lap(), _Tally(indices)
    gc.collect()
    for index in indices:
        lap()
        endpoint.store.update(updates[index])
        update = lap()
        booster = notify = 0.0
        shortest = float("inf")
        notified: Notified = {}
        for number, (spu, query) in enumerate(spus):
            lap()
            change = spu.compared(spu.queried())
            spent = lap()
            booster += spent
            if change.removed or change.added:
                lap()
                _message(query, change)
                sent = lap()
                notify += sent
                shortest = min(shortest, spent + sent)
                notified[number] = change
        tally.add(update, 0.0, booster, notify, shortest)
        _check(index, notified, engine)
    return tally.kpis(engine.triples)


def _message(query: BasicQuery, change: RowDelta) -> bytes:
    """The notification as the gateway would send it."""
    added, removed = (Bag(query.variables, rows) for rows in (change.added, change.removed))
    return results_message("sepa://spuid/1", 1, Results(added, removed))


def _check(index: int, notified: Notified, engine: EngineRun) -> None:
    def sets(changes: Notified) -> dict[int, tuple[object, object]]:
        return {number: (sorted(change.removed), sorted(change.added)) for number, change in changes.items()}

    if sets(notified) != sets(engine.notified[index]):
        raise AssertionError(f"update {index + 1}: the notifications differ from the engine's")
