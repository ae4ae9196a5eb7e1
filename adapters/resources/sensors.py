"""Readings of sensors: each resource with a rule is observed or polled, and its states are written.

::

    Observation ─▶ states ─▶ batch of a turn ─▶ readings ─▶ ReadingCommits ─▶ gateway
        ▲             └─▶ contacts: which devices answer
        └── asked again: a state was missed, or the sensor is silent for several of its learned intervals

A state is the newest of its resource (RFC 7641 section 1.3), so a sensor whose state was missed is asked for its state
again, and nothing waits on disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lamplighter.adapters.devices.intervals import Intervals, ReportingChannel
from lamplighter.adapters.literals import NUMBERS
from lamplighter.adapters.mapping import ReadingRules, ResourceRule, uris
from lamplighter.adapters.mapping.rules import changed_reads
from lamplighter.adapters.model.commits import (
    BATCH_READINGS_MAX,
    HELD_CHECK_S,
    ReadingCommits,
    Writing,
    in_slices,
)
from lamplighter.adapters.model.failures import Failures
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.resources.basis import AdapterBasis
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.adapters.resources.counters import ReadingCounters
from lamplighter.adapters.resources.exchange import (
    ObservationStatus,
    Observed,
    ObservedResource,
    ResourceExchanges,
    ResourceObservation,
    not_allowed,
)
from lamplighter.adapters.resources.reachability import DeviceContacts
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Term, iri
from lamplighter.ontology.vocabulary import adapter_iri

# States of so long are written together.
TURN_S = 0.02
# States that wait for the gateway. Sensors whose states are one too many are asked again afterwards.
STATES_MAX, STATES_BYTES_MAX = 4_096, 4 * 1024 * 1024
# How fast observations begin at the start.
REGISTRATIONS_PER_S = 200
# How often it is looked which sensors are unreachable or silent.
CHECK_S = 1.0
# A sensor that reports regularly is asked for its state after so many of its learned intervals without a report.
SILENT_INTERVALS = 3.0


# If the gateway took longer for a turn, states may have waited, and the silence does not count.
STALL_S = 5.0


class SensorStates(NamedTuple):
    """How many resources are in which state. stale: their last state is older than its Max-Age."""

    observed: int
    polled: int
    unreachable: int
    refused: int
    stale: int


class _Key(NamedTuple):
    """What a device tells observers apart by."""

    uri: str
    accept: int | None
    device: str


@dataclass(eq=False, slots=True)
class _SensorResource:
    """A resource that is followed. readers: its rules; reported: the status that was reported last; fresh_until: on the
    loop's clock; sensors: those of its readings."""

    key: _Key
    resource: ObservedResource
    observation: ResourceObservation
    readers: tuple[tuple[ResourceRule, ReadingRules[ResourceRule]], ...]
    authority: str
    sensors: set[Term]
    reported: ObservationStatus | None = None
    fresh_until: float = 0.0
    ended: bool = False


@dataclass(slots=True)
class _Waiting:
    """States that wait for the gateway, in the order of their arrival."""

    states: list[tuple[_SensorResource, Observed]] = field(default_factory=list)
    body_bytes: int = 0

    def add(self, source: _SensorResource, state: Observed) -> bool:
        """Whether there is room."""
        if len(self.states) >= STATES_MAX or self.body_bytes + len(state.body) > STATES_BYTES_MAX:
            return False
        self.states.append((source, state))
        self.body_bytes += len(state.body)
        return True


