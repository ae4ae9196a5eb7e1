"""The engine takes one call at a time, none after it is closed, and no delta that does not fit its dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.core import Commit
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import EngineStateError, ListenerError
from lamplighter.engine.terms import Quad
from tests.support.tables import each_row

QUAD = Quad("<urn:s>", "<urn:p>", "<urn:o>", None)
INSERT = "INSERT DATA { <urn:s> <urn:p> <urn:o> }"


@each_row(
    "call",
    [
        lambda engine: engine.update(INSERT),
        lambda engine: engine.prepare(INSERT),
        lambda engine: engine.load(b"<urn:s> <urn:p> <urn:o> ."),
        lambda engine: engine.commit(QuadDelta(added=(QUAD,))),
        lambda engine: engine.converge(QuadDelta(added=(QUAD,))),
        lambda engine: engine.advance(),
        lambda engine: engine.infer([None]),
        lambda engine: engine.subscribe("SELECT * { ?s ?p ?o }"),
        lambda engine: engine.query("ASK {}"),
    ],
)
def test_a_closed_engine_takes_no_calls(tmp_path: Path, call: Callable[[Engine], object]) -> None:
    for path in (None, tmp_path / "store"):
        engine = Engine(store_path=path)
        engine.close()
        engine.close()
        with pytest.raises(EngineStateError, match="closed"):
            call(engine)
        assert (engine.quad_count, engine.dump()) == (0, b"")


def test_a_stale_delta_is_refused_and_changes_nothing() -> None:
    engine = Engine()
    first, second = engine.prepare(INSERT), engine.prepare(INSERT)
    engine.commit(first)
    with pytest.raises(EngineStateError, match="prepare it again"):
        engine.commit(second)
    assert (engine.quad_count, engine.sequence) == (1, 1)
    engine.commit(engine.prepare(INSERT))
    assert engine.quad_count == 1


@each_row(
    "delta", [QuadDelta(added=(QUAD,)), QuadDelta(removed=(QUAD._replace(o='"1"'),)), QuadDelta(dropped=("<urn:g>",))]
)
def test_a_delta_from_elsewhere_has_to_be_exact(delta: QuadDelta) -> None:
    engine = Engine()
    engine.update(INSERT)
    with pytest.raises(EngineStateError, match="converge"):
        engine.commit(delta)
    assert engine.quad_count == 1
    assert engine.converge(delta).delta == QuadDelta()
    assert engine.commit(QuadDelta(removed=(QUAD,))).removed == (QUAD,)
    assert engine.quad_count == 0


def test_a_delta_of_another_engine_is_taken_where_it_is_exact() -> None:
    first, second = Engine(), Engine()
    first.update("INSERT DATA { <urn:more> <urn:p> 1 }")
    delta = first.update(INSERT).delta
    assert second.commit(delta).added == (QUAD,)
    with pytest.raises(EngineStateError):
        second.commit(delta)
    assert second.quad_count == 1


@each_row(
    "call",
    [
        lambda engine: engine.update("INSERT DATA { <urn:a> <urn:b> 1 }"),
        lambda engine: engine.subscribe("SELECT * { ?a ?b ?c }"),
        lambda engine: engine.commit(QuadDelta()),
        lambda engine: engine.advance(),
    ],
)
def test_a_listener_cannot_change_the_engine(call: Callable[[Engine], object]) -> None:
    engine = Engine()
    commits: list[Commit] = []
    engine.listen(lambda commit: call(engine))
    engine.listen(commits.append)
    with pytest.raises(ListenerError, match="stands") as caught:
        engine.update(INSERT)
    assert isinstance(caught.value.__cause__, EngineStateError)
    assert commits == [caught.value.commit]
    assert (engine.quad_count, engine.sequence) == (1, 1)


def test_threads_lose_no_quad() -> None:
    """Each call takes effect, or is refused."""
    engine = Engine()
    refused: list[int] = []
    taken: list[int] = []

    def insert(first: int) -> None:
        for number in range(first, first + 200):
            try:
                engine.update(f"INSERT DATA {{ <urn:s{number}> <urn:p> {number} }}")
                taken.append(number)
            except EngineStateError:
                refused.append(number)

    threads = [Thread(target=insert, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) + len(refused) == 800
    assert engine.quad_count == len(taken) == engine.sequence
    found = engine.query("SELECT ?o { ?s <urn:p> ?o }")
    assert {int(row["o"].split('"')[1]) for row in found} == set(taken)
