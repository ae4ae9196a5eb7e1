"""Validation: refusals leave nothing behind, marks follow the data, shapes change. Random cases are in
`tests/properties`."""

from __future__ import annotations

import json
import subprocess
import sys

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import VIOLATIONS, Access, Graphs
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import (
    AccessDeniedError,
    BrokenEngineError,
    InvalidShapesError,
    LimitExceededError,
    ShapesViolatedError,
)
from lamplighter.engine.inference.sources import inferred_graph
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.shacl import results
from lamplighter.engine.shacl.sources import ShapeSources
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from tests.support.places import ROOT
from tests.support.shacl_engine import PREFIXES, differences, found, validating
from tests.support.tables import each_row

LAMP = """
:Lamp a sh:NodeShape ; sh:targetClass :Lamp ;
    sh:property [ sh:path :level ; sh:minCount 1 ; sh:maxCount 1 ; sh:datatype xsd:integer ; sh:maxInclusive 100 ] .
"""
GOOD = ":a a :Lamp ; :level 5"
BAD = ":b a :Lamp ; :level 'high'"


def insert(triples: str, graph: str | None = None) -> str:
    return f"{PREFIXES} INSERT DATA {{ {triples if graph is None else f'GRAPH {graph} {{ {triples} }}'} }}"


def delete(triples: str) -> str:
    return insert(triples).replace("INSERT", "DELETE")


def test_a_refused_update_leaves_nothing_behind() -> None:
    engine = validating(LAMP)
    engine.update(insert(GOOD))
    seen = engine.subscribe(f"{PREFIXES} SELECT ?x {{ ?x a :Lamp }}")
    before, sequence = engine.dump(), engine.sequence
    with pytest.raises(
        ShapesViolatedError, match=r"<http://e/b> at <http://e/level> value \"high\": no valid <"
    ) as caught:
        engine.update(f"{insert(BAD)} ; {insert('', ':new')}")
    assert '<http://e/b> at <http://e/level> value "high": no valid <' in str(caught.value)
    assert "(sh:DatatypeConstraintComponent of <http://e/Lamp>)" in str(caught.value)
    assert (engine.dump(), engine.sequence, differences(engine)) == (before, sequence, [])
    [notification] = engine.update(insert(":c a :Lamp ; :level 6")).notifications
    assert (notification.spuid, notification.sequence, len(notification.added)) == (seen.spuid, 1, 1)


def test_the_report_names_focus_path_value_shape_and_message() -> None:
    engine = validating(LAMP.replace("sh:maxInclusive 100", "sh:maxInclusive 100 ; sh:message 'from 0 to 100'@en"))
    with pytest.raises(ShapesViolatedError) as caught:
        engine.update(insert(":b a :Lamp ; :level 101"))
    assert caught.value.report is not None
    [result] = caught.value.report["sh:result"]
    assert result["sh:focusNode"] == {"@id": "http://e/b"}
    assert result["sh:resultPath"] == {"@id": "http://e/level"}
    assert result["sh:value"] == {"@value": "101", "@type": "http://www.w3.org/2001/XMLSchema#integer"}
    assert result["sh:resultMessage"] == [{"@value": "from 0 to 100", "@language": "en"}]
    assert result["sh:sourceConstraintComponent"]["@id"].endswith("#MaxInclusiveConstraintComponent")
    assert "from 0 to 100" in str(caught.value)


@each_row("value", ["<sh:x>", "<gateway:1>", "'1'^^<sh:own>", "<sh://x>", "'a'@en", "<http://e/x>"])
def test_no_term_is_mistaken_for_a_short_name_of_the_report(value: str) -> None:
    engine = validating(":S sh:targetClass :C ; sh:property [ sh:path :p ; sh:maxCount 0 ; sh:in ( :a ) ] .")
    with pytest.raises(ShapesViolatedError) as caught:
        engine.update(insert(f":a a :C ; :p {value}"))
    quads = ox.parse(json.dumps(caught.value.report), format=ox.RdfFormat.JSON_LD)
    [found] = [str(quad.object) for quad in quads if quad.predicate.value.endswith("#value")]
    assert found == value.replace("'", '"')


