"""Random graphs, path queries and edits of edges: what `sparql_texts` rarely meets, because its graphs have few edges.

The graphs are small and dense, so that cycles come and go, and a node is reached in several ways. A query joins one to
three paths with patterns, in each place where a plan meets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.properties.sparql_texts import Case, Step

PREFIX = "PREFIX : <http://example.org/p#> "
NODES = tuple(f":n{number}" for number in range(5))
CLASSES = (":A", ":B", ":C", ":D")
EDGES = (":p", ":q", ":r")
GRAPHS = (":g", ":h")
HOPS = (
    *(":p+", ":p*", ":p?", ":p+", ":p*", "^:p+", "(:p|:q)*", "(:p|:q)+", "(:p|^:p)*", "(:p|^:p)+", "^(:p|^:q)*"),
    *("(:p|^:q)+", "(:p|:q)?", "(:p?)+", "(:p|:q+)*", "(^:p)?", "(:p*|:r)+", ":q*", ":q+", "(:r|:p)*", "(:p+)?"),
    *(
        ":p/:q*",
        ":q*/:p",
        ":p+/:q?",
        ":p*/:p*",
        "^:p*/:q",
        ":p|:q+",
        ":p*|:q",
        "a/:sub*",
        "a/:sub*",
        "a/:sub+",
        ":sub*",
    ),
)
"""Paths that plans follow, and sequences and alternatives of them."""
OPAQUE = ("(:p/:q)+", "!:p", "(:p/:q?)*", "(:p|!:q)*")


class PathCodegen:
    """Writes the steps of one case, choice by choice."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._one = random.choice
        self._graph = self._weighted((5, None), (1, ":g"), (2, "?g"))
        """Where most patterns of the case look."""
        self._written: list[str] = []

    def _chance(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _weighted(self, *options: tuple[int, str | None]) -> str | None:
        return self._random.choices([option for _, option in options], [weight for weight, _ in options])[0]

    # -- queries -------------------------------------------------------------------------------------------------

    def query(self) -> str:
        body = self.path_group()
        if self._chance(12):
            body = f"{{ {body} }} UNION {{ {self.path_group()} }}"
        for _ in range(self._one((0, 0, 0, 1, 1, 2))):
            body += f" {self._around()}"
        return PREFIX + self._projection(body)

    def _projection(self, body: str) -> str:
        form = self._one(("*", "*", "one", "some", "distinct", "count", "group", "expression"))
        source = "FROM :g " if self._chance(5) else ""
        where = f"{source}WHERE {{ {body} }}"
        return {
            "*": f"SELECT * {where}",
            "one": f"SELECT ?x {where}",
            "some": f"SELECT ?y ?x {where}",
            "distinct": f"SELECT DISTINCT ?x {where}",
            "count": f"SELECT ( COUNT( * ) AS ?t ) ( COUNT( DISTINCT ?y ) AS ?u ) {where}",
            "group": f"SELECT ?x ( COUNT( ?y ) AS ?t ) {where} GROUP BY ?x",
            "expression": f"SELECT ?x ( STR( ?y ) AS ?t ) {where}",
        }[form]

    def path_group(self) -> str:
        """Patterns and paths of one graph, in any order."""
        parts = [self._path("?x", "?y")]
        if self._chance(35):
            parts.append(self._path(*self._one((("?y", "?z"), ("?x", "?z"), ("?y", "?x"), ("?z", "?y")))))
        if self._chance(5):
            parts.append(self._path("?z", "?w"))
        for _ in range(self._one((0, 0, 1, 1, 2))):
            parts.append(self._pattern())
        self._random.shuffle(parts)
        return self._placed(" . ".join(parts))

    def _placed(self, text: str) -> str:
        graph = self._graph if self._chance(90) else self._one((None, *GRAPHS, "?g", "?h"))
        return text if graph is None else f"GRAPH {graph} {{ {text} }}"

    def _path(self, start: str, end: str) -> str:
        hops = self._one(OPAQUE) if self._chance(4) else self._one(HOPS)
        ends = [start, end]
        for place in (0, 1):
            if self._chance(12):
                ends[place] = self._one(CLASSES if ":sub" in hops else NODES)
        if self._chance(4):
            ends[1] = ends[0]
        return f"{ends[0]} {hops} {ends[1]}"

    def _pattern(self) -> str:
        subject = self._one(("?x", "?x", "?x", "?y", "?y", "?z", self._one(NODES)))
        return self._one(
            (
                f"{subject} a {self._one(CLASSES)}",
                f"{subject} a ?c",
                f"{subject} :v ?n",
                f"{subject} :v {self._one('12')}",
                f"{subject} :p ?w",
                f"{subject} :q {self._one(('?y', '?w', '?w', self._one(NODES)))}",
                f"?w {self._one(EDGES)} {subject}",
                f"{subject} ?k ?w",
            )
        )

    def _around(self) -> str:
        graph = self._placed
        inner = self._one((self._path("?x", "?w"), self._path("?y", "?w"), self._path("?w", "?x"), self._pattern()))
        more = f"{inner} . {self._pattern()}" if self._chance(30) else inner
        return self._one(
            (
                f"OPTIONAL {{ {graph(more)} }}",
                f"OPTIONAL {{ {graph(inner)} FILTER ( ?w != {self._one(NODES)} ) }}",
                f"MINUS {{ {graph(more)} }}",
                f"FILTER EXISTS {{ {graph(more)} }}",
                f"FILTER NOT EXISTS {{ {graph(inner)} }}",
                f"FILTER {self._one(('', 'NOT '))}EXISTS {{ {graph(inner)} OPTIONAL {{ {graph(self._optional())} }} "
                f"FILTER ( {self._one(('', '! '))}BOUND( ?o ) ) }}",
                f"FILTER {self._one(('', 'NOT '))}EXISTS {{ {graph(more)} MINUS {{ {graph(self._optional())} }} }}",
                f"FILTER ( ?x != {self._one(NODES)} )",
                f"FILTER ( ?y = {self._one(NODES)} )",
                f"FILTER ( ?x = {self._one(NODES)} || ?y = {self._one(NODES)} )",
                f"VALUES ?x {{ {self._one(NODES)} {self._one(NODES)} {self._one(CLASSES)} }}",
                f"BIND ( STR( ?y ) AS ?b{self._random.randrange(10**6)} )",
                f"{{ SELECT DISTINCT ?x {{ {graph(inner)} }} }}",
                f"{{ SELECT ?x ( COUNT( * ) AS ?m ) {{ {graph(more)} }} GROUP BY ?x }}",
            )
        )

    def _optional(self) -> str:
        """A path or a pattern of ?w, with a variable that only it has."""
        return self._one((f"?w {self._one(HOPS)} ?o", f"?o {self._one(HOPS)} ?w", f"?w {self._one(EDGES)} ?o"))

    # -- updates -------------------------------------------------------------------------------------------------

    def quad(self) -> str:
        kind = self._one(("edge", "edge", "edge", "edge", "type", "sub", "value"))
        if kind == "edge":
            text = f"{self._one(NODES)} {self._one((':p', ':p', *EDGES))} {self._one(NODES)}"
        elif kind == "type":
            text = f"{self._one(NODES)} a {self._one(CLASSES)}"
        elif kind == "sub":
            text = f"{self._one(CLASSES)} :sub {self._one(CLASSES)}"
        else:
            text = f"{self._one(NODES)} :v {self._one('12')}"
        graph = self._weighted(
            (5 if self._graph is None else 2, None), (1 if self._graph is None else 5, ":g"), (1, ":h")
        )
        written = f"{text} ." if graph is None else f"GRAPH {graph} {{ {text} . }}"
        self._written = [*self._written[-30:], written]
        return written

    def old_quads(self, counts: Sequence[int]) -> str:
        """Quads that were inserted before, most of which are still there."""
        return " ".join(self._one(self._written) for _ in range(self._one(counts)))

    def quads(self, counts: Sequence[int]) -> str:
        return " ".join(self.quad() for _ in range(self._one(counts)))

    def update(self) -> str:
        edge, node = self._one((":p", ":p", *EDGES)), self._one(NODES)
        where = f"?a {edge} ?b" if self._graph is None else f"GRAPH {self._one((':g', '?g'))} {{ ?a {edge} ?b }}"
        moved, turned = where.replace("?b", node), where.replace("?a", "?c").replace("?b", "?a").replace("?c", "?b")
        forms = (
            f"INSERT DATA {{ {self.quads((1, 2, 3, 4))} }}",
            f"DELETE DATA {{ {self.old_quads((1, 2, 4))} }}",
            f"DELETE DATA {{ {self.old_quads((1, 2, 3))} }} ; INSERT DATA {{ {self.quads((1, 2, 3))} }}",
            f"DELETE {{ {where} }} WHERE {{ {where} FILTER ( ?a = {node} ) }}",
            f"DELETE {{ {where} }} WHERE {{ {where} FILTER ( ?b = {node} ) }}",
            f"DELETE {{ {where} }} INSERT {{ {moved} }} WHERE {{ {where} FILTER ( ?a != {node} ) }}",
            f"DELETE {{ {where} }} INSERT {{ {turned} }} WHERE {{ {where} }}",
            f"DELETE {{ ?c :sub ?d }} INSERT {{ ?c :sub {self._one(CLASSES)} }} WHERE {{ ?c :sub ?d }}",
            f"DELETE WHERE {{ {self._one(NODES)} ?k ?o }}",
            f"CLEAR GRAPH {self._one(GRAPHS)}",
        )
        return PREFIX + self._random.choices(forms, (10, 8, 6, 4, 4, 3, 2, 2, 2, 1))[0]

    def case(self) -> Case:
        start = f"INSERT DATA {{ {self.quads((10, 16, 22, 28))} }} ; CREATE SILENT GRAPH :g ; CREATE SILENT GRAPH :h"
        steps = [Step("update", PREFIX + start)]
        steps += [Step("subscribe", self.query()) for _ in range(3)]
        for _ in range(8):
            steps.append(Step("update", self.update()))
        steps.insert(4 + self._one((1, 2, 3)), Step("subscribe", self.query()))
        return Case(tuple(steps))


def path_case(seed: int) -> Case:
    """The case that a number stands for."""
    return PathCodegen(Random(seed)).case()
