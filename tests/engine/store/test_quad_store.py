"""The store's write-behind and its renewal against a plain model: a set of quads and a set of graphs."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import pyoxigraph as ox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.slices import Slices
from lamplighter.engine.store.quad_store import Loaded, QuadStore, quad_from_native
from lamplighter.engine.store.renewal import TRACKED_MAX, Ageing, Renewal, RenewalPolicy, _Heavy, write
from lamplighter.engine.terms import Quad, Term
from tests.support.amounts import AMOUNTS

DECIMAL = "http://www.w3.org/2001/XMLSchema#decimal"
EAGER = RenewalPolicy(pending_max=3, slice_quads=2, copies_per_change=1, dead_floor=0, dead_share=0)
"""Renews all the time."""

NAMES: tuple[Term | None, ...] = (None, "<a:g>", "<a:h>", "_:g")
SUBJECTS = ("<a:s>", "<a:t>", "_:b")
OBJECTS = (
    "<a:s>",
    "_:b",
    f'"1.5"^^<{DECIMAL}>',
    '"_:b is not a blank node"',
    '"two\\nlines \\"quoted\\""@en',
    "<<( <a:s> <a:p> _:b )>>",
)
UNIVERSE = [Quad(s, "<a:p>", o, g) for s in SUBJECTS for o in OBJECTS for g in NAMES]


class Model:
    def __init__(self) -> None:
        self.quads: set[Quad] = set()
        self.graphs: set[Term] = set()

    def delta(self, toggled: list[Quad], graphs: list[Term], *, tell_all_graphs: bool) -> QuadDelta:
        """An exact delta that toggles quads and graphs, and makes the model follow it.

        A dropped graph loses its quads, as the engine's deltas say one by one. A graph that a quad brings
        about is told as created, or left to be understood.
        """
        dropped = [name for name in graphs if name in self.graphs]
        created = [name for name in graphs if name not in self.graphs]
        removed = [q for q in self.quads if q.g in dropped or q in toggled]
        added = [q for q in toggled if q not in self.quads and q.g not in dropped]
        implied = {q.g for q in added if q.g is not None} - self.graphs - set(created)
        self.quads = self.quads - set(removed) | set(added)
        self.graphs = self.graphs - set(dropped) | set(created) | implied
        if tell_all_graphs:
            created += sorted(implied)
        return QuadDelta(tuple(removed), tuple(added), created=tuple(created), dropped=tuple(dropped))


class Elsewhere(Slices):
    """Long work in another thread, which pauses where the engine lets it."""

    def __init__(self) -> None:
        self.store = QuadStore(slices=self)
        self.within = False
        self.dead_max = 0

    @property
    def elsewhere(self) -> bool:
        return self.within

    def pause(self) -> None:
        if self.within:
            self.within = False
            while self.store.catch_up():
                self.dead_max = max(self.dead_max, self.store.dead)
            self.within = True


steps = st.one_of(
    st.tuples(
        st.just("apply"),
        st.lists(st.sampled_from(UNIVERSE), max_size=6, unique=True),
        st.lists(st.sampled_from(NAMES[1:]), max_size=1),
        st.booleans(),
    ),
    st.sampled_from([("flush",), ("step",), ("read",), ("contains",), ("undo",), ("long",), ("pause",), ("short",)]),
)


def native_graphs(native: ox.Store) -> set[Term]:
    return {str(name) for name in native.named_graphs()}


def check(store: QuadStore, model: Model) -> None:
    native = store.native
    assert {quad_from_native(quad) for quad in native} == model.quads
    assert native_graphs(native) == model.graphs
    assert {quad for name in (None, *model.graphs) for quad in store.quads(name)} == model.quads


def test_store_is_what_its_deltas_say_through_all_renewals() -> None:
    renewals = 0

    @settings(max_examples=AMOUNTS.of(300, least=100))
    @given(st.lists(steps, min_size=10, max_size=60))
    def follow(todo) -> None:
        nonlocal renewals
        slices, model = Elsewhere(), Model()
        store = slices.store = QuadStore(EAGER, slices=slices)
        for step in todo:
            match step:
                case ("long",) | ("short",):
                    slices.within = step == ("long",)
                case ("pause",):
                    slices.pause()
                case _ if not slices.within or step != ("step",):
                    take(step, store, model)
            assert len(store) == len(model.quads)
            assert set(store.graphs()) == model.graphs
            assert [store.has_graph(name) for name in NAMES[1:]] == [name in model.graphs for name in NAMES[1:]]
        slices.within = False
        while store.step():
            pass
        check(store, model)
        renewals += store.renewals

    follow()
    assert renewals > AMOUNTS.of(300), "the interesting part was hardly reached"


def take(step, store: QuadStore, model: Model) -> None:
    match step:
        case "apply", toggled, graphs, tell_all_graphs:
            store.apply(model.delta(toggled, graphs, tell_all_graphs=tell_all_graphs))
        case ("undo",):  # as the preparation of a request with two operations does
            before = set(model.quads), set(model.graphs)
            delta = model.delta(UNIVERSE[::5], [], tell_all_graphs=True)
            store.apply(delta)
            store.apply(delta.invert())
            model.quads, model.graphs = before
        case ("flush",):
            store.flush()
        case ("step",):
            store.step()
        case ("read",):
            check(store, model)
        case ("contains",):
            assert store.contains(UNIVERSE) == [quad in model.quads for quad in UNIVERSE]


def value(number: int, subject: int = 0) -> Quad:
    return Quad(f"<a:lamp{subject}>", "<a:value>", f'"{number}.5"^^<{DECIMAL}>')


def filled(count: int, policy: RenewalPolicy = RenewalPolicy()) -> QuadStore:  # noqa: B008 - frozen
    store = QuadStore(policy)
    store.apply(QuadDelta(added=tuple(Quad(f"<a:s{n}>", f"<a:p{n % 7}>", f'"{n}"') for n in range(count))))
    store.flush()
    return store


def rewrite(store: QuadStore, subjects: Iterable[int], start: int = 0) -> None:
    """Gives values from `start` on to lamps that have none, in this order; each is read, so each is written."""
    current: dict[int, Quad] = {}
    for number, subject in enumerate(subjects, start):
        old = current.get(subject)
        current[subject] = value(number, subject)
        store.apply(QuadDelta(removed=(old,) if old else (), added=(current[subject],)))
        store.flush()


def test_changes_that_undo_each_other_never_reach_the_native_store() -> None:
    store = filled(0)
    for number in range(500):
        store.apply(QuadDelta(removed=(value(number - 1),) if number else (), added=(value(number),)))
    assert not len(store._native), "written although nobody read"
    assert [quad_from_native(quad) for quad in store.native] == [value(499)]
    assert store.dead == 0
    store.apply(QuadDelta(removed=(value(499),)))
    store.apply(QuadDelta(added=(value(499),)))
    assert not store._pending


def test_so_many_changes_wait_and_no_more() -> None:
    store = QuadStore(RenewalPolicy(pending_max=10))
    for number in range(10):
        store.apply(QuadDelta(added=(value(number),)))
    assert len(store._native) == 0
    store.apply(QuadDelta(added=(value(10),)))
    assert len(store._native) == 11


def test_looking_for_quads_and_graphs_writes_nothing() -> None:
    store = filled(0)
    named = value(1)._replace(g="<a:g>")
    store.apply(QuadDelta(added=(value(0), named), created=("<a:g>",)))
    assert store.contains([value(0), value(2), named]) == [True, False, True]
    assert store.has_graph("<a:g>")
    assert len(store) == 2
    assert not len(store._native)
    store.flush()
    store.apply(QuadDelta(removed=(value(0),)))
    assert store.contains([value(0), named]) == [False, True]
    assert len(store._native) == 2


def test_graph_outlives_its_last_quad_even_when_neither_was_written() -> None:
    store = filled(0)
    quad = value(1)._replace(g="<a:g>")
    store.apply(QuadDelta(added=(quad,), created=("<a:g>",)))
    store.apply(QuadDelta(removed=(quad,)))
    assert store.has_graph("<a:g>")
    assert native_graphs(store.native) == {"<a:g>"}


def test_graph_dropped_and_filled_again_between_two_reads() -> None:
    store = filled(0)
    old, new = value(1)._replace(g="<a:g>"), value(2)._replace(g="<a:g>")
    store.apply(QuadDelta(added=(old,), created=("<a:g>",)))
    store.flush()
    store.apply(QuadDelta(removed=(old,), dropped=("<a:g>",)))
    assert not store.has_graph("<a:g>")
    store.apply(QuadDelta(added=(new,), created=("<a:g>",)))
    assert list(store.quads("<a:g>")) == [new]


def test_graph_created_dropped_and_created_again_between_two_reads() -> None:
    store = filled(0)
    for delta in (QuadDelta(created=("<a:g>",)), QuadDelta(dropped=("<a:g>",)), QuadDelta(created=("<a:g>",))):
        store.apply(delta)
    assert native_graphs(store.native) == {"<a:g>"} == set(store.graphs())


def test_hot_subject_renews_the_store_though_most_of_it_lives() -> None:
    policy = RenewalPolicy(hot_floor=200)
    store = filled(100, policy)
    hot = policy.hot_dead_max(101)
    assert hot == 200
    rewrite(store, [0] * (hot + 1))
    assert (store.renewals, store.dead) == (0, hot)
    rewrite(store, [1] * 3)
    assert store.renewals == 1
    assert store.dead < 10
    assert len(store) == 102 == len(store.native)


def test_values_spread_over_subjects_renew_the_store_when_more_is_dead_than_alive() -> None:
    store = filled(300, RenewalPolicy(dead_floor=0, hot_floor=10**6))
    rewrite(store, (number % 50 for number in range(50 + 350)))
    assert (store.renewals, store.dead) == (0, 350)
    rewrite(store, [77] * 10)
    assert store.renewals == 1
    assert store.dead < 10


def test_dead_quads_stay_bounded_for_ever() -> None:
    store = filled(200, RenewalPolicy(dead_floor=100, hot_floor=100))
    worst = 0
    for _ in range(20):
        rewrite(store, (number % 20 for number in range(100)))
        worst = max(worst, store.dead)
        store.apply(QuadDelta(removed=tuple(quad for quad in store.quads(None) if quad.p == "<a:value>")))
    assert store.renewals > 3
    assert worst < 400


def test_renewal_copies_a_few_quads_at_a_time() -> None:
    policy = RenewalPolicy(dead_floor=0, slice_quads=10, copies_per_change=3, pending_max=20)
    store = filled(1000, policy)
    gone = tuple(store.quads(None))[:600]
    store.apply(QuadDelta(removed=gone))
    assert store._renewal is not None
    assert len(store._renewal.fresh) == 60, "20 changes count, not 600: a huge delta has a bounded share"
    steps = 1
    while store.step():
        steps += 1
    assert steps == (400 - 60) // 10 + 1, "the last step catches up"
    assert set(store.quads(None)) == {quad_from_native(quad) for quad in store.native}
    assert (len(store), store.renewals, store.dead) == (400, 1, 0)


def test_large_deltas_of_long_work_do_not_make_a_store_of_several_versions() -> None:
    slices, count = Elsewhere(), 12_000
    store, before = slices.store, tuple[Quad, ...]()
    slices.within = True
    for version in range(6):
        after = tuple(Quad(f"<a:s{n}>", "<a:p>", f'"{version} {n}"') for n in range(count))
        store.apply(QuadDelta(removed=before, added=after))
        before = after
    slices.within = False
    assert store.renewals == 5
    assert slices.dead_max <= count + RenewalPolicy().pending_max
    assert set(store.quads(None)) == set(before)


def test_long_work_that_only_removes_leaves_the_copying_for_later() -> None:
    slices = Elsewhere()
    store, quads = slices.store, tuple(Quad(f"<a:s{n}>", "<a:p>", f'"{n}"') for n in range(30_000))
    slices.within = True
    store.apply(QuadDelta(added=quads))
    store.apply(QuadDelta(removed=quads[10:]))
    slices.within = False
    store.flush()
    assert store._renewal is None or len(store._renewal.fresh) <= 10
    while store.step():
        pass
    assert (store.renewals, store.dead, len(store.native)) == (1, 0, 10)


def test_a_renewal_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(100, RenewalPolicy(dead_floor=0, slice_quads=10, copies_per_change=0))
    store.apply(QuadDelta(removed=tuple(store.quads(None))[:60]))
    store.flush()
    store.step()

    def fails(renewal: Renewal, live: int) -> bool:
        raise MemoryError(live)

    monkeypatch.setattr(Renewal, "step", fails)
    with pytest.raises(MemoryError):
        store.step()
    monkeypatch.undo()
    while store.step():
        pass
    assert store.renewals == 1
    assert {quad_from_native(quad) for quad in store.native} == set(store.quads(None))
    assert len(store.native) == 40


def test_quads_removed_during_a_renewal_are_dead_in_the_new_store() -> None:
    store = filled(100, RenewalPolicy(dead_floor=0, slice_quads=10, copies_per_change=0))
    quads = list(store.quads(None))
    store.apply(QuadDelta(removed=tuple(quads[:60])))
    store.flush()
    store.apply(QuadDelta(removed=tuple(quads[60:75])))
    while store.step():
        pass
    assert (store.renewals, store.dead, len(store)) == (1, 15, 25)


def test_values_that_came_and_went_during_a_renewal_are_not_in_the_new_store() -> None:
    store = filled(100, RenewalPolicy(dead_floor=0, slice_quads=1, copies_per_change=0))
    store.apply(QuadDelta(removed=tuple(store.quads(None))[:51]))
    store.flush()
    rewrite(store, [0] * 30)
    assert (store.renewals, store.dead) == (0, 51 + 29)
    while store.step():
        pass
    assert (store.renewals, store.dead) == (1, 0)


def test_renewed_store_is_handed_over_once() -> None:
    retired: list[object] = []
    store = QuadStore(EAGER, retired.append)
    first = store.native
    rewrite(store, [0] * 4)
    while store.step():
        pass
    assert retired[0] is first
    assert len(retired) == len(set(map(id, retired))) == store.renewals
    assert not any(old is store.native for old in retired)


def test_native_store_may_be_filled_before_the_first_delta() -> None:
    store = QuadStore()
    store.native.update("INSERT DATA { <a:s> <a:p> 1 . GRAPH <a:g> { <a:s> <a:p> 2 } }")
    assert (len(store), store.graphs()) == (2, ["<a:g>"])
    store.apply(QuadDelta(added=(value(0),)))
    assert len(store) == 3
    assert store.has_graph("<a:g>")


def test_blank_nodes_keep_their_labels_among_many_quads() -> None:
    store = filled(0)
    quads = tuple(Quad(f"_:b{number}", "<a:p>", f"_:b{number + 1}", "_:g") for number in range(50))
    store.apply(QuadDelta(added=quads))
    assert set(store.quads("_:g")) == set(quads)
    store.apply(QuadDelta(removed=quads[:20]))
    assert set(store.quads("_:g")) == set(quads[20:])


def test_quads_of_a_predicate_come_from_all_graphs() -> None:
    store = filled(9)
    named = Quad("_:b", "<a:p1>", "_:b", "_:g")
    odd = Quad("<a:s>", "<a:p1>", '"a\u2028b\u0085c \\n \\u0001 ."@en')
    store.apply(QuadDelta(added=(named, odd)))
    expected = {Quad("<a:s1>", "<a:p1>", '"1"'), Quad("<a:s8>", "<a:p1>", '"8"'), named, odd}
    assert set(store.quads_with("<a:p1>")) == expected
    assert set(store.quads_with(None)) == expected | set(store.quads(None))


def test_all_quads_are_those_of_the_moment_with_gaps_for_the_unwanted() -> None:
    store = filled(3)
    quads = store.all_quads(lambda p: p == "<a:p1>")
    first = next(quads)
    store.apply(QuadDelta(added=(value(0),)))
    store.flush()
    assert sorted([first, *quads], key=str) == sorted([None, Quad("<a:s1>", "<a:p1>", '"1"'), None], key=str)


def test_dataset_is_not_written_in_a_syntax_without_graphs() -> None:
    store = filled(1)
    assert store.dump("application/n-quads") == b'<a:s0> <a:p0> "0" .\n'
    with pytest.raises(UnsupportedRequestError, match="n-quads"):
        store.dump("text/turtle")


def test_counting_is_bounded_and_finds_the_frequent_among_many() -> None:
    heavy = _Heavy()
    total = 0
    for round_ in range(20):
        heavy.count([f"<a:s{round_}-{number}>" for number in range(2000)])
        largest = heavy.count(["<a:hot>"] * 10)
        total += 2010
    assert len(heavy._counts) <= 2 * TRACKED_MAX + 1
    assert 200 - total / TRACKED_MAX <= largest <= 200


def test_predicate_shared_by_all_is_hot_only_beside_what_lives() -> None:
    policy = RenewalPolicy(hot_floor=10, dead_floor=10**6)
    ageing = Ageing(policy)
    live = 100_000
    for number in range(0, live // 2, 100):
        ageing.count([value(number + n, subject=number + n) for n in range(100)], live)
    assert not ageing.is_due(live)
    for number in range(Ageing.SAMPLE):  # of large writes every eighth is counted, for eight
        ageing.count([value(live + 100 * number + n, subject=live + 100 * number + n) for n in range(100)], live)
    assert ageing.is_due(live)


def test_removed_quads_that_are_passed_over_are_never_counted_too_low() -> None:
    """Whatever is sampled, forgotten as rare, or counted eightfold."""
    random = Random(5)
    policy = RenewalPolicy(dead_floor=10**9, hot_floor=10**9)  # no renewal
    ageing, exact = Ageing(policy), [Counter[str](), Counter[str](), Counter[str]()]
    for turn in range(500):
        size = random.choice([1, 4, 8, 9, 100, 200])
        quads = [
            Quad(
                f"<urn:s{random.randrange(30_000) if random.random() < 0.9 else turn % 3}>",
                f"<urn:p{random.randrange(3)}>",
                f'"{random.randrange(20_000) if random.random() < 0.7 else turn % 5}"',
                None,
            )
            for _ in range(size)
        ]
        ageing.count(quads, 10**6)
        for position in range(3):
            exact[position].update([quad[position] for quad in quads])  # type: ignore[misc]
    for position, counts in enumerate(exact):
        for term, count in [*counts.items(), ("<urn:never>", 0)]:
            assert count <= ageing.dead_max(position, term) <= ageing.dead
    assert ageing.dead_max(3, "<urn:g>") == ageing.dead_max(0, None) == ageing.dead
    assert ageing.dead_max(0, "<urn:s0>") < ageing.dead, "the bound says something"


def test_a_loaded_store_ends_what_was_begun_with_the_one_before() -> None:
    store = filled(100, RenewalPolicy(dead_floor=0, slice_quads=10, copies_per_change=0))
    quads = list(store.quads(None))
    store.apply(QuadDelta(removed=tuple(quads[:60])))
    assert store.step()  # a renewal has begun
    store.apply(QuadDelta(removed=tuple(quads[60:])))  # which is not written
    assert store.new_native() is not None
    native = ox.Store()
    loaded = [*quads, *(Quad(f"<a:{number}>", "<a:p>", "<a:o>") for number in range(6000))]
    write(native, (), loaded, {})
    retired: list[object] = []
    store.retire = retired.append
    store.apply(QuadDelta(added=Loaded(loaded, native)))
    assert (len(retired), store.native, store.dead, store.renewing) == (1, native, 0, False)
    assert store.new_native() is None
    while store.step():
        pass
    assert set(store.quads(None)) == set(loaded)
    assert len(store) == len(loaded)
