"""Random queries that join paths with comparisons with the clock, the engine against the oracle at every instant, over
edits of classes and edges, steps of the clock and restarts (`timed_path_cases`, `timed_comparison`).
"""

from __future__ import annotations

from collections import Counter

from tests.properties.timed_comparison import Comparison
from tests.properties.timed_path_cases import TimedPaths
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 30


def test_paths_and_times_are_those_of_a_fresh_evaluation_at_every_instant(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally: Counter[str] = Counter()

    def check() -> None:
        for kind in ("due", "update"):
            assert tally[f"changed by {kind}"] > cases / 50, tally
        for spu_class in ("telescoped", "seeded", "counted"):
            assert tally[f"changed {spu_class}"] > cases / 50, tally
        assert tally["subscribed re-evaluated"] < tally["subscribed telescoped"] + tally["subscribed seeded"], tally
        assert tally["replayed"] > cases / 5, tally

    for number in seeds(cases, check):
        try:
            Comparison(tally).run(TimedPaths(number).case())
        except Exception as error:
            raise AssertionError(f"seed {number}: {error}") from error
    print(f"\npaths and times against oracle, to seed {number}: {dict(tally)}")
