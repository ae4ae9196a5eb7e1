"""Random statements about statements, queries with triple terms, and edits of both.

The store (Oxigraph 0.5.13) fails where all parts of a triple term of the query are known and make no triple, such as a
literal as its subject; in EXISTS it takes that for a solution. So a case has either variables that are never both a
subject or predicate of triple terms and something else, or no EXISTS.

The graphs are small and dense, so that a statement is made, reified and annotated by several subjects, and each of
these comes and goes without the others. A query joins one to three triple terms, reified triples or annotations with
patterns, in each place where a plan meets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.properties.sparql_texts import Case, Step

PREFIX = "PREFIX : <http://example.org/t#> PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> "
NODES = (":n0", ":n1")
EDGES = (":p", ":p", ":p", ":q")
REIFIERS = (":r0", ":r1", ":r2")
VALUES = ("1", "01", "1.0", '"x y"', '"<<( :n0 :p :n1 )>> )>>"@en', '"a"@ar--rtl', "'''\n\"'''", "true")
GRAPHS = (":g", ":h")


class TripleTermWriter:
    """Writes the steps of one case, choice by choice."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._one = random.choice
        self._graph = self._one((None, None, None, ":g", "?g"))
        """Where most patterns of the case look."""
        self._strict = self._chance(60)
        """Whether no variable has several roles."""
        self._written: list[str] = []
        self._triples = [self._data() for _ in range(5)]
        """What the statements of the case are about."""

    def _chance(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    # -- queries -------------------------------------------------------------------------------------------------

    def query(self) -> str:
        body = self._group()
        if self._chance(15):
            body = f"{{ {body} }} UNION {{ {self._group()} }}"
        for _ in range(self._one((0, 0, 0, 1, 1, 2))):
            body += f" {self._around()}"
        source = self._one(("FROM :g ", "FROM :g FROM :h ")) if self._chance(6) else ""
        where = f"{source}WHERE {{ {body} }}"
        return (
            PREFIX
            + self._random.choices(
                (
                    f"SELECT * {where}",
                    f"SELECT ?s ?o {where}",
                    f"SELECT DISTINCT ?s {where}",
                    f"SELECT ( COUNT( * ) AS ?count ) ( COUNT( DISTINCT ?o ) AS ?different ) {where}",
                    f"SELECT ?s ( COUNT( ?o ) AS ?count ) {where} GROUP BY ?s",
                    f"SELECT ?s ( STR( ?o ) AS ?text ) {where}",
                ),
                (6, 2, 2, 1, 2, 1),
            )[0]
        )

    def _group(self) -> str:
        parts = [self._statement() for _ in range(self._one((1, 1, 1, 1, 2, 2)))]
        parts += [self._pattern() for _ in range(self._one((0, 0, 0, 1, 2)))]
        self._random.shuffle(parts)
        return self._placed(" . ".join(parts))

    def _placed(self, text: str) -> str:
        graph = self._graph if self._chance(90) else self._one((None, *GRAPHS, "?g", "?h"))
        return text if graph is None else f"GRAPH {graph} {{ {text} }}"

    def _triple(self, depth: int = 0) -> tuple[str, str, str]:
        """Subject, predicate and object of a triple; the same variables again and again, so that they are joined."""
        other = "?x" if self._strict else "?o"
        subject = self._one(("?s", "?s", "?s", "?s", "?s", "?s", other, "?x", self._one(NODES)))
        predicate = self._one(("?p", "?p", "?p", "?p", "?k", ":p", ":p", ":p", ":q"))
        other = "?o" if self._strict else "?s"
        object_ = self._one(
            ("?o", "?o", "?o", "?o", "?o", "?o", other, "?y", self._blank(), self._one(NODES), self._one(VALUES))
        )
        if self._chance(8) and depth < 2:
            object_ = self._term(depth + 1)
        return subject, predicate, object_

    def _blank(self) -> str:
        return f"_:b{self._random.randrange(10**6)}"

    def _term(self, depth: int = 0) -> str:
        return f"<<( {' '.join(self._triple(depth))} )>>"

    def _statement(self) -> str:
        reifier = self._one(("?r", "?r", "?r", "?b", self._one(REIFIERS)))
        subject, predicate, object_ = self._triple()
        triple = f"{subject} {predicate} {object_}"
        named = f" ~ {reifier}" if self._chance(60) else ""
        block = self._one(
            (":src ?c", ":src ?c", ":src ?c", ":weight ?w", f":src {self._one(NODES)}", ":src ?c ; :weight ?w")
        )
        return self._one(
            (
                f"{reifier} rdf:reifies {self._term()}",
                f"{reifier} rdf:reifies {self._term()} , {self._term()}",
                f"?x :said {self._term()}",
                f"?x ?k {self._term()}",
                f"<< {triple}{named} >> {block}",
                f"<< {triple}{named} >>",
                f"{triple}{named} {{| {block} |}}",
                f"{triple} ~ {reifier}",
                f"{triple} ~ {reifier} {{| {block} |}} ~ {{| :src ?d |}}",
                f"?x :said << {triple}{named} >>",
                f"<< << {triple} >> ?k ?c{named} >> :weight ?w" if self._chance(30) else f"{triple}{named}",
            )
        )

    def _pattern(self) -> str:
        subject, predicate, object_ = self._triple(depth=2)
        return self._one(
            (
                f"{subject} {predicate} {object_}",
                f"{subject} {predicate} {object_}",
                f"?r :src {self._one(('?c', self._one(NODES)))}",
                "?r :weight ?w",
                "?x :said ?t",
                "?r rdf:reifies ?t",
                "?s ?k ?t",
                "?s :p+ ?o",
            )
        )

    def _around(self) -> str:
        inner = self._placed(self._statement())
        more = self._placed(f"{self._statement()} . {self._pattern()}")
        forms = [
            f"OPTIONAL {{ {inner} }}",
            f"OPTIONAL {{ {more} }}",
            f"OPTIONAL {{ {inner} FILTER ( ?c != {self._one(NODES)} ) }}",
            f"MINUS {{ {inner} }}",
            f"FILTER ( ?s = {self._one(NODES)} )",
            f"FILTER ( ?o != {self._one((*NODES, *VALUES))} )",
            f"VALUES ?s {{ {self._one(NODES)} {self._one(NODES)} }}",
            f"VALUES ( ?s ?o ) {{ ( {self._one(NODES)} UNDEF ) ( UNDEF {self._one(NODES)} ) }}",
            f"{{ SELECT DISTINCT ?s ?o {{ {inner} }} }}",
            f"{{ SELECT ?s ( COUNT( * ) AS ?many ) {{ {inner} }} GROUP BY ?s }}",
            "FILTER ( isTRIPLE( ?t ) )",
            f"BIND ( SUBJECT( ?t ) AS ?of{self._random.randrange(10**6)} )",
        ]
        if self._strict:
            triple = " ".join(self._triple(depth=2))
            there = self._placed(self._one((f"?r rdf:reifies <<( {triple} )>>", f"{triple} {{| :src ?c |}}", triple)))
            forms += [f"FILTER EXISTS {{ {there} }}", f"FILTER NOT EXISTS {{ {there} }}"] * 2
        return self._one(forms)

    # -- updates -------------------------------------------------------------------------------------------------

    def _data(self, depth: int = 0) -> str:
        """Subject, predicate and object of a triple without variables."""
        object_ = self._one((*NODES, *NODES, self._one(VALUES)))
        if self._chance(15) and depth < 2:
            object_ = f"<<( {self._data(depth + 1)} )>>"
        predicate = self._one((*EDGES, ":said") if object_.startswith("<<(") else EDGES)
        return f"{self._one(NODES)} {predicate} {object_}"

    def quad(self) -> str:
        triple, reifier = self._one(self._triples), self._one(REIFIERS)
        text = self._one(
            (
                triple,
                triple,
                f"{reifier} rdf:reifies <<( {triple} )>>",
                f"{reifier} rdf:reifies <<( {triple} )>>",
                f"{self._one(NODES)} :said <<( {triple} )>>",
                f"{triple} ~ {reifier}",
                f"{triple} ~ {reifier} {{| :src {self._one(NODES)} |}}",
                f"<< {triple} ~ {reifier} >> :weight {self._one(('1', '2'))}",
                f"{reifier} :src {self._one(NODES)}",
                f"{reifier} :weight {self._one(('1', '2'))}",
                f"<< << {triple} ~ {reifier} >> :src {self._one(NODES)} ~ {self._one(REIFIERS)} >> :weight 1",
            )
        )
        graph = self._random.choices((None, ":g", ":h"), (2, 6, 1) if self._graph else (6, 2, 1))[0]
        written = f"{text} ." if graph is None else f"GRAPH {graph} {{ {text} . }}"
        self._written = [*self._written[-30:], written]
        return written

    def _quads(self, counts: Sequence[int]) -> str:
        return " ".join(self.quad() for _ in range(self._one(counts)))

    def _old(self, counts: Sequence[int]) -> str:
        """Quads that were inserted before, most of which are still there."""
        return " ".join(self._one(self._written) for _ in range(self._one(counts)))

    def update(self) -> str:
        node, edge = self._one(NODES), self._one((":p", ":q", ":said", "rdf:reifies"))
        where = "?a rdf:reifies ?t"
        placed = where if self._graph is None else f"GRAPH :g {{ {where} }}"
        forms = (
            f"INSERT DATA {{ {self._quads((1, 2, 3, 4))} }}",
            f"DELETE DATA {{ {self._old((1, 2, 4))} }}",
            f"DELETE DATA {{ {self._old((1, 2, 3))} }} ; INSERT DATA {{ {self._quads((1, 2, 3))} }}",
            f"DELETE {{ ?a {edge} ?b }} WHERE {{ ?a {edge} ?b FILTER ( ?a = {node} || ?b = {node} ) }}",
            f"DELETE {{ {placed} }} INSERT {{ {placed.replace('?a', self._one(REIFIERS))} }} WHERE {{ {placed} }}",
            "INSERT { :r0 rdf:reifies <<( ?a :p ?b )>> } WHERE { ?a :p ?b FILTER ( isIRI( ?b ) ) }",
            f"INSERT DATA {{ << {self._one(self._triples)} >> :src {node} ; :weight 1 }}",  # with a blank node
            f"INSERT {{ ?a :said <<( ?b :p {node} )>> }} WHERE {{ ?a :p ?b FILTER ( isIRI( ?b ) ) }}",
            f"DELETE WHERE {{ << {node} ?e ?f ~ ?a >> ?k ?o }}",
            f"CLEAR GRAPH {self._one(GRAPHS)}",
        )
        return PREFIX + self._random.choices(forms, (10, 8, 6, 3, 2, 1, 2, 1, 2, 1))[0]

    def case(self) -> Case:
        start = f"INSERT DATA {{ {self._quads((8, 14, 20))} }} ; CREATE SILENT GRAPH :g ; CREATE SILENT GRAPH :h"
        steps = [Step("update", PREFIX + start)]
        steps += [Step("subscribe", self.query()) for _ in range(4)]
        for _ in range(8):
            steps.append(Step("update", self.update()))
        steps.insert(5 + self._one((1, 2, 3)), Step("subscribe", self.query()))
        return Case(tuple(steps))


def triple_term_case(seed: int) -> Case:
    """The case that a number stands for."""
    return TripleTermWriter(Random(seed)).case()