def test_a_report_has_a_bounded_number_of_results() -> None:
    engine = validating(LAMP)
    many = " . ".join(f":b{number} a :Lamp" for number in range(results.REPORTED_MAX + 5))
    with pytest.raises(ShapesViolatedError, match="and 102 more") as caught:
        engine.update(insert(many))
    assert caught.value.report is not None
    assert len(caught.value.report["sh:result"]) == results.REPORTED_MAX


def test_old_violations_do_not_refuse_other_updates() -> None:
    engine = Engine()
    engine.update(insert(BAD))
    validating(LAMP, engine)
    assert found(engine) == {"b Datatype high", "b MaxInclusive high"}
    engine.update(insert(f"{GOOD} . :b :label 'lamp'"))
    engine.update(delete(":b :level 'high'") + f" ; {insert(':b :level 7')}")
    assert found(engine) == set()
    assert VIOLATIONS not in engine.store.graphs()


def test_an_old_violation_does_not_refuse_another_value_of_its_node() -> None:
    engine = Engine()
    engine.update(insert(BAD))
    validating(f"{LAMP} :Lamp sh:property [ sh:path :power ; sh:maxCount 1 ] .", engine)
    engine.update(insert(":b :power 5"))
    with pytest.raises(ShapesViolatedError, match="more than 1 values") as caught:
        engine.update(insert(":b :power 6"))
    assert caught.value.report is not None
    assert len(caught.value.report["sh:result"]) == 1, "the old violation is not told"


def test_languages_match_by_their_subtags() -> None:
    engine = validating(
        ":S sh:targetClass :Lamp ; sh:property [ sh:path :label ; sh:languageIn ( 'en' 'DE-at' ) ] .", rejects=False
    )
    engine.update(
        insert(":a a :Lamp ; :label 'a'@en , 'b'@en-GB , 'c'@de-AT , 'd'@eng , 'e'@de , 'f' , 'g'@DE-AT-1996")
    )
    assert found(engine) == {f"a LanguageIn {text}" for text in "def"}


@pytest.mark.parametrize(("shapes", "expected"), [((":Q", ":Q"), set()), ((":Q", ":R"), {"a QualifiedMinCount"})])
def test_a_shape_is_not_its_own_sibling(shapes: tuple[str, str], expected: set[str]) -> None:
    """A value that conforms to both shapes counts for neither (SHACL, 4.7.3)."""
    disjoint = "sh:path :part ; sh:qualifiedMinCount 1 ; sh:qualifiedValueShapesDisjoint true"
    counted = (f"[ {disjoint} ; sh:qualifiedValueShape {name} ]" for name in shapes)
    turtle = f":S sh:targetClass :Lamp ; sh:property {' , '.join(counted)} . :Q sh:class :Spot . :R sh:class :Spot ."
    engine = validating(turtle, rejects=False)
    engine.update(insert(":x a :Spot . :a a :Lamp ; :part :x"))
    assert found(engine) == expected


def test_marks_follow_deletions() -> None:
    engine = validating(LAMP, rejects=False)
    commit = engine.update(insert(BAD))
    assert found(engine) == {"b Datatype high", "b MaxInclusive high"}
    assert commit.delta.created == (VIOLATIONS,)
    assert engine.validation is not None
    assert (engine.validation.shape_count, engine.validation.violation_count) == (2, 2)
    engine.update(delete(":b :level 'high'"))
    assert found(engine) == {"b MinCount"}
    commit = engine.update(delete(":b a :Lamp"))
    assert commit.delta.dropped == (VIOLATIONS,)
    assert engine.validation.violation_count == 0


