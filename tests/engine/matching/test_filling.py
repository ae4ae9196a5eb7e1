"""Tables that are filled in portions while the dataset changes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.matching import cts as cts_module
from lamplighter.engine.matching.cts import FILLED_TURNS_MAX, Cts
from lamplighter.engine.matching.filling import NotIndexedError

P = "<urn:p>"
COUNT = 6000
"""Quads that are too many to be indexed at once, and several portions."""


def filled(engine: Engine, predicate: str | None, *, by_object: bool = False) -> int:
    """Indexes all portions; how many there were."""
    portions = 1
    while not engine.cts.fill_some(predicate, by_object=by_object):
        portions += 1
    return portions


def some_quads(count: int, predicate: str = "<urn:p>") -> bytes:
    return "".join(f'<urn:s{number}> {predicate} "{number % 7}" .\n' for number in range(count)).encode()


def loaded(path: Path | None = None) -> Engine:
    engine = Engine() if path is None else Engine(store_path=path)
    engine.load(some_quads(COUNT), media_type="application/n-triples")
    return engine


def test_few_quads_are_indexed_at_once_and_of_many_it_is_said_before() -> None:
    engine = loaded()
    engine.update("INSERT DATA { <urn:a> <urn:few> 1 }")
    assert engine.evaluation_of_subscription("SELECT * { ?s <urn:few> ?o }", gradual=True) is None
    with pytest.raises(NotIndexedError) as told:
        engine.evaluation_of_subscription("SELECT * { ?s <urn:p> ?o ; <urn:few> 1 }", gradual=True)
    assert told.value.predicate == P
    assert not engine.cts.holds(P)
    assert filled(engine, P) > 2
    assert not engine.cts.holds(P)  # nobody wants it yet
    assert engine.evaluation_of_subscription("SELECT * { ?s <urn:p> ?o ; <urn:few> 1 }", gradual=True) is None
    assert engine.cts.holds(P)


@pytest.mark.parametrize("predicate", [P, None])
@pytest.mark.parametrize("by_object", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_changes_between_two_portions_are_in_the_tables_and_later_ones_too(
    predicate: str | None, by_object: bool, seed: int
) -> None:
    random, engine = Random(seed), loaded()
    engine.load(some_quads(50, "<urn:q>"), media_type="application/n-triples")
    graphs = ("", "", "GRAPH <urn:g>")

    def change() -> None:
        subject, value = random.randrange(COUNT + 50), random.randrange(9)
        quad = f'{random.choice(graphs)} {{ <urn:s{subject}> <urn:{random.choice("pqr")}> "{value}" }}'
        quad = quad if quad.startswith("GRAPH") else quad[2:-1]
        engine.update(f"{random.choice(('INSERT', 'DELETE'))} DATA {{ {quad} }}")

    done = False
    while not done:
        done = engine.cts.fill_some(predicate, by_object=by_object)
        for _ in range(random.randrange(40)):
            change()
    held = random.random() < 0.5
    if held:
        engine.cts.hold(predicate, by_object=by_object)
        for _ in range(40):
            change()
        engine.cts.release(predicate)  # the tables of before are held again
        for _ in range(40):
            change()
    engine.cts.hold(predicate, by_object=by_object)
    for _ in range(40):
        change()
    found = {quad for quad in engine.cts.quads() if predicate is None or quad.p == predicate}
    assert found == set(engine.store.quads_with(predicate))
    for tables in engine.cts.tables.values():
        for table in (tables.default, *tables.named.values()):
            pairs = {(s, o) for s, objects in table.sp.items() for o in objects}
            assert not by_object or pairs == {(s, o) for o, ss in (table.po or {}).items() for s in ss}


@pytest.mark.parametrize("path", ["(<urn:few>|<urn:p>)+", "<urn:few>/(<urn:few>|<urn:p>)+", "(<urn:few>|<urn:p>)*"])
def test_a_path_of_which_a_part_is_not_indexed_holds_none_of_the_others(path: str) -> None:
    engine = loaded()
    engine.update("INSERT DATA { <urn:a> <urn:few> 1 }")
    text = f"SELECT * {{ <urn:a> {path} ?o }}"
    for _ in range(2):
        with pytest.raises(NotIndexedError):
            engine.evaluation_of_subscription(text, gradual=True)
        assert not engine.cts.tables


def test_a_failed_update_between_two_portions_leaves_nothing() -> None:
    engine = loaded()
    engine.cts.fill_some(P, by_object=False)
    with pytest.raises(Exception, match="exist"):
        engine.update("INSERT DATA { <urn:x> <urn:p> 1 } ; CREATE GRAPH <urn:g> ; CREATE GRAPH <urn:g>")
    filled(engine, P)
    engine.cts.hold(P)
    assert set(engine.cts.quads()) == set(engine.store.quads_with(P))


def test_a_subscription_that_was_indexed_in_portions_follows_as_any_other() -> None:
    engine = loaded()
    engine.cts.fill_some(P, by_object=False)
    engine.update("INSERT DATA { <urn:new> <urn:p> 'new' } ; DELETE WHERE { <urn:s5> <urn:p> ?o }")
    filled(engine, P)
    engine.update("INSERT DATA { <urn:newer> <urn:p> 'newer' }")
    text = "SELECT * { ?s <urn:p> ?o }"
    assert engine.evaluation_of_subscription(text, gradual=True) is None
    subscription = engine.subscribe(text)
    assert subscription.first == engine.query(text).value
    assert len(subscription.first) == COUNT + 1
    [notification] = engine.update("DELETE WHERE { <urn:new> <urn:p> ?o }").notifications
    assert notification.removed.rows == (("<urn:new>", '"new"'),)


def test_what_nobody_holds_is_forgotten_after_a_while_unless_something_is_being_filled() -> None:
    engine = loaded()
    engine.load(some_quads(COUNT, "<urn:q>"), media_type="application/n-triples")
    filled(engine, P)
    engine.cts.fill_some("<urn:q>", by_object=False)
    for _ in range(3 * FILLED_TURNS_MAX):
        engine.cts.forget_filled()
    assert set(engine.cts.filling) == {P, "<urn:q>"}
    engine.cts.stop_filling("<urn:q>")
    for _ in range(FILLED_TURNS_MAX + 1):
        assert set(engine.cts.filling) == {P}
        engine.cts.forget_filled()
    assert not engine.cts.filling
    assert not engine.cts.tables


def test_a_store_that_is_opened_again_meanwhile_is_read_from_its_beginning(tmp_path: Path) -> None:
    engine = loaded(tmp_path / "store")
    engine.cts.fill_some(P, by_object=False)
    engine.update("INSERT DATA { <urn:new> <urn:p> 'new' }")
    for reading in list(engine.store._readings):
        reading.close()  # as when a full disk has made it unusable
    filled(engine, P)
    engine.cts.hold(P)
    assert set(engine.cts.quads()) == set(engine.store.quads_with(P))
    engine.close()


def test_by_itself_an_index_is_filled_at_once() -> None:
    engine = loaded()
    cts = Cts(engine.store.quads_with)
    cts.gradual = True
    cts.hold(P)
    assert cts_module.LONG < len(cts) == COUNT
