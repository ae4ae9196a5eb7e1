"""Upkeep of the dataset while the queue is idle."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamplighter.gateway.loop.upkeep
from lamplighter.engine.core import Engine
from lamplighter.engine.store.renewal import RenewalPolicy
from lamplighter.engine.terms import Quad
from lamplighter.gateway.loop.queue import Queue
from lamplighter.gateway.loop.upkeep import (
    COLLECTED_AFTER,
    PAUSE_S,
    QUIET_TURNS_MAX,
    RENEWAL_PAUSE_S,
    RETIRED_MAX,
    TRIM_TURNS_MIN,
    Upkeep,
    give_back_memory,
)
from tests.support.event_loops import until
from tests.support.gateway_parts import recovered_runner, update
from tests.support.long_work import POLICY
from tests.support.long_work import soon_long as soon_long

QUADS = "INSERT DATA {" + " . ".join(f"<http://s{number}> <http://p> {number}" for number in range(50)) + "}"


def upkeep(engine: Engine) -> tuple[Upkeep, list[str]]:
    failed: list[str] = []
    return Upkeep(engine, failed.append), failed


def age(engine: Engine) -> None:
    """Makes the store one that is to be renewed."""
    engine.store.flush()
    engine.store._ageing._policy = RenewalPolicy(dead_floor=10, dead_share=0)
    for number in range(20):
        engine.update(f"DELETE DATA {{ <http://s{number}> <http://p> {number} }}")
    engine.store.flush()


def test_rounds_of_the_auditor_go_on_and_find_nothing() -> None:
    engine = Engine()
    engine.update(QUADS)
    engine.subscribe("SELECT ?s { ?s <http://p> ?o }")
    keeper, failed = upkeep(engine)
    while keeper.rounds < 2:
        assert keeper.turn(quiet=True) == PAUSE_S
    assert (failed, keeper.findings) == ([], 0)


def test_a_difference_between_index_and_store_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.update(QUADS)
    engine.subscribe("SELECT ?s { ?s <http://p> ?o }")
    for number in (3, 4):
        engine.cts.remove(
            Quad(f"<http://s{number}>", "<http://p>", f'"{number}"^^<http://www.w3.org/2001/XMLSchema#integer>')
        )
    keeper, failed = upkeep(engine)
    while keeper.rounds < 2:
        keeper.turn(quiet=True)
    assert len(failed) == 1
    assert "index" in failed[0]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert {"http://s3" in text or "http://s4" in text for text in errors} == {True}
    assert keeper.findings == 4, "two quads, in each of two rounds"


def test_a_turn_goes_on_with_a_renewal_and_soon_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.update(QUADS)
    keeper, _ = upkeep(engine)
    age(engine)
    assert engine.store.renewing
    monkeypatch.setattr(lamplighter.gateway.loop.upkeep, "TURN_S", -1.0)
    assert keeper.turn(quiet=False) == RENEWAL_PAUSE_S
    assert engine.store.renewals == 0, "no time was given"
    monkeypatch.undo()
    while engine.store.renewals == 0:
        keeper.turn(quiet=False)
    assert engine.quad_count == 30 == len(engine.store)


def test_a_replaced_store_is_let_go_when_it_is_quiet_or_has_waited_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native:
        pass

    engine = Engine()
    keeper, _ = upkeep(engine)

    def retired() -> Any:
        native = Native()
        engine.store.retire(native)
        return weakref.ref(native)

    old = retired()
    assert keeper.backlog == 1
    keeper.turn(quiet=False)
    gc.collect()
    assert old() is not None
    keeper.turn(quiet=True)
    assert old() is None
    old = retired()
    monkeypatch.setattr(lamplighter.gateway.loop.upkeep, "QUIET_TURNS_MAX", 3)
    for _ in range(3):
        assert old() is not None
        keeper.turn(quiet=False)
    assert old() is None
    old, newer = retired(), retired()
    keeper.turn(quiet=False)
    assert old() is None
    assert newer() is not None, "each blocks the loop for as long as its memory takes"
    keeper.turn(quiet=True)
    assert newer() is None


def test_long_work_leaves_one_replaced_store_to_wait_and_survives_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    keeper, _ = upkeep(engine)
    for native in (object(), object(), object()):
        engine.store.retire(native)
    assert [keeper.between() for _ in range(3)] == [True, True, False]

    def fails() -> bool:
        raise MemoryError

    monkeypatch.setattr(engine.store, "catch_up", fails)
    assert not keeper.between()
    assert "upkeep failed" in caplog.text


@pytest.mark.usefixtures("soon_long")
async def test_large_updates_do_not_make_a_store_of_several_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.loop.runner.PAUSE_S", 1e6)  # no turn of upkeep comes in between
    monkeypatch.setattr("lamplighter.gateway.loop.time_slicer.SLICE_S", 0.0)
    count, rounds = POLICY.dead_floor + POLICY.dead_floor // 10, 5
    async with recovered_runner(tmp_path) as runner:
        store = runner._engine.store
        for version in range(rounds):
            quads = " . ".join(f"<http://s{number}> <http://p{version}> {number}" for number in range(count))
            await update(runner, f"DELETE WHERE {{ ?s ?p ?o }} ; INSERT DATA {{ {quads} }}")
            assert store.dead <= count + POLICY.pending_max
        assert store.renewals >= rounds - 1
        assert len(runner._upkeep._retired) <= RETIRED_MAX + 1
        assert len(store) == count


async def test_a_gateway_that_idles_is_audited_and_a_finding_makes_its_health_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.loop.runner.PAUSE_S", 0.001)
    monkeypatch.setattr("lamplighter.gateway.loop.upkeep.PAUSE_S", 0.001)
    async with recovered_runner(tmp_path) as runner:
        await update(runner, QUADS)
        await update(runner, "DELETE { ?s <http://p> ?o } WHERE { ?s <http://p> ?o . ?s <http://q> 1 }")
        await update(runner, "DELETE { ?s <http://p> ?o } WHERE { ?s <http://p> ?o . ?s <http://q> 2 }")
        await until(lambda: runner.figures.status()["audit_rounds"] > 1)
        assert runner.figures.status()["status"] == "ok"
        runner._engine.cts.remove(Quad("<http://s3>", "<http://p>", '"3"^^<http://www.w3.org/2001/XMLSchema#integer>'))
        await until(lambda: runner.figures.status()["status"] == "damaged")
        assert "http://s3" in runner.figures.status()["problems"][0]


async def test_upkeep_in_its_turn_between_requests_is_not_one_in_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []

    def turn(keeper: Upkeep, quiet: bool) -> float:
        turns.append(quiet)
        return 0.001

    monkeypatch.setattr("lamplighter.gateway.loop.runner.PAUSE_S", 0.001)
    monkeypatch.setattr(Upkeep, "turn", turn)
    monkeypatch.setattr(Queue, "empty", property(lambda queue: False))  # somebody waits all the time
    async with recovered_runner(tmp_path):
        await until(lambda: len(turns) > 1)
    assert set(turns) == {False}


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def frozen_garbage(keeper: Upkeep) -> weakref.ref[Cycle]:
    """Of a connection that was open when a long work ended."""
    cycle = Cycle()
    gc.freeze()
    keeper.large_work_ended()
    return weakref.ref(cycle)


@pytest.fixture
def rare_collections() -> Iterator[None]:
    """As in the gateway's process."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("rare_collections")