def test_a_subscription_sees_marks_in_the_commit_of_their_cause() -> None:
    engine = validating(LAMP, rejects=False)
    engine.subscribe(f"{PREFIXES} SELECT ?x {{ GRAPH {VIOLATIONS} {{ ?r sh:focusNode ?x }} }}")
    [notification] = engine.update(insert(":b a :Lamp")).notifications
    assert [row["x"] for row in notification.added.bindings()] == ["<http://e/b>"]


@each_row(
    ("says", "rejects", "refused"),
    [
        ("", True, True),
        ("", False, False),
        ("; sh:severity sh:Warning", True, False),
        ("; sh:severity sh:Info", True, False),
        ("; sh:severity :Grave", True, True),
        ("; gateway:onViolation 'reject'", False, True),
        ("; gateway:onViolation 'mark'", True, False),
        ("; sh:severity sh:Warning ; gateway:onViolation 'reject'", False, True),
    ],
)
@each_row("place", ["property", "root"])
def test_a_shape_decides_what_its_violations_do(says: str, rejects: bool, refused: bool, place: str) -> None:
    """A severity counts where it stands (SHACL, 2.1.4), so that of a root does not count for its property shapes."""
    inner, outer = (says, "") if place == "property" else ("", says)
    shapes = f":S a sh:NodeShape ; sh:targetClass :C {outer} ; sh:property [ sh:path :p ; sh:maxCount 0 {inner} ] ."
    if place == "root" and "severity" in says:
        refused = rejects or "reject" in says
    engine = validating(shapes, rejects=rejects)
    if refused:
        with pytest.raises(ShapesViolatedError):
            engine.update(insert(":x a :C ; :p 1"))
    else:
        engine.update(insert(":x a :C ; :p 1"))
        assert found(engine) == {"x MaxCount"}


def test_shapes_of_a_graph_change_with_it() -> None:
    engine = Engine()
    engine.validate(ShapeSources(graph="<http://e/shapes>"))
    engine.update(insert(BAD))
    engine.load((PREFIXES + LAMP).encode(), "ttl", graph="<http://e/shapes>")
    assert found(engine) == {"b Datatype high", "b MaxInclusive high"}
    with pytest.raises(ShapesViolatedError):
        engine.update(insert(":c a :Lamp"))
    limit = "GRAPH :shapes { ?s sh:maxInclusive 100 }"
    engine.update(f"{PREFIXES} DELETE {{ {limit} }} WHERE {{ {limit} }}")
    assert found(engine) == {"b Datatype high"}
    before = engine.dump()
    with pytest.raises(InvalidShapesError, match=r"shape <http://e/Lamp>: sh:minCout is no parameter of SHACL Core"):
        engine.update(insert(":Lamp sh:minCout 1", ":shapes"))
    assert (engine.dump(), differences(engine)) == (before, [])
    engine.update(f"{PREFIXES} DROP GRAPH :shapes")
    assert found(engine) == set()
    engine.update(insert(":c a :Lamp"))


def test_shapes_that_were_prepared_and_not_committed_do_not_count() -> None:
    engine = Engine()
    engine.validate(ShapeSources(graph="<http://e/shapes>"))
    engine.prepare_load((PREFIXES + LAMP).encode(), "ttl", graph="<http://e/shapes>")
    engine.update(insert(BAD))
    assert found(engine) == set()


def test_the_graph_of_violations_is_written_by_nobody_else() -> None:
    engine = validating(LAMP, rejects=False)
    engine.update(insert(BAD))
    with pytest.raises(AccessDeniedError, match="which has violations; change the triples that they follow from"):
        engine.update(insert(":x :y :z", VIOLATIONS))
    for verb in GraphVerb:
        with pytest.raises(AccessDeniedError):
            engine.prepare_write(GraphWrite(verb, VIOLATIONS))
    engine.update("DROP ALL")
    assert engine.quad_count == 0


