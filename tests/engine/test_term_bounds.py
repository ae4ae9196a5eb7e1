"""Terms that could not be read back, and triple terms that would overflow a stack, do not get into the dataset."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import repeat
from time import process_time

import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ForcedBindingError, LimitExceededError
from lamplighter.engine.protocol import results_text
from lamplighter.engine.sparql.forced_bindings import ForcedBinding, bind
from lamplighter.engine.term_bounds import (
    STATEMENT_BYTES_MAX,
    TERM_BYTES_LEAST,
    TERM_BYTES_MAX,
    TERM_BYTES_MOST,
    check_json,
    check_stored,
    check_turtle,
    depth,
)
from lamplighter.engine.terms import (
    STORED_DEPTH_MAX,
    TERM_DEPTH_MAX,
    Bag,
    Quad,
    Term,
    term_from_json,
    term_to_json,
)
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite, graph_write_delta
from tests.support.tables import each_row

DOUBLE = (
    "DELETE { <a:s> <a:p> ?o } INSERT { <a:s> <a:p> ?x } "
    "WHERE { <a:s> <a:p> ?o BIND(CONCAT(STR(?o), STR(?o), STR(?o), STR(?o), STR(?o), STR(?o), STR(?o)) AS ?x) }"
)
LONG = "x" * TERM_BYTES_MAX


def nested(levels: int, leaf: Term = '"x"') -> Term:
    for _ in range(levels):
        leaf = f"<<( <a:s> <a:p> {leaf} )>>"
    return leaf


def test_a_value_that_grows_by_updates_is_refused_when_it_is_too_long() -> None:
    """By the store at first, and then by a plan."""
    with Engine() as engine:
        engine.update('INSERT DATA { <a:s> <a:p> "0123456789" }')
        for _ in range(5):
            engine.update(DOUBLE)
        before = engine.dump()
        for _ in range(3):
            with pytest.raises(LimitExceededError, match=r"limits\.term_bytes_max = 1048576"):
                engine.update(DOUBLE)
        engine.store.flush()
        assert engine.dump() == before
        assert engine.sequence == 6


@each_row("times", [1, 3])
@each_row(
    "text",
    [
        'INSERT DATA { <a:s> <a:p> "LONG" }',
        "INSERT DATA { <a:s> <a:p> <a:LONG> }",
        "INSERT DATA { <a:LONG> <a:p> 1 }",
        "INSERT DATA { <a:s> <a:LONG> 1 }",
        "INSERT DATA { GRAPH <a:LONG> { <a:s> <a:p> 1 } }",
        'DELETE DATA { <a:s> <a:p> "LONG" }',
        'INSERT { ?s <a:p> "LONG" } WHERE { ?s ?p ?o }',
        'INSERT { ?s <a:p> ?long } WHERE { ?s ?p ?o BIND(REPLACE("aaaaaaaa", "a", "LONG") AS ?long) }',
        'INSERT { ?s <a:p> <<( ?s ?p ?long )>> } WHERE { ?s ?p ?o BIND("LONG" AS ?long) }',
        'DELETE { ?s <a:p> ?long } WHERE { ?s ?p ?o BIND(CONCAT("LONG", "x") AS ?long) }',
        "CREATE GRAPH <a:LONG>",
        "COPY DEFAULT TO <a:LONG>",
        "MOVE DEFAULT TO <a:LONG>",
        "ADD DEFAULT TO <a:LONG>",
        "WITH <a:LONG> INSERT { <a:s> <a:p> 1 } WHERE { }",
    ],
)
def test_no_update_brings_in_a_long_term(text: str, times: int) -> None:
    with Engine(new_identifier=iter(map(str, range(100))).__next__, term_bytes_max=TERM_BYTES_LEAST) as engine:
        engine.update("INSERT DATA { <a:s> <a:q> 1 }")
        before = engine.dump()
        for _ in repeat(None, times):
            with pytest.raises(LimitExceededError, match=r"limits\.term_bytes_max"):
                engine.update(text.replace("LONG", "x" * TERM_BYTES_LEAST))
        assert engine.dump() == before


def test_the_length_is_that_in_bytes() -> None:
    with Engine(term_bytes_max=TERM_BYTES_LEAST) as engine:
        engine.update(f'INSERT DATA {{ <a:s> <a:p> "{"é" * 131_071}" }}')
        for text in ("é" * 131_072, "\\\\" * 131_072, "\\u0001" * 44_000):
            with pytest.raises(LimitExceededError, match=r"limits\.term_bytes_max = 262144"):
                engine.update(f'INSERT DATA {{ <a:s> <a:p> "{text}" }}')


def test_a_document_with_a_long_term_is_refused() -> None:
    with Engine() as engine:
        for size in (TERM_BYTES_MAX, 17 * 1024 * 1024):
            with pytest.raises(LimitExceededError):
                engine.load(f'<a:s> <a:p> "{"x" * size}" .'.encode())
        quad = Quad("<a:s>", "<a:p>", f'"{LONG}"', "<a:g>")
        for verb in (GraphVerb.REPLACE, GraphVerb.ADD):
            with pytest.raises(LimitExceededError, match=r"limits\.term_bytes_max"):
                graph_write_delta(engine.store, GraphWrite(verb, "<a:g>", (quad,)))
        assert engine.quad_count == 0


def test_four_of_the_longest_terms_that_may_be_allowed_are_read_back() -> None:
    with Engine(term_bytes_max=TERM_BYTES_MOST) as engine:
        long = "x" * (TERM_BYTES_MOST - 4)
        engine.load(f'<a:s{long[2:]}> <a:p{long[2:]}> "{long}xx" <a:g{long[2:]}> .'.encode(), "application/n-quads")
        engine.store.flush()
        [batch] = engine.snapshot()
        check_stored(batch)
        with Engine() as other:
            other.restore([batch], engine.store.graphs(), 1)
            assert other.store.contains(batch) == [True]


def test_what_could_not_be_read_back_is_no_record() -> None:
    half = "x" * (STATEMENT_BYTES_MAX // 2)
    check_stored([Quad(f"<a:{half[:-100]}>", "<a:p>", f'"{half}"')])
    with pytest.raises(ValueError, match="bytes"):
        check_stored([Quad(f"<a:{half}>", "<a:p>", f'"{half}"')])
    check_stored([Quad("<a:s>", "<a:p>", nested(STORED_DEPTH_MAX))])
    with pytest.raises(ValueError, match="201 deep"):
        check_stored([Quad("<a:s>", "<a:p>", nested(STORED_DEPTH_MAX + 1))])


# --- depth ---


def test_triple_terms_do_not_grow_beyond_the_limit_by_updates() -> None:
    with Engine() as engine:
        engine.update('INSERT DATA { <a:s> <a:p> "x" }')
        deepen = f"DELETE {{ ?s <a:p> ?o }} INSERT {{ ?s <a:p> {nested(20, '?o')} }} WHERE {{ ?s <a:p> ?o }}"
        engine.update(deepen)
        engine.update(deepen)
        [(term,)] = engine.subscribe("SELECT ?o { ?s ?p ?o }").first.rows
        assert term == nested(40)
        for text in (
            deepen,
            deepen,
            "INSERT { ?s <a:p> ?t } WHERE { ?s <a:p> ?o BIND(TRIPLE(<a:s>, <a:p>, ?o) AS ?t) }",
        ):
            for _ in range(12):
                try:
                    engine.update(text)
                except LimitExceededError as error:
                    assert "nested 5" in str(error) or "nested 6" in str(error)
        deepest = max(depth(quad.o) for quad in engine.store.quads(None))
        assert deepest == TERM_DEPTH_MAX
        results_text(engine.query("SELECT * { ?s ?p ?o }").value)  # type: ignore[arg-type]


@each_row("levels", [TERM_DEPTH_MAX + 1, 90, 3000, 25_000])
def test_documents_with_triples_nested_too_deep_are_refused(levels: int) -> None:
    """The native parser takes 25,000 of them for the end of the process."""
    reified = "<< " * levels + "<a:s>" + " <a:p> <a:o> >>" * levels
    lied = "<<( <a:s> <a:p> # )>> \n" * levels + "<a:o>" + " )>>" * levels
    for object_ in (nested_text(levels), reified, lied):
        document = f"<a:s> <a:p> {object_} ."
        for media_type in ("application/n-triples", "application/n-quads", "text/turtle", "application/trig"):
            with pytest.raises(LimitExceededError, match=f"nested {levels} deep"):
                Engine().load(document.encode(), media_type)
        with pytest.raises(LimitExceededError, match="nested"):
            Engine().update(f"INSERT DATA {{ {document} }}")
        with pytest.raises(LimitExceededError, match="nested"):
            Engine().query(f"SELECT * {{ VALUES ?x {{ {object_} }} }}")


def nested_text(levels: int) -> str:
    return "<<( <a:s> <a:p> " * levels + "<a:o>" + " )>>" * levels


def test_as_deep_as_allowed_is_good_everywhere() -> None:
    term = nested(TERM_DEPTH_MAX)
    with Engine() as engine:
        subscription = engine.subscribe("SELECT * { ?s ?p ?o }")
        commit = engine.load(f"<a:s> <a:p> {term} .".encode())
        assert [quad.o for quad in commit.added] == [term]
        [notification] = commit.notifications
        assert notification.spuid == subscription.spuid
        text = results_text(notification.added)
        assert Bag.from_json(json.loads(text)) == notification.added
        engine.update(f"DELETE DATA {{ <a:s> <a:p> {term} }}")
        assert engine.quad_count == 0


def test_triples_beside_each_other_are_as_many_as_anybody_wants() -> None:
    document = "".join(f'<a:s> <a:p> <<( <a:{number}> <a:p> "<<( <<(" )>> . # << <<\n' for number in range(2000))
    with Engine() as engine:
        assert len(engine.load(document.encode()).added) == 2000
    check_turtle(document)


def test_json_of_deep_terms_needs_no_deep_stack() -> None:
    member: object = {"type": "uri", "value": "a:o"}
    term = nested(STORED_DEPTH_MAX, "<a:o>")
    for _ in range(STORED_DEPTH_MAX):
        subject, predicate = ({"type": "uri", "value": value} for value in ("a:s", "a:p"))
        member = {"type": "triple", "value": {"subject": subject, "predicate": predicate, "object": member}}
    assert isinstance(member, dict)
    assert term_to_json(term) == member
    assert term_from_json(member) == term
    with pytest.raises(ValueError, match="nested"):
        term_from_json({"type": "triple", "value": {"subject": subject, "predicate": predicate, "object": member}})
    rows = Bag(("x",), [(term,)])
    assert json.loads(results_text(rows))["results"]["bindings"] == [{"x": member}]


def test_a_forced_binding_is_not_too_deep() -> None:
    deep = term_to_json(nested(TERM_DEPTH_MAX + 1, "<a:o>"))
    with pytest.raises(ValueError, match="nested 51 deep"):
        ForcedBinding().term(deep, str)
    with pytest.raises(ForcedBindingError, match="nested"):
        bind("SELECT * { ?s ?p ?x }", {"x": nested(TERM_DEPTH_MAX + 1)})


def test_json_documents_are_not_nested_too_deep() -> None:
    check_json(b'{"a:": [' * 100 + b'"]]]][[[["' + b"]}" * 100)
    with pytest.raises(LimitExceededError, match="202 deep"):
        check_json(b'{"a:": [' * 101 + b"]}" * 101)


@each_row("scrap", ['\\"""', "\\'''", '"', "'", "<", "#", '"""', "<<", "\\", "<a:", '""', '"""\\"'])
def test_scans_are_linear(scrap: str) -> None:
    """Twice the document is twice the work, within a wide margin."""

    def cost(size: int) -> float:
        document = ("<< " * (TERM_DEPTH_MAX + 1) + " >>" * (TERM_DEPTH_MAX + 1)).encode()[: 3 * TERM_DEPTH_MAX]
        data = document + b" << " + scrap.encode() * size
        best = 9e9
        for _ in range(3):
            begun = process_time()
            for check in (check_turtle, check_json):
                with suppress(LimitExceededError):
                    check(data)
            best = min(best, process_time() - begun)
        return best

    small, large = cost(5_000), cost(40_000)
    assert large < 30 * small + 0.01
