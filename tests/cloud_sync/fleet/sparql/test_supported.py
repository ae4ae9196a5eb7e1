"""What fleet subscriptions accept, and how they refuse the rest: by name, with line and column."""

import pytest

from lamplighter.cloud_sync.fleet.sparql import supported
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query, required_patterns
from lamplighter.engine.errors import LimitExceededError, RequestSyntaxError, UnsupportedRequestError
from lamplighter.engine.sparql.algebra import Constant, Pattern, Values, Variable, walk

REFUSED = {
    "CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }": "line 1, column 1: CONSTRUCT",
    "DESCRIBE ?s { ?s ?p ?o }": "line 1, column 1: DESCRIBE",
    "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }": "line 1, column 9: COUNT",
    "SELECT ?s { ?s ?p ?o } GROUP BY ?s": "line 1, column 24: GROUP",
    "SELECT DISTINCT ?s { ?s ?p ?o }": "line 1, column 8: DISTINCT",
    "SELECT REDUCED ?s { ?s ?p ?o }": "line 1, column 8: REDUCED",
    "SELECT ?s { ?s ?p ?o } ORDER BY ?s": "line 1, column 24: ORDER",
    "SELECT ?s { ?s ?p ?o }\nLIMIT 3": "line 2, column 1: LIMIT",
    "SELECT ?s { ?s ?p ?o }\nOFFSET 3": "line 2, column 1: OFFSET",
    "SELECT ?s FROM <urn:g> { ?s ?p ?o }": "line 1, column 11: FROM",
    "SELECT ?s { ?s ?p ?o MINUS { ?s ?q ?r } }": "line 1, column 22: MINUS",
    "SELECT ?s { ?s ?p ?o FILTER EXISTS { ?s ?q ?r } }": "line 1, column 29: EXISTS",
    "SELECT ?s { ?s ?p ?o FILTER NOT EXISTS { ?s ?q ?r } }": "line 1, column 33: EXISTS",
    "SELECT ?s { ?s ?p ?o { SELECT ?s { ?s ?q ?r } } }": "line 1, column 24: a SELECT inside of the query",
    "SELECT ?s { ?s <urn:p>* ?o }": "line 1, column 23: a path of variable length (*)",
    "SELECT (?o * 2 AS ?x) { ?s <urn:p>+ ?o }": "line 1, column 35: a path of variable length (+)",
    "SELECT ?s { ?s <urn:p>? ?o FILTER(?o * 2 > 3) }": "line 1, column 23: a path of variable length (?)",
    "SELECT ?s { FILTER(!bound(?s)) ?s !<urn:p> ?o }": "line 1, column 35: a path with a negated step (!)",
    "SELECT ?s { ?s (<urn:p>|<urn:q>)/<urn:r> ?o }": "line 1, column 24: a path with alternatives (|)",
    "SELECT ?s { ?s ?p << ?a ?b ?c >> }": "line 1, column 19: a triple term",
    "SELECT ?s { ?s ?p ?o FILTER(?o < NOW()) }": "line 1, column 34: NOW",
    "SELECT (RAND() AS ?r) { ?s ?p ?o }": "line 1, column 9: RAND",
    "SELECT ?s { ?s ?p ?o BIND(BNODE() AS ?b) }": "line 1, column 27: BNODE",
    "PREFIX g: <http://lamplighter.example/ns/gateway#>\nSELECT ?s (g:clock() AS ?t) { ?s ?p ?o }": (
        "line 2, column 12: the clock function"
    ),
    "SELECT ?s { ?s ?p ?o FILTER(<urn:f>(?o)) }": "line 1, column 29: the function <urn:f>",
    "BASE <urn:x> SELECT (IRI('a') AS ?i) { ?s ?p ?o }": "line 1, column 22: IRI with a BASE",
    "SELECT ?s { VALUES ?s { <urn:a> } }": "line 1, column 1: a query without a triple pattern",
    "SELECT ?s { ?s ?p ?o GRAPH ?g { VALUES ?g { <urn:g> } } }": "line 1, column 28: GRAPH ?g around VALUES",
    "SELECT ?s { ?s ?p ?o GRAPH ?g { BIND(?o AS ?g) } }": "line 1, column 28: GRAPH ?g around VALUES",
    "SELECT ?s { ?s ?p ?o OPTIONAL { ?s ?q ?x OPTIONAL { ?x ?r ?o } } }": (
        "line 1, column 19: an OPTIONAL that is not well-designed (?o)"
    ),
    "SELECT ?s { ?s ?p ?o OPTIONAL { ?s ?q ?x { ?x ?r ?y FILTER(?o > 1) } } }": (
        "line 1, column 19: an expression with a variable of another group (?o)"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_compiled_is_refused_by_name_and_place(text: str) -> None:
    with pytest.raises(UnsupportedRequestError) as refused:
        fleet_query(text)
    assert str(refused.value).startswith(REFUSED[text])


def test_service_and_wrong_syntax_are_refused_with_their_place() -> None:
    with pytest.raises(UnsupportedRequestError, match="line 1, column 13: SERVICE"):
        fleet_query("SELECT ?s { SERVICE <urn:e> { ?s ?p ?o } }")
    with pytest.raises(RequestSyntaxError) as wrong:
        fleet_query("SELECT ?s {\n ?s ?p }")
    assert (wrong.value.lineno, wrong.value.offset) == (2, 9)


def test_refused_words_may_occur_in_strings_names_and_comments() -> None:
    text = """PREFIX count: <urn:limit#> # MINUS
    SELECT ?distinct { ?distinct count:group "LIMIT 3" ; <urn:exists> ?now }"""
    assert fleet_query(text).variables == ("distinct",)


LIMITS = {
    "characters": "ASK { ?s ?p ?o }" + " " * supported.CHARACTERS_MAX,
    "32": "ASK { " + "?s ?p ?o . " * (supported.PATTERNS_MAX + 1) + "}",
    "16": "ASK { " + "{ ?s ?p ?o } UNION { ?o ?p ?s } " * 5 + "}",
    "24": "ASK { ?s ?p ?o FILTER(" + "(" * supported.NESTING_MAX + "true" + ")" * supported.NESTING_MAX + ") }",
    "256": "ASK { ?s ?p ?o VALUES ?o { " + "1 " * (supported.CONSTANTS_MAX + 1) + "} }",
    "64": "ASK { ?s ?p ?o " + "{} " * supported.GROUPS_MAX + "}",
    "200": "ASK { ?s ?p ?o FILTER(?o = 1 " + "|| ?o = 1 " * 60 + ") }",
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_query_above_a_limit_is_refused(limit: str) -> None:
    with pytest.raises(LimitExceededError, match=limit):
        fleet_query(LIMITS[limit])


def test_queries_that_differ_in_constants_only_have_one_shape() -> None:
    one = fleet_query('SELECT ?s { ?s <urn:p> "x" FILTER(?s != <urn:a>) }')
    other = fleet_query('PREFIX u: <urn:>\nSELECT ?s {\n?s u:q "yy"@en FILTER(?s != u:b) }')
    assert one.shape == other.shape
    assert one.constants == ("<urn:p>", '"x"', "<urn:a>")
    assert other.constants == ("<urn:q>", '"yy"@en', "<urn:b>")
    assert fleet_query('SELECT ?s { ?s <urn:p> "x" FILTER(?s = <urn:a>) }').shape != one.shape
    assert fleet_query('ASK { ?s <urn:p> "x" FILTER(?s != <urn:a>) }').shape != one.shape


@pytest.mark.parametrize(
    "condition", ["?v < {}", "?v * {} > 1", "?v {} > 1", "?v IN (1, {})", "ABS({}) < ?v", "IF(?v > {}, {}, 1) = 1"]
)
def test_queries_that_differ_in_negative_numbers_have_one_shape(condition: str) -> None:
    one, other = (fleet_query(f"ASK {{ ?s <urn:p> ?v FILTER({condition.format(n, n)}) }}") for n in ("-5", "-6.5"))
    assert one.shape == other.shape
    assert one.constants != other.constants


def test_negative_number_of_a_pattern_is_one_term() -> None:
    tree = fleet_query("ASK { ?s <urn:p> -5 . (1 -6) <urn:q> ?v VALUES ?v { -7 } }").tree
    terms = {str(part) for pattern in walk(tree) if isinstance(pattern, Pattern) for part in pattern}
    values = next(part for part in walk(tree) if isinstance(part, Values))
    assert {f'"-{n}"^^<http://www.w3.org/2001/XMLSchema#integer>' for n in (5, 6)} <= terms
    assert values.rows == (('"-7"^^<http://www.w3.org/2001/XMLSchema#integer>',),)


def test_the_function_of_a_cast_belongs_to_the_shape() -> None:
    text = "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> ASK {{ ?s ?p ?o FILTER(xsd:{}(?o) > 1) }}"
    assert fleet_query(text.format("integer")).shape != fleet_query(text.format("double")).shape


def test_constants_are_in_canonical_form() -> None:
    integer, decimal = (f"^^<http://www.w3.org/2001/XMLSchema#{name}>" for name in ("integer", "decimal"))
    query = fleet_query("SELECT * { ?s <urn:p> 007 ; <urn:q> 1.50 VALUES ?s { <urn:a> UNDEF } }")
    assert query.constants == ("<urn:p>", f'"7"{integer}', "<urn:q>", f'"1.5"{decimal}', "<urn:a>")
    assert query.variables == ("s",)


def test_required_patterns_are_those_of_each_branch() -> None:
    query = fleet_query(
        "SELECT * { ?s <urn:p> ?o { ?s <urn:q> ?x } UNION { GRAPH ?g { ?s <urn:r> 1 } } OPTIONAL { ?s <urn:t> ?t } }"
    )
    s, o, x = Variable("s"), Variable("o"), Variable("x")
    first = Pattern(s, Constant(0), o, None)
    assert required_patterns(query) == [
        (first, Pattern(s, Constant(1), x, None)),
        (first, Pattern(s, Constant(2), Constant(3), Variable("g"))),
    ]
    assert required_patterns(fleet_query("ASK { OPTIONAL { ?s ?p ?o } }")) == [()]