def test_all_ways_to_change_the_dataset_are_checked() -> None:
    engine = validating(LAMP, data=(None, "<http://e/g>"))
    turtle = f"{PREFIXES} {BAD} .".encode()
    with pytest.raises(ShapesViolatedError):
        engine.load(turtle, "ttl")
    with pytest.raises(ShapesViolatedError):
        engine.load(turtle, "ttl", graph="<http://e/g>")
    engine.load(turtle, "ttl", graph="<http://e/other>")
    with pytest.raises(ShapesViolatedError):
        engine.update(f"{PREFIXES} COPY :other TO :g")
    with pytest.raises(ShapesViolatedError):
        engine.update(f"{PREFIXES} MOVE :other TO DEFAULT")
    engine.update(insert(GOOD))
    engine.update(insert(":a :level 5", ":g"))
    with pytest.raises(ShapesViolatedError, match="more than"):
        engine.update(insert(":a :level 6", ":g"))


def test_a_delta_from_elsewhere_is_marked_and_not_refused() -> None:
    engine, other = validating(LAMP), validating(LAMP, rejects=False)
    delta = other.update(insert(BAD)).delta
    engine.converge(delta)
    assert found(engine) == found(other) == {"b Datatype high", "b MaxInclusive high"}
    engine.converge(delta.invert())
    assert engine.quad_count == 0


def test_a_client_that_may_not_read_the_data_learns_the_shape_only() -> None:
    engine = validating(LAMP)
    blind = Access(read=Graphs(frozenset()))
    with pytest.raises(ShapesViolatedError) as caught:
        engine.update(insert(BAD), access=blind)
    assert str(caught.value) == "the update violates SHACL shapes: <http://e/Lamp>"
    assert caught.value.report is None


def test_inferred_triples_are_validated_in_the_same_commit() -> None:
    engine = validating(LAMP, data=(None, inferred_graph(None)))
    engine.infer([None], [None])
    engine.update(insert(":Spot rdfs:subPropertyOf rdf:type . :Bulb rdfs:subClassOf :Lamp"))
    with pytest.raises(ShapesViolatedError, match="fewer than 1 values"):
        engine.update(insert(":x :Spot :Bulb"))
    assert differences(engine) == []
    engine.update(insert(":x :Spot :Bulb ; :level 1"))


def test_inference_that_begins_later_is_validated() -> None:
    engine = validating(LAMP, data=(None, inferred_graph(None)))
    engine.update(insert(":p rdfs:domain :Lamp . :x :p 1"))
    assert found(engine) == set()
    engine.infer([None])
    assert found(engine) == {"x MinCount"}
    engine.infer([])
    assert found(engine) == set()


def test_an_ended_validation_leaves_no_violations_and_no_index() -> None:
    engine = validating(LAMP, rejects=False)
    engine.update(insert(BAD))
    assert engine.cts.tables
    engine.validate(None)
    assert engine.store.graphs() == []
    assert not engine.cts.tables
    engine.update(insert(":c a :Lamp", VIOLATIONS))
    assert engine.validation is None


def test_too_much_work_refuses_the_update() -> None:
    engine = Engine(evaluation_ms_max=1)
    path = "( [ sh:zeroOrMorePath :next ] :value )"
    turtle = f":S a sh:NodeShape ; sh:targetClass :C ; sh:property [ sh:path {path} ; sh:maxCount 1 ] ."
    chain = " . ".join(f":n{number} a :C ; :next :n{number + 1}" for number in range(300))
    engine.update(insert(chain))
    validating(turtle, engine)
    before = engine.dump()
    with pytest.raises(LimitExceededError, match="validation of the update would need more work"):
        engine.update(insert(":n300 :value 1"))
    assert (engine.dump(), differences(engine)) == (before, [])
    engine.update(insert(":n0 :value 1"))


def test_too_many_violations_refuse_the_update() -> None:
    engine = validating(LAMP, Engine(delta_quads_max=100), rejects=False)
    with pytest.raises(LimitExceededError, match=r"more violations than .* allows to record at once"):
        engine.update(insert(" . ".join(f":b{number} a :Lamp" for number in range(50))))
    assert engine.quad_count == 0
    assert differences(engine) == []


