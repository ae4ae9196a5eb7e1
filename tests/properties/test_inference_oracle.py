"""Random updates of data and schema, the engine's inferred graphs against a naive fixpoint.

After every update: what is asserted is what the store makes of the text; each inferred graph has what the rules give,
and exists while it has any; the delta is net; the index has what the store has; subscriptions that see inferred triples
have the rows of a fresh evaluation. Now and then the engine is built again from a snapshot, or its limit refuses an
update.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pyoxigraph as ox
import pytest

from lamplighter.engine import Commit, Engine
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.inference.sources import inferred_graph
from lamplighter.engine.terms import Bag
from tests.support import inference_oracle
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

pytestmark = pytest.mark.faults

CASES = 60
STEPS = 14
E = "http://e.example/"
PREFIXES = (
    f"PREFIX : <{E}> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> PREFIX owl: <http://www.w3.org/2002/07/owl#> "
    "PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> "
)
DATA, ONTOLOGY, OTHER = f"<{E}data>", f"<{E}ontology>", f"<{E}other>"
SOURCES = [None, DATA]
TARGETS = ["", f"GRAPH {DATA} ", f"GRAPH {ONTOLOGY} ", f"GRAPH {OTHER} "]
CLASSES = [f":C{number}" for number in range(5)]
PROPERTIES = [f":p{number}" for number in range(4)]
THINGS = [f":i{number}" for number in range(4)]
QUERIES = [
    f"SELECT ?x ?c FROM {inferred_graph(None)} {{ ?x a ?c }}",
    f"SELECT ?x ?c FROM {DATA} FROM {inferred_graph(DATA)} {{ ?x a ?c }}",
    f"SELECT DISTINCT ?x ?y FROM {DATA} FROM {inferred_graph(DATA)} {{ ?x :p0 ?y OPTIONAL {{ ?y a ?c }} }}",
    f"SELECT ?x FROM {DATA} FROM {inferred_graph(DATA)} {{ ?x :p1+ ?x }}",
    f"SELECT ?x ?p ?y {{ GRAPH {inferred_graph(DATA)} {{ ?x ?p ?y }} }}",
]


class Writer:
    """Writes updates."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def one(self, *members: str) -> str:
        return self._chance.choice(members)

    def triple(self) -> str:
        """One triple of data or of the schema, so that rules chain and meet in cycles."""
        one, chance = self.one, self._chance.random()
        if chance < 0.25:
            return f"{one(*THINGS)} a {one(*CLASSES)}"
        if chance < 0.5:
            return f"{one(*THINGS)} {one(*PROPERTIES)} {one(*THINGS, *THINGS, '1')}"
        if chance < 0.65:
            return f"{one(*CLASSES)} {one('rdfs:subClassOf', 'rdfs:subClassOf', 'owl:equivalentClass')} {one(*CLASSES)}"
        if chance < 0.77:
            relation = one("rdfs:subPropertyOf", "rdfs:subPropertyOf", "owl:inverseOf", "owl:equivalentProperty")
            return f"{one(*PROPERTIES)} {relation} {one(*PROPERTIES)}"
        if chance < 0.85:
            return f"{one(*PROPERTIES)} {one('rdfs:domain', 'rdfs:range')} {one(*CLASSES)}"
        if chance < 0.95:
            return f"{one(*PROPERTIES)} a {one('owl:TransitiveProperty', 'owl:SymmetricProperty')}"
        return self.odd()

    def odd(self) -> str:
        """A triple about the vocabulary itself, or one that leads to triples that are no RDF."""
        return self.one(
            f"{self.one(*PROPERTIES)} rdfs:subPropertyOf rdfs:subClassOf",
            f"{self.one(*PROPERTIES)} rdfs:subPropertyOf rdf:type",
            f"{self.one(*PROPERTIES)} rdfs:subPropertyOf rdfs:domain",
            f"{self.one(*PROPERTIES)} rdfs:subPropertyOf 1",
            "rdfs:subPropertyOf rdfs:subPropertyOf :p0",
            f"rdf:type rdfs:domain {self.one(*CLASSES)}",
            f"rdf:type rdfs:range {self.one(*CLASSES)}",
            f"{self.one(*CLASSES)} rdfs:subClassOf owl:TransitiveProperty",
            f"{self.one(*PROPERTIES)} a {self.one(*CLASSES)}",
            f"{self.one(*CLASSES)} rdfs:subClassOf 1",
            f"rdfs:subClassOf owl:inverseOf {self.one(*PROPERTIES)}",
            "rdf:type a owl:SymmetricProperty",
        )

    def triples(self, most: int) -> str:
        return " . ".join(self.triple() for _ in range(self._chance.randint(1, most)))

    def update(self) -> str:
        graph, chance = self.one(*TARGETS), self._chance.random()
        if chance < 0.45:
            return self.operation("INSERT", graph)
        if chance < 0.6:
            return self.operation("DELETE", graph)
        if chance < 0.85:
            return self.modification()
        if chance < 0.92:
            return f"{self.operation('DELETE', graph)} ; {self.operation('INSERT', self.one(*TARGETS))}"
        named = self.one("DEFAULT", f"GRAPH {DATA}", f"GRAPH {ONTOLOGY}", "NAMED", "ALL")
        if chance < 0.97:
            return f"{self.one('CLEAR', 'DROP')} SILENT {named}"
        verb = self.one("COPY", "MOVE", "ADD")
        return f"{verb} SILENT {self.one('DEFAULT', DATA, OTHER)} TO {self.one('DEFAULT', DATA, ONTOLOGY)}"

    def operation(self, verb: str, graph: str) -> str:
        inner = self.triples(4)
        return f"{verb} DATA {{ {f'{graph}{{ {inner} }}' if graph else inner} }}"

    def modification(self) -> str:
        """DELETE and INSERT with a WHERE: triples move, change their predicate, or go."""
        there, then = self._chance.sample([target for target in TARGETS if target], 2)
        pattern = self.one(
            "?s ?p ?o",
            f"?s a {self.one(*CLASSES)} BIND ( rdf:type AS ?p ) BIND ( {self.one(*CLASSES)} AS ?o )",
            "?s rdfs:subClassOf ?o BIND ( rdfs:subClassOf AS ?p )",
            f"?s {self.one(*PROPERTIES)} ?o BIND ( {self.one(*PROPERTIES)} AS ?p )",
        )
        where = f"{there}{{ {pattern} }}"
        return self.one(
            f"DELETE {{ {there}{{ ?s ?p ?o }} }} INSERT {{ {then}{{ ?s ?p ?o }} }} WHERE {{ {where} }}",
            f"INSERT {{ {then}{{ ?s ?p ?o }} }} WHERE {{ {where} }}",
            f"DELETE {{ {there}{{ ?s ?p ?o }} }} WHERE {{ {where} }}",
        )


