"""Updates that are read without the store's parser: what is read is what the store reads, and usual texts are read."""

from __future__ import annotations

import random
from contextlib import suppress

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import FULL
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.sparql.plain_updates import plain_data, plain_modification
from lamplighter.engine.sparql.requests import canonical, data_quads, parse_update
from lamplighter.engine.sparql.skeletons import TEXT_MAX, Lifter
from lamplighter.engine.updating.request import Request
from lamplighter.engine.updating.updates import UpdatePlans
from tests.support.tables import each_row

PREFIX = "PREFIX : <urn:x:> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>\n"
USUAL = [
    "<urn:s> <urn:p> <urn:o>",
    "<urn:s> <urn:p> <urn:o> .",
    ":s :p 1 , 1.5 , 1e3 , -1 , +2 , 007 , true , false",
    ":s a :T ; :p 'x' , \"y\"@en , \"z\"@DE-at , '5'^^xsd:int ; :q <http://a.example/b?c=d&e=%20> . :t :p :o ;",
    '<urn:s><urn:p>"o".<urn:t><urn:p>"o"',
    ':s :p "2020-01-01T00:00:00Z"^^xsd:dateTime , "2020-01-01"^^xsd:date , "\\u00e9\\n\\"" , "é"',
    "GRAPH :g { :s :p 1 }",
    "GRAPH :g { :s :p 1 . :s :p 2 . } . :s :p 3",
    ":s :p 1 . GRAPH <urn:g> { :s :p 1 } graph :h { :s :p 1 ; :q 2 } :s :q 1",
    ":s :p 1 GRAPH :g { :s :p 2 }",
    ":s :p 1 . :s :p 1 .",
    ": :p :",
]
OTHER = [
    "_:b :p 1",
    ":s :p [ :q 1 ]",
    ":s :p ( 1 2 )",
    ":s :p 1 # comment",
    "GRAPH :g { }",
    ":s :p '''long'''",
    ":s :p <<( :s :p :o )>>",
    ":s :p :a.b , :a%20b",
    "",
    # errors
    ":s :p",
    ":s :p ?v",
    ":s :p 1 ..",
    ":s :p 1 }",
    ":s :p 1 } .",
    ":s :p 1 ; , 2",
    ":s :p 1 , :q 2",
    ":s :p 1 . :q 2",
    ":s :p 1 :t :p 2",
    ":s :p none:o",
    "'s' :p 1",
    ":s 'p' 1",
    ":s :p 'a\nb'",
    ":s :p '\\q'",
    ":s :p '\ud800'",
    ":s :p 'open",
    ":s :p <urn:a b>",
    ":s :p <o>",
    ":s :p 1.",
    ":s a:p 1",
    ":s :p1.5",
    ":s :p 5x",
    "GRAPH :g { :s :p 1 GRAPH :h { :s :p 1 } }",
    "GRAPH :g { :s :p 1",
    "GRAPHx:g { :s :p 1 }",
]


def check(text: str) -> bool:
    """Whether a text is read; if so, as the store reads it, which accepts it. With and without its skeleton."""
    lifted = None
    with suppress(ValueError):
        lifted = Lifter(canonical).lift(text, ())
    results = [plain_data(text), plain_data(text, lifted)]
    for found in results:
        if found is not None:
            ox.Store().update(text)
            quads, graphs = data_quads(PREFIX, text[text.index("{") :])
            assert (set(found.quads), set(found.graphs)) == (set(quads), set(graphs)), text
    return None not in results


@each_row("data", USUAL)
def test_usual_data_is_read_as_the_store_reads_it(data: str) -> None:
    assert check(f"{PREFIX}INSERT DATA {{ {data} }}")
    assert check(f"{PREFIX}delete data{{{data} }}\n")
    assert check(f"{PREFIX}BASE <http://b.example/> INSERT DATA {{ {data} }}") is False


@each_row("data", OTHER)
def test_other_data_is_left_to_the_store(data: str) -> None:
    check_any = plain_data(f"{PREFIX}INSERT DATA {{ {data} }}")
    assert check_any is None or check(f"{PREFIX}INSERT DATA {{ {data} }}")


