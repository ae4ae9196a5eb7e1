"""Random comparisons with the clock, the engine against the oracle: time as data (`timed_comparison`)."""

from __future__ import annotations

from collections import Counter

from tests.properties.timed_comparison import Comparison
from tests.properties.timed_texts import Texts
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 100


def test_results_are_those_of_a_fresh_evaluation_at_every_instant(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally: Counter[str] = Counter()

    def check() -> None:
        for kind in ("due", "advance", "back", "update"):
            assert tally[f"changed by {kind}"] > cases / 50, tally
        for spu_class in ("telescoped", "seeded", "counted"):
            assert tally[f"changed {spu_class}"] > cases / 50, tally
        assert tally["subscribed re-evaluated"] > 0, tally
        assert tally["replayed"] > cases / 2, tally

    for number in seeds(cases, check):
        try:
            Comparison(tally).run(Texts(number).case())
        except Exception as error:
            raise AssertionError(f"seed {number}: {error}") from error
    print(f"\ntimes against oracle, to seed {number}: {dict(tally)}")
