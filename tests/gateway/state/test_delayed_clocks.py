"""The remaining time of a delay under clock steps, compared with a model that knows the real time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lamplighter.engine.change_log import Cause, Record, Timer
from lamplighter.gateway.clock import iso
from lamplighter.gateway.state.delayed import CLOCK, SILENCE_US, DelayedState, DelayedUpdates
from tests.support.amounts import AMOUNTS
from tests.support.gateway_parts import FakeClock

TWO_WEEKS_S = 14 * 86_400


@dataclass
class Promise:
    """A delayed update as the model sees it. first: from which record of this boot on the wall clock must not have been
    stepped, which is the last one until it was set whose clock can be trusted; lost_s: real time that could not
    count, since nobody can know of it."""

    due_s: float
    first: int
    lost_s: float = 0


@dataclass
class World:
    """A machine with a gateway that writes what it would write, and the real time beside it."""

    clock: FakeClock = field(default_factory=FakeClock)
    real_s: float = 0
    boots: int = 1
    log: list[Record] = field(default_factory=list)
    snapshot: bytes = b""
    behind: int = 0  # records of the log that are in the snapshot
    promises: dict[str, Promise] = field(default_factory=dict)
    known_s: float = 0  # real time up to which it is known on the disk that the machine ran
    looks: list[tuple[bool, float]] = field(default_factory=list)  # trusted, wall clock less uptime: in this boot

    def __post_init__(self) -> None:
        self.updates = DelayedUpdates(self.clock)
        self.updates.rebase()

    def write(self, kind: str, **members: Any) -> None:
        record = Record(
            v=1,
            type=kind,
            gw="gw-1",
            epoch=1,
            seq=len(self.log) + 1,
            ts=iso(self.clock.wall()),
            trusted=self.clock.trusted(),
            boot=self.clock.boot,
            boottime_us=self.clock.boottime_us(),
            **members,
        )
        self.log.append(record)
        self.updates.follow(record)
        offset_s = self.clock.now.timestamp() - self.clock.uptime.total_seconds()
        self.looks.append((self.clock.synchronised, offset_s))
        self.known_s = self.real_s

    # --- what happens ---

    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.real_s += seconds

    def step(self, seconds: int) -> None:
        self.advance(1)
        self.clock.now = self.clock.now.fromtimestamp(self.clock.now.timestamp() + seconds, self.clock.now.tzinfo)

    def trust(self, trusted: bool) -> None:
        self.advance(1)
        self.clock.synchronised = trusted

    def delay(self, seconds: int) -> None:
        name = f"t{len(self.log)}"
        self.promises[name] = promise = Promise(self.real_s + seconds, 0)
        self.write("timer", timer=Timer(name, "CLEAR ALL", delay_us=seconds * 1_000_000))
        promise.first = max((place for place, look in enumerate(self.looks) if look[0]), default=0)

    def cancel(self, number: int) -> None:
        if self.promises:
            name = list(self.promises)[number % len(self.promises)]
            del self.promises[name]
            self.write("cancel", cancel=name)

    def other(self) -> None:
        self.write("commit", cause=Cause("http", "test"))

    def take_snapshot(self) -> None:
        self.snapshot, self.behind = msgspec.json.encode(self.updates.state()), len(self.log)
        self.known_s = self.real_s

    def restart(self, seconds: int, step: int) -> None:
        """The gateway is killed, and starts again while the machine runs on."""
        self.step(step)
        self.advance(seconds)
        self.start()

    def reboot(self, off_s: int, uptime_s: int, trusted: bool) -> None:
        was_trusted = bool(self.looks) and self.looks[-1][0]
        for promise in self.promises.values():
            offsets = {offset_s for known, offset_s in self.looks[promise.first :] if known}
            if not (was_trusted and trusted and len(offsets) == 1):
                promise.lost_s += self.real_s - self.known_s + off_s
            promise.first = 0
        self.looks.clear()
        self.boots += 1
        self.clock.reboot(f"boot-{self.boots}", off_s=off_s, uptime_s=uptime_s)
        self.real_s += off_s + uptime_s
        self.clock.synchronised = trusted
        self.start()

    def start(self) -> None:
        self.updates = DelayedUpdates(self.clock)
        if self.snapshot:
            self.updates.restore(msgspec.json.decode(self.snapshot, type=DelayedState))
        for record in self.log[self.behind :]:
            self.updates.follow(record)
        self.updates.rebase()
        assert {name for name in self.promises if self.updates.miss_of(name)} == set(self.due())

    # --- what has to hold ---

    def due(self) -> list[str]:
        return [name for name, promise in self.promises.items() if promise.due_s + promise.lost_s <= self.real_s]

    def settle(self) -> None:
        """The gateway tells the log of the clocks where it has to, and executes what is due."""
        expected = {
            name: promise.due_s + promise.lost_s - self.real_s for name, promise in sorted(self.promises.items())
        }
        found = {name: wait_us / 1_000_000 for wait_us, _, name in self.updates._waits()}
        assert found == expected
        if (reason := self.updates.news()) is not None:
            self.write("commit", cause=Cause(CLOCK, reason))
            assert self.updates.news() is None
        assert not self.promises or self.real_s - self.known_s < SILENCE_US / 1_000_000, "the log knows how long it ran"
        due = self.due()
        assert sorted(pending.timer.id for pending in self.updates.due_updates(set(), 100)) == sorted(due)
        for name in due:
            del self.promises[name]
            self.write("commit", cause=Cause("timer", name))
        assert len(self.updates) == len(self.promises)


STEPS = st.sampled_from([TWO_WEEKS_S, -TWO_WEEKS_S, 30, -3600])
SPANS = st.sampled_from([1, 59, 600, 5000, 100_000])
EVENTS = st.one_of(
    st.tuples(st.just("delay"), SPANS),
    st.tuples(st.just("advance"), SPANS),
    st.tuples(st.just("reboot"), SPANS, st.integers(1, 100), st.booleans()),
    st.tuples(st.just("step"), STEPS),
    st.tuples(st.just("trust"), st.booleans()),
    st.tuples(st.just("restart"), SPANS, STEPS | st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("take_snapshot")),
    st.tuples(st.just("other")),
)


@settings(max_examples=AMOUNTS.of(300))
@given(st.booleans(), st.lists(EVENTS, max_size=25))
# A wall clock that is trusted all the time, and stepped all the same.
@example(True, [("delay", 5000), ("step", TWO_WEEKS_S), ("reboot", 600, 5, True), ("advance", 5000)])
@example(True, [("delay", 5000), ("restart", 1, -TWO_WEEKS_S), ("reboot", 600, 5, True), ("advance", 5000)])
# Nothing is written for long, by a gateway without a clock to trust.
@example(False, [("delay", 100_000), ("advance", 5000), ("reboot", 600, 5, False), ("reboot", 600, 5, False)])
# It is not trusted any more when it is stepped.
@example(True, [("delay", 5000), ("trust", False), ("step", TWO_WEEKS_S), ("reboot", 600, 5, True)])
@example(True, [("delay", 5000), ("take_snapshot",), ("advance", 600), ("reboot", 5000, 5, True)])
def test_a_delay_is_over_when_the_model_says(trusted: bool, events: list[tuple[Any, ...]]) -> None:
    world = World(FakeClock(trusted=trusted))
    for name, *arguments in events:
        getattr(world, name)(*arguments)
        world.settle()
