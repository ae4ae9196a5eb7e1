"""Patterns with triple terms, reified triples and annotations: the quad patterns that they stand for."""

from __future__ import annotations

import pytest

from lamplighter.engine.sparql import algebra
from lamplighter.engine.sparql.algebra import TRIPLE_REST, TRIPLE_TERM, Bgp, Constant, Pattern, Variable
from lamplighter.engine.sparql.cursor import UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.requests import canonical, declarations_and_body, subscribable
from lamplighter.engine.sparql.triples import RDF_FIRST, RDF_REIFIES, RDF_REST
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> "
_SHORT = {RDF_REIFIES: "reifies", RDF_FIRST: "first", RDF_REST: "rest"}


def read(where: str, *, triple_terms: bool = True) -> tuple[algebra.Node, list[str]]:
    text = f"{PREFIX} SELECT * {{ {where} }}"
    subscribable(text)
    prologue, body = declarations_and_body(text)
    raws = ["".join(token.text for token in body[start:end]) for start, end in constant_spans(body)]
    select = read_select(body, lambda raw: canonical("", raw), triple_terms=triple_terms)
    return select.node, [canonical(prologue, raw) for raw in raws]


def triples(where: str) -> list[str]:
    """The quad patterns, with the triple terms in the place of the variables that are taken apart."""
    node, terms = read(where)
    patterns = [it for found in algebra.walk(node) if isinstance(found, Bgp) for it in found.patterns]
    rests = {it.s: (it.o, it.graph) for it in patterns if it.p == TRIPLE_REST}
    wholes = {it.s: (it.o, *rests[it.graph]) for it in patterns if it.p == TRIPLE_TERM}
    names: dict[str, str] = {}

    def shown(part: object) -> str:
        if isinstance(part, Variable):
            if part in wholes:
                return f"({' '.join(map(shown, wholes[part]))})"
            new = part.name.startswith("_:")
            return names.setdefault(part.name, f"_{len(names)}") if new else f"?{part.name}"
        if isinstance(part, Constant):
            return terms[part.number].removeprefix("<urn:x").removesuffix(">")
        return _SHORT.get(str(part), str(part))

    def line(pattern: Pattern) -> str:
        graph = "" if pattern.graph is None else f" in {shown(pattern.graph)}"
        return f"{shown(pattern.s)} {shown(pattern.p)} {shown(pattern.o)}{graph}"

    return [line(it) for it in patterns if not algebra.takes_apart(it)]


@each_row(
    ("where", "expected"),
    [
        ("?x :p <<( ?s ?p ?o )>>", ["?x :p (?s ?p ?o)"]),
        ("?x :p <<(:a :b -1)>>", ['?x :p (:a :b "-1"^^<http://www.w3.org/2001/XMLSchema#integer>)']),
        (
            "?x :p <<( ?s a true )>> , 'x'",
            [
                "?x :p (?s <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> "
                '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>)',
                '?x :p "x"',
            ],
        ),
        ("?x :p <<( ?s ?p <<( ?a ?b ?c )>> )>>", ["?x :p (?s ?p (?a ?b ?c))"]),
        ("?x :p <<( ?s ?p ?o )>> ; :q <<( ?s ?p ?o )>>", ["?x :p (?s ?p ?o)", "?x :q (?s ?p ?o)"]),
        ("?x :p <<( _:b ?p _:b )>>", ["?x :p (_0 ?p _0)"]),
        ("<<?s ?p ?o>>", ["_0 reifies (?s ?p ?o)"]),
        ("<< ?s ?p ?o ~ ?r >> :q ?z", ["?r reifies (?s ?p ?o)", "?r :q ?z"]),
        ("<< ?s ?p ?o ~:r >> :q << :a :b :c ~ >>", [":r reifies (?s ?p ?o)", "_0 reifies (:a :b :c)", ":r :q _0"]),
        (
            "<< << :a :b :c >> :d <<( :e :f ?g )>> >> :q 'z'",
            [
                "_0 reifies (:a :b :c)",
                "_1 reifies (_0 :d (:e :f ?g))",
                '_1 :q "z"',
            ],
        ),
        ("?s ?p ?o ~ ?r", ["?s ?p ?o", "?r reifies (?s ?p ?o)"]),
        ("?s ?p ?o ~ ; ?q ?z", ["?s ?p ?o", "_0 reifies (?s ?p ?o)", "?s ?q ?z"]),
        (
            "?s ?p ?o {| :a ?x ; :b ?y ; |} , ?n",
            [
                "?s ?p ?o",
                "_0 reifies (?s ?p ?o)",
                "_0 :a ?x",
                "_0 :b ?y",
                "?s ?p ?n",
            ],
        ),
        (
            "?s ?p ?o ~ ?r {| :a ?x |} ~ ?q {| :b ?y |} {| :c ?z |}",
            [
                "?s ?p ?o",
                "?r reifies (?s ?p ?o)",
                "?r :a ?x",
                "?q reifies (?s ?p ?o)",
                "?q :b ?y",
                "_0 reifies (?s ?p ?o)",
                "_0 :c ?z",
            ],
        ),
        (
            "?s :p :o {| :by :me {| :at 'x' |} |}",
            [
                "?s :p :o",
                "_0 reifies (?s :p :o)",
                "_0 :by :me",
                "_1 reifies (_0 :by :me)",
                '_1 :at "x"',
            ],
        ),
        (
            "[ :p ( <<( :a :b ?c )>> ) ] :q ?z",
            [
                "_0 first (:a :b ?c)",
                "_0 rest <http://www.w3.org/1999/02/22-rdf-syntax-ns#nil>",
                "_1 :p _0",
                "_1 :q ?z",
            ],
        ),
        ("GRAPH ?g { << ?s ?p ?o >> :q ?z }", ["_0 reifies (?s ?p ?o) in ?g", "_0 :q ?z in ?g"]),
        ("?s :p/:q << :a :b ?c ~ ?r >>", ["?r reifies (:a :b ?c)", "?s :p _0", "_0 :q ?r"]),
    ],
)
def test_patterns_stand_for_quads_with_triple_terms(where: str, expected: list[str]) -> None:
    assert triples(where) == expected


def test_variables_of_a_triple_term_are_those_of_the_solution() -> None:
    node, _ = read("?x :p <<( ?s :q _:b )>> . << ?s ?k ?o >> ?l ?z")
    assert isinstance(node, algebra.Project)
    assert {variable.name for variable in node.variables} == set("xskolz")


@each_row(
    "where",
    [
        "?x :p/:q <<( :a :b :c )>>",
        "?x :p* <<( :a :b :c )>>",
        "VALUES ?t { <<( :a :b :c )>> }",
        "?x :p ?o BIND(<<( ?x :p ?o )>> AS ?t)",
        "?x :p ?o FILTER(?o = <<( :a :b :c )>>)",
    ],
)
def test_other_places_are_left_to_the_store(where: str) -> None:
    with pytest.raises(UnknownSyntaxError):
        read(where)


@each_row("where", ["?x :p <<( :a :b :c )>>", "<< :a :b :c >>", ":a :b :c ~ :r", ":a :b :c {| :d :e |}"])
def test_nobody_reads_them_who_does_not_ask_for_them(where: str) -> None:
    with pytest.raises(UnknownSyntaxError):
        read(where, triple_terms=False)
