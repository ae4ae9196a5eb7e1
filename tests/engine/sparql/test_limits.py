"""Texts that would end the process or keep it busy for minutes are refused; large ordinary ones are not."""

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError, RequestError
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.limits import CONSTANTS_MAX, NESTING_MAX, outside_data
from lamplighter.engine.sparql.requests import REQUEST_BYTES_MAX, parse_query, parse_update
from lamplighter.engine.terms import Bag
from tests.support.amounts import Amounts
from tests.support.tables import each_row

N = 20_000


@each_row(
    "text",
    [
        "SELECT * { FILTER(" + "(" * N + "1" + ")" * N + ") }",
        "SELECT * " + "{" * N + "}" * N,
        "SELECT * { FILTER(" + "!" * N + "true) }",
        "SELECT * { FILTER(" + "!" * 9000 + "true) }",
        "SELECT * { FILTER(" + ("!" * 200 + "(") * 45 + "true" + ")" * 45 + ") }",
        "SELECT * { " + "<< " * 4000 + "?s ?p 1 " + ">> " * 4000 + "?a 1 }",
        "SELECT * { ?s " + "(" * N + "<a:p>" + ")" * N + " ?o }",
        "SELECT * { ?s <a:p> " + "[ <a:p> " * N + "1" + "]" * N + " }",
        "SELECT * { ?s <a:p> " + "(" * N + "1" + ")" * N + " }",
        "SELECT * { " + "{ ?s ?p ?o } UNION " * N + "{} }",
        "SELECT * { FILTER(" + "1 && " * N + "1) }",
        "SELECT * { " + "?s ?p ?o . " * 200 + "}",
        "SELECT * { (?s <a:VALUES()&&b> ?p) <a:p> ?o . { " + "?s ?p ?o . " * 200 + "} }",
        "SELECT * { ?s ?p ?o " + "; ?p ?o " * 200 + "}",
        "SELECT * { ?s <a:p>" + "/<a:p>" * 200 + " ?o }",
        "SELECT * { " + "OPTIONAL { ?s ?p ?o } " * N + "}",
        "SELECT * { " + "<<( ?s ?p " * N + "}",
    ],
)
def test_text_that_is_too_deep_or_too_long_is_refused(text: str) -> None:
    engine = Engine()
    for ask in (engine.query, engine.subscribe):
        with pytest.raises((LimitExceededError, SyntaxError)):
            ask(text)
    where = text.removeprefix("SELECT *").strip()
    with pytest.raises((LimitExceededError, SyntaxError)):
        engine.update(f"INSERT {{ <a:s> <a:p> 1 }} WHERE {where}")


@each_row(
    "nested",
    [
        "<a:s> <a:p> " + "[ <a:p> " * N + "1" + "]" * N,
        "<< " * N + "<a:s> <a:p> 1" + " >>" * N + " <a:p> 1",
        "<<" * N + "<a:s> <a:p> 1" + ">>" * N + " <a:p> 1",
        "<< <a:s> <a:p> " * N + "1" + " >>" * N + " <a:p> 1",
    ],
)
def test_nested_data_is_refused(nested: str) -> None:
    with pytest.raises(LimitExceededError, match="nested"):
        Engine().update(f"INSERT DATA {{ {nested} }}")


def test_what_only_looks_like_values_does_not_make_data_of_patterns() -> None:
    text = "BASE <x:> SELECT * { (?s <VALUES()&&b> ?p) <a:p> ?o . { " + "?s ?p ?o . " * 200 + "} }"
    with pytest.raises(LimitExceededError, match="patterns"):
        Engine().query(text)


def test_triples_beside_each_other_are_not_nested() -> None:
    triples = " ".join(f"<< <a:s> <a:p> {number} >> <a:q> <<( <a:s> <a:p> 1 )>> ." for number in range(NESTING_MAX))
    assert Engine().update(f"INSERT DATA {{ {triples} }}").added


