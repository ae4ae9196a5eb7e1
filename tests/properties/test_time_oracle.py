"""Random comparisons with the clock, the engine against the oracle: time as data (`timed_comparison`).

``LAMPLIGHTER_TIME_CASES`` sets the number of cases, 10,000 by hand.
"""

from __future__ import annotations

import os
from collections import Counter

from tests.properties.timed_comparison import Comparison
from tests.properties.timed_texts import Texts
from tests.support.seeds import seeds

CASES = int(os.environ.get("LAMPLIGHTER_TIME_CASES", "100"))


def test_results_are_those_of_a_fresh_evaluation_at_every_instant() -> None:
    tally: Counter[str] = Counter()

    def check() -> None:
        for kind in ("due", "advance", "back", "update"):
            assert tally[f"changed by {kind}"] > CASES / 50, tally
        for spu_class in ("telescoped", "seeded", "counted"):
            assert tally[f"changed {spu_class}"] > CASES / 50, tally
        assert tally["subscribed re-evaluated"] > 0, tally
        assert tally["replayed"] > CASES / 2, tally

    for number in seeds(CASES, check):
        try:
            Comparison(tally).run(Texts(number).case())
        except Exception as error:
            raise AssertionError(f"seed {number}: {error}") from error
    print(f"\ntimes against oracle, to seed {number}: {dict(tally)}")
