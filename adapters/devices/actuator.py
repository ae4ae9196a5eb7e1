"""What is known of one actuator, and when its state is to be sent."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic

from lamplighter.adapters.devices.desired import Cause, same_state
from lamplighter.adapters.devices.lamps import LampGroup
from lamplighter.adapters.devices.sender import Rule, Sender
from lamplighter.adapters.mapping.command_payloads import state_texts
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.pacing import TokenBucket
from lamplighter.engine.terms import Term, lexical, literal

# The pause before a state is sent again, or a report is followed; it doubles while the device goes on reporting another
# state, up to one of the other two.
SETTLE_S, REASSERT_MAX_S, FOLLOW_MAX_S = 2.0, 300.0, 30.0
# After this long without either, the pause is the shortest one again. Agreement alone does not make it short: a person
# who is fought presses the button again.
CALM_S = 600.0
# Messages to one actuator without a pause, and the pause between further ones: applications, or a rule for its state,
# may set states that change each other.
AT_ONCE, PAUSE_S = 120, 1.0
WARNED_AGAIN_S = 3_600.0
# A report of the state that the dataset has is written for its time only, once in this time: each is a commit.
REPORT_WRITTEN_AGAIN = timedelta(seconds=60)
# Variables of the query of `output`, of which each row has one.
KEYS = ("desired", "reported", "recorded", "online", "by_hand", "command", "controls")
FOLLOW = literal("follow")


@dataclass(eq=False)
class DrivenActuator(Generic[Rule]):
    """One actuator, with or without a rule.

    rows: what the dataset says of it, by variable of the query. rule: the one in force; from_file: it is one of
    mapping/*.toml. told: the state that the device was told last; None if that is unknown. cause: why that became
    unknown or another one is wanted. followed: epoch and sequence of the commit that made the wanted state, if known.
    sent_at: when it was told, on the loop's clock; spread: the part of the interval after which it is told again.
    refused: the state that cannot be sent; refusal: the device's reason for not taking the wanted one. reported: by a
    message of this run; reported_at: the time of the last report that was written, None: it has none, or reports may
    have been missed since; interrupted: reports may have been missed until then; sourced: the dataset has what its
    reports come through. contrary: after the last message the device has reported another state. confirmed: it has had
    the wanted state, so that another one is a person's hand; followable: its desired state is a triple, no row of a
    query; follows: whether it follows such a state by default. following: the report that becomes the desired state;
    moved_at: when the last one did. back: it has come back online at this time. starts: how often it has started again.
    pace: of its messages; warnings: that it is too fast. repeats: messages to a device that had another state, and
    followed reports, in a row. retry_at: not before.
    """

    iri: Term
    sender: Sender[Rule]
    rows: dict[str, Counter[Term]] = field(default_factory=lambda: {key: Counter() for key in KEYS})
    rule: Rule | None = None
    from_file: bool = False
    wanted: Term | None = None
    started: bool = False
    told: Term | None = None
    cause: Cause = "notification"
    followed: tuple[int, int] | None = None
    sent_at: float = -math.inf
    spread: float = 1.0
    refused: Term | None = None
    refusal: str = ""
    reported: Term | None = None
    reported_at: datetime | None = None
    interrupted: datetime | None = None
    sourced: bool = False
    contrary: bool = False
    confirmed: bool = False
    followable: bool = True
    follows: bool = False
    following: Term | None = None
    lamp: LampGroup[DrivenActuator[Rule]] | None = None
    changed: int = 0
    busy: bool = False
    moved_at: float = -math.inf
    back: float | None = None
    starts: int = 0
    pace: TokenBucket = field(default_factory=lambda: TokenBucket(1 / PAUSE_S, AT_ONCE))
    warnings: TokenBucket = field(default_factory=lambda: TokenBucket(1 / WARNED_AGAIN_S, 1))
    repeats: int = 0
    retry_at: float = 0.0
    failures: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    worker: asyncio.Task[None] | None = None

    @property
    def known_report(self) -> Term | None:
        """What the device reported last, in this run or before."""
        return self.reported if self.reported is not None else max(self.rows["reported"], default=None)

    @property
    def offline(self) -> bool:
        """Whether a device that has it is offline, as far as known."""
        return any(lexical(one) in ("false", "0") for one in self.rows["online"])

    @property
    def disagrees(self) -> bool:
        """Whether the device reports another state than the wanted one."""
        reported = self.known_report
        return self.wanted is not None and reported is not None and not same_state(reported, self.wanted)

    @property
    def is_moved_by_hand(self) -> bool:
        """Whether what the device reports is to become the desired state."""
        rule, reported = self.rule, self.reported
        # A report before the device has had the wanted state is no wish: the message may be lost, or the report older
        # than it.
        if rule is None or reported is None or not (self.contrary and self.confirmed and self.followable):
            return False
        # A device that was offline may have lost its state, so that its report is no person's wish.
        if self.offline or self.back is not None or not self._follows_by(rule):
            return False
        try:
            state_texts(rule.table, reported)
        except PayloadError:
            return False  # it could never be sent
        return True

    def _follows_by(self, rule: Rule) -> bool:
        if self.rows["by_hand"]:
            return max(self.rows["by_hand"]) == FOLLOW
        return self.follows if rule.table.by_hand is None else rule.table.by_hand == "follow"

    def interrupt(self, at: datetime) -> None:
        """Reports may have been missed: the next one that is received later is written, also if it repeats the state.
        at: by the clock of the reports."""
        self.reported_at, self.interrupted = None, at

    def take_report(self, state: Term | None, at: datetime | None) -> bool:
        """Takes what the device reports; whether it is to be written. at: None: when it reported it is unknown."""
        changed = self.known_report != state
        self.reported = state
        if at is None:
            written, self.sourced = changed or not self.sourced, True
            if changed:
                self.reported_at = None
            return written
        last = self.reported_at
        if not changed and last is not None and timedelta(0) <= at - last < REPORT_WRITTEN_AGAIN:
            return False
        self.sourced = True
        if self.interrupted is None or at >= self.interrupted:
            self.reported_at, self.interrupted = at, None
        return True

    def as_wanted(self, state: Term | None) -> Term | None:
        """A report; in the words of the wanted state if both are one command. Of a fan with three speeds, 50 % is sent
        as 2 of 3, and reported as 67 %."""
        if state is None or self.wanted is None or self.rule is None or same_state(state, self.wanted):
            return state
        return self.wanted if self.sender.is_same(self.rule, state, self.wanted) else state

    def compare(self, state: Term | None, now: float) -> None:
        """Takes what the device reports."""
        agrees = state is not None and self.wanted is not None and same_state(state, self.wanted)
        self.contrary = not agrees
        if agrees:
            self.back = None
            self.confirmed = True
        # After a quiet time the pauses begin short again.
        elif now - max(self.sent_at, self.moved_at) > CALM_S:
            self.repeats = 0

    def want(self, wanted: Term | None, change: int) -> None:
        """Takes another wanted state, or none. change: as for `changed`."""
        followed, self.following = self.following, None
        self.wanted, self.changed = wanted, change
        self.refused, self.refusal = None, ""
        self.retry_at, self.failures = 0.0, 0
        reported = self.known_report
        # A report of before counts: the device may be in the wanted state already.
        self.confirmed = wanted is not None and reported is not None and same_state(reported, wanted)
        self.contrary = False
        if wanted is not None and followed == wanted:
            self.told, self.contrary = wanted, not self.confirmed  # it may have reported a third state since
        else:
            self.repeats = 0

    def is_due(self, now: float) -> bool:
        due = self.due()
        return due is not None and due <= now and not self.is_moved_by_hand

    def can_join(self) -> bool:
        """Whether its wanted state may go in a command of its lamp."""
        if self.rule is None or self.wanted is None or self.busy or self.wanted == self.refused or self.refusal:
            return False
        try:
            state_texts(self.rule.table, self.wanted)
        except PayloadError:
            return False  # its own attempt is refused, and names the reason
        return True

    def is_recorded(self, state: Term) -> bool:
        """Whether the last recorded actuation has the state."""
        return any(same_state(one, state) for one in self.rows["recorded"])

    def due(self) -> float | None:
        """When to send the wanted state, on the loop's clock; None: not as things are."""
        needed = self.needed()
        return None if needed is None else max(needed, self.pace.free_at())

    def needed(self) -> float | None:
        """When the wanted state is to be sent, whatever the pace."""
        if self.rule is None or self.wanted is None or not self.started or self.refused == self.wanted:
            return None
        if self.following is not None or self.busy or (self.lamp is not None and self.lamp.silences(self)):
            return None
        if self.told is None or self.told != self.wanted:
            return self.retry_at
        # Two controllers that switch against each other become slower and slower.
        doubled = SETTLE_S * 2.0 ** min(self.repeats, 32)
        if self.is_moved_by_hand:
            return max(self.sent_at + SETTLE_S, self.moved_at + min(doubled, FOLLOW_MAX_S))
        pause = self.rule.table.reassert_s
        if pause == 0:
            return None
        times, interval = [], self.sender.reassert_s(self.rule)
        if self.back is not None:
            times.append(self.back + SETTLE_S)
        if self.contrary and (pause is None or interval is not None):
            times.append(self.sent_at + min(doubled, REASSERT_MAX_S))
        reported = self.known_report
        if interval is not None:
            times.append(self.sent_at + interval * self.spread)
        elif pause is not None and (reported is None or not same_state(reported, self.wanted)):
            times.append(self.sent_at + pause)
        # The earliest reason counts, and never before the pause after a failure.
        return max(min(times), self.retry_at) if times else None

    def pace_reason(self, now: float) -> str:
        """What to tell the operator, if the pace alone makes a message wait; empty: nothing."""
        needed = self.needed()
        if needed is None or needed > now or self.pace.free_at() <= now or self.warnings.take(now):
            return ""
        return (
            f"more than {AT_ONCE} messages in a short time, now one in {PAUSE_S:g} s at most: two applications, or an "
            "application and what the device reports, set states that change each other; stop one of them"
        )
