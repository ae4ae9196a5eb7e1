"""Paths of any length: what a changed edge costs, what it touches, and what is left behind."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.matching import reachability
from lamplighter.engine.matching.paths import not_anchored
from lamplighter.engine.sparql.algebra import Select
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.work import Meter, Work
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> "
BRICK = "?a a :AHU . ?a ( :feeds|:hasPoint )* ?s . ?s a :Sensor"


class Followed:
    """An engine with one subscription, whose rows are those of a fresh evaluation after each update."""

    def __init__(self, data: str, query: str, **settings: Any) -> None:
        self.engine = Engine(**settings)
        self.engine.update(f"{PREFIX}INSERT DATA {{ {data} }}")
        self.query = PREFIX + query
        self.subscription = self.engine.subscribe(self.query)
        self.rows = Counter(self.subscription.first.rows)

    def update(self, text: str) -> tuple[int, int]:
        """The number of removed and added rows."""
        commit = self.engine.update(PREFIX + text)
        for notification in commit.notifications:
            self.rows.subtract(notification.removed.rows)
            self.rows.update(notification.added.rows)
        assert +self.rows == Counter(self.engine.query(self.query).value.rows)  # type: ignore[union-attr]
        return (
            sum(len(notification.removed) for notification in commit.notifications),
            sum(len(notification.added) for notification in commit.notifications),
        )


def test_a_cycle_that_nothing_leads_to_any_more_is_left() -> None:
    """Each node of the cycle keeps a node that leads to it, which support counts would take for enough."""
    graph = Followed(":a :p :b . :b :p :c . :c :p :d . :d :p :b", "SELECT ?y { :a :p+ ?y }")
    assert graph.update("DELETE DATA { :d :p :b }") == (0, 0)
    assert graph.update("INSERT DATA { :d :p :b }") == (0, 0)
    assert graph.update("DELETE DATA { :a :p :b }") == (3, 0)
    assert graph.update("INSERT DATA { :a :p :d }") == (0, 3)


def test_an_edge_that_several_predicates_make_goes_with_the_last_of_them() -> None:
    graph = Followed(":a :p :b ; :q :b . :b :r :a", "SELECT * { ?x ( :p|:q|^:r )+ ?y }")
    assert len(graph.rows) == 1
    assert graph.update("DELETE DATA { :a :p :b }") == (0, 0)
    assert graph.update("DELETE DATA { :b :r :a }") == (0, 0)
    assert graph.update("DELETE DATA { :a :q :b }") == (1, 0)


def test_a_class_is_moved_and_a_floor_removed_while_subscribed() -> None:
    classes = ":Room :sub :Space . :Space :sub :Place . :Lab :sub :Room . :Desk :sub :Thing"
    parts = ":f1 :in :b . :f2 :in :b . :r1 :in :f1 . :r2 :in :f1 . :l :in :f2 . :r1 a :Room . :r2 a :Lab . :l a :Lab"
    graph = Followed(f"{classes} . {parts}", "SELECT ?r { ?r a/:sub* :Space ; :in+ :b }")
    assert len(graph.rows) == 3
    assert graph.update("DELETE DATA { :Lab :sub :Room } ; INSERT DATA { :Lab :sub :Thing }") == (2, 0)
    assert graph.update("INSERT DATA { :Thing :sub :Space }") == (0, 2)
    assert graph.update("DELETE WHERE { ?r :in :f1 } ; DELETE WHERE { :f1 :in ?b }") == (2, 0)
    assert graph.update("DELETE { :Space :sub ?c } INSERT { :Space :sub :Elsewhere } WHERE { :Space :sub ?c }") == (
        0,
        0,
    )


def test_the_empty_path_joins_the_nodes_of_its_graph_only() -> None:
    graph = Followed(":a :v 1", "SELECT ?y { :b :p* ?y }")
    assert graph.subscription.spu_class == "telescoped"
    assert not graph.rows
    assert graph.update("INSERT DATA { GRAPH :g { :b :v 1 } }") == (0, 0)
    assert graph.update("INSERT DATA { :a :v :b }") == (0, 1)
    assert graph.update("INSERT DATA { :b :q 1 , 2 }") == (0, 0)
    assert graph.update("DELETE DATA { :a :v :b . :b :q 1 }") == (0, 0)
    assert graph.update("DELETE DATA { :b :q 2 }") == (1, 0)


@each_row(
    ("where", "anchored"),
    [
        ("?x :p* ?y", False),
        ("?x :p+ ?y", True),
        (":a :p* ?y", False),
        (":a :p* ?y . ?y :q ?z", True),
        ("?x :q ?z . ?x :p* ?y . ?y :r* ?w", True),
        ("?x :p* ?y . ?y :r* ?w", False),
        ("?x :p* ?y . ?y :r+ ?w", True),
        ("GRAPH :g { ?x :q ?z } ?x :p* ?y", False),
        ("VALUES ?x { :a } ?x :p* ?y", False),
        ("?x :q ?z OPTIONAL { ?x :p* ?y }", True),
        ("?x :q ?z OPTIONAL { ?w :p* ?y }", False),
        ("?z :q ?w OPTIONAL { ?x :q ?w } MINUS { ?x :p* ?y }", False),
        ("?x :q ?z FILTER NOT EXISTS { ?x :p* ?y }", True),
        ("{ ?x :q ?z } UNION { ?z :r ?x } ?x :p* ?y", False),
        ("?x :q ?z { SELECT ?x { ?x :p* ?y } }", True),
        ("?x :q ?z { SELECT ?y { ?x :p* ?y } }", False),
    ],
)
def test_a_path_is_anchored_by_a_pattern_that_finds_an_end(where: str, anchored: bool) -> None:
    found = list(tokens(f"SELECT * {{ {where} }}"))
    select = read_select(found, lambda raw: raw)
    assert isinstance(select, Select)
    assert (not_anchored(select.node) == frozenset()) is anchored


@each_row(
    ("where", "followed"),
    [
        ("GRAPH ?g { :a :p+ :b }", False),
        ("?x :q ?y . GRAPH ?g { ?x :p+ ?y }", False),
        ("VALUES ?x { :a } GRAPH ?g { ?x ( :p*|:q )+ ?x }", False),
        ("GRAPH ?g { ?x :q ?y . ?x :p+ ?y }", True),
        ("GRAPH ?g { ?x :p+ :b }", True),
        ("GRAPH :g { :a :p+ :b }", True),
    ],
)
def test_the_store_is_asked_where_it_counts_the_ways_of_a_path(where: str, followed: bool) -> None:
    """In a graph that is not known yet, Oxigraph returns a pair once for each way: three ways lead from :a to :b."""
    edges = ":a :p :b , :c , :d ; :q :b . :c :p :b . :d :p :b"
    graph = Followed(f"{edges} . GRAPH :g {{ {edges} }}", f"SELECT * {{ {where} }}")
    assert (graph.subscription.spu_class == "telescoped") is followed
    graph.update("DELETE DATA { GRAPH :g { :c :p :b } }")
    graph.update("INSERT DATA { GRAPH :h { :b :p :a } GRAPH :g { :b :p :a } }")


# --- cost -------------------------------------------------------------------------------------------


def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the searches, and the nodes that they find, from now on."""
    counts: Counter[str] = Counter()
    search = reachability.PathRelation._search

    def counting(self: reachability.PathRelation, starts: Any, halves: Any, found: Any, *rest: Any) -> bool:
        before = len(found)
        whole = search(self, starts, halves, found, *rest)
        counts["searches"] += 1
        counts["nodes"] += len(found) - before
        return whole

    monkeypatch.setattr(reachability.PathRelation, "_search", counting)
    return counts


