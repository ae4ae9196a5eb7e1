"""The states that devices report, by observing their resources or by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from lamplighter.adapters.devices.output import ReportedState
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.tables import ResourceStateTable
from lamplighter.adapters.resources.basis import AdapterBasis
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.adapters.resources.commands import BoundCommand
from lamplighter.adapters.resources.exchange import (
    Observed,
    ObservedResource,
    ResourceExchanges,
    ResourceObservation,
)
from lamplighter.adapters.resources.reachability import Reachability
from lamplighter.adapters.resources.sensors import REGISTRATIONS_PER_S
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import TokenBucket
from lamplighter.engine.terms import Term

# How often it is looked which observations have lost their device.
CHECK_S = 1.0
# Starts of a device that are logged. A device says itself that it has started.
STARTS_PER_S, STARTS_BURST = 1 / 600, 5

logger = EventLogger(__name__)


@dataclass(eq=False)
class _Followed:
    """A resource with the state of actuators. rules: those that read it; readable: whether the last answer was a state,
    or that there is none; epoch: it is read for its changes only."""

    resource: ObservedResource
    observation: ResourceObservation
    epoch: bool
    rules: set[BoundCommand] = field(default_factory=set)
    readable: bool = False
    body: bytes | None = None
    task: asyncio.Task[None] | None = None
    lost: bool = False
    starts: TokenBucket = field(default_factory=lambda: TokenBucket(STARTS_PER_S, STARTS_BURST))


class DeviceStates:
    """take: what devices report, newest of each rule; changed: called with a device when how its states are read
    changes; returned: called with a device that has started again."""

    def __init__(
        self,
        exchanges: ResourceExchanges,
        basis: AdapterBasis,
        reachability: Reachability,
        *,
        take: Callable[[Sequence[ReportedState[BoundCommand]]], Awaitable[None]],
        changed: Callable[[str], None],
        returned: Callable[[str], None],
    ) -> None:
        self._last, self._note = basis.context.last, basis.warnings.state
        self._exchanges = exchanges
        self._settings = exchanges.settings
        self._counters = basis.counters.observations
        self._reachability = reachability
        self._take, self._changed, self._returned = take, changed, returned
        self._followed: dict[tuple[ObservedResource, bool], _Followed] = {}
        self._places: dict[BoundCommand, list[tuple[ObservedResource, bool]]] = {}  # of rules in force
        self._reports: dict[BoundCommand, ReportedState[BoundCommand]] = {}
        self._reported = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Reads states until cancelled. Raises UpstreamError when the gateway's client is closed."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for one in self._followed.values():
                    self._start(one)
                self._tasks.create_task(self._report(), name=f"{self._exchanges.kind} reports")
                while True:
                    await asyncio.sleep(CHECK_S)
                    self._check()
        finally:
            self._tasks = None

    def follow(self, rule: BoundCommand) -> None:
        """Begins to read the state of a rule, if it is not read yet."""
        if rule in self._places:
            return
        self._places[rule] = self._places_of(rule)
        for resource, epoch in self._places[rule]:
            followed = self._followed.get((resource, epoch))
            if followed is None:
                if len(self._followed) >= self._settings.resources_max:
                    self._note(
                        resource.uri,
                        f"more resources than {self._exchanges.table}.resources_max are read; this one is not",
                    )
                    continue
                observation = self._exchanges.observation(resource, self._counters)
                followed = self._followed[resource, epoch] = _Followed(resource, observation, epoch)
                self._start(followed)
            followed.rules.add(rule)

    def leave(self, rule: BoundCommand) -> None:
        """Ends what `follow` began."""
        self._reports.pop(rule, None)
        for key in self._places.pop(rule, ()):
            followed = self._followed.get(key)
            if followed is None or rule not in followed.rules:
                continue
            followed.rules.remove(rule)
            if not followed.rules:
                del self._followed[key]
                if self._tasks is not None:
                    self._tasks.create_task(followed.observation.cancel(), name=f"end of {key[0].uri}")

    def renew(self, device: str) -> None:
        """Reads the states of a device again at once, as it may have forgotten who observes it."""
        for followed in self._followed.values():
            if any(rule.device == device for rule in followed.rules):
                followed.observation.renew()

    def renew_all(self) -> None:
        """Reads all states again, not all at once. Reports of them may have been missed."""
        loop = asyncio.get_running_loop()
        for number, followed in enumerate(self._followed.values()):
            loop.call_later(number / REGISTRATIONS_PER_S, followed.observation.renew)

    def refresh(self, rule: BoundCommand) -> None:
        """Reads the state of a rule again at once, unless it is observed."""
        for key in self.places(rule):
            if key in self._followed and self._followed[key].observation.status.state != "observed":
                self._followed[key].observation.renew()

    def observed(self) -> int:
        return sum(one.observation.status.state == "observed" for one in self._followed.values())

    def stale(self) -> int:
        return sum(one.observation.status.state == "unreachable" for one in self._followed.values())

    def places(self, rule: BoundCommand) -> list[tuple[ObservedResource, bool]]:
        """The resources that are read for a rule; true for those that tell of a start."""
        found = self._places.get(rule)
        return self._places_of(rule) if found is None else found

    def _places_of(self, rule: BoundCommand) -> list[tuple[ObservedResource, bool]]:
        found = []
        settings, table, read = self._settings, rule.table, rule.rule.state
        interval = table.reassert_s or settings.reassert_s or 60.0
        try:
            uri, epoch = rule.state_uri(), rule.epoch_uri()
        except PayloadError as error:
            self._note(rule.resource, f"{rule.place}: {error}")
            return []
        device = table.device or ""
        if uri is not None and read is not None:
            chosen = read.table
            state = ObservedResource(
                uri,
                read.accepted.number,
                chosen.device or device,
                "never" if read.observe == "never" else "always" if read.observe == "always" else "auto",
                chosen.poll_s if isinstance(table.state, ResourceStateTable) else max(interval, 1.0),
                chosen.max_age_s or self._settings.max_age_s(chosen.device or device, uris.authority(uri)),
            )
            found.append((state, False))
        if epoch is not None:
            found.append((ObservedResource(epoch, device=device, observe="never", poll_s=interval / 2), True))
        return found

    def is_readable(self, rule: BoundCommand) -> bool:
        """Whether the last answer was the state of the rule, or that there is none."""
        for key in self.places(rule):
            followed = self._followed.get(key)
            if not key[1] and followed is not None:
                return followed.readable and followed.observation.status.state != "unreachable"
        return False

    def _start(self, followed: _Followed) -> None:
        if self._tasks is not None:
            followed.task = self._tasks.create_task(
                followed.observation.run(lambda state: self._on_state(followed, state)),
                name=f"state of {followed.resource.uri}",
            )

    def _on_state(self, followed: _Followed, state: Observed) -> None:
        if not followed.rules:
            return
        device = next(iter(followed.rules)).device
        self._reachability.heard(device, state.at)
        followed.lost = False  # a loss after this answer is another one, also if no look comes in between
        if followed.epoch:
            before, followed.body = followed.body, state.body if state.successful else followed.body
            # A resource that differs after each start, such as a boot counter: another value means that the device has
            # forgotten all.
            if before is not None and followed.body != before:
                # A device that restarts all the time does not fill the log; its states are sent nevertheless.
                if not followed.starts.take(asyncio.get_running_loop().time()):
                    logger.info(f"{self._exchanges.kind} device started again", device=device)
                self._returned(device)
                self.renew(device)
            return
        if state.successful:
            self._last.keep(followed.resource.uri, state.body, state.at, content_format=state.format)
        readable, sources = False, self._reachability.sources(device)
        for rule in followed.rules:
            if state.code == "4.04":  # it has forgotten the resource, or never had it
                self._reports[rule] = ReportedState(rule, None, state.at, retained=False, sources=sources)
                readable = True
            elif state.successful:
                try:
                    found = self.value(rule, followed.resource.uri, state.body, state.format)
                except PayloadError as error:
                    self._note(followed.resource.uri, f"{rule.place}: {error}")
                    continue
                readable = True
                if found is not None:
                    self._reports[rule] = ReportedState(rule, found, state.at, retained=False, sources=sources)
        self._reported.set()
        if readable != followed.readable:
            followed.readable = readable
            self._changed(device)

    def value(self, rule: BoundCommand, uri: str, body: bytes, content_format: int | None) -> Term | None:
        """The state in a body; None: it has none, and may do so. Raises PayloadError."""
        state = rule.rule.state
        assert state is not None
        return state.value(read_body(body, content_format, state.accepted), uri, self._exchanges.now())

    def unreadable(self, rule: BoundCommand, uri: str, error: PayloadError) -> None:
        """Notes a body that the rule cannot read."""
        self._note(uri, f"{rule.place}: {error}")

    def _check(self) -> None:
        """Tells of devices that an observation cannot reach."""
        for followed in self._followed.values():
            status = followed.observation.status
            # Told once, when it begins: `Reachability` writes the time.
            lost = status.state == "unreachable"
            if lost and followed.rules and not followed.lost:
                device = next(iter(followed.rules)).device
                self._reachability.failed(device, followed.resource.uri, status.reason)
                self._changed(device)
            followed.lost = lost

    async def _report(self) -> None:
        while True:
            await self._reported.wait()
            self._reported.clear()
            found, self._reports = list(self._reports.values()), {}
            await self._take(found)
