"""What is evaluated on gateways is the same there: the real engine against Oxigraph, event by event."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest

from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.cloud_sync.fleet.subscriptions.pushdown import gateway_query, obstacles
from lamplighter.engine import Engine
from lamplighter.engine.terms import Bag, Quad, Term
from tests.cloud_sync.fleet.sparql.made_up_queries import (
    GRAPHS,
    NODES,
    OBJECTS,
    PREDICATES,
    EventOracle,
    MadeUpEvent,
    MadeUpQuery,
    QueryMaker,
    made_up_queries,
)

QUERIES, COMMITS = 40, 25

Events = dict[Term | None, MadeUpEvent]
Rows = dict[Term | None, Counter[tuple[Term | None, ...]]]


def test_added_and_removed_rows_of_the_engine_are_the_matches_of_the_events() -> None:
    random = Random(1)
    queries = _pushed_down(random)
    with Engine() as engine:
        spuids = [engine.subscribe(gateway_query(one.query).text).spuid for one in queries]
        found = 0
        for _ in range(COMMITS):
            commit = engine.update(_update(random))
            told = {one.spuid: one for one in commit.notifications}
            for new, kept, name in (
                (commit.delta.added, commit.delta.kept, "added"),
                (commit.delta.removed, (), "removed"),
            ):
                oracles = {graph: EventOracle(event) for graph, event in _events(new, kept).items()}
                for query, spuid in zip(queries, spuids, strict=True):
                    expected = {graph: rows for graph, one in oracles.items() if (rows := _matches(one, query))}
                    bag = getattr(told[spuid], name) if spuid in told else Bag(())
                    assert _rows(query, bag) == expected, (query.query.text, name, commit.delta)
                    found += len(expected)
    assert found > 300, "the generated queries and commits match too seldom"


class OnePatternMaker(QueryMaker):
    """Alternatives of one pattern each, with FILTER, BIND and VALUES."""

    def group(self, depth: int = 0) -> str:
        if depth:
            return super().group(depth)
        alternatives = [self.alternative() for _ in range(self.random.choice((1, 1, 2, 3)))]
        others = [self.other() for _ in range(self.random.choice((0, 0, 1)))]
        return f"{{{{ {' UNION '.join(alternatives)} {' '.join(others)} }}}}"

    def alternative(self) -> str:
        self.hidden += 1
        subject = f"{{hidden{self.hidden}}}" if self.random.random() < 0.2 else self.subject()
        pattern = f"{subject} {self.constant(PREDICATES)} {self.object()}"
        if self.random.random() < 0.3:
            name = self.random.choice(("?g", "?g", "?x", self.constant(NODES)))
            pattern = f"GRAPH {name} {{{{ {pattern} }}}}"
        others = [self.other() for _ in range(self.random.choice((0, 1, 1, 2)))]
        return f"{{{{ {pattern} {' '.join(others)} }}}}"

    def other(self) -> str:
        kinds = (
            lambda: f"FILTER({self.expression()})",
            lambda: f"BIND({self.value()} AS ?{self.random.choice('bd')})",
            self.values,
        )
        return self.random.choice(kinds)()


def _pushed_down(random: Random) -> list[MadeUpQuery]:
    found: list[MadeUpQuery] = []
    while len(found) < QUERIES:
        (one,) = made_up_queries(random, 1, Counter(), OnePatternMaker)
        if not obstacles(one.query):
            found.append(one)
    assert any("UNION" in one.query.text for one in found)
    assert any(one.query.form == "ASK" for one in found)
    return found


def _update(random: Random) -> str:
    def quads() -> str:
        found = []
        for _ in range(random.randint(1, 6)):
            triple = f"{random.choice(NODES)} {random.choice(PREDICATES)} {random.choice(OBJECTS)}"
            graph = random.choice(GRAPHS)
            found.append(triple + " ." if graph is None else f"GRAPH {graph} {{ {triple} }}")
        return " ".join(found)

    return f"DELETE DATA {{ {quads()} }}; INSERT DATA {{ {quads()} }}"


def _events(new: tuple[Quad, ...], kept: tuple[Quad, ...]) -> Events:
    found: dict[Term | None, list[tuple[Term, Term, Term, bool]]] = defaultdict(list)
    for quads, is_new in ((new, True), (kept, False)):
        for quad in quads:
            found[quad.g].append((quad.s, quad.p, quad.o, is_new))
    return {
        graph: MadeUpEvent(graph, tuple(triples)) for graph, triples in found.items() if any(one[3] for one in triples)
    }


def _matches(oracle: EventOracle, query: MadeUpQuery) -> Counter[tuple[Term | None, ...]]:
    rows = oracle.rows(query)
    return Counter({(): 1}) if rows and query.query.form == "ASK" else rows


def _rows(query: MadeUpQuery, bag: Bag) -> Rows:
    """As they arrive, in SPARQL's JSON."""
    by_graph = gateway_query(query.query).rows(list(Bag.from_json(bag.to_json()).bindings()))
    if query.query.form == "ASK":
        return {graph: Counter({(): 1}) for graph in by_graph}
    return {graph: Counter(map(tuple, rows)) for graph, rows in by_graph.items()}


@pytest.mark.parametrize(
    ("where", "construct"),
    [
        ("?x <urn:p> ?y . ?x <urn:q> ?z", "2 triple patterns"),
        ("?x <urn:p>/<urn:q> ?z", "2 triple patterns"),
        ("?x <urn:p> ?y OPTIONAL { ?x <urn:q> ?z }", "OPTIONAL"),
        ("{ ?x <urn:p> ?y } UNION { ?x <urn:p> ?y ; <urn:q> ?z }", "2 triple patterns"),
        ("{ ?x <urn:p> ?y } UNION { VALUES ?x { 1 } }", "without a triple pattern"),
        ("?x ?p ?y", "without a predicate"),
        ("?event_graph <urn:p> ?y", "begin with event_"),
    ],
)
def test_what_the_engine_would_answer_differently_stays_on_spark(where: str, construct: str) -> None:
    assert construct in " ".join(obstacles(fleet_query(f"SELECT * {{ {where} }}")))


@pytest.mark.parametrize(
    ("query", "before", "after", "graph"),
    [
        ("{ ?s <urn:p> ?value }", "<urn:1> <urn:p> 21", "<urn:2> <urn:p> 21", None),
        ("{ ?s <urn:p> ?value } UNION { ?s <urn:q> ?value }", "<urn:1> <urn:p> 21", "<urn:1> <urn:q> 21", None),
        ("{ ?s <urn:p> ?value }", "<urn:1> <urn:p> 21", "GRAPH <urn:g> { <urn:1> <urn:p> 21 }", "<urn:g>"),
    ],
)
def test_a_row_that_goes_and_an_equal_one_that_comes_are_both_told(
    query: str, before: str, after: str, graph: str | None
) -> None:
    sent = gateway_query(fleet_query(f"SELECT ?value {{ {query} }}"))
    with Engine() as engine:
        engine.subscribe(sent.text)
        engine.update(f"INSERT DATA {{ {before} }}")
        (told,) = engine.update(f"DELETE DATA {{ {before} }}; INSERT DATA {{ {after} }}").notifications
    number = '"21"^^<http://www.w3.org/2001/XMLSchema#integer>'
    assert sent.rows(list(told.added.bindings())) == {graph: [[number]]}
    assert sent.rows(list(told.removed.bindings())) == {None: [[number]]}
