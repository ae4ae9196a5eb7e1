"""What an evaluation inside the engine costs is counted, and one that costs too much is given up.

Judged by units of work and by processor time with generous ratios, never by seconds of a clock on the wall.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal

import pytest

from lamplighter.engine import Commit, Engine
from lamplighter.engine.errors import LimitExceededError, UnknownSpuidError
from lamplighter.engine.matching.costs import Costs, only_known_functions, pattern_units
from lamplighter.engine.matching.expressions import number, value
from lamplighter.engine.slices import Slices
from lamplighter.engine.sparql.algebra import Expression, Variable
from lamplighter.engine.terms import XSD
from lamplighter.engine.work import (
    HEAVY_TURNS,
    LONG_UNITS,
    SHARE,
    SLICE,
    TOGETHER_MAX,
    UNITS_PER_MS,
    Meter,
    PlanExceededError,
    TooMuchWork,
    Work,
)
from tests.support.tables import each_row

LIMIT_MS = 50
GENEROUS = 50
"""How many times the limit an evaluation may take on a machine that is slow, or busy; without one it takes minutes."""
X, Y = Variable("x"), Variable("y")


def words(count: int, start: int = 0) -> str:
    return " . ".join(f'<urn:s{number}> <urn:p> "w{number}"' for number in range(start, start + count))


def filled(count: int = 500, *, ends_costly: bool = False) -> Engine:
    engine = Engine(evaluation_ms_max=LIMIT_MS, ends_costly=ends_costly)
    engine.update(f"INSERT DATA {{ {words(count)} }}")
    return engine


def processor_ms(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return (time.thread_time() - begun) * 1000


def refused(work: Callable[[], object], reason: str = r"limits\.evaluation_ms_max = 50") -> None:
    """It is given up near the limit."""

    def tried() -> None:
        with pytest.raises(LimitExceededError, match=reason):
            work()

    assert processor_ms(tried) < GENEROUS * LIMIT_MS


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# --- counting ---------------------------------------------------------------------------------------


def test_a_meter_allows_each_evaluation_as_much_and_no_more() -> None:
    work = Work(1)
    meter = Meter(work)
    for _ in range(3):
        work.begin()
        meter.take(UNITS_PER_MS - SLICE // 2)
        with pytest.raises(TooMuchWork, match=r"limits\.evaluation_ms_max = 1 "):
            for _ in range(4):
                meter.take(UNITS_PER_MS // 2)


def test_a_commit_allows_more_for_each_quad_and_each_who_shares_the_plan() -> None:
    work = Work(1)
    for sharers in (1, 3, TOGETHER_MAX):
        meter = Meter(work, range(sharers))
        work.begin(quads=50)
        meter.take((UNITS_PER_MS + 49 * SHARE) * sharers)
        with pytest.raises(TooMuchWork):
            meter.take(2 * sharers * SHARE + 2 * SLICE)


def test_where_others_wait_for_a_commit_all_its_plans_have_two_fifths_together() -> None:
    work, each = Work(100, waited_for=True), 25 * UNITS_PER_MS
    for quads, sharers, count in ((1, 1, 1), (50, 1, 2), (10, 20, 13)):
        work.begin(quads=quads)
        done = 0
        with pytest.raises(TooMuchWork):
            for _ in range(20):
                Meter(work, range(sharers)).take(each)
                done += 1
        assert done == count
        little = Meter(work)
        little.take(2 * SLICE - 1)  # it is not what the others are ended for


@pytest.mark.parametrize("ends_costly", [False, True])
def test_who_ends_what_is_costly_has_others_wait_for_a_commit(ends_costly: bool) -> None:
    with Engine(evaluation_ms_max=100, ends_costly=ends_costly) as engine:
        engine.work.begin(quads=1)
        with pytest.raises(TooMuchWork) if ends_costly else nullcontext():
            Meter(engine.work).take(50 * UNITS_PER_MS)


def test_all_plans_together_may_take_so_much_for_one_commit() -> None:
    work = Work(1)
    work.begin(quads=0)
    for _ in range(TOGETHER_MAX):
        Meter(work).take(UNITS_PER_MS)
    little = Meter(work)
    little.take(SLICE // 100)
    with pytest.raises(TooMuchWork):
        Meter(work).take(UNITS_PER_MS + SLICE // 2)


def test_a_clock_that_is_lent_ends_what_takes_longer_than_counted() -> None:
    now = 0.0
    work = Work(10, lambda: now)
    meter = Meter(work)
    work.begin()
    meter.take(SLICE + 1)
    now = 0.011
    with pytest.raises(TooMuchWork):
        meter.take(SLICE + 1)


def test_among_others_the_time_that_others_took_is_not_counted() -> None:
    now = 0.0
    work = Work(100, lambda: now)
    meter = Meter(work)
    work.begin(quads=1)
    meter.take(SLICE + 1)
    now = 10.0
    meter.take(SLICE + 1)
    with pytest.raises(TooMuchWork):
        for _ in range(10):
            meter.take(SLICE)


class CountedSlices(Slices):
    """Counts what the engine calls."""

    def __init__(self) -> None:
        self.begun = self.pauses = 0

    def begin(self, size: int) -> None:
        self.begun += 1

    def pause(self) -> None:
        self.pauses += 1


def test_an_evaluation_pauses_at_each_look_and_says_that_it_is_long() -> None:
    slices = CountedSlices()
    work = Work(100, slices=slices)
    meter = Meter(work)
    work.begin()
    for _ in range(LONG_UNITS // SLICE - 1):
        meter.take(SLICE + 1)
    assert slices.pauses == LONG_UNITS // SLICE - 1
    assert not slices.begun
    meter.take(SLICE + 1)
    meter.take(SLICE + 1)
    assert slices.begun
    assert work.heavy_until <= work.turn


def test_a_commit_never_says_that_it_is_long_but_the_next_ones_are_expected_to_be() -> None:
    slices = CountedSlices()
    work = Work(100, slices=slices)
    meter = Meter(work)
    work.begin(quads=1)
    for _ in range(2 * LONG_UNITS // SLICE):
        meter.take(SLICE + 1)
    assert slices.pauses > LONG_UNITS // SLICE
    assert not slices.begun
    assert work.heavy_until > work.turn
    for _ in range(HEAVY_TURNS):
        work.begin(quads=1)
    assert work.heavy_until <= work.turn


@each_row(
    ("term", "found"),
    [
        (f'"5"^^<{XSD}integer>', 5),
        (f'"-5.25"^^<{XSD}decimal>', Decimal("-5.25")),
        (f'"5"^^<{XSD}double>', None),
        ('"5"', None),
    ],
)
def test_numbers_are_known_without_the_store(term: str, found: object) -> None:
    assert number(term) == found


# --- what an evaluation can multiply ----------------------------------------------------------------

PRODUCTS = [
    "SELECT * { ?a <urn:p> ?b . ?c <urn:p> ?d FILTER(CONTAINS(?b, ?d)) }",
    "SELECT * { ?a <urn:p> ?b . ?c <urn:p> ?d FILTER(?b < ?d) }",
    "SELECT * { ?a <urn:p> ?b . ?c <urn:p> ?d . ?e <urn:p> ?f }",
    "SELECT (COUNT(*) AS ?n) { ?a <urn:p> ?b . ?c <urn:p> ?d . ?e <urn:p> ?f }",
    "SELECT * { ?a <urn:p> ?b OPTIONAL { ?a <urn:p> ?x . ?c <urn:p> ?d FILTER(CONTAINS(?x, ?d)) } }",
    "SELECT * { ?a <urn:p> ?b FILTER EXISTS { ?a <urn:p> ?x . ?c <urn:p> ?d FILTER(STRLEN(?b) > STRLEN(?d) + 9) } }",
    "SELECT * { ?a <urn:p> ?b . { SELECT ?c (MAX(?d) AS ?m) { ?c <urn:p> ?d } GROUP BY ?c } . ?e <urn:p> ?f }",
    "SELECT DISTINCT ?b ?d { ?a ?p ?b . ?c ?q ?d . ?e ?r ?f }",
    "SELECT * { ?a <urn:p> ?b . "
    + " ".join(f"VALUES ?x{i} {{ {' '.join(map(str, range(90)))} }}" for i in range(4))
    + "}",
]


@each_row("query", PRODUCTS)
def test_a_product_is_given_up_at_subscribe(query: str) -> None:
    engine = filled()
    refused(lambda: engine.subscribe(query))
    assert engine.subscription_count == 0
    assert engine._subscriptions._shapes.by_key == {}


CONTAINED = (
    'INSERT {{ ?a <urn:q> ?d }} WHERE {{ ?a <urn:p> ?b . ?c <urn:p> ?d FILTER(CONTAINS(?b, CONCAT(?d, "{}"))) }}'
)
PRODUCED = "INSERT {{ ?a <urn:q> ?d }} WHERE {{ ?a <urn:p> ?b . ?c <urn:p> ?d }}"


@pytest.mark.parametrize(
    ("text", "makes"), [(CONTAINED, lambda word, other: f"{other}3" in word), (PRODUCED, lambda word, other: True)]
)
def test_the_plan_of_an_update_is_given_up_and_nothing_changed(text: str, makes: Callable[[str, str], bool]) -> None:
    """A caller that must not block has the update evaluated elsewhere then."""
    engine = filled(1)
    engine.update(text.format(1))
    engine.update(text.format(2))
    engine.update(f"INSERT DATA {{ {words(500)} }}")
    count = engine.quad_count
    request = engine.request(text.format(3))
    request.tried_first = True

    def given_up() -> None:
        with pytest.raises(PlanExceededError, match="the update needs more work"):
            engine.prepare(request)

    assert processor_ms(given_up) < GENEROUS * LIMIT_MS
    assert engine.quad_count == count
    engine.commit(engine.prepare(request))  # asked for again, the store evaluates it
    made = {(a, b) for a in range(500) for b in range(500) if makes(f"w{a}", f"w{b}")}
    assert engine.quad_count == 500 + len(made)


@each_row(
    "query",
    [
        *PRODUCTS[:5],
        "SELECT ?b (COUNT(*) AS ?n) { ?a <urn:p> ?b . ?c <urn:p> ?d FILTER(CONTAINS(?b, ?d)) } GROUP BY ?b",
        "SELECT ?a ?c { ?a <urn:t> ?t . ?c <urn:t> ?t }",
    ],
)
def test_a_subscription_that_a_commit_makes_too_costly_is_ended_and_the_commit_stands(query: str) -> None:
    engine = filled(1, ends_costly=True)
    ended, other = engine.subscribe(query), engine.subscribe("SELECT ?s { ?s <urn:p> ?o }")
    of_a_type = " . ".join(f"<urn:s{number}> <urn:t> <urn:T>" for number in range(1000))
    found: list[Commit] = []
    took = processor_ms(lambda: found.append(engine.update(f"INSERT DATA {{ {words(1000)} . {of_a_type} }}")))
    [commit] = found
    assert len(commit.added) == 1999
    assert [spuid for spuid, _ in commit.ended] == [ended.spuid]
    assert "limits.evaluation_ms_max = 50" in str(commit.ended[0][1])
    assert [notification.spuid for notification in commit.notifications] == [other.spuid]
    assert took < GENEROUS * LIMIT_MS
    assert engine.subscription_count == 1
    assert not engine.update("INSERT DATA { <urn:x> <urn:p> 1 }").ended


def test_who_shares_the_query_is_ended_too_and_who_asks_again_is_refused() -> None:
    engine = filled(1, ends_costly=True)
    spuids = [engine.subscribe(PRODUCTS[0].replace("?a", name)).spuid for name in ("?a", "?z")]
    commit = engine.update(f"INSERT DATA {{ {words(1000)} }}")
    assert {spuid for spuid, _ in commit.ended} == set(spuids)
    assert engine.unit_count == 0
    assert engine._subscriptions._shapes.by_key == {}
    refused(lambda: engine.subscribe(PRODUCTS[0]))
    with pytest.raises(UnknownSpuidError):
        engine.unsubscribe(spuids[0])


def test_a_plan_whose_order_matters_is_left_to_the_store_only_if_that_is_cheap() -> None:
    text = "SELECT (SUM(?b) AS ?n) { ?a <urn:v> ?b . ?c <urn:p> ?d FILTER(CONTAINS(?d, ?d)) }"
    overflow = "INSERT DATA { <urn:1> <urn:v> 1e0 . <urn:2> <urn:v> 9223372036854775806 }"
    for count, ended in ((10, False), (1000, True)):
        engine = filled(1, ends_costly=True)
        integers = " . ".join(f"<urn:i{one}> <urn:v> {one}" for one in range(100 if ended else 4))
        engine.update(f"INSERT DATA {{ {integers} }}")
        engine.subscribe(text)
        for start in range(1, count, 100):
            engine.update(f"INSERT DATA {{ {words(100, start)} }}")
        assert engine.subscription_classes == {"counted": 1}, "each commit by itself is cheap"
        assert bool(engine.update(overflow).ended) is ended
        assert engine.subscription_classes == ({} if ended else {"re-evaluated": 1})


def test_large_commits_and_many_subscribers_are_no_reason_to_end_anybody() -> None:
    engine = filled(1, ends_costly=True)
    for who in range(1, 16):
        engine.subscribe(f'SELECT ?s {{ ?s <urn:p> ?o FILTER(CONTAINS(?o, "w{who}")) }}')
    commit = engine.update(f"INSERT DATA {{ {words(1000)} }}")
    assert not commit.ended
    assert len(commit.notifications) == 15


# --- expressions ------------------------------------------------------------------------------------


def replaced(times: int) -> str:
    text = "?b"
    for _ in range(times):
        text = f'REPLACE({text}, ".", "$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0")'
    return text


GROWING = [
    f"BIND(STRLEN({replaced(8)}) AS ?n)",
    " ".join(f"BIND(CONCAT(?b{number or ''}, ?b{number or ''}) AS ?b{number + 1})" for number in range(26)),
    f"BIND(STRLEN(REPLACE(?b, CONCAT('(', ?b, ')?'), {replaced(6)})) AS ?n)",
    f"FILTER(CONTAINS(UCASE(ENCODE_FOR_URI({replaced(7)})), 'z'))",
]


@each_row("pattern", GROWING)
def test_texts_that_grow_are_given_up_before_they_are_made(pattern: str) -> None:
    engine = filled(1)
    before = peak_mb()
    refused(lambda: engine.subscribe(f"SELECT * {{ ?a <urn:p> ?b {pattern} }}"), r"characters|limits\.evaluation")
    assert peak_mb() - before < 300


def test_what_is_taken_apart_has_the_value_that_it_has_as_a_whole() -> None:
    escaped = "?b"
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ("z", "and so on and so on")):
        escaped = f'REPLACE({escaped}, "{sign}", "{name}")'
    texts = [
        escaped,
        f"CONCAT('(', {escaped}, ')')",
        f"STRLEN({escaped}) + STRLEN(UCASE({escaped})) * 2",
        f"IF(STRLEN({escaped}) > 100, {escaped}, LCASE({escaped}))",
        f"COALESCE(REPLACE(?none, 'a', {escaped}), {escaped})",
        f"STRLANG({escaped}, 'en')",
        f"REPLACE({escaped}, CONCAT('&', 'a'), '')",
        f"REGEX({escaped}, CONCAT('&', 'amp'), 'i')",
        f"REPLACE({escaped}, ?b, '$')",
    ]
    engine = Engine()
    engine.update('INSERT DATA { <urn:s> <urn:p> "<a & \'b\'> \\n \u00fc zz"@de , "a&b" , "" , 1 , <urn:x> }')
    for text in texts:
        query = f"SELECT ?b ({text} AS ?value) {{ ?s <urn:p> ?b }}"
        subscription = engine.subscribe(query)
        assert subscription.spu_class == "telescoped"
        assert subscription.first == engine.query(query).value, text


@each_row("pattern", ["[ab]*a[ab]{1000}c", "(.{100}){10}", r"(\\\\w{10}){10}", "(a?){1000}", "((a{100}){100}){100}"])
def test_a_pattern_costs_by_what_it_is_written_out_to(pattern: str) -> None:
    engine = filled(1)
    text = "ab" * 20
    engine.update("INSERT DATA {" + " . ".join(f'<urn:s{one}> <urn:p> "{text}{one}"' for one in range(500)) + "}")
    refused(lambda: engine.subscribe(f'SELECT * {{ ?a <urn:p> ?b FILTER(REGEX(?b, "{pattern}")) }}'))


def test_plain_patterns_cost_little() -> None:
    engine = filled(200)
    for pattern in ("^w[0-9]+$", "9$", "w(1|2|3)", r"^w\\\\d{3}$"):
        engine.subscribe(f'SELECT * {{ ?a <urn:p> ?b FILTER(REGEX(?b, "{pattern}")) }}')


def test_a_value_that_is_remembered_costs_little() -> None:
    meter = Meter(Work(1))
    meter.left = 10**9
    length = value(Expression(("STRLEN", "(", X, ")")), meter)
    spent = []
    for _ in range(2):
        before = meter.left
        length('"abc"')
        spent.append(before - meter.left)
    assert spent[0] > 50 * spent[1] > 0


@each_row(
    ("parts", "at_least", "at_most"),
    [
        (("STR", "(", X, ")"), 100, 1000),
        (("CONCAT", "(", X, ",", X, ",", Y, ")"), 210, 1000),
        (("REPLACE", "(", X, ",", '"a"', ",", Y, ")"), 1000, 5000),
        (("UCASE", "(", "CONCAT", "(", X, ",", X, ")", ")"), 600, 2000),
        ((X, "+", "STRLEN", "(", Y, ")"), 1, 1000),
    ],
)
def test_bounds_are_upper_ones_and_not_far_off(parts: tuple[object, ...], at_least: int, at_most: int) -> None:
    operands = {X: '"' + "a" * 98 + '"', Y: '"' + "b" * 8 + '"'}
    assert at_least <= Costs(parts).upper_bound(operands).characters <= at_most


def test_counted_repetitions_within_each_other_multiply_and_beside_each_other_add_up() -> None:
    inside, beside = pattern_units('"(a{100}){100}"', 0), pattern_units('"a{100}b{100}"', 0)
    assert inside > 30 * beside


def test_functions_of_the_store_alone_are_left_to_it() -> None:
    assert only_known_functions(("<http://www.w3.org/2001/XMLSchema#integer>", "(", X, ")", "<", "(", Y, ")"))
    assert not only_known_functions(("<http://www.opengis.net/def/function/geosparql/distance>", "(", X, ")"))
    engine = filled(1)
    function = "<http://www.opengis.net/def/function/geosparql/distance>(?b, ?b)"
    assert engine.subscribe(f"SELECT * {{ ?a <urn:p> ?b BIND({function} AS ?c) }}").spu_class == "re-evaluated"


def test_unions_that_are_joined_are_not_multiplied_out() -> None:
    unions = " ".join(f"{{ VALUES ?a{number} {{ 1 }} }} UNION {{ VALUES ?a{number} {{ 2 }} }}" for number in range(20))
    engine = filled(1)
    refused(lambda: engine.subscribe(f"SELECT * {{ ?a <urn:p> ?b {unions} }}"))