def test_too_many_violations_are_not_a_refusal() -> None:
    """A refusal would hold all of them."""
    many = " ; ".join(f"sh:property [ sh:path :p{number} ; sh:minCount 1 ]" for number in range(30))
    engine = validating(f":S sh:targetClass :C ; {many} .", Engine(delta_quads_max=29))
    with pytest.raises(LimitExceededError, match="allows to record at once"):
        engine.update(insert(":a a :C"))


def test_comparisons_of_all_values_with_all_count_as_work() -> None:
    engine = validating(
        ":S sh:targetClass :C ; sh:property [ sh:path :low ; sh:lessThan :high ] .", Engine(evaluation_ms_max=1)
    )
    lows, highs = (" , ".join(map(str, range(start, start + 300))) for start in (0, 1000))
    with pytest.raises(LimitExceededError, match="more work"):
        engine.update(insert(f":a a :C ; :low {lows} ; :high {highs}"))
    engine.update(insert(f":a a :C ; :low 1 , 2 ; :high {highs}"))


def test_the_graphs_that_a_value_is_looked_up_in_count_as_work() -> None:
    looks = " , ".join(f"[ sh:path :level ; sh:maxCount {number} ]" for number in range(1, 7))
    engine = validating(f":S sh:targetClass :Lamp ; sh:property {looks} .", Engine(evaluation_ms_max=1), data=None)
    graphs = " ".join(f"GRAPH :g{number} {{ :o :level {number} }}" for number in range(1000))
    engine.update(insert(graphs))
    with pytest.raises(LimitExceededError, match="more work"):
        engine.update(insert(" . ".join(f":l{number} a :Lamp ; :level 5" for number in range(10))))
    engine.update(insert(":l1 a :Lamp ; :level 5"))


def test_a_failing_step_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = validating(LAMP)
    engine.update(insert(GOOD))
    assert engine.validation is not None
    [root] = engine.validation._finder.shapes.roots

    def fails(node: object, violations: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(root, "parts", (fails,) * len(root.parts))
        with pytest.raises(MemoryError):
            engine.update(insert(":a :level 6"))
    assert differences(engine) == []
    with pytest.raises(ShapesViolatedError):
        engine.update(insert(":a :level 6"))


def test_what_cannot_be_taken_back_breaks_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = validating(LAMP)

    def fails(cts: Cts, delta: QuadDelta) -> None:
        raise MemoryError

    monkeypatch.setattr(Cts, "remove", fails)
    with pytest.raises(BrokenEngineError):
        engine.update(insert(GOOD))
    with pytest.raises(BrokenEngineError):
        engine.commit(QuadDelta())


def test_a_shape_without_a_name_has_the_same_name_after_each_start() -> None:
    one, other = (validating(LAMP, rejects=False) for _ in range(2))
    for engine in (one, other):
        engine.update(insert(BAD))
    assert sorted(one.dump().splitlines()) == sorted(other.dump().splitlines())


def test_nothing_is_loaded_while_it_is_off() -> None:
    script = (
        "import sys; from lamplighter.engine import Engine; import lamplighter.gateway.loop.runner; "
        "import lamplighter.gateway.service.process; "
        "Engine().update('INSERT DATA { <a:b> <a:c> 1 }'); "
        "print([name for name in sys.modules if 'engine.shacl' in name or 'rdflib' in name or 'pyshacl' in name])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.strip() == "[]"


def test_the_inverse_of_a_sequence_is_walked_from_its_end() -> None:
    path = "[ sh:inversePath ( :p :q ) ]"
    engine = validating(f":S sh:targetNode :z ; sh:property [ sh:path {path} ; sh:minCount 1 ] .", rejects=False)
    engine.update(insert(":a :q :b . :b :p :z"))
    assert found(engine) == {"z MinCount"}
    engine.update(insert(":a :p :b . :b :q :z"))
    assert found(engine) == set()
