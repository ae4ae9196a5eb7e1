"""The auditor finds what is wrong, wherever it is, and nothing when all is well."""

from collections.abc import Iterator

import pytest

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.store.audit import Auditor
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.store.renewal import RenewalPolicy
from lamplighter.engine.terms import Quad

INDEXED = "<a:p0>"


class PlainIndex:
    """Quads of one predicate in a dict, whose iterators break when it changes."""

    def __init__(self) -> None:
        self.members: dict[Quad, None] = {}

    def contains(self, quad: Quad) -> bool:
        return quad in self.members

    def holds(self, p: str) -> bool:
        return p == INDEXED

    def quads(self) -> Iterator[Quad]:
        yield from self.members

    def apply(self, delta: QuadDelta) -> None:
        for quad in delta.removed:
            self.members.pop(quad, None)
        for quad in delta.added:
            if self.holds(quad.p):
                self.members[quad] = None


def quad(number: int) -> Quad:
    return Quad(f"<a:s{number}>", f"<a:p{number % 3}>", f'"{number}"', "<a:g>" if number % 2 else None)


@pytest.fixture
def pair() -> tuple[QuadStore, PlainIndex]:
    store, index = QuadStore(RenewalPolicy(dead_floor=50)), PlainIndex()
    change(store, index, added=range(300))
    return store, index


def change(store: QuadStore, index: PlainIndex, *, removed=(), added=()) -> None:
    delta = QuadDelta(tuple(map(quad, removed)), tuple(map(quad, added)))
    store.apply(delta)
    index.apply(delta)


def findings(auditor: Auditor, rounds: int = 1, count: int = 7) -> set[str]:
    found: set[str] = set()
    last = auditor.rounds + rounds
    while auditor.rounds < last:
        found.update(auditor.step(count))
    return found


def test_nothing_is_found_when_all_is_well(pair) -> None:
    assert not findings(Auditor(*pair), rounds=3)


@pytest.mark.parametrize("number", [0, 3, 150, 297])
def test_quad_that_the_index_lost_is_found_in_one_round(pair, number) -> None:
    store, index = pair
    auditor = Auditor(store, index)
    auditor.step(20)
    findings(auditor)
    del index.members[quad(number)]
    assert findings(auditor) == {f"the store has a quad that the index lacks: {quad(number).to_nquads()}"}
    index.members[quad(number)] = None
    assert not findings(auditor)


@pytest.mark.parametrize("number", [0, 3, 150, 297, 900])
def test_quad_that_the_store_lost_is_found_in_one_round(pair, number) -> None:
    store, index = pair
    if number < 300:
        store.apply(QuadDelta(removed=(quad(number),)))
    index.members[quad(number)] = None
    assert findings(Auditor(store, index)) == {f"the index has a quad that the store lacks: {quad(number).to_nquads()}"}


def test_quads_of_other_predicates_are_nobodys_business(pair) -> None:
    store, index = pair
    store.apply(QuadDelta(added=(Quad("<a:s>", "<a:other>", "<a:o>"),)))
    assert not findings(Auditor(store, index))


def test_changes_between_the_steps_are_no_findings_and_hide_none(pair) -> None:
    store, index = pair
    auditor = Auditor(store, index)
    ghost = quad(999)
    lost = quad(150)
    index.members[ghost] = None
    del index.members[lost]
    found: set[str] = set()
    for number in range(300, 900):
        if number - 300 != 150:
            change(store, index, removed=[number - 300], added=[number])
        store.flush()
        found.update(auditor.step(7))
    assert auditor.rounds > 3
    assert store.renewals
    assert found == {
        f"the index has a quad that the store lacks: {ghost.to_nquads()}",
        f"the store has a quad that the index lacks: {lost.to_nquads()}",
    }


def test_index_that_changes_before_each_step_is_still_compared_to_its_end(pair) -> None:
    store, index = pair
    auditor = Auditor(store, index)
    index.members[quad(999)] = None
    found: set[str] = set()
    for number in range(1000, 1016):
        change(store, index, added=[3 * number])
        found.update(auditor.step(7))
    assert found == {f"the index has a quad that the store lacks: {quad(999).to_nquads()}"}


def test_index_may_give_its_quads_of_a_while_ago(pair) -> None:
    store, index = pair
    index.quads = lambda: iter(list(index.members))
    auditor = Auditor(store, index)
    change(store, index, removed=range(0, 300, 2), added=range(300, 400))
    assert not findings(auditor, rounds=3)


def test_a_step_compares_so_many_and_no_more(pair) -> None:
    store, index = pair
    auditor = Auditor(store, index)
    looked_up = []
    contains = store.contains
    store.contains = lambda quads: looked_up.extend(quads) or contains(quads)
    auditor.step(7)
    assert looked_up == [quad(number) for number in range(0, 21, 3)]
    auditor.step(7)
    assert looked_up[7:] == [quad(number) for number in range(21, 42, 3)]


def test_step_after_a_renewal_lets_go_of_the_old_store(pair) -> None:
    store, index = pair
    auditor = Auditor(store, index)
    auditor.step(7)
    held = auditor._stored
    for number in range(300, 800):
        change(store, index, removed=[number - 300], added=[number])
        store.flush()
    while store.step():
        pass
    assert store.renewals
    auditor.step(7)
    assert auditor._stored is not held


def test_index_of_the_engine_is_audited_through_changes_and_renewals() -> None:
    store = QuadStore(RenewalPolicy(dead_floor=50))
    index = Cts(store.quads_with)
    for numbers in range(300), range(300, 330):
        delta = QuadDelta(added=tuple(map(quad, numbers)))
        store.apply(delta)
        index.apply(delta)
        index.hold(INDEXED)
    auditor = Auditor(store, index)
    for number in range(330, 900):
        delta = QuadDelta((quad(number - 330),), (quad(number),))
        store.apply(delta)
        index.apply(delta)
        assert not auditor.step(7)
        store.flush()
    assert store.renewals
    index.remove(quad(600))
    assert findings(auditor, rounds=2) == {f"the store has a quad that the index lacks: {quad(600).to_nquads()}"}
