"""A step that raises at any call: made good, or ended by the one error that says so; never wrong in silence."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.core import Commit, Subscription
from lamplighter.engine.errors import BrokenEngineError, StoreError, UnknownSpuidError, check_type
from lamplighter.engine.sparql.clock_function import CLOCK
from lamplighter.engine.store.audit import Auditor
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.terms import Bag
from tests.support.garbage import no_garbage_collection
from tests.support.oracle import Oracle, Row, parsed_dump, respelled, respelled_rows

START = """
INSERT DATA { <a:a> <a:p> <a:b> , <a:c> ; <a:v> 1 , 2 . <a:b> <a:q> <a:c> ; <a:v> 3 . <a:c> <a:v> 1 ; <a:p> <a:b> .
              GRAPH <a:g> { <a:a> <a:p> <a:b> } GRAPH <a:h> { <a:b> <a:v> 5 } }
"""
THERE = """
DELETE DATA { <a:a> <a:p> <a:b> . <a:b> <a:v> 3 . GRAPH <a:g> { <a:a> <a:p> <a:b> } } ;
INSERT DATA { <a:b> <a:p> <a:a> ; <a:v> 4 , 6 . <a:c> <a:q> <a:a> . GRAPH <a:k> { <a:b> <a:q> <a:c> } } ;
DROP GRAPH <a:h> ; CREATE GRAPH <a:empty>
"""
BACK = """
DELETE DATA { <a:b> <a:p> <a:a> ; <a:v> 4 , 6 . <a:c> <a:q> <a:a> } ; DROP GRAPH <a:k> ; DROP GRAPH <a:empty> ;
INSERT DATA { <a:a> <a:p> <a:b> . <a:b> <a:v> 3 . GRAPH <a:g> { <a:a> <a:p> <a:b> } GRAPH <a:h> { <a:b> <a:v> 5 } }
"""
QUERIES = {
    "SELECT ?x ?y { ?x <a:p> ?y . ?y <a:v> ?n }": "telescoped",
    "SELECT ?a ?b { ?a <a:p> ?b . ?b <a:v> ?n }": "telescoped",  # the same unit under other names
    "SELECT ?x ?y ?n { { ?x <a:p> ?y } UNION { GRAPH ?n { ?x <a:p> ?y } } }": "telescoped",
    "SELECT ?n { <a:b> <a:v> ?n }": "telescoped",
    "SELECT ?n { <a:c> <a:v> ?n }": "telescoped",
    "SELECT ?x ?y ?n { ?x <a:p> ?y OPTIONAL { ?y <a:v> ?n } FILTER NOT EXISTS { ?y <a:q> ?z } }": "seeded",
    "SELECT DISTINCT ?x { ?x <a:p> ?y }": "seeded",
    "SELECT ?x ( SUM( ?n ) AS ?t ) { ?x <a:v> ?n } GROUP BY ?x": "seeded",
    "SELECT ( COUNT( * ) AS ?t ) { ?x <a:p> ?y }": "counted",
    "SELECT ( SUM( ?n ) AS ?t ) ( COUNT( DISTINCT ?n ) AS ?u ) { ?x <a:v> ?n . ?y <a:p> ?x }": "counted",
    "SELECT ?x ?n { ?x <a:v> ?n } ORDER BY DESC( ?n ) ?x LIMIT 2": "ordered",
    "SELECT ?y { <a:a> ( <a:p> | <a:q> )+ ?y }": "telescoped",
    "SELECT ?y { <a:a> ( <a:p>/<a:q>? )+ ?y }": "re-evaluated",
    "SELECT ?g { GRAPH ?g { } }": "re-evaluated",
}
ERRORS = (ValueError, RecursionError, MemoryError)
STRIDE = 4
CLOCKED = {
    f"SELECT ?x ?n ( {CLOCK}() AS ?t ) {{ ?x <a:v> ?n }}": "SELECT ?x ?n { ?x <a:v> ?n }",
    f"SELECT ?y ( {CLOCK}() AS ?t ) {{ <a:a> <a:p>+ ?y }}": "SELECT ?y { <a:a> <a:p>+ ?y }",
}


@dataclass
class Follower:
    """The composed result of one subscription; plain: its query without the clock function."""

    text: str
    plain: str
    subscription: Subscription
    sequence: int = 0
    rows: Counter[Row] = field(default_factory=Counter)

    def follow(self, commit: Commit, oracle: Oracle) -> None:
        mine = [one for one in commit.notifications if one.spuid == self.subscription.spuid]
        assert len(mine) <= 1
        for one in mine:
            self.sequence += 1
            assert one.sequence == self.sequence, self.text
            removed, added = self.rows_of(one.removed), self.rows_of(one.added)
            assert removed <= self.rows, self.text
            assert removed or added
            self.rows = self.rows - removed + added
        expected = oracle.query(self.plain)
        if self.text == self.plain:
            assert self.rows == expected.rows, self.text
        else:
            assert Counter(row[:-1] for row in self.rows.elements()) == expected.rows, self.text

    def rows_of(self, bag: Bag) -> Counter[Row]:
        assert tuple(bag.variables) == tuple(self.subscription.first.variables)
        return respelled_rows(bag.rows)


class Pair:
    """An engine with subscriptions of all classes, and the oracle."""

    def __init__(self) -> None:
        self.ticks = 0
        self.engine = Engine(clock=self._clock)
        self.oracle = Oracle()
        self.engine.update(START)
        self.oracle.update(START)
        self.followers: list[Follower] = []
        for text in (*QUERIES, *CLOCKED):
            self.subscribe(text)
        self.classes = self.engine.subscription_classes

    def _clock(self) -> datetime:
        self.ticks += 1
        return datetime.fromtimestamp(1_700_000_000 + self.ticks, UTC)

    def subscribe(self, text: str) -> None:
        subscription = self.engine.subscribe(text)
        assert subscription.spu_class == QUERIES.get(text, subscription.spu_class)
        follower = Follower(text, CLOCKED.get(text, text), subscription)
        follower.rows = follower.rows_of(subscription.first)
        self.followers.append(follower)

    def whole(self) -> bool:
        """Has every subscription followed by its own class again, if that can be."""
        if self.engine.subscription_classes == self.classes:
            return True
        others = [one for one in self.followers if self._spu_class(one) != one.subscription.spu_class]
        for follower in others:  # all of them first, for some share a shape
            self.engine.unsubscribe(follower.subscription.spuid)
            self.followers.remove(follower)
        for follower in others:
            self.subscribe(follower.text)
        return self.engine.subscription_classes == self.classes

    def _spu_class(self, follower: Follower) -> str:
        return self.engine.describe(follower.subscription.spuid).spu_class

    def change(self, text: str, around: Callable[[Callable[[], Commit]], Commit]) -> None:
        """Lets both change, and compares."""
        delta = self.engine.prepare(text)
        commit = around(lambda: self.engine.commit(delta))
        self.oracle.update(text)
        ended = {one.spuid for one in commit.ended}
        self.followers = [one for one in self.followers if one.subscription.spuid not in ended]
        for follower in self.followers:
            follower.follow(commit, self.oracle)
        auditor = Auditor(self.engine.store, self.engine.cts)
        assert auditor.step(1000) == []
        assert self.engine.quad_count == len(self.oracle.quads())
        assert parsed_dump(self.engine.dump()) == Counter(self.oracle.quads())
        assert {respelled(name) for name in self.engine.store.graphs()} == self.oracle.graphs()


def plainly(commit: Callable[[], Commit]) -> Commit:
    return commit()


_GUARD = (Engine.commit.__code__, check_type.__code__, Engine._enter.__code__, Engine._announce.__code__)
"""Before a commit begins, and after it: they look at its argument, take an item from a list of one, and put it back,
which does not fail."""


class Interrupted:
    """Raises an error at the n-th call, of Python or of C, that happens while something is run.

    No garbage is collected meanwhile: the finalizers of what other tests left would be calls as well.
    """

    def __init__(self, call: int, error: type[Exception]) -> None:
        self._left = call
        self._error = error
        self.place = ""

    def __call__(self, commit: Callable[[], Commit]) -> Commit:
        with no_garbage_collection():
            sys.setprofile(self._called)
            try:
                return commit()
            finally:
                sys.setprofile(None)

    @property
    def raised(self) -> bool:
        return self._left <= 0

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        begins = event == "call" and frame.f_code is Engine._committed.__code__
        outside = frame.f_code.co_filename == __file__ or frame.f_code in _GUARD or begins
        # A lock that is not released would stop other tests of this process, and releasing one does not fail.
        releases = event == "c_call" and argument.__name__ in ("release", "__exit__")
        if event in ("call", "c_call") and not outside and not releases:
            self._left -= 1
            if self._left == 0:
                self.place = f"{event} {argument} in {frame.f_code.co_qualname} line {frame.f_lineno}"
                raise self._error("injected")


@pytest.mark.faults
@pytest.mark.parametrize("text", [THERE, BACK], ids=["there", "back"])
def test_a_commit_that_raises_at_any_call_is_made_good_or_says_that_it_is_not(text: str) -> None:
    """At every fourth call one of three errors; which calls and errors, differs from run to run."""
    offset = secrets.randbelow(len(ERRORS) * STRIDE)
    first, second = (THERE, BACK) if text == THERE else (BACK, THERE)

    def prepared() -> Pair:
        pair = Pair()
        if text == BACK:
            pair.change(THERE, plainly)
        return pair

    pair, call, ended, broken = prepared(), offset % STRIDE - STRIDE + 1, 0, []
    while True:
        call += STRIDE
        interrupted = Interrupted(call, ERRORS[(call + offset) % len(ERRORS)])
        count = len(pair.followers)
        try:
            pair.change(first, interrupted)
        except BrokenEngineError:
            broken.append(interrupted.place)
            with pytest.raises(BrokenEngineError):
                pair.engine.update("INSERT DATA { <a:x> <a:y> 1 }")
            pair = prepared()
            continue
        if not interrupted.raised:
            break
        assert pair.engine.faults or "in QuadStore" in interrupted.place, interrupted.place
        pair.engine.faults.clear()
        ended += count - len(pair.followers)
        pair.change(second, plainly)
        if not pair.whole():
            pair = prepared()
    print(f"from {offset}: calls={call} ended={ended} broken={len(broken)} {sorted(set(broken))}")
    assert call > 500
    assert len(broken) < 0.1 * call / STRIDE
    assert ended < 0.01 * call / STRIDE


def test_a_subscription_that_the_store_cannot_evaluate_any_more_ends_and_the_commit_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    paths = [one for one in pair.followers if "<a:q>? )+" in one.text]
    select = QuadStore.select

    def failing(store: QuadStore, text: str, *graphs: Any, **named: Any) -> Bag:
        if ")+" in text.replace(" ", ""):
            raise StoreError("the disk")
        return select(store, text, *graphs, **named)

    with monkeypatch.context() as patched:
        patched.setattr(QuadStore, "select", failing)
        commits: list[Commit] = []

        def around(commit: Callable[[], Commit]) -> Commit:
            commits.append(commit())
            return commits[-1]

        pair.change(THERE, around)
    assert {one.spuid for one in commits[0].ended} == {one.subscription.spuid for one in paths}
    assert "could not be evaluated any more: the disk" in str(commits[0].ended[0].error)
    for one in paths:
        with pytest.raises(UnknownSpuidError):
            pair.engine.unsubscribe(one.subscription.spuid)
    assert pair.engine.subscription_count == len(pair.followers)
    pair.change(BACK, plainly)


@pytest.mark.faults
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators that are closed
@pytest.mark.parametrize("calls_before", [0, 2], ids=["store", "plan"])
def test_an_update_of_several_operations_that_fails_leaves_the_dataset_as_it_was(calls_before: int) -> None:
    """While it is prepared its first operations take effect for the later ones."""
    engine = Engine()
    engine.update(START)
    engine.subscribe("SELECT * { ?x ?y ?z }")
    text = THERE.replace("DROP GRAPH <a:h> ; CREATE GRAPH <a:empty>", "DELETE DATA { <a:c> <a:q> <a:a> }")
    for _ in range(calls_before):
        engine.prepare(text)
    before, call = parsed_dump(engine.dump()), 0
    while True:
        call += 1
        interrupted = Interrupted(call, ERRORS[call % len(ERRORS)])
        failed = None
        try:
            interrupted(lambda: engine.prepare(text))  # type: ignore[arg-type, return-value]
        except Exception as error:
            failed = error
        if not interrupted.raised:
            break
        assert not isinstance(failed, BrokenEngineError), interrupted.place
        assert parsed_dump(engine.dump()) == before, interrupted.place
        assert engine.quad_count == sum(before.values()), interrupted.place
        assert Auditor(engine.store, engine.cts).step(1000) == [], interrupted.place
    assert call > 20


def test_two_who_share_a_unit_by_other_names_and_a_third_as_the_first() -> None:
    engine = Engine()
    spuids = [engine.subscribe(f"SELECT {name} {{ <a:s> <a:p> {name} }}").spuid for name in ("?x", "?y", "?x")]
    commit = engine.update("INSERT DATA { <a:s> <a:p> 1 }")
    assert [(one.spuid, one.added.variables) for one in commit.notifications] == list(
        zip(spuids, [("x",), ("y",), ("x",)], strict=True)
    )
