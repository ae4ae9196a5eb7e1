"""Random permissions: a client that may not do everything lives in a dataset of its permitted graphs.

The reference is the raw store filled with nothing but those graphs: queries and subscriptions give what it gives, and
nothing of a restricted update, neither its delta nor whether it is refused, depends on what is in the other graphs.
"""

from __future__ import annotations

import io
import itertools
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pyoxigraph as ox

from lamplighter.engine import Engine
from lamplighter.engine.access import FULL, Access, Graphs
from lamplighter.engine.change_log import VERSION, GraphChanges, Record, decode, encode
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import AccessDeniedError, GatewayError
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.gateway.gates.changes.forms import NdjsonForm, QuadsForm, ndjson, patches
from lamplighter.gateway.gates.changes.positions import PlainPositions, SealedPositions
from lamplighter.gateway.history.changes import LogPosition, part_of
from tests.properties.comparison import Follower, GraphOracle, coloured, in_order, rows_of, same_rows
from tests.properties.sparql_texts import NAMESPACE, Case, Step, case_of
from tests.support.amounts import Amounts
from tests.support.change_replica import Replica
from tests.support.oracle import parsed_dump, quad_texts, term_text
from tests.support.seeds import seeds

CASES = 120
NAMES = (None, *(f"<{NAMESPACE}{name}>" for name in ("g1", "g2", "g%2F2", "g3")))
MOST = 60
"""Quads beyond which a dataset is cleared."""


def permitted(random: Random, of: Graphs | None = None) -> Graphs:
    """Some graphs, the default graph mostly among them; of: some of these only."""
    names = (name for name in NAMES if of is None or name in of)
    return Graphs(frozenset(name for name in names if random.random() < (0.8 if name is None else 0.5)))


def only(engine: Engine, graphs: Graphs) -> GraphOracle:
    """A raw store with nothing but these graphs of an engine's dataset, the empty ones too."""
    oracle = GraphOracle()
    for quad in ox.parse(engine.dump(), ox.RdfFormat.N_QUADS):
        name = None if isinstance(quad.graph_name, ox.DefaultGraph) else term_text(quad.graph_name)
        if name in graphs:
            oracle._store.add(quad)
    for name in engine.store.graphs():
        if name in graphs:
            oracle._store.add_graph(ox.NamedNode(name[1:-1]))
    return oracle


def copy_of(engine: Engine, graphs: Graphs) -> Engine:
    """An engine with nothing but these graphs."""
    found = Engine()
    batches = ([quad for quad in batch if quad.g in graphs] for batch in engine.snapshot())
    found.restore([batch for batch in batches if batch], [name for name in engine.store.graphs() if name in graphs], 0)
    return found


def graphs_of(delta: QuadDelta) -> set[str | None]:
    return {
        *(quad.g for quads in (delta.removed, delta.added, delta.kept) for quad in quads),
        *delta.created,
        *delta.dropped,
    }


def outcome(engine: Engine, step: Step, access: Access) -> QuadDelta | type[Exception]:
    using = None if step.graphs is None else UsingGraphs(step.graphs[0] or (), step.graphs[1] or ())
    try:
        return engine.prepare(engine.request(step.text, using), access=access)
    except GatewayError as error:
        return type(error)


def shown(found: QuadDelta | type[Exception], known: set[str]) -> Any:
    """An outcome whose fresh blank nodes have no names."""
    if not isinstance(found, QuadDelta):
        return found
    parts = [coloured(quads, known) for quads in (found.removed, found.added, found.kept)]
    return *parts, set(found.created), set(found.dropped)


def blank_nodes(engine: Engine) -> set[str]:
    return {term for batch in engine.snapshot() for quad in batch for term in quad if term and term.startswith("_:")}


def updates(engine: Engine, case: Case) -> Iterator[Step]:
    """The steps that change the dataset, which is kept small."""
    for step in case.steps:
        if step.kind == "update":
            if engine.quad_count > MOST:
                engine.update("CLEAR ALL")
            yield step


def apply(engine: Engine, step: Step) -> Any:
    delta = outcome(engine, step, FULL)
    return engine.commit(delta) if isinstance(delta, QuadDelta) else None


def chooses(step: Step) -> bool:
    """Whether a query or the protocol names graphs to be its dataset."""
    return step.graphs is not None or re.search(r"(?i)\bFROM\b", step.text) is not None


