"""Random path queries over small dense graphs, the engine against the oracle (`path_cases`).

A case takes 0.2 s.
"""

from __future__ import annotations

import pytest

from lamplighter.engine.matching import joins, paths, reachability
from tests.properties.comparison import FORMS, Comparison, Tally, failure
from tests.properties.path_cases import path_case
from tests.properties.sparql_texts import Case
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 30
CHANGED_SHARE_MIN = 0.10
PLANNED_SHARE_MIN = 0.70
"""Of the checks, those of subscriptions that are not re-evaluated."""
FORMS_CHANGED_MIN = 2
"""Changed results of plans with a path in EXISTS or MINUS, or an OPTIONAL in EXISTS; there are ten to twenty."""
MUTATED_CASES_MAX = 60


def test_path_queries_follow_every_update(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally = Tally()

    def check() -> None:
        assert tally.changed_share() >= CHANGED_SHARE_MIN, tally
        assert sum(tally.counts[f"changed {form}"] for form in FORMS) >= amounts.of(FORMS_CHANGED_MIN), tally
        assert tally.counts["checks re-evaluated"] <= (1 - PLANNED_SHARE_MIN) * tally.counts["checks"], tally

    for number in seeds(cases, check):
        case = path_case(number)
        try:
            Comparison(tally).run(case)
        except Exception as error:
            raise AssertionError(f"case {number} fails: {error}\n{_without_what_passes(case)!r}") from error
    print(f"\npaths against oracle, to seed {number}: {tally}")


def _without_what_passes(case: Case) -> Case:
    """The failing case without the steps that it fails without."""
    steps = list(case.steps)
    for position in reversed(range(len(steps))):
        rest = steps[:position] + steps[position + 1 :]
        if failure(Case(tuple(rest))) is not None:
            steps = rest
    return Case(tuple(steps))


def _every_way_counts(patch: pytest.MonkeyPatch) -> None:
    """A pair is taken for changed although another way joins it, as in a cycle."""
    patch.setattr(
        reachability._Change, "pairs", lambda self, starts, ends: [(start, end) for start in starts for end in ends]
    )


def _paths_follow_the_quad_twice(patch: pytest.MonkeyPatch) -> None:
    """Two paths of one query are both taken with the changed quad in them, so rows count twice."""
    patch.setattr(joins.JoinCodegen, "_excludes", lambda self, number, pattern: False)


def _searches_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reachability.PathRelation, "forget", lambda self: None)


def _every_term_is_a_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(paths, "not_anchored", lambda tree: frozenset())


@pytest.mark.parametrize(
    "mutation", [_every_way_counts, _paths_follow_the_quad_twice, _searches_are_kept, _every_term_is_a_node]
)
def test_oracle_finds_a_mutation_of_paths(mutation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutation)
    with monkeypatch.context() as patch:
        mutation(patch)
        found = next((number for number in range(MUTATED_CASES_MAX) if failure(path_case(number)) is not None), None)
    assert found is not None
    assert failure(path_case(found)) is None
