"""Reads polled devices, and keeps them in the states that the dataset gives for them: `running`, with polls.

It is the adapter for CoAP without what only CoAP has: discovery, a server, keys, and a query for all actuators.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lamplighter.adapters.mapping import load_resource_rules, uris
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext, AdapterInput
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.polled import PolledExchanges, PolledProtocol
from lamplighter.adapters.resources.polled_settings import PolledSettings
from lamplighter.adapters.resources.running import NO_RULES, ResourceAdapter, RunningResources
from lamplighter.adapters.specs import Kind, table_name
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


class PolledAdapter(ResourceAdapter[RunningResources]):
    """protocol: makes the protocol, which is closed at the end of a run. kind, files, rules: as for `ResourceAdapter`.
    `tried` is set as soon as it runs."""

    def __init__(
        self,
        kind: Kind,
        settings: PolledSettings,
        context: AdapterContext,
        protocol: Callable[[], PolledProtocol],
        files: ResourceRules = NO_RULES,
        rules: DatasetRules | None = None,
    ) -> None:
        super().__init__(kind, settings, context, ResourceCounters(), files, rules)
        self._settings, self._protocol = settings, protocol

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[RunningResources]:
        context, kind, protocol = self.basis.context, self.basis.kind, self._protocol()
        exchanges = PolledExchanges(protocol, self._settings, kind=kind, table=table_name(kind), now=context.now)
        self.tried.set()
        try:
            yield RunningResources(
                self.basis, exchanges, AddressIris(context.base_iri, kind) if context.base_iri else None
            )
        finally:
            await protocol.close()


@dataclass(frozen=True)
class PolledParts:
    """What an adapter for polled devices is made from. protocol: makes the protocol from settings, networks and
    `files`, the contents of the files that the settings name."""

    kind: Kind
    settings: PolledSettings
    base_iri: str
    rules: ResourceRules
    protocol: Callable[..., PolledProtocol]
    files: tuple[Any, ...]

    def adapter(self, context: AdapterContext, before: PolledParts | None) -> PolledAdapter:
        networks = Networks(self.settings.networks, f"{table_name(self.kind)}.networks")
        return PolledAdapter(
            self.kind,
            self.settings,
            replace(context, base_iri=self.base_iri),
            lambda: self.protocol(self.settings, networks, *self.files),
            self.rules,
            DatasetRules(self.base_iri, kind=self.kind),
        )

    def adopt(self, running: PolledAdapter, before: PolledParts) -> bool:
        if replace(before, rules=self.rules) != self:
            return False
        running.remap(self.rules)
        return True


def polled_parts(given: AdapterInput, protocol: Callable[..., PolledProtocol], *files: Any) -> PolledParts:
    """The parts of an adapter for polled devices. protocol, files: see `PolledParts`. Raises ConfigurationError."""
    rules = load_resource_rules(given.folder / "mapping", given.base_iri, given.spec.name)
    return PolledParts(given.spec.name, given.settings, given.base_iri, rules, protocol, files)
