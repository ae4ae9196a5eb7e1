"""Random queries of many triple patterns, the engine against the oracle (`wide_cases`).

A case takes 1 s.
"""

from __future__ import annotations

from tests.properties.comparison import Comparison, Tally
from tests.properties.wide_cases import wide_case
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 5
CHANGED_SHARE_MIN = 0.005
REEVALUATED_SHARE_MAX = 0.6
"""Few cases run by default. Of many, 0.1 of the results change, and 0.15 are re-evaluated."""


def test_queries_of_many_patterns_follow_every_update(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally = Tally()

    def check() -> None:
        assert tally.changed_share() >= CHANGED_SHARE_MIN, tally
        assert tally.counts["checks re-evaluated"] <= REEVALUATED_SHARE_MAX * tally.counts["checks"], tally

    for number in seeds(cases, check):
        try:
            Comparison(tally).run(wide_case(number))
        except Exception as error:
            raise AssertionError(f"case {number} fails: {error}\n{wide_case(number)!r}") from error
    print(f"\nmany patterns against oracle, to seed {number}: {tally}")