@each_row(
    "text",
    [
        "INSERT DATA { <a:s> <a:p> 1 } ; CLEAR ALL",
        "INSERT DATA { <a:s> <a:p> 1 } }",
        "INSERT DATA { <a:s> <a:p> 1",
        "INSERT { <a:s> <a:p> 1 } WHERE { }",
        "PREFIX x: <http://[/> INSERT DATA { <a:s> <a:p> 1 }",
        "PREFIX x: <\ud800:> INSERT DATA { <a:s> <a:p> 1 }",
        "PREFIX x: <rel> INSERT DATA { <a:s> <a:p> x:a }",
        "INSERT DATAx { <a:s> <a:p> 1 }",
        "CLEAR ALL ; INSERT DATA { <a:s> <a:p> 1 }",
        "",
    ],
)
def test_other_texts_are_not_read(text: str) -> None:
    assert plain_data(text) is None


def test_random_data_is_read_as_the_store_reads_it() -> None:
    chance = random.Random(7)
    pieces = [
        *(
            ":s",
            ":p",
            ":o",
            "a",
            "<urn:a>",
            "<http://a.example/b/../c>",
            "x:y",
            "true",
            "1",
            "-1.50",
            ".5",
            "2.",
            "1e0",
        ),
        *('"x"', "'y'", '"x"@en', '"1"^^xsd:integer', '"a"^^:d', ".", ".", ";", ",", "GRAPH", "GRAPH :g {", "}", "{"),
        *("\n", "", ".5", "?v", "_:b", "[]", "<", '"', "\\", "#"),
    ]
    read = 0
    for _ in range(6_000):
        if chance.random() < 0.5:
            words = chance.choices(pieces, k=chance.randint(1, 9))
        else:  # a usual text with some words changed
            words = chance.choice(USUAL).split()
            for _ in range(chance.randint(0, 2)):
                words[chance.randrange(len(words))] = chance.choice(pieces)
        data = chance.choice((" ", " ", "")).join(words)
        read += check(f"{PREFIX}INSERT DATA {{ {data} }}")
    assert read > 300


def test_data_is_read_in_its_order_without_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ox, "Store", None)
    text = f"{PREFIX}INSERT DATA {{ {' . '.join(f':s{number} :p {number}' for number in range(500))} }}"
    [operation] = parse_update(text)
    assert [quad.s for quad in operation.quads] == [f"<urn:x:s{number}>" for number in range(500)]  # type: ignore[union-attr]


def test_data_of_a_new_shape_asks_for_no_terms_twice() -> None:
    with Engine() as engine:
        engine.update("INSERT DATA { <a:s> <a:p> 'x' , <a:o> }")
        assert not engine._updates.plans._lifter.known[""], "terms of a shape that nobody has seen are not kept"


# --- DELETE/INSERT WHERE ------------------------------------------------------------------------------

MODIFICATIONS = [
    "DELETE { :s :p ?o } INSERT { :s :p 1 } WHERE { :s :p ?o }",
    "WITH :g DELETE { ?s :p ?o } INSERT { ?s :q ?o ; a :T . GRAPH :h { ?s :q 'x'@en } } WHERE { ?s :p ?o }",
    "INSERT { :s :p ?o , ?o , ?x } WHERE { ?x :p ?o FILTER ( ?o > 1 && ?x != :y ) }",
    "DELETE { GRAPH ?g { ?s ?p ?o } } WHERE { GRAPH ?g { ?s ?p ?o } }",
    "INSERT { :s :p :o } WHERE { }",
    "INSERT { ?s :v ?v } WHERE { { ?s :p ?v } UNION { ?s :q ?v } OPTIONAL { ?s :p/:q ?x } VALUES ?s { :a :b } }",
    "insert{?s :v ?t}where{?s :p ?o BIND(STR(?o) AS ?t)}",
    "INSERT { ?s :n ?n } WHERE { SELECT ?s (COUNT(*) AS ?n) WHERE { ?s :p ?o } GROUP BY ?s }",
]
OTHER_MODIFICATIONS = [
    "DELETE { :s :p ?o } WHERE { :s :p ?o } VALUES ?o { 1 }",
    "DELETE { :s :p ?o } WHERE { :s :p ?o } LIMIT 1",
    "DELETE { :s :p ?o } WHERE { :s :p ?o } ; CLEAR ALL",
    "DELETE { :s :p ?o } WHERE { :s :p ?o } }",
    "DELETE { :s :p ?o } } WHERE { :s :p ?o }",
    "DELETE { _:b :p ?o } WHERE { :s :p ?o }",
    "INSERT { :s :p [] } WHERE { }",
    "INSERT { :s :p ?x } DELETE { :s :p ?x } WHERE { :s :p ?x }",
    "INSERT { :s :p ?x } USING :g WHERE { :s :p ?x }",
    "INSERT { :s :p ?t } WHERE { BIND ( NOW() AS ?t ) }",
    "INSERT { :s :p ?x } WHERE { :s :p ?x FILTER NOT EXISTS { ?x :q ?y } }",
    "INSERT { :s :p ?x } WHERE { SERVICE :e { :s :p ?x } }",
    "INSERT { :s :p ?x } WHERE { :s :p ?x # } ; CLEAR ALL\n }",
    "INSERT { :s :p ?x } WHERE { :s :p ?x FILTER ( ?x <urn:a&&?y> ?z ) }",
    "INSERT { :s :p ?x } WHERE { :s :p ?x FILTER ( !!!!!!!!!!! ?x ) }",
    "INSERT { :s :p '''{''' } WHERE { }",
    "INSERT { :s :p ?x } WHERE { :s :p ?x . " + ":s :p ?x . " * 128 + "}",
    "INSERT { <urn:x-lamplighter:variable:x> :p ?x } WHERE { :s :p ?x }",
]