def test_garbage_of_long_works_is_collected_when_it_is_quiet_or_much_has_waited_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lamplighter.gateway.loop.upkeep, "COLLECTION_SHARE", float("inf"))
    monkeypatch.setattr(lamplighter.gateway.loop.upkeep, "EXEMPT_MAX", 1000)
    keeper, _ = upkeep(Engine())
    assert keeper.backlog == 0
    cycle = frozen_garbage(keeper)
    gc.collect()
    assert cycle() is not None
    keeper.turn(quiet=False)
    assert cycle() is not None
    assert keeper.backlog == 1, "garbage waits; the memory was given back"
    keeper.turn(quiet=True)
    assert cycle() is None
    assert keeper.backlog == 1, "that of the garbage is to be given back"
    for _ in range(TRIM_TURNS_MIN):
        keeper.turn(quiet=True)
    assert keeper.backlog == 0
    cycle = frozen_garbage(keeper)
    for _ in range(3 * QUIET_TURNS_MAX):
        keeper.turn(quiet=False)
    assert cycle() is not None  # a search among all objects takes longer than so few are worth
    more = [Cycle() for _ in range(gc.get_freeze_count())]
    cycle = frozen_garbage(keeper)
    for _ in range(QUIET_TURNS_MAX):
        assert cycle() is not None
        keeper.turn(quiet=False)
    assert cycle() is None
    assert more


@pytest.mark.usefixtures("rare_collections")
def test_collections_that_take_long_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lamplighter.gateway.loop.upkeep, "COLLECTION_SHARE", 1e-9)
    keeper, _ = upkeep(Engine())
    for first in (True, False):
        cycle = frozen_garbage(keeper)
        for _ in range(2 * TRIM_TURNS_MIN):
            keeper.turn(quiet=True)
        assert (cycle() is None) == first


def test_garbage_of_a_process_that_is_not_the_gateways_is_left_alone() -> None:
    keeper, _ = upkeep(Engine())
    cycle = frozen_garbage(keeper)
    keeper.turn(quiet=True)
    assert cycle() is not None
    gc.unfreeze()


def test_memory_is_given_back_after_large_work_and_not_at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(lamplighter.gateway.loop.upkeep, "give_back_memory", lambda: given.append(1))
    keeper, _ = upkeep(Engine())
    keeper.turn(quiet=True)
    assert not given
    for _ in range(2 * TRIM_TURNS_MIN):
        keeper.large_work_ended()
        keeper.turn(quiet=True)
    assert len(given) == 2
    for _ in range(2 * TRIM_TURNS_MIN):
        keeper.turn(quiet=True)
    assert len(given) == 3


def test_free_pages_go_back_to_the_system_where_the_c_library_can_do_that(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_bytes: list[int] = []
    for library in (SimpleNamespace(malloc_trim=kept_bytes.append), SimpleNamespace()):
        monkeypatch.setattr(lamplighter.gateway.loop.upkeep.ctypes, "CDLL", lambda name, library=library: library)
        give_back_memory()
        assert kept_bytes == [0]