def test_the_constants_of_a_subscription_are_limited() -> None:
    def text(count: int) -> str:
        return f"SELECT * {{ VALUES ?x {{ {'1 ' * count}}} }}"

    engine = Engine()
    assert engine.subscribe(text(CONSTANTS_MAX)).first
    for asked in (engine.subscribe, engine.evaluation_of_subscription):
        with pytest.raises(LimitExceededError, match=f"{CONSTANTS_MAX} constants"):
            asked(text(CONSTANTS_MAX + 1))
    assert engine.query(text(CONSTANTS_MAX + 1))


def test_data_is_not_limited(amounts: Amounts) -> None:
    engine, count = Engine(), amounts.of(N, least=CONSTANTS_MAX + 1)
    engine.update("INSERT DATA { " + " ".join(f"<a:{number}> <a:p> {number} ." for number in range(count)) + " }")
    assert engine.quad_count == count
    values = " ".join(f"<a:{number}>" for number in range(count))
    found = engine.query(f"SELECT ?o {{ VALUES ?s {{ {values} }} ?s <a:p> ?o }}").value
    assert isinstance(found, Bag) and len(found) == count
    many = ", ".join(str(number) for number in range(2000))
    assert len(engine.subscribe(f"SELECT ?s {{ ?s <a:p> ?o FILTER(?o IN ({many})) }}").first) == 2000
    template = " ".join(f"<a:{number}> <a:q> ?o ." for number in range(1000))
    assert len(engine.update(f"INSERT {{ {template} }} WHERE {{ <a:1> <a:p> ?o }}").added) == 1000


def test_a_hundred_patterns_are_not_limited() -> None:
    patterns = " ".join(f"OPTIONAL {{ <a:{number}> <a:p> ?o{number} }}" for number in range(100))
    assert len(Engine().subscribe(f"SELECT * {{ {patterns} }}").first) == 1
    depth = NESTING_MAX - 10
    assert Engine().query("ASK { FILTER(" + "(" * depth + "1" + ")" * depth + ") }").to_json()["boolean"] is True


def peak_bytes(ask: Callable[[], object]) -> int:
    """Memory that Python takes meanwhile."""
    tracemalloc.start()
    try:
        with suppress(RequestError):
            ask()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@each_row("piece", ["(", "{", "[", "<< ", "!", "1 && ", "?s ?p ?o . ", "a.", "'", '\\"', "é"])
def test_a_text_is_read_up_to_the_first_limit(piece: str) -> None:
    text = "SELECT * { ?s ?p " + piece * (4_000_000 // len(piece))
    assert peak_bytes(lambda: parse_query(text)) < 3 * len(text), "the text is encoded, and little else is kept"


def test_the_tokens_of_data_are_not_kept() -> None:
    data = " ".join(f"<a:{number}> <a:p> {number} ; <a:q> [ <a:p> ({number} 'x') ] ." for number in range(1000))
    for text, kept in (
        (f"INSERT DATA {{ {data} GRAPH <a:g> {{ {data} }} }} ; DROP ALL", "INSERT DATA { } ; DROP ALL"),
        (f"INSERT {{ {data} }} WHERE {{ ?s ?p ?o }}", "INSERT { } WHERE { ?s ?p ?o }"),
        (
            f"SELECT * {{ VALUES (?a ?b) {{ {'(1 2) ' * 1000} }} ?a ?p ?b }}",
            "SELECT * { VALUES ( ?a ?b ) { } ?a ?p ?b }",
        ),
    ):
        assert " ".join(token.text for token in outside_data(tokens(text))) == kept


def test_declarations_are_repeated_up_to_a_limit() -> None:
    declared = f"PREFIX a: <http://e/{'x' * 100_000}> "
    assert len(parse_update(declared + "DROP ALL ; " * 100)) == 100
    count = REQUEST_BYTES_MAX // len(declared) + 1
    with pytest.raises(LimitExceededError, match="declarations"):
        parse_update(declared + "DROP ALL ; " * count)
