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
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from lamplighter.adapters.coap.commands import settings_query
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.counters import CoapCounters
from lamplighter.adapters.coap.discovering import FoundDevices
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.health import CoapHealth
from lamplighter.adapters.coap.names import DeviceNames
from lamplighter.adapters.coap.observations import ObservingExchanges
from lamplighter.adapters.coap.protection import DeviceProtection, NewKeys
from lamplighter.adapters.coap.server import CoapServer, ServerClient
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.networks import Network, Networks, machine_networks
from lamplighter.adapters.resources.endings import first_error
from lamplighter.adapters.resources.running import NO_RULES, AdapterBasis, RunningResources
from lamplighter.engine.client import Jsap

NO_PROFILES: Mapping[str, Jsap] = MappingProxyType({})
OpenEndpoint = Callable[[CoapSettings, EndpointCounters], Awaitable[Endpoint]]


@dataclass(frozen=True)
class _Running:
    """The parts of one run. server: None if it is disabled; names, found: None if nothing is written of devices."""

    resources: RunningResources
    names: DeviceNames | None
    found: FoundDevices | None
    server: CoapServer | None


class CoapAdapter:
    """Keeps devices in their states, reads sensors and answers devices for as long as `run` runs.

    files: rules of mapping/*.toml; profiles: of applications, whose queries the server offers; rules: those of the
    dataset, None: they are not followed. contexts: folder of the OSCORE keys, None: there are none. secure: whether
    only devices in `coap.plain` may do without a key by default. now: returns the time, with a time zone; machine,
    monotonic: as for `Networks`; open_endpoint: opens the socket of requests. trusted: whether the gateway's clock is
    synchronised. tried: set after the first result of coap.query. base_iri: where the adapter keeps what it knows of
    devices and its counters as triples; empty: nowhere. last: keeps the last state of each resource.
    """

    def __init__(
        self,
        settings: CoapSettings,
        client: ServerClient,
        *,
        files: ResourceRules = NO_RULES,
        profiles: Mapping[str, Jsap] = NO_PROFILES,
        rules: DatasetRules | None = None,
        contexts: Path | None = None,
        secure: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        machine: Callable[[], Iterable[Network]] = machine_networks,
        monotonic: Callable[[], float] = time.monotonic,
        open_endpoint: OpenEndpoint = Endpoint.client,
        trusted: Callable[[], bool] = lambda: True,
        base_iri: str = "",
        tried: asyncio.Event | None = None,
        last: LastMessages | None = None,
    ) -> None:
        self.counters = CoapCounters()
        self.tried = asyncio.Event() if tried is None else tried
        self._basis = AdapterBasis(
            "coap",
            "coap",
            settings,
            client,
            self.counters,
            rules=rules,
            now=now,
            trusted=trusted,
            base_iri=base_iri,
            last=last,
        )
        self._settings, self._client = settings, client
        self._files, self._profiles = files, profiles
        self._contexts, self._secure = contexts, secure
        self._machine, self._monotonic, self._open_endpoint = machine, monotonic, open_endpoint
        self._networks = Networks(settings.networks, "coap.networks", machine=machine, monotonic=monotonic)
        plain = () if settings.plain is None and secure else settings.plain
        self._plain = None if plain is None else Networks(plain, "coap.plain", machine=machine, monotonic=monotonic)
        self._running: _Running | None = None

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task or socket behind.

        Raises ConfigurationError if coap.query lacks a variable or the keys cannot be used, a RequestError if the
        gateway refuses coap.query, and UpstreamError if the client is closed or there is no socket.
        """
        contexts = Contexts() if self._contexts is None else await asyncio.to_thread(Contexts.load, self._contexts)
        try:
            endpoint = await self._open_endpoint(self._settings, self.counters.endpoint)
            try:
                await self._run(endpoint, contexts)
            except BaseExceptionGroup as group:
                raise first_error(group) from None
            finally:
                self._running = None
                await endpoint.close()
        finally:
            if self._contexts is not None:
                await asyncio.to_thread(contexts.close)

    async def _run(self, endpoint: Endpoint, contexts: Contexts) -> None:
        basis = self._basis
        protection = DeviceProtection(contexts, self._settings.devices, self._plain)
        exchanges = ObservingExchanges(endpoint, self._networks, self._settings, now=basis.now, seals=protection.seal)
        names = DeviceNames(basis.base_iri) if basis.base_iri else None
        resources = RunningResources(
            basis, exchanges, names, tried=self.tried, ready=lambda: found is None or found.ready
        )
        found = None if names is None else self._made_found(exchanges, resources, names)
        server = self._made_server(contexts, found) if self._settings.server.enabled else None
        self._running = _Running(resources, names, found, server)
        self.apply()
        await resources.run(self, server, found, NewKeys(contexts, self._use_key))

    def _use_key(self, address: str) -> None:
        """Sends again what was sent to a device without its new key, and what was withheld: it may have other names."""
        assert self._running is not None
        resources = self._running.resources
        others = [one.authority for one in resources.reachability.devices.values() if one.withheld]
        for device in dict.fromkeys([address, *others]):
            resources.output.returned(device)
            resources.states.renew(device)
            resources.sensors.renew(device, observed=True)

    def _made_server(self, contexts: Contexts, found: FoundDevices | None) -> CoapServer:
        basis = self._basis
        return CoapServer(
            self._settings,
            self._client,
            contexts,
            secure=self._secure,
            warnings=basis.warnings,
            owners=basis.owners,
            resources=() if found is None else (found.site,),
            base_iri=basis.base_iri,
            clock=basis.now,
            trusted=basis.trusted,
            machine=self._machine,
            monotonic=self._monotonic,
        )

    def _made_found(
        self, exchanges: ObservingExchanges, resources: RunningResources, names: DeviceNames
    ) -> FoundDevices:
        return FoundDevices(
            self._client,
            exchanges,
            self._networks,
            self._settings.discovery,
            base_iri=self._basis.base_iri,
            returned=resources.output.returned,
            contacts=resources.reachability,
            names=names,
            now=self._basis.now,
            monotonic=self._monotonic,
        )

    def remap(self, files: ResourceRules, profiles: Mapping[str, Jsap] = NO_PROFILES) -> None:
        """Takes other rules of files and other profiles. Observations and requests of rules that stay go on."""
        self._files, self._profiles = files, profiles
        self.apply()

    def apply(self) -> None:
        """Puts the rules of files, of the dataset and of the settings into force, in this order."""
        running = self._running
        if running is None:
            return
        # Which actuators have no rule is not known before the rules of the dataset are.
        queries = [settings_query(self._settings.query)] if self._basis.knows_rules else []
        running.resources.apply(self._files, queries)
        if running.server is not None:
            running.server.change_rules([*self._files.paths, *self._basis.dataset_rules().paths])
            running.server.change_profiles(self._profiles)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        counts, running = Counter(self.counters.counts()), self._running
        if running is not None:
            for part in (running.resources.sensors, running.server, running.found):
                if part is not None:
                    counts.update(part.counts())
        return dict(counts) | {"problems": self._basis.warnings.count}

    def health(self) -> CoapHealth:
        """The summary for `/health`."""
        if self._running is None:
            return CoapHealth()
        resources, server, found = self._running.resources, self._running.server, self._running.found
        return CoapHealth(
            **msgspec.structs.asdict(resources.health(self._name)),
            observed=resources.states.observed() + resources.sensors.states().observed,
            observers=0 if server is None else server.observers,
            listens="" if server is None else server.listens,
            registered=0 if found is None else found.registered,
        )

    def _name(self, authority: str) -> str:
        """Of an adopted device, as in `lamplighter devices`; else the address."""
        names = None if self._running is None else self._running.names
        adopted = None if names is None else names.adopted(authority)
        return authority if adopted is None else adopted.identity

    def status(self) -> str:
        """The adapter's health in one line."""
        if self._running is None or not self.tried.is_set():
            return "waiting for the first result of its query"
        parts = (self._running.resources, self._running.server, self._running.found)
        return "".join(part.status() for part in parts if part is not None)
