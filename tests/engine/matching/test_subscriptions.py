"""Classes of queries, what matching costs, and what is left when subscriptions end."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    UnknownSpuidError,
    UnsupportedRequestError,
)
from lamplighter.engine.matching import following
from lamplighter.engine.work import EVALUATION_MS_MAX
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> "

CLASSES = {
    "telescoped": [
        "SELECT * { ?s :p ?o }",
        "SELECT ?s { ?s ?p ?o }",
        "SELECT ?s { ?s :p ?o . ?o :q ?x . ?x :r 1 }",
        "SELECT ?s { ?s :p ?o FILTER ( ?o > 1 && ?s != :a ) }",
        "SELECT ?s { { ?s :p ?o } UNION { ?s :q ?o } }",
        "SELECT ?s { VALUES ?s { :a :b } ?s :p ?o }",
        "SELECT ?s ?b { ?s :p ?o BIND ( ?o + 1 AS ?b ) }",
        "SELECT ?s { ?s :p/^:q/:r ?o }",
        "SELECT ?s ?g { GRAPH ?g { ?s :p ?o } GRAPH :g { ?o :q ?x } }",
        "SELECT ?s ( STR( ?o ) AS ?t ) { ?s :p ?o }",
        "SELECT ?s FROM :g FROM :h { ?s :p ?o . ?o :q ?x }",
        "SELECT ?s { ?s :p+ ?o }",
        "SELECT ?s { ?s :p* :a }",
        "SELECT ?s { ?s a/:sub* :C ; ( :p|^:q )* ?o . ?o a/:sub* :D }",
        "SELECT ?s { GRAPH ?g { ?s ^:p+ ?o } }",
        "SELECT ?s { " + " ".join(f"?s :p{number} ?o{number} ." for number in range(32)) + " }",
    ],
    "seeded": [
        "SELECT * { ?s :p ?o OPTIONAL { ?o :q ?x } }",
        "SELECT ?s { ?s :p ?o MINUS { ?s :q ?x } }",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { ?o :q ?x } }",
        "SELECT ?s { ?s :p ?o FILTER NOT EXISTS { ?o :q ?x FILTER ( ?x > 1 ) } }",
        "SELECT ?s ( COUNT( * ) AS ?n ) { ?s :p ?o } GROUP BY ?s",
        "SELECT ?s ( SUM( ?o ) AS ?n ) { ?s :p ?o } GROUP BY ?s HAVING ( COUNT( ?o ) > 1 )",
        "SELECT DISTINCT ?s { ?s :p ?o }",
        "SELECT ?s { ?s :p ?o OPTIONAL { ?s :q* ?x } }",
        "SELECT ?s { ?s :p ?o FILTER NOT EXISTS { ?s ( :q|:r )+ ?x } }",
        "SELECT ?s { ?s :p|:q* ?o }",
        "SELECT ?s { ?s :p ?o { SELECT DISTINCT ?o { ?o :q ?x } } }",
        "SELECT ?s ?n { ?s :p ?o { SELECT ?o ( COUNT( * ) AS ?n ) { ?o :q ?x } GROUP BY ?o } }",
        "SELECT ?s FROM :g FROM :h FROM :i { ?s :p ?o . ?o :q ?x . ?x :r ?y }",
        "SELECT * { ?s :p ?o OPTIONAL { ?o :q ?x OPTIONAL { ?x :r ?y OPTIONAL { ?y :t ?z } } } }",
        "SELECT DISTINCT ?s { ?s :p ?o OPTIONAL { ?o :q ?x } FILTER NOT EXISTS { ?o :r ?y } }",
        "SELECT ?s ( COUNT( ?x ) AS ?n ) { ?s :p ?o OPTIONAL { ?o :q ?x } } GROUP BY ?s",
        "SELECT ?s ( GROUP_CONCAT( DISTINCT STR( ?o ) ; SEPARATOR = '|' ) AS ?x ) { ?s :p ?o } GROUP BY ?s",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { ?s :q* ?x OPTIONAL { ?x :r+ ?y } FILTER ( ! BOUND( ?y ) ) } }",
        "SELECT ?s { ?s :p ?o FILTER NOT EXISTS { ?o ( :q|:r )* ?x MINUS { ?x :r? ?y } } }",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { ?s :q|:r* ?x BIND ( ?x AS ?y ) VALUES ?x { :a :b } } }",
        "SELECT ?s { ?s :p ?o MINUS { ?o :q+ ?x . ?x :r ?y } }",
    ],
    "counted": [
        "SELECT ( COUNT( * ) AS ?n ) { ?s :p ?o }",
        "SELECT ( SUM( ?o ) AS ?n ) { ?s :p ?o }",
        "SELECT ( COUNT( * ) AS ?n ) { ?s :p* ?o }",
        "SELECT ( COUNT( * ) AS ?n ) { ?s a/:sub* :C }",
        "SELECT ( AVG( ?o ) AS ?n ) { :a :p ?o }",
        "SELECT ( GROUP_CONCAT( ?o ) AS ?x ) { ?s :p ?o }",
    ],
    "ordered": [
        "SELECT ?s { ?s :p ?o } ORDER BY ?o LIMIT 2",
        "SELECT DISTINCT ?s { ?s :p ?o } ORDER BY DESC( STR( ?s ) ) OFFSET 1 LIMIT 2",
        "SELECT ?s ( COUNT( * ) AS ?n ) { ?s :p ?o } GROUP BY ?s ORDER BY DESC( ?n ) LIMIT 3",
        "SELECT ?s ?x { ?s :p ?o OPTIONAL { ?o :q ?x } } ORDER BY ?x ?s LIMIT 3",
    ],
    "re-evaluated": [
        "SELECT ?s { ?s :p ?o } LIMIT 2",
        "SELECT ?s FROM :g FROM NAMED :h { ?s :p ?o }",
        "SELECT ?s { ?s ( :p/:q )+ ?o }",
        "SELECT ?s { ?s !:p ?o }",
        "SELECT ?g { GRAPH ?g { } }",
        "SELECT ?s ( SAMPLE( ?o ) AS ?x ) { ?s :p ?o } GROUP BY ?s",
        "SELECT ?s { " + " ".join(f"?s :p{number} ?o{number} ." for number in range(33)) + " }",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { ?s :q ?x OPTIONAL { ?x :r ?o } } }",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { ?s :q ?x MINUS { ?x :r ?o } } }",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { ?s :q ?x MINUS { ?y :r ?z } } }",
        "SELECT ?s { ?s :p ?o FILTER EXISTS { SELECT ?s ( COUNT( * ) AS ?n ) { ?s :q ?x } GROUP BY ?s } }",
    ],
}


@each_row(("spu_class", "query"), [(name, query) for name in CLASSES for query in CLASSES[name]])
def test_class_of_a_typical_query(spu_class: str, query: str) -> None:
    engine = Engine()
    assert engine.subscribe(PREFIX + query).spu_class == spu_class
    assert engine.subscription_classes == {spu_class: 1}


@each_row(
    "query",
    [
        "SELECT ?s { SERVICE <http://elsewhere.example/> { ?s :p ?o } }",
        "SELECT ?s { ?s :p ?o FILTER ( ?o < NOW() ) }",
        "SELECT ?s ( RAND() AS ?r ) { ?s :p ?o }",
        "SELECT ?s { ?s :p ?o BIND ( UUID() AS ?u ) }",
        "ASK { ?s :p ?o } LIMIT 1",
        "CONSTRUCT { ?s :q [] } WHERE { ?s :p ?o }",
    ],
)
def test_what_could_not_be_kept_true_is_refused(query: str) -> None:
    engine = Engine()
    with pytest.raises(UnsupportedRequestError):
        engine.subscribe(PREFIX + query)
    assert engine.subscription_count == 0


@each_row(
    "where",
    [
        "?s :p ?o FILTER ( ?o > 1 )",
        "?s :p ?o FILTER EXISTS { ?o :q ?x }",
        "?s :p ?o OPTIONAL { ?o :q ?x FILTER ( ?x > 1 ) }",
        "?s :p ?o BIND ( ?o + 1 AS ?b )",
        "VALUES ?s { :a :b } ?s :p ?o",
    ],
)
def test_several_default_graphs_are_followed_as_one(where: str) -> None:
    engine = Engine()
    spu_class, rows, follow = followed(engine, f"SELECT * FROM :g FROM :h {{ {where} }}")
    assert spu_class != "re-evaluated"
    for graph in ("g", "h", "i"):
        follow(engine.update(PREFIX + f"INSERT DATA {{ GRAPH :{graph} {{ :a :p 1 , 2 . :b :p :a }} }}"))
        follow(engine.update(PREFIX + f"INSERT DATA {{ GRAPH :{graph} {{ :a :q 1 , 2 }} }}"))
    assert rows.total()
    follow(engine.update(PREFIX + "DELETE WHERE { GRAPH :g { :a :p ?o } }"))


# -- aggregates whose value depends on the order ----------------------------------------------------------------------

SUMS = "SELECT ?s ( SUM( ?v ) AS ?t ) { ?s :v ?v } GROUP BY ?s"


def followed(engine: Engine, text: str) -> tuple[str, Counter[Any], Callable[[Any], None]]:
    subscription = engine.subscribe(PREFIX + text)
    rows = Counter(subscription.first.rows)

    def follow(commit: Any) -> None:
        for notification in commit.notifications:
            if notification.spuid == subscription.spuid:
                rows.subtract(notification.removed.rows)
                rows.update(notification.added.rows)
        assert +rows == Counter(engine.query(PREFIX + text).value.rows)  # type: ignore[union-attr]

    return subscription.spu_class, rows, follow


@each_row(
    ("query", "values"),
    [
        (SUMS, ("9223372036854775806", "2e0", "-5")),
        (SUMS.replace("SUM", "AVG"), ("9223372036854775806", "2e0", "-5")),
        (SUMS.replace("SUM", "MAX"), ("2", "'1'^^:dt", "3e0")),
        (SUMS.replace("SUM", "MIN"), ("'a'", "1", ":b", "'a'@en")),
    ],
)
def test_class_is_given_up_when_the_order_of_values_matters(query: str, values: tuple[str, ...]) -> None:
    """Sums that may overflow, and terms that do not compare: only the store knows in which order it takes them."""
    engine = Engine()
    engine.update(f"{PREFIX}INSERT DATA {{ :a :v 1 . :b :v 1 }}")
    spu_class, _, follow = followed(engine, query)
    assert spu_class == "seeded"
    for value in values:
        follow(engine.update(f"{PREFIX}INSERT DATA {{ :a :v {value} . :b :v {value} }}"))
    assert engine.subscription_classes == {"re-evaluated": 1}
    for value in reversed(values):
        follow(engine.update(f"{PREFIX}DELETE DATA {{ :a :v {value} }}"))


def test_subscribing_to_such_values_is_re_evaluated_from_the_start() -> None:
    engine = Engine()
    engine.update(f"{PREFIX}INSERT DATA {{ :a :v 9223372036854775806 , 1.0e0 , 2e0 }}")
    spu_class, _, follow = followed(engine, SUMS)
    assert spu_class == "re-evaluated"
    follow(engine.update(f"{PREFIX}INSERT DATA {{ :a :v 3.3e0 }}"))


def test_all_units_of_a_shape_go_over_and_stay_right() -> None:
    engine = Engine()
    text = "SELECT ( SUM( ?v ) AS ?t ) {{ :{} :v ?v . :{} :w ?w }}"
    watched = [followed(engine, text.format(name, name)) for name in "abc"]
    for change in (
        ":a :v 1 , 2 ; :w 1 . :b :v 3 ; :w 1",
        ":a :v 9223372036854775806 , 2e0 , 3e0 . :b :v 4 . :c :w 1",
        ":b :v 5 . :c :v 6",
    ):
        commit = engine.update(f"{PREFIX}INSERT DATA {{ {change} }}")
        for _, _, follow in watched:
            follow(commit)
    assert set(engine.subscription_classes) == {"re-evaluated"}


# -- ends -------------------------------------------------------------------------------------------------------------


def signature(engine: Engine) -> dict[str, object]:
    """Everything that subscriptions put somewhere."""
    subscriptions, lutt = engine._subscriptions, engine._subscriptions._lutt
    return {
        "shapes": len(subscriptions._shapes.by_key),
        "matchers": sum(map(len, lutt.matchers.values())) + len(lutt.wildcards),
        "patterns": len(lutt._patterns),
        "graph names": len(lutt._graph_names),
        "tables": sorted(engine._cts.tables),
        "paths": sorted(engine._cts.paths),
        "count": engine.subscription_count,
        "classes": engine.subscription_classes,
    }


@each_row("seed", range(5), is_amount=True)
def test_ending_in_any_order_leaves_nothing_behind(seed: int) -> None:
    engine = Engine()
    engine.update(f"{PREFIX}INSERT DATA {{ :a :p 1 ; :q :b . :b :p 2.5e0 , 1e16 , 3e0 ; :v 1e0 , 2e0 , 4e0 }}")
    empty = signature(engine)
    chosen = random.Random(seed)
    queries = [query for of_class in CLASSES.values() for query in of_class] + [SUMS]
    queries += [f"SELECT ?o {{ :n{number} :p ?o OPTIONAL {{ ?o :q :n{number} }} }}" for number in range(10)]
    spuids: list[str] = []
    for number in range(150):
        if spuids and chosen.random() < 0.4:
            engine.unsubscribe(spuids.pop(chosen.randrange(len(spuids))))
        else:
            spuids.append(engine.subscribe(PREFIX + chosen.choice(queries)).spuid)
        if number % 7 == 0:
            engine.update(f"{PREFIX}INSERT DATA {{ :b :p {number}e0 . :n{number % 10} :p :a }}")
        assert engine.subscription_count == len(spuids)
    chosen.shuffle(spuids)
    for spuid in spuids:
        engine.unsubscribe(spuid)
        with pytest.raises(UnknownSpuidError):
            engine.unsubscribe(spuid)
    assert signature(engine) == empty
    assert engine.update(f"{PREFIX}INSERT DATA {{ :z :p 1 ; :q 2 }}").notifications == ()


def test_ended_subscriptions_are_freed() -> None:
    engine = Engine()

    def cycle() -> None:
        spuids = [
            engine.subscribe(f"{PREFIX}SELECT ?o {{ :n{number} :p{number % 20} ?o OPTIONAL {{ ?o :q ?x }} }}").spuid
            for number in range(200)
        ]
        for spuid in spuids:
            engine.unsubscribe(spuid)

    cycle()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5):
        cycle()
    gc.collect()
    assert len(gc.get_objects()) - before < 200


def test_refused_subscription_leaves_nothing_behind() -> None:
    engine = Engine()
    empty = signature(engine)
    for text in ("SELECT ?s { ?s :p ?o } GROUP BY ?o", "SELECT * { ?s :p }", "SELECT ( NOW() AS ?n ) { ?s :p ?o }"):
        with pytest.raises(GatewayError):
            engine.subscribe(PREFIX + text)
    assert signature(engine) == empty


def test_the_cost_of_a_delta_has_what_the_store_evaluates() -> None:
    engine = Engine()
    delta = engine.prepare(f"{PREFIX}INSERT DATA {{ :a :p :b }}")
    assert engine.cost(delta).re_evaluated == ()
    by_store = engine.subscribe(f"{PREFIX}SELECT ?a ?b {{ ?a (:p/:p?)+ ?b }}")
    engine.subscribe(f"{PREFIX}SELECT ?a {{ ?a :p ?b }}")
    assert engine.cost(delta).re_evaluated == [engine.describe(by_store.spuid).text]
    assert engine.cost(engine.prepare(f"{PREFIX}INSERT DATA {{ :a :q :b }}")).re_evaluated == []


def test_quads_that_go_count_beside_those_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LONG_MATCHINGS", 10)
    engine = Engine()
    for number in range(10):
        engine.subscribe(f"{PREFIX}SELECT ?s {{ ?s :p ?o OPTIONAL {{ ?s :q{number} ?x }} }}")
    engine.update(f"{PREFIX}INSERT DATA {{ :a :p 1 }}")
    both = engine.cost(engine.prepare(f"{PREFIX}DELETE DATA {{ :a :p 1 }} ; INSERT DATA {{ :a :p 2 }}"))
    one = engine.cost(engine.prepare(f"{PREFIX}INSERT DATA {{ :a :p 2 }}"))
    assert (both.quads, both.long, one.quads, one.long) == (2, True, 1, False)


# -- cost -------------------------------------------------------------------------------------------------------------


def counted(engine: Engine) -> Counter[str]:
    """Counts the calls of matchers from now on."""
    calls: Counter[str] = Counter()
    lutt = engine._subscriptions._lutt

    def counting(matcher: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            calls["calls"] += 1
            matcher(*arguments)

        return call

    for filed in [*lutt.matchers.values(), lutt.wildcards]:
        filed[:] = [counting(matcher) for matcher in filed]
    return calls


@each_row(
    "query",
    [
        "SELECT ?o {{ :s{0} :p ?o }}",
        "SELECT ?s {{ ?s :p :o{0} }}",
        "SELECT ?o {{ :s{0} :p ?o . ?o :q ?x FILTER ( ?x > 1 ) }}",
        "SELECT ?o {{ :s{0} :p ?o OPTIONAL {{ ?o :q ?x }} }}",
        "SELECT ( COUNT( * ) AS ?n ) {{ :s{0} :p ?o }}",
        "SELECT ?s {{ ?s :p ?o FILTER ( ?o = :o{0} ) }}",
        "SELECT ?s {{ ?s :p :o{0} , :x{0} , :y{0} }}",
    ],
)
def test_matching_does_not_cost_more_with_more_subscriptions_of_a_shape(query: str) -> None:
    costs = []
    for count in (2, 200):
        engine = Engine()
        engine.update(f"{PREFIX}INSERT DATA {{ :s1 :p :x1 , :y1 }}")
        for number in range(count):
            engine.subscribe(PREFIX + query.format(number))
        calls = counted(engine)
        assert len(engine._subscriptions._shapes.by_key) == 1
        commit = engine.update(f"{PREFIX}INSERT DATA {{ :s1 :p :o1 . :other :p :other }}")
        assert len(commit.notifications) <= 1
        engine.update(f"{PREFIX}INSERT DATA {{ :s1 :unwatched 1 }}")
        costs.append(calls["calls"])
    assert costs[0] == costs[1] > 0


def test_quad_that_no_pattern_names_costs_nothing() -> None:
    engine = Engine()
    for number in range(30):
        engine.subscribe(f"{PREFIX}SELECT ?s {{ ?s :p{number} ?o }}")
    calls = counted(engine)
    engine.update(f"{PREFIX}INSERT DATA {{ :s :none 1 }}")
    assert calls["calls"] == 0
    engine.update(f"{PREFIX}INSERT DATA {{ :s :p7 1 }}")
    assert calls["calls"] == 1


def test_re_evaluated_subscriptions_are_only_asked_when_they_are_touched() -> None:
    engine = Engine()
    for number in range(50):
        engine.subscribe(f"{PREFIX}SELECT ?o {{ :s{number} ( :p/:r )+ ?o }}")
    asked = 0
    select = engine.store.select

    def counting(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return select(*arguments)

    engine.store.select = counting  # type: ignore[method-assign]
    engine.update(f"{PREFIX}INSERT DATA {{ :s1 :q :o }}")
    assert asked == 0


def test_only_what_patterns_name_is_indexed() -> None:
    engine = Engine()
    data = " . ".join(f":s{n} :p {n} ; :q {n} ; :r {n}" for n in range(100))
    engine.update(f"{PREFIX}INSERT DATA {{ {data} }}")
    assert len(engine._cts) == 0
    one = engine.subscribe(f"{PREFIX}SELECT ?o {{ :s1 :p ?o }}")
    two = engine.subscribe(f"{PREFIX}SELECT ?o {{ ?s :p ?o ; :q ?o }}")
    assert len(engine._cts) == 200
    engine.unsubscribe(two.spuid)
    assert len(engine._cts) == 100
    engine.unsubscribe(one.spuid)
    assert len(engine._cts) == 0


@each_row(
    ("where", "reason"),
    [
        ("{ ?x <a:p> ?y OPTIONAL { ?y <a:q> ?z OPTIONAL { ?x <a:v> ?m } } }", "not well-designed"),
        ("{ ?x <a:p> ?y OPTIONAL { ?x <a:q> ?z } OPTIONAL { ?x <a:v> ?z } }", "not well-designed"),
        ("{ ?x <a:p> ?y OPTIONAL { ?y <a:q> ?z OPTIONAL { ?w <a:v> ?x } } FILTER(?x = <a:b>) }", "not well-designed"),
        ("{ ?x <a:p> ?y { ?x <a:q> ?z FILTER(?y != ?z) } }", "another group"),
        ("{ ?x <a:p> ?y MINUS { ?x <a:q> ?z FILTER(?y != ?z) } }", "another group"),
    ],
)
def test_where_the_store_may_see_more_than_sparql_says_the_store_is_asked(where: str, reason: str) -> None:
    engine = Engine()
    subscription = engine.subscribe(f"SELECT * {where}")
    assert subscription.spu_class == "re-evaluated"
    assert reason in engine.describe(subscription.spuid).reason


@pytest.mark.parametrize("projection", ["?a ?c", "(COUNT(*) AS ?n)"])
def test_a_product_that_is_too_large_is_refused_and_leaves_nothing_behind(projection: str) -> None:
    engine = Engine()
    engine.load("".join(f"<a:{number}> <a:p> <a:x> .\n" for number in range(1500)).encode())
    with pytest.raises(LimitExceededError, match=r"limits.evaluation_ms_max = 500 .* join its patterns"):
        engine.subscribe(f"SELECT {projection} {{ ?a <a:p> ?b . ?c <a:p> ?d }}")
    assert engine.subscription_count == 0
    assert engine._subscriptions._shapes.by_key == {}
    assert engine.cts.tables == {}
    assert not engine.update("DELETE DATA { <a:1> <a:p> <a:x> }").notifications


# -- plans that give up -----------------------------------------------------------------------------------------------

READINGS = "".join(f'<a:s{number}> <a:value> "{number}" .\n' for number in range(60)).encode()
MANY = " . ".join(f"<a:t{number}> <a:value> 1" for number in range(20))
UNCONNECTED = " . ".join(f"?x{number} <a:value> ?v{number}" for number in range(3))
GIVING_UP = [
    f"SELECT * {{ {UNCONNECTED} FILTER ( ?x0 = ?x1 && ?x1 = ?x2 ) OPTIONAL {{ ?x0 <a:more> ?o }} }}",
    f"SELECT DISTINCT ?x0 {{ {UNCONNECTED} FILTER ( ?x0 = ?x1 && ?x1 = ?x2 ) }}",
    f"SELECT ?x0 {{ {UNCONNECTED} FILTER ( ?x0 = ?x1 && ?x1 = ?x2 ) }}",
    f"SELECT ( COUNT( * ) AS ?n ) {{ {UNCONNECTED} FILTER ( ?x0 = ?x1 && ?x1 = ?x2 ) }}",
]


def allow(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an evaluation cost no more than that, however large the commit is."""
    monkeypatch.setattr("lamplighter.engine.work.UNITS_PER_MS", units / EVALUATION_MS_MAX)
    monkeypatch.setattr("lamplighter.engine.work.SLICE", 10)
    monkeypatch.setattr("lamplighter.engine.work.SHARE", 0)


