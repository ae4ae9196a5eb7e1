"""What adapters of resources have in common: what they keep, and the parts that work on their devices.

::

    mapping/*.toml ─┬─▶ Output ─▶ ResourceSender ─▶ ResourceExchanges ◀──▶ devices
    dataset rules  ─┘     ▲                            │
                          └── reported states ◀────────┤ answers, polls, notifications
    gateway ◀──── readings ──── ResourceSensors ◀──────┘

`devices.output` has the contract. `sender` has the requests, `states` what devices report, `sensors` the readings, and
`reachability` what is known of the devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.counting import keep_counters
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.dropped import DropWarnings
from lamplighter.adapters.devices.output import Output
from lamplighter.adapters.devices.problem_writer import ProblemWriter
from lamplighter.adapters.devices.queried import QueryRule
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.adapters.mapping.tables import Kind
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.model.owners import StreamOwners
from lamplighter.adapters.resources.commands import BoundCommand, bound_commands, command_queries
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.exchange import ResourceExchanges, ResourceSettings
from lamplighter.adapters.resources.health import WORST_MAX, ResourceHealth, keep_health, worst_devices
from lamplighter.adapters.resources.reachability import DeviceIris, Reachability
from lamplighter.adapters.resources.sender import ResourceSender
from lamplighter.adapters.resources.sensors import ResourceSensors
from lamplighter.adapters.resources.states import DeviceStates
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Term

NO_RULES = ResourceRules()


class RunningPart(Protocol):
    """Works until cancelled."""

    async def run(self) -> None: ...


class ResourceAdapter(Protocol):
    """What an adapter says of itself, and its rules."""

    def counts(self) -> dict[str, int]: ...

    def health(self) -> ResourceHealth: ...

    def apply(self) -> None: ...


class AdapterBasis:
    """What an adapter keeps from run to run.

    kind: of the adapter, whose rules it takes; table: of its settings, for people. rules: those of the dataset, None:
    they are not followed. now: returns the time, with a time zone; trusted: whether the gateway's clock is
    synchronised. base_iri: where the adapter keeps what it knows of devices, its counters and its health as triples;
    empty: nowhere. last: keeps the last state of each resource.
    """

    def __init__(
        self,
        kind: Kind,
        table: str,
        settings: ResourceSettings,
        client: AdapterClient,
        counters: ResourceCounters,
        *,
        rules: DatasetRules | None,
        now: Callable[[], datetime],
        trusted: Callable[[], bool],
        base_iri: str,
        last: LastMessages | None,
    ) -> None:
        self.kind, self.table, self.settings = kind, table, settings
        self.client, self.counters, self.rules = client, counters, rules
        self.now, self.trusted, self.base_iri = now, trusted, base_iri
        self.last = LastMessages() if last is None else last
        sources = f"{kind}-mapping", f"{kind}-command"  # of problems of readings, and of commands
        self.problems: ProblemWriter | None = None
        if base_iri:
            self.problems = ProblemWriter(client, base_iri=base_iri, kind=kind, sources=sources, clock=now)
        self.warnings = DropWarnings(kind, self._note, sources=sources)
        self.owners = StreamOwners(settings.streams_max, self.warnings.reading, kind=table)

    def dataset_rules(self) -> ResourceRules:
        """Those of the dataset, as far as they are known."""
        return NO_RULES if self.rules is None else self.rules.resources()

    @property
    def knows_rules(self) -> bool:
        """Whether those of the dataset are known, if they are followed."""
        return self.rules is None or self.rules.known

    def _note(self, problem: Problem) -> None:
        if self.problems is not None:
            self.problems.note(problem)


class RunningResources:
    """The parts that work on the devices during one run of an adapter.

    names: which resources of the dataset the devices are; None: nothing is written of them. tried: set after the first
    result of the query that all actuators share, if there is one. ready: whether all devices are known that the adapter
    finds by itself.
    """

    def __init__(
        self,
        basis: AdapterBasis,
        exchanges: ResourceExchanges,
        names: DeviceIris | None,
        *,
        tried: asyncio.Event | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._basis, self._names = basis, names
        self._all_rules = False
        settings, counters, warnings = basis.settings, basis.counters, basis.warnings
        self.reachability = Reachability(
            basis.client,
            names=names,
            contact_write_s=settings.contact_write_s,
            hosted=self._hosted,
            settled=lambda: self._all_rules and self.output.settled and ready(),
            on_back=self._back,
            now=basis.now,
            kind=basis.kind,
        )
        self.states = DeviceStates(
            exchanges,
            counters.observations,
            self.reachability,
            take=lambda reports: self.output.take(reports),
            changed=lambda device: self.output.contact(device),
            returned=lambda device: self.output.returned(device),
            note=warnings.state,
            last=basis.last,
        )
        self.output: Output[BoundCommand] = Output(
            basis.client,
            ResourceSender(exchanges, counters, self.reachability, self.states),
            kind=basis.kind,
            note=warnings.state,
            counters=counters,
            retry=(settings.retry_min_s, settings.retry_max_s),
            follows_online=False,
            rejected=self._rejected,
            tried=tried,
        )
        self.sensors = ResourceSensors(
            exchanges,
            basis.client,
            contacts=self.reachability,
            warnings=warnings,
            owners=basis.owners,
            observations=counters.observations,
            resources_max=settings.resources_max,
            model=settings.model,
            events_kept=settings.events_kept,
            trusted=basis.trusted,
            clock=basis.now,
            last=basis.last,
        )

    async def run(self, adapter: ResourceAdapter, *others: RunningPart | None) -> None:
        """Runs these parts and the others that there are, and keeps what the adapter reports in the dataset."""
        basis, kind = self._basis, self._basis.kind
        async with asyncio.TaskGroup() as tasks:
            parts = (self.output, self.states, self.sensors, self.reachability, *others, basis.problems)
            for part in parts:
                if part is not None:
                    tasks.create_task(part.run(), name=f"{kind} {type(part).__name__}")
            if basis.base_iri:
                counting = keep_counters(basis.client, basis.base_iri, kind, adapter.counts)
                tasks.create_task(counting, name=f"{kind} counters")
                keeping = keep_health(basis.client, basis.base_iri, kind, adapter.health)
                tasks.create_task(keeping, name=f"{kind} health")
            if basis.rules is not None:
                following = follow_rules(basis.client, basis.rules, adapter.apply)
                tasks.create_task(following, name=f"{kind} rules of the dataset")

    def apply(self, files: ResourceRules, queries: Sequence[QueryRule[BoundCommand]] = ()) -> None:
        """Puts the rules of files and of the dataset into force, in this order. queries: further ones, whose actuators
        are those that no rule is about."""
        dataset = self._basis.dataset_rules()
        self.output.change_rules(
            bound_commands(files.commands),
            bound_commands(dataset.commands),
            [*command_queries(files.commands), *command_queries(dataset.commands), *queries],
        )
        self.sensors.change_rules([*files.resources, *dataset.resources])
        self._all_rules = self._basis.knows_rules

    def health(self, name: Callable[[str], str] = lambda authority: authority) -> ResourceHealth:
        """The summary for `/health`. The devices that do not answer come first, the longest first. name: of a device,
        by its authority."""
        away = self.reachability.away()
        return ResourceHealth(
            devices=self.reachability.known(),
            unreachable=len(away),
            refusing=self.output.states().refused,
            stale=self.states.stale() + self.sensors.states().stale,
            worst=worst_devices(away, self.output.refusals(WORST_MAX), name),
        )

    def status(self) -> str:
        """The adapter's health in one line."""
        states = self.output.states()
        others = {
            "devices do not answer": len(self.reachability.away()),
            f"are outside of {self._basis.table}.networks": self.reachability.outside(),
            "refuse their state": states.refused,
        }
        acknowledged = self._basis.counters.acknowledged
        said = [count_text(states.known, "actuator", ","), f"{acknowledged:,} commands acknowledged"]
        said += [f"{count:,} {what}" for what, count in others.items() if count]
        return ", ".join(said) + self.sensors.status()

    def _back(self, device: str) -> None:
        self.output.contact(device)
        self.states.renew(device)
        self.sensors.renew(device)

    def _hosted(self, device: str) -> set[Term] | None:
        """The sensors and actuators of a device; None if it is not adopted, and no rule is about it."""
        found = [things for part in (self.output, self.sensors) if (things := part.hosted(device)) is not None]
        if not found and (self._names is None or self._names.adopted(device) is None):
            return None
        return set().union(*found)

    def _rejected(self) -> None:
        self._basis.counters.rejected_rows += 1
