"""A dataset on disk (RocksDB): the same as one in memory, kept over ends of the process, and led to a known state."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.engine import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ConfigurationError, GatewayError, StoreError
from lamplighter.engine.store import quad_store
from lamplighter.engine.store.audit import Auditor
from lamplighter.engine.store.quad_store import BATCH_QUADS, QuadStore
from lamplighter.engine.store.renewal import RenewalPolicy
from lamplighter.engine.terms import Quad
from tests.properties.sparql_texts import case_of
from tests.support.amounts import AMOUNTS, Amounts
from tests.support.places import ROOT

XSD = "http://www.w3.org/2001/XMLSchema#"
ODD = (
    Quad("_:b1", "<a:p>", "_:b2", None),
    Quad("_:b2", "<a:p>", "_:b1", "_:g"),
    Quad("<a:s>", "<a:p>", "<a:o>", "<a:g>"),
    Quad("<a:s>", "<a:p>", '"_:no node"', None),
    Quad("<a:s>", "<a:p>", '"two  words"@en', "<a:g>"),
    Quad("<a:s>", "<a:p>", '"ends with <a:g>"', None),
    Quad("<a:s>", "<a:p>", '"ends with _:g"', "_:g"),
    Quad("<a:s>", "<a:p>", '"a\u2028b\u0085c \\n \\"quoted\\" \\\\ \\u0001 ."@en', None),
    Quad("<a:s>", "<a:p>", '""', "<a:g>"),
    Quad("<a:s>", "<a:p>", f'"1.5"^^<{XSD}decimal>', None),
    Quad("<a:s>", "<a:p>", f'"no number at all"^^<{XSD}integer>', "<a:g>"),
    Quad("<a:s>", "<a:p>", '"ვაიმეე 💡"', None),
    Quad("<a:s>", "<a:p>", "<<( <a:s> <a:p> _:b1 )>>", None),
    Quad("<a:s>", "<a:p>", '<<( _:b1 <a:p> "with )>> inside"@en )>>', "_:g"),
    Quad("<a:s>", "<a:p>", "<<( <a:s> <a:p> <<( <a:s> <a:p> <a:o> )>> )>>", "<a:g>"),
)
"""Terms as the store writes them."""


def lines(engine: Engine) -> list[bytes]:
    return sorted(engine.dump().splitlines())


def state(engine: Engine) -> tuple[list[bytes], list[str]]:
    return lines(engine), sorted(engine.store.graphs())


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "store" if request.param == "disk" else None


# --- snapshots --------------------------------------------------------------------------------------


def test_restored_dataset_is_the_one_that_was_taken(place: Path | None, tmp_path: Path) -> None:
    many = tuple(Quad(f"<a:s{number}>", "<a:q>", f'"{number}"') for number in range(2 * BATCH_QUADS))
    first = Engine()
    first.commit(QuadDelta(added=(*ODD, *many), created=("<a:empty>", "_:empty")))
    batches = list(first.snapshot())
    assert max(map(len, batches)) == BATCH_QUADS
    assert sum(map(len, batches)) == len(ODD) + 2 * BATCH_QUADS
    assert sorted(quad for batch in batches for quad in batch if quad.p == "<a:p>") == sorted(ODD)
    with Engine(store_path=place) as second:
        second.restore(batches, first.store.graphs(), 41)
        assert state(second) == state(first)
        assert (second.sequence, second.quad_count) == (41, len(ODD) + 2 * BATCH_QUADS)
        again = Engine(store_path=tmp_path / "again")
        again.restore(second.snapshot(), second.store.graphs(), 41)
        assert state(again) == state(first)
        again.close()


def test_restored_engine_goes_on_as_if_nothing_had_been(place: Path | None) -> None:
    with Engine(store_path=place) as engine:
        engine.restore(iter([ODD[:3], ODD[3:]]), ["<a:g>", "_:g", "<a:empty>"], 7)
        found = engine.subscribe("SELECT ?s ?o { ?s <a:p> ?o }")
        assert len(found.first) == sum(quad.g is None for quad in ODD)
        commit = engine.update("DELETE { ?s <a:p> ?o } WHERE { ?s <a:p> ?o FILTER(isBlank(?s)) }; CREATE GRAPH <a:new>")
        assert (commit.sequence, commit.removed) == (8, (ODD[0],))
        [notification] = commit.notifications
        assert notification.removed.rows == (("_:b1", "_:b2"),)
        assert engine.quad_count == len(ODD) - 1
        with pytest.raises(StoreError, match="exist"):
            engine.update("CREATE GRAPH <a:empty>")


def test_snapshot_is_of_one_moment_while_updates_go_on(place: Path | None) -> None:
    with Engine(store_path=place) as engine:
        before = tuple(Quad(f"<a:s{number}>", "<a:p>", f'"{number}"') for number in range(3 * BATCH_QUADS))
        engine.commit(QuadDelta(added=before))
        batches = engine.snapshot()
        found = next(batches)
        engine.commit(QuadDelta(removed=before[::2], added=(ODD[0],)))
        engine.store.flush()
        for batch in batches:
            found += batch
        assert sorted(found) == sorted(before)


def test_empty_dataset_has_no_batches(place: Path | None) -> None:
    with Engine(store_path=place) as engine:
        assert list(engine.snapshot()) == []
        engine.restore([], ["<a:g>"], 3)
        assert (engine.quad_count, engine.store.graphs(), engine.sequence) == (0, ["<a:g>"], 3)


def test_what_is_no_quad_is_told_and_the_readers_error_goes_through(place: Path | None) -> None:
    def broken() -> Iterator[list[Quad]]:
        yield [ODD[0]]
        raise ConfigurationError("the disk")

    with Engine(store_path=place) as engine, pytest.raises(StoreError, match="line 1"):
        engine.restore([[Quad("<a:s>", "<a:p>", '"open')]], [], 1)
    with Engine(store_path=place) as engine, pytest.raises(ConfigurationError, match="the disk"):
        engine.restore(broken(), [], 1)


# --- over the end of a process ----------------------------------------------------------------------


def test_dataset_is_there_again_when_it_is_opened_again(tmp_path: Path) -> None:
    for start in range(3):
        engine = Engine(store_path=tmp_path)
        assert engine.quad_count == 10 * start
        assert engine.store._names is not None, "counted once"
        assert len(engine.subscribe("SELECT * { ?s <a:p> ?o }").first) == 10 * start
        auditor = Auditor(engine.store, engine.cts)
        auditor.step(3)  # it is in the middle of the store, and must not keep it
        for number in range(10 * start, 10 * start + 10):
            engine.update(f"INSERT DATA {{ <a:s{number}> <a:p> {number} . GRAPH <a:g{number}> {{ }} }}")
            engine.update(f"CREATE SILENT GRAPH <a:g{number}>")
        assert engine.quad_count == 10 * start + 10
        engine.close()
        assert engine.quad_count == 0
    assert sorted(Engine(store_path=tmp_path).store.graphs()) == sorted(f"<a:g{number}>" for number in range(30))


def test_what_was_flushed_survives_the_kill_of_the_process(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from lamplighter.engine import Engine
engine = Engine(store_path=Path({str(tmp_path)!r}))
engine.update("INSERT DATA {{ <a:s> <a:p> 1 }}")
engine.store.flush()
engine.update("INSERT DATA {{ <a:s> <a:p> 2 }}")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -9
    with Engine(store_path=tmp_path) as engine:
        assert lines(engine) == [f'<a:s> <a:p> "1"^^<{XSD}integer> .'.encode()]


def test_data_are_persisted_by_a_thread_while_updates_go_on(tmp_path: Path) -> None:
    def tables() -> int:
        return len(list(tmp_path.glob("*.sst")))

    with Engine(store_path=tmp_path) as engine:
        engine.update("INSERT DATA { <a:s> <a:p> 0 }")
        before = tables()
        engine.store.flush()
        assert tables() == before, "in the log only"
        engine.persist()
        assert tables() > before
        for number in range(5):
            thread = threading.Thread(target=engine.store.persist_native)
            thread.start()
            updates = 0
            while thread.is_alive() or updates < 20:
                engine.update(f"INSERT DATA {{ <a:s{number}> <a:p> {updates} }}")
                engine.store.flush()
                updates += 1
            thread.join()
        expected = lines(engine)
        assert len(expected) > 100
    with Engine(store_path=tmp_path) as engine:
        assert lines(engine) == expected


def test_stores_that_cannot_be_opened_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "store"
    engine = Engine(store_path=path)
    with pytest.raises(ConfigurationError, match=f"{path} is in use; stop"):
        Engine(store_path=path)
    engine.update("INSERT DATA { <a:s> <a:p> 1 }")
    engine.persist()
    engine.close()
    for table in path.glob("*.sst"):
        os.truncate(table, 10)
    with pytest.raises(StoreError, match=f"{path} is damaged: .*move the folder away"):
        Engine(store_path=path)
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "no" / "such" / "folder"):
        with pytest.raises(ConfigurationError, match=f"{wrong} cannot be opened: .*set store.path"):
            Engine(store_path=wrong)


def test_store_that_refuses_to_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = 0

    def full(*arguments: Any) -> None:
        nonlocal writes
        writes += 1
        raise OSError("No space left on device")

    store = QuadStore(RenewalPolicy(pending_max=10), path=tmp_path)
    quads = [Quad(f"<a:s{number}>", "<a:p>", '"1"') for number in range(35)]
    with monkeypatch.context() as patched:
        patched.setattr(quad_store, "write", full)
        for quad in quads:
            store.apply(QuadDelta(added=(quad,)))
        assert writes == 3, "tried when ten more wait, not each time"
        assert store.contains(quads) == [True] * 35
        with pytest.raises(StoreError, match=r"No space left.*whether it has room"):
            store.select("SELECT * { ?s ?p ?o }")
    assert len(store.select("SELECT * { ?s ?p ?o }")) == 35
    for quad in quads[:11]:
        store.apply(QuadDelta(removed=(quad,)))
    assert not store._pending, "as before"
    store.close()


FULL_DISK = """
import resource
from pathlib import Path
from lamplighter.engine import Engine
from lamplighter.engine.store.audit import Auditor
from lamplighter.engine.errors import StoreError

