"""Inferred graphs: each rule, deletion in cycles, limits, refusals. Random cases are in `tests/properties`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lamplighter.engine import Commit, Engine
from lamplighter.engine.access import Access, Graphs
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import AccessDeniedError, BrokenEngineError, LimitExceededError
from lamplighter.engine.inference import closure, facts
from lamplighter.engine.inference.sources import Sources, inferred_graph
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite

PREFIXES = (
    "PREFIX : <http://e/> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
    "PREFIX owl: <http://www.w3.org/2002/07/owl#> PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> "
)
DEFAULT = "<urn:lamplighter:inferred:default>"
G, ONTOLOGY = "<http://e/g>", "<http://e/ontology>"
CHAIN = 10


def insert(triples: str, graph: str | None = None) -> str:
    return f"{PREFIXES} INSERT DATA {{ {triples if graph is None else f'GRAPH {graph} {{ {triples} }}'} }}"


def delete(triples: str, graph: str | None = None) -> str:
    return insert(triples, graph).replace("INSERT", "DELETE")


def inferred(engine: Engine, graph: Term | None = None) -> set[str]:
    """The triples of an inferred graph, without the namespaces."""
    found = engine.store.quads(inferred_graph(graph))
    return {" ".join(term.strip("<>").rpartition("/")[2].rpartition("#")[2] for term in quad[:3]) for quad in found}


@pytest.fixture
def engine() -> Engine:
    """An engine that infers from the default graph and an ontology."""
    found = Engine()
    found.infer([None], [ONTOLOGY])
    return found


@pytest.mark.parametrize(
    ("rule", "schema", "data", "expected"),
    [
        ("cax-sco", ":C rdfs:subClassOf :D", ":x a :C", {"x type D"}),
        ("scm-sco", ":C rdfs:subClassOf :D", ":D rdfs:subClassOf :E", {"C subClassOf E"}),
        ("prp-spo1", ":p rdfs:subPropertyOf :q", ":x :p 1", {"x q integer"}),
        ("scm-spo", ":p rdfs:subPropertyOf :q", ":q rdfs:subPropertyOf :r", {"p subPropertyOf r"}),
        ("prp-dom", ":p rdfs:domain :C", ":x :p 1", {"x type C"}),
        ("prp-rng", ":p rdfs:range :C", ":x :p :y", {"y type C"}),
        ("prp-rng of a literal", ":p rdfs:range :C", ":x :p 1", set()),
        ("prp-symp", ":p a owl:SymmetricProperty", ":x :p :y", {"y p x"}),
        ("prp-symp of a literal", ":p a owl:SymmetricProperty", ":x :p 1", set()),
        ("prp-trp", ":p a owl:TransitiveProperty", ":x :p :y . :y :p :z", {"x p z"}),
        ("prp-inv1", ":p owl:inverseOf :q", ":x :p :y", {"y q x"}),
        ("prp-inv2", ":p owl:inverseOf :q", ":x :q :y", {"y p x"}),
        ("prp-spo1 to no property", ":p rdfs:subPropertyOf 1", ":x :p :y", set()),
    ],
)
def test_a_rule_holds_whichever_of_its_premises_comes_last_and_goes_first(
    engine: Engine, rule: str, schema: str, data: str, expected: set[str]
) -> None:
    steps = [(schema, ONTOLOGY), (data, None)]
    for come in (steps, steps[::-1]):
        for gone in (come, come[::-1]):
            for step in come:
                engine.update(insert(*step))
            assert inferred(engine) == expected, rule
            engine.update(delete(*gone[0]))
            assert inferred(engine) == set(), rule
            engine.update(delete(*gone[1]))
    assert not engine.store.graphs() or engine.store.graphs() == [ONTOLOGY]


@pytest.mark.parametrize(
    ("rule", "schema", "expected"),
    [
        (
            "scm-eqc1, cax-eqc",
            ":C owl:equivalentClass :D",
            {"C subClassOf D", "x type C", "y type D"},
        ),
        ("scm-eqc2", ":C rdfs:subClassOf :D . :D rdfs:subClassOf :C", {"C equivalentClass D", "x type C"}),
        ("scm-eqp1, prp-eqp", ":p owl:equivalentProperty :q", {"p subPropertyOf q", "x p y", "y q x"}),
        ("scm-eqp2", ":p rdfs:subPropertyOf :q . :q rdfs:subPropertyOf :p", {"q equivalentProperty p", "x p y"}),
    ],
)
def test_equivalents_share_their_members(engine: Engine, rule: str, schema: str, expected: set[str]) -> None:
    engine.update(insert(":x a :D ; :q :y . :y a :C ; :p :x"))
    engine.update(insert(schema, ONTOLOGY))
    assert expected <= inferred(engine), rule
    engine.update(delete(schema, ONTOLOGY))
    assert inferred(engine) == set(), rule


def test_a_cycle_of_subclasses_does_not_keep_itself_alive(engine: Engine) -> None:
    engine.update(insert(":A rdfs:subClassOf :B . :B rdfs:subClassOf :C . :C rdfs:subClassOf :B", ONTOLOGY))
    engine.update(insert(":x a :A"))
    assert {"x type B", "x type C"} <= inferred(engine)
    engine.update(delete(":A rdfs:subClassOf :B", ONTOLOGY))
    assert not {"x type B", "x type C"} & inferred(engine)


def test_a_cycle_and_what_led_into_it_go_together(engine: Engine) -> None:
    engine.update(insert(":p rdfs:domain :C . :C rdfs:subClassOf :A . :A rdfs:subClassOf :B", ONTOLOGY))
    engine.update(insert(":A rdfs:subClassOf :C . :q rdfs:subPropertyOf :p . :x :q 1"))
    assert {"x type A", "x type B", "x type C"} <= inferred(engine)
    engine.update(delete(":A rdfs:subClassOf :C . :q rdfs:subPropertyOf :p . :x :q 1"))
    assert not {"x type A", "x type B", "x type C"} & inferred(engine)


def test_what_is_asserted_is_not_inferred_and_comes_back_when_it_is_not_asserted_any_more(engine: Engine) -> None:
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    engine.update(insert(":x a :C"))
    assert inferred(engine) == {"x type D"}
    commit = engine.update(insert(":x a :D"))
    assert (len(commit.added), len(commit.removed), inferred(engine)) == (1, 1, set())
    assert commit.delta.dropped == (DEFAULT,)
    commit = engine.update(delete(":x a :D"))
    assert (commit.delta.created, inferred(engine)) == ((DEFAULT,), {"x type D"})
    engine.update(insert(":x a :D", ONTOLOGY))
    assert inferred(engine) == set()


def test_a_value_that_is_replaced_leaves_the_class_of_its_subject_alone(engine: Engine) -> None:
    engine.update(insert(":result rdfs:domain :C0 . " + chain(), ONTOLOGY))
    engine.update(insert(":x :result 1"))
    commit = engine.update(f"{PREFIXES} DELETE {{ :x :result ?o }} INSERT {{ :x :result 2 }} WHERE {{ :x :result ?o }}")
    assert (len(commit.added), len(commit.removed)) == (1, 1)
    assert len([text for text in inferred(engine) if text.startswith("x type")]) == CHAIN + 1


def test_each_graph_has_an_inferred_graph_of_its_own() -> None:
    engine = Engine()
    engine.infer([None, G])
    engine.update(insert(":C rdfs:subClassOf :D . :x a :C", G))
    engine.update(insert(":y a :C"))
    assert (inferred(engine), inferred(engine, G)) == (set(), {"x type D"})
    assert inferred_graph(G) == "<urn:lamplighter:inferred:http://e/g>"


def test_subscriptions_are_notified_in_the_commit_of_the_cause(engine: Engine) -> None:
    seen = engine.subscribe(f"{PREFIXES} SELECT ?x FROM {DEFAULT} {{ ?x a :D }}")
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    (notification,) = engine.update(insert(":x a :C")).notifications
    assert (notification.spuid, notification.added.rows) == (seen.spuid, (("<http://e/x>",),))
    (notification,) = engine.update("DROP ALL").notifications
    assert notification.removed.rows == (("<http://e/x>",),)
    assert engine.store.graphs() == []


def test_the_deltas_rebuild_the_dataset_without_inference(engine: Engine) -> None:
    commits: list[Commit] = []
    engine.listen(commits.append)
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    engine.update(insert(":x a :C"))
    engine.update(delete(":x a :C"))
    other = Engine()
    for commit in commits:
        other.commit(commit.delta)
    assert other.dump() == engine.dump()


# --- settings ---


def test_the_graphs_may_change_and_inference_may_end(engine: Engine) -> None:
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    engine.update(insert(":x a :C") + " ; " + insert(":y a :C", G))
    assert not engine.infer([None], [ONTOLOGY]).delta.changes
    engine.infer([G], [ONTOLOGY])
    assert (inferred(engine), inferred(engine, G)) == (set(), {"y type D"})
    commit = engine.infer([])
    assert commit.delta.dropped == (inferred_graph(G),)
    assert not engine.cts.tables
    assert not engine.update(insert(":z a :C", G)).delta.created
    engine.update(insert(":x a :D", DEFAULT))  # it is a graph like any other now
    assert engine.infer([None], [ONTOLOGY]).delta == QuadDelta()


def test_properties_that_the_ontology_does_not_mention_any_more_are_released(engine: Engine) -> None:
    before = set(engine.cts.tables)
    engine.update(insert(":p rdfs:domain :C . :q owl:inverseOf :r", ONTOLOGY))
    assert set(engine.cts.tables) - before == {"<http://e/p>", "<http://e/q>", "<http://e/r>"}
    engine.update(f"CLEAR GRAPH {ONTOLOGY}")
    engine.update(insert(":x a :C"))
    assert set(engine.cts.tables) == before


def test_an_inferred_graph_is_no_source() -> None:
    with pytest.raises(ValueError, match="name the graph that they follow from"):
        Engine().infer([None], [DEFAULT])


def test_nothing_is_loaded_while_it_is_off() -> None:
    script = (
        "import sys; from lamplighter.engine import Engine; Engine().update('INSERT DATA { <a:> <b:> <c:> }'); "
        "print([name for name in sys.modules if 'inference' in name])"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root).stdout == "[]\n"


# --- refusals ---


@pytest.mark.parametrize(
    "text",
    [
        f"INSERT DATA {{ GRAPH {DEFAULT} {{ <a:> <b:> <c:> }} }}",
        f"INSERT DATA {{ GRAPH {inferred_graph(G)} {{ <a:> <b:> <c:> }} }}",
        f"DELETE DATA {{ GRAPH {DEFAULT} {{ <a:> <b:> <c:> }} }}",
        f"DELETE {{ GRAPH ?g {{ ?s ?p ?o }} }} WHERE {{ GRAPH ?g {{ ?s ?p ?o }} FILTER ( ?g = {DEFAULT} ) }}",
        f"WITH {DEFAULT} DELETE {{ ?s ?p ?o }} WHERE {{ ?s ?p ?o }}",
        f"CLEAR GRAPH {DEFAULT}",
        f"DROP SILENT GRAPH {DEFAULT}",
        f"CREATE SILENT GRAPH {DEFAULT}",
        f"MOVE {DEFAULT} TO DEFAULT",
        f"COPY DEFAULT TO {DEFAULT}",
    ],
)
def test_no_request_writes_an_inferred_graph(engine: Engine, text: str) -> None:
    engine.update(insert(":C rdfs:subClassOf :D . :x a :C"))
    before = engine.dump()
    for _ in range(3):  # the plan, too
        with pytest.raises(AccessDeniedError, match="change the triples that they follow from, or the ontology"):
            engine.update(text)
    assert engine.dump() == before
    if "?g" not in text:
        with pytest.raises(AccessDeniedError, match="inferred"):
            engine.request(text).check(Access())  # before it is delayed


def test_documents_and_whole_graphs_are_refused_too(engine: Engine) -> None:
    quad = b"<a:> <b:> <c:> <urn:lamplighter:inferred:default> ."
    writes: list[Callable[[], object]] = [
        lambda: engine.load(quad, "nq"),
        lambda: engine.load(b"<a:> <b:> <c:> .", "nt", graph=DEFAULT),
        lambda: engine.prepare_write(GraphWrite(GraphVerb.DROP, DEFAULT)),
        lambda: engine.prepare_write(GraphWrite(GraphVerb.ADD, DEFAULT)),
    ]
    for write in writes:
        with pytest.raises(AccessDeniedError, match="nobody may write"):
            write()


def test_a_delta_of_another_dataset_comes_without_its_inferred_triples(engine: Engine) -> None:
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    kind = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
    own = Quad("<http://e/x>", kind, "<http://e/C>", None)
    delta = QuadDelta(added=(own, Quad("<http://e/y>", kind, "<http://e/E>", DEFAULT)), created=(DEFAULT,))
    for commit in (engine.commit(engine.prepare_change(delta)), engine.converge(delta)):
        assert (own in commit.added) == commit.delta.changes
    assert inferred(engine) == {"x type D"}


# --- permissions ---


def graphs(*names: Term | None) -> Graphs:
    return Graphs(frozenset(names))


def test_an_inferred_graph_is_readable_with_all_that_it_follows_from() -> None:
    sources = Sources((None, G), (ONTOLOGY,))
    cases: list[tuple[tuple[Term | None, ...], tuple[Term | None, ...]]] = [
        ((None, ONTOLOGY), (None, ONTOLOGY, DEFAULT)),
        ((None, G), (None, G)),
        ((G, ONTOLOGY), (G, ONTOLOGY, inferred_graph(G))),
        ((DEFAULT, ONTOLOGY), (ONTOLOGY,)),
    ]
    for named, readable in cases:
        found = sources.readable(Access(graphs(*named), graphs(None), graphs(*named)))
        assert found.read == found.subscribe == graphs(*readable)
        assert found.write == graphs(None)
    assert sources.readable(Access()) == Access()


def test_a_client_that_may_write_the_source_changes_what_follows(engine: Engine) -> None:
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    client = Access(Graphs(frozenset()), graphs(None), Graphs(frozenset()))
    engine.update(insert(":x a :C"), access=client)
    assert inferred(engine) == {"x type D"}
    with pytest.raises(AccessDeniedError):
        engine.update("CLEAR ALL", access=client)


# --- limits and faults ---


def chain() -> str:
    return " . ".join(f":C{number} rdfs:subClassOf :C{number + 1}" for number in range(CHAIN))


def many(count: int) -> str:
    return " . ".join(f":x{number} a :C0" for number in range(count))


def test_an_update_that_needs_too_much_work_is_refused_with_the_cure() -> None:
    engine = Engine(evaluation_ms_max=1)
    engine.infer([None])
    engine.update(insert(many(3000)))
    before, index = engine.dump(), set(engine.cts.quads())
    with pytest.raises(LimitExceededError, match=r"limits\.evaluation_ms_max = 1 allows; send it in parts, or raise"):
        engine.update(insert(chain()))
    assert (engine.dump(), set(engine.cts.quads())) == (before, index)
    engine.work.allow(1000)
    engine.update(insert(chain()))
    assert len(inferred(engine)) == 3000 * CHAIN + CHAIN * (CHAIN - 1) // 2


def test_what_is_derived_and_was_there_counts_as_work_too() -> None:
    engine = Engine(evaluation_ms_max=1)
    engine.infer([None])
    engine.update(insert(" . ".join(f":x{number} :p 1 ; :q 1" for number in range(6000))))
    with pytest.raises(LimitExceededError, match="send it in parts"):
        engine.update(insert(":p rdfs:subPropertyOf :q"))


def test_an_update_that_infers_too_many_triples_is_refused_with_the_cure() -> None:
    engine = Engine(delta_quads_max=CHAIN)
    engine.infer([None])
    engine.update(insert(":C0 rdfs:subClassOf :C1"))
    engine.update(insert(many(CHAIN)))
    before = engine.dump()
    with pytest.raises(LimitExceededError, match=rf"limits\.delta_quads_max = {CHAIN} inferred triples; send it"):
        engine.update(insert(":C1 rdfs:subClassOf :C2"))
    assert engine.dump() == before


def test_a_fault_fails_the_update_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.update(insert(chain(), ONTOLOGY) + " ; " + insert(":x a :C0"))
    before, index = engine.dump(), set(engine.cts.quads())
    with monkeypatch.context() as patched:
        patched.setattr(closure, "is_supported", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.update(delete(":C4 rdfs:subClassOf :C5", ONTOLOGY))
    assert (engine.dump(), set(engine.cts.quads())) == (before, index)
    engine.update(delete(":C4 rdfs:subClassOf :C5", ONTOLOGY))
    assert "x type C4" in inferred(engine)
    assert "x type C5" not in inferred(engine)


def test_an_index_that_cannot_be_restored_breaks_the_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.update(insert(":C rdfs:subClassOf :D", ONTOLOGY))
    with monkeypatch.context() as patched:
        patched.setattr(facts.InferredFacts, "infer", lambda *_: 1 / 0)
        patched.setattr(closure.Closure, "forget", lambda *_: 1 / 0)
        with pytest.raises(BrokenEngineError):
            engine.update(insert(":x a :C"))
    with pytest.raises(BrokenEngineError):
        engine.update(insert(":y a :E"))


def test_the_search_for_another_reason_counts_as_work() -> None:
    """Each of many reasons that goes has the others looked through."""
    engine = Engine(evaluation_ms_max=1)
    engine.infer([None])
    engine.update(insert(":q a owl:TransitiveProperty"))
    for edge in (":s :q :m{}", ":m{} :q :o"):
        for start in range(0, 800, 100):
            engine.update(insert(" . ".join(edge.format(number) for number in range(start, start + 100))))
    with pytest.raises(LimitExceededError, match="send it in parts"):
        engine.update(delete(" . ".join(f":m{number} :q :o" for number in range(799))))
    engine.update(delete(":m0 :q :o . :m1 :q :o"))
    assert inferred(engine) == {"s q o"}


@pytest.mark.parametrize(
    ("schema", "edge"), [(":q rdfs:range :C", ":x{} :q :hub"), (":q rdfs:domain :C", ":hub :q :x{}")]
)
def test_a_node_with_many_neighbours_costs_no_more(
    engine: Engine, schema: str, edge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its type still follows is not decided by a list of all of them, for each that goes."""
    engine.update(insert(" . ".join([schema, *(edge.format(number) for number in range(500))])))
    listed = []
    for name in ("objects", "subjects"):
        original = getattr(facts.GraphFacts, name)

        def counted(
            self: facts.GraphFacts, *terms: Term, original: Callable[..., tuple[Term, ...]] = original
        ) -> object:
            found = original(self, *terms)
            listed.append(len(found))
            return found

        monkeypatch.setattr(facts.GraphFacts, name, counted)
    engine.update(delete(" . ".join(edge.format(number) for number in range(20))))
    assert sum(listed) < 500
    assert inferred(engine) == {"hub type C"}


def test_no_shape_of_update_writes_to_graphs_of_derived_triples() -> None:
    """Also where the shape is frequent, so that a plan serves it."""
    engine = Engine()
    engine.update(insert(":A rdfs:subClassOf :B", ONTOLOGY))
    engine.infer([None], [ONTOLOGY])
    shapes = (
        "INSERT DATA {{ GRAPH <{graph}> {{ <urn:s{number}> <urn:p> <urn:o> }} }}",
        "DELETE DATA {{ GRAPH <{graph}> {{ <urn:s{number}> <urn:p> <urn:o> }} }}",
    )
    for shape in shapes:
        for number in range(8):
            engine.update(shape.format(graph="urn:g", number=number))
        for graph in ("urn:lamplighter:inferred:default", "urn:lamplighter:violations"):
            before = engine.quad_count
            with pytest.raises(AccessDeniedError):
                engine.update(shape.format(graph=graph, number=9))
            assert engine.quad_count == before