class ResourceSensors:
    """The sensors of an adapter.

    contacts: takes which devices answer. elapsed: seconds of a monotonic clock. node: which resource of the dataset a
    device is, by its authority; None: nothing is written of devices.
    """

    def __init__(
        self,
        exchanges: ResourceExchanges,
        basis: AdapterBasis,
        contacts: DeviceContacts,
        *,
        elapsed: Callable[[], float] = time.monotonic,
        node: Callable[[str], Term] | None = None,
    ) -> None:
        context, settings = basis.context, basis.settings
        self._last, self._trusted, self._clock, self._elapsed = context.last, context.trusted, context.now, elapsed
        self._node, self._base_iri = node, context.base_iri
        self.counters = ReadingCounters()
        self._observed = basis.counters.observations
        self._exchanges = exchanges
        self._contacts = contacts
        self._warnings, self._owners = basis.warnings, basis.owners
        self._resources_max = settings.resources_max
        self._failures = Failures(exchanges.kind)
        self._commits = ReadingCommits(
            context.client,
            kind=exchanges.kind,
            settings=settings,
            counters=self.counters,
            warn=basis.warnings.reading,
        )
        self._intervals = Intervals(SILENT_INTERVALS, settings.streams_max)
        self._rules: tuple[ResourceRule, ...] = ()
        self._sources: dict[_Key, _SensorResource] = {}
        self._by_device: dict[str, set[_SensorResource]] = {}
        self._waiting = _Waiting()
        self._missed: set[_SensorResource] = set()
        self._work = asyncio.Event()
        self._writing = False
        self._tasks: asyncio.TaskGroup | None = None

    def change_rules(self, rules: Sequence[ResourceRule]) -> None:
        """Takes the rules in force; those of files come first. Observations whose rules stay go on."""
        before, self._rules = self._rules, tuple(rules)
        redescribed = self._owners.forget(changed_reads(before, self._rules))
        self._commits.describe_again(redescribed)
        wanted = self._group(rules)
        for key, source in list(self._sources.items()):
            if key not in wanted or self._observed_resource(key, wanted[key][0]) != source.resource:
                self._end(source)
        self._intervals.keep(lambda channel, stream: stream not in redescribed and channel.source in self._sources)
        begun = 0
        for key, its_rules in wanted.items():
            known = self._sources.get(key)
            if known is None:
                self._begin(key, its_rules, begun / REGISTRATIONS_PER_S)
                begun += 1
                continue
            # The observation stays; the new rules read its next state, which is asked for at once.
            same = [rule for rule, _ in known.readers] == its_rules
            known.readers, known.sensors = self._readers(its_rules), _sensors(its_rules)
            if not same:
                known.observation.renew()

    async def run(self) -> None:
        """Runs until cancelled. Devices are told nothing then: they drop the observer at the next notification.

        Raises an ExceptionGroup with UpstreamError when the engine client is closed.
        """
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for number, source in enumerate(self._sources.values()):
                    self._follow(source, number / REGISTRATIONS_PER_S)
                self._tasks.create_task(self._write_turns(), name=f"{self._exchanges.kind} readings")
                self._tasks.create_task(self._check(), name=f"{self._exchanges.kind} silent sensors")
        finally:
            self._tasks = None

    def hosted(self, authority: str) -> set[Term] | None:
        """The sensors of a device; None: no rule is about it. authority: host, or host and port."""
        if authority not in self._by_device:
            return None
        return {sensor for source in self._by_device[authority] for sensor in source.sensors}

    def states(self) -> SensorStates:
        """For the health of the adapter."""
        now, sources = asyncio.get_running_loop().time(), self._sources.values()
        states = Counter(source.observation.status.state for source in sources)
        stale = sum(0 < source.fresh_until < now for source in sources)
        return SensorStates(states["observed"], states["polled"], states["unreachable"], states["refused"], stale)

    def status(self) -> str:
        """The end of a sentence for the status of the adapter; empty without sensors."""
        if not self._sources:
            return ""
        states = self.states()
        said = [f"{count_text(len(self._sources), 'sensor resource', ',')}"]
        said += [f"{states.unreachable:,} of them unreachable"] * bool(states.unreachable)
        said += [f"{states.refused:,} refuse"] * bool(states.refused)
        return f", {', '.join(said)}, {count_text(self.counters.committed, 'reading', ',')} committed"

    def renew(self, authority: str, *, observed: bool = False) -> None:
        """Asks a device for its states at once, because it answers again. observed: registers at observed resources
        again too."""
        for source in self._by_device.get(authority, ()):
            if observed or source.observation.status.state != "observed":
                source.observation.renew()

    def interrupt(self, authority: str) -> None:
        """Reports of a device may have been missed."""
        self._commits.repeats.interrupt(self._clock(), self.hosted(authority) or ())

    def renew_all(self) -> None:
        """Asks all sensors for their states, not all at once. Reports of them may have been missed."""
        self._commits.repeats.interrupt(self._clock())
        loop = asyncio.get_running_loop()
        for number, source in enumerate(self._sources.values()):
            loop.call_later(number / REGISTRATIONS_PER_S, source.observation.renew)

    # Rules

    def _group(self, rules: Iterable[ResourceRule]) -> dict[_Key, list[ResourceRule]]:
        """The rules by what is followed for them."""
        found: dict[_Key, list[ResourceRule]] = {}
        for rule in rules:
            key = _Key(rule.resource, rule.accepted.number, rule.table.device or "")
            if key not in found and len(found) >= self._resources_max:
                reason = (
                    f"more than {self._resources_max} resources are observed ({self._exchanges.table}.resources_max)"
                )
                self._warnings.reading(rule.resource, f"{rule.place}: {reason}")
                continue
            of_key = found.setdefault(key, [])
            of_key.append(rule)
            if self._observed_resource(key, rule) != self._observed_resource(key, of_key[0]):
                reason = f"observe, poll_s and max_age_s are those of {of_key[0].place}"
                self._warnings.reading(rule.resource, f"{rule.place}: {reason}")
        return found

    def _observed_resource(self, key: _Key, rule: ResourceRule) -> ObservedResource:
        table = rule.table
        max_age_s = table.max_age_s or self._exchanges.settings.max_age_s(key.device, uris.authority(key.uri))
        return ObservedResource(key.uri, key.accept, key.device, table.observe, table.poll_s, max_age_s)

    def _begin(self, key: _Key, rules: list[ResourceRule], delay_s: float) -> None:
        resource = self._observed_resource(key, rules[0])
        observation = self._exchanges.observation(resource, self._observed)
        authority = uris.authority(key.uri)
        source = _SensorResource(key, resource, observation, self._readers(rules), authority, _sensors(rules))
        self._sources[key] = source
        self._by_device.setdefault(authority, set()).add(source)
        self._follow(source, delay_s)

    def _follow(self, source: _SensorResource, delay_s: float) -> None:
        async def follow() -> None:
            await asyncio.sleep(delay_s)
            if not source.ended:
                await source.observation.run(partial(self._take, source))

        if self._tasks is not None:
            self._tasks.create_task(follow(), name=f"sensor {source.resource.uri}")

    def _readers(self, rules: Sequence[ResourceRule]) -> tuple[tuple[ResourceRule, ReadingRules[ResourceRule]], ...]:
        """The rules of one resource. Their readings come through the device and the adapter."""
        sources: tuple[Term, ...] = ()
        if self._node is not None:
            device = self._node(uris.authority(rules[0].resource))
            sources = device, iri(adapter_iri(self._base_iri, self._exchanges.kind))
        return tuple((rule, ReadingRules([rule], sources)) for rule in rules)

    def _end(self, source: _SensorResource) -> None:
        del self._sources[source.key]
        of_device = self._by_device[source.authority]
        of_device.discard(source)
        if not of_device:
            del self._by_device[source.authority]
        self._missed.discard(source)
        source.ended = True
        if self._tasks is not None:
            self._tasks.create_task(source.observation.cancel(), name=f"sensor {source.resource.uri} ends")

    # States

    def _take(self, source: _SensorResource, state: Observed) -> None:
        """Takes a state, or an answer that says why there is none; `_check` reports that."""
        self._contacts.heard(source.authority, state.at)
        # A loss after this answer is another one, also if it has the same reason and no look comes in between.
        if source.reported is not None and source.reported.state == "unreachable":
            source.reported = None
        source.fresh_until = state.fresh_until
        if not state.successful or source.ended:
            return
        self._last.keep(source.key.uri, state.body, state.at, content_format=state.format)
        self._missed.discard(source)
        if not self._waiting.add(source, state):
            # Asked for again after the turn, so that the newest state is not lost.
            self._missed.add(source)
            self.counters.missed += 1
        self._work.set()

    async def _write_turns(self) -> None:
        while True:
            with suppress(TimeoutError):  # readings that are held back are due some time
                async with asyncio.timeout(HELD_CHECK_S if self._commits.repeats.held else None):
                    await self._work.wait()
            # States that come together are written together.
            await asyncio.sleep(TURN_S)
            self._work.clear()
            self._writing, began = True, self._elapsed()
            waiting, self._waiting = self._waiting, _Waiting()
            trusted = self._trusted()
            readings: list[Reading] = []
            async for source, state in in_slices(waiting.states):
                readings += self._readings(source, state, trusted)
                if len(readings) >= BATCH_READINGS_MAX:
                    await self._write(readings)
                    readings = []
            await self._write(readings)
            self._writing = False
            # The gateway did not take them: silence during this time is no silence of the sensors.
            if self._elapsed() - began > STALL_S:
                self._intervals.interrupted(None, self._elapsed())
            missed, self._missed = self._missed, set()
            for source in missed:
                source.observation.renew()

    async def _write(self, readings: list[Reading]) -> None:
        written = self._commits.selected(readings, self._clock())
        if written:
            await self._commits.write(written, Writing(), None)

    def _readings(self, source: _SensorResource, state: Observed, trusted: bool) -> list[Reading]:
        if source.ended:
            return []
        readings: list[Reading] = []
        for rule, rules in source.readers:
            for one in self._failures.guarded(rule.resource, partial(_read, rule, rules, state, trusted)):
                if isinstance(one, PayloadError):
                    self.counters.unreadable += 1
                    self._warnings.reading(rule.resource, str(one))
                elif self._owners.may_write("", one):
                    readings.append(one)
                else:
                    self.counters.refused += 1
        source.sensors.update(reading.stream.sensor for reading in readings)
        # A polled resource answers when it is asked; only an observed one reports by itself.
        if source.observation.status.state == "observed":
            self._note_report(source, readings)
        return readings

    # Silent and unreachable sensors

    def _note_report(self, source: _SensorResource, readings: list[Reading]) -> None:
        """Learns how often a resource reports."""
        reports: dict[Term, tuple[Term, list[Term]]] = {}
        for reading in readings:
            report = reports.setdefault(reading.stream.platform, (reading.stream.iri, []))
            if not reading.value.endswith(NUMBERS):
                report[1].append(reading.value)
        now = self._elapsed()
        for platform, (stream, values) in reports.items():
            self._intervals.heard(ReportingChannel(source.key, source.key.uri, platform), stream, now, values)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self._report()
            # States wait: who is silent is not known yet.
            if self._work.is_set() or self._writing:
                continue
            now = self._elapsed()
            for platform in self._intervals.overdue(now, lambda source: source in self._sources):
                for key in self._intervals.sources(platform):
                    assert isinstance(key, _Key)
                    self._sources[key].observation.renew()  # a device that is alive answers
                self._intervals.mark(platform)
            self._intervals.online.clear()
            self._intervals.intervals.clear()

    def _report(self) -> None:
        """Reports what observations have become."""
        for source in self._sources.values():
            status = source.observation.status
            if status == source.reported:
                continue
            source.reported = status
            if status.state == "refused":
                self._warnings.reading(source.resource.uri, status.reason)
            elif status.state == "withheld":
                self._contacts.withheld(source.authority, source.resource.uri, status.reason)
                self._warnings.reading(source.resource.uri, not_allowed(source.resource.uri, self._exchanges.table))
            elif status.state == "unreachable":
                self._contacts.failed(source.authority, source.resource.uri, status.reason)


def _sensors(rules: Sequence[ResourceRule]) -> set[Term]:
    """The sensors that the rules name, without those of records."""
    return {stream.sensor for rule in rules for stream in rule.streams(rule.name)}


def _read(
    rule: ResourceRule, rules: ReadingRules[ResourceRule], state: Observed, trusted: bool
) -> list[Reading | PayloadError]:
    try:
        body = read_body(state.body, state.format, rule.accepted)
    except PayloadError as error:
        return [error]
    return rules.readings(rule.name, body, retained=False, received=state.at, trusted=trusted)
