"""Desired states that the rows of a rule's own query give, instead of a `gateway:desiredState`. Pure.

Of several rows for one target the greatest holds, so that it depends on the result only, and the log says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol

from lamplighter.adapters.devices.sender import OutputCounters, Rule, Sender
from lamplighter.engine.client import Notification
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag, Term

# Rules with a query; each has a subscription.
QUERIES_MAX = 100
# An actuator and a target of it.
Key = tuple[Term, str]

logger = EventLogger(__name__)


class QueriedRow(NamedTuple, Generic[Rule]):
    """What a row wants. variant: decides between rows with the same actuator and state; rule: for this row alone."""

    actuator: Term
    state: Term
    variant: tuple[tuple[str, str], ...]
    rule: Rule


class QueryRule(Protocol[Rule]):
    """A rule with a query. others: it is for actuators without another rule; a query like this must work, and ends the
    run otherwise."""

    @property
    def place(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def others(self) -> bool: ...

    def check(self, variables: Sequence[str]) -> None:
        """Raises ConfigurationError if the result lacks a variable."""
        ...

    def row(self, row: Mapping[str, Term]) -> QueriedRow[Rule]:
        """Raises PayloadError."""
        ...


class QueriedStates(Generic[Rule]):
    """The rows of one rule. counters: counts each row that gives nothing.
    known: whether a whole result was taken, or there will be none."""

    def __init__(self, rule: QueryRule[Rule], sender: Sender[Rule], kind: str, counters: OutputCounters) -> None:
        self.rule = rule
        self._sender = sender
        self._kind = kind
        self._counters = counters
        self._rows: dict[str, Counter[tuple[Term, Term, tuple[tuple[str, str], ...]]]] = {}  # by target
        self._rules: dict[tuple[Term, str, tuple[tuple[str, str], ...]], Rule] = {}
        self._rejected: set[frozenset[tuple[str, Term]]] = set()
        self._in_conflict: set[str] = set()
        self._targets: dict[Term, Counter[str]] = {}  # by actuator
        self.known = False

    def take(self, notification: Notification) -> set[Key]:
        """Takes a change of the result; what it is about. Sequence 0 is the whole result and replaces all rows."""
        touched: set[Key] = set()
        self.known = True
        if notification.sequence == 0:
            touched |= self.keys()
            self._rows.clear()
            self._rules.clear()
            self._targets.clear()
            self._rejected &= {frozenset(row.items()) for row in notification.added.bindings()}
        targets = set()
        for bag, change in ((notification.removed, -1), (notification.added, 1)):
            for row in self._read(bag, added=change > 0):
                target = self._sender.target(row.rule)
                targets.add(target)
                touched |= {(actuator, target) for actuator, _, _ in self._rows.get(target, ())}
                touched.add((row.actuator, target))
                self._count(row, target, change)
        for target in targets:
            self._tell_of_conflict(target)
        return touched

    def keys(self) -> set[Key]:
        return {(actuator, target) for actuator, targets in self._targets.items() for target in targets}

    def has(self, actuator: Term) -> bool:
        """Whether a row is about the actuator."""
        return actuator in self._targets

    def of(self, actuator: Term) -> set[Key]:
        """The keys of an actuator."""
        return {(actuator, target) for target in self._targets.get(actuator, ())}

    def wanted(self, key: Key) -> tuple[Rule, Term] | None:
        """The rule and the state of a target, if the actuator is the one that holds."""
        actuator, target = key
        best = max(self._rows.get(target, ()), default=None)
        if best is None or best[0] != actuator:
            return None
        return self._rules[actuator, target, best[2]], best[1]

    def _count(self, row: QueriedRow[Rule], target: str, change: int) -> None:
        rows = self._rows.setdefault(target, Counter())
        one = row.actuator, row.state, row.variant
        if change < 0 and one not in rows:
            return
        rows[one] += change
        self._rules[row.actuator, target, row.variant] = row.rule
        targets = self._targets.setdefault(row.actuator, Counter())
        targets[target] += change
        if rows[one] <= 0:
            del rows[one]
            if not any(actuator == row.actuator and variant == row.variant for actuator, _, variant in rows):
                del self._rules[row.actuator, target, row.variant]
        if targets[target] <= 0:
            del targets[target]
        if not targets:
            del self._targets[row.actuator]
        if not rows:
            del self._rows[target]

    def _read(self, bag: Bag, *, added: bool) -> Iterator[QueriedRow[Rule]]:
        """The rows of a bag. One that gives nothing is logged once as long as it stays."""
        for row in bag.bindings():
            try:
                found = self.rule.row(row)
            except PayloadError as error:
                key = frozenset(row.items())
                if not added:
                    self._rejected.discard(key)
                elif key not in self._rejected:
                    self._rejected.add(key)
                    self._counters.rejected_rows += 1
                    logger.warning(
                        f"{self._kind} row rejected", actuator=row.get("actuator"), rule=self.rule.place, reason=error
                    )
                continue
            yield found

    def _tell_of_conflict(self, target: str) -> None:
        rows = self._rows.get(target, ())
        if len(rows) < 2:
            self._in_conflict.discard(target)
        elif target not in self._in_conflict:
            self._in_conflict.add(target)
            winner = max(rows)
            device = self._sender.device(self._rules[winner[0], target, winner[2]])
            logger.warning(f"{self._kind} conflict", device=device, resource=target, rows=len(rows), winner=winner[0])
