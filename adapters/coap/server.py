"""The CoAP server of the gateway: socket, site, readings of devices, and results of queries."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lamplighter.adapters.coap.callers import Callers
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.discovering import GROUPS, INTERFACES_MAX, machine_interfaces
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.queries import QueryResources
from lamplighter.adapters.coap.readings import PostedReadings
from lamplighter.adapters.coap.serving import SiteCaller, SiteResource
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.coap.site import Site
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.mapping import PathRule
from lamplighter.adapters.model.commits import ReadingCommits, reading_model
from lamplighter.adapters.networks import Network, Networks, machine_networks
from lamplighter.adapters.resources.basis import AdapterBasis
from lamplighter.adapters.resources.counters import ReadingCounters
from lamplighter.engine.client import DeclaredCause, Jsap
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import iri, literal
from lamplighter.ontology.vocabulary import ADAPTER, LISTENS_ON, RDF_TYPE, adapter_iri, adapters_graph

RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
LOOPBACK = "127.0.0.0/8", "::1/128"

logger = EventLogger(__name__)


class CoapMachine(NamedTuple):
    """What the adapter uses of the machine. contexts: folder of the OSCORE keys, None: there are none. secure: whether
    only devices in `coap.plain` may do without a key by default. interfaces, monotonic: as for `Networks`;
    open_endpoint: opens the socket of requests."""

    contexts: Path | None = None
    secure: bool = False
    interfaces: Callable[[], Iterable[Network]] = machine_networks
    monotonic: Callable[[], float] = time.monotonic
    open_endpoint: Callable[[CoapSettings, EndpointCounters], Awaitable[Endpoint]] = Endpoint.client

    def networks(self, names: Sequence[str], key: str) -> Networks:
        """The networks that a setting names. key: its name."""
        return Networks(names, key, machine=self.interfaces, monotonic=self.monotonic)


class _Place(NamedTuple):
    host: str
    port: int
    requests_max: int


class CoapServer:
    """Listens and answers for as long as `run` runs.

    contexts: OSCORE keys. resources: further parts of the site.
    """

    def __init__(
        self,
        basis: AdapterBasis,
        settings: CoapSettings,
        contexts: Contexts,
        machine: CoapMachine,
        resources: Sequence[SiteResource] = (),
    ) -> None:
        server, secure = settings.server, machine.secure
        client, warnings = basis.context.client, basis.warnings
        self._datagrams = EndpointCounters()
        self._place = _Place(server.host or ("::" if secure else "127.0.0.1"), server.port, server.requests_max)
        self._client, self._base_iri = client, basis.context.base_iri
        self._devices, self._secure = settings.devices, secure
        self._listens = ""
        counters = ReadingCounters()
        self._posted = PostedReadings(
            ReadingCommits(
                client,
                kind="coap",
                model=reading_model(settings),
                streams_max=settings.streams_max,
                counters=counters,
                warn=warnings.reading,
            ),
            basis.owners,
            counters,
            basis.context,
            warnings.reading,
        )
        self._queries = QueryResources(client, self._allowed)
        plain = settings.plain
        if plain is None:
            plain = () if secure else (*settings.networks, *LOOPBACK)
        permitted = machine.networks(plain, "coap.plain")
        self._site = Site(
            Callers(contexts, settings.devices, permitted),
            [*resources, self._queries, self._posted],
            echo_writes=(server.echo or ("writes" if secure else "large")) == "writes",
            now=basis.context.now,
            monotonic=machine.monotonic,
        )

    def change_rules(self, rules: Sequence[PathRule]) -> None:
        """Puts other rules for paths into force."""
        self._posted.change_rules(rules)

    def change_profiles(self, profiles: Mapping[str, Jsap]) -> None:
        """Offers the queries of other profiles, by their names."""
        self._queries.change_profiles(profiles)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        return {
            **self._site.counts(),
            **self._posted.counts(),
            "requests_dropped": self._datagrams.requests_dropped,
            "requests_repeated": self._datagrams.duplicates,
            "datagrams_malformed": self._datagrams.datagrams_malformed,
        }

    def status(self) -> str:
        """For the status line of the adapter."""
        return f", listens on {self._listens}" if self._listens else ", does not listen"

    @property
    def observers(self) -> int:
        """Of all resources."""
        return self._site.observers

    @property
    def listens(self) -> str:
        """Address and port, such as "127.0.0.1:5683"; "" while there is no socket."""
        return self._listens

    async def run(self) -> None:
        """Runs until cancelled; then the socket is closed. While its port is taken, it tries again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._posted.run(), name="coap posted readings")
            tasks.create_task(self._queries.run(), name="coap queries")
            tasks.create_task(self._listen(tasks), name="coap server")

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        endpoint, failures = None, 0
        while endpoint is None:
            try:
                endpoint = await Endpoint.server(
                    self._place, self._site, self._datagrams, multicast=self._groups(), admits=self._site.admits
                )
            except UpstreamError as error:
                failures += 1
                if failures == 1:
                    logger.warning("coap server does not listen", reason=error)
                await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))
        host = f"[{self._place.host}]" if ":" in self._place.host else self._place.host
        self._listens = f"{host}:{endpoint.port}"
        logger.info("coap server listens", address=self._listens)
        try:
            if self._base_iri:
                tasks.create_task(self._write_address(), name="coap server address")
            await asyncio.Event().wait()
        finally:
            self._listens = ""
            await endpoint.close()

    def _groups(self) -> list[tuple[str, str]]:
        """The multicast groups to join: none where only one address is listened on."""
        if not ipaddress.ip_address(self._place.host).is_unspecified:
            return []
        return [(str(group), name) for group in GROUPS for name in machine_interfaces()[:INTERFACES_MAX]]

    async def _write_address(self) -> None:
        def refused(error: GatewayError) -> None:
            logger.warning("coap server address not written", reason=error)

        text = listens_update(self._base_iri, self._listens)
        await write(self._client, [text], DeclaredCause("coap", "server"), refused)

    def _allowed(self, caller: SiteCaller) -> frozenset[str] | None:
        if not self._secure:
            return None
        device = self._devices.get(caller.device)
        return frozenset(() if device is None else device.queries)


def listens_update(base_iri: str, address: str) -> str:
    """The update that replaces the address of the CoAP server."""
    node, graph = iri(adapter_iri(base_iri, "coap")), iri(adapters_graph(base_iri))
    return (
        f"DELETE {{ GRAPH {graph} {{ {node} <{LISTENS_ON}> ?before }} }}\n"
        f"INSERT {{ GRAPH {graph} {{ {node} <{RDF_TYPE}> <{ADAPTER}> ; <{LISTENS_ON}> {literal(address)} }} }}\n"
        f"WHERE {{ OPTIONAL {{ GRAPH {graph} {{ {node} <{LISTENS_ON}> ?before }} }} }}"
    )
