"""One engine and one oracle whose time goes by: time as data.

At each moment the result of a subscription is that of its query with the engine's instant in place of the clock,
evaluated from nothing; and it stays so up to the next instant that the engine names. A restart makes another engine of
a snapshot and of the log behind it, as the gateway does it; subscribers then have what they had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lamplighter.engine import Engine
from lamplighter.engine.core import Commit, Notification
from lamplighter.engine.delta import QuadDelta
from tests.properties.timed_texts import START, Step, at
from tests.support.oracle import Answer, Oracle, Row, respelled_rows

FAR = datetime(9999, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass
class Subscribed:
    """What a subscriber has. since: the number of log entries behind the snapshot when it began."""

    text: str
    variables: tuple[str, ...]
    rows: Counter[Row]
    spu_class: str
    since: int


@dataclass
class Log:
    """A snapshot, its instant, and what was committed behind it: deltas, or the instants that time came to."""

    snapshot: bytes = b""
    instant: datetime = START
    entries: list[QuadDelta | datetime] = field(default_factory=list)


class Comparison:
    """tally: what was done and compared, over all cases."""

    def __init__(self, tally: Counter[str]) -> None:
        self.tally = tally
        self.oracle = Oracle()
        self.engine = _engine(START)
        self.log = Log()
        self.subscribed: dict[str, Subscribed] = {}

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._take(step)
            self._compare()

    def _take(self, step: Step) -> None:
        engine = self.engine
        match step.kind:
            case "update":
                self.oracle.update(step.text)
                self._follow(engine.update(step.text))
            case "subscribe":
                self._subscribe(step.text)
            case "unsubscribe" if self.subscribed:
                spuid, _ = self.subscribed.popitem()
                engine.unsubscribe(spuid)
            case "due" if engine.due is not None:
                due = engine.due
                assert due > engine.instant
                self._follow(engine.advance(due), "due")
                assert engine.instant == due
            case "advance":
                self._follow(engine.advance(engine.instant + timedelta(seconds=step.seconds)), "advance")
            case "back":
                self._follow(engine.advance(engine.instant - timedelta(seconds=step.seconds)), "back")
            case "snapshot":
                self._snapshot()
            case "restart":
                self._restart()

    def _subscribe(self, text: str) -> None:
        subscription = self.engine.subscribe(text)
        rows = respelled_rows(subscription.first)
        self.subscribed[subscription.spuid] = Subscribed(
            text, subscription.first.variables, rows, subscription.spu_class, len(self.log.entries)
        )
        self.tally[f"subscribed {subscription.spu_class}"] += 1

    def _snapshot(self) -> None:
        self.log = Log(self.engine.dump(), self.engine.instant)
        for one in self.subscribed.values():
            one.since = 0

    def _restart(self) -> None:
        """Each subscription begins again where it began, and follows the log from there."""
        before, instant = list(self.subscribed.values()), self.engine.instant
        self.engine.close()
        self.engine = engine = _engine(self.log.instant)
        engine.load(self.log.snapshot, "application/n-quads")
        self.subscribed.clear()
        again: dict[str, Counter[Row]] = {}
        for number in range(len(self.log.entries) + 1):
            for one in before:
                if one.since == number:
                    subscription = engine.subscribe(one.text)
                    again[subscription.spuid] = respelled_rows(subscription.first)
                    self.subscribed[subscription.spuid] = one
                    assert subscription.first.variables == one.variables
                    one.spu_class = subscription.spu_class
            if number < len(self.log.entries):
                entry = self.log.entries[number]
                commit = engine.commit(entry) if isinstance(entry, QuadDelta) else engine.advance(entry)
                for notification in commit.notifications:
                    again[notification.spuid] = _changed(again[notification.spuid], notification)
        engine.reach(instant)
        assert engine.instant == instant
        for spuid, rows in again.items():
            assert rows == self.subscribed[spuid].rows, (self.subscribed[spuid].text, "after a restart")
        self.tally["restarts"] += 1
        self.tally["replayed"] += len(self.log.entries)

    def _follow(self, commit: Commit, kind: str = "update") -> None:
        assert not commit.ended
        assert len({notification.spuid for notification in commit.notifications}) == len(commit.notifications)
        self.log.entries.append(commit.delta if kind == "update" else self.engine.instant)
        for notification in commit.notifications:
            known = self.subscribed[notification.spuid]
            known.rows = _changed(known.rows, notification)
            self.tally[f"changed by {kind}"] += 1
            self.tally[f"changed {known.spu_class}"] += 1

    def _compare(self) -> None:
        due = self.engine.due
        last = FAR if due is None else due - MICROSECOND
        for spuid, known in self.subscribed.items():
            for instant in (self.engine.instant, last):
                expected = _in_order(self.oracle.query(at(known.text, instant)), known.variables)
                assert known.rows == expected, (known.text, instant, self.engine.describe(spuid))
            self.tally["compared"] += 1


def _engine(instant: datetime) -> Engine:
    engine = Engine(clock=lambda: START)
    engine.reach(instant)
    return engine


def _changed(rows: Counter[Row], notification: Notification) -> Counter[Row]:
    removed, added = respelled_rows(notification.removed), respelled_rows(notification.added)
    assert removed or added, notification
    assert not removed & added, notification
    assert not removed - rows, notification
    return rows - removed + added


def _in_order(answer: Answer, variables: tuple[str, ...]) -> Counter[Row]:
    places = [answer.variables.index(variable) for variable in variables]
    return Counter(tuple(row[place] for place in places) for row in answer.ordered)
