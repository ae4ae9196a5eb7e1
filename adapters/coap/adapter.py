"""Keeps CoAP devices in the states that the dataset gives for them, and writes what sensors measure.

::

    mapping/*.toml ─┐
    dataset rules  ─┼─▶ Output ─▶ ResourceSender ─▶ Exchanges ─┐
    coap.query     ─┘     ▲                                    ├─▶ Endpoint ◀──▶ devices
                          └── reported states ◀─ Observations ─┘
    gateway ◀───────────────── ResourceSensors ◀──────┘
    gateway ◀─── readings ─── CoapServer ◀───────────────── Endpoint ◀─── devices
       └──────── results ────────┘ └─────────────────────────────────▶ observers

`devices.output` has the contract. Of `adapters.resources`, `sender` has the requests, `states` what devices report,
`sensors` the readings, and `reachability` what is known of the devices. `server`: what devices send and observe.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

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
from lamplighter.adapters.counting import keep_counters
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.dropped import DropWarnings
from lamplighter.adapters.devices.output import Output
from lamplighter.adapters.devices.problem_writer import ProblemWriter
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.mapping.rule_feed import follow_rules
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.model.owners import StreamOwners
from lamplighter.adapters.networks import Network, Networks, machine_networks
from lamplighter.adapters.resources.commands import BoundCommand, bound_commands, command_queries
from lamplighter.adapters.resources.endings import first_error
from lamplighter.adapters.resources.health import WORST_MAX, keep_health, worst_devices
from lamplighter.adapters.resources.reachability import DeviceContacts, Reachability
from lamplighter.adapters.resources.sender import ResourceSender
from lamplighter.adapters.resources.sensors import ResourceSensors
from lamplighter.adapters.resources.states import DeviceStates
from lamplighter.engine.client import Jsap
from lamplighter.engine.tables import counted
from lamplighter.engine.terms import Term

SOURCES = "coap-mapping", "coap-command"
"""Of problems of readings, and of commands."""
NO_RULES = ResourceRules()
NO_PROFILES: Mapping[str, Jsap] = MappingProxyType({})
OpenEndpoint = Callable[[CoapSettings, EndpointCounters], Awaitable[Endpoint]]


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
        self._last = LastMessages() if last is None else last
        self.counters = CoapCounters()
        self.tried = asyncio.Event() if tried is None else tried
        self._settings = settings
        self._client = client
        self._files, self._profiles, self._rules = files, profiles, rules
        self._contexts = contexts
        self._base_iri, self._secure = base_iri, secure
        self._now, self._machine, self._monotonic = now, machine, monotonic
        self._open_endpoint = open_endpoint
        self._networks = Networks(settings.networks, "coap.networks", machine=machine, monotonic=monotonic)
        plain = () if settings.plain is None and secure else settings.plain
        self._plain = None if plain is None else Networks(plain, "coap.plain", machine=machine, monotonic=monotonic)
        self._trusted = trusted
        self._problems: ProblemWriter | None = None
        if base_iri:
            self._problems = ProblemWriter(client, base_iri=base_iri, kind="coap", sources=SOURCES, clock=now)
        self._warnings = DropWarnings("coap", self._note, sources=SOURCES)
        self._owners = StreamOwners(settings.streams_max, self._warnings.reading, kind="coap")
        self._output: Output[BoundCommand] | None = None
        self._sensors: ResourceSensors | None = None
        self._server: CoapServer | None = None
        self._found: FoundDevices | None = None
        self._names: DeviceNames | None = None
        self._all_rules = False
        self._reachability: Reachability | None = None
        self._states: DeviceStates | None = None

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
                self._output = self._reachability = self._states = self._sensors = None
                self._server = self._found = self._names = None
                await endpoint.close()
        finally:
            if self._contexts is not None:
                await asyncio.to_thread(contexts.close)

    async def _run(self, endpoint: Endpoint, contexts: Contexts) -> None:
        settings = self._settings
        protection = DeviceProtection(contexts, settings.devices, self._plain)
        exchanges = ObservingExchanges(endpoint, self._networks, settings, now=self._now, seals=protection.seal)

        def back(device: str) -> None:
            output.contact(device)
            states.renew(device)
            sensors.renew(device)

        names = DeviceNames(self._base_iri) if self._base_iri else None
        reachability = Reachability(
            self._client,
            names=names,
            contact_write_s=settings.contact_write_s,
            hosted=self._hosted,
            settled=lambda: self._all_rules and output.settled and (self._found is None or self._found.ready),
            on_back=back,
            now=self._now,
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
            kind="coap",
            note=self._warnings.state,
            counters=self.counters,
            retry=(settings.retry_min_s, settings.retry_max_s),
            follows_online=False,
            rejected=self._rejected,
            tried=self.tried,
        )
        sensors = self._made_sensors(exchanges, reachability)
        self._output, self._reachability, self._states, self._sensors = output, reachability, states, sensors
        self._found = None if names is None else self._made_found(exchanges, output.returned, reachability, names)
        self._names = names
        self._server = self._made_server(contexts) if settings.server.enabled else None
        self._apply()
        async with asyncio.TaskGroup() as tasks:
            keys = NewKeys(contexts, self._use_key)
            for part in (output, states, sensors, reachability, self._server, self._found, self._problems, keys):
                if part is not None:
                    tasks.create_task(part.run(), name=f"coap {type(part).__name__}")
            if self._base_iri:
                counting = keep_counters(self._client, self._base_iri, "coap", self.counts)
                tasks.create_task(counting, name="coap counters")
                keeping = keep_health(self._client, self._base_iri, "coap", self.health)
                tasks.create_task(keeping, name="coap health")
            if self._rules is not None:
                following = follow_rules(self._client, self._rules, self._apply)
                tasks.create_task(following, name="coap rules of the dataset")

    def _hosted(self, device: str) -> set[Term] | None:
        """The sensors and actuators of a device; None if it is not adopted, and no rule is about it."""
        found = [
            things for part in (self._output, self._sensors) if part and (things := part.hosted(device)) is not None
        ]
        if not found and (self._names is None or self._names.adopted(device) is None):
            return None
        return set().union(*found)

    def _use_key(self, address: str) -> None:
        """Sends again what was sent to a device without its new key, and what was withheld: it may have other names."""
        assert self._output and self._states and self._sensors and self._reachability
        others = [one.authority for one in self._reachability.devices.values() if one.withheld]
        for device in dict.fromkeys([address, *others]):
            self._output.returned(device)
            self._states.renew(device)
            self._sensors.renew(device, observed=True)

    def _made_sensors(self, exchanges: ObservingExchanges, reachability: Reachability) -> ResourceSensors:
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

    def _made_server(self, contexts: Contexts) -> CoapServer:
        return CoapServer(
            self._settings,
            self._client,
            contexts,
            secure=self._secure,
            warnings=self._warnings,
            owners=self._owners,
            resources=() if self._found is None else (self._found.site,),
            base_iri=self._base_iri,
            clock=self._now,
            trusted=self._trusted,
            machine=self._machine,
            monotonic=self._monotonic,
        )

    def _made_found(
        self,
        exchanges: ObservingExchanges,
        returned: Callable[[str], None],
        contacts: DeviceContacts,
        names: DeviceNames,
    ) -> FoundDevices:
        return FoundDevices(
            self._client,
            exchanges,
            self._networks,
            self._settings.discovery,
            base_iri=self._base_iri,
            returned=returned,
            contacts=contacts,
            names=names,
            now=self._now,
            monotonic=self._monotonic,
        )

    def remap(self, files: ResourceRules, profiles: Mapping[str, Jsap] = NO_PROFILES) -> None:
        """Takes other rules of files and other profiles. Observations and requests of rules that stay go on."""
        self._files, self._profiles = files, profiles
        self._apply()

    def _apply(self) -> None:
        """Puts the rules of files, of the dataset and of the settings into force, in this order."""
        if self._output is None or self._sensors is None:
            return
        dataset = NO_RULES if self._rules is None else self._rules.resources()
        others = [settings_query(self._settings.query)] if self._rules is None or self._rules.known else []
        self._output.change_rules(
            bound_commands(self._files.commands),
            bound_commands(dataset.commands),
            [
                *command_queries(self._files.commands),
                *command_queries(dataset.commands),
                *others,  # which are those without a rule is not known before
            ],
        )
        self._sensors.change_rules([*self._files.resources, *dataset.resources])
        self._all_rules = self._rules is None or self._rules.known
        if self._server is not None:
            self._server.change_rules([*self._files.paths, *dataset.paths])
            self._server.change_profiles(self._profiles)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        found = Counter(self.counters.counts())
        for part in (self._sensors, self._server, self._found):
            if part is not None:
                found.update(part.counts())
        return dict(found) | {"problems": self._warnings.count}

    def health(self) -> CoapHealth:
        """The summary for `/health`. The devices that do not answer come first, the longest first."""
        output, reachability, states, sensors = self._output, self._reachability, self._states, self._sensors
        if output is None or reachability is None or states is None or sensors is None:
            return CoapHealth()
        read = sensors.states()
        return CoapHealth(
            devices=reachability.known(),
            unreachable=len(reachability.away()),
            refusing=output.states().refused,
            observed=states.observed() + read.observed,
            stale=states.stale() + read.stale,
            observers=0 if self._server is None else self._server.observers,
            listens="" if self._server is None else self._server.listens,
            registered=0 if self._found is None else self._found.registered,
            worst=worst_devices(reachability.away(), output.refusals(WORST_MAX), self._name),
        )

    def _name(self, authority: str) -> str:
        """Of an adopted device, as in `lamplighter devices`; else the address."""
        adopted = None if self._names is None else self._names.adopted(authority)
        return authority if adopted is None else adopted.identity

    def status(self) -> str:
        """The adapter's health in one line."""
        output, reachability, sensors = self._output, self._reachability, self._sensors
        if output is None or reachability is None or sensors is None or not self.tried.is_set():
            return "waiting for the first result of its query"
        states = output.states()
        others = {
            "devices do not answer": len(reachability.away()),
            "are outside of coap.networks": reachability.outside(),
            "refuse their state": states.refused,
        }
        said = [counted(states.known, "actuator", ","), f"{self.counters.acknowledged:,} commands acknowledged"]
        said += [f"{count:,} {what}" for what, count in others.items() if count]
        parts = [one.status() for one in (self._server, self._found) if one is not None]
        return ", ".join(said) + sensors.status() + "".join(parts)

    def _rejected(self) -> None:
        self.counters.rejected_rows += 1

    def _note(self, problem: Problem) -> None:
        if self._problems is not None:
            self._problems.note(problem)