def test_a_restricted_client_sees_the_dataset_of_its_graphs_and_no_change_elsewhere(amounts: Amounts) -> None:
    tally: Counter[str] = Counter()

    def check() -> None:
        minima = {"telescoped": 15, "re-evaluated": 60, "notified": 100, "elsewhere": 60, "denied": 3}
        for name, least in minima.items():
            assert tally[name] >= amounts.of(least), (name, tally)

    for number in seeds(amounts.of(CASES), check):
        random = Random(number)
        case = case_of(number)
        with Engine() as engine:
            followers: list[tuple[Follower, Graphs]] = []
            for step in case.steps:
                if step.kind == "subscribe":
                    if step.cut is not None:
                        continue  # rows that tie are the engine's choice: see the comparison with the oracle
                    visible = permitted(random)
                    access = Access(read=visible, subscribe=visible)
                    default, named = step.graphs or (None, None)
                    whole = only(engine, visible).query(step.text, step.graphs)
                    try:
                        answer = engine.query(step.text, default_graphs=default, named_graphs=named, access=access)
                        first = engine.subscribe(step.text, default_graphs=default, named_graphs=named, access=access)
                    except AccessDeniedError:
                        assert chooses(step), (number, step)
                        tally["denied"] += 1
                        continue
                    variables = tuple(first.first.variables)
                    rows = rows_of(first.first, variables)
                    assert same_rows(rows, in_order(whole, variables), step.text), (number, visible, step)
                    names = tuple(answer.value.variables)
                    answered, right = rows_of(answer.value, names), in_order(whole, names)
                    assert same_rows(answered, right, step.text), (number, visible, step)
                    follower = Follower(step.text, first.spuid, variables, rows, whole, step.graphs, first.spu_class)
                    followers.append((follower, visible))
                    tally[first.spu_class] += 1
                elif step.kind == "update":
                    if engine.quad_count > MOST:
                        step = Step("update", "CLEAR ALL")
                    commit = apply(engine, step)
                    if commit is None:
                        continue
                    touched = graphs_of(commit.delta._replace(kept=()))
                    for follower, visible in followers:
                        before = follower.sequence
                        follower.follow(commit.notifications)
                        expected = only(engine, visible).query(follower.text, follower.graphs)
                        right = in_order(expected, follower.variables)
                        assert same_rows(follower.rows, right, follower.text), (number, visible, follower)
                        tally["notified"] += follower.sequence - before
                        if touched and not any(graph in visible for graph in touched):
                            tally["elsewhere"] += 1
                            assert follower.sequence == before, (number, visible, follower)
    print(f"\nrestricted readers to seed {number}: {dict(tally)}")


def test_what_a_restricted_update_does_depends_on_nothing_that_it_may_not_read(amounts: Amounts) -> None:
    tally: Counter[str] = Counter()

    def check() -> None:
        for name, least in {"changes": 40, "AccessDeniedError": 100}.items():
            assert tally[name] >= amounts.of(least), (name, tally)

    for number in seeds(amounts.of(CASES), check):
        random = Random(number)
        with Engine() as engine:
            for step in updates(engine, case_of(number)):
                read = permitted(random)
                access = Access(read, permitted(random, read))
                if random.random() < 0.5:  # so that there are plans of full clients
                    outcome(engine, step, FULL)
                before, known = parsed_dump(engine.dump()), blank_nodes(engine)
                found = outcome(engine, step, access)
                assert parsed_dump(engine.dump()) == before, (number, step)  # a renewed store has another order
                with copy_of(engine, read) as apart:
                    same = outcome(apart, step, access)
                    assert shown(found, known) == shown(same, known), (number, access, step)
                    if isinstance(found, QuadDelta):
                        assert all(graph in access.write for graph in graphs_of(found)), (number, access, step)
                        full = outcome(apart, step, FULL)
                        assert shown(found, known) == shown(full, known), (number, access, step)
                        tally["changes" if found.changes else "empty"] += 1
                    else:
                        tally[found.__name__] += 1
                apply(engine, step)
    print(f"\nrestricted writers to seed {number}: {dict(tally)}")


