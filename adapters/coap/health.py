"""The summary of the adapter's health, as a triple of the dataset.

::

    <base>adapter/coap a gateway:Adapter ; gateway:health "JSON"        in the graph <base>graph/adapters

The gateway shows it in `/health`, `/figures`, `/metrics` and ``lamplighter status``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lamplighter.adapters.client import UpdatesClient
from lamplighter.engine.client import DeclaredCause, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import iri, literal
from lamplighter.ontology.vocabulary import ADAPTER, HEALTH, RDF_TYPE, adapter_iri, adapters_graph

WRITE_S = 5.0
WORST_MAX = 20

logger = EventLogger(__name__)


class WorstDevice(msgspec.Struct, frozen=True):
    """device: identity of an adopted one, else host or host:port; reason: for people, why it has no contact or refuses;
    since: a time in ISO 8601, or ""."""

    device: str
    reason: str
    since: str = ""


class CoapHealth(msgspec.Struct, frozen=True, kw_only=True):
    """devices: those that are sent to or read; unreachable: that do not answer; refusing: actuators whose state is
    refused; observed: resources that are observed; stale: resources that cannot be read for now; registered: devices of
    the resource directory; observers: of the gateway's resources; listens: address of the server, or ""."""

    devices: int = 0
    unreachable: int = 0
    refusing: int = 0
    observed: int = 0
    stale: int = 0
    registered: int = 0
    observers: int = 0
    listens: str = ""
    worst: tuple[WorstDevice, ...] = ()


def health_update(base_iri: str, health: CoapHealth) -> str:
    """The update that replaces the summary."""
    node, graph = iri(adapter_iri(base_iri, "coap")), iri(adapters_graph(base_iri))
    text = literal(msgspec.json.encode(health).decode())
    return (
        f"DELETE {{ GRAPH {graph} {{ {node} <{HEALTH}> ?before }} }}\n"
        f"INSERT {{ GRAPH {graph} {{ {node} <{RDF_TYPE}> <{ADAPTER}> ; <{HEALTH}> {text} }} }}\n"
        f"WHERE {{ OPTIONAL {{ GRAPH {graph} {{ {node} <{HEALTH}> ?before }} }} }}"
    )


async def keep_health(client: UpdatesClient, base_iri: str, health: Callable[[], CoapHealth]) -> None:
    """Writes the summary when it has changed, until cancelled. An update that fails is repeated with newer values."""
    written: CoapHealth | None = None
    while True:
        now = health()
        if now != written:
            request = UpdateRequest(sparql=health_update(base_iri, now), cause=DeclaredCause("coap", "health"))
            [answer] = await client.updates([request])
            if isinstance(answer, GatewayError):
                logger.debug("coap health not stored", reason=answer)
            else:
                written = now
        await asyncio.sleep(WRITE_S)