@each_row("text", MODIFICATIONS)
def test_usual_modifications_are_read(text: str) -> None:
    assert plain_modification(PREFIX + text) is not None


@each_row("text", OTHER_MODIFICATIONS)
def test_other_modifications_are_left_to_the_parser(text: str) -> None:
    assert plain_modification(PREFIX + text) is None
    assert plain_modification(f"BASE <http://b.example/> {text}") is None


def _outcome(engine: Engine, text: str | Request) -> object:
    try:
        delta = engine.prepare(text)
    except GatewayError as error:
        return type(error), str(error)
    return [sorted(map(str, part)) for part in delta]


def test_random_modifications_do_what_the_parsed_ones_do() -> None:
    chance = random.Random(3)
    data = ":a :p :b , 1 , 'x' . :b :p :c ; :q 2 GRAPH :g { :a :p :d } GRAPH :h { :d :q :a }"
    plain, parsed = (Engine(new_identifier=lambda: "n") for _ in range(2))
    for engine in (plain, parsed):
        engine.update(f"{PREFIX}INSERT DATA {{ {data} }}")
    pieces = [
        *(":a", ":p", "?s", "?p", "?o", "?g", "1", "'x'", "a", "<urn:a>", "_:b", "[]", "{", "}", "{ }", ".", ";", ","),
        *("GRAPH :g {", "GRAPH ?g {", "OPTIONAL {", "FILTER ( ?o > 1 )", "FILTER ( ?o < 2 )", "BIND ( 1 AS ?n )", "#"),
        *("UNION", "WHERE", "WITH :g", "VALUES ?s { :a }", "LIMIT 1", "x:y", "+", "<", "'", "SELECT * {", "MINUS {"),
    ]
    read = 0
    for _ in range(1_500):
        words = chance.choice(MODIFICATIONS).split()
        for _ in range(chance.randint(0, 3)):
            place = chance.randrange(len(words))
            words[place : place + chance.randint(0, 1)] = [chance.choice(pieces)]
        text = PREFIX + " ".join(words)
        read += plain_modification(text) is not None
        request = parsed.request(text)
        with suppress(GatewayError):
            request.check(FULL)  # it is parsed, so the other way is not tried
        expected = _outcome(parsed, request)
        plain._updates.plans = UpdatePlans(plain._store, plain._cts, Lifter(canonical), plain.work)
        assert _outcome(plain, text) == expected, text
    assert read > 300


def test_equal_quads_of_a_long_text_are_one() -> None:
    found = plain_data(f"{PREFIX}INSERT DATA {{ :s :p {' , '.join([':a'] * TEXT_MAX)} , :b }}")
    assert found is not None and [quad.o for quad in found.quads] == ["<urn:x:a>", "<urn:x:b>"]
