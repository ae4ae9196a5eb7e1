import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import Dataset
from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    RequestSyntaxError,
    UnsupportedRequestError,
)
from lamplighter.engine.matching.lutt import ANY, EVERYTHING, TriplePattern
from lamplighter.engine.sparql.requests import parse_query, parse_update, subscribable
from tests.support.signatures import signature
from tests.support.tables import each_row

A = "<a:a>"
P = "<a:p>"
Q = "<a:q>"


@each_row(
    ("where", "patterns"),
    [
        ("{ <a:a> <a:p> ?o }", {(A, P, ANY, None)}),
        ("{ ?s ?p <a:a> . ?s <a:q> 'text' }", {(ANY, ANY, A, None), (ANY, Q, '"text"', None)}),
        ("{ ?s <a:p> 01 }", {(ANY, P, '"1"^^<http://www.w3.org/2001/XMLSchema#integer>', None)}),
        ("{ ?s <a:p> -01.50 }", {(ANY, P, '"-1.5"^^<http://www.w3.org/2001/XMLSchema#decimal>', None)}),
        ("{ ?s <a:p> 'text'@EN }", {(ANY, P, '"text"@en', None)}),
        ("{ _:b <a:p> [] }", {(ANY, P, ANY, None)}),
        ("{ GRAPH <a:a> { ?s <a:p> ?o } }", {(ANY, P, ANY, A)}),
        ("{ GRAPH ?g { ?s <a:p> ?o } }", {(ANY, P, ANY, ANY)}),
        ("{ ?s <a:p> ?o OPTIONAL { ?o <a:q> ?x } }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        ("{ { ?s <a:p> ?o } UNION { ?s <a:q> ?o } }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        ("{ ?s <a:p> ?o MINUS { ?s <a:q> ?x } }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        ("{ ?s <a:p> ?o FILTER NOT EXISTS { ?s <a:q> ?x } }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        ("{ ?s <a:p> ?o FILTER(?o = 1 || EXISTS { ?s <a:q> ?x }) }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        (
            "{ ?s <a:p> ?o GRAPH <a:a> { ?s <a:p> ?o FILTER EXISTS { ?s <a:q> ?x } } }",
            {(ANY, P, ANY, None), (ANY, P, ANY, A), (ANY, Q, ANY, A)},
        ),
        ("{ { SELECT ?s WHERE { ?s <a:p> ?o } LIMIT 1 } }", {(ANY, P, ANY, None)}),
        ("{ ?s <a:p>/^<a:q> ?o }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        ("{ ?s <a:p>/<a:q>* ?o }", {(ANY, P, ANY, None), (ANY, Q, ANY, None)}),
        ("{ ?s <a:p>+ ?o }", {(ANY, P, ANY, None)}),
        ("{ <a:a> <a:p>* ?o }", {(ANY, P, ANY, None), (A, ANY, ANY, None), (ANY, ANY, A, None)}),
        ("{ ?s <a:p>* ?o }", {(ANY, ANY, ANY, None)}),
        ("{ ?s <a:p>? ?o }", {(ANY, ANY, ANY, None)}),
        ("{ ?s !<a:p> ?o }", {(ANY, ANY, ANY, None)}),
        ("{ BIND(EXISTS { ?s <a:p> ?o } AS ?x) }", {(ANY, P, ANY, None)}),
    ],
)
def test_footprint_has_every_triple_pattern(where: str, patterns: set[tuple[str, ...]]) -> None:
    found = signature(f"SELECT * WHERE {where}")
    assert set(found.patterns) == {TriplePattern(*pattern) for pattern in patterns}


def test_patterns_in_having_and_projection_count() -> None:
    text = (
        "SELECT ?s (COUNT(?o) AS ?n) (EXISTS { ?s <a:x> 1 } AS ?e) WHERE { ?s <a:p> ?o } "
        "GROUP BY ?s HAVING (EXISTS { ?s <a:q> ?z })"
    )
    predicates = {pattern.p for pattern in signature(text).patterns}
    assert ANY in predicates or predicates == {P, Q, "<a:x>"}


@each_row(
    ("text", "subject"),
    [
        ("BASE <http://e/x> SELECT * { <#c:1> <a:p> ?o }", "<http://e/x#c:1>"),
        ("PREFIX e: <http://e/> SELECT * { e:a\\-b\\,c <a:p> ?o }", "<http://e/a-b,c>"),
        ("PREFIX e: <http://e/> PREFIX e: <http://f/> SELECT * { e: <a:p> ?o }", "<http://f/>"),
        ("SELECT * { <http://e/\\u0041> <a:p> ?o }", "<http://e/A>"),
    ],
)
def test_names_are_resolved_as_the_store_does(text: str, subject: str) -> None:
    assert signature(text).patterns == (TriplePattern(subject, P, ANY, None),)


def test_named_datasets_are_read_anywhere() -> None:
    assert signature("SELECT * FROM <a:a> { ?s <a:p> ?o }").patterns == (TriplePattern(ANY, P, ANY, ANY),)
    assert signature("SELECT * { ?s <a:p> ?o }", dataset=Dataset(("<a:a>",))).patterns == (
        TriplePattern(ANY, P, ANY, ANY),
    )


@each_row("where", ["{ GRAPH ?g {} }", "{ GRAPH <a:a> {} }", "{ GRAPH ?g { OPTIONAL { ?s ?p ?o } } }"])
def test_graph_names_matter_where_graph_stands(where: str) -> None:
    assert signature(f"SELECT * WHERE {where}").graph_names


def test_graph_names_do_not_matter_where_a_quad_must_be_there() -> None:
    assert not signature("SELECT * WHERE { ?s ?p ?o GRAPH ?g { ?s ?p ?o } }").graph_names


def test_what_only_the_store_reads_may_depend_on_everything() -> None:
    text = "SELECT * { ?x <a:p> ?t VALUES ?t { <<( <a:s> <a:p> <a:o> )>> } }"
    assert parse_query(text).form == "SELECT"
    assert signature(text) == EVERYTHING


@each_row("call", ["NOW()", "rand()", "UUID ()", "STRUUID()", "BNODE()"])
def test_functions_that_differ_each_time_cannot_be_subscribed_to(call: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=call.partition("(")[0].strip().upper()):
        subscribable(f"SELECT * {{ BIND({call} AS ?x) }}")


def test_a_comparison_cannot_hide_a_function() -> None:
    with pytest.raises(UnsupportedRequestError, match="NOW"):
        subscribable("SELECT * { ?a ?p ?b FILTER(?a<?b&&NOW()>?b) }")


@pytest.mark.parametrize("text", ["# NOW()\nSELECT * { ?s ?p 'RAND()', <urn:UUID()> }", "SELECT ?now { ?now ?p ?o }"])
def test_names_of_functions_elsewhere_are_no_functions(text: str) -> None:
    assert subscribable(text).unrepeatable is None


@each_row("text", ["SELECT * {}", "ASK {}", "CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }"])
def test_all_forms_but_describe_can_be_subscribed_to(text: str) -> None:
    assert subscribable(text).form == text.split()[0]
    with pytest.raises(UnsupportedRequestError, match="not DESCRIBE"):
        subscribable("DESCRIBE <a:a>")


def test_syntax_error_names_the_place() -> None:
    with pytest.raises(RequestSyntaxError) as caught:
        parse_query("SELECT * {\n ?a ?b \n}")
    assert (caught.value.lineno, caught.value.offset) == (3, 2)


@each_row(
    "text",
    [
        "DELETEWHERE { ?s ?p ?o }",
        "INSERTDATA { <a:a> <a:p> 1 }",
        "CLEARALL",
        "PREFIX e: <e:> CLEAR GRAPHe:g",
        "PREFIX e: <e:> COPYe:g TO e:h",
        "PREFIX e: <e:> MOVE SILENTe:g TO e:h",
        "PREFIX e: <e:> DELETE { ?s ?p ?o } USINGNAMED e:g WHERE { ?s ?p ?o }",
        "PREFIX",
    ],
)
def test_an_update_that_only_oxigraph_can_cut_up_is_refused(text: str) -> None:
    """It takes keywords that stand together with what follows."""
    engine = Engine()
    engine.load(b"<a:a> <a:p> <a:b> .", media_type="application/n-triples")
    with pytest.raises(RequestSyntaxError):
        engine.update(text)
    assert engine.quad_count == 1


def test_a_subscription_that_only_oxigraph_can_cut_up_is_refused() -> None:
    with pytest.raises(RequestSyntaxError, match="GRAPHe:g"):
        Engine().subscribe("PREFIX e: <e:> SELECT * { GRAPHe:g { ?s ?p ?o } }")


@pytest.mark.parametrize(
    "where",
    [
        "SERVICEe:x {}",
        "SERVICE:x {}",
        "SERVICE?x {}",
        "serviceSilent e:x {}",
        "SERVICESILENTe:x {}",
        "SERVICESILENT<x:y> {}",
        "?s ?p trueSERVICE e:x {}",
        "?s ?p falseSERVICEe:x # {\n {}",
        "?s ?p 1SERVICEe:x {}",
        "FILTER EXISTS { SERVICEe:x {} }",
        'FILTER(1 <2#>"""\n) SERVICE e:x {} #"""\n',
        'FILTER(1 <2#>"""\n) SERVICEe:x {} #"""\n',
        'FILTER(1 <\'>"""\') SERVICE e:x {} FILTER("""\' = \'a\')',
        "?s<urn:a&&'>?o SERVICE e:x {} #'\n",
        "?s e:a\u3001\\' ?o SERVICE e:x {} #'\n",
        '?s ?p <<?a?b#>>"""\n?c>> SERVICE e:x {} #"""\n',
        "?s ?p (?a <x:'>) . SERVICE e:x {} #')\n",
    ],
)
def test_no_other_endpoint_is_asked_however_that_is_spelt(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oxigraph reads SERVICE in each of them, and would ask while it is given the text to be checked."""
    monkeypatch.setattr(
        "lamplighter.engine.sparql.requests._EMPTY", None
    )  # what is not refused by its tokens fails otherwise
    prologue = "PREFIX e: <urn:> PREFIX : <urn:> "
    with pytest.raises(GatewayError):
        parse_query(f"{prologue}ASK {{ {where} }}")
    with Engine() as engine, pytest.raises(GatewayError):
        engine.update(f"{prologue}INSERT {{}} WHERE {{ {where} }}")


@each_row(
    "text",
    [
        "PREFIX services: <x:> SELECT * { GRAPH services:a { ?s services:p ?o } }",
        "PREFIX service: <x:> SELECT * FROM service:a FROM NAMED service:b { ?s a service:c . {} }",
        "SELECT * { ?s ?p 'SERVICE <x:y> { }' } # SERVICE <x:y> {}",
        "SELECT * { ?service <x:SERVICE> _:service }",
    ],
)
def test_what_only_looks_like_a_service_is_none(text: str) -> None:
    assert subscribable(text).form == "SELECT"


@pytest.mark.parametrize(
    "text",
    [
        "ASK { FILTER(1 <NESTED>0) }",
        'ASK { FILTER(1 <2#>"""\n+ NESTED #"""\n) }',
        'ASK { FILTER(1 <\'>"""\' && NESTED && """\' = \'a\') }',
        "PREFIX e: <x:> ASK { ?s e:a\u3001\\' ?o FILTER(NESTED) #'\n}",
        '?s ?p <<?a?b#>>"""\n?c>> FILTER(NESTED) #"""\n}',
        "ASK { ?s<urn:a&&'>?o FILTER(NESTED) #'\n}",
        "ASK { FILTER(?a <x:)&&b> (?c <x:)&&b> NESTED) }",
        "ASK { ?s ?p (?a <x:'>) FILTER(NESTED) #')\n}",
    ],
)
def test_nesting_that_would_end_the_process_is_not_hidden(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.engine.sparql.requests._EMPTY", None)
    with pytest.raises((LimitExceededError, RequestSyntaxError)):
        parse_query(text.replace("NESTED", f"{'(' * 300}1{')' * 300}"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ASK { ?s ?p (?a <x:'> 'b') }", "this < may compare or begin an IRI"),
        ('ASK { ?s ?p "x }', "a string that begins here is not closed"),
        ("ASK { ?s ?p \\u0041 }", "does not belong here"),
    ],
)
def test_a_text_that_oxigraph_might_cut_elsewhere_is_not_given_to_it(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.engine.sparql.requests._EMPTY", None)
    with pytest.raises(RequestSyntaxError, match=told):
        parse_query(text)


def test_a_form_that_only_oxigraph_reads_is_refused() -> None:
    with pytest.raises(RequestSyntaxError, match="no space between"):
        parse_query("PREFIX e: <x:> DESCRIBEe:a")


@pytest.mark.parametrize(
    "text",
    [
        "FOO DATA { <x:a> <x:b> <x:c> }",
        "DATA DATA { <x:a> <x:b> <x:c> }",
        "CLEAR DATA { <x:a> <x:b> <x:c> }",
        "LOAD DATA { }",
        "INSERT DATA { <x:a> <x:b> <x:c> } ; CREATE DATA { }",
        "INSERT DATA <x:a> { <x:a> <x:b> <x:c> }",
        "INSERT DATA { <x:a> <x:b> <x:c> } WHERE { }",
        "INSERT DATA { <x:a> <x:b> <x:c> } { <x:a> <x:b> <x:d> }",
        "DELETE DATA { <x:a> <x:b> <x:c> } INSERT DATA { <x:a> <x:b> <x:d> }",
        "INSERT DATA { <x:a> <x:b> ?c }",
        "INSERT DATA { <x:a> <x:b> <x:c>",
    ],
)
def test_what_only_looks_like_an_update_with_data_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(RequestSyntaxError, match=r"line 1, column \d+"):
        parse_update(text)