@pytest.mark.parametrize("query", GIVING_UP)
def test_a_plan_that_gives_up_leaves_its_shape_to_the_store_within_the_commit(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(1000, monkeypatch)
    engine = Engine()
    engine.load(READINGS[: READINGS.index(b"<a:s3>")])
    watched = [followed(engine, query), followed(engine, "SELECT * { ?s <a:value> ?o }")]
    assert watched[0][0] != "re-evaluated"
    for text in (
        "INSERT DATA { <a:s3> <a:value> 3 ; <a:more> 3 . <a:s4> <a:value> 4 }",
        f"DELETE DATA {{ <a:s1> <a:value> '1' }} ; INSERT DATA {{ {MANY} }}",
        "DELETE DATA { <a:s2> <a:value> '2' } ; INSERT DATA { <a:s2> <a:value> 'two' }",
    ):
        commit = engine.update(text)
        for _, _, follow in watched:
            follow(commit)
    assert engine.subscription_classes == {"re-evaluated": 1, "telescoped": 1}


@pytest.mark.parametrize("error", [RecursionError, MemoryError, KeyError])
def test_whatever_a_seeder_raises_leaves_its_shape_to_the_store(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(1000, monkeypatch)
    monkeypatch.setattr("lamplighter.engine.work.Work.exceeded", lambda work: error())
    engine = Engine()
    engine.load(READINGS[: READINGS.index(b"<a:s3>")])
    watched = [followed(engine, GIVING_UP[0])]
    assert watched[0][0] == "seeded"
    commit = engine.update(f"INSERT DATA {{ {MANY} }}")
    assert engine.subscription_classes == {"re-evaluated": 1}
    for _, _, follow in watched:
        follow(commit)


def test_a_first_result_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.load(READINGS)
    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr("lamplighter.engine.matching.plan.Plan.first", lambda plan, key: {}[key])
        engine.subscribe("SELECT * { ?s <a:value> ?o }")
    assert engine._subscriptions._shapes.by_key == {}
    assert not engine.update("DELETE DATA { <a:s1> <a:value> '1' }").notifications


# -- constants and patterns that share nothing ------------------------------------------------------------------------

SENSORS = " . ".join(f"<a:s{number}> <a:value> ?v{number}" for number in range(5))
DASHBOARDS = [
    f"SELECT * {{ {SENSORS} OPTIONAL {{ <a:s7> <a:value> ?o }} }}",
    f"SELECT DISTINCT * {{ {SENSORS} }}",
    f"SELECT * {{ {SENSORS} FILTER EXISTS {{ <a:s7> <a:value> ?o }} }}",
    f"SELECT * {{ {SENSORS} FILTER NOT EXISTS {{ <a:s7> <a:value> ?v0 }} }}",
    f"SELECT * {{ {SENSORS} MINUS {{ <a:s7> <a:value> ?v0 . <a:s8> <a:value> ?w }} }}",
    f"SELECT ?v7 {{ <a:s7> <a:value> ?v7 MINUS {{ {SENSORS} . <a:s8> <a:value> ?v7 }} }}",
    f"SELECT ( COUNT( * ) AS ?n ) {{ {SENSORS} }}",
    f"SELECT ?v0 ( COUNT( * ) AS ?n ) {{ {SENSORS} }} GROUP BY ?v0",
    f"SELECT * {{ {{ SELECT DISTINCT ?v0 {{ {SENSORS} }} }} }}",
    f"SELECT * {{ <a:s7> <a:value> ?o {{ SELECT ( MAX( ?v0 ) AS ?m ) {{ {SENSORS} }} }} }}",
    f"SELECT * {{ <a:s7> <a:value> ?o OPTIONAL {{ {SENSORS} }} }}",
    f"SELECT * {{ <a:s7> <a:value> ?o FILTER EXISTS {{ {SENSORS} }} }}",
    f"SELECT * {{ {{ {SENSORS} }} UNION {{ <a:s7> <a:value> ?o OPTIONAL {{ <a:s8> <a:value> ?w }} }} }}",
    f"SELECT * {{ {SENSORS} OPTIONAL {{ <a:s7> <a:value> ?o . ?o <a:near> ?x . <a:s8> <a:value> ?w }} }}",
    f"SELECT ?v0 ?o {{ {SENSORS} OPTIONAL {{ ?x <a:near> <a:s7> . ?x <a:value> ?v0 . <a:s8> <a:value> ?o }} }}",
    f"SELECT ?v0 {{ ?x <a:value> ?v0 . {SENSORS} FILTER EXISTS {{ ?x <a:near> ?y . <a:s7> <a:value> ?o }} }}",
]


@pytest.mark.parametrize("query", DASHBOARDS)
def test_what_many_constants_name_is_looked_up_and_never_multiplied(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    engine.load(READINGS)
    engine.update("INSERT DATA { <a:s3> <a:near> <a:s7> . <a:s0> <a:near> <a:s1> . <a:s10> <a:near> 3 }")
    allow(2500, monkeypatch)
    other = query.replace("<a:s0>", "<a:s10>")
    watched = [followed(engine, query), followed(engine, other)]
    classes = engine.subscription_classes
    for number in (0, 4, 7, 8, 9, 10, 59, 0):
        old = f"<a:s{number}> <a:value> ?o"
        for text in (
            f"DELETE {{ {old} }} INSERT {{ <a:s{number}> <a:value> 'x' }} WHERE {{ {old} }}",
            f"DELETE WHERE {{ {old} }}",
            f"INSERT DATA {{ <a:s{number}> <a:value> '0' , 'y' }}",
        ):
            commit = engine.update(text)
            for _, _, follow in watched:
                follow(commit)
    assert engine.subscription_classes == classes, "no plan had to give up"


def test_constants_are_tested_before_what_they_do_not_name_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    data = "".join(f'<a:s{number}> <a:value> "1" .\n<a:z> <a:near> <a:s{number}> .\n' for number in range(300))
    engine.load(data.encode())
    allow(200, monkeypatch)
    for text in (
        "SELECT ?y { <a:s1> <a:on> ?v . ?y <a:value> ?v . ?z <a:near> ?y . ?z <a:in> <a:here> }",
        "SELECT DISTINCT ?y { <a:s1> <a:on> ?v . ?y <a:value> ?v . ?z <a:near> ?y . ?z <a:in> <a:here> }",
    ):
        engine.subscribe(text)
    classes = engine.subscription_classes
    engine.update("INSERT DATA { <a:s2> <a:on> '1' }")
    assert engine.subscription_classes == classes
