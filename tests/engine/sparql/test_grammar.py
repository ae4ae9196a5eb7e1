"""The algebra that is read from a query, against rdflib's, and by hand where rdflib is wrong.

Both trees are brought to one form: joins and graphs flattened, patterns with their graph, filters with the variables
that they look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from rdflib.plugins.sparql.algebra import translateQuery
from rdflib.plugins.sparql.parser import parseQuery
from rdflib.plugins.sparql.parserutils import CompValue
from rdflib.term import BNode, URIRef
from rdflib.term import Variable as RdflibVariable

from lamplighter.engine.sparql import algebra
from lamplighter.engine.sparql.cursor import UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.requests import canonical, declarations_and_body, subscribable
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> "
Form = Any
"""Nested tuples and texts, with sorted members where order means nothing."""


def read(text: str) -> tuple[algebra.Select, list[str]]:
    """The algebra and the constants of a query."""
    subscribable(PREFIX + text)
    prologue, body = declarations_and_body(PREFIX + text)
    raws = ["".join(token.text for token in body[start:end]) for start, end in constant_spans(body)]
    return read_select(body, lambda raw: canonical("", raw)), [canonical(prologue, raw) for raw in raws]


def form_of(text: str) -> Form:
    select, terms = read(text)
    return _engine(select.node, terms)


def _sorted(found: Iterable[Form]) -> tuple[Form, ...]:
    return tuple(sorted(found, key=repr))


def _engine(node: algebra.Node, terms: list[str]) -> list[Form]:
    """What the node joins."""

    def part(value: Any) -> Form:
        if isinstance(value, algebra.Constant):
            return terms[value.number]
        if isinstance(value, algebra.Variable):
            return "_" if value.name.startswith("_:") else f"?{value.name}"
        return value

    def sub(inner: algebra.Node) -> Form:
        return _sorted(_engine(inner, terms))

    def condition(expression: algebra.Expression) -> Form:
        exists = "".join("EXISTS" for member in expression.parts if isinstance(member, algebra.Exists))
        names = (variable.name for variable in expression.variables)
        return exists, tuple(sorted("aggregate" if name.startswith("_:aggregate") else f"?{name}" for name in names))

    match node:
        case algebra.Bgp(patterns):
            return [("triple", *(part(member) for member in pattern)) for pattern in patterns]
        case algebra.Join(left, right):
            return _engine(left, terms) + _engine(right, terms)
        case algebra.LeftJoin(left, right, conditions):
            return [("optional", sub(left), sub(right), _sorted(map(condition, conditions)))]
        case algebra.Union(left, right):
            return [("union", sub(left), sub(right))]
        case algebra.Minus(left, right):
            return [("minus", sub(left), sub(right))]
        case algebra.Filter():
            conditions = []
            inner: algebra.Node = node
            while isinstance(inner, algebra.Filter):
                conditions.append(condition(inner.condition))
                inner = inner.node
            return [("filter", sub(inner), _sorted(conditions))]
        case algebra.Extend(inner, variable, _):
            return [("extend", sub(inner), part(variable))]
        case algebra.Values(variables, rows):
            return [("values", tuple(map(part, variables)), _sorted(tuple(map(part, row)) for row in rows))]
        case algebra.Graph(_, inner):
            return _engine(inner, terms)
        case algebra.Group(inner, keys, aggregates):
            return [("group", sub(inner), len(keys), _sorted(aggregate.name for _, aggregate in aggregates))]
        case algebra.Project(inner, variables):
            return [("project", sub(inner), _sorted(map(part, variables)))]
        case algebra.Distinct(inner):
            return [("distinct", sub(inner))]
        case algebra.Slice(inner, _):
            return [("slice", sub(inner))]
        case algebra.OpaquePath():
            return [("path", part(node.s), part(node.o))]
    raise AssertionError(node)


def rdflib_form(text: str) -> Form:
    return _rdflib(translateQuery(parseQuery(PREFIX + text)).algebra.p, None)


def _term(value: Any) -> Form:
    if value is None or (isinstance(value, str) and value == "UNDEF"):
        return None
    if isinstance(value, BNode):
        return "_"
    return f"?{value}" if isinstance(value, RdflibVariable) else canonical("", value.n3())


def _variables(expression: Any) -> set[str]:
    if isinstance(expression, RdflibVariable):
        return {"aggregate" if expression.startswith("__agg_") else f"?{expression}"}
    if isinstance(expression, CompValue):
        if expression.name in ("Builtin_EXISTS", "Builtin_NOTEXISTS"):
            return set()
        found = (_variables(member) for key, member in expression.items() if key != "_vars")
        return set().union(*found)
    if isinstance(expression, (list, tuple)):
        return set().union(*map(_variables, expression))
    return set()


def _condition(expression: Any) -> Form:
    exists = "EXISTS" if getattr(expression, "name", "") in ("Builtin_EXISTS", "Builtin_NOTEXISTS") else ""
    return exists, tuple(sorted(_variables(expression)))


def _conditions(expression: Any) -> tuple[Form, ...]:
    if isinstance(expression, CompValue) and expression.name == "ConditionalAndExpression":
        return tuple(part for member in (expression.expr, *expression.other) for part in _conditions(member))
    if isinstance(expression, CompValue) and expression.name == "TrueFilter":
        return ()
    return (_condition(expression),)


def _rdflib(node: Any, graph: Any) -> list[Form]:
    def sub(inner: Any) -> Form:
        return _sorted(_rdflib(inner, graph))

    match node.name:
        case "BGP":
            return [("triple", *map(_term, triple), _term(graph)) for triple in node.triples or ()]
        case "Join":
            return _rdflib(node.p1, graph) + _rdflib(node.p2, graph)
        case "LeftJoin":
            return [("optional", sub(node.p1), sub(node.p2), _sorted(_conditions(node.expr)))]
        case "Union" | "Minus":
            return [(node.name.lower(), sub(node.p1), sub(node.p2))]
        case "Filter":
            return [("filter", sub(node.p), _sorted(_conditions(node.expr)))]
        case "Extend" if isinstance(node.expr, RdflibVariable) and node.expr.startswith("__agg_") and _is_key(node):
            return _rdflib(node.p, graph)
        case "Extend":
            return [("extend", sub(node.p), f"?{node.var}")]
        case "ToMultiSet" | "OrderBy":
            return _rdflib(node.p, graph)
        case "values":
            rows: list[Mapping[Any, Any]] = node.res
            names = list(dict.fromkeys(name for row in rows for name in row))
            cells = (tuple(_term(row.get(name)) for name in names) for row in rows)
            return [("values", tuple(f"?{name}" for name in names), _sorted(cells))]
        case "Graph":
            return _rdflib(node.p, node.term)
        case "AggregateJoin":
            names = [aggregate.name.split("_")[1].upper() for aggregate in node.A]
            found = _sorted(name for name in names if name != "SAMPLE")
            return [("group", sub(node.p.p), len(node.p.expr or ()), found)]
        case "Project":
            return [("project", sub(node.p), _sorted(f"?{name}" for name in node.PV))]
        case "Distinct":
            return [("distinct", sub(node.p))]
        case "Slice" | "Reduced":
            return [("slice", sub(node.p))]
    raise AssertionError(node.name)


def _is_key(node: Any) -> bool:
    """Whether an Extend only carries a key of the grouping through, as a SAMPLE."""
    inner = node.p
    while inner.name != "AggregateJoin":
        inner = inner.p
    samples = [aggregate for aggregate in inner.A if aggregate.name == "Aggregate_Sample"]
    return any(str(sample.res) == str(node.expr) for sample in samples)


@each_row(
    "query",
    [
        "SELECT * { ?x :p ?y }",
        "SELECT ?y ?x WHERE { ?x :p ?y . ?y :q 1 , 'a' ; a :T . }",
        "SELECT ?x { ?x :p 01 , 1.50 , 'chat'@FR , '1'^^:dt , true , -2 , +3 , 1e0 }",
        "SELECT ?x { ?x ?k ?y ; ?l ?z , ?w . }",
        "SELECT ?x { ?x :p [ :q ?y ; :r [] ] . [ :s ?x ] :t 1 . [ :u 2 ] }",
        "SELECT ?x { ?x :p ( 1 ?y ( :a ) ) . () :q ?x }",
        "SELECT ?x { _:n :p ?x . _:n :q _:m }",
        "SELECT ?x { ?x :p ?y FILTER ( ?y > 1 ) }",
        "SELECT ?x { FILTER ( ?y > 1 && ?x != :a ) ?x :p ?y FILTER isIRI( ?x ) }",
        "SELECT ?x { ?x :p ?y FILTER ( ?y > 1 || ?x = :a && ?y < 3 ) }",
        "SELECT ?x { ?x :p ?y FILTER ( ?y IN ( 1 , ?x ) ) FILTER REGEX( STR( ?x ) , '[)}]' ) }",
        "SELECT ?x { ?x :p ?y OPTIONAL { ?y :q ?z } }",
        "SELECT ?x { ?x :p ?y OPTIONAL { ?y :q ?z FILTER ( ?z > ?x ) OPTIONAL { ?z :r ?w } } ?x :s ?v }",
        "SELECT ?x { OPTIONAL { ?x :p ?y } OPTIONAL { ?x :q ?y } }",
        "SELECT ?x { { ?x :p ?y } UNION { ?x :q ?y } UNION { ?x :r ?y FILTER ( ?y = 1 ) } }",
        "SELECT ?x { ?x :p ?y MINUS { ?x :q ?z FILTER ( ?z = 1 ) } ?y :r ?w }",
        "SELECT ?x { ?x :p ?y { ?y :q ?z } { ?z :r ?w . FILTER ( ?w = 1 ) } }",
        "SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :q ?z } FILTER NOT EXISTS { ?z :r ?x } }",
        "SELECT ?x { GRAPH :g { ?x :p ?y } GRAPH ?g { ?y :q ?z . ?z :r 1 } ?x :s ?g }",
        "SELECT ?x { GRAPH ?g { ?x :p ?y OPTIONAL { ?y :q ?z } FILTER ( ?y != 1 ) } }",
        "SELECT ?x { GRAPH ?g { { ?x :p ?y } UNION { GRAPH :h { ?x :q ?y } } } }",
        "SELECT ?x { ?x :p ?y BIND ( ?y + 1 AS ?z ) ?z :q ?w BIND ( ?w AS ?v ) }",
        "SELECT ?x { VALUES ?x { :a 1 'b' } ?x :p ?y }",
        "SELECT ?x { ?x :p ?y VALUES ( ?x ?y ) { ( :a UNDEF ) ( :b 2 ) } }",
        "SELECT ?x { ?x :p ?y } VALUES ?y { 1 2 }",
        "SELECT DISTINCT ?x { ?x :p ?y } ORDER BY ?y DESC( STR( ?x ) )",
        "SELECT REDUCED ?x { ?x :p ?y }",
        "SELECT ?x { ?x :p ?y } ORDER BY ?x LIMIT 3 OFFSET 1",
        "SELECT ?x ( ?y + 1 AS ?z ) { ?x :p ?y }",
        "SELECT ( COUNT( * ) AS ?n ) { ?x :p ?y }",
        "SELECT ?x ( SUM( ?y ) + COUNT( DISTINCT ?y ) AS ?n ) { ?x :p ?y } GROUP BY ?x",
        "SELECT ?x ( MAX( ?y ) AS ?n ) { ?x :p ?y } GROUP BY ?x HAVING ( MIN( ?y ) > 1 )",
        "SELECT ( COUNT( ?x ) AS ?n ) { ?x :p ?y } GROUP BY ?x ?y",
        "SELECT ?x ?n { ?x :p ?y { SELECT ?y ( COUNT( * ) AS ?n ) { ?y :q ?z } GROUP BY ?y } }",
        "SELECT ?x { { SELECT DISTINCT ?x { ?x :p ?y } LIMIT 2 } ?x :q ?z }",
        "SELECT ?x { ?x :p ?y . { SELECT ?y { ?y :q ?z FILTER ( ?z > 1 ) } } OPTIONAL { ?y :r ?x } }",
    ],
)  # fmt: skip
def test_algebra_is_that_of_rdflib(query: str) -> None:
    assert _sorted(form_of(query)) == _sorted(rdflib_form(query))


def exists_of(text: str) -> list[algebra.Exists]:
    select, _ = read(text)
    return [part for part in algebra.walk(select) if isinstance(part, algebra.Exists)]


@each_row(
    ("query", "node"),
    [
        ("SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :q ?z FILTER ( ?z > 1 ) } }", algebra.Filter),
        ("SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :q ?z MINUS { ?z :r ?x } } }", algebra.Minus),
        ("SELECT ?x { ?x :p ?y FILTER EXISTS { SELECT ?x { ?x :q ?z } } }", algebra.Project),
        ("SELECT ?x { ?x :p ?y FILTER EXISTS { ?x :q+ ?z } }", algebra.OpaquePath),
        ("SELECT ?x { ?x :p ?y BIND ( ! EXISTS { ?x :q ?z OPTIONAL { ?z :r ?w } } AS ?e ) }", algebra.LeftJoin),
    ],
)
def test_all_of_exists_is_read_which_rdflib_leaves_as_text(query: str, node: type) -> None:
    [exists] = exists_of(query)
    assert isinstance(exists.node, node)


def test_negation_belongs_to_exists_only_as_not_exists() -> None:
    assert [e.negated for e in exists_of("SELECT * { ?x :p ?y FILTER NOT EXISTS { ?x :q ?y } }")] == [True]
    assert [e.negated for e in exists_of("SELECT * { ?x :p ?y FILTER ( ! EXISTS { ?x :q ?y } ) }")] == [False]


@each_row(
    "query",
    [
        "SELECT ?x { GRAPH :g { ?x :p ?y FILTER EXISTS { ?x :q ?z } } }",
        "SELECT ?x { GRAPH :g { ?x :p ?y BIND ( EXISTS { ?x :q ?z } AS ?e ) } }",
        "SELECT ?x { GRAPH :g { ?x :p ?y OPTIONAL { ?y :p ?w FILTER EXISTS { ?x :q ?z } } } }",
        "SELECT ?x { GRAPH :g { SELECT ?x ( EXISTS { ?x :q ?z } AS ?e ) { ?x :p ?y } } }",
        "SELECT ?x { GRAPH :g { SELECT ?x { ?x :p ?y } GROUP BY ?x HAVING ( EXISTS { ?x :q ?z } ) } }",
        "SELECT ?e { GRAPH :g { SELECT ?e { ?x :p ?y } GROUP BY ( EXISTS { ?x :q ?z } AS ?e ) } }",
        "SELECT ?n { GRAPH :g { SELECT ( SUM( IF( EXISTS { ?x :q ?z } , 1 , 0 ) ) AS ?n ) { ?x :p ?y } } }",
        "SELECT ?x { GRAPH :g { SELECT ?x { ?x :p ?y } ORDER BY ( EXISTS { ?x :q ?z } ) LIMIT 1 } }",
    ],
)
def test_exists_looks_into_the_graph_around_it(query: str) -> None:
    """SPARQL 1.1 Query, 18.6: the active graph; rdflib does not translate what is in EXISTS."""
    select, terms = read(query)
    patterns = [part for part in algebra.walk(select) if isinstance(part, algebra.Pattern)]
    assert len(patterns) >= 2
    for pattern in patterns:
        assert isinstance(pattern.graph, algebra.Constant), pattern
        assert terms[pattern.graph.number] == "<urn:x:g>"


@each_row(
    ("path", "triples"),
    [
        (":p", "?x :p ?y"),
        ("^:p", "?y :p ?x"),
        (":p/:q", "?x :p _:1 . _:1 :q ?y"),
        ("^(:p/:q)", "?y :p _:1 . _:1 :q ?x"),
        (":p/^:q/:r", "?x :p _:1 . _:2 :q _:1 . _:2 :r ?y"),
        ("a/(:p/:q)", "?x a _:1 . _:1 :p _:2 . _:2 :q ?y"),
    ],
)
def test_path_of_fixed_length_is_patterns(path: str, triples: str) -> None:
    assert _sorted(form_of(f"SELECT ?x {{ ?x {path} ?y }}")) == _sorted(form_of(f"SELECT ?x {{ {triples} }}"))


@each_row("path", [":p+", ":p*", ":p?", "!:p", "!(:p|^:q)", "(:p/:q)+", "^:p*", "^(:p*)"])
def test_other_paths_are_opaque(path: str) -> None:
    select, _ = read(f"SELECT ?x {{ ?x {path} ?y }}")
    [found] = [part for part in algebra.walk(select) if isinstance(part, algebra.OpaquePath)]
    assert found.zero_length == path.endswith(("*", "?", "*)"))
    assert (None in found.steps) == path.startswith("!")


@each_row(
    ("text", "spans"),
    [
        ("?x :p :a", [":p", ":a"]),
        ("?x <urn:p> 'a'@en", ["<urn:p>", "'a'@en"]),
        ("?x :p '1'^^:dt , 1 , 1.5e0", [":p", "'1'^^:dt", "1", "1.5e0"]),
        ("?x :p +1 , -1", [":p"]),  # signed numbers are part of the shape
        ("?x ?k true", []),
        ("?y - 1", ["1"]),
    ],
)
def test_constants_are_found_with_their_tails(text: str, spans: list[str]) -> None:
    found = list(tokens(text))
    assert ["".join(token.text for token in found[start:end]) for start, end in constant_spans(found)] == spans


def test_function_called_by_name_is_no_operand() -> None:
    select, terms = read("SELECT ?x { ?x :p ?y FILTER ( <http://www.w3.org/2001/XMLSchema#integer>( ?y ) = 1 ) }")
    [condition] = [part.condition for part in algebra.walk(select) if isinstance(part, algebra.Filter)]
    [function] = [part for part in condition.parts if isinstance(part, algebra.Function)]
    assert terms[function.number] == "<http://www.w3.org/2001/XMLSchema#integer>"


@each_row("text", ["SELECT ?x { ?x :p <<( :a :b :c )>> }", "SELECT ?x {", "SELECT ?x { ?x :p"])
def test_what_is_not_understood_is_said(text: str) -> None:
    body = list(tokens(text))
    with pytest.raises(UnknownSyntaxError):
        read_select(body, lambda raw: raw)


def test_iri_of_a_prefixed_name_keeps_what_rdflib_changes() -> None:
    r"""``%2C`` stays, ``\,`` loses its backslash: the names are the store's."""
    _, terms = read(r"SELECT ?x { ?x :a%2Cb :c\,d }")
    assert terms == ["<urn:x:a%2Cb>", "<urn:x:c,d>"]
    assert URIRef("urn:x:a%2Cb").n3() == terms[0]