limit = resource.getrlimit(resource.RLIMIT_FSIZE)
engine = Engine(store_path=Path({path!r}))
auditor = Auditor(engine.store, engine.cts)
engine.update("INSERT DATA {{ <a:s> <a:p> 1 , 2 , 3 }}")
auditor.step(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
filling = " . ".join(f"<a:s{{number}}> <a:p> {{number}}" for number in range(3000))
engine.update(f"INSERT DATA {{{{ {{filling}} }}}}")
for _ in range(3):
    try:
        engine.query("ASK {{}}")
    except StoreError as error:
        assert "File too large" in str(error), error
    else:
        raise AssertionError("written")
assert engine.update("DELETE DATA {{ <a:s> <a:p> 1 }}").removed, "it can be read"
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
assert len(engine.query("SELECT * {{ ?s <a:p> ?o }}").value) == 3002 == engine.quad_count
engine.close()
with Engine(store_path=Path({path!r})) as engine:
    assert engine.quad_count == 3002
"""


def test_store_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    """No file may become larger than 100 KB for a time, which RocksDB takes for a disk that is full."""
    code = FULL_DISK.format(path=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_store_that_cannot_be_opened_again_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = QuadStore(path=tmp_path)
    store.apply(QuadDelta(added=ODD, created=("<a:g>", "_:g")))
    store.flush()
    with monkeypatch.context() as patched:
        patched.setattr(quad_store, "write", failing)
        patched.setattr(quad_store, "_open", failing)
        store.apply(QuadDelta(removed=ODD[:1]))
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output"):
                store.flush()
        reads: list[Callable[[], object]] = [
            lambda: store.contains(ODD),
            lambda: store.select("SELECT * {}"),
            lambda: next(store.batches()),
        ]
        for read in reads:
            with pytest.raises(StoreError):
                read()
    assert store.contains(ODD) == [False, *[True] * (len(ODD) - 1)]
    assert [len(batch) for batch in store.batches()] == [len(ODD) - 1]
    native = store.native
    store.apply(QuadDelta(added=ODD[:1]))
    assert store.native is native, "opened again once"
    del native
    store.close()


def failing(*arguments: object) -> NoReturn:
    raise (OSError if len(arguments) > 1 else ConfigurationError)("Input/output error")


def test_store_on_disk_is_not_renewed(tmp_path: Path) -> None:
    store = QuadStore(
        RenewalPolicy(pending_max=3, slice_quads=2, dead_floor=0, dead_share=0, hot_floor=0), path=tmp_path
    )
    for number in range(200):
        quad = Quad("<a:s>", "<a:p>", f'"{number}"')
        store.apply(QuadDelta(added=(quad,)))
        store.flush()
        store.apply(QuadDelta(removed=(quad,)))
        store.flush()
    assert not store.renewing
    assert not store.step()
    assert (store.renewals, store.dead, len(store)) == (0, 0, 0)
    store.close()


# --- convergence ------------------------------------------------------------------------------------


def history(seed: int) -> tuple[list[QuadDelta], list[tuple[list[bytes], list[str]]]]:
    """The deltas of some updates, and the states before the first and after each."""
    engine = Engine()
    deltas, states = [], [state(engine)]
    texts = [step.text for step in case_of(seed).steps if step.kind == "update"]
    random = Random(seed)
    for text in [*texts, *GRAPHS, *texts] if seed % 2 else random.sample([*texts, *GRAPHS], len(texts) + len(GRAPHS)):
        try:
            delta = engine.update(text).delta
        except (GatewayError, SyntaxError):
            continue
        deltas.append(delta)
        states.append(state(engine))
    return deltas, states


GRAPHS = (
    "CREATE GRAPH <a:g>",
    "INSERT DATA { GRAPH <a:g> { <a:s> <a:p> 1 } GRAPH <a:h> { <a:s> <a:p> 2 } }",
    "DROP GRAPH <a:g>",
    "INSERT DATA { GRAPH <a:g> { <a:s> <a:p> 3 } }",
    "MOVE <a:g> TO <a:h>",
    "CLEAR GRAPH <a:h>",
    "COPY DEFAULT TO <a:g>",
    "DROP ALL",
    "INSERT DATA { GRAPH <a:g> { <a:s> <a:p> 1 } <a:s> <a:p> 1 }",
)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_records_from_any_earlier_one_on_lead_to_the_last_state(kind: str, tmp_path: Path) -> None:
    numbers = iter(range(10**6))
    behind: Counter[bool] = Counter()

    @settings(max_examples=AMOUNTS.of(60 if kind == "memory" else 25, least=8))
    @given(st.integers(0, 10**6), st.randoms(use_true_random=False))
    def converge(seed: int, random: Random) -> None:
        deltas, states = history(seed)
        there = random.randint(0, len(deltas))
        start = random.randint(0, there)
        taken_back = random.randint(0, len(deltas))
        with Engine(store_path=tmp_path / str(next(numbers)) if kind == "disk" else None) as engine:
            engine.store._policy = RenewalPolicy(pending_max=5, slice_quads=2, dead_floor=0, dead_share=0)
            engine.store._ageing._policy = engine.store._policy
            for delta in deltas[:there]:
                engine.commit(delta)
            engine.subscribe("SELECT * { ?s ?p ?o GRAPH ?g { ?x ?y ?z } }")
            for number, delta in enumerate(deltas[start:], start + 1):
                commit = engine.converge(delta, number)
                behind[commit.delta.changes] += 1
            assert (state(engine), engine.sequence) == (states[-1], len(deltas))
            assert engine.quad_count == len(states[-1][0])
            for delta in reversed(deltas[taken_back:]):
                engine.converge(delta.invert())
            assert state(engine) == states[taken_back]
            for delta in deltas[taken_back:]:
                engine.commit(delta)
            assert state(engine) == states[-1]
            assert sorted(quad.to_nquads() for quad in engine.cts.quads()) == [line.decode() for line in states[-1][0]]

    converge()
    assert min(behind.values()) > AMOUNTS.of(20), "the interesting part was hardly reached"


# --- the same as in memory --------------------------------------------------------------------------


def test_engine_on_disk_does_what_one_in_memory_does(tmp_path: Path, amounts: Amounts) -> None:
    """Updates, subscriptions and queries of the property tests; the engine in memory is compared to an oracle there."""
    updates = 0
    disk = Engine(store_path=tmp_path)
    for seed in range(amounts.of(40)):
        memory = Engine()
        spuids: list[str] = []
        for step in case_of(seed).steps:
            if step.kind == "update":
                here, there = outcome(memory, step.text), outcome(disk, step.text)
                updates += isinstance(here, tuple)
            elif step.kind == "subscribe" and step.cut is None:  # rows that tie go by labels of blank nodes
                here, there = subscribed(memory, step.text, []), subscribed(disk, step.text, spuids)
            else:
                continue
            assert here == there, (seed, step)
        assert blurred(memory) == blurred(disk), seed
        assert memory.quad_count == disk.quad_count
        for spuid in spuids:
            disk.unsubscribe(spuid)
        disk.update("DROP ALL")
        assert (disk.quad_count, disk.store.graphs()) == (0, [])
    disk.close()
    assert updates > amounts.of(200)


def outcome(engine: Engine, text: str) -> tuple[object, ...] | type:
    """How many quads and rows an update changed."""
    try:
        commit = engine.update(text)
    except (GatewayError, SyntaxError) as error:
        return type(error)
    changed = [len(notification.added) - len(notification.removed) for notification in commit.notifications]
    return len(commit.added), len(commit.removed), *changed


def subscribed(engine: Engine, text: str, spuids: list[str]) -> tuple[object, ...] | type:
    """How many rows a subscription has at first, and its class."""
    try:
        found = engine.subscribe(text)
    except (GatewayError, SyntaxError) as error:
        return type(error)
    spuids.append(found.spuid)
    return len(found.first), found.spu_class


def blurred(engine: Engine) -> Counter[str]:
    """The quads, with blank nodes that cannot be told apart."""
    blank: Counter[str] = Counter()
    for quad in (quad for batch in engine.snapshot() for quad in batch):
        blank[" ".join("_:" if term and term.startswith("_:") else str(term) for term in quad)] += 1
    return blank


def test_nobody_else_on_the_machine_reads_the_folder(tmp_path: Path) -> None:
    with Engine(store_path=tmp_path / "store"):
        assert (tmp_path / "store").stat().st_mode & 0o077 == 0
