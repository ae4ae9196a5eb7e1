"""Steps of the clock and new operands in a commit: the clock quads that come and go (`engine.matching.timetable`)."""

from __future__ import annotations

from typing import Any

from lamplighter.engine.matching.collectors import CommitState
from lamplighter.engine.matching.lutt import ByPredicate
from lamplighter.engine.matching.timetable import ClockDelta, Timetable
from lamplighter.engine.slices import Slices, sliced


def clock_changes(timetable: Timetable, state: CommitState) -> ClockDelta:
    """The changes by the operands that the matchers of a commit have collected.

    A condition whose operands cost too much makes its shape timeless.
    """
    clock_delta = ClockDelta()
    for condition in timetable.touched:
        try:
            timetable.count(condition, clock_delta)
        except BaseException as reason:
            state.lose_time(condition.shape, reason)
    return clock_delta


def match_clock_delta(clock_delta: ClockDelta, found: Any, matchers: ByPredicate, slices: Slices) -> None:
    """Matches clock quads behind those of the dataset, each while it is in its table: the telescoping rule.

    found: takes what the matchers find, as in `Follower`. matchers: by predicate.
    """
    for some in sliced(clock_delta.removed, slices):
        for condition, terms in some:
            s, p, o, g = condition.quad(terms)
            for matcher in matchers.get(p, ()):
                matcher(s, p, o, g, found, 0)
            condition.take(terms)
    for some in sliced(clock_delta.added, slices):
        for condition, terms in some:
            condition.add(terms)
            s, p, o, g = condition.quad(terms)
            for matcher in matchers.get(p, ()):
                matcher(s, p, o, g, found, 1)
