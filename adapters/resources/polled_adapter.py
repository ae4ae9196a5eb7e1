"""Reads polled devices, and keeps them in the states that the dataset gives for them: `running`, with polls.

It is the adapter for CoAP without what only CoAP has: discovery, a server, keys, and a query for all actuators.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.mapping import load_resource_rules, uris
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext, AdapterInput
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.endings import first_error
from lamplighter.adapters.resources.health import ResourceHealth
from lamplighter.adapters.resources.polled import PolledExchanges, PolledProtocol
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.adapters.resources.running import NO_RULES, AdapterBasis, RunningResources
from lamplighter.adapters.specs import AdapterSpec, Kind
from lamplighter.engine.terms import Term, iri
from lamplighter.ontology.vocabulary import DEVICE_ADDRESS


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
        self._basis = AdapterBasis(
            kind,
            table,
            settings,
            client,
            self.counters,
            rules=rules,
            now=now,
            trusted=trusted,
            base_iri=base_iri,
            last=last,
        )
        self._settings, self._protocol, self._files = settings, protocol, files
        self._running: RunningResources | None = None

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task or connection behind. Raises UpstreamError if the client is
        closed."""
        basis, protocol = self._basis, self._protocol()
        exchanges = PolledExchanges(protocol, self._settings, kind=basis.kind, table=basis.table, now=basis.now)
        self._running = RunningResources(
            basis, exchanges, AddressIris(basis.base_iri, basis.kind) if basis.base_iri else None
        )
        try:
            self.apply()
            self.tried.set()
            await self._running.run(self)
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._running = None
            await protocol.close()

    def remap(self, files: ResourceRules) -> None:
        """Takes other rules of files. Polls and requests of rules that stay go on."""
        self._files = files
        self.apply()

    def apply(self) -> None:
        """Puts the rules of files and of the dataset into force, in this order."""
        if self._running is not None:
            self._running.apply(self._files)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        found = Counter(self.counters.counts())
        if self._running is not None:
            found.update(self._running.sensors.counts())
        return dict(found) | {"problems": self._basis.warnings.count}

    def health(self) -> ResourceHealth:
        """The summary for `/health`."""
        return ResourceHealth() if self._running is None else self._running.health()

    def status(self) -> str:
        """The adapter's health in one line."""
        return "starting" if self._running is None else self._running.status()


@dataclass(frozen=True)
class PolledParts:
    """What an adapter for polled devices is made from. protocol: makes the protocol from settings, networks and
    `files`, the contents of the files that the settings name."""

    spec: AdapterSpec
    settings: PolledSettings
    base_iri: str
    rules: ResourceRules
    protocol: Callable[..., PolledProtocol]
    files: tuple[Any, ...]

    def adapter(self, context: AdapterContext, before: PolledParts | None) -> PolledAdapter:
        kind, table = self.spec.name, self.spec.table
        networks = Networks(self.settings.networks, f"{table}.networks")
        return PolledAdapter(
            kind,
            table,
            self.settings,
            context.client,
            lambda: self.protocol(self.settings, networks, *self.files),
            files=self.rules,
            rules=DatasetRules(self.base_iri, kind=kind),
            trusted=context.trusted,
            base_iri=self.base_iri,
            tried=context.tried,
            last=context.last,
        )

    def adopt(self, running: PolledAdapter, before: PolledParts) -> bool:
        if replace(before, rules=self.rules) != self:
            return False
        running.remap(self.rules)
        return True


def polled_parts(given: AdapterInput, protocol: Callable[..., PolledProtocol], *files: Any) -> PolledParts:
    """The parts of an adapter for polled devices. protocol, files: see `PolledParts`. Raises ConfigurationError."""
    rules = load_resource_rules(given.folder / "mapping", given.base_iri, given.spec.name)
    return PolledParts(given.spec, given.settings, given.base_iri, rules, protocol, files)
