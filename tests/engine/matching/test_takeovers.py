"""A takeover by the store is part of the commit and of `describe`, and a plan follows again when the data allows it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.core import Commit
from lamplighter.engine.matching import takeovers
from lamplighter.engine.matching.takeovers import LATER, WAIT, WAIT_MAX
from tests.properties.comparison import Comparison, Tally
from tests.properties.sparql_texts import Cut
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

SAME = (
    "SELECT ?a ?b { ?a <x:in> ?r . ?b <x:in> ?r . ?c <x:in> ?r . ?d <x:in> ?r FILTER(?a = ?b && ?b = ?c && ?c != ?d) }"
)
"""Its plan tries as many rows as the fourth power of the things in a room."""
COSTLY = 30
"""Things in one room that take more work than one millisecond allows; half of them do not."""


def things(numbers: range, room: str = "x:room", form: str = "INSERT") -> str:
    return f"{form} DATA {{ {' . '.join(f'<x:t{number}> <x:in> <{room}>' for number in numbers)} }}"


def grown(engine: Engine, count: int = COSTLY) -> Commit:
    """The commit at which the store takes over, one thing at a time."""
    for number in range(count):
        commit = engine.update(things(range(number, number + 1)))
        if commit.takeovers:
            return commit
    raise AssertionError("no takeover")


def test_a_takeover_is_part_of_the_commit_and_of_the_description() -> None:
    with Engine(evaluation_ms_max=1) as engine:
        ones = [engine.subscribe(text).spuid for text in (SAME, SAME, "SELECT ?a { ?a <x:in> <x:room> }")]
        assert [engine.describe(spuid).taken_over for spuid in ones] == [None] * 3
        commit = grown(engine)
        assert [one.spuid for one in commit.takeovers] == ones[:2]
        for one in commit.takeovers:
            info = engine.describe(one.spuid)
            assert one.spu_class == info.spu_class == "re-evaluated"
            assert one.reason == info.reason
            assert one.reason.startswith("more work than limits.evaluation_ms_max = 1")
            assert info.taken_over == commit.sequence == engine.sequence
        assert "takeovers=" in repr(commit)
        assert engine.takeovers == 1
        later = engine.subscribe(SAME)
        assert engine.describe(later.spuid).taken_over == commit.sequence, "it shares the unit"
        assert not engine.update(things(range(90, 91))).takeovers
        assert engine.describe(ones[2]).taken_over is None


def test_a_plan_follows_again_when_there_is_half_of_the_data() -> None:
    """Quads of other predicates do not count, and the other units of the shape come along."""
    with Engine(evaluation_ms_max=1) as engine:
        spuids = [engine.subscribe(SAME).spuid, engine.subscribe(SAME.replace("{", "{ ?a <x:v> 1 .", 1)).spuid]
        engine.update(f"INSERT DATA {{ {' . '.join(f'<x:s{n}> <x:other> {n}' for n in range(500))} }}")
        count = grown(engine).sequence - 1
        taken = [spuid for spuid in spuids if engine.describe(spuid).spu_class == "re-evaluated"]
        assert taken == spuids[:1]
        for number in range(count):
            commit = engine.update(things(range(number, number + 1), form="DELETE"))
            if commit.takeovers:
                break
        assert number + 1 == count - (count - 1) // 2, "the first commit with less than half of them"
        [back] = commit.takeovers
        info = engine.describe(back.spuid)
        assert back == (spuids[0], "telescoped", "")
        assert (info.spu_class, info.reason, info.taken_over) == ("telescoped", "", count + 1)
        assert "takeovers=" in repr(commit)
        assert engine.subscription_classes == {"telescoped": 2}
        assert engine.cost(engine.prepare(things(range(50, 51)))).re_evaluated == ()


def cycled(engine: Engine) -> int:
    """How many commits that touch the shape there are from a takeover to the return."""
    grown(engine)
    engine.update(f"DELETE WHERE {{ ?a <x:in> ?r }} ; {things(range(1))}")
    commits = 1
    while "re-evaluated" in engine.subscription_classes:
        engine.update(things(range(1), form="DELETE" if commits % 2 else "INSERT"))
        commits += 1
    engine.update("DELETE WHERE { ?a <x:in> ?r }")
    return commits


def test_who_grows_and_shrinks_all_the_time_waits_longer_each_time_up_to_a_bound() -> None:
    with Engine(evaluation_ms_max=1) as engine:
        engine.subscribe(SAME)
        waits = [WAIT << number for number in range(3)]
        assert [cycled(engine) for _ in range(4)] == [1, *waits]
        [shape] = engine._subscriptions._shapes.by_key.values()
        engine._subscriptions.takeovers._returns[shape] = 40
        grown(engine)
        assert engine._subscriptions.takeovers.waiting[shape]._wait == WAIT_MAX


def test_a_plan_is_tried_later_although_the_data_is_not_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was too much may be a small part of the quads. A trial that fails is put off for twice as long."""
    monkeypatch.setattr(takeovers, "LATER", 4)
    with Engine(evaluation_ms_max=1) as engine:
        one = engine.subscribe(SAME)
        engine.update(f"INSERT DATA {{ {' . '.join(f'<x:s{n}> <x:in> <x:r{n}>' for n in range(300))} }}")
        grown(engine)
        tries: list[int] = []
        plan_again = engine._subscriptions._shapes.plan_again

        def noted(shape: object) -> object:
            tries.append(engine.sequence)
            return plan_again(shape)  # type: ignore[arg-type]

        monkeypatch.setattr(engine._subscriptions._shapes, "plan_again", noted)
        begun = engine.sequence
        for number in range(30):
            engine.update(things(range(500 + number, 501 + number), "x:others"))
        assert [at - begun + 1 for at in tries] == [4, 12, 28]
        engine.update("DELETE WHERE { ?a <x:in> <x:room> } ; DELETE WHERE { ?a <x:in> <x:others> }")
        while engine.describe(one.spuid).spu_class == "re-evaluated":
            engine.update(f"INSERT DATA {{ <x:t> <x:in> <x:q{engine.sequence}> }}")
        assert engine.sequence - begun == 28 + 32
    assert LATER > WAIT