def test_quads_of_other_predicates_do_not_touch_a_path_whose_ends_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Followed(":a a :AHU ; :feeds :b . :b :hasPoint :s . :s a :Sensor", f"SELECT ?a ?s {{ {BRICK} }}")
    assert graph.subscription.spu_class == "telescoped"
    counts = searches(monkeypatch)
    graph.update("INSERT DATA { :s :value 1 . :b :label 'x' . :new :value 2 }")
    assert not counts
    assert graph.update("INSERT DATA { :b :hasPoint :t . :t a :Sensor }") == (0, 1)
    assert counts["searches"]


def test_a_search_begins_at_the_end_with_fewer_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 nodes feed the end of an edge, or are fed by it; the query names the other end."""
    star = " . ".join(f":s{number} :p :hub" for number in range(5_000))
    graph = Followed(f"{star} . :hub :p :x", "SELECT ?s { ?s :p+ :z }")
    counts = searches(monkeypatch)
    graph.update("INSERT DATA { :hub :p :y }")
    assert counts["nodes"] < 50
    assert graph.update("INSERT DATA { :y :p :z }") == (0, 5_002)
    assert counts["nodes"] < 30_000


def test_a_reading_costs_as_much_with_many_class_aware_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for count in (1, 200):
        engine = Engine()
        chain = " . ".join(f":C{number} :sub :C{number // 2}" for number in range(1, 200))
        engine.update(f"{PREFIX}INSERT DATA {{ {chain} . :s a :C150 ; :v 0 }}")
        for number in range(count):
            engine.subscribe(f"{PREFIX}SELECT ?s ?v {{ ?s a/:sub* :C{199 - number} ; :v ?v }}")
        [shape] = engine._subscriptions._shapes.by_key.values()
        assert shape.plan is not None
        engine.update(f"{PREFIX}INSERT DATA {{ :s :v 1 }}")
        before = shape.plan.meter.left
        engine.update(f"{PREFIX}INSERT DATA {{ :s :v 2 }}")
        costs.append(before - shape.plan.meter.left)
    # The rows of the eight classes above :C150 are work, too, in units of `ROW`.
    assert 0 < costs[0] <= costs[1] < costs[0] + 100


def test_searches_are_remembered_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "REMEMBERED_MAX", 100)
    engine = Engine()
    engine.update(f"{PREFIX}INSERT DATA {{ {' . '.join(f':n{n} :p :n{n + 1}' for n in range(60))} }}")
    engine.subscribe(f"{PREFIX}SELECT * {{ ?x :p+ ?y }}")
    [path] = engine._cts.paths.values()
    for number in range(60):
        path.forward(f"<urn:x:n{number}>", None, Meter(Work()))
        assert sum(map(len, path._remembered.values())) <= 100
    engine.update(f"{PREFIX}INSERT DATA {{ :n60 :p :n0 }}")
    assert not path._remembered


@pytest.mark.parametrize("query", ["SELECT * { ?x :p+ ?y }", "SELECT ( COUNT( * ) AS ?n ) { ?x :p* ?y }"])
def test_a_dense_graph_ends_the_subscription_and_not_the_loop(query: str) -> None:
    dense = " . ".join(f":n{one} :p :n{other}" for one in range(60) for other in range(60))
    graph = Followed(":n0 :p :n1", query, evaluation_ms_max=5, ends_costly=True)
    commit = graph.engine.update(f"{PREFIX}INSERT DATA {{ {dense} }}")
    [ended] = commit.ended
    assert "limits.evaluation_ms_max = 5" in str(ended.error)
    assert graph.engine.subscription_count == 0
    with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 5"):
        graph.engine.subscribe(graph.query)
    assert not graph.engine._cts.paths
    assert graph.engine.update(f"{PREFIX}DELETE DATA {{ :n0 :p :n1 }}").removed
