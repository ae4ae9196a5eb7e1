"""What is no shape, or not supported, is refused by name; hostile shapes take bounded time."""

from __future__ import annotations

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import InvalidShapesError
from lamplighter.engine.shacl import reading
from lamplighter.engine.shacl.reading import read_shapes
from tests.support.shacl_engine import PREFIXES, shape_triples, validating
from tests.support.tables import each_row

REFUSED = {
    ":S sh:targetClass :C ; sh:sparql [ sh:select 'x' ]": "shape <http://e/S>: sh:sparql: SPARQL-based constraints are",
    ":S sh:targetClass :C ; sh:js []": "sh:js: JavaScript constraints are not supported",
    ":S sh:targetClass :C ; sh:rule []": "sh:rule: rules are not supported",
    ":S a sh:NodeShape ; sh:target []": "sh:target: targets by a query are not supported",
    ":K a sh:ConstraintComponent ; sh:parameter []": "sh:parameter: constraint components of your own are not",
    ":S sh:targetClass :C ; sh:minCout 1": "sh:minCout is no parameter of SHACL Core",
    ":S sh:targetClass :C ; sh:minCount 1": "sh:minCount needs a sh:path; write it in a property shape",
    ":S sh:targetClass :C ; sh:property [ sh:minCount 1 ]": "needs a sh:path",
    ":S sh:targetClass :C ; sh:property [ sh:path :p, :q ]": "sh:path: it has several",
    ":S sh:targetClass :C ; sh:property [ sh:path :p ; sh:minCount 'one' ]": "sh:minCount needs an integer from 0",
    ":S sh:targetClass :C ; sh:property [ sh:path :p ; sh:minCount -1 ]": "property shape of <http://e/p>: sh:minCount",
    ":S sh:targetClass 'C'": "sh:targetClass needs an IRI, and not",
    ":S sh:targetClass :C ; sh:datatype 'integer'": "sh:datatype needs an IRI",
    ":S sh:targetClass :C ; sh:nodeKind :Node": "sh:nodeKind needs one of sh:IRI",
    ":S sh:targetClass :C ; sh:minInclusive :one": "sh:minInclusive needs a literal",
    ":S sh:targetClass :C ; sh:closed 'yes'": "sh:closed needs true or false",
    ":S sh:targetClass :C ; sh:in :list": "sh:in needs a list that ends and has no branches",
    ":S sh:targetClass :C ; sh:in _:l . _:l rdf:first 1 ; rdf:rest _:l": "sh:in needs a list that ends",
    ":S sh:targetClass :C ; sh:in _:l . _:l rdf:first 1, 2 ; rdf:rest ()": "sh:in needs a list that ends",
    ":S sh:targetClass :C ; sh:or ()": "sh:or needs a list of shapes that is not empty",
    ":S sh:targetClass :C ; sh:or ( 'x' )": "stands in the place of a shape",
    ":S sh:targetClass :C ; sh:node [ sh:path :p ]": "sh:node needs a node shape",
    ":S sh:targetClass :C ; sh:node :S": "shape <http://e/S>: it refers to itself, which is not supported",
    ":S sh:targetClass :C ; sh:not :T . :T sh:property [ sh:path :p ; sh:node :S ]": "it refers to itself",
    ":S sh:targetClass :C ; sh:property [ sh:path () ]": "sh:path: a sequence of no steps",
    ":S sh:targetClass :C ; sh:property [ sh:path ( :p ) ]": "needs a list of at least two paths",
    ":S sh:targetClass :C ; sh:property [ sh:path 'p' ]": "is no path",
    ":S sh:targetClass :C ; sh:property [ sh:path [ sh:inversePath :p ; sh:zeroOrMorePath :p ] ]": "sh:inversePath and",
    ":S sh:targetClass :C ; sh:property _:p . _:p sh:path _:q . _:q sh:inversePath _:q": "contains itself",
    ":S sh:targetClass :C ; sh:pattern '('": "sh:pattern",
    ":S sh:targetClass :C ; sh:pattern '(?=x)'": "no back-references and no look-around",
    ":S sh:targetClass :C ; sh:pattern 'a' ; sh:flags 'z'": "sh:pattern",
    ":S sh:targetClass :C ; sh:pattern 1": "sh:pattern",
    f":S sh:targetClass :C ; sh:pattern '{'a' * 1001}'": "of at most 1000 characters",
    ":S sh:targetClass :C ; sh:property [ sh:path :p ; sh:qualifiedValueShape [] ]": "needs sh:qualifiedMinCount or",
    ":S sh:targetClass :C ; sh:severity 'high'": "sh:severity needs an IRI",
    ":S sh:targetClass :C ; sh:deactivated 'x'": "sh:deactivated needs true or false",
    ":S sh:targetClass :C ; gateway:onViolation 'refuse'": 'gateway:onViolation is "reject" or "mark"',
    ":S sh:targetClass :C ; sh:languageIn ( :en )": "sh:languageIn needs a list of language tags",
}