class Follower:
    """The rows of one subscription, by its notifications."""

    def __init__(self, engine: Engine, query: str) -> None:
        self.query = query
        subscription = engine.subscribe(PREFIXES + query)
        self.spuid = subscription.spuid
        self.rows = Counter(subscription.first.rows)


class Comparison:
    """An engine that infers, and a store with the asserted quads only."""

    def __init__(self) -> None:
        self.oracle = ox.Store()
        self.inferred = self.refused = self.notified = 0
        self.engine = Engine()
        self.engine.infer(SOURCES, [ONTOLOGY])
        self.followers = [Follower(self.engine, query) for query in QUERIES]

    def update(self, text: str) -> None:
        self._step(lambda: self.oracle.update(PREFIXES + text), lambda: self.engine.update(PREFIXES + text), text)

    def load(self, text: str, graph: str | None) -> None:
        """text: Turtle without its prefixes."""
        document = (PREFIXES.replace("PREFIX", "\nPREFIX") + text + " .").encode()
        name = None if graph is None else ox.NamedNode(graph[1:-1])
        self._step(
            lambda: self.oracle.load(document, ox.RdfFormat.TURTLE, to_graph=name),
            lambda: self.engine.load(document, "text/turtle", graph=graph),
            text,
        )

    def refuse(self, text: str) -> None:
        """The update exceeds a limit if it infers anything. Nothing is changed then; else it is run."""
        before, engine = self.engine.dump(), self.engine
        inference = engine._inference
        assert inference is not None
        for closure in inference._closures:
            closure._quads_max = 0
        try:
            delta = engine.prepare(PREFIXES + text)
        except LimitExceededError:
            self.refused += 1
            self._check_index()
            assert engine.dump() == before
        else:
            assert not any(quad.g and "inferred" in quad.g for quad in (*delta.added, *delta.removed))
        finally:
            for closure in inference._closures:
                closure._quads_max = 10_000

    def restart(self) -> None:
        """An engine that has the dataset only, and knows the settings, is in line."""
        old = self.engine
        self.engine = Engine()
        self.engine.restore(old.snapshot(), old.store.graphs(), old.sequence)
        commit = self.engine.infer(SOURCES, [ONTOLOGY])
        assert not commit.delta.changes, commit
        self.followers = [Follower(self.engine, query) for query in QUERIES]
        self._check("after a restart")

    def _step(self, native: Callable[[], object], run: Callable[[], Commit], text: str) -> None:
        engine = self.engine
        before = set(engine.dump().splitlines())
        native()
        commit = run()
        after = set(engine.dump().splitlines())
        added, removed = ({quad.to_nquads().encode() for quad in quads} for quads in (commit.added, commit.removed))
        assert (added, removed) == (after - before, before - after), text
        self.inferred += any("inferred" in (quad.g or "") for quad in (*commit.added, *commit.removed))
        by_spuid = {follower.spuid: follower for follower in self.followers}
        for notification in commit.notifications:
            rows = by_spuid[notification.spuid].rows
            rows.subtract(notification.removed.rows)
            rows.update(notification.added.rows)
            assert all(count >= 0 for count in rows.values()), text
            self.notified += 1
        self._check(text)

    def _check(self, text: str) -> None:
        engine = self.engine
        asserted = {quad for quad in engine.store.native if "inferred" not in str(quad.graph_name)}
        assert asserted == set(self.oracle), text
        ontology = {quad.triple for quad in self.oracle if str(quad.graph_name) == ONTOLOGY}
        for graph in SOURCES:
            name = ox.DefaultGraph() if graph is None else ox.NamedNode(graph[1:-1])
            given = ontology | {quad.triple for quad in self.oracle.quads_for_pattern(None, None, None, name)}
            inferred = inferred_graph(graph)
            found = engine.store.native.quads_for_pattern(None, None, None, ox.NamedNode(inferred[1:-1]))
            triples = {quad.triple for quad in found}
            assert triples == inference_oracle.inferred(given), (text, graph)
            assert engine.store.has_graph(inferred) == bool(triples), (text, graph)
        self._check_index()
        for follower in self.followers:
            fresh = engine.query(PREFIXES + follower.query).value
            assert isinstance(fresh, Bag)
            assert +follower.rows == Counter(fresh.rows), (text, follower.query)

    def _check_index(self) -> None:
        engine = self.engine
        inference = engine._inference
        assert inference is not None
        for predicate in inference.held:
            stored = set(engine.store.quads_with(predicate))
            assert {quad for quad in engine.cts.quads() if quad.p == predicate} == stored, predicate


def test_inferred_graphs_are_those_of_a_naive_fixpoint(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally: Counter[str] = Counter()

    def check() -> None:
        assert tally["inferred"] > 4 * cases, tally
        assert tally["notified"] > 4 * cases, tally
        assert tally["refused"] > cases // 4, tally

    for number in seeds(cases, check):
        chance = random.Random(number)
        writer, comparison = Writer(chance), Comparison()
        texts = []
        try:
            for _ in range(STEPS):
                kind = chance.random()
                texts.append(writer.triples(8) if kind < 0.1 else writer.update())
                if kind < 0.1:
                    comparison.load(texts[-1], chance.choice((None, DATA, ONTOLOGY)))
                    continue
                if kind > 0.9:
                    comparison.refuse(texts[-1])
                comparison.update(texts[-1])
                if kind > 0.97:
                    comparison.restart()
        except BaseException as error:
            error.add_note(f"case {number}:\n" + "\n".join(texts))
            raise
        tally.update({"inferred": comparison.inferred, "notified": comparison.notified, "refused": comparison.refused})
    print(f"\ninference against oracle, to seed {number}: {dict(tally)}")
