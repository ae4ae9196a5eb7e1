"""The paper's timing components of one update (Roffia 2016, V.B), measured from outside the engine."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.measuring import flush, serialise
from lamplighter.engine import Engine
from lamplighter.engine.delta import QuadDelta

COMPONENTS = ("update", "lutt", "booster", "notify")
"""update: the delta and its way into CTS and store; lutt: finding the matchers and units that a quad concerns; booster:
computing what changes for them; notify: making the notifications."""


class Stopwatch:
    """Replaces the methods of one engine by timed ones. seconds: the sums since `reset`, by component."""

    def __init__(self, engine: Engine) -> None:
        self._follower = engine._subscriptions._follower
        self.reset()
        for owner, name, component in (
            (engine, "prepare", "update"),
            (engine.store, "apply", "update"),
            (self._follower._lutt, "lookup", "lutt"),
            (self._follower, "_changes", "booster"),
            (self._follower, "_re_evaluate", "booster"),
            (engine, "_notifications", "notify"),
        ):
            setattr(owner, name, self._timed(getattr(owner, name), component))
        name = "_match"
        setattr(self._follower, name, self._match)

    def reset(self) -> None:
        self.seconds = dict.fromkeys(COMPONENTS, 0.0)

    def _timed(self, method: Callable[..., Any], component: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds[component] += time.perf_counter() - started

        return call

    def _match(
        self,
        delta: QuadDelta,
        found: Any,
        matchers: Mapping[str, Sequence[Callable[..., None]]],
        wildcards: Sequence[Callable[..., None]],
    ) -> None:
        """`Follower._match`, with the clock read between its parts."""
        clock, seconds, cts = time.perf_counter, self.seconds, self._follower._cts
        for sign, quads in enumerate((delta.removed, delta.added)):
            for quad in quads:
                begin = clock()
                if sign:
                    cts.add(quad)
                indexed = clock()
                concerned = [*matchers.get(quad.p, ()), *wildcards]
                looked_up = clock()
                for matcher in concerned:
                    matcher(*quad, found, sign)
                matched = clock()
                if not sign:
                    cts.remove(quad)
                seconds["update"] += indexed - begin + clock() - matched
                seconds["lutt"] += looked_up - indexed
                seconds["booster"] += matched - looked_up


def timed_run(engine: Engine, stopwatch: Stopwatch, updates: Sequence[str]) -> list[dict[str, float]]:
    """Seconds of each component, and the number of notifications, of each update. T_NOTIFY includes their JSON."""
    gc.collect()
    measured = []
    for text in updates:
        stopwatch.reset()
        commit = engine.update(text)
        started = time.perf_counter()
        serialise(commit)
        stopwatch.seconds["notify"] += time.perf_counter() - started
        measured.append({**stopwatch.seconds, "notifications": len(commit.notifications)})
    flush(engine)
    return measured


def median_run(runs: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """Each component of each update as the median over several runs of the same updates."""
    return [
        {key: median(run[index][key] for run in runs) for key in (*COMPONENTS, "notifications")}
        for index in range(len(runs[0]))
    ]
