"""The clock function in updates, queries and subscriptions (design 4.10)."""

from datetime import UTC, datetime, timedelta
from time import thread_time

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.sparql.clock_function import CLOCK, microseconds, query_at
from lamplighter.ontology.vocabulary import GATEWAY
from tests.support.tables import each_row

PREFIX = f"PREFIX g: <{GATEWAY}> "
START = datetime(2026, 11, 21, 2, 0, 0, 123456, tzinfo=UTC)
INTEGER = "http://www.w3.org/2001/XMLSchema#integer"


class Watch:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def tick(self) -> str:
        """A second later; the term that the function gives then."""
        self.now += timedelta(seconds=1)
        return f'"{microseconds(self.now)}"^^<{INTEGER}>'


def test_the_function_is_one_of_the_vocabulary() -> None:
    assert f"<{GATEWAY}clock>" == CLOCK


def test_microseconds_since_1970() -> None:
    assert microseconds(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005
    assert microseconds(START) == 1_795_226_400_123_456


@each_row("call", ["g:clock()", "g:clock ( )", CLOCK + "()"])
def test_an_update_writes_one_time_wherever_it_asks(call: str) -> None:
    watch = Watch()
    engine = Engine(clock=watch)
    text = PREFIX + (
        f"INSERT {{ <a:s> <a:p> ?t }} WHERE {{ BIND({call} AS ?t) }} ; "
        f"INSERT {{ <a:s> <a:q> ?t }} WHERE {{ BIND({call} AS ?t) }}"
    )
    for _ in range(3):  # by the store at first, and it must not become a plan with the time of then
        now = watch.tick()
        added = {quad.p: quad.o for quad in engine.update(text).added}
        assert added == {"<a:p>": now, "<a:q>": now}


def test_now_is_the_same_time_as_a_date_time() -> None:
    engine = Engine(clock=lambda: START)
    engine.update(PREFIX + "INSERT { <a:s> <a:t> ?t ; <a:n> ?n } WHERE { BIND(g:now() AS ?t) BIND(NOW() AS ?n) }")
    document = engine.query(PREFIX + "SELECT ?t { ?s <a:t> ?t ; <a:n> ?t FILTER(?t = g:now()) }").to_json()
    assert [row["t"]["value"] for row in document["results"]["bindings"]] == ["2026-11-21T02:00:00.123456Z"]


def test_a_query_computes_with_it() -> None:
    watch = Watch()
    engine = Engine(clock=watch)
    engine.update(PREFIX + "INSERT { <a:s> <a:t> ?t } WHERE { BIND(g:clock() AS ?t) }")
    watch.tick()
    document = engine.query(PREFIX + "SELECT (g:clock() - ?t AS ?age) { ?s <a:t> ?t }").to_json()
    assert document["results"]["bindings"] == [{"age": {"type": "literal", "value": "1000000", "datatype": INTEGER}}]
    assert engine.query(PREFIX + "ASK { FILTER(g:clock() > 0) }").to_json()["boolean"] is True


def test_a_subscription_keeps_the_time_at_which_a_row_appeared() -> None:
    watch = Watch()
    engine = Engine(clock=watch)
    engine.update("INSERT DATA { <a:1> <a:p> <a:x> }")
    first = watch.tick()
    text = PREFIX + "SELECT ?s (g:clock() AS ?since) ?o { ?s <a:p> ?o }"
    subscription = engine.subscribe(text)
    assert subscription.first.variables == ("s", "since", "o")
    assert subscription.first.rows == (("<a:1>", first, "<a:x>"),)
    second = watch.tick()
    [notification] = engine.update("INSERT DATA { <a:2> <a:p> <a:x> }").notifications
    assert notification.added.rows == (("<a:2>", second, "<a:x>"),)
    watch.tick()
    late = engine.subscribe(text.replace("?since", "?seit"))
    assert set(late.first.rows) == {("<a:1>", first, "<a:x>"), ("<a:2>", second, "<a:x>")}
    notifications = engine.update("DELETE DATA { <a:2> <a:p> <a:x> }").notifications
    assert [n.removed.rows for n in notifications] == [(("<a:2>", second, "<a:x>"),)] * 2
    assert [n.removed.variables for n in notifications] == [("s", "since", "o"), ("s", "seit", "o")]


def test_equal_rows_have_their_own_times() -> None:
    watch = Watch()
    engine = Engine(clock=watch)
    engine.subscribe(PREFIX + "SELECT ?o (g:clock() AS ?since) { ?s <a:p> ?o }")
    first = watch.tick()
    engine.update("INSERT DATA { <a:1> <a:p> <a:x> }")
    second = watch.tick()
    [notification] = engine.update("INSERT DATA { <a:2> <a:p> <a:x> }").notifications
    assert notification.added.rows == (("<a:x>", second),)
    [notification] = engine.update("DELETE DATA { <a:2> <a:p> <a:x> }").notifications
    assert notification.removed.rows == (("<a:x>", first),)  # of equal rows the oldest goes first


@each_row(
    ("query", "reason"),
    [
        ("SELECT ?x (g:now() AS ?t) { ?x <a:p> ?y }", "stands alone in the projection"),
        ("SELECT ?x (g:clock() + 1 AS ?t) { ?x <a:p> ?y }", "stands alone in the projection"),
        ("SELECT ?x ?t { ?x <a:p> ?y BIND(g:clock() AS ?t) }", "stands alone in the projection"),
        ("SELECT (g:clock() AS ?t) { ?x <a:p> ?y }", "something besides the clock"),
        ("SELECT ?x (g:clock() AS ?t) { ?x <a:p> ?y } ORDER BY ?t", "cannot be used elsewhere"),
    ],
)
def test_a_subscription_with_it_elsewhere_is_refused(query: str, reason: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=reason):
        Engine().subscribe(PREFIX + query)


def test_another_function_of_that_name_is_not_known() -> None:
    with pytest.raises(UnsupportedRequestError, match="not supported"):
        Engine().subscribe("PREFIX g: <urn:other:> SELECT ?x (g:clock() AS ?t) { ?x ?p ?y }")


@each_row(
    "text",
    [
        "SELECT (nope:clock() AS ?t) {}",
        "PREFIX clock: <x:>",
        "PREFIX",
        "PREFIX LOAD <x:y> SELECT (g:clock() AS ?t) {}",
        "BASE <clock> ",
    ],
)
def test_a_query_that_cannot_be_read_is_left_to_its_parser(text: str) -> None:
    assert query_at(text, START) == text


def test_many_calls_under_a_long_prologue_take_no_time() -> None:
    """Each name was looked up by itself, so that these took half a minute in the gateway's loop."""
    names = [f"g:clock{number}()" for number in range(1000)]
    text = f"PREFIX x: <x:{'a' * 2_000_000}> {PREFIX}SELECT (({' + '.join(names)} + g:clock()) AS ?t) {{}}"
    begun = thread_time()
    assert query_at(text, START).endswith(f"g:clock999() + {microseconds(START)}) AS ?t) {{}}")
    assert thread_time() - begun < 5
