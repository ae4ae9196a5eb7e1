"""The CoAP server of the gateway: socket, site, readings of devices, and results of queries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from lamplighter.adapters.client import retry_s
from lamplighter.adapters.coap.callers import Callers
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
from lamplighter.adapters.coap.queries import QueriesClient, QueryResources
from lamplighter.adapters.coap.readings import PostCounters, PostedReadings
from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.serving import SiteCaller, SiteResource
from lamplighter.adapters.coap.settings import CoapDeviceSettings
from lamplighter.adapters.coap.site import Site
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.mapping import PathRule
from lamplighter.adapters.model.commits import ReadingCommits
from lamplighter.adapters.model.owners import StreamOwners
from lamplighter.adapters.networks import Network, Networks, machine_networks
from lamplighter.engine.client import DeclaredCause, Jsap, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import iri, literal
from lamplighter.ontology.vocabulary import ADAPTER, LISTENS_ON, RDF_TYPE, adapter_iri, adapters_graph

RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
LOOPBACK = "127.0.0.0/8", "::1/128"

logger = EventLogger(__name__)


class ServerClient(QueriesClient, Protocol):
    """The connection to the gateway."""

    @property
    def connected(self) -> bool: ...

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]: ...


class _Place(NamedTuple):
    host: str
    port: int
    requests_max: int


class CoapServer:
    """Listens and answers for as long as `run` runs.

    contexts: OSCORE keys; devices: tables ``[coap.devices.NAME]``; networks, plain: of `CoapSettings`; secure: of
    ``security.enabled``. commits, owners, counters, warn, clock, trusted: as for `PostedReadings`. resources: further
    parts of the site. base_iri: where the address is written as a triple; empty: nowhere. machine, monotonic: as for
    `Networks`.
    """

    def __init__(
        self,
        settings: CoapServerSettings,
        client: ServerClient,
        *,
        contexts: Contexts,
        devices: Mapping[str, CoapDeviceSettings],
        networks: Sequence[str],
        plain: Sequence[str] | None,
        secure: bool,
        commits: ReadingCommits,
        owners: StreamOwners,
        counters: PostCounters,
        warn: Callable[[str, str], None],
        resources: Sequence[SiteResource] = (),
        base_iri: str = "",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        trusted: Callable[[], bool] = lambda: True,
        machine: Callable[[], Iterable[Network]] = machine_networks,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint_counters = EndpointCounters()
        host = settings.host or ("::" if secure else "127.0.0.1")
        self._place = _Place(host, settings.port, settings.requests_max)
        self._client, self._base_iri = client, base_iri
        self._devices, self._secure = devices, secure
        self._listens = ""
        self.posted = PostedReadings(
            commits,
            owners,
            counters,
            connected=lambda: client.connected,
            warn=warn,
            clock=clock,
            trusted=trusted,
        )
        self.queries = QueryResources(client, self._allowed)
        if plain is None:
            plain = () if secure else (*networks, *LOOPBACK)
        permitted = Networks(plain, "coap.plain", machine=machine, monotonic=monotonic)
        self.site = Site(
            Callers(contexts, devices, permitted),
            [*resources, self.queries, self.posted],
            echo_writes=(settings.echo or ("writes" if secure else "large")) == "writes",
            now=clock,
            monotonic=monotonic,
        )

    def change_rules(self, rules: Sequence[PathRule]) -> None:
        """Puts other rules for paths into force."""
        self.posted.change_rules(rules)

    def change_profiles(self, profiles: Mapping[str, Jsap]) -> None:
        """Offers the queries of other profiles, by their names."""
        self.queries.change_profiles(profiles)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        found = self.posted.counters
        return self.site.counts() | {
            "requests_dropped": self.endpoint_counters.requests_dropped,
            "posted_readings": found.committed,
            "posted_readings_refused": found.rejected + found.foreign,
            "posted_readings_repeated": found.repeated,
            "posted_readings_outdated": found.outdated,
            "posts_unreadable": found.unreadable,
            "duplicates": self.endpoint_counters.duplicates,
            "server_datagrams_malformed": self.endpoint_counters.datagrams_malformed,
        }

    @property
    def listens(self) -> str:
        """Address and port, such as "127.0.0.1:5683"; "" while there is no socket."""
        return self._listens

    async def run(self) -> None:
        """Runs until cancelled; then the socket is closed. While its port is taken, it tries again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.posted.run(), name="coap posted readings")
            tasks.create_task(self.queries.run(), name="coap queries")
            tasks.create_task(self._listen(tasks), name="coap server")

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        endpoint, failures = None, 0
        while endpoint is None:
            try:
                endpoint = await Endpoint.server(
                    self._place, self.site, self.endpoint_counters, admits=self.site.admits
                )
            except UpstreamError as error:
                failures += 1
                if failures == 1:
                    logger.warning("coap server does not listen", reason=error)
                await asyncio.sleep(retry_s(failures, RETRY_MIN_S, RETRY_MAX_S))
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
