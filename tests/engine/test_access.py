"""What a client that may not do everything is told, and that it is the same whatever is in the graphs it may not see.

Random cases are in `tests/properties/test_access_oracle.py`.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import EVERY, FULL, Access, Dataset, Graphs
from lamplighter.engine.errors import AccessDeniedError, LimitExceededError, RequestSyntaxError, StoreError
from lamplighter.engine.terms import lexical
from lamplighter.engine.updating.by_store import UsingGraphs
from tests.support.signatures import signature
from tests.support.tables import each_row

A, B, C = "<http://e/a>", "<http://e/b>", "<http://e/c>"
DATA = f"INSERT DATA {{ <s:1> <p:> 0 GRAPH {A} {{ <s:1> <p:> 1 }} GRAPH {B} {{ <s:1> <p:> 2 }} }}"


def graphs(*names: str | None) -> Graphs:
    return Graphs(frozenset(names))


READS_A = Access(read=graphs(A), write=graphs(A), subscribe=graphs(A))
"""Nothing but the graph A."""


@pytest.fixture
def engine() -> Engine:
    found = Engine()
    found.update(DATA)
    return found


def test_a_graph_is_in_both_sets_or_in_none() -> None:
    names = (None, A, B, "<urn:lamplighter:inferred:x>")
    sets = [
        Graphs(),
        Graphs(asserted=True),
        graphs(),
        graphs(A),
        graphs(A, None),
        graphs(B),
        Graphs(graphs(A).names, asserted=True),
    ]
    for one in sets:
        for other in sets:
            assert [name in one & other for name in names] == [name in one and name in other for name in names]
            both = Access(one, other, one) & Access(other, one, EVERY)
            assert both == Access(one & other, other & one, one)


def objects(engine: Engine, text: str, access: Access, **dataset: tuple[str, ...]) -> set[str]:
    rows = engine.query(text, access=access, **dataset).to_json()["results"]["bindings"]  # type: ignore[arg-type,index]
    return {row["o"]["value"] for row in rows}


def test_a_set_of_graphs_holds_its_members_or_every_graph() -> None:
    assert A in graphs(A) and B not in graphs(A) and None not in graphs(A)
    assert None in graphs(None) and A not in graphs(None)
    assert A in EVERY and None in EVERY and "<http://e/not-there-yet>" in EVERY
    assert not graphs().every and EVERY.every and FULL.full and not READS_A.full


@pytest.mark.parametrize(
    ("access", "default", "named"),
    [
        (graphs(A), set(), {"1"}),
        (graphs(None), {"0"}, set()),
        (graphs(None, B), {"0"}, {"2"}),
        (graphs(None, C), {"0"}, set()),
        (graphs(), set(), set()),
        (EVERY, {"0"}, {"1", "2"}),
    ],
)
def test_a_query_sees_the_permitted_graphs(engine: Engine, access: Graphs, default: set[str], named: set[str]) -> None:
    reads = Access(read=access)
    assert objects(engine, "SELECT ?o { ?s ?p ?o }", reads) == default
    assert objects(engine, "SELECT ?o { GRAPH ?g { ?s ?p ?o } }", reads) == named
    assert objects(engine, f"SELECT ?o {{ GRAPH {B} {{ ?s ?p ?o }} }}", reads) == ({"2"} & named)
    assert len(engine.query("SELECT ?g { GRAPH ?g { } }", access=reads).value) == len(named)  # type: ignore[arg-type]


def test_a_chosen_graph_that_is_permitted_is_the_dataset(engine: Engine) -> None:
    assert objects(engine, f"SELECT ?o FROM {A} {{ ?s ?p ?o }}", READS_A) == {"1"}
    assert objects(engine, "PREFIX e: <http://e/> SELECT ?o FROM NAMED e:a { GRAPH ?g { ?s ?p ?o } }", READS_A) == {"1"}
    assert objects(engine, "SELECT ?o { ?s ?p ?o }", READS_A, default_graphs=(A,)) == {"1"}
    # Only the default graph is chosen, so the named graphs are those that can be read.
    assert objects(engine, "SELECT ?o { GRAPH ?g { ?s ?p ?o } }", READS_A, default_graphs=(A,)) == {"1"}


@pytest.mark.parametrize("graph", [B, C])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM %s { ?s ?p ?o }",
        f"SELECT * FROM {A} FROM NAMED %s {{ ?s ?p ?o }}",
        f"SELECT * FROM {A}\n#\nfrom%s {{ ?s ?p ?o }}",
        "ASK FROM %s { ?s ?p ?o }",
        "DESCRIBE ?s FROM %s { ?s ?p ?o }",
        "CONSTRUCT FROM %s WHERE { ?s ?p ?o }",
    ],
)
def test_a_chosen_graph_that_is_not_permitted_is_named_whether_it_exists_or_not(
    engine: Engine, text: str, graph: str
) -> None:
    with pytest.raises(AccessDeniedError, match=f"^this client may not read the graph {graph}; the operator"):
        engine.query(text % graph, access=READS_A)


@pytest.mark.parametrize("graph", [B, C])
def test_a_graph_that_the_protocol_chooses_is_checked_too(engine: Engine, graph: str) -> None:
    for dataset in ({"default_graphs": (graph,)}, {"named_graphs": (A, graph)}):
        with pytest.raises(AccessDeniedError, match=graph):
            engine.query("ASK { }", access=READS_A, **dataset)  # type: ignore[arg-type]
        with pytest.raises(AccessDeniedError, match="subscribe to"):
            engine.subscribe("SELECT * { ?s ?p ?o }", access=READS_A, **dataset)  # type: ignore[arg-type]
    with pytest.raises(AccessDeniedError, match=graph):
        engine.prepare(engine.request("INSERT { } WHERE { }", UsingGraphs((graph,))), access=READS_A)


def test_a_name_that_is_none_is_a_syntax_error(engine: Engine) -> None:
    for text in ("SELECT * FROM e:x { ?s ?p ?o }", "SELECT * FROM"):
        with pytest.raises(RequestSyntaxError):
            engine.subscribe(text, access=READS_A)


def test_subscribing_and_reading_are_permitted_apart(engine: Engine) -> None:
    access = Access(read=graphs(None), subscribe=graphs(A))
    text = "SELECT ?o { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"
    assert objects(engine, text, access) == {"0"}
    first = engine.subscribe(text, access=access)
    assert [row[0] for row in first.first] == ['"1"^^<http://www.w3.org/2001/XMLSchema#integer>']


def test_who_asks_for_permitted_graphs_alone_shares_the_plan_of_all_others(engine: Engine) -> None:
    text = f"SELECT ?o {{ GRAPH {A} {{ ?s <p:> ?o }} }}"
    everybody = engine.subscribe(text)
    restricted = engine.subscribe(text, access=READS_A)
    assert restricted.spu_class == everybody.spu_class == "telescoped"
    assert len(engine._subscriptions._shapes.by_key) == 1
    # The shape has plans for every graph; that must not show it another one.
    hidden = engine.subscribe(f"SELECT ?o {{ GRAPH {B} {{ ?s <p:> ?o }} }}", access=READS_A)
    assert not hidden.first and hidden.spu_class == "re-evaluated"
    whole = engine.subscribe("SELECT ?o { ?s <p:> ?o }", default_graphs=(A,))
    shapes = len(engine._subscriptions._shapes.by_key)
    chosen = engine.subscribe("SELECT ?o { ?s <p:> ?o }", default_graphs=(A,), access=READS_A)
    assert len(engine._subscriptions._shapes.by_key) == shapes
    assert chosen.first.rows == restricted.first.rows and chosen.spu_class == "telescoped"
    for spuid in (whole.spuid, chosen.spuid):
        engine.unsubscribe(spuid)
    commit = engine.update(f"INSERT DATA {{ GRAPH {B} {{ <s:2> <p:> 3 }} GRAPH {A} {{ <s:2> <p:> 4 }} }}")
    assert len(commit.notifications) == 2


def test_a_subscription_to_named_graphs_and_a_default_graph_sees_no_others(engine: Engine) -> None:
    text = "SELECT ?o { { ?s <p:> ?o } UNION { GRAPH ?g { ?s <p:> ?o } } }"
    access = Access(subscribe=graphs(A, B))
    chosen = engine.subscribe(text, default_graphs=(A,), named_graphs=(B,), access=access)
    assert sorted(lexical(o or "") for (o,) in chosen.first.rows) == ["1", "2"]
    assert not engine.update(f"INSERT DATA {{ <s:2> <p:> 3 GRAPH {C} {{ <s:2> <p:> 4 }} }}").notifications
    [notification] = engine.update(f"INSERT DATA {{ GRAPH {B} {{ <s:2> <p:> 5 }} }}").notifications
    assert [lexical(o or "") for (o,) in notification.added.rows] == ["5"]


def test_what_is_visible_makes_no_more_changes_look_relevant() -> None:
    for where in ("?s <p:> ?o", f"GRAPH {A} {{ ?s <p:> ?o }}", "GRAPH ?g { ?s <p:> ?o }"):
        text = f"SELECT ?o {{ {where} }}"
        assert signature(text, Dataset(visible=graphs(None, A))) == signature(text)


def test_a_graph_that_comes_into_being_is_seen_by_those_who_may(engine: Engine) -> None:
    text = "SELECT ?g { GRAPH ?g { } }"
    sees, blind = (engine.subscribe(text, access=Access(subscribe=graphs(name))) for name in (C, B))
    assert not sees.first and len(blind.first) == 1
    commit = engine.update(f"CREATE GRAPH {C}")
    assert [one.spuid for one in commit.notifications] == [sees.spuid]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("graph", [B, C])
@pytest.mark.parametrize(
    "text",
    [
        "INSERT DATA { GRAPH %s { <s:1> <p:> 2 } }",
        "INSERT DATA { GRAPH %s { <s:1> <p:> 9 } }",
        "DELETE DATA { GRAPH %s { <s:1> <p:> 2 } }",
        "DELETE DATA { GRAPH %s { <s:1> <p:> 9 } }",
        f"INSERT {{ GRAPH %s {{ <s:1> <p:> ?o }} }} WHERE {{ GRAPH {A} {{ ?s <p:> ?o }} }}",
        f"DELETE {{ GRAPH %s {{ ?s <p:> ?o }} }} WHERE {{ GRAPH {A} {{ ?s <p:> ?o }} }}",
        f"INSERT DATA {{ GRAPH {A} {{ <s:1> <p:> 8 }} }} ; DELETE DATA {{ GRAPH %s {{ <s:1> <p:> 9 }} }}",
        "INSERT DATA { GRAPH %s { <s:1> <p:> 8 } } ; DELETE DATA { GRAPH %s { <s:1> <p:> 8 } }",
        "WITH %s DELETE { ?s <p:> ?o } WHERE { ?s <p:> ?o }",
        "WITH %s INSERT { <s:1> <p:> 1 } WHERE { }",
        f"INSERT {{ GRAPH {A} {{ ?s <p:> ?o }} }} USING %s WHERE {{ ?s <p:> ?o }}",
        f"INSERT {{ GRAPH {A} {{ ?s <p:> ?o }} }} USING {A} USING NAMED %s WHERE {{ ?s <p:> ?o }}",
        "CREATE GRAPH %s",
        "CREATE SILENT GRAPH %s",
        "DROP GRAPH %s",
        "CLEAR SILENT GRAPH %s",
        f"COPY %s TO {A}",
        f"ADD SILENT %s TO {A}",
        f"MOVE %s TO {A}",
        f"COPY {A} TO %s",
        f"MOVE {A} TO %s",
        "ADD %s TO %s",
    ],
)
def test_a_refused_update_changes_nothing_and_says_the_same_whether_the_graph_exists(
    engine: Engine, text: str, graph: str, times: int
) -> None:
    text = text.replace("%s", graph)
    for _ in range(times - 1):  # so that it is known, and has a plan
        with suppress(StoreError):
            engine.prepare(text.replace(graph, A), access=FULL)
    before = engine.dump()
    with pytest.raises(AccessDeniedError, match=f"^this client may not (read|write) the graph {graph}; the operator"):
        engine.update(text, access=READS_A)
    assert engine.dump() == before


@pytest.mark.parametrize("text", ["CREATE GRAPH %s", "DROP GRAPH %s", "CLEAR GRAPH %s", "COPY %s TO %s"])
@pytest.mark.parametrize("graph", [B, C])
def test_who_may_write_a_graph_and_not_read_it_is_not_told_whether_it_exists(
    engine: Engine, text: str, graph: str
) -> None:
    text = text.replace("%s", A, 1).replace("%s", graph) if "TO" in text else text.replace("%s", graph)
    engine.update(text, access=Access(read=graphs(A), write=graphs(A, B, C)))
    with pytest.raises(StoreError):  # who may read it is
        engine.update(f"CREATE GRAPH {A}", access=Access(read=graphs(A), write=graphs(A)))


@each_row(
    ("text", "graph"),
    [
        (f"INSERT DATA {{ GRAPH {A} {{ <s:1> <p:> 1 }} GRAPH {B} {{ <s:1> <p:> 1 }} }}", B),
        (f"DELETE DATA {{ GRAPH {B} {{ <s:1> <p:> 1 }} }}", B),
        (f"INSERT {{ GRAPH ?g {{ ?s ?p 1 }} GRAPH {B} {{ ?s ?p 1 }} }} WHERE {{ GRAPH ?g {{ ?s ?p ?o }} }}", B),
        (f"WITH {B} DELETE {{ ?s ?p ?o }} WHERE {{ ?s ?p ?o }}", B),
        (f"DELETE {{ GRAPH {A} {{ ?s ?p ?o }} }} USING {B} WHERE {{ ?s ?p ?o }}", B),
        (f"DELETE {{ GRAPH {A} {{ ?s ?p ?o }} }} USING NAMED {B} WHERE {{ GRAPH ?g {{ ?s ?p ?o }} }}", B),
        ("DELETE WHERE { ?s ?p ?o }", "the default graph"),
        (f"MOVE {A} TO {B}", B),
        (f"COPY {B} TO {A}", B),
        (f"CLEAR GRAPH {A} ; DROP SILENT GRAPH {B}", B),
        (f"INSERT {{ GRAPH ?g {{ ?s ?p 1 }} }} WHERE {{ GRAPH ?g {{ ?s ?p ?o }} }} ; CLEAR GRAPH {A}", ""),
        (f"WITH {A} DELETE {{ ?s ?p ?o }} WHERE {{ ?s ?p ?o }} ; DELETE WHERE {{ GRAPH ?g {{ ?s ?p ?o }} }}", ""),
    ],
)
def test_what_an_update_names_is_judged_before_it_is_evaluated(text: str, graph: str) -> None:
    request = Engine().request(text)
    request.check(FULL)
    if graph:
        with pytest.raises(AccessDeniedError, match=graph):
            request.check(READS_A)
    else:
        request.check(READS_A)
    with pytest.raises(AccessDeniedError, match="may not write any graph"):
        request.check(Access(write=graphs()))


@pytest.mark.parametrize("target", ["ALL", "NAMED", "DEFAULT"])
@pytest.mark.parametrize("verb", ["CLEAR", "DROP"])
def test_graphs_are_cleared_together_by_who_may_write_all(engine: Engine, verb: str, target: str) -> None:
    everything_but_one = Access(write=graphs(A, B, C))
    with pytest.raises(AccessDeniedError):
        engine.update(f"{verb} {target}", access=everything_but_one)
    if target != "DEFAULT":
        with pytest.raises(AccessDeniedError, match="may not write every graph"):
            engine.update(f"{verb} SILENT {target}", access=Access(write=graphs(None, A, B)))
    assert engine.update(f"{verb} {target}", access=Access(read=graphs(), write=EVERY)).removed


def test_what_it_does_where_it_may_is_done(engine: Engine) -> None:
    assert engine.update(f"DELETE WHERE {{ GRAPH {A} {{ ?s ?p ?o }} }}", access=READS_A).removed
    assert engine.update(f"INSERT DATA {{ GRAPH {A} {{ <s:5> <p:> 5 }} }}", access=READS_A).added
    assert engine.update(f"WITH {A} INSERT {{ ?s <q:> ?o }} WHERE {{ ?s <p:> ?o }}", access=READS_A).added
    assert engine.update(f"CLEAR GRAPH {A}", access=READS_A).removed
    copies = Access(read=graphs(B), write=graphs(A))
    assert len(engine.update(f"COPY {B} TO {A}", access=copies).added) == 1
    with pytest.raises(AccessDeniedError, match="write"):
        engine.update(f"MOVE {B} TO {A}", access=copies)


def test_a_plan_of_a_full_client_shows_a_restricted_one_nothing(engine: Engine) -> None:
    text = f"INSERT {{ GRAPH {A} {{ ?s <q:> ?o }} }} WHERE {{ GRAPH ?g {{ ?s <p:> ?o }} }}"
    for _ in range(3):
        assert len(engine.prepare(text).added) == 2
    assert engine.request(text).evaluations() == [] and len(engine.request(text).evaluations(READS_A)) == 1
    assert len(engine.prepare(text, access=READS_A).added) == 1
    hidden = f"INSERT {{ GRAPH {A} {{ ?s <q:> ?o }} }} WHERE {{ GRAPH %s {{ ?s <p:> ?o }} }}"
    for _ in range(3):
        assert engine.prepare(hidden % B).added
    assert not engine.prepare(hidden % B, access=READS_A).added
    assert engine.prepare(hidden % A, access=READS_A).added
    assert engine.request(hidden % A).evaluations(READS_A) == []


# --- limits.delta_quads_max ---


def chain(engine: Engine, length: int) -> None:
    engine.update(
        f"INSERT DATA {{ {' '.join(f'<n:{number}> <next:> <n:{number + 1}> .' for number in range(length))} }}"
    )


PRODUCT = "INSERT { ?a <all:> ?d } WHERE { ?a <next:> ?b . ?c <next:> ?d }"


@each_row("times", [1, 2, 3])
@each_row(("size", "most"), [(3, 9), (3, 8), (10, 100), (10, 99)])
def test_templates_make_as_many_quads_as_the_limit_and_no_more(size: int, most: int, times: int) -> None:
    engine = Engine(delta_quads_max=most)
    for _ in range(times - 1):  # from the second time on by a plan
        engine.prepare(PRODUCT)
    chain(engine, size)
    assert (engine.request(PRODUCT).evaluations() == []) == (times > 1)
    before = engine.dump()
    if most >= size * size:
        assert len(engine.prepare(PRODUCT).added) == size * size
    else:
        with pytest.raises(LimitExceededError, match=f"limits.delta_quads_max = {most} quads"):
            engine.update(PRODUCT)
    assert engine.dump() == before


@pytest.mark.parametrize("times", [1, 3])
def test_all_templates_and_operations_of_a_request_count(times: int) -> None:
    engine = Engine(delta_quads_max=12)
    both = "DELETE { ?a <x:> ?b } INSERT { ?a <y:> ?b . ?a <z:> ?b } WHERE { ?a <next:> ?b }"  # 9 quads
    one = "INSERT { ?a <w:> ?b } WHERE { ?a <next:> ?b }"  # 3 quads
    for _ in range(times - 1):
        engine.prepare(f"{both} ; {one}")
        engine.prepare(f"{both} ; {one} ; {one}")
    chain(engine, 3)
    assert (engine.request(f"{both} ; {one} ; {one}").evaluations() == []) == (times > 1)
    assert len(engine.prepare(f"{both} ; {one}").added) == 9
    with pytest.raises(LimitExceededError):
        engine.prepare(f"{both} ; {one} ; {one}")
    # Data that stands in the text, and whole graphs, are as large as they are.
    engine.update("INSERT DATA { " + " ".join(f"<d:{number}> <d:> 1 ." for number in range(30)) + " }")
    assert len(engine.update("CLEAR ALL").removed) == 33


def test_a_product_is_given_up_before_its_solutions_are_in_memory() -> None:
    engine = Engine(delta_quads_max=1000)
    chain(engine, 300)
    rows: list[int] = []

    def counted(text: str, select: object) -> object:
        result = select()  # type: ignore[operator]
        rows.append(len(result))
        return result

    engine.store.around_select = counted  # type: ignore[assignment]
    with pytest.raises(LimitExceededError):
        engine.update("INSERT { ?a ?b ?c } WHERE { ?a ?x ?y . ?z ?b ?w . ?u ?v ?c }")  # 27 million solutions
    assert rows == [1001]


def test_who_may_write_what_it_may_not_read_is_blind() -> None:
    some, more = Graphs(frozenset({None})), Graphs(frozenset({None, "<a:g>"}))
    assert Access(some, more).blind and Access(some, EVERY).blind
    assert not Access(more, some).blind and not Access(EVERY, EVERY).blind and not Access(some, some).blind
