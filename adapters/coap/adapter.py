"""Keeps CoAP devices in the states that the dataset gives for them, and writes what sensors measure.

::

    mapping/*.toml ─┐
    dataset rules  ─┼─▶ Output ─▶ ResourceSender ─▶ Exchanges ─┐
    coap.query     ─┘     ▲                                    ├─▶ Endpoint ◀──▶ devices
                          └── reported states ◀─ Observations ─┘
    gateway ◀───────────────── ResourceSensors ◀──────┘
    gateway ◀─── readings ─── CoapServer ◀───────────────── Endpoint ◀─── devices
       └──────── results ────────┘ └─────────────────────────────────▶ observers

`adapters.resources.running` has what all adapters of resources do. `server`: what devices send and observe.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.discovering import FoundDevices, Searcher
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.names import DeviceNames
from lamplighter.adapters.coap.observations import ObservingExchanges
from lamplighter.adapters.coap.protection import DeviceProtection, NewKeys
from lamplighter.adapters.coap.server import CoapMachine, CoapServer
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.devices.queried import QueryRule
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.resource_commands import resource_command
from lamplighter.adapters.mapping.tables import ResourceCommandTable
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.basis import AdapterBasis
from lamplighter.adapters.resources.commands import BoundCommand, CommandQuery
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.health import ResourceHealth
from lamplighter.adapters.resources.running import NO_RULES, ResourceAdapter, RunningPart, RunningResources
from lamplighter.engine.client import Jsap

SETTINGS_PLACE = "lamplighter.toml [coap] query"
NO_PROFILES: Mapping[str, Jsap] = MappingProxyType({})


class CoapHealth(ResourceHealth, frozen=True, kw_only=True):
    """observed: resources that are observed; registered: devices of the resource directory; observers: of the gateway's
    resources; listens: address of the server, or ""."""

    observed: int = 0
    registered: int = 0
    observers: int = 0
    listens: str = ""


@dataclass(slots=True)
class CoapCounters(ResourceCounters):
    """As `ResourceCounters`, with those of the endpoint."""

    endpoint: EndpointCounters = field(default_factory=EndpointCounters)

    def counts(self) -> dict[str, int]:
        return ResourceCounters.counts(self) | {
            "notifications": self.observations.notifications,
            "notifications_outdated": self.observations.notifications_outdated,
            "observations_renewed": self.observations.observations_renewed,
            "datagrams_malformed": self.endpoint.datagrams_malformed,
        }


class CoapResources(RunningResources):
    """The parts of one run. found: None if nothing is written of devices; server: None if it is disabled."""

    def __init__(
        self, basis: AdapterBasis, settings: CoapSettings, machine: CoapMachine, endpoint: Endpoint, contexts: Contexts
    ) -> None:
        context, self._settings = basis.context, settings
        plain = () if settings.plain is None and machine.secure else settings.plain
        unprotected = None if plain is None else machine.networks(plain, "coap.plain")
        networks = machine.networks(settings.networks, "coap.networks")
        seals = DeviceProtection(contexts, settings.devices, unprotected).seal
        exchanges = ObservingExchanges(endpoint, networks, settings, now=context.now, seals=seals)
        self._devices = DeviceNames(context.base_iri) if context.base_iri else None
        super().__init__(basis, exchanges, self._devices)
        self.found: FoundDevices | None = None
        if self._devices is not None:
            searcher = Searcher(endpoint, exchanges, networks)
            self.found = FoundDevices(
                self, exchanges, searcher, settings.discovery, self._devices, monotonic=machine.monotonic
            )
        self.server: CoapServer | None = None
        if settings.server.enabled:
            site = () if self.found is None else (self.found.site,)
            self.server = CoapServer(basis, settings, contexts, machine, site)
        self._keys = NewKeys(contexts, self._use_key)

    def knows_devices(self) -> bool:
        return self.found is None or self.found.ready

    def parts(self) -> list[RunningPart]:
        return [*super().parts(), *self._others(), self._keys]

    def _others(self) -> list[CoapServer | FoundDevices]:
        return [part for part in (self.server, self.found) if part is not None]

    def queries(self) -> list[QueryRule[BoundCommand]]:
        return [settings_query(self._settings.query)]

    def apply(self, files: ResourceRules, dataset: ResourceRules, *, known: bool) -> None:
        super().apply(files, dataset, known=known)
        if self.server is not None:
            self.server.posted.change_rules([*files.paths, *dataset.paths])

    def counts(self) -> dict[str, int]:
        counts = Counter(super().counts())
        for part in self._others():
            counts.update(part.counts())
        return counts

    def name_of(self, authority: str) -> str:
        """Of an adopted device, as in `lamplighter devices`; else the address."""
        adopted = None if self._devices is None else self._devices.adopted(authority)
        return authority if adopted is None else adopted.identity

    def health(self) -> CoapHealth:
        return CoapHealth(
            **msgspec.structs.asdict(super().health()),
            observed=self.states.observed() + self.sensors.states().observed,
            observers=0 if self.server is None else self.server.observers,
            listens="" if self.server is None else self.server.listens,
            registered=0 if self.found is None else self.found.registered,
        )

    def status(self) -> str:
        return super().status() + "".join(part.status() for part in self._others())

    def _use_key(self, address: str) -> None:
        """Sends again what was sent to a device without its new key, and what was withheld: it may have other names."""
        others = [device.authority for device in self.reachability.devices.values() if device.withheld]
        for device in dict.fromkeys([address, *others]):
            self.output.returned(device)
            self.states.renew(device)
            self.sensors.renew(device, observed=True)


class CoapAdapter(ResourceAdapter[CoapResources]):
    """Keeps devices in their states, reads sensors and answers devices for as long as `run` runs.

    files, rules: as for `ResourceAdapter`; profiles: of applications, whose queries the server offers. `tried` is set
    after the first result of coap.query. `run` raises ConfigurationError if coap.query lacks a variable or the keys
    cannot be used, a RequestError if the gateway refuses coap.query, and UpstreamError if there is no socket.
    """

    nothing = CoapHealth()

    def __init__(
        self,
        settings: CoapSettings,
        context: AdapterContext,
        machine: CoapMachine,
        *,
        files: ResourceRules = NO_RULES,
        rules: DatasetRules | None = None,
        profiles: Mapping[str, Jsap] = NO_PROFILES,
    ) -> None:
        counters = CoapCounters()
        super().__init__("coap", settings, context, counters, files, rules)
        self._datagrams = counters.endpoint
        self._settings, self._machine, self._profiles = settings, machine, profiles

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[CoapResources]:
        folder = self._machine.contexts
        contexts = Contexts() if folder is None else await asyncio.to_thread(Contexts.load, folder)
        try:
            endpoint = await self._machine.open_endpoint(self._settings, self._datagrams)
            try:
                yield CoapResources(self.basis, self._settings, self._machine, endpoint, contexts)
            finally:
                await endpoint.close()
        finally:
            if folder is not None:
                await asyncio.to_thread(contexts.close)

    def change_profiles(self, profiles: Mapping[str, Jsap]) -> None:
        """Takes other profiles."""
        self._profiles = profiles
        self.apply()

    def apply(self) -> None:
        super().apply()
        if self._running is not None and self._running.server is not None:
            self._running.server.query_resources.change_profiles(self._profiles)

    def health(self) -> CoapHealth:
        return self.nothing if self._running is None else self._running.health()

    def status(self) -> str:
        return super().status() if self.tried.is_set() else "waiting for the first result of its query"


def settings_query(query: str) -> CommandQuery:
    """The rule that the setting coap.query stands for: a PUT of ?payload as text to ?resource."""
    table = ResourceCommandTable(resource="{resource}", query=query)
    return CommandQuery(
        resource_command(table, prefixes={}, base_iri="", place=SETTINGS_PLACE, state_variable="payload"), others=True
    )
