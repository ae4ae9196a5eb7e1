"""Random comparisons with the clock, the engine against the oracle: time as data (`timed_comparison`).

``LAMPLIGHTER_TIME_CASES`` sets the number of cases, 10,000 by hand.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter

from tests.properties.timed_comparison import Comparison
from tests.properties.timed_texts import Texts

CASES = int(os.environ.get("LAMPLIGHTER_TIME_CASES", "100"))


def test_results_are_those_of_a_fresh_evaluation_at_every_instant() -> None:
    seed = secrets.randbelow(10**9)
    tally: Counter[str] = Counter()
    for number in range(CASES):
        try:
            Comparison(tally).run(Texts(seed + number).case())
        except Exception as error:
            raise AssertionError(f"seed {seed + number}: {error}") from error
    print(f"\n{CASES} cases from seed {seed}: {dict(tally)}")
    for kind in ("due", "advance", "back", "update"):
        assert tally[f"changed by {kind}"] > CASES / 50, tally
    for spu_class in ("telescoped", "seeded", "counted"):
        assert tally[f"changed {spu_class}"] > CASES / 50, tally
    assert tally["subscribed re-evaluated"] > 0, tally
    assert tally["replayed"] > CASES / 2, tally
