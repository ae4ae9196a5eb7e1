"""What results look like in a console and in a notebook, and that neither grows with the result."""

from __future__ import annotations

import pytest

from lamplighter.engine import Bag, Engine, Notification, QueryResult
from lamplighter.engine.client import Notification as ClientNotification
from lamplighter.engine.delta import QuadDelta
from tests.support.tables import each_row

STATES = "SELECT ?lamp ?state { ?lamp <a:state> ?state OPTIONAL { ?lamp <a:none> ?none } } ORDER BY ?lamp"


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.update("INSERT DATA { <a:1> <a:state> 'ON' . <a:2> <a:state> 'OFF' }")
    return engine


def test_rows_of_a_select_are_dicts(engine: Engine) -> None:
    result = engine.query("SELECT ?lamp ?none { ?lamp <a:state> 'ON' OPTIONAL { ?lamp <a:none> ?none } }")
    assert list(result) == [{"lamp": "<a:1>"}]
    assert (len(result), bool(result), result.variables) == (1, True, ("lamp", "none"))
    empty = engine.query("SELECT ?x { ?x <a:nothing> 1 }")
    assert (list(empty), len(empty), bool(empty), repr(empty)) == ([], 0, False, "QueryResult: 0 rows")


def test_an_ask_is_a_truth_value(engine: Engine) -> None:
    yes, no = engine.query("ASK { ?lamp <a:state> 'ON' }"), engine.query("ASK { ?lamp <a:state> 1 }")
    assert yes
    assert not no
    assert (repr(yes), no._repr_html_(), yes.variables) == ("QueryResult: True", "<b>False</b>", ())
    for ask in (iter, len, list):
        with pytest.raises(TypeError, match=r"use bool\(result\)"):
            ask(yes)  # type: ignore[operator]


def test_triples_of_a_construct(engine: Engine) -> None:
    result = engine.query("CONSTRUCT WHERE { <a:1> <a:state> ?state }")
    assert list(result) == [("<a:1>", "<a:state>", '"ON"')]
    assert (len(result), bool(result), result.variables) == (1, True, ("subject", "predicate", "object"))
    assert repr(result).splitlines()[0] == "QueryResult: 1 triple"
    assert len(engine.query("DESCRIBE <a:1>")) == 1


def test_a_table_in_the_console(engine: Engine) -> None:
    assert repr(engine.query(STATES)).splitlines() == [
        "QueryResult: 2 rows",
        "lamp   state",
        "-----  -----",
        '<a:1>  "ON"',
        '<a:2>  "OFF"',
    ]


def test_a_table_in_a_notebook_is_escaped(engine: Engine) -> None:
    engine.update("INSERT DATA { <a:3> <a:state> '<script>alert(1)</script>' }")
    page = engine.query(STATES)._repr_html_()
    assert "<caption>3 rows</caption>" in page
    assert "<th>lamp</th><th>state</th>" in page
    assert "<td>&lt;a:1&gt;</td><td>&quot;ON&quot;</td>" in page
    assert "<script" not in page


@each_row(
    "value",
    [
        Bag([f"v{number}" for number in range(1000)], [("x" * 10_000,) * 1000] * 1000),
        Bag(["v" * 100_000], [(None,), ("\x1b[31m\x9b\u202e" * 1000,)]),
        tuple(Engine().load("".join(f'<a:s> <a:p{n}> "{"x" * 999}" .\n' for n in range(999)).encode()).added),
    ],
)
def test_neither_grows_with_the_result(value: object) -> None:
    result = QueryResult(value)  # type: ignore[arg-type]
    shown = [repr(result), result._repr_html_()]
    if isinstance(value, Bag):
        notification = Notification("sepa://1", 1, value, value)
        shown += [repr(value), value._repr_html_(), repr(notification), notification._repr_html_()]
        told = ClientNotification("sepa://1", 1, value, value)
        shown += [repr(told), told._repr_html_()]
    assert max(map(len, shown)) < 50_000
    assert all(text.replace("\n", "").isprintable() for text in shown)


def test_what_is_left_out_is_counted() -> None:
    rows = [(str(number),) * 14 for number in range(25)]
    result = QueryResult(Bag([f"v{number}" for number in range(14)], rows))
    assert repr(result).splitlines()[-1] == "... 5 more rows and 2 more columns"
    assert result._repr_html_().endswith("<p>... 5 more rows and 2 more columns</p></div>")


def test_commits_and_notifications(engine: Engine) -> None:
    engine.subscribe("SELECT ?lamp { ?lamp <a:state> 'ON' }")
    commit = engine.update("DELETE DATA { <a:1> <a:state> 'ON' } ; INSERT DATA { <a:2> <a:state> 'ON' }")
    page = commit._repr_html_()
    assert "<caption>commit 2: 1 added, 1 removed, 1 notification</caption>" in page
    assert "<td>-</td><td>&lt;a:1&gt;</td>" in page
    assert "<td>+</td><td>&lt;a:2&gt;</td>" in page
    [notification] = commit.notifications
    assert "<td>-</td><td>&lt;a:1&gt;</td></tr><tr><td>+</td><td>&lt;a:2&gt;</td>" in notification._repr_html_()
    assert repr(QuadDelta()) == "QuadDelta()"
    assert repr(commit).startswith("Commit(sequence=2, delta=QuadDelta(removed=[Quad(s='<a:1>',")
    large = engine.load("".join(f'<a:s> <a:p{n}> "{"x" * 999}" .\n' for n in range(999)).encode())
    assert "... 995 more]" in repr(large)
    assert len(repr(large)) < 4000
    assert len(large._repr_html_()) < 20_000
