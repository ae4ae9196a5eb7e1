"""The delta of every kind of operation is what the raw store does with the same text."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import (
    GatewayError,
    MalformedRequestError,
    RequestSyntaxError,
    StoreError,
    UnsupportedRequestError,
)
from lamplighter.engine.slices import LONG, SLICE, Slices, distinct
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Quad
from lamplighter.engine.updating import by_store
from lamplighter.engine.updating.by_store import UsingGraphs, quad_delta, resolved
from tests.support.amounts import Amounts
from tests.support.tables import each_row

DATA = "INSERT DATA { <a:a> <a:b> <a:c>, 1, 'x' GRAPH <a:g> { <a:a> <a:b> <a:d> . <a:x> <a:b> <a:y> } }"
NOW = datetime(2026, 11, 21, 2, 0, 0, 123456, tzinfo=UTC)

OPERATIONS = [
    "INSERT DATA { <a:a> <a:b> <a:c> . <a:n> <a:b> 1.50, '01'^^<http://www.w3.org/2001/XMLSchema#int>, 'V'@EN-us }",
    "DELETE DATA { <a:a> <a:b> 01 GRAPH <a:g> { <a:a> <a:b> <a:d>, <a:missing> } }",
    "INSERT DATA { GRAPH <a:new> {} }",
    "DELETE WHERE { GRAPH ?g { ?s ?p ?o } }",
    "DELETE WHERE { ?s <a:b> ?o }",
    "DELETE { ?s ?p '01'^^<http://www.w3.org/2001/XMLSchema#integer> } WHERE { ?s ?p ?o }",
    "DELETE { ?s ?p ?o } INSERT { ?o ?p ?s } WHERE { ?s ?p ?o }",
    "DELETE { ?s ?p ?o } INSERT { ?s ?p ?o . ?s <a:again> ?o } WHERE { ?s ?p ?o }",
    "WITH <a:g> DELETE { ?s ?p ?o } INSERT { ?o ?p ?s . GRAPH <a:h> { ?s ?p ?o } } WHERE { ?s ?p ?o }",
    "INSERT { GRAPH ?g { ?s ?p 1.50 } } USING <a:g> WHERE { ?s ?p ?o GRAPH ?g { ?a ?b ?c } }",
    "INSERT { GRAPH ?g { ?s ?p 1.50 } } USING <a:g> USING NAMED <a:g> WHERE { ?s ?p ?o GRAPH ?g { ?a ?b ?c } }",
    "WITH <a:g> INSERT { ?s ?p ?g } WHERE { ?s ?p ?o GRAPH ?g { ?a ?b ?c } }",
    "INSERT { GRAPH ?o { ?s ?p 2 } } WHERE { ?s ?p ?o }",
    "INSERT { ?s <a:r> (1 [ <a:q> ?o ]) , _:x . _:x <a:t> _:y } WHERE { ?s ?p ?o FILTER(isIRI(?o)) }",
    "INSERT { << ?s ?p ?o >> <a:r> <<( ?s ?p ?o )>> } WHERE { ?s ?p ?o FILTER(isIRI(?s)) }",
    "INSERT { ?o <a:unbound> ?nothing . ?s <a:bound> 1 } WHERE { ?s ?p ?o OPTIONAL { ?o <a:none> ?nothing } }",
    "INSERT { ?s <a:sum> ?n } WHERE { SELECT ?s (COUNT(*) AS ?n) WHERE { ?s ?p ?o } GROUP BY ?s }",
    "CREATE GRAPH <a:c>",
    "CREATE SILENT GRAPH <a:g>",
    "CLEAR GRAPH <a:zz>",
    "CLEAR SILENT GRAPH <a:zz>",
    "CLEAR NAMED",
    "CLEAR DEFAULT",
    "CLEAR ALL",
    "DROP GRAPH <a:g>",
    "DROP ALL",
    "DROP DEFAULT",
    "DROP NAMED",
    "COPY <a:zz> TO <a:g>",
    "COPY SILENT <a:zz> TO <a:c>",
    "COPY DEFAULT TO <a:n>",
    "COPY <a:g> TO <a:g>",
    "MOVE <a:zz> TO <a:g>",
    "MOVE SILENT <a:zz> TO <a:c>",
    "MOVE <a:g> TO <a:n2>",
    "MOVE GRAPH <a:g> TO DEFAULT",
    "ADD <a:zz> TO <a:g>",
    "ADD <a:g> TO DEFAULT",
]


def labels() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"_:fresh{next(numbers)}"


def dataset(store: ox.Store) -> ox.Dataset:
    found = ox.Dataset(store)
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return found


def delta_of(text: str, store: QuadStore, using: UsingGraphs | None = None):
    return quad_delta(resolved(text), store, now=NOW, new_blank_node=labels(), using=using or UsingGraphs())


def test_delta_does_what_the_raw_store_does(amounts: Amounts) -> None:
    """All operations alone, and each pair as one request: same quads, same graphs, same refusals."""
    requests = [*((one,) for one in OPERATIONS), *amounts.some(list(itertools.product(OPERATIONS, repeat=2)))]
    for operations in requests:
        text = " ;\n".join(operations)
        ours, raw = QuadStore(), ox.Store()
        ours.native.update(DATA)
        raw.update(DATA)
        before = set(ours.native), set(ours.graphs())
        try:
            raw.update(text)
            refused = False
        except RuntimeError:
            refused = True
        try:
            delta = delta_of(text, ours)
        except StoreError:
            assert refused, text
            assert (set(ours.native), set(ours.graphs())) == before, text
            continue
        assert not refused, text
        assert (set(ours.native), set(ours.graphs())) == before, f"preparing changed the store: {text}"
        ours.apply(delta)
        assert dataset(ours.native) == dataset(raw), text
        assert len(ours) == len(raw), text
        if not any("_:" in name for name in ours.graphs()):
            assert set(ours.graphs()) == {str(name) for name in raw.named_graphs()}, text
        quads = {quad.to_nquads() for graph in [None, *ours.graphs()] for quad in ours.quads(graph)}
        assert {quad.to_nquads() for quad in delta.added} <= quads, text
        assert not {quad.to_nquads() for quad in delta.removed} & quads, text
        ours.apply(delta.invert())
        assert (set(ours.native), set(ours.graphs())) == before, f"the inverse does not undo: {text}"


def test_kept_quads_are_those_asserted_again() -> None:
    store = QuadStore()
    store.native.update("INSERT DATA { <a:s> <a:value> 20.5 ; <a:time> 1 }")
    delta = delta_of(
        "DELETE { <a:s> <a:value> ?v ; <a:time> ?t } INSERT { <a:s> <a:value> 20.50 ; <a:time> 2 } "
        "WHERE { <a:s> <a:value> ?v ; <a:time> ?t }",
        store,
    )
    decimal = '"20.5"^^<http://www.w3.org/2001/XMLSchema#decimal>'
    integer = '"{}"^^<http://www.w3.org/2001/XMLSchema#integer>'
    assert delta.kept == (Quad("<a:s>", "<a:value>", decimal),)
    assert delta.removed == (Quad("<a:s>", "<a:time>", integer.format(1)),)
    assert delta.added == (Quad("<a:s>", "<a:time>", integer.format(2)),)


def test_quad_deleted_and_inserted_again_by_one_request_is_no_change() -> None:
    store = QuadStore()
    store.native.update("INSERT DATA { <a:s> <a:p> 1 }")
    delta = delta_of("DELETE DATA { <a:s> <a:p> 1 } ; INSERT DATA { <a:s> <a:p> 01 }", store)
    assert not delta.changes
    assert len(delta.kept) == 1


def test_now_is_one_instant_for_the_request() -> None:
    store = QuadStore()
    delta = delta_of(
        "INSERT { <a:s> <a:p> ?t } WHERE { BIND(NOW() AS ?t) } ; "
        "INSERT { <a:s> <a:q> ?t } WHERE { BIND(now( ) AS ?t) }",
        store,
    )
    assert [quad.o for quad in delta.added] == [
        '"2026-11-21T02:00:00.123456Z"^^<http://www.w3.org/2001/XMLSchema#dateTime>'
    ] * 2


def test_each_solution_has_blank_nodes_of_its_own() -> None:
    store = QuadStore()
    delta = delta_of("INSERT { <a:s> <a:p> _:x } WHERE { VALUES ?v { 1 2 2 } }", store)
    assert [quad.o for quad in delta.added] == ["_:fresh0", "_:fresh1", "_:fresh2"]


def test_declarations_after_a_semicolon_hold_from_there_on() -> None:
    store = QuadStore()
    delta = delta_of(
        "PREFIX e: <a:> INSERT DATA { e:s e:p 1 } ; PREFIX e: <b:> PREFIX f: <c:> INSERT DATA { e:s f:p 1 }", store
    )
    assert [quad[:2] for quad in delta.added] == [("<a:s>", "<a:p>"), ("<b:s>", "<c:p>")]


def test_protocol_graphs_stand_for_using() -> None:
    store = QuadStore()
    store.native.update(DATA)
    delta = delta_of("INSERT { ?s <a:copied> ?o } WHERE { ?s ?p ?o }", store, UsingGraphs(default=("<a:g>",)))
    assert {quad.s for quad in delta.added} == {"<a:a>", "<a:x>"}
    for conflict in ("USING <a:g> WHERE", "USING NAMED <a:g> WHERE"):
        with pytest.raises(MalformedRequestError, match="using-graph-uri"):
            delta_of(f"INSERT {{ ?s <a:p> ?o }} {conflict} {{ ?s ?p ?o }}", store, UsingGraphs(default=("<a:g>",)))


@each_row(
    ("text", "line", "column"),
    [
        ("INSERT DATA { <a:a> <a:b> }", 1, 27),
        ("INSERT DATA {\n  <a:a> <a:b> }", 2, 15),
        ("PREFIX a: <a:>\nINSERT DATA { a:a a:b }", 2, 23),
        ("INSERT DATA { <a:a> <a:b> 1 } ;\nPREFIX a: <a:>\nINSERT DATA { a:a a:b }", 3, 23),
        ("\nINSRT", 2, 6),
    ],
)
def test_syntax_error_names_the_place(text: str, line: int, column: int) -> None:
    with pytest.raises(RequestSyntaxError) as caught:
        delta_of(text, QuadStore())
    assert isinstance(caught.value, SyntaxError)
    assert (caught.value.lineno, caught.value.offset) == (line, column)


@each_row(
    ("text", "reason"),
    [
        ("LOAD <http://example.org/>", "LOAD is refused"),
        ("INSERT { ?s ?p ?o } WHERE { SERVICE <http://example.org/> { ?s ?p ?o } }", "SERVICE is refused"),
        ("INSERT { ?s ?p <urn:x-lamplighter:variable:o> } WHERE { ?s ?p ?o }", "the engine's own"),
    ],
)
def test_what_is_refused_says_why(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=reason):
        delta_of(text, QuadStore())


def test_blank_node_shared_by_two_operations_is_refused_as_the_grammar_says() -> None:
    with pytest.raises(GatewayError, match="_:a"):
        delta_of("INSERT DATA { _:a <a:b> 1 } ; INSERT DATA { _:a <a:b> 1 }", QuadStore())


def test_half_a_surrogate_pair_is_an_error_and_no_crash() -> None:
    with pytest.raises(RequestSyntaxError, match="surrogate"):
        delta_of("INSERT DATA { <a:a> <a:b> '\ud800' }", QuadStore())


@each_row(
    ("insert", "instances", "added"),
    [
        ("<a:s> <a:p> ?p", 1, 1),
        ("<a:s> <a:p> 1 . <a:s> <a:q> 1", 0, 2),
        ("<a:s> <a:p> ?o", 300, 300),
        ("[] <a:p> ?p", 600, 300),
    ],
)
def test_equal_solutions_are_instantiated_once_unless_they_make_nodes(
    insert: str, instances: int, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    instance = by_store._instance

    def counted(part: str, *others: Any) -> str | None:
        made.append(part)
        return instance(part, *others)

    store = QuadStore()
    store.apply(delta_of("INSERT DATA {" + " . ".join(f"<a:s> <a:p> {number}" for number in range(300)) + "}", store))
    monkeypatch.setattr(by_store, "_instance", counted)
    delta = delta_of(f"INSERT {{ {insert.replace('<a:p>', '<a:new>')} }} WHERE {{ ?s ?p ?o }}", store)
    assert (len(made), len(delta.added)) == (instances, added)


class Announced(Slices):
    def __init__(self) -> None:
        self.begun = self.pauses = 0

    def begin(self, size: int) -> None:
        self.begun += 1

    def pause(self) -> None:
        self.pauses += 1


def test_many_graphs_are_long_work_however_few_quads_they_have() -> None:
    for count, begun in ((LONG, 0), (LONG + 1, 1)):
        store, slices = QuadStore(), Announced()
        store.apply(QuadDelta(created=tuple(f"<a:{number}>" for number in range(count))))
        delta = quad_delta(resolved("DROP NAMED"), store, now=NOW, new_blank_node=labels(), slices=slices)
        assert (len(delta.dropped), slices.begun) == (count, begun)


def test_many_equal_members_are_long_work_too() -> None:
    few, many = Announced(), Announced()
    assert distinct([1] * LONG, few) == distinct([1] * 3 * LONG, many) == {1: None}
    assert (few.begun, few.pauses) == (0, 0)
    assert many.begun > 0 and many.pauses == 2 * LONG // SLICE
