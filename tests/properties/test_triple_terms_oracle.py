"""Random queries with triple terms over small dense graphs, the engine against the oracle (`triple_term_cases`).

A case takes 60 ms.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from lamplighter.engine.matching import joins, plan, triple_joins
from lamplighter.engine.matching.source_text import Consume, Scope
from lamplighter.engine.sparql.algebra import Variable
from lamplighter.engine.sparql.triples import RDF_REIFIES
from tests.properties.comparison import Comparison, Tally, failure
from tests.properties.sparql_texts import Case
from tests.properties.triple_term_cases import triple_term_case
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 30
GIVING_UP = 8
CHANGED_SHARE_MIN = 0.03
PLANNED_SHARE_MIN = 0.80
"""Of the checks, those of subscriptions that are not re-evaluated."""
LEFT_OUT_SHARE_MAX = 0.10
"""Of the cases, those that the store cannot evaluate; there are one or two in a hundred."""
MUTATED_CASES_MAX = 150
_STORE_FAILS = "is not a valid RDF 1.2 term"


def _run(tally: Tally, numbers: Iterable[int], units_max: int | None = None) -> None:
    for number in numbers:
        tally.counts["cases"] += 1
        case = triple_term_case(number)
        try:
            Comparison(tally, units_max=units_max).run(case)
        except Exception as error:
            if isinstance(error, RuntimeError) and _STORE_FAILS in str(error):
                tally.counts["left out"] += 1
                continue
            raise AssertionError(f"case {number} fails: {error}\n{_without_what_passes(case)!r}") from error
    print(f"\ntriple terms against oracle, to seed {number}: {tally}")


def test_queries_with_triple_terms_follow_every_update(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally = Tally()

    def check() -> None:
        assert tally.counts["left out"] <= LEFT_OUT_SHARE_MAX * tally.counts["cases"], tally
        assert tally.changed_share() >= CHANGED_SHARE_MIN, tally
        assert tally.counts["changed telescoped"] >= cases / 4, tally
        assert tally.counts["changed seeded"] >= cases / 4, tally
        assert tally.counts["checks re-evaluated"] <= (1 - PLANNED_SHARE_MIN) * tally.counts["checks"], tally

    _run(tally, seeds(cases, check))


@pytest.mark.parametrize("units_max", [1, 20])
def test_plans_that_give_up_leave_every_result_right(units_max: int, amounts: Amounts) -> None:
    tally = Tally()

    def check() -> None:
        assert tally.counts["gave up"] or tally.counts["too costly"], tally

    _run(tally, seeds(amounts.of(GIVING_UP), check), units_max)


def _without_what_passes(case: Case) -> Case:
    """The failing case without the steps that it fails without."""
    steps = list(case.steps)
    for position in reversed(range(len(steps))):
        rest = steps[:position] + steps[position + 1 :]
        if failure(Case(tuple(rest))) is not None:
            steps = rest
    return Case(tuple(steps))


def _parts_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A part of a triple term that is known counts as found, whatever the term has in its place."""

    def agree(
        self: triple_joins.TripleCodegen, pairs: list[tuple[object, str]], scope: Scope, consume: Consume
    ) -> None:
        for part, name in pairs:
            if isinstance(part, Variable) and part not in scope.bound:
                scope = scope.binding(part, name)
        consume(scope)

    patch.setattr(triple_joins.TripleCodegen, "_agree", agree)


def _a_quad_of_a_term_does_not_matter(patch: pytest.MonkeyPatch) -> None:
    """Patterns beside a triple term are matched with changed quads, the one that holds the term is not."""
    taken_apart = plan.takes_apart
    patch.setattr(plan, "takes_apart", lambda pattern: taken_apart(pattern) or pattern.p == RDF_REIFIES)


def _excluded_wrongly(patch: pytest.MonkeyPatch) -> None:
    """Two patterns that one quad matches count it twice."""
    patch.setattr(joins.JoinCodegen, "_exclusion", lambda self, number, pattern, scope: None)


@pytest.mark.parametrize("mutation", [_parts_are_not_compared, _a_quad_of_a_term_does_not_matter, _excluded_wrongly])
def test_oracle_finds_a_mutation(mutation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutation)
    with monkeypatch.context() as patch:
        mutation(patch)
        numbers = range(MUTATED_CASES_MAX)
        found = next((number for number in numbers if _fails(number)), None)
    assert found is not None
    assert not _fails(found)


def _fails(number: int) -> bool:
    error = failure(triple_term_case(number))
    return error is not None and _STORE_FAILS not in str(error)
