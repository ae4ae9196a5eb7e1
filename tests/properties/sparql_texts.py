"""Random SPARQL texts for the property tests: small vocabulary, connected patterns, awkward spellings.

A text is first written with marks, `«a»` for an IRI of the vocabulary and two private signs for a space and a line
break inside a literal; `spelled` then chooses prefixes, a base or full IRIs, white space, comments and letter case. The
vocabulary's IRIs hold a ``#`` and its strings hold comments, braces and keywords, so that a reader of texts that does
not really tokenise them is found out.

Nothing here calls a function that differs from one evaluation to the next. New blank nodes are made where a writer is
told so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]
Choose = Callable[[Sequence[Any]], Any]
"""Picks one of several: from a seed, or as hypothesis wants."""

NAMESPACE = "http://example.org/x#"
XSD = "http://www.w3.org/2001/XMLSchema#"
# What the marks stand for where it is not the mark's own name: local names that need all of their grammar.
_NAMES = {"b": "b\u00e9", "c": "c:1", "v": "v.1-x", "g2": "g%2F2"}
_SPACE, _BREAK = "\ue000", "\ue001"

ENTITIES = ("«a»", "«b»", "«c»")
LINKS = ("«p»", "«q»")  # mostly from entity to entity
USING = "\ue002"
VALUE = "«v»"  # mostly from entity to literal
GRAPHS = ("«g1»", "«g2»", "«g3»")


def _inside(literal: str) -> str:
    return literal.replace(" ", _SPACE).replace("\n", _BREAK)


INTEGERS = ("1", "2", "3", f'"01"^^<{XSD}integer>', "+2", f'"3"^^<{XSD}int>', f'"002"^^<{XSD}unsignedByte>')
ODD_LITERALS = tuple(
    _inside(literal)
    for literal in (
        "1.50",
        "1.5",
        "01.0",
        "1e0",
        "15.0E-1",
        "-0.0",
        "true",
        f'"1"^^<{XSD}boolean>',
        f'"2026-11-21T02:00:00.000Z"^^<{XSD}dateTime>',
        f'"2026-11-21T02:00:00+00:00"^^<{XSD}dateTime>',
        f'"P12M"^^<{XSD}yearMonthDuration>',
        f'"no number"^^<{XSD}integer>',
        '"x"',
        "'it is \"x\"'",
        "'it\\'s'",
        '"a\\nb\\t\\\\"',
        '"""two lines,\n a "quote" # and no comment\n } ; DELETE DATA {"""',
        "'''it's '''",
        '"}; DROP ALL #"',
        '"?x $y _:b"',
        '"h\u00e9 \u2603 \U0001f4a1"',
        '"\\u00e9\\U0001F4A1"',
        '"\\u0001"',
        '""',
        '"chat"@FR',
        '"chat"@fr',
        '"chat"@en-GB',
    )
)


def drawn(draw: Draw) -> Choose:
    """Choices that hypothesis makes."""
    return lambda options: draw(st.sampled_from(options))


@dataclass(frozen=True)
class Pattern:
    """A triple pattern and the graph that it looks in: None, an IRI or a variable.

    negated: what matches takes rows away (MINUS, NOT EXISTS).
    """

    subject: str
    predicate: str
    object: str
    graph: str | None = None
    negated: bool = False

    def text(self) -> str:
        return f"{self.subject} {self.predicate} {self.object} ."


