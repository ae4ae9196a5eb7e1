"""RDFLib beside the engine: terms, results, deltas, and a graph that is what its CONSTRUCT gives after each commit."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator

import pyoxigraph as ox
import pytest
import rdflib
from hypothesis import given
from hypothesis import strategies as st
from rdflib.compare import isomorphic
from rdflib.plugins.sparql import prepareQuery

from lamplighter.engine import Bag, Engine, QuadDelta
from lamplighter.engine.errors import GatewayError, LimitExceededError, StoreError, UnsupportedRequestError
from lamplighter.engine.rdflib import (
    LiveGraph,
    apply_to_rdflib,
    bag_from_rdflib,
    delta_from_rdflib,
    graph_to_rdflib,
    result_to_rdflib,
    term_from_rdflib,
    term_to_rdflib,
)
from lamplighter.engine.terms import Quad
from tests.support.amounts import Amounts
from tests.support.places import ROOT
from tests.support.tables import each_row

EX = rdflib.Namespace("http://example.org/")
XSD = "http://www.w3.org/2001/XMLSchema#"
PREFIX = "PREFIX : <http://example.org/> "


# --- terms ---


@each_row(
    ("term", "node"),
    [
        ("<http://example.org/é>", rdflib.URIRef("http://example.org/é")),
        ("_:b0", rdflib.BNode("b0")),
        ('"a\\n\\"b\\\\"', rdflib.Literal('a\n"b\\')),
        ('"chat"@fr-be', rdflib.Literal("chat", lang="fr-be")),
        (f'"1.50"^^<{XSD}decimal>', rdflib.Literal("1.50", datatype=rdflib.XSD.decimal, normalize=False)),
        (f'"no number"^^<{XSD}integer>', rdflib.Literal("no number", datatype=rdflib.XSD.integer)),
        ('"x"^^<http://example.org/type>', rdflib.Literal("x", datatype=EX.type)),
    ],
)
def test_terms_in_both_directions(term: str, node: rdflib.term.Node) -> None:
    made = term_to_rdflib(term)
    assert made == node
    assert type(made) is type(node)
    assert str(made) == str(node)
    assert term_from_rdflib(made) == term


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert str(term_to_rdflib(term_from_rdflib(rdflib.Literal(text)))) == text


def test_a_string_with_its_datatype_is_the_same_term() -> None:
    assert term_from_rdflib(rdflib.Literal("x", datatype=rdflib.XSD.string)) == '"x"'


@each_row("term", ["<<( <a:s> <a:p> <a:o> )>>", '"x"@en--ltr', f'<<( <a:s> <a:p> "{"x" * 300}" )>>'])
def test_what_rdflib_does_not_have_is_refused(term: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"RDFLib has no (triple terms|literals with a base direction): "):
        term_to_rdflib(term)


@each_row(
    "node",
    [
        rdflib.URIRef("http://example.org/a b"),
        rdflib.BNode("a b"),
        rdflib.BNode("a."),
        rdflib.Variable("x"),
        rdflib.Literal("x", datatype=rdflib.URIRef("a b")),
        rdflib.Literal("x", lang="toolonglanguage"),
    ],
)
def test_what_is_no_term_is_refused(node: rdflib.term.Node) -> None:
    with pytest.raises(UnsupportedRequestError, match="is no"):
        term_from_rdflib(node)


def test_without_rdflib_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['rdflib'] = None\n"
        "try:\n    import lamplighter.engine.rdflib\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("RDFLib is not installed; pip install 'rdflib<")


# --- results ---


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.update(
            PREFIX + "INSERT DATA { :1 :state 'ON' ; :power 1.50 . :2 :state 'OFF' GRAPH :g { :3 :state 'ON' } }"
        )
        yield engine


def test_rows_in_both_directions(engine: Engine) -> None:
    bag = engine.query(PREFIX + "SELECT ?lamp ?power { ?lamp :state ?s OPTIONAL { ?lamp :power ?power } }").value
    result = result_to_rdflib(bag)
    rows = {row.lamp: row.power for row in result}  # type: ignore[union-attr]
    assert rows == {EX["1"]: rdflib.Literal("1.5", datatype=rdflib.XSD.decimal), EX["2"]: None}
    assert bag_from_rdflib(result) == bag
    data = result.serialize(format="json")
    assert data is not None
    assert Bag.from_json(json.loads(data)) == bag


def test_truth_values_and_graphs(engine: Engine) -> None:
    assert result_to_rdflib(engine.query("ASK {}")).askAnswer is True
    query = PREFIX + "CONSTRUCT { ?lamp :is ?state } WHERE { ?lamp :state ?state }"
    result = result_to_rdflib(engine.query(query))
    assert result.graph is not None
    graph = graph_to_rdflib(engine.query(query))
    assert (
        set(result.graph)
        == set(graph)
        == {(EX["1"], EX["is"], rdflib.Literal("ON")), (EX["2"], EX["is"], rdflib.Literal("OFF"))}
    )
    with pytest.raises(UnsupportedRequestError, match="the form of the result is CONSTRUCT"):
        bag_from_rdflib(result)


# --- deltas ---


def test_a_dataset_follows_the_deltas(engine: Engine) -> None:
    dataset = rdflib.Dataset()
    apply_to_rdflib(QuadDelta(added=tuple(quad for batch in engine.snapshot() for quad in batch)), dataset)
    changes = [
        "INSERT DATA { GRAPH :h { :4 :state 'ON' } }",
        "DELETE { ?s :state 'ON' } INSERT { ?s :state 'OFF' } WHERE { ?s :state 'ON' }",
        "CREATE GRAPH :empty",
        "DROP GRAPH :g",
        "MOVE GRAPH :h TO DEFAULT",
    ]
    for change in changes:
        apply_to_rdflib(engine.update(PREFIX + change).delta, dataset)
        engine_side = {str(quad) for quad in ox.parse(engine.dump(), format=ox.RdfFormat.N_QUADS)}
        delta = delta_from_rdflib(dataset)
        assert {str(ox_quad(quad)) for quad in delta.added} == engine_side, change
    names = {str(graph.identifier) for graph in dataset.graphs()}
    assert names == {"urn:x-rdflib:default", str(EX.empty)}


def ox_quad(quad: Quad) -> ox.Quad:
    [found] = ox.parse(quad.to_nquads(), format=ox.RdfFormat.N_QUADS)
    return found


def test_an_rdflib_graph_is_committed_in_canonical_terms(engine: Engine) -> None:
    watched = engine.subscribe(PREFIX + "SELECT ?power { ?lamp :power ?power }")
    graph = rdflib.Graph()
    graph.add((EX["2"], EX.power, rdflib.Literal("2.50", datatype=rdflib.XSD.decimal, normalize=False)))
    graph.add((rdflib.BNode("b"), EX.power, EX.none))
    commit = engine.converge(
        delta_from_rdflib(graph, [(EX["1"], EX.power, rdflib.Literal("1.5", datatype=rdflib.XSD.decimal))])
    )
    assert set(commit.added) == {
        Quad(f"<{EX['2']}>", f"<{EX.power}>", f'"2.5"^^<{XSD}decimal>'),
        Quad("_:b", f"<{EX.power}>", f"<{EX.none}>"),
    }
    assert commit.removed == (Quad(f"<{EX['1']}>", f"<{EX.power}>", f'"1.5"^^<{XSD}decimal>'),)
    [notification] = commit.notifications
    assert notification.spuid == watched.spuid
    again = engine.converge(delta_from_rdflib(graph, graph="<http://example.org/copy>"))
    assert {quad.g for quad in again.added} == {"<http://example.org/copy>"}
    assert engine.converge(delta_from_rdflib(graph, graph="<http://example.org/copy>")).added == ()


def test_a_delta_has_rdf_only() -> None:
    for triple in (
        (rdflib.Literal("x"), EX.p, EX.o),
        (EX.s, rdflib.BNode(), EX.o),
        (EX.s, EX.p, rdflib.Variable("x")),
        (rdflib.URIRef("relative"), EX.p, EX.o),
    ):
        with pytest.raises(UnsupportedRequestError):
            delta_from_rdflib([triple])
    with pytest.raises(LimitExceededError):
        delta_from_rdflib([(EX.s, EX.p, rdflib.Literal("x" * 2_000_000))])


# --- live graphs ---

TEMPLATES = {
    "triples": "CONSTRUCT { ?s :now ?o } WHERE { ?s :p ?o }",
    "the same triple from many": "CONSTRUCT { ?o a :Value . :x :has ?o } WHERE { ?s :p|:q ?o }",
    "join": "CONSTRUCT { ?a :near ?b . ?b :near ?a } WHERE { ?a :p ?x . ?b :q ?x FILTER(?a != ?b) }",
    "short form": "CONSTRUCT WHERE { ?s :p ?o . ?s :q ?v }",
    "short form of graphs": "CONSTRUCT FROM :g WHERE { ?s :p ?o }",
    "graph": "CONSTRUCT { ?g :holds ?s } WHERE { GRAPH ?g { ?s ?p ?o } }",
    "without WHERE": "CONSTRUCT { ?s a :Thing } { ?s :p ?o }",
    "unbound and misplaced": "CONSTRUCT { ?o :of ?s . ?s ?q ?o ; :r ?v } WHERE { ?s ?q ?o OPTIONAL { ?s :q ?v } }",
    "no variables": "CONSTRUCT { :street :has :light } WHERE { ?s :p ?o }",
    "constants": "CONSTRUCT { ?s :is 1.50, 01, 'x'@EN, true } WHERE { ?s :p ?o }",
    "distinct counts": "CONSTRUCT { ?s :count ?n } WHERE { { SELECT ?s (COUNT(*) AS ?n) { ?s ?p ?o } GROUP BY ?s } }",
    "order and limit": "CONSTRUCT { ?s :first ?o } WHERE { ?s :p ?o } ORDER BY ?s ?o LIMIT 3",
    "path": "CONSTRUCT { ?s :reaches ?o } WHERE { ?s :p/:q* ?o }",
    "select": "SELECT ?s ?p ?o { ?s ?p ?o FILTER(?p != :q) }",
}
WITH_BLANK_NODES = {
    "blank node": "CONSTRUCT { [] :of ?s ; :value ?o } WHERE { ?s :p ?o }",
    "blank node for each solution": "CONSTRUCT { _:x :of ?s . ?s :has _:x } WHERE { ?s :p ?o }",
    "list": "CONSTRUCT { ?s :list (?o 1) } WHERE { ?s :p ?o }",
    "blank node without variables": "CONSTRUCT { _:x a :Solution } WHERE { ?s :p ?o }",
    "short form": "CONSTRUCT WHERE { ?s :p _:x }",
}


def random_update(chance: random.Random) -> str:
    def triple() -> str:
        o = chance.choice([":a", ":b", ":c", "1", "1.50", "'x'@EN", "'x'"])
        return f":{chance.choice('abc')} :{chance.choice('pq')} {o}"

    def quad() -> str:
        return triple() if chance.random() < 0.7 else f"GRAPH :{chance.choice('gh')} {{ {triple()} }}"

    kind = chance.randrange(8)
    if kind < 3:
        return f"INSERT DATA {{ {quad()} . {triple()} }}"
    if kind < 5:
        return f"DELETE DATA {{ {quad()} . {triple()} }}"
    if kind == 5:
        return f"DELETE {{ ?s :p ?o }} INSERT {{ ?s :q ?o . {triple()} }} WHERE {{ ?s :p ?o . ?s :q ?v }}"
    if kind == 6:
        return f"INSERT {{ _:n :p ?o ; :q :a }} WHERE {{ :{chance.choice('abc')} :p ?o }}"
    return chance.choice(
        [
            "CLEAR DEFAULT",
            "DROP SILENT GRAPH :g",
            "DELETE WHERE { ?s :q ?o }",
            "DELETE { ?b ?p ?o } WHERE { ?b ?p ?o FILTER(ISBLANK(?b)) }",
        ]
    )


def fresh(engine: Engine, query: str) -> rdflib.Graph:
    """What the query gives in a store of its own that shares no code with the engine."""
    store = ox.Store()
    store.extend(ox.parse(engine.dump(), format=ox.RdfFormat.N_QUADS))
    answer = store.query(query)
    graph = rdflib.Graph()
    for s, p, o in answer:  # type: ignore[union-attr]
        graph.add((node(s), node(p), node(o)))
    return graph


def node(term: object) -> rdflib.term.Node:
    if isinstance(term, ox.NamedNode):
        return rdflib.URIRef(term.value)
    if isinstance(term, ox.BlankNode):
        return rdflib.BNode(term.value)
    assert isinstance(term, ox.Literal)
    if term.language:
        return rdflib.Literal(term.value, lang=term.language)
    plain = term.datatype.value == f"{XSD}string"
    return rdflib.Literal(term.value, datatype=None if plain else term.datatype.value, normalize=False)


@each_row("seed", range(6), is_amount=True)
def test_live_graphs_are_what_the_store_constructs(seed: int) -> None:
    chance = random.Random(seed)
    with Engine() as engine:
        engine.update(PREFIX + random_update(chance))
        live = {name: LiveGraph(engine, PREFIX + query) for name, query in TEMPLATES.items()}
        for _ in range(60):
            update = random_update(chance)
            engine.update(PREFIX + update)
            for name, query in TEMPLATES.items():
                assert set(live[name]) == set(fresh(engine, PREFIX + query)), (name, update)
        for graph in live.values():
            graph.close()
        assert engine.subscription_count == 0


@each_row("seed", range(4), is_amount=True)
def test_live_graphs_with_new_blank_nodes_are_isomorphic(seed: int) -> None:
    chance = random.Random(seed)
    with Engine() as engine:
        live = {name: LiveGraph(engine, PREFIX + query) for name, query in WITH_BLANK_NODES.items()}
        for _ in range(40):
            update = random_update(chance)
            engine.update(PREFIX + update)
            for name, query in WITH_BLANK_NODES.items():
                assert isomorphic(live[name], fresh(engine, PREFIX + query)), (name, update)


SPELLINGS = [
    "BASE <http://example.org/> PREFIX x: <#> construct{ ?s x:is <rel> }where{ ?s <p> ?o }",
    '# {\nCONSTRUCT # { c\n { ?s :q \'} { \' , """a } b""" . # }\n } # x\nWHERE # {\n { ?s :p ?o }',
    "CONSTRUCT {} WHERE { ?s :p ?o }",
    "CONSTRUCT { $s :v $o ; a :T , [ :in ($s $o) ] } { ?s :p ?o }",
    "CONSTRUCT WHERE {}",
    "CONSTRUCT FROM NAMED :g WHERE { ?s :p ?o }",
    "CONSTRUCT { ?g :n ?s } FROM NAMED :g WHERE { GRAPH ?g { ?s :p ?o } }",
    "CONSTRUCT { ?s :n -1, +2.5, 1e3, true } WHERE { ?s :p ?o } VALUES ?o { :a 1 }",
    "PREFIX : <http://other.org/> CONSTRUCT { ?ს :n ?o } WHERE { ?ს <http://example.org/p> ?o }",
    "CONSTRUCT { ?o :n ?o . _:a ?p _:a } WHERE { ?s ?p ?o }",
    "CONSTRUCT { ?s :opt ?v } WHERE { ?s :p ?o OPTIONAL { ?s :q ?v } MINUS { ?s :q :b } }",
]


@each_row("query", SPELLINGS)
def test_templates_of_any_spelling_are_cut_out(query: str, amounts: Amounts) -> None:
    chance = random.Random(3)
    query = query if query.startswith("BASE") else PREFIX + query
    with Engine() as engine, LiveGraph(engine, query) as graph:
        for _ in range(amounts.of(30)):
            engine.update(PREFIX + random_update(chance))
            assert isomorphic(graph, fresh(engine, query))


RDFLIB_AGREES = ["triples", "the same triple from many", "join", "without WHERE", "no variables", "graph", "path"]


@pytest.mark.filterwarnings("ignore:Dataset:DeprecationWarning")  # RDFLib uses it itself
def test_live_graphs_are_what_rdflib_constructs(amounts: Amounts) -> None:
    chance = random.Random(7)
    dataset = rdflib.Dataset()
    queries = {name: prepareQuery(PREFIX + TEMPLATES[name]) for name in RDFLIB_AGREES}
    with Engine() as engine:
        live = {name: LiveGraph(engine, PREFIX + TEMPLATES[name]) for name in RDFLIB_AGREES}
        for _ in range(amounts.of(40)):
            update = random_update(chance)
            apply_to_rdflib(engine.update(PREFIX + update).delta, dataset)
            for name, query in queries.items():
                constructed = dataset.query(query).graph
                assert constructed is not None
                # RDFLib also constructs triples with a literal as the subject, which are no RDF.
                expected = {triple for triple in constructed if not isinstance(triple[0], rdflib.Literal)}
                assert set(live[name]) == expected, (name, update)


def test_blank_nodes_of_a_solution_stay_with_it(engine: Engine) -> None:
    with LiveGraph(engine, PREFIX + "CONSTRUCT { [] :of ?lamp } WHERE { ?lamp :state ?state }") as graph:
        before = set(graph)
        engine.update(PREFIX + "INSERT DATA { :9 :state 'ON' }")
        assert before < set(graph)
        engine.update(PREFIX + "DELETE DATA { :9 :state 'ON' }")
        assert set(graph) == before


def test_a_live_graph_is_an_rdflib_graph(engine: Engine) -> None:
    with LiveGraph(engine, "PREFIX lamp: <http://example.org/> CONSTRUCT WHERE { ?lamp lamp:state ?state }") as graph:
        engine.update(PREFIX + "INSERT DATA { :5 :state 'DIM' }")
        [row] = graph.query("SELECT ?lamp { ?lamp lamp:state 'DIM' }")
        assert row[0] == EX["5"]  # type: ignore[index]
        assert "lamp:5 lamp:state" in graph.serialize(format="turtle")
        copy = graph + rdflib.Graph()
        copy.add((EX.s, EX.p, EX.o))
        for change in (
            lambda: graph.add((EX.s, EX.p, EX.o)),
            lambda: graph.remove((None, None, None)),
            lambda: graph.set((EX.s, EX.p, EX.o)),
            lambda: graph.parse(data="<a:s> <a:p> <a:o> .", format="turtle"),
            lambda: graph.update("INSERT DATA { <a:s> <a:p> <a:o> }"),
            lambda: graph.__iadd__([(EX.s, EX.p, EX.o)]),
        ):
            with pytest.raises(TypeError, match="this graph follows a query"):
                change()
        assert len(graph) == 3


def test_a_closed_graph_keeps_its_content(engine: Engine) -> None:
    graph = LiveGraph(engine, PREFIX + TEMPLATES["select"])
    graph.close()
    graph.close()
    engine.update("CLEAR ALL")
    assert len(graph) == 3
    assert engine.subscription_count == 0
    other = LiveGraph(engine, PREFIX + TEMPLATES["select"])
    engine.close()
    other.close()


def test_graphs_of_the_protocol(engine: Engine) -> None:
    with LiveGraph(engine, PREFIX + TEMPLATES["select"], default_graphs=[f"<{EX.g}>"]) as graph:
        assert set(graph) == {(EX["3"], EX.state, rdflib.Literal("ON"))}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("ASK {}", "the form of the query is ASK; write CONSTRUCT"),
        ("DESCRIBE <a:s>", "the form of the query is DESCRIBE"),
        ("SELECT ?s ?p { ?s ?p ?o }", "has 2 variables; SELECT a subject, a predicate and an object"),
        ("CONSTRUCT { ?s <a:p> ?now } WHERE { ?s ?p ?o BIND(NOW() AS ?now) }", "NOW"),
        ("CONSTRUCT { ?s <a:p> <<( ?s ?p ?o )>> } WHERE { ?s ?p ?o }", "RDFLib has no triple terms"),
        ("CONSTRUCT { ?s <a:p> } WHERE {}", "line 1, column"),
    ],
)
def test_what_cannot_be_followed_is_refused(engine: Engine, query: str, message: str) -> None:
    with pytest.raises(GatewayError, match=message):
        LiveGraph(engine, query)
    assert engine.subscription_count == 0


def test_a_graph_that_cannot_follow_any_more_says_so(engine: Engine) -> None:
    graph = LiveGraph(engine, PREFIX + TEMPLATES["select"])
    assert engine.update("INSERT DATA { <a:s> <a:p> <<( <a:s> <a:p> <a:o> )>> }").sequence == 2
    for read in (lambda: len(graph), lambda: list(graph), lambda: (EX.s, EX.p, EX.o) in graph, graph.serialize):
        with pytest.raises(StoreError, match="no longer follows its query: RDFLib has no triple terms"):
            read()
    graph.close()
    with pytest.raises(UnsupportedRequestError, match="RDFLib has no triple terms"):
        LiveGraph(engine, PREFIX + TEMPLATES["select"])
    assert engine.subscription_count == 0


def test_a_graph_whose_subscription_was_ended_says_so() -> None:
    with Engine(ends_costly=True, evaluation_ms_max=1) as engine:
        graph = LiveGraph(engine, "CONSTRUCT { ?a <a:with> ?b } WHERE { ?a <a:p> ?x . ?b <a:p> ?x }")
        engine.load("".join(f"<a:{number}> <a:p> <a:x> .\n" for number in range(1500)).encode())
        with pytest.raises(StoreError, match="no longer follows its query: the subscription was ended"):
            list(graph)
        graph.close()


def test_listeners_hear_of_each_commit(engine: Engine) -> None:
    heard: list[int] = []
    end = engine.listen(lambda commit: heard.append(commit.sequence))
    engine.update("INSERT DATA { <a:s> <a:p> 1 }")
    engine.load(b"<a:s> <a:p> <a:o> .")
    end()
    end()
    engine.update("CLEAR ALL")
    assert heard == [2, 3]