def test_a_graph_that_may_be_written_and_not_read_is_not_seen_by_the_where(amounts: Amounts) -> None:
    tally: Counter[str] = Counter()

    def check() -> None:
        assert tally["compared"] >= amounts.of(20), tally

    for number in seeds(amounts.of(CASES // 2), check):
        random = Random(number)
        with Engine() as engine:
            for step in updates(engine, case_of(number)):
                access = Access(permitted(random))
                found = outcome(engine, step, access)
                if isinstance(found, QuadDelta):
                    # What the templates ask for is the same over the graphs that can be read; what is there, is not.
                    with copy_of(engine, access.read) as apart:
                        full = outcome(apart, step, FULL)
                    known = blank_nodes(engine)
                    assert isinstance(full, QuadDelta) or re.search(r"(?i)\b(CREATE|CLEAR|DROP)\b", step.text)
                    if isinstance(full, QuadDelta) and not re.search(r"(?i)CLEAR|DROP|COPY|MOVE|;", step.text):
                        asked = [coloured((*one.added, *one.kept), known) for one in (found, full)]
                        assert asked[0] == asked[1], (number, access, step)
                        tally["compared"] += bool(asked[0])
                apply(engine, step)


def test_a_restricted_follower_of_changes_has_the_dataset_of_its_graphs(amounts: Amounts) -> None:
    tally: Counter[str] = Counter()

    def check() -> None:
        for name, least in {"told": 200, "hidden": 20}.items():
            assert tally[name] >= amounts.of(least), (name, tally)

    for number in seeds(amounts.of(CASES), check):
        random = Random(number)
        visible = Graphs() if random.random() < 0.2 else permitted(random)
        sealed = SealedPositions(secrets.token_bytes(64), "gw-1", "anna", visible)
        positions = PlainPositions("gw-1") if visible.every else sealed
        lines, patched, at = Replica(), Replica(), LogPosition((1, 0))
        with Engine() as engine:
            steps = (step for step in case_of(number).steps if step.kind == "update")
            for sequence, step in enumerate(steps, 1):
                commit = apply(engine, step if engine.quad_count <= MOST else Step("update", "CLEAR ALL"))
                delta = QuadDelta() if commit is None else commit.delta
                record = decode(encode(record_of(sequence, delta))[:-1])
                part = part_of([record], at, (1, sequence), visible, 10)
                at = part.at
                assert part.ended and positions.read(positions.text(at)) == at
                body, patch = (write(positions, part.changes) for write in (ndjson, patches))
                lines.ndjson(body)
                patched.patches(patch.decode())
                store = only(engine, visible)._store
                expected = {quad_texts(quad) for quad in store}, {term_text(name) for name in store.named_graphs()}
                assert lines.content == patched.content == expected, (number, visible, step)
                touched = graphs_of(delta._replace(kept=()))
                if any(graph in visible for graph in touched):
                    assert body and patch, (number, visible, step)
                    tally["told"] += 1
                elif touched:
                    assert body == patch == b"", (number, visible, step)
                    tally["hidden"] += 1
                if sequence % 3 == 0:
                    for form, apply_to in ((NdjsonForm(), Replica.ndjson), (QuadsForm(), Replica.quads)):
                        copied, out = Replica(), io.BytesIO()
                        form.write(visible, engine.store.graphs(), engine.snapshot(), out)
                        apply_to(copied, out.getvalue())
                        assert copied.content == expected, (number, visible, step, form)
    print(f"\nrestricted followers to seed {number}: {dict(tally)}")


def record_of(sequence: int, delta: QuadDelta) -> Record:
    graphs = GraphChanges(delta.created, delta.dropped)
    members = {"v": VERSION, "type": "commit", "gw": "gw-1", "epoch": 1, "ts": "2026-11-21T02:00:00Z", "trusted": True}
    boot = {"boot": "boot-1", "boottime_us": sequence}
    return Record(**members, **boot, seq=sequence, graphs=graphs, d=delta.removed, a=delta.added, k=delta.kept)


def test_no_description_tells_of_a_hidden_graph(amounts: Amounts) -> None:
    random = Random(secrets.randbelow(10**9))
    with Engine() as engine:
        names = [name for name in NAMES if name is not None]
        for number, (name, subject) in enumerate(itertools.product((*names, None), "abc")):
            quad = f"<{NAMESPACE}{subject}> <{NAMESPACE}p> {number} , [ <{NAMESPACE}q> {number} ]"
            engine.update(f"INSERT DATA {{ {quad if name is None else f'GRAPH {name} {{ {quad} }}'} }}")
        for _ in range(amounts.of(50)):
            read = permitted(random)
            store = only(engine, read)._store
            for text in (
                f"DESCRIBE <{NAMESPACE}a>",
                "DESCRIBE ?s { ?s ?p ?o }",
                "DESCRIBE ?s { GRAPH ?g { ?s ?p ?o } }",
                "CONSTRUCT { ?s ?p ?o } { GRAPH ?g { ?s ?p ?o } }",
                "CONSTRUCT WHERE { ?s ?p ?o }",
            ):
                answer = engine.query(text, access=Access(read=read)).value
                assert isinstance(answer, tuple)
                triples = store.query(text)
                assert isinstance(triples, ox.QueryTriples)
                expected = {
                    tuple(map(term_text, (triple.subject, triple.predicate, triple.object))) for triple in triples
                }
                assert {quad[:3] for quad in answer} == expected, (read, text)
            for name in NAMES:
                graph = "?s ?p ?o" if name is None else f"GRAPH {name} {{ ?s ?p ?o }}"
                asked = engine.query(f"ASK {{ {graph} }}", access=Access(read=read)).value
                assert asked is (name in read)
