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
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from lamplighter.adapters.counting import keep_counters
from lamplighter.adapters.devices.output import Output, OutputPolicy
from lamplighter.adapters.devices.queried import QueryRule
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.presence import keep_presence
from lamplighter.adapters.resources.basis import AdapterBasis, adapter_basis
from lamplighter.adapters.resources.commands import BoundCommand, bound_commands, command_queries
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.exchange import ResourceExchanges, ResourceSettings
from lamplighter.adapters.resources.health import WORST_MAX, ResourceHealth, keep_health, worst_devices
from lamplighter.adapters.resources.reachability import DeviceIris, Reachability
from lamplighter.adapters.resources.sender import ResourceSender
from lamplighter.adapters.resources.sensors import ResourceSensors
from lamplighter.adapters.resources.states import DeviceStates
from lamplighter.adapters.specs import Kind, table_name
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Term

NO_RULES = ResourceRules()


class RunningPart(Protocol):
    """Works until cancelled."""

    async def run(self) -> None: ...


class RunningResources:
    """The parts that work on the devices during one run of an adapter.

    names: which resources of the dataset the devices are; None: nothing is written of them.
    """

    def __init__(self, basis: AdapterBasis, exchanges: ResourceExchanges, names: DeviceIris | None) -> None:
        self.basis, self._names = basis, names
        self._all_rules = False
        settings, context, warnings = basis.settings, basis.context, basis.warnings
        self.reachability = Reachability(
            basis,
            names,
            hosted=self._hosted,
            settled=lambda: self._all_rules and self.output.settled and self.knows_devices(),
            on_back=self._back,
        )
        self.states = DeviceStates(
            exchanges,
            basis,
            self.reachability,
            take=lambda reports: self.output.take(reports),
            changed=lambda device: self.output.contact(device),
            returned=lambda device: self.output.returned(device),
        )
        self.output: Output[BoundCommand] = Output(
            context.client,
            ResourceSender(exchanges, basis.counters, self.reachability, self.states),
            OutputPolicy(basis.kind, (settings.retry_min_s, settings.retry_max_s), follows_online=False),
            note=warnings.state,
            counters=basis.counters,
            tried=context.tried,
        )
        self.sensors = ResourceSensors(exchanges, basis, self.reachability, node=None if names is None else names.node)

    def knows_devices(self) -> bool:
        """Whether all devices are known that the adapter finds by itself."""
        return True

    def parts(self) -> list[RunningPart]:
        """What runs."""
        parts: list[RunningPart] = [self.output, self.states, self.sensors, self.reachability]
        return parts if self.basis.problems is None else [*parts, self.basis.problems]

    def queries(self) -> list[QueryRule[BoundCommand]]:
        """Queries of the settings for actuators that no rule is about."""
        return []

    def apply(self, files: ResourceRules, dataset: ResourceRules, *, known: bool) -> None:
        """Puts the rules of files, of the dataset and of the settings into force, in this order. known: whether those
        of the dataset are known, so that it is known which actuators and devices have none."""
        self.output.change_rules(
            bound_commands(files.commands),
            bound_commands(dataset.commands),
            [
                *command_queries(files.commands),
                *command_queries(dataset.commands),
                *(self.queries() if known else ()),
            ],
        )
        self.sensors.change_rules([*files.resources, *dataset.resources])
        self._all_rules = known

    def counts(self) -> dict[str, int]:
        """What is counted, by the adapter and in this run."""
        counts = Counter(self.basis.counters.counts())
        counts.update(self.sensors.counters.counts())
        return counts

    def name_of(self, authority: str) -> str:
        """The name of a device, for people."""
        return authority

    def health(self) -> ResourceHealth:
        """The summary for `/health`. The devices that do not answer come first, the longest first."""
        away = self.reachability.away()
        return ResourceHealth(
            devices=self.reachability.known(),
            unreachable=len(away),
            refusing=self.output.states().refused,
            stale=self.states.stale() + self.sensors.states().stale,
            worst=worst_devices(away, self.output.refusals(WORST_MAX), self.name_of),
        )

    def status(self) -> str:
        """The adapter's health in one line."""
        states = self.output.states()
        others = {
            "devices do not answer": len(self.reachability.away()),
            f"are outside of {table_name(self.basis.kind)}.networks": self.reachability.outside(),
            "refuse their state": states.refused,
        }
        acknowledged = self.basis.counters.acknowledged
        said = [count_text(states.known, "actuator", ","), f"{acknowledged:,} commands acknowledged"]
        said += [f"{count:,} {what}" for what, count in others.items() if count]
        return ", ".join(said) + self.sensors.status()

    def _back(self, device: str) -> None:
        self.output.contact(device)
        self.states.renew(device)
        self.sensors.renew(device)
        self.sensors.interrupt(device)
        self.output.interrupt(self.basis.context.now(), device)

    def ask_again(self) -> None:
        """The gateway has come back."""
        self.output.interrupt(self.basis.context.now())
        self.sensors.renew_all()
        self.states.renew_all()

    def _hosted(self, device: str) -> set[Term] | None:
        """The sensors and actuators of a device; None if it is not adopted, and no rule is about it."""
        found = [things for part in (self.output, self.sensors) if (things := part.hosted(device)) is not None]
        if not found and (self._names is None or self._names.adopted(device) is None):
            return None
        return set().union(*found)