@dataclass(frozen=True)
class Cut:
    """LIMIT and OFFSET under an order that leaves ties.

    whole: the query without them, with full IRIs and its sort keys as further columns; descending: of each sort key.
    The window's rows are those from start to end.
    """

    whole: str
    descending: tuple[bool, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Query:
    text: str
    patterns: tuple[Pattern, ...]
    cut: Cut | None = None


def _shape(text: str, *patterns: str) -> tuple[str, tuple[Pattern, ...]]:
    found = [pattern.split() for pattern in patterns]
    return text, tuple(Pattern(s, p, o, None if not graph else graph[0]) for s, p, o, *graph in found)


SHAPED = (
    _shape("SELECT ?n { «a» «v» ?n }", "«a» «v» ?n"),
    _shape("SELECT ?x { ?x «v» 1 }", "?x «v» 1"),
    _shape("SELECT ?y ?n { «a» «p» ?y . ?y «v» ?n FILTER ( ?n > 1 ) }", "«a» «p» ?y", "?y «v» ?n"),
    _shape("SELECT ?x { ?x «p» «a» . ?x «q» «b» }", "?x «p» «a»", "?x «q» «b»"),
    _shape("SELECT ?x { ?x «p» «a» . ?x «q» «b» . ?x «v» 1 }", "?x «p» «a»", "?x «q» «b»", "?x «v» 1"),
    _shape("SELECT ?x ?n { ?x «p» ?y . ?x «v» ?n FILTER ( ?y = «a» ) FILTER ( ?n != 2 ) }", "?x «p» «a»", "?x «v» ?n"),
    _shape("SELECT ?x ?k { ?x ?k ?y FILTER ( ?y = «a» && ?k = «p» ) }", "?x «p» «a»"),
    _shape("SELECT ?x { GRAPH «g1» { ?x «p» «a» } }", "?x «p» «a» «g1»"),
    _shape("SELECT ?g { GRAPH ?g { «a» «p» «b» } }", "«a» «p» «b» ?g"),
    _shape("SELECT ?y { «a» «p» ?y . ?y «p» «b» }", "«a» «p» ?y", "?y «p» «b»"),
    _shape("SELECT ?y { { «a» «p» ?y } UNION { ?y «q» «b» } }", "«a» «p» ?y", "?y «q» «b»"),
    _shape("SELECT ?x ?z { ?x «p» «a» OPTIONAL { ?x «q» ?z FILTER ( ?z != «b» ) } }", "?x «p» «a»", "?x «q» ?z"),
    _shape("SELECT ?x { ?x «p» «a» FILTER NOT EXISTS { ?x «q» «b» } }", "?x «p» «a»"),
    _shape("SELECT ?x { ?x «p» «a» FILTER EXISTS { ?x «v» 1 } }", "?x «p» «a»", "?x «v» 1"),
    _shape("SELECT ?x { ?x «p» ?y MINUS { ?x «q» «a» } }", "?x «p» ?y"),
    _shape(
        "SELECT ?x { ?x «p» «a» "
        "FILTER EXISTS { ?x «q» ?z OPTIONAL { ?z «v» ?n } FILTER ( ! BOUND( ?n ) || ?n = 1 ) } }",
        "?x «p» «a»",
        "?x «q» ?z",
        "?z «v» ?n",
    ),
    _shape(
        'SELECT ( GROUP_CONCAT( STR( ?n ) ; SEPARATOR = "|" ) AS ?t ) { ?x «v» ?n . ?x «p» «a» }',
        "?x «v» ?n",
        "?x «p» «a»",
    ),
    _shape("SELECT DISTINCT ?x { ?x «p» «a» . ?x «v» ?n FILTER ( ?n != 1 ) }", "?x «p» «a»", "?x «v» ?n"),
    _shape("SELECT ?x ( COUNT(*) AS ?t ) { ?x «p» ?y . ?x «q» «a» } GROUP BY ?x", "?x «p» ?y", "?x «q» «a»"),
    _shape("SELECT ( COUNT(*) AS ?t ) { ?x «p» ?y . ?y «q» ?z }", "?x «p» ?y", "?y «q» ?z"),
    _shape(
        # Of one type: which one of two equal numbers is the greatest, the store leaves to the order of its quads.
        "SELECT ( COUNT( DISTINCT ?n ) AS ?t ) ( MAX( ?n ) AS ?m ) "
        f"{{ ?x «v» ?n FILTER ( DATATYPE( ?n ) = <{XSD}integer> ) }}",
        "?x «v» ?n",
    ),
    _shape("SELECT ( SUM( ?n ) AS ?t ) ( AVG( ?n ) AS ?m ) { ?x «v» ?n . ?x «p» ?y }", "?x «v» ?n", "?x «p» ?y"),
    _shape("SELECT ( COUNT(*) AS ?t ) { ?x «p» «a» . ?x «v» 1 }", "?x «p» «a»", "?x «v» 1"),
    _shape(
        "SELECT ?n ?z { «a» «v» ?n OPTIONAL { «b» «v» ?z } OPTIONAL { GRAPH «g1» { «a» «q» «c» } } }",
        "«a» «v» ?n",
        "«b» «v» ?z",
    ),
    _shape("SELECT ?y { «a» «p»+ ?y FILTER ( ?y != «b» ) }", "«a» «p» ?x", "?x «p» ?y"),
    _shape("SELECT ?y { «a» «p»* ?y }", "«a» «p» ?y"),
    _shape(
        "SELECT ?x ?n { ?x «v» ?n . ?x «p» «a» FILTER ( isNUMERIC( ?n ) && isIRI( ?x ) ) } "
        "ORDER BY STR( ?n ) STR( DATATYPE( ?n ) ) STR( ?x ) LIMIT 2",
        "?x «v» ?n",
        "?x «p» «a»",
    ),
)
"""Queries with one, two and three constants of every class, and patterns to aim at."""


@dataclass
class Scope:
    """What a group pattern knows while it is being written."""

    nodes: list[str] = field(default_factory=list)  # variables that stand for entities
    values: list[str] = field(default_factory=list)  # variables that may stand for literals
    extras: list[str] = field(default_factory=list)  # graph variables, BIND, aggregates of sub-selects
    patterns: list[Pattern] = field(default_factory=list)

    def variables(self) -> list[str]:
        return list(dict.fromkeys(self.nodes + self.values + self.extras))


class Writer:
    """Writes texts with marks, choice by choice.

    blank_nodes: whether updates make new blank nodes; names: local names that are not the mark's own, by mark.
    """

    def __init__(self, choose: Choose, blank_nodes: bool = False, names: Mapping[str, str] | None = None) -> None:
        self._choose = choose
        self.names = _NAMES if names is None else names
        self.blank_nodes = blank_nodes
        self.inserted: list[tuple[str, str, str, str | None]] = []
        self._fresh = 0

    # -- choices -------------------------------------------------------------------------------------------------

    def one(self, options: Sequence[T]) -> T:
        return self._choose(options)  # type: ignore[no-any-return]

    def weighted(self, *options: tuple[int, T]) -> T:
        return self._choose([option for weight, option in options for _ in range(weight)])  # type: ignore[no-any-return]

    def chance(self, percent: int) -> bool:
        return bool(self.weighted((100 - percent, False), (percent, True)))

    def fresh(self, stem: str) -> str:
        self._fresh += 1
        return f"?{stem}{self._fresh}"

    def literal(self) -> str:
        return self.one(INTEGERS) if self.chance(65) else self.one(ODD_LITERALS)

    # -- graph patterns ------------------------------------------------------------------------------------------

    def triples(self, scope: Scope, graph: str | None, count: int, anchored: bool = False) -> str:
        """Connected triple patterns. `anchored`: the first one shares a variable with the scope."""
        written = []
        for index in range(count):
            linked = (index > 0 or anchored) and scope.nodes
            if linked:
                subject = self.one(scope.nodes)
            else:
                subject = self.weighted((7, "?x"), (1, self.one(ENTITIES)))
                if subject == "?x" and "?x" not in scope.nodes:
                    scope.nodes.append("?x")
            predicate = self.weighted((4, "«p»"), (3, "«q»"), (4, VALUE), (1, "?k"))
            if predicate == VALUE:
                object_ = self._object_value(scope)
            elif linked and self.chance(20):
                # The other way round: the shared variable is the object.
                subject, object_ = self._new_node(scope), subject
            else:
                object_ = self._object_node(scope)
            for variable in (subject, object_):
                if variable.startswith("?") and variable not in scope.nodes + scope.values:
                    (scope.values if predicate == VALUE and variable == object_ else scope.nodes).append(variable)
            if predicate == "?k" and "?k" not in scope.extras:
                scope.extras.append("?k")
            pattern = Pattern(subject, predicate, object_, graph)
            scope.patterns.append(pattern)
            written.append(pattern.text())
        return " ".join(written)

    def _object_value(self, scope: Scope) -> str:
        old = self.one(scope.values) if scope.values else "?n"
        return self.weighted((6, "?n"), (2, old), (2, "?m"), (2, self.literal()), (1, "[]"))

    def _object_node(self, scope: Scope) -> str:
        old = self.one(scope.nodes) if scope.nodes else "?x"
        return self.weighted((8, self._new_node(scope)), (2, old), (2, self.one(ENTITIES)), (1, "[]"), (1, "?n"))

    def _new_node(self, scope: Scope) -> str:
        return next((name for name in ("?x", "?y", "?z", "?w") if name not in scope.nodes), "?x")

    def graph(self) -> str | None:
        return self.weighted((12, None), (3, "«g1»"), (1, "«g2»"), (4, "?g"))

    def in_graph(self, scope: Scope, graph: str | None, text: str) -> str:
        if graph is None:
            return text
        if graph.startswith("?") and graph not in scope.extras:
            scope.extras.append(graph)
        return f"GRAPH {graph} {{ {text} }}"

    def group(self, scope: Scope, richness: int, graph: str | None = None) -> str:
        """The inside of a group graph pattern; `richness` bounds what is added to its triples."""
        place = graph if graph is not None else self.graph()
        base = self.in_graph(scope, place, self.triples(scope, place, self.weighted((4, 1), (4, 2), (1, 3))))
        if richness and self.chance(15):
            base = self._union(scope, base)
        parts = [base]
        for _ in range(self.weighted((3, 0), (4, 1), (2, 2)) if richness else 0):
            parts.append(self._element(scope, richness))
        if richness and self.chance(5) and not any("BIND" in part for part in parts):
            parts.reverse()  # a filter or an OPTIONAL may stand first; a variable must not, before its BIND
        return " ".join(parts)

    def _union(self, scope: Scope, left: str) -> str:
        place = self.graph()
        right = self.in_graph(scope, place, self.triples(scope, place, self.one((1, 2)), anchored=self.chance(70)))
        if self.chance(30):
            right = f"{right} FILTER ( {self.condition(scope)} )"
        return f"{{ {left} }} UNION {{ {right} }}"

    def _inner(self, scope: Scope, negated: bool = False) -> tuple[str, Scope]:
        """A group that shares a variable with `scope`; what it binds is not certain outside it."""
        inner = Scope(list(scope.nodes), list(scope.values), list(scope.extras))
        place = self.weighted((6, self._graph_of(scope)), (1, None), (1, "?g"), (1, "«g1»"))
        text = self.in_graph(inner, place, self.triples(inner, place, self.weighted((4, 1), (1, 2)), anchored=True))
        if self.chance(25):
            text += f" FILTER ( {self.condition(inner)} )"
        scope.patterns += [replace(pattern, negated=negated) for pattern in inner.patterns]
        return text, inner

    def _graph_of(self, scope: Scope) -> str | None:
        return scope.patterns[0].graph if scope.patterns else None

    def _element(self, scope: Scope, richness: int) -> str:
        kind = self.weighted(
            (5, "optional"),
            (2, "minus"),
            (3, "exists"),
            (3, "filter"),
            (3, "bind"),
            (3, "values"),
            (4, "path"),
            (3 if richness > 1 else 0, "select"),
            (1, "graphs"),
            (2, "more"),
        )
        return str(getattr(self, f"_{kind}")(scope))

    def _optional(self, scope: Scope) -> str:
        text, inner = self._inner(scope)
        if self.chance(25):
            nested, deepest = self._inner(inner)
            text = f"{text} OPTIONAL {{ {nested} }}"
            scope.patterns += inner.patterns[len(inner.patterns) - 1 :]
            inner.values += [name for name in deepest.values if name not in inner.values]
        scope.values += [name for name in inner.variables() if name not in scope.variables()]
        written = f"OPTIONAL {{ {text} }}"
        if self.chance(25):
            written += f" FILTER ( {self.condition(scope)} )"
        return written

    def _minus(self, scope: Scope) -> str:
        return f"MINUS {{ {self._inner(scope, negated=True)[0]} }}"

    def _exists(self, scope: Scope) -> str:
        negated = self.chance(50)
        text, inner = self._inner(scope, negated)
        if self.chance(8):
            names = " ".join(name for name in inner.variables()[:2] if name in text) or "?x"
            text = f"{{ SELECT {names} {{ {text} }} }} FILTER ( {self.condition(scope)} )"
        if self.chance(50):
            text += f" {self._within_exists(inner)}"
            if self.chance(40):
                text += f" FILTER ( {self.condition(inner)} )"
            scope.patterns += [replace(inner.patterns[-1], negated=False)]
        if self.chance(25):
            deeper = self._inner(inner)[0]
            scope.patterns += inner.patterns[-1:]
            text += f" FILTER {self.one(('', 'NOT '))}EXISTS {{ {deeper} }}"
        return f"FILTER {'NOT ' if negated else ''}EXISTS {{ {text} }}"

    def _within_exists(self, scope: Scope) -> str:
        """What may follow the triples of an EXISTS. It changes the scope."""
        form = self.weighted((6, "OPTIONAL"), (2, "MINUS"), (1, "SELECT"), (1, "BIND"), (1, "VALUES"))
        if form == "BIND":
            return self._bind(scope)
        if form == "VALUES":
            return self._values(scope)
        if form == "SELECT":
            node = self.one(scope.nodes or ["?x"])
            return f"{{ SELECT DISTINCT {node} {{ {node} {self.one(LINKS)} ?now }} }}"
        new = Scope(scope.nodes[-1:] or ["?x"])
        place = self._graph_of(scope)
        text = self.in_graph(new, place, self.triples(new, place, 1, anchored=True))
        scope.patterns += new.patterns
        if form == "MINUS":
            return f"MINUS {{ {text} }}"
        names = [name for name in new.variables() if name not in scope.variables()]
        scope.values += names
        if names and self.chance(60):
            return f"OPTIONAL {{ {text} }} FILTER ( {self.one(('', '! '))}BOUND( {names[0]} ) )"
        return f"OPTIONAL {{ {text} }} FILTER ( {self.condition(scope)} )"

    def _filter(self, scope: Scope) -> str:
        return f"FILTER ( {self.condition(scope)} )"

    def _bind(self, scope: Scope) -> str:
        name = self.fresh("b")
        written = f"BIND ( {self.expression(scope)} AS {name} )"
        scope.values.append(name)
        return written

    def _values(self, scope: Scope) -> str:
        names = scope.nodes[:2] + scope.values[:1]
        if len(names) < 2 or self.chance(50):
            terms = " ".join(self._value_for(scope, names[0]) for _ in range(self.one((3, 2, 5)))) if names else "1"
            return f"VALUES {names[0] if names else self.fresh('b')} {{ {terms} }}"
        first, second = names[0], names[-1]
        rows = []
        for _ in range(self.one((2, 3, 5))):
            left = self.weighted((3, self._value_for(scope, first)), (2, "UNDEF"))
            right = self.weighted((1, self._value_for(scope, second)), (2, "UNDEF"))
            rows.append(f"( {left} {right} )")
        return f"VALUES ( {first} {second} ) {{ {' '.join(rows)} }}"

    def _value_for(self, scope: Scope, name: str) -> str:
        return self.literal() if name in scope.values else self.one(ENTITIES)

    def _path(self, scope: Scope) -> str:
        place = self._graph_of(scope)
        start = self.one(scope.nodes) if scope.nodes and self.chance(85) else self.one(ENTITIES)
        path = self.one(
            (
                "«p»/«q»",
                "«p»|«q»",
                "^«p»",
                "«p»+",
                "«q»*",
                "«p»?",
                "!«p»",
                "!(«p»|^«q»)",
                "!^«q»",
                "(«p»/«q»)+",
                "(«p»|«q»)*",
                "^«p»/«v»",
                "«p»/«q»?/«v»",
                "^(«p»/«q»)",
                "(^«q»)+",
                "(«p»|!«q»)",
            )
        )
        end = self.weighted((4, self._new_node(scope)), (1, self.one(ENTITIES)), (1, start), (1, "1"))
        ends = (start, end) if self.chance(70) or end == "1" else (end, start)
        for predicate in dict.fromkeys(re.findall("«[pqv]»", path)):
            scope.patterns.append(Pattern(start, predicate, end, place))
        if end.startswith("?") and end not in scope.nodes:
            scope.nodes.append(end)
        return self.in_graph(scope, place, f"{ends[0]} {path} {ends[1]} .")

    def _select(self, scope: Scope) -> str:
        inner = Scope()
        shared = self.one(scope.nodes) if scope.nodes else "?x"
        inner.nodes.append(shared)
        text = self.triples(inner, None, self.weighted((3, 1), (1, 2)), anchored=True)
        text = self.in_graph(inner, self.weighted((3, None), (1, "«g1»")), text)
        scope.patterns += inner.patterns
        form = self.one(("count", "distinct", "hidden", "exists", "having", "hidden" if self.blank_nodes else "window"))
        if form == "count":
            name = self.fresh("c")
            scope.values.append(name)
            return f"{{ SELECT {shared} ( COUNT(*) AS {name} ) {{ {text} }} GROUP BY {shared} }}"
        if form == "distinct":
            return f"{{ SELECT DISTINCT {shared} {{ {text} }} }}"
        if form in ("exists", "having"):
            name = self.fresh("c")
            scope.values.append(name)
            seen = f"{self.one(('', '! '))}EXISTS {{ {shared} {self.one(LINKS)} ?now }}"
            if form == "exists":
                text = f"{{ SELECT {shared} ( {seen} AS {name} ) {{ {text} }} }}"
            else:
                text = f"{{ SELECT {shared} ( COUNT(*) AS {name} ) {{ {text} }} GROUP BY {shared} HAVING ( {seen} ) }}"
            return self.in_graph(scope, self.weighted((2, None), (1, "«g1»")), text)
        if form == "hidden":  # variables that are not projected are other variables outside
            return f"{{ SELECT {shared} WHERE {{ {text} }} }}"
        names = inner.variables()[:2]
        return f"{{ SELECT {' '.join(names)} {{ {text} }} {self._window(names)} }}"

    def _graphs(self, scope: Scope) -> str:
        name = self.weighted((3, "?g"), (1, "?h"))
        if name not in scope.extras:
            scope.extras.append(name)
        return f"GRAPH {name} {{ }}"

    def _more(self, scope: Scope) -> str:
        place = self.graph()
        return self.in_graph(scope, place, self.triples(scope, place, 1, anchored=True))

    def condition(self, scope: Scope) -> str:
        names = scope.variables() or ["?x"]
        node = self.one(scope.nodes or names)
        value = self.one(scope.values or names)
        other = self.one(names)
        mild = (
            f"{value} != {self.one(INTEGERS)}",
            f"! ( {value} = 2 )",
            f"{node} != {self.one(ENTITIES)}",
            f"{node} NOT IN ( {self.one(ENTITIES)} )",
            f"BOUND( {other} )",
            f"COALESCE( {value} + 1 > 2 , true )",
            f"{value} != {other} || isIRI( {node} )",
            f'REGEX( STR( {other} ) , "[abc123]$" , "i" )',
            f"EXISTS {{ {node} {self.one(LINKS)} ?now }} || {value} = 2",
            f"! EXISTS {{ GRAPH {self.one(GRAPHS)} {{ {node} ?k2 ?now }} }}",
        )
        harsh = (
            f"{value} = 1",
            f"{value} > 1",
            f"{value} <= 2",
            f"{value} = {self.literal()}",
            f"{node} = {self.one(ENTITIES)}",
            f"{node} = {other}",
            f"{value} < {other}",
            f"sameTerm( {value} , {other} )",
            f"isIRI( {value} )",
            f"isLITERAL( {value} )",
            f"! BOUND( {value} )",
            "BOUND( ?nowhere )",
            f"?nowhere = {self.one(ENTITIES)}",
            f"{value} IN ( 1 , 1.5 , {self.one(ENTITIES)} )",
            f'LANGMATCHES( LANG( {value} ) , "fr" )',
            f"DATATYPE( {value} ) = <{XSD}integer>",
            f"{value} = 1 || {node} = {self.one(ENTITIES)}",
            f"{value} > 1 && {node} != {other}",
        )
        return self.one(mild) if self.chance(75) else self.one(harsh)

    def expression(self, scope: Scope) -> str:
        names = scope.variables() or ["?x"]
        node = self.one(scope.nodes or names)
        value = self.one(scope.values or names)
        return self.one(
            (
                f"STR( {node} )",
                f"{value} + 1",
                f"CONCAT( STR( {value} ) , '!' )",
                value,
                self.literal(),
                f"IF( isIRI( {node} ) , {node} , 'none' )",
                f"COALESCE( {value} * 2 , 'none' )",
                f"EXISTS {{ {node} {self.one((*LINKS, VALUE))} ?now }}",
                f"! EXISTS {{ {self.one(ENTITIES)} {self.one(LINKS)} {self.one(ENTITIES)} }}",
                "?nowhere",
                f"{value} = {self.literal()}",
            )
        )

    # -- queries -------------------------------------------------------------------------------------------------

    def query(self) -> Query:
        scope = Scope()
        dataset = ""
        if self.chance(9):
            dataset = self.one(
                (
                    "FROM «g1» ",
                    "FROM «g1» FROM «g2» ",
                    "FROM NAMED «g1» ",
                    "FROM «g2» FROM NAMED «g1» FROM NAMED «g3» ",
                    "FROM «g1» FROM NAMED «g1» ",
                )
            )
        if self.chance(4):
            # Only which graphs there are.
            body = self.one(("GRAPH ?g { }", "GRAPH «g1» { }", "BIND( 1 AS ?n ) FILTER NOT EXISTS { GRAPH ?g { } }"))
            names = ["?g" if "?g" in body and "EXISTS" not in body else "?n"]
            return Query(f"SELECT {names[0]} {dataset}WHERE {{ {body} }}", (Pattern("?x", "«p»", "?y", "«g1»"),))
        kind = self.weighted((15, self._self_join), (12, self._board), (73, None))
        body = self.group(scope, richness=2) if kind is None else kind(scope)
        names = [name for name in scope.variables() if name in body]
        cut: Cut | None = None
        if self.chance(6):
            head, tail, cut = self._cut(names or ["?x"], scope, f"{dataset}{{ {body} }}")
        else:
            head, tail, body = self._projection(names or ["?x"], scope, body)
        where = self.weighted((3, "WHERE "), (1, ""))
        text = f"SELECT {head} {dataset}{where}{{ {body} }}{tail}"
        patterns = scope.patterns
        if dataset.startswith("FROM «"):
            patterns = [Pattern(p.subject, p.predicate, p.object, p.graph or dataset[5:9]) for p in patterns]
        return Query(text, tuple(patterns), cut)

    def _cut(self, names: list[str], scope: Scope, body: str) -> tuple[str, str, Cut]:
        """The text between SELECT and WHERE and the text behind the group, of a window on an order with ties."""
        some = names[: self.one((1, 2, 3))]
        keys = []
        for _ in range(self.one((1, 2, 1))):
            name = self.one(scope.values or names) if self.chance(60) else self.one(names)
            seen = f"EXISTS {{ {self.one(scope.nodes or names)} {self.one(LINKS)} ?now }}"
            keys.append(self.weighted((5, name), (1, f"STR( {name} )"), (1, f"- {name}"), (1, "?nowhere"), (1, seen)))
        descending = tuple(self.chance(40) for _ in keys)
        written = [f"{'DESC' if down else 'ASC'}( {key} )" for key, down in zip(keys, descending, strict=True)]
        start, size = self.weighted((4, 0), (1, 1), (1, 3)), self.one((2, 1, 3, 5, 0))
        distinct = "DISTINCT " if self.chance(15) and set(keys) <= set(some) else ""
        columns = " ".join(f"( {key} AS ?key{number} )" for number, key in enumerate(keys))
        whole = plain(f"SELECT {distinct}{' '.join(some)} {columns} {body}", self.names)
        tail = f" ORDER BY {' '.join(written)} LIMIT {size}" + (f" OFFSET {start}" if start else "")
        return distinct + " ".join(some), tail, Cut(whole, descending, start, start + size)

    def _self_join(self, scope: Scope) -> str:
        """Patterns that one quad fits several of, so that its rows might be counted for each."""
        place = self.graph()
        triples = self.one(
            (
                ("?x «p» ?y", "?y «p» ?z"),
                ("?x «p» ?y", "?x «p» ?z"),
                ("?x «p» ?y", "?y «p» ?x"),
                ("?x «p» ?y", "?y «p» ?z", "?z «p» ?w"),
                ("?x «p» ?y", "?x ?k ?y"),
                ("?x ?k ?y", "?y ?k ?z"),
                ("?x «p» ?y", "?z «p» ?y", "?x «q» ?w"),
                ("?x «p» ?x", "?x «p» ?y"),
                ("?x «p» «a»", "?x «p» ?y"),
                ("?x «v» ?n", "?y «v» ?n"),
                ("?x «v» ?n", "?x «v» ?m"),
            )
        )
        apart = self.chance(15)
        parts = []
        for index, triple in enumerate(triples):
            graph = self.one(("?g", "«g1»", "?h")) if apart and index else place
            subject, predicate, object_ = triple.split()
            scope.patterns.append(Pattern(subject, predicate, object_, graph))
            for name in (subject, object_):
                if name.startswith("?") and name not in scope.variables():
                    (scope.values if name in ("?n", "?m") else scope.nodes).append(name)
            if predicate == "?k" and "?k" not in scope.extras:
                scope.extras.append("?k")
            parts.append(self.in_graph(scope, graph, f"{triple} ."))
        if self.chance(25):
            parts.append(self._element(scope, 2))
        return " ".join(parts)

    def _board(self, scope: Scope) -> str:
        """Patterns that share nothing but the constants of the query, as a board names its sensors one by one."""
        place = self.weighted((6, None), (2, "«g1»"), (1, "?g"))
        parts = [self.in_graph(scope, place, self._apart(scope, place, self.one((3, 4, 2, 5))))]
        for _ in range(self.weighted((2, 0), (4, 1), (2, 2))):
            form = self.one(("OPTIONAL", "FILTER EXISTS", "FILTER NOT EXISTS", "MINUS", "DISTINCT", "COUNT", "UNION"))
            inner = Scope(
                *([] if form in ("DISTINCT", "COUNT") else list(names) for names in (scope.nodes, scope.values))
            )
            text = self.in_graph(inner, place, self._apart(inner, place, self.one((2, 1, 3))))
            negated = form in ("FILTER NOT EXISTS", "MINUS")
            scope.patterns += [replace(pattern, negated=negated) for pattern in inner.patterns]
            new = [name for name in inner.variables() if name not in scope.variables() and name in text]
            if form == "DISTINCT":
                name = self.one([name for name in inner.variables() if name in text] or ["?x"])
                parts.append(f"{{ SELECT DISTINCT {name} {{ {text} }} }}")
                scope.nodes += [name] if name in new else []
            elif form == "COUNT":
                name = self.fresh("c")
                parts.append(f"{{ SELECT ( COUNT(*) AS {name} ) {{ {text} }} }}")
                scope.values.append(name)
            elif form == "UNION":
                parts[0] = f"{{ {parts[0]} }} UNION {{ {text} }}"
                scope.values += new
            else:
                parts.append(f"{form} {{ {text} }}")
                scope.values += new if form == "OPTIONAL" else []
        return " ".join(parts)

    def _apart(self, scope: Scope, graph: str | None, count: int) -> str:
        """Triple patterns most of which have a constant, and a variable of their own if there is one left."""
        written, scans = [], 0
        for _ in range(count):
            predicate = self.weighted((3, VALUE), (2, "«p»"), (1, "«q»"))
            free = [name for name in ("?n", "?m", "?y", "?z", "?w", "?x") if name not in scope.variables()]
            known = scope.variables() or ["?x"]
            variable = free[0] if free and self.chance(85) else self.one(known)
            form = self.weighted(
                (7, "subject"), (2, "object"), (1, "both"), (1 if len(free) > 1 and not scans else 0, "scan")
            )
            value = self.literal() if predicate == VALUE else self.one(ENTITIES)
            subject, object_ = {
                "subject": (self.one(ENTITIES), variable),
                "object": (variable, value),
                "both": (self.one(ENTITIES), value),
                "scan": (variable, free[-1] if free else variable),
            }[form]
            scans += form == "scan"
            for name in (subject, object_):
                if name.startswith("?") and name not in scope.variables():
                    (scope.values if predicate == VALUE and name == object_ else scope.nodes).append(name)
            pattern = Pattern(subject, predicate, object_, graph)
            scope.patterns.append(pattern)
            written.append(pattern.text())
        return " ".join(written)

    def shaped(self) -> Query:
        """A query with constants, for a group of subscribers that differ in them."""
        text, patterns = self.one(SHAPED)
        return Query(text, patterns)

    def _projection(self, names: list[str], scope: Scope, body: str) -> tuple[str, str, str]:
        """The text between SELECT and WHERE, the text behind the group, and the group."""
        form = self.weighted(
            (6, "all"),
            (8, "some"),
            (5, "distinct"),
            (7, "aggregate"),
            (0 if self.blank_nodes else 3, "window"),  # the keys would be errors, and so leave the order open
            (3, "expression"),
        )
        some = names[: self.one((1, 2, 3))]
        if self.chance(30):
            some = some[::-1]
        if form == "all":
            return "*", "", body
        if form == "some":
            return " ".join(some), "", body
        if form == "distinct":
            return f"DISTINCT {' '.join(some)}", "", body
        if form == "window":
            distinct = self.weighted((3, ""), (1, "DISTINCT "))
            return distinct + " ".join(some), " " + self._window(some), body
        if form == "expression":
            return f"{some[0]} ( {self.expression(scope)} AS ?t )", "", body
        return self._aggregate(names, scope, body)

    def _aggregate(self, names: list[str], scope: Scope, body: str) -> tuple[str, str, str]:
        key = names[0]
        values = [name for name in scope.values if name in body]
        value = values[0] if values else names[-1]
        # Numbers of all types in half of the cases. Which one of two equal ones is the least, the store leaves open.
        whole = f"FILTER ( DATATYPE( {value} ) = <{XSD}integer> )" if self.chance(50) else ""
        functions = [
            ("COUNT(*)", ""),
            (f"COUNT( {value} )", ""),
            (f"COUNT( DISTINCT {value} )", ""),
            ("COUNT( DISTINCT * )", ""),
            (f"MIN( STR( {value} ) )", ""),
            (f"MAX( STR( {value} ) )", ""),
        ]
        if values:
            functions += [(f"{name} {value} )", whole) for name in ("SUM(", "SUM( DISTINCT", "AVG(", "MIN(", "MAX(")]
        if self.chance(20):
            functions = self._concatenations(value)
        function, needs = self.one(functions)
        body = f"{body} {needs}".rstrip()
        form = self.weighted((4, "grouped"), (3, "whole"), (1, "having"), (1, "expression"))
        if form == "whole":
            return f"( {function} AS ?t )", "", body
        if form == "expression":
            return f"?e ( {function} AS ?t )", f" GROUP BY ( STR( {key} ) AS ?e )", body
        having = ""
        if form == "having":
            having = self.one((" HAVING ( COUNT(*) > 1 )", " HAVING ( ! EXISTS { «a» «p» «b» } || COUNT(*) > 1 )"))
        return f"{key} ( {function} AS ?t )", f" GROUP BY {key}{having}", body

    def _concatenations(self, value: str) -> list[tuple[str, str]]:
        """GROUP_CONCAT of texts, of texts in one language or several, and of what is no text."""
        separator = self.one(("", ' ; SEPARATOR = "|"', ' ; separator=";"'))
        distinct = self.one(("", "DISTINCT "))
        texts = f"FILTER ( isLITERAL( {value} ) && DATATYPE( {value} ) != <{XSD}integer> )"
        return [
            (f"GROUP_CONCAT( {distinct}STR( {value} ){separator} )", f"FILTER ( ! isBLANK( {value} ) )"),
            (f"GROUP_CONCAT( {distinct}STRLANG( STR( {value} ) , 'en' ){separator} )", ""),
            (f"GROUP_CONCAT( {distinct}{value}{separator} )", f'FILTER ( LANG( {value} ) != "" )'),
            (f"GROUP_CONCAT( {distinct}{value}{separator} )", texts),
            (f"GROUP_CONCAT( {distinct}{value}{separator} )", ""),
        ]

    def _window(self, names: Sequence[str]) -> str:
        """ORDER BY by which rows that differ in `names` differ in place, and a piece of that order."""
        keys = []
        for name in names:
            down = self.chance(30)
            for key in (f"STR( {name} )", f"STR( DATATYPE( {name} ) )", f"LANG( {name} )"):
                keys.append(f"{'DESC' if down else 'ASC'}( {key} )")
        size = self.one(("LIMIT 3", "LIMIT 2", "LIMIT 5", "OFFSET 1", "LIMIT 3 OFFSET 1", "OFFSET 1 LIMIT 1"))
        return f"ORDER BY {' '.join(keys)} {size}"

    # -- updates -------------------------------------------------------------------------------------------------

    def quad(self) -> tuple[str, str, str, str | None]:
        subject = self.one(ENTITIES)
        predicate = self.weighted((4, "«p»"), (3, "«q»"), (4, VALUE))
        literal = predicate == VALUE if self.chance(92) else predicate != VALUE
        object_ = self.literal() if literal else self.one(ENTITIES)
        return subject, predicate, object_, self.weighted((12, None), (6, "«g1»"), (3, "«g2»"), (1, "«g3»"))

    def aimed(self, queries: Sequence[Query]) -> list[tuple[str, str, str, str | None]]:
        """Quads that match the patterns of a query together, so that its answer is likely to change."""
        quads = []
        for query in queries:
            if self.chance(10):
                continue
            chosen: dict[str, str] = {}
            for pattern in query.patterns[: self.one((4, 3, 2, 6))]:
                if pattern.negated and not self.chance(35):
                    continue
                literal = pattern.predicate == VALUE
                place = pattern.graph
                quads.append(
                    (
                        self._chosen(chosen, pattern.subject, ENTITIES),
                        self._chosen(chosen, pattern.predicate, (*LINKS, VALUE)),
                        self._chosen(chosen, pattern.object, INTEGERS[:4] if literal else ENTITIES),
                        None if place is None else self._chosen(chosen, place, GRAPHS[:2]),
                    )
                )
        return [quad for quad in quads if quad[0].startswith("«") and quad[1].startswith("«")]

    def _chosen(self, chosen: dict[str, str], term: str, options: Sequence[str]) -> str:
        if not term.startswith("?") and term != "[]":
            return term
        if term not in chosen:
            chosen[term] = self.one(options)
        return chosen[term]

    def quads(self, queries: Sequence[Query], count: int) -> list[tuple[str, str, str, str | None]]:
        return [self.quad() for _ in range(count)] + self.aimed(queries)

    def block(self, quads: Sequence[tuple[str, str, str, str | None]]) -> str:
        """Quads as the inside of a DATA block or a template, at times with the abbreviations of Turtle."""
        parts = []
        abbreviate = self.chance(30)
        for graph in dict.fromkeys(quad[3] for quad in quads):
            here = [quad for quad in quads if quad[3] == graph]
            if abbreviate:
                by_subject = {
                    s: " ; ".join(f"{p} {o}" for t, p, o, _ in here if t == s)
                    for s in dict.fromkeys(q[0] for q in here)
                }
                text = " ".join(f"{s} {rest} ." for s, rest in by_subject.items())
            else:
                text = " ".join(f"{s} {p} {o} ." for s, p, o, _ in here)
            parts.append(text if graph is None else f"GRAPH {graph} {{ {text} }}")
        return " ".join(parts)

    def start(self, queries: Sequence[Query]) -> str:
        """An update that fills an empty store."""
        quads = [self.quad() for _ in range(self.one((6, 4, 8)))]
        for _ in range(3):
            quads += self.aimed(queries)
        self.inserted += quads
        return f"INSERT DATA {{ {self.block(quads)} }}"

    def operation(self, queries: Sequence[Query]) -> str:
        kind = self.weighted(
            (9, "insert_data"),
            (7, "delete_data"),
            (4, "delete_where"),
            (6, "modify"),
            (7, "retouch"),
            (3, "manage"),
            (2, "swap"),
        )
        return str(getattr(self, f"_{kind}")(queries))

    def update(self, queries: Sequence[Query]) -> str:
        """A whole request: one operation or several that build upon each other."""
        operations = [self.operation(queries) for _ in range(self.weighted((2, 1), (4, 2), (2, 3)))]
        if len(operations) > 1 and self.chance(10):
            operations.append("")  # a semicolon at the end
        return " ; ".join(operations)

    def _insert_data(self, queries: Sequence[Query]) -> str:
        quads = self.quads(queries, self.one((1, 2, 3)))
        self.inserted += quads
        if self.blank_nodes:
            quads = [self._with_blank_node(quad) for quad in quads]
        empty = " GRAPH «g3» { }" if self.chance(4) else ""
        return f"INSERT DATA {{ {self.block(quads)}{empty} }}"

    def _delete_data(self, queries: Sequence[Query]) -> str:
        known = self.inserted[-12:]
        quads = [self.one(known) if known else self.quad() for _ in range(self.one((3, 1, 5)))]
        if self.chance(70):
            quads += self.aimed(queries)
        return f"DELETE DATA {{ {self.block(quads)} }}"

    def _with_blank_node(self, quad: tuple[str, str, str, str | None]) -> tuple[str, str, str, str | None]:
        """The quad, perhaps with a label or an anonymous node for its subject or object."""
        subject, predicate, object_, graph = quad
        if self.chance(25):
            subject = self.weighted((3, "_:n"), (1, "_:m"))
        if self.chance(25):
            object_ = self.weighted((3, "_:n"), (1, "_:m"), (1, "[ «q» «b» ]"))
        return subject, predicate, object_, graph

    def _swap(self, queries: Sequence[Query]) -> str:
        """The same quad deleted and inserted by one request: no change, or an insertion."""
        quad = self.one(self.inserted) if self.inserted else self.quad()
        block = self.block([quad])
        other = self.block([self.one(self.inserted) if self.inserted else self.quad()])
        return self.one(
            (
                f"DELETE {{ {block} }} INSERT {{ {block} }} WHERE {{ }}",
                f"DELETE DATA {{ {block} }} ; INSERT DATA {{ {block} }}",
                f"INSERT DATA {{ {block} }} ; DELETE DATA {{ {block} {other} }}",
                f"DELETE {{ {block} {other} }} INSERT {{ {block} }} WHERE {{ ?x ?k ?y }}",
                "DELETE { ?x «p» ?y } INSERT { ?y «p» ?x } WHERE { ?x «p» ?y }",
            )
        )

    def _delete_where(self, queries: Sequence[Query]) -> str:
        scope = Scope()
        known = [p for query in queries for p in query.patterns if p.subject[0] in "?«" and p.object[0] in "?«"]
        if known and self.chance(60):
            scope.patterns.append(self.one(known))
        else:
            place = self.weighted((4, None), (2, "«g1»"), (2, "?g"))
            self.triples(scope, place, self.weighted((4, 1), (2, 2)))
        if not self.chance(40):  # not too much at once
            scope.patterns = [
                Pattern(self.one(ENTITIES) if p.subject == "?x" else p.subject, p.predicate, p.object, p.graph)
                for p in scope.patterns
            ]
        quads = [(p.subject, p.predicate, p.object.replace("[]", "?now"), p.graph) for p in scope.patterns]
        return f"DELETE WHERE {{ {self.block(quads)} }}"

    def using(self, queries: Sequence[Query]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """A DELETE/INSERT for the protocol's graph parameters: `USING` stands where their clauses would."""
        default, named = self.one(
            (
                (("«g1»",), ()),
                (("«g1»", "«g2»"), ()),
                (("«g1»",), ("«g2»",)),
                (("«g2»",), ("«g1»", "«g2»")),
                ((), ("«g1»",)),
            )
        )
        return self._modify(queries, protocol=True), default, named

    def _modify(self, queries: Sequence[Query], protocol: bool = False) -> str:
        scope = Scope()
        head, using = "", ""
        if self.chance(20):
            head = f"WITH {self.one(GRAPHS[:2])} "
        if protocol:
            head, using = "", USING
        elif self.chance(20):
            using = self.one(
                (
                    "USING «g1» ",
                    "USING NAMED «g1» ",
                    "USING «g2» USING «g1» ",
                    "USING «g1» USING NAMED «g2» ",
                    "USING NAMED «g1» USING NAMED «g3» ",
                )
            )
        body = self.group(scope, richness=self.weighted((3, 0), (2, 1), (1, 2)))
        if self.chance(35) and scope.nodes:
            body += f" FILTER ( {self.one(scope.nodes)} = {self.one(ENTITIES)} )"
        names = [name for name in scope.variables() if name in body] or ["?x"]
        delete, insert = "", ""
        form = self.one(("both", "insert", "delete", "both"))
        if form != "insert":
            quads = [(p.subject, p.predicate, p.object.replace("[]", "?now"), p.graph) for p in scope.patterns[:1]]
            if self.chance(30):
                quads.append(self._template(names, scope))
            if self.chance(30):
                quads += self.inserted[-3:]
            delete = f"DELETE {{ {self.block(quads)} }} "
        if form != "delete":
            quads = [self._template(names, scope) for _ in range(self.one((1, 2)))]
            if self.chance(50):
                quads += self.aimed(queries)
            if self.blank_nodes:
                quads = [self._with_blank_node(quad) for quad in quads]
            insert = f"INSERT {{ {self.block(quads)} }} "
        return f"{head}{delete}{insert}{using}WHERE {{ {body} }}"

    def _retouch(self, queries: Sequence[Query]) -> str:
        """Moves what a pattern of a query matches: other object, other subject, other graph."""
        patterns = [p for query in queries for p in query.patterns]
        p = self.one(patterns) if patterns else Pattern("?x", "«p»", "?y")
        object_ = p.object.replace("[]", "?now")
        if object_[0] not in "?«" or p.subject[0] not in "?«":
            object_ = "?n"
        old = (p.subject if p.subject[0] in "?«" else "?x", p.predicate, object_, p.graph)
        moved = self.one(
            (
                (old[0], old[1], self.literal() if p.predicate == VALUE else self.one(ENTITIES), old[3]),
                (self.one(ENTITIES), old[1], old[2], old[3]),
                (old[2], old[1], old[0], old[3]),
                (old[0], old[1], old[2], self.weighted((1, None), (1, "«g1»"))),
            )
        )
        where = self.block([old])
        condition = f"FILTER ( {old[0]} = {self.one(ENTITIES)} )" if old[0].startswith("?") and self.chance(50) else ""
        delete = f"DELETE {{ {where} }} " if self.chance(75) else ""
        return f"{delete}INSERT {{ {self.block([moved])} }} WHERE {{ {where} {condition} }}"

    def _template(self, names: Sequence[str], scope: Scope) -> tuple[str, str, str, str | None]:
        """A quad with variables; some stay unbound or stand where their value cannot."""
        subject = self.weighted((5, self.one(scope.nodes or names)), (2, self.one(ENTITIES)), (1, self.one(names)))
        predicate = self.weighted((6, self.one((*LINKS, VALUE))), (1, "?k" if "?k" in names else "«p»"), (1, names[-1]))
        object_ = self.weighted((5, self.one(names)), (3, self.one((*ENTITIES, self.literal()))), (1, "?nowhere"))
        graph = self.weighted(
            (9, None), (2, "«g1»"), (1, "«g2»"), (2, "?g" if "?g" in names else "«g3»"), (1, self.one(names))
        )
        return subject, predicate, object_, graph

    def _manage(self, queries: Sequence[Query]) -> str:
        silent = self.weighted((1, ""), (1, "SILENT "))
        graph = self.weighted((4, "«g1»"), (3, "«g2»"), (1, "«g3»"))
        kind = self.one(("CLEAR", "DROP", "CREATE", "COPY", "MOVE", "ADD", "ADD", "CREATE"))
        if kind == "CREATE":
            return f"CREATE {silent or self.one(('', 'SILENT '))}GRAPH {graph}"
        if kind in ("CLEAR", "DROP"):
            target = self.weighted((6, f"GRAPH {graph}"), (2, "DEFAULT"), (2, "NAMED"), (1, "ALL"))
            return f"{kind} {silent}{target}"
        source, target = (
            self.weighted((3, "DEFAULT"), (3, "«g1»"), (2, "GRAPH «g2»"), (1, "GRAPH «g3»")) for _ in range(2)
        )
        return f"{kind} {silent}{source} TO {target}"


_KEYWORDS = re.compile(
    rf"(?<!{_SPACE})\b(SELECT|WHERE|INSERT|DELETE|DATA|GRAPH|OPTIONAL|FILTER|UNION|MINUS|NOT|EXISTS|BIND|AS|VALUES|UNDEF|WITH|USING|"
    r"NAMED|FROM|DISTINCT|GROUP|BY|HAVING|ORDER|LIMIT|OFFSET|COUNT|SUM|CLEAR|DROP|CREATE|COPY|MOVE|ADD|SILENT|DEFAULT|"
    r"ALL|TO|IN|STR|BOUND|PREFIX|BASE)\b"
)


@dataclass(frozen=True)
class Spelling:
    """One of many ways to write the same. space: plain, narrow, lines or comments, one after every so many words."""

    prologue: str
    iri: str
    space: str
    every: int
    lower: bool
    dollars: bool
    names: Mapping[str, str]

    def write(self, text: str) -> str:
        """The text without marks."""
        text = self.prologue + text
        if self.lower:
            text = _KEYWORDS.sub(lambda found: found.group().lower(), text)
        if self.dollars:
            text = re.sub(r'(?<!")\?(?=[a-z])', "$", text)
        if self.space == "narrow":
            text = re.sub(r" *([{}()]) *", r"\1", text)
        elif self.space == "lines":
            text = re.sub(" +", "\r\n\t ", text)
        elif self.space == "comments":
            pieces = text.split(" ")
            text = "".join(
                piece + (f" # {piece[:3]}'s \"}} ; <\n" if index % self.every == 1 else " ")
                for index, piece in enumerate(pieces)
            )
        return _named(text, self.iri, self.names).replace(_SPACE, " ").replace(_BREAK, "\n")


def spelling(writer: Writer) -> Spelling:
    prologue, iri = writer.one(
        (
            ("", f"<{NAMESPACE}%s>"),
            (f"PREFIX : <{NAMESPACE}> ", ":%s"),
            (f"PREFIX e: <http://elsewhere.example/> PREFIX e: <{NAMESPACE}> ", "e:%s"),
            (f"BASE <{NAMESPACE[:-1]}> ", "<#%s>"),
            (f"BASE <{NAMESPACE[:-2]}> PREFIX e.e: <x#> ", "e.e:%s"),
            (f"PREFIX now: <{NAMESPACE}> ", "now:%s"),
            (f"BASE <{NAMESPACE[:-2]}there/here?/> ", "<../x#%s>"),
            ("", "<http://\\u0065xample.org/\\U00000078#%s>"),
        )
    )
    space = writer.weighted((8, "plain"), (1, "narrow"), (1, "lines"), (1, "comments"))
    every = writer.one((3, 2, 5))
    return Spelling(prologue, iri, space, every, writer.chance(10), writer.chance(10), writer.names)


def spelled(writer: Writer, text: str) -> str:
    """The text without marks, in one of many spellings that mean the same."""
    return spelling(writer).write(text)


_INTEGER = re.compile(r"(?<![\w\"'«.+\-^:#<])[1-3](?![\w\"'».:])")


def varied(writer: Writer, text: str) -> str:
    """The text with other constants of the same kinds in some places; no graph is twice in FROM, where the raw store
    counts its rows twice."""
    text = re.sub("«[abc]»", lambda found: writer.one(ENTITIES) if writer.chance(50) else found.group(), text)
    text = re.sub("«g[12]»", lambda found: writer.one(GRAPHS[:2]) if writer.chance(20) else found.group(), text)
    text = re.sub(r"((?:FROM|USING) «g[12]» )\1", r"\1", text)
    text = re.sub("«[pq]»", lambda found: writer.one(LINKS) if writer.chance(8) else found.group(), text)
    return _INTEGER.sub(lambda found: writer.one("123") if writer.chance(40) else found.group(), text)


def plain(text: str, names: Mapping[str, str] = _NAMES) -> str:
    """The text without marks, with full IRIs and as it was written otherwise."""
    return _named(text, f"<{NAMESPACE}%s>", names).replace(_SPACE, " ").replace(_BREAK, "\n")


def _named(text: str, iri: str, names: Mapping[str, str]) -> str:
    return re.sub("«(.*?)»", lambda found: iri % names.get(found.group(1), found.group(1)), text)


Graphs = tuple[tuple[str, ...] | None, tuple[str, ...] | None]
"""Default graphs and named graphs as the protocol names them, None where it does not."""


@dataclass(frozen=True)
class Step:
    """What happens next: an update, a load (text in N-Quads), a subscription, or the end of one (text: its number).

    graphs: the protocol's graph parameters; same: an update that says the same by USING; cut: as in `Query`.
    """

    kind: str
    text: str
    graphs: Graphs | None = None
    same: str = ""
    cut: Cut | None = None


@dataclass(frozen=True)
class Case:
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        lines = []
        for step in self.steps:
            more = "".join(f", {part!r}" for part in (step.graphs, step.same) if part)
            more += f", cut={step.cut!r}" if step.cut else ""
            lines.append(f"    Step({step.kind!r}, {step.text!r}{more}),\n")
        return f"Case((\n{''.join(lines)}))"


@st.composite
def requests(draw: Draw) -> list[tuple[str, str]]:
    """Requests of several operations, each with a prologue of its own, and the same with full IRIs.

    That is SPARQL 1.1 (production 29), but not what Oxigraph takes, so the oracle needs the second text.
    """
    writer = Writer(drawn(draw))
    pairs: list[tuple[str, str]] = []
    for _ in range(writer.one((2, 3))):
        operations = [writer.start([])] if not pairs else []
        operations += [writer.operation([]) for _ in range(writer.one((2, 3)))]
        end = " ; PREFIX e: <http://elsewhere.example/>" if writer.chance(10) else ""
        pairs.append((" ; ".join(spelled(writer, text) for text in operations) + end, plain(" ; ".join(operations))))
    return pairs


@st.composite
def cases(draw: Draw) -> Case:
    return written_case(Writer(drawn(draw)))


def case_of(seed: int) -> Case:
    """The case that a number stands for."""
    random = Random(seed)
    names = _NAMES if random.random() < 0.35 else {}
    return written_case(Writer(random.choice, blank_nodes=random.random() < 0.2, names=names))


def written_case(writer: Writer) -> Case:
    """Updates with subscriptions made and ended at random points between them; many come again with other constants."""
    return Case(tuple(Script(writer).steps()))


class Script:
    """Writes the steps of a case, and of a soak that never ends."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.queries: list[Query] = []
        self._updates: list[tuple[str, Spelling]] = []
        self._running = 0

    def steps(self) -> list[Step]:
        writer = self.writer
        waiting = self.subscriptions()
        steps = [] if writer.chance(10) else [Step("update", spelled(writer, writer.start(self.queries)))]
        for _ in range(writer.one((5, 4, 6, 8))):
            while waiting and writer.chance(75):
                steps.append(waiting.pop(0))
                self._running += 1
            if self._running > 1 and writer.chance(10):
                steps.append(Step("unsubscribe", str(writer.one(range(self._running)))))
                self._running -= 1
            steps.append(self.change())
        if waiting and self._running == 0:
            steps.insert(1, waiting[0])
        return steps

    def subscriptions(self) -> list[Step]:
        """Different queries, or one with different constants, or in different spellings."""
        writer = self.writer
        if writer.chance(30):
            shape = writer.shaped() if writer.chance(70) else writer.query()
            self.queries = [shape] + [
                shape if shape.cut else Query(varied(writer, shape.text), _varied_patterns(writer, shape))
                for _ in range(writer.one((3, 2, 4)))
            ]
            one = spelling(writer)
            texts = [(spelling(writer) if writer.chance(30) else one).write(query.text) for query in self.queries]
        else:
            self.queries = [writer.query() for _ in range(writer.weighted((2, 1), (3, 2), (2, 3)))]
            texts = [spelled(writer, query.text) for query in self.queries]
            if writer.chance(10):
                texts.append(spelled(writer, self.queries[0].text))  # the same query twice
        cuts = [query.cut for query in self.queries] + [self.queries[0].cut]
        return [Step("subscribe", text, self._graphs(), cut=cut) for text, cut in zip(texts, cuts, strict=False)]

    def _graphs(self) -> Graphs | None:
        if not self.writer.chance(5):
            return None
        one, two = plain("«g1»", self.writer.names), plain("«g2»", self.writer.names)
        return self.writer.one(
            (((one,), None), ((one, two), None), ((one,), (one, two)), (None, (one,)), ((), (one,)), ((two,), ()))
        )

    def _plain_names(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(plain(name, self.writer.names) for name in names)

    def change(self) -> Step:
        writer = self.writer
        kind = writer.weighted((10, "new"), (12 if self._updates else 0, "again"), (1, "using"), (1, "load"))
        if kind == "load":
            quads = [writer.quad() for _ in range(3)]
            lines = [" ".join(part for part in quad if part) + " ." for quad in quads if quad[2] in ENTITIES]
            return Step("load", plain("\n".join(lines), writer.names))
        if kind == "using":
            text, default, named = writer.using(self.queries)
            clauses = "".join([f"USING {name} " for name in default] + [f"USING NAMED {name} " for name in named])
            one = spelling(writer)
            return Step(
                "update",
                one.write(text.replace(USING, "")),
                (self._plain_names(default), self._plain_names(named)),
                one.write(text.replace(USING, clauses)),
            )
        if kind == "again":
            text, one = writer.one(self._updates)
            return Step("update", one.write(text if writer.chance(8) else varied(writer, text)))
        text, one = writer.update(self.queries), spelling(writer)
        self._updates = [*self._updates[-7:], (text, one)]
        return Step("update", one.write(text))


def _varied_patterns(writer: Writer, query: Query) -> tuple[Pattern, ...]:
    """What to aim at for a query with other constants; it need not fit."""
    return tuple(
        replace(pattern, object=varied(writer, pattern.object), subject=varied(writer, pattern.subject))
        for pattern in query.patterns
    )
