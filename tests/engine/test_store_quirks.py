"""Quirks of the store that plans copy or avoid: what pyoxigraph answers, and what query and subscription answer.

A new pyoxigraph that answers otherwise fails here, and the message names the code that copies the old answer. Where the
standard has other rows, the row of the table has them, and docs/internals/engine.md why the engine keeps the store's.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import RequestSyntaxError, StoreError
from lamplighter.engine.terms import XSD
from tests.support.oracle import term_text
from tests.support.places import ROOT
from tests.support.tables import each_row

PREFIX = f"PREFIX : <x:> PREFIX xsd: <{XSD}> "
DATA = f"""{PREFIX}
INSERT DATA {{
  :a :p :b ; :q :b . :b :p :c .
  :n :most 9223372036854775807 ; :beyond 9223372036854775808 ; :decimal 170141183460469231731.687303715884105727 ;
     :zero 0 ; :half 0.5 ; :negative -0.0e0 ; :positive 0.0e0 ;
     :spelled 1.50 , "01"^^xsd:int , "x"@EN .
  :m :v 9223372036854775807 , 9223372036854775806 .
  :k :label "k" ; :has :j . :i :in :k .
  GRAPH :g {{ :a :p :b ; :q :c . :b :p :c . :s :v 1 }}
  GRAPH :h {{ :s :v 1 }}
}}"""

ONE, TWO = f'"1"^^<{XSD}integer>', f'"2"^^<{XSD}integer>'
ZERO, MINUS = f'"0"^^<{XSD}double>', f'"-0"^^<{XSD}double>'
UNBOUND = [(None,)]
SAME = None
"""The standard leaves it open, or says the same."""

PATHS = "`PathPredicate.nodes` in engine/matching/reachability.py, with `not_anchored` in engine/matching/paths.py"
GRAPHS = "nothing in plans: the store evaluates GRAPH around more than patterns (engine/sparql/grammar.py)"
NUMBERS = "engine/matching/values.py, sums.py and aggregates.py"
EXPRESSIONS = "nothing in plans: the store evaluates their expressions (engine/matching/expressions.py)"

Rows = list[tuple[str | None, ...]]

QUIRKS: list[tuple[str, Rows, Rows | None, str]] = [
    # A path of length zero from a constant that is no node of the graph: SPARQL 1.1, 18.4 has the constant itself.
    ("SELECT ?r { :none :p? ?r }", [], [("<x:none>",)], PATHS),
    ("SELECT ?r { :none :p* ?r }", [], [("<x:none>",)], PATHS),
    ("SELECT ?r { ?r (:p|:q)* :none }", [], [("<x:none>",)], PATHS),
    ("SELECT (1 AS ?one) { :none :p* :none }", [], [(ONE,)], PATHS),
    ("SELECT ?g { GRAPH ?g { :none :p? ?r } }", [], [("<x:g>",), ("<x:h>",)], PATHS),
    # Beside another pattern of the graph that binds the variable, the standard has no more rows than the store.
    ("SELECT ?r { :none :p? ?r . ?r :p ?o }", [], SAME, PATHS),
    ("SELECT ?r { VALUES ?x { :none } ?x :p? ?r }", [], SAME, PATHS),
    # Alternatives are a union (18.2.2.4), whose rows count.
    ("SELECT ?r { :a (:p|:q) ?r }", [("<x:b>",)], [("<x:b>",)] * 2, "`_follow` in engine/sparql/triples.py"),
    # A repeated path between two known ends in a graph that is not known: once for each way that joins them.
    (
        "SELECT ?g { GRAPH ?g { :a (:p*|:q)+ :c } }",
        [("<x:g>",)] * 3,
        [("<x:g>",)],
        "`_store_counts_ways` in engine/matching/paths.py",
    ),
    # The variable of GRAPH is bound within its group, where the standard joins it afterwards (18.6) ...
    ("SELECT ?g { GRAPH ?g { :s :v ?o FILTER(?g = :g) } }", [("<x:g>",)], [], GRAPHS),
    (
        "SELECT ?n { GRAPH ?g { :s :v ?o BIND(?g AS ?n) } }",
        [("<x:g>",), ("<x:h>",)],
        UNBOUND * 2,
        GRAPHS,
    ),
    # ... and what matches no quad, or does not project it, is evaluated once for all graphs.
    (
        "SELECT ?g ?n { GRAPH ?g { SELECT (COUNT(*) AS ?n) { :s :v ?o } } }",
        [(None, TWO)],
        [("<x:g>", ONE), ("<x:h>", ONE)],
        GRAPHS,
    ),
    (
        "SELECT ?g ?r { GRAPH ?g { VALUES ?r { :r } } }",
        [(None, "<x:r>")],
        [("<x:g>", "<x:r>"), ("<x:h>", "<x:r>")],
        GRAPHS,
    ),
    # Several FROM graphs are not merged.
    ("SELECT ?o FROM :g FROM :h { :s :v ?o }", [(ONE,)] * 2, [(ONE,)], "`in_graphs` in engine/matching/analysis.py"),
    # Integers have 64 bits, decimals 128 with 18 places; beyond is an error, and a literal beyond is no number.
    ("SELECT (?x + 1 AS ?y) { :n :most ?x }", UNBOUND, SAME, NUMBERS),
    ("SELECT (?x > 1 AS ?y) { :n :beyond ?x }", UNBOUND, SAME, NUMBERS),
    ("SELECT ?x { :n :beyond ?x }", [(f'"9223372036854775808"^^<{XSD}integer>',)], SAME, NUMBERS),
    ("SELECT (?x + 1.0 AS ?y) { :n :decimal ?x }", UNBOUND, SAME, NUMBERS),
    ("SELECT (SUM(?x) AS ?y) { :m :v ?x }", UNBOUND, SAME, NUMBERS),
    ("SELECT (SUM(?x) AS ?y) { :n :beyond ?x }", UNBOUND, SAME, NUMBERS),
    # AVG is the sum by the number, so it overflows although the average does not.
    ("SELECT (AVG(?x) AS ?y) { :m :v ?x }", UNBOUND, [(f'"9223372036854775806.5"^^<{XSD}decimal>',)], NUMBERS),
    # 0 by a decimal between -1 and 1 is an error.
    ("SELECT (?x / ?z AS ?y) { :n :zero ?x ; :half ?z }", UNBOUND, [(f'"0"^^<{XSD}decimal>',)], EXPRESSIONS),
    # Negative zero: another term, the same value, and lost in sums, which begin with 0.
    ("SELECT ?x { :n :negative ?x }", [(MINUS,)], SAME, NUMBERS),
    ("SELECT (?x * 2 AS ?y) { :n :negative ?x }", [(MINUS,)], SAME, EXPRESSIONS),
    ("SELECT ?x { :n :negative ?x ; :positive ?y FILTER(?x = ?y) }", [(MINUS,)], SAME, EXPRESSIONS),
    ("SELECT DISTINCT ?x { :n :negative|:positive ?x }", [(MINUS,), (ZERO,)], SAME, NUMBERS),
    ("SELECT (SUM(?x) AS ?y) { :n :negative ?x }", [(ZERO,)], SAME, NUMBERS),
    ("SELECT (AVG(?x) AS ?y) { :n :negative ?x }", [(ZERO,)], SAME, NUMBERS),
    # The store keeps values, not spellings.
    (
        "SELECT ?x { :n :spelled ?x }",
        [(f'"1.5"^^<{XSD}decimal>',), (ONE,), ('"x"@en',)],
        [(f'"1.50"^^<{XSD}decimal>',), (f'"01"^^<{XSD}int>',), ('"x"@EN',)],
        "the canonical terms of engine/terms.py, and `real_term` in engine/matching/values.py",
    ),
]


def raw() -> ox.Store:
    store = ox.Store()
    store.update(DATA)
    return store


def answered(store: ox.Store, query: str) -> Counter[tuple[str | None, ...]]:
    solutions = store.query(PREFIX + query)
    assert isinstance(solutions, ox.QuerySolutions)
    return Counter(tuple(None if term is None else term_text(term) for term in row) for row in solutions)


@pytest.fixture(scope="module")
def engine() -> Iterable[Engine]:
    with Engine() as engine:
        engine.update(DATA)
        yield engine


@each_row(("query", "rows", "standard", "copy"), QUIRKS)
def test_query_and_subscription_have_the_quirks_of_the_store(
    engine: Engine, query: str, rows: Rows, standard: Rows | None, copy: str
) -> None:
    """The subscription also follows the data to where it is: the same rows come of an empty dataset by one update."""
    found = answered(raw(), query)
    assert found == Counter(rows), f"the store has another answer; {copy} has to follow, and docs/internals/engine.md"
    assert standard is None or Counter(standard) != found, "the store follows the standard: it is no deviation any more"
    assert Counter(engine.query(PREFIX + query).value) == found  # type: ignore[arg-type]
    assert Counter(engine.subscribe(PREFIX + query).first) == found
    with Engine() as empty:
        subscription = empty.subscribe(PREFIX + query)
        shown = Counter(subscription.first)
        for notification in empty.update(DATA).notifications:
            shown = shown - Counter(notification.removed) + Counter(notification.added)
        assert shown == found


# --- where the engine does not follow the store ---------------------------------------------------------


def test_variables_of_exists_are_confused_in_some_orders_and_the_engine_follows_the_standard(engine: Engine) -> None:
    """`engine.sparql.exists_variables` is needed as long as the store does that."""
    orders = (
        "SELECT ?s { ?s :in ?r . { ?r :label ?l FILTER EXISTS { ?r :has ?s } } }",
        "SELECT ?s { { ?r :label ?l FILTER EXISTS { ?r :has ?s } } ?s :in ?r }",
    )
    assert [answered(raw(), query).total() for query in orders] == [0, 1], "engine/sparql/exists_variables.py"
    for query in orders:
        assert list(engine.query(PREFIX + query).value) == [("<x:i>",)]  # type: ignore[arg-type]
        assert list(engine.subscribe(PREFIX + query).first) == [("<x:i>",)]


def test_a_triple_term_of_a_literal_fails_and_a_plan_finds_no_match(engine: Engine) -> None:
    query = f"{PREFIX} SELECT ?x {{ :n :zero ?x . ?r :says <<( ?x :p :b )>> }}"
    update = "INSERT DATA { <x:r> <x:says> <<( <x:a> <x:p> <x:b> )>> }"
    store = raw()
    store.update(update)
    with pytest.raises(RuntimeError, match=r"is not a valid RDF 1\.2 term"):
        list(store.query(query))  # type: ignore[arg-type]
    with Engine() as other:
        other.update(f"{DATA} ; {update}")
        with pytest.raises(StoreError, match="subject is a literal"):
            other.query(query)
        assert list(other.subscribe(query).first) == []


def test_adjacent_words_are_two_to_the_parser_and_refused_by_the_engine(engine: Engine) -> None:
    text = "DELETEWHERE { <x:none> <x:none> <x:none> }"
    raw().update(text)  # `engine.sparql.lexer` and `requests` have to refuse it as long as the store takes it
    with pytest.raises(RequestSyntaxError):
        engine.prepare(text)


def test_declarations_behind_a_semicolon_are_refused_by_the_parser_and_taken_by_the_engine(engine: Engine) -> None:
    text = "INSERT DATA { <x:a> <x:b> 1 } ; PREFIX y: <x:> INSERT DATA { y:a y:b 2 }"
    with pytest.raises(SyntaxError):
        raw().update(text)  # `_check_update` in engine/sparql/requests.py moves them as long as the store does that
    assert len(engine.prepare(text).added) == 2


def test_whether_the_store_adds_a_duration_to_a_time_depends_on_the_names_of_the_variables() -> None:
    """It sorts the summands. `_subtracting` of engine/matching/boundaries.py is needed as long as it does that."""
    time, duration, later = (
        f'"2026-11-28T00:00:00Z"^^<{XSD}dateTime>',
        f'"PT1S"^^<{XSD}dayTimeDuration>',
        f'"2026-11-28T00:00:01Z"^^<{XSD}dateTime>',
    )
    store = raw()
    for one, other, added in (("a", "b", later), ("b", "a", None)):
        for expression, expected in ((f"?{one} + ?{other}", added), (f"?{one} - (- ?{other})", later)):
            values = f"VALUES (?{one} ?{other}) {{ ({time} {duration}) }}"
            assert answered(store, f"SELECT ({expression} AS ?y) {{ {values} }}") == Counter([(expected,)])


# --- what was tested is what is installed ---------------------------------------------------------------


def test_the_package_requires_the_version_that_was_tested() -> None:
    [required] = [
        name
        for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if name.startswith("pyoxigraph")
    ]
    assert required == f"pyoxigraph=={ox.__version__}", (
        "a new version may answer otherwise: run this file with it first"
    )
    for lock in ("requirements.lock", "requirements-cloud.lock", "requirements-test.lock"):
        assert f"pyoxigraph=={ox.__version__} " in (ROOT / lock).read_text()