def test_a_trial_that_fails_leaves_the_store_in_charge_and_nothing_behind() -> None:
    few_units = Comparison(Tally(), units_max=1)._few_units
    for query in (SAME, "SELECT (COUNT(*) AS ?n) " + SAME[SAME.index("{") :]):
        with Engine(evaluation_ms_max=1) as engine:
            one = engine.subscribe(query)
            count = grown(engine).sequence
            with few_units():
                commit = engine.update(things(range(count // 2 + 1), form="DELETE"))
            assert not commit.takeovers and not engine.faults
            assert engine.describe(one.spuid).spu_class == "re-evaluated"
            assert len(engine.cts) == 0 and not engine._subscriptions._lutt.filed
            assert not engine._subscriptions._shapes.groups
            assert not engine.update(things(range(99, 100))).takeovers, "not before half of that is left"
            assert engine.update("DELETE WHERE { ?a <x:in> ?r }").takeovers


def test_a_trial_that_fails_for_another_reason_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(evaluation_ms_max=1) as engine:
        one = engine.subscribe(SAME)
        grown(engine)

        def failing(*arguments: object, **named: object) -> None:
            raise MemoryError("injected")

        with monkeypatch.context() as patched:
            patched.setattr("lamplighter.engine.matching.shapes.Plan", failing)
            commit = engine.update("DELETE WHERE { ?a <x:in> ?r }")
        assert not commit.takeovers
        assert ["MemoryError: injected" in fault for fault in engine.faults] == [True]
        assert len(commit.notifications) == 1, "from the store"
        assert engine.describe(one.spuid).spu_class == "re-evaluated"


def test_a_subscription_that_has_the_store_take_over_others_is_reported_with_the_next_commit() -> None:
    """The sum of its first result overflows, so all units of the shape lose their plan."""
    query = "SELECT (SUM(?v) AS ?n) { ?s <x:v> ?v ; <x:in> <x:%s> }"
    with Engine() as engine:
        engine.update(
            "INSERT DATA { <x:a> <x:v> 1 ; <x:in> <x:small> . "
            "<x:b> <x:v> 9223372036854775806 , 5 , 1e0 ; <x:in> <x:large> }"
        )
        small, gone = engine.subscribe(query % "small"), engine.subscribe(query % "small")
        large = engine.subscribe(query % "large")
        assert (small.spu_class, large.spu_class) == ("counted", "re-evaluated")
        assert engine.describe(small.spuid).taken_over == 1
        assert engine.describe(large.spuid).taken_over is None, "it never had a plan"
        engine.unsubscribe(gone.spuid)
        commit = engine.update("INSERT DATA { <x:c> <x:other> 1 }")
        assert [(one.spuid, one.spu_class) for one in commit.takeovers] == [(small.spuid, "re-evaluated")]
        assert engine.describe(small.spuid).taken_over == 1


def test_who_is_ended_is_not_taken_over() -> None:
    with Engine(evaluation_ms_max=1, ends_costly=True) as engine:
        engine.subscribe(SAME)
        commit = engine.update(things(range(COSTLY)))
        assert len(commit.ended) == 1
        assert not commit.takeovers
        assert not engine._subscriptions.takeovers.waiting and not engine._subscriptions.takeovers.commits


def test_time_goes_on_across_takeover_and_return() -> None:
    """The store does not know when a comparison with the clock changes; the boundaries stay."""
    start = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
    query = (
        "PREFIX g: <http://lamplighter.example/ns/gateway#> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
        "SELECT (MIN(?v) AS ?least) { ?x <x:at> ?t ; <x:v> ?v FILTER(g:now() - ?t < 'PT9S'^^xsd:dayTimeDuration) }"
    )
    with Engine(clock=lambda: start) as engine:
        one = engine.subscribe(query)
        for number, value in enumerate((1, 2, 3, 4, "'text'")):
            at = (start + timedelta(seconds=number)).replace(tzinfo=None).isoformat()
            typed = f"'{at}Z'^^<http://www.w3.org/2001/XMLSchema#dateTime>"
            engine.update(f"INSERT DATA {{ <x:{number}> <x:at> {typed} ; <x:v> {value} }}")
        assert engine.describe(one.spuid).spu_class == "re-evaluated"
        for number in (4, 0, 1):
            assert engine.describe(one.spuid).spu_class == "re-evaluated"
            engine.update(f"DELETE WHERE {{ <x:{number}> ?p ?o }}")
        assert engine.describe(one.spuid).spu_class == "counted"
        least = []
        while engine.due is not None:
            for notification in engine.advance(engine.due).notifications:
                [(value,)] = notification.added
                least.append(None if value is None else value.split('"')[1])
        assert least == ["4", None]


# --- exact across takeover and return -------------------------------------------------------------------

ROUNDS = 12
QUERIES = {
    "telescoped": "SELECT ?a ?c { ?a <x:p> ?b . ?b <x:p> ?c . ?c <x:p> ?d }",
    "seeded": "SELECT ?a ?d { ?a <x:p> ?b . ?b <x:p> ?c OPTIONAL { ?c <x:q> ?d } FILTER NOT EXISTS { ?a <x:v> ?c } }",
    "counted": "SELECT (COUNT(*) AS ?n) (MAX(?c) AS ?m) { ?a <x:p> ?b . ?b <x:p> ?c }",
}
ORDERED = "SELECT ?a ?b ?n { ?a <x:p> ?b . ?b <x:v> ?n } ORDER BY ?n LIMIT 3"
"""Some of its rows tie, so that the store may choose others than the plan."""
PATH = "SELECT ?a ?c { ?a <x:p>+ ?b . ?b <x:q> ?c }"
EACH = 2
"""Takeovers and returns of each query in a run."""


def test_results_are_exact_across_takeover_and_return(amounts: Amounts) -> None:
    """Against the oracle, while the data grows beyond what a plan may do, and shrinks again."""
    tally = Tally()
    moved: Counter[tuple[str, str]] = Counter()

    def check() -> None:
        for name in (*QUERIES, "ordered", "path"):
            for spu_class in ("re-evaluated", "planned"):
                assert moved[name, spu_class] >= amounts.of(EACH, 2), moved

    for seed in seeds(amounts.of(12), check):
        random, comparison = Random(seed), Comparison(tally, units_max=random_units(seed))
        names = {}
        with comparison._few_units():
            for name, text in (*QUERIES.items(), ("path", PATH)):
                follower = comparison.subscribe(text)
                assert follower.spu_class == ("telescoped" if name == "path" else name)
                names[follower.spuid] = name
            cut = Cut("SELECT ?a ?b ?n (?n AS ?key) { ?a <x:p> ?b . ?b <x:v> ?n }", (False,), 0, 3)
            names[comparison.subscribe(ORDERED, cut=cut).spuid] = "ordered"
        engine, there = comparison.engine, set[str]()

        def noted(commit: Commit, names: dict[str, str] = names) -> None:
            for one in commit.takeovers:
                moved[names[one.spuid], "re-evaluated" if one.reason else "planned"] += 1

        engine.listen(noted)
        for _ in range(ROUNDS):
            size = random.choice((2, 12, 40))
            while len(there) != size:
                if len(there) < size:
                    s, o = random.randrange(8), random.randrange(8)
                    quad = random.choice(
                        (f"<x:{s}> <x:p> <x:{o}>",) * 5 + (f"<x:{s}> <x:q> <x:{o}>", f"<x:{s}> <x:v> {o % 2}")
                    )
                    there.add(quad)
                    comparison.update(f"INSERT DATA {{ {quad} }}")
                else:
                    quad = random.choice(sorted(there))
                    there.discard(quad)
                    comparison.update(f"DELETE DATA {{ {quad} }}")
        comparison.check_dataset()
        engine.close()
    assert tally.counts["returned"] and tally.counts["taken over"]
    print(f"\nacross takeover and return: {dict(moved)} {tally}")


def random_units(seed: int) -> int:
    return (30, 60, 120)[seed % 3]