Resources = TypeVar("Resources", bound=RunningResources)


class ResourceAdapter(ABC, Generic[Resources]):
    """Reads devices, and keeps them in their states, for as long as `run` runs.

    kind: of the adapter, whose rules it takes. files: rules of mapping/*.toml; rules: those of the dataset, None: they
    are not followed.
    """

    # Its health while it does not run.
    nothing: ResourceHealth = ResourceHealth()

    def __init__(
        self,
        kind: Kind,
        settings: ResourceSettings,
        context: AdapterContext,
        counters: ResourceCounters,
        files: ResourceRules,
        rules: DatasetRules | None,
    ) -> None:
        self.tried, self.counters = context.tried, counters
        self.basis = adapter_basis(kind, settings, context, counters)
        self._files, self._rules = files, rules
        self._running: Resources | None = None

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Resources]:
        """The parts of one run. What they use is closed when they are left."""

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task, connection or socket behind. Raises UpstreamError if the client is
        closed, and what `opened` raises."""
        try:
            async with self.opened() as self._running:
                self.apply()
                await self._run(self._running)
        except BaseExceptionGroup as group:
            raise _first_error(group) from None
        finally:
            self._running = None

    async def _run(self, running: Resources) -> None:
        """Runs the parts, and keeps what the adapter reports in the dataset."""
        kind, client, base_iri = self.basis.kind, self.basis.context.client, self.basis.context.base_iri
        async with asyncio.TaskGroup() as tasks:
            for part in running.parts():
                tasks.create_task(part.run(), name=f"{kind} {type(part).__name__}")
            if base_iri:
                counting = keep_counters(client, base_iri, kind, self.counts)
                tasks.create_task(counting, name=f"{kind} counters")
                presence = keep_presence(client, base_iri, kind, self.basis.context.now, running.ask_again)
                tasks.create_task(presence, name=f"{kind} presence")
                tasks.create_task(keep_health(client, base_iri, kind, self.health), name=f"{kind} health")
            if self._rules is not None:
                following = follow_rules(client, self._rules, self.apply)
                tasks.create_task(following, name=f"{kind} rules of the dataset")

    def remap(self, files: ResourceRules) -> None:
        """Takes other rules of files. Observations, polls and requests of rules that stay go on."""
        self._files = files
        self.apply()

    def apply(self) -> None:
        """Puts the rules of files, of the dataset and of the settings into force, in this order."""
        if self._running is None:
            return
        rules = self._rules
        if rules is None:
            self._running.apply(self._files, NO_RULES, known=True)
        else:
            self._running.apply(self._files, rules.resources(), known=rules.known)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        counts = self.basis.counters.counts() if self._running is None else self._running.counts()
        return dict(counts) | {"problems": self.basis.warnings.count}

    def health(self) -> ResourceHealth:
        """The summary for `/health`."""
        return self.nothing if self._running is None else self._running.health()

    def status(self) -> str:
        """The adapter's health in one line."""
        return "starting" if self._running is None else self._running.status()


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a gateway among several, else the first one."""
    errors: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(error.exceptions)
        else:
            errors.append(error)
    return next((error for error in errors if isinstance(error, GatewayError)), errors[0])