@each_row("turtle", [text for text in REFUSED if "sh:pattern 1" not in text])
def test_what_cannot_be_followed_is_refused_by_name(turtle: str) -> None:
    with pytest.raises(InvalidShapesError) as caught:
        read_shapes(shape_triples(f"{turtle} ."))
    assert REFUSED[turtle] in str(caught.value)
    assert str(caught.value).startswith("shape ")


def test_shapes_without_targets_are_checked_too() -> None:
    with pytest.raises(InvalidShapesError, match="no parameter of SHACL Core"):
        read_shapes(shape_triples(":S a sh:NodeShape ; sh:minCout 1 ."))


def test_a_deactivated_shape_finds_nothing() -> None:
    [shape] = read_shapes(shape_triples(":S sh:targetClass :C ; sh:deactivated true ; sh:class :D ."))
    assert shape.constraints == ()


def nested(levels: int) -> str:
    """Shapes that refer to the next one twice each, by two properties."""
    found = [":S0 sh:targetClass :C ."]
    for number in range(levels):
        found += [
            f":S{number} sh:property :P{number} , :Q{number} ."
            f":P{number} sh:path :p ; sh:node :S{number + 1} . :Q{number} sh:path :q ; sh:node :S{number + 1} ."
        ]
    return "\n".join([*found, f":S{levels} sh:class :D ."])


def test_shapes_that_refer_to_others_by_too_many_paths_are_refused() -> None:
    with pytest.raises(InvalidShapesError, match="depend on properties in more than 5000 ways"):
        validating(nested(14))
    validating(nested(8))


def test_long_paths_are_refused() -> None:
    path = "( " + ":p " * 51 + ")"
    with pytest.raises(InvalidShapesError, match="sh:path has more than 50 steps"):
        read_shapes(shape_triples(f":S sh:targetClass :C ; sh:property [ sh:path {path} ] ."))


def test_a_refused_document_leaves_the_engine_as_it_was() -> None:
    engine = Engine()
    for turtle in (nested(14), ":S sh:targetClass :C ; sh:minCout 1 ."):
        with pytest.raises(InvalidShapesError):
            validating(turtle, engine)
    assert not engine.cts.tables
    assert engine.validation is None
    engine.update(f"{PREFIXES} INSERT DATA {{ :x a :C }}")


def test_shapes_that_are_nested_too_deep_are_refused() -> None:
    deep = "sh:not [ " * 40 + "sh:class :D" + " ]" * 40
    with pytest.raises(InvalidShapesError, match="nested more than 30 deep"):
        read_shapes(shape_triples(f":S sh:targetClass :C ; {deep} ."))
    path = "[ sh:inversePath " * 40 + ":p" + " ]" * 40
    with pytest.raises(InvalidShapesError, match="nested more than 30 deep"):
        read_shapes(shape_triples(f":S sh:targetClass :C ; sh:property [ sh:path {path} ] ."))


def test_long_lists_and_large_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    members = " ".join(map(str, range(reading.LIST_MAX)))
    read_shapes(shape_triples(f":S sh:targetClass :C ; sh:in ( {members} ) ."))
    with pytest.raises(InvalidShapesError, match="sh:in has more than 10000 members"):
        read_shapes(shape_triples(f":S sh:targetClass :C ; sh:in ( -1 {members} ) ."))
    monkeypatch.setattr(reading, "TRIPLES_MAX", 10)
    with pytest.raises(InvalidShapesError, match="the shapes have more than 10 triples"):
        read_shapes(shape_triples(f":S sh:targetClass :C ; sh:in ( {members} ) ."))
