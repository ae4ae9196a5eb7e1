"""Reads polled devices, and keeps them in the states that the dataset gives for them.

::

    mapping/*.toml ─┬─▶ Output ─▶ ResourceSender ─▶ PolledExchanges ◀──▶ devices
    dataset rules  ─┘     ▲                            │
                          └── reported states ◀─ polls ┤
    gateway ◀──── readings ──── ResourceSensors ◀──────┘

It is the adapter for CoAP without what only CoAP has: discovery, a server, keys, and a query for all actuators.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.counting import keep_counters
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.dropped import DropWarnings
from lamplighter.adapters.devices.output import Output
from lamplighter.adapters.devices.problem_writer import ProblemWriter
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.adapters.mapping.tables import Kind
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.model.owners import StreamOwners
from lamplighter.adapters.resources.commands import BoundCommand, bound_commands, command_queries
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.endings import first_error
from lamplighter.adapters.resources.exchange import ResourceExchanges
from lamplighter.adapters.resources.health import WORST_MAX, ResourceHealth, keep_health, worst_devices
from lamplighter.adapters.resources.polled import PolledExchanges, PolledProtocol
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.adapters.resources.reachability import Reachability
from lamplighter.adapters.resources.sender import ResourceSender
from lamplighter.adapters.resources.sensors import ResourceSensors
from lamplighter.adapters.resources.states import DeviceStates
from lamplighter.engine.tables import counted
from lamplighter.engine.terms import Term, iri
from lamplighter.ontology.vocabulary import DEVICE_ADDRESS

NO_RULES = ResourceRules()


class AddressIris:
    """The devices by their addresses: ``<base>device/KIND/HOST~PORT``. It is a `DeviceIris` without adopted devices.
    port: the usual one."""

    address = DEVICE_ADDRESS

    def __init__(self, base_iri: str, kind: Kind) -> None:
        self.below = f"{base_iri}device/{kind}/"
        self._port = next(one.port for one in uris.SCHEMES.values() if one.kind == kind)
        self.node = lru_cache(4_096)(self._node)

    def _node(self, authority: str) -> Term:
        return iri(self.below + uris.address_name(authority, self._port))

    def adopted(self, authority: str) -> None:
        return None

    def is_described(self, thing: Term) -> bool:
        return False


class PolledAdapter:
    """Reads devices, and keeps them in their states, for as long as `run` runs.

    kind: of the adapter, whose rules it takes; table: of its settings, for people. protocol: makes the protocol, which
    the adapter closes at the end of a run. files: rules of mapping/*.toml; rules: those of the dataset, None: they are
    not followed. now: returns the time, with a time zone; trusted: whether the gateway's clock is synchronised.
    base_iri: where the adapter keeps what it knows of devices and its counters as triples; empty: nowhere. tried: set
    as soon as it runs. last: keeps the last state of each resource.
    """

    def __init__(
        self,
        kind: Kind,
        table: str,
        settings: PolledSettings,
        client: AdapterClient,
        protocol: Callable[[], PolledProtocol],
        *,
        files: ResourceRules = NO_RULES,
        rules: DatasetRules | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        trusted: Callable[[], bool] = lambda: True,
        base_iri: str = "",
        tried: asyncio.Event | None = None,
        last: LastMessages | None = None,
    ) -> None:
        self.counters = ResourceCounters()
        self.tried = asyncio.Event() if tried is None else tried
        self._kind, self._table, self._settings = kind, table, settings
        self._client, self._protocol = client, protocol
        self._files, self._rules = files, rules
        self._now, self._trusted, self._base_iri = now, trusted, base_iri
        self._last = LastMessages() if last is None else last
        sources = f"{kind}-mapping", f"{kind}-command"
        self._problems: ProblemWriter | None = None
        if base_iri:
            self._problems = ProblemWriter(client, base_iri=base_iri, kind=kind, sources=sources, clock=now)
        self._warnings = DropWarnings(kind, self._note, sources=sources)
        self._owners = StreamOwners(settings.streams_max, self._warnings.reading, kind=table)
        self._all_rules = False
        self._output: Output[BoundCommand] | None = None
        self._sensors: ResourceSensors | None = None
        self._reachability: Reachability | None = None
        self._states: DeviceStates | None = None

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task or connection behind. Raises UpstreamError if the client is
        closed."""
        protocol = self._protocol()
        try:
            await self._run(
                PolledExchanges(protocol, self._settings, kind=self._kind, table=self._table, now=self._now)
            )
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._output = self._reachability = self._states = self._sensors = None
            await protocol.close()

    async def _run(self, exchanges: ResourceExchanges) -> None:
        kind, retry = self._kind, (self._settings.retry_min_s, self._settings.retry_max_s)

        def back(device: str) -> None:
            output.contact(device)
            states.renew(device)
            sensors.renew(device)

        reachability = Reachability(
            self._client,
            names=AddressIris(self._base_iri, kind) if self._base_iri else None,
            contact_write_s=self._settings.contact_write_s,
            hosted=self._hosted,
            settled=lambda: self._all_rules and output.settled,
            on_back=back,
            now=self._now,
            kind=kind,
        )
        states = DeviceStates(
            exchanges,
            self.counters.observations,
            reachability,
            take=lambda reports: output.take(reports),
            changed=lambda device: output.contact(device),
            returned=lambda device: output.returned(device),
            note=self._warnings.state,
            last=self._last,
        )
        output = Output(
            self._client,
            ResourceSender(exchanges, self.counters, reachability, states),
            kind=kind,
            note=self._warnings.state,
            counters=self.counters,
            retry=retry,
            follows_online=False,
            rejected=self._rejected,
        )
        sensors = self._made_sensors(exchanges, reachability)
        self._output, self._reachability, self._states, self._sensors = output, reachability, states, sensors
        self._apply()
        self.tried.set()
        async with asyncio.TaskGroup() as tasks:
            for part in (output, states, sensors, reachability, self._problems):
                if part is not None:
                    tasks.create_task(part.run(), name=f"{kind} {type(part).__name__}")
            if self._base_iri:
                counting = keep_counters(self._client, self._base_iri, kind, self.counts)
                tasks.create_task(counting, name=f"{kind} counters")
                keeping = keep_health(self._client, self._base_iri, kind, self.health)
                tasks.create_task(keeping, name=f"{kind} health")
            if self._rules is not None:
                following = follow_rules(self._client, self._rules, self._apply)
                tasks.create_task(following, name=f"{kind} rules of the dataset")

    def _made_sensors(self, exchanges: ResourceExchanges, reachability: Reachability) -> ResourceSensors:
        settings = self._settings
        return ResourceSensors(
            exchanges,
            self._client,
            contacts=reachability,
            warnings=self._warnings,
            owners=self._owners,
            observations=self.counters.observations,
            resources_max=settings.resources_max,
            model=settings.model,
            events_kept=settings.events_kept,
            trusted=self._trusted,
            clock=self._now,
            last=self._last,
        )

    def remap(self, files: ResourceRules) -> None:
        """Takes other rules of files. Polls and requests of rules that stay go on."""
        self._files = files
        self._apply()

    def _apply(self) -> None:
        """Puts the rules of files and of the dataset into force, in this order."""
        if self._output is None or self._sensors is None:
            return
        dataset = NO_RULES if self._rules is None else self._rules.resources()
        self._output.change_rules(
            bound_commands(self._files.commands),
            bound_commands(dataset.commands),
            [*command_queries(self._files.commands), *command_queries(dataset.commands)],
        )
        self._sensors.change_rules([*self._files.resources, *dataset.resources])
        self._all_rules = self._rules is None or self._rules.known

    def _hosted(self, device: str) -> set[Term] | None:
        """The sensors and actuators of a device; None if no rule is about it."""
        found = [
            things for part in (self._output, self._sensors) if part and (things := part.hosted(device)) is not None
        ]
        return set().union(*found) if found else None

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        found = Counter(self.counters.counts())
        if self._sensors is not None:
            found.update(self._sensors.counts())
        return dict(found) | {"problems": self._warnings.count}

    def health(self) -> ResourceHealth:
        """The summary for `/health`. The devices that do not answer come first, the longest first."""
        output, reachability, states, sensors = self._output, self._reachability, self._states, self._sensors
        if output is None or reachability is None or states is None or sensors is None:
            return ResourceHealth()
        away = reachability.away()
        return ResourceHealth(
            devices=reachability.known(),
            unreachable=len(away),
            refusing=output.states().refused,
            stale=states.stale() + sensors.states().stale,
            worst=worst_devices(away, output.refusals(WORST_MAX), lambda authority: authority),
        )

    def status(self) -> str:
        """The adapter's health in one line."""
        output, reachability, sensors = self._output, self._reachability, self._sensors
        if output is None or reachability is None or sensors is None:
            return "starting"
        states = output.states()
        others = {
            "devices do not answer": len(reachability.away()),
            f"are outside of {self._table}.networks": reachability.outside(),
            "refuse their state": states.refused,
        }
        said = [counted(states.known, "actuator", ","), f"{self.counters.acknowledged:,} commands acknowledged"]
        said += [f"{count:,} {what}" for what, count in others.items() if count]
        return ", ".join(said) + sensors.status()

    def _rejected(self) -> None:
        self.counters.rejected_rows += 1

    def _note(self, problem: Problem) -> None:
        if self._problems is not None:
            self._problems.note(problem)
