"""Mutation check: an engine that lacks one of the three steps which exactness hangs on is found out by the oracle.

Each mutation is put in for one test, and generated cases must then fail, within a bounded number. The same cases
pass on the engine as it is: that is the comparison with the oracle in tests/properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from lamplighter.engine.delta import BindingDelta, QuadDelta
from lamplighter.engine.matching import following, spu
from lamplighter.engine.matching.codegen import CodeGenerator
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Bag, Quad, Term
from lamplighter.engine.updating import by_plan, by_store
from lamplighter.engine.updating.by_plan import UpdatePlan
from tests.properties.comparison import Comparison, Tally, failure
from tests.properties.sparql_texts import case_of

CASES_MAX = 1_000
FIRST_SEED = 7_000_000

Mutation = Callable[[pytest.MonkeyPatch], None]


def _counted_for_each_pattern(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CodeGenerator, "_exclusion", lambda self, number, pattern, scope: None)


def _delta(store: QuadStore, deletes: Iterable[Quad], inserts: Iterable[Quad], graphs: Iterable[Term]) -> QuadDelta:
    """The delta of one operation with what it both deletes and inserts still among the deletions."""
    wanted, unwanted = list(dict.fromkeys(inserts)), list(dict.fromkeys(deletes))
    added = [quad for quad, there in zip(wanted, store.contains(wanted), strict=True) if not there]
    removed = [quad for quad, there in zip(unwanted, store.contains(unwanted), strict=True) if there]
    names = dict.fromkeys([*graphs, *(quad.g for quad in added if quad.g is not None)])
    created = [name for name in names if not store.has_graph(name)]
    return QuadDelta(tuple(removed), tuple(added), (), tuple(created))


def _deleted_although_inserted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(by_store, "_delta", _delta)


def _deleted_although_inserted_by_a_plan(patch: pytest.MonkeyPatch) -> None:
    def one(self: UpdatePlan, function: Any, terms: Any, store: QuadStore, new_blank_node: Any) -> QuadDelta:
        deletes: list[Quad] = []
        inserts: list[Quad] = []
        function(terms, deletes, inserts, new_blank_node)
        return _delta(store, deletes, inserts, ())

    patch.setattr(UpdatePlan, "_one", one)


def _operations_not_netted(patch: pytest.MonkeyPatch) -> None:
    """What one operation adds and a later one of the request removes stays in the delta twice."""

    def compose(deltas: Iterable[QuadDelta]) -> QuadDelta:
        members = zip(*deltas, strict=True)
        return QuadDelta(*(tuple(dict.fromkeys(part for one in member for part in one)) for member in members))

    patch.setattr(by_store, "compose", compose)
    patch.setattr(by_plan, "compose", compose)


def _rows_not_netted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following, "_net_rows", lambda removed, added: (removed, added))


def _sets_for_bags(patch: pytest.MonkeyPatch) -> None:
    """In the plans, a row that occurs twice counts once."""

    def netted(removed: Sequence[Any], added: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        gone, come = set(removed), set(added)
        return list(gone - come), list(come - gone)

    patch.setattr(following, "_net_rows", netted)


def _sets_for_bags_of_the_store(patch: pytest.MonkeyPatch) -> None:
    """The same for what the store evaluates."""

    def binding_delta(before: Bag, after: Bag) -> BindingDelta:
        gone, come = dict.fromkeys(before), dict.fromkeys(after)
        return BindingDelta(
            added=Bag(after.variables, [row for row in come if row not in gone]),
            removed=Bag(before.variables, [row for row in gone if row not in come]),
        )

    patch.setattr(spu, "binding_delta", binding_delta)


@pytest.mark.parametrize(
    "mutation",
    [
        _counted_for_each_pattern,
        _deleted_although_inserted,
        _deleted_although_inserted_by_a_plan,
        _operations_not_netted,
        _rows_not_netted,
        _sets_for_bags,
        _sets_for_bags_of_the_store,
    ],
)
def test_oracle_finds_the_mutation(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + CASES_MAX)
    with monkeypatch.context() as patch:
        mutation(patch)
        found = next((seed for seed in seeds if failure(case_of(seed)) is not None), None)
    assert found is not None, f"{CASES_MAX} cases pass without the step"
    print(f"\n{mutation.__name__} found by case {found - FIRST_SEED}")
    Comparison(Tally()).run(case_of(found))
