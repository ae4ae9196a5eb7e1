"""The summary of an adapter's health, as a triple of the dataset.

::

    <base>adapter/coap a gateway:Adapter ; gateway:health "JSON"        in the graph <base>graph/adapters

The gateway shows it in `/health`, `/figures`, `/metrics` and ``lamplighter status``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.resources.reachability import KnownDevice
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


class ResourceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """devices: those that are sent to or read; unreachable: that do not answer; refusing: actuators whose state is
    refused; stale: resources that cannot be read for now."""

    devices: int = 0
    unreachable: int = 0
    refusing: int = 0
    stale: int = 0
    worst: tuple[WorstDevice, ...] = ()


def worst_devices(
    away: Sequence[KnownDevice], refusals: Sequence[tuple[str, str]], name: Callable[[str], str]
) -> tuple[WorstDevice, ...]:
    """Devices that do not answer first, then those that refuse their state. name: of a device, by its authority."""
    worst = [
        *(WorstDevice(name(one.authority), one.reason, one.since.isoformat() if one.since else "") for one in away),
        *(WorstDevice(name(uris.authority(to)), f"{urlsplit(to).path}: {reason}") for to, reason in refusals),
    ]
    return tuple(worst[:WORST_MAX])


def health_update(base_iri: str, kind: str, health: ResourceHealth) -> str:
    """The update that replaces the summary."""
    node, graph = iri(adapter_iri(base_iri, kind)), iri(adapters_graph(base_iri))
    text = literal(msgspec.json.encode(health).decode())
    return (
        f"DELETE {{ GRAPH {graph} {{ {node} <{HEALTH}> ?before }} }}\n"
        f"INSERT {{ GRAPH {graph} {{ {node} <{RDF_TYPE}> <{ADAPTER}> ; <{HEALTH}> {text} }} }}\n"
        f"WHERE {{ OPTIONAL {{ GRAPH {graph} {{ {node} <{HEALTH}> ?before }} }} }}"
    )


async def keep_health(client: UpdatesClient, base_iri: str, kind: str, health: Callable[[], ResourceHealth]) -> None:
    """Writes the summary when it has changed, until cancelled. An update that fails is repeated with newer values."""
    written: ResourceHealth | None = None
    while True:
        now = health()
        if now != written:
            request = UpdateRequest(sparql=health_update(base_iri, kind, now), cause=DeclaredCause(kind, "health"))
            [answer] = await client.updates([request])
            if isinstance(answer, GatewayError):
                logger.debug(f"{kind} health not stored", reason=answer)
            else:
                written = now
        await asyncio.sleep(WRITE_S)
