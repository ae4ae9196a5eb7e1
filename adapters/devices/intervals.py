"""Learns how often devices report, and which devices have been silent for too long. Pure.

A *channel* is where a device reports, such as a topic of a broker. Its interval is learned once `REPORTS_MIN` reports
in a row came at equal distances. A device is overdue when all its channels with a learned interval are: each was silent
for several of its intervals. Devices without one, such as those that report events, are never overdue.

Motion sensors and switches repeat a state at equal distances while something happens. So a channel with values that are
no numbers is learned only if it repeats two different states in this time, or does so for `STEADY_S`.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.ontology.vocabulary import RDF_TYPE, REPORTING_INTERVAL, STREAM

# Equal intervals in a row before an interval is learned. Doubled for a channel that was silent again too soon.
REPORTS_MIN = 12
REPORTS_MAX = 1_000
# Difference of an interval from the mean, as a part of it.
SPREAD_MAX = 0.25
# Reports closer than the minimum are parts of one; rarer ones than the maximum are not learned.
INTERVAL_MIN_S, INTERVAL_MAX_S = 1.0, 86_400.0
# No device is overdue earlier.
SILENCE_MIN_S = 10.0
LAPSES_MAX = 9
# What an unequal interval adds to the lapses of a learned channel; an equal one removes 1. More than the maximum: the
# interval is forgotten.
LAPSE = 3
STEADY_S = 6 * 3_600.0
# Part of the longest interval that remains after each report.
FORGETTING = 0.99


class ReportingChannel(NamedTuple):
    """Where a device reports. source: what may be away as a whole, such as a broker; name: such as a topic; device: its
    IRI."""

    source: Hashable
    name: str
    device: Term


class Learned(NamedTuple):
    """An interval that was learned in an earlier run. online: what the dataset says of the device, None: nothing."""

    channel: ReportingChannel
    stream: Term
    interval_s: float
    online: bool | None


@dataclass(slots=True)
class _ChannelState:
    """What is known of a channel.

    stream: one of its streams. at: of the last report, or later if the silence since then does not count; counts:
    whether the time since `at` is an interval. mean_s: 0 before the first interval; run: equal intervals in a row;
    needed: how many are enough; longest_s: decays with each report. strikes: silences since the interval was sure.
    states: hash of the last values that are no numbers, None if there were none; repeated: those that came again.
    """

    stream: Term
    at: float
    counts: bool = True
    mean_s: float = 0.0
    longest_s: float = 0.0
    run: int = 0
    needed: int = REPORTS_MIN
    lapses: int = 0
    strikes: int = 0
    learned: bool = False
    states: int | None = None
    repeated: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _WatchedDevice:
    """seen: its last report on any channel, None: not in this run; online: as far as known."""

    channels: set[ReportingChannel] = field(default_factory=set)
    seen: float | None = None
    online: bool | None = None


class Intervals:
    """The channels of all devices, at most `channels_max`. factor: intervals of silence after which one is overdue.

    online: devices that have become online (True) or unknown (None: nothing is known any more); intervals: of the
    streams, as they are learned (None: forgotten). Both are for the caller, who stores and clears them.
    """

    def __init__(self, factor: float, channels_max: int) -> None:
        self.online: dict[Term, bool | None] = {}
        self.intervals: dict[Term, float | None] = {}
        self.factor = factor
        self._channels_max = channels_max
        self._known: dict[ReportingChannel, _ChannelState] = {}
        self._devices: dict[Term, _WatchedDevice] = {}
        # No device is due before.
        self._next_due = float("inf")

    def __len__(self) -> int:
        """Channels that are known."""
        return len(self._known)

    def heard(self, channel: ReportingChannel, stream: Term, now: float, states: Iterable[Term] = ()) -> None:
        """Takes a report. stream: one of the streams in it; states: its values that are no numbers."""
        known = self._known.get(channel)
        if known is None:
            if len(self._known) < self._channels_max:
                self._add(channel, stream, now)
                self._note_states(self._known[channel], states)
            return
        device = self._devices[channel.device]
        device.seen = now
        if device.online is False:
            self._returned(channel.device, device, now)
        # A device that reports several values in a row reports once.
        if known.counts and 0 <= now - known.at < INTERVAL_MIN_S:
            return
        self._note_states(known, states)
        if known.counts:
            self._take(channel, known, now - known.at)
        elif known.at > now:  # in a grace period
            self._next_due = min(self._next_due, now)
        known.at, known.counts = now, True

    def overdue(self, now: float, ready: Callable[[Hashable], bool]) -> list[Term]:
        """The devices that are due and were not marked yet. ready: whether a source would deliver a report."""
        if now < self._next_due:
            return []
        found = []
        self._next_due = float("inf")
        for iri_, device in self._devices.items():
            if device.online is False:
                continue
            learned = [(one, known) for one in device.channels if (known := self._known[one]).learned]
            # The device is silent when all of its channels are: one of them may be broken.
            due = max((known.at + self._silence_s(known) for _, known in learned), default=float("inf"))
            self._next_due = min(self._next_due, due)
            # A broker that is away is no silence of the device.
            if due <= now and all(ready(channel.source) for channel, _ in learned):
                found.append(iri_)
        return found

    def sources(self, device: Term) -> set[Hashable]:
        """Where a device reports."""
        return {channel.source for channel in self._devices[device].channels}

    def mark(self, device: Term) -> float | None:
        """Notes that a device is offline. Returns when it was last heard, None if not in this run."""
        found = self._devices[device]
        found.online = False
        self.online.pop(device, None)
        return found.seen

    def interrupted(self, source: Hashable | None, now: float, grace_s: float = 0.0) -> None:
        """Reports of a source, or of all (None), could not arrive until now: the silence so far does not count.

        grace_s: further silence that does not count, while devices connect again.
        """
        for channel, known in self._known.items():
            if source is None or channel.source == source:
                # The next report begins a new interval; the time to it is not measured.
                known.at, known.counts = max(known.at, now + grace_s), False

    def restore(self, learned: Learned, now: float) -> None:
        """Takes what an earlier run learned of a channel, unless this run knows its interval already."""
        channel = learned.channel
        if channel not in self._known:
            if len(self._known) >= self._channels_max:
                return
            self._add(channel, learned.stream, now)
            # When the device reported last is not known, so the first report begins the interval.
            self._known[channel].counts = False
            self._devices[channel.device].seen = None
        known, device = self._known[channel], self._devices[channel.device]
        if not known.learned:
            known.learned, known.mean_s, known.longest_s = True, learned.interval_s, learned.interval_s
            known.run, known.lapses = 0, 0
            self._next_due = min(self._next_due, now)
        if device.online is None and learned.online is not None:
            device.online = learned.online
            if device.seen is not None and not learned.online:
                self._returned(channel.device, device, now)

    def drop(self, stream: Term, device: Term) -> None:
        """Forgets an interval of an earlier run that was not restored. Other channels may know whether the device is
        online."""
        self.intervals[stream] = None
        if device not in self._devices or self._devices[device].online is None:
            self.online[device] = None

    def keep(self, kept: Callable[[ReportingChannel, Term], bool]) -> None:
        """Forgets all other channels. kept: called with a channel and one of its streams."""
        for channel, known in list(self._known.items()):
            if kept(channel, known.stream):
                continue
            if known.learned:
                self.intervals[known.stream] = None
            del self._known[channel]
            device = self._devices[channel.device]
            device.channels.remove(channel)
            self._settle(channel.device, device)
            if not device.channels:
                del self._devices[channel.device]

    def _add(self, channel: ReportingChannel, stream: Term, now: float) -> None:
        self._known[channel] = _ChannelState(stream, now)
        device = self._devices.setdefault(channel.device, _WatchedDevice())
        device.channels.add(channel)
        device.seen = now
        if device.online is False:
            self._returned(channel.device, device, now)

    def _silence_s(self, known: _ChannelState) -> float:
        """How long a channel may be silent."""
        # A device that was late once may be so late again.
        return max(self.factor * known.mean_s, 2 * known.longest_s, SILENCE_MIN_S)

    def _returned(self, iri_: Term, device: _WatchedDevice, now: float) -> None:
        """A device that was silent reports again. What is silent again too soon has no interval."""
        self._online(iri_, device)
        for channel in device.channels:
            known = self._known[channel]
            known.at, known.counts = now, False
            if not known.learned:
                continue
            known.strikes += 1
            known.run = 0
            # The second time the interval was too short: more reports are needed before it is trusted again.
            if known.strikes > 1:
                known.needed = min(known.needed * 2, REPORTS_MAX)
                self._forget(channel, known)
        self._next_due = min(self._next_due, now)

    def _online(self, iri_: Term, device: _WatchedDevice) -> None:
        device.online = True
        self.online[iri_] = True

    def _take(self, channel: ReportingChannel, known: _ChannelState, interval_s: float) -> None:
        """Learns from the time between two reports."""
        if known.mean_s > 0 and abs(interval_s - known.mean_s) <= SPREAD_MAX * known.mean_s:
            known.run += 1
            # A mean at first, then one that follows slowly.
            known.mean_s += (interval_s - known.mean_s) / min(known.run, REPORTS_MIN)
            known.longest_s = max(interval_s, known.longest_s * FORGETTING)
            known.lapses = max(0, known.lapses - 1)
            if known.run >= known.needed:
                known.strikes = 0
                if not known.learned and _steady(known):
                    self._learn(channel, known)
        elif known.learned:
            known.longest_s = max(interval_s, known.longest_s)
            # A single unequal interval may be a lost message.
            known.lapses += LAPSE
            if known.lapses > LAPSES_MAX:
                self._forget(channel, known)
        else:
            self._begin(known, interval_s)

    def _learn(self, channel: ReportingChannel, known: _ChannelState) -> None:
        known.learned, known.lapses = True, 0
        self.intervals[known.stream] = known.mean_s
        device = self._devices[channel.device]
        if device.online is None:
            self._online(channel.device, device)
        self._next_due = min(self._next_due, known.at)

    def _forget(self, channel: ReportingChannel, known: _ChannelState) -> None:
        known.learned = False
        self.intervals[known.stream] = None
        self._begin(known, 0.0)
        self._settle(channel.device, self._devices[channel.device])

    def _settle(self, iri_: Term, device: _WatchedDevice) -> None:
        """Without a learned interval it is not known whether a device is online."""
        if device.online is not None and not any(self._known[one].learned for one in device.channels):
            device.online = None
            self.online[iri_] = None

    def _begin(self, known: _ChannelState, interval_s: float) -> None:
        known.mean_s = interval_s if interval_s <= INTERVAL_MAX_S else 0.0
        known.longest_s = known.mean_s
        known.run = 1 if known.mean_s else 0
        known.lapses = known.strikes = 0
        known.repeated.clear()

    def _note_states(self, known: _ChannelState, states: Iterable[Term]) -> None:
        said = tuple(states)
        if not said:
            return
        value = hash(said)
        if known.states == value and len(known.repeated) < 2:
            known.repeated.add(value)
        known.states = value


def _steady(known: _ChannelState) -> bool:
    """Whether a channel reports because of the time, and not because something happens."""
    # A contact that reports when a door moves may do so regularly for a while. Only one that repeats its states, or
    # goes on for hours, reports by time.
    return known.states is None or len(known.repeated) > 1 or known.run * known.mean_s >= STEADY_S


def interval_update(stream: Term, interval_s: float | None) -> str:
    """Says in the default graph how often a stream reports; None: that it is not known."""
    insert = ""
    if interval_s is not None:
        insert = f"{stream} {iri(REPORTING_INTERVAL)} {literal(f'{interval_s:.3f}', datatype=XSD + 'decimal')}"
    return (
        f"DELETE {{ {stream} <{REPORTING_INTERVAL}> ?before }} INSERT {{ {insert} }} "
        f"WHERE {{ {stream} <{RDF_TYPE}> <{STREAM}> OPTIONAL {{ {stream} <{REPORTING_INTERVAL}> ?before }} }}"
    )
