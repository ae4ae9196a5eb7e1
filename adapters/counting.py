"""The counters of an adapter, as a triple of the dataset.

::

    <base>adapter/mqtt a gateway:Adapter ; gateway:counters "JSON"      in the graph <base>graph/adapters

The gateway shows them in `/metrics`, `/figures` and ``lamplighter status``. They are written only when they change, and
at most each `WRITE_S`, because each update wears an SD card.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

from lamplighter.adapters.client import UpdatesClient
from lamplighter.engine.client import DeclaredCause, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import iri, literal
from lamplighter.ontology.vocabulary import ADAPTER, COUNTERS, RDF_TYPE, adapter_iri, adapters_graph

WRITE_S = 60.0

logger = EventLogger(__name__)


def counters_update(base_iri: str, kind: str, counts: Mapping[str, int]) -> str:
    """The update that replaces the counters of an adapter. kind: "mqtt" or "coap"."""
    node, graph = iri(adapter_iri(base_iri, kind)), iri(adapters_graph(base_iri))
    return (
        f"DELETE {{ GRAPH {graph} {{ {node} <{COUNTERS}> ?before }} }}\n"
        f"INSERT {{ GRAPH {graph} {{ {node} <{RDF_TYPE}> <{ADAPTER}> ; "
        f"<{COUNTERS}> {literal(json.dumps(dict(counts)))} }} }}\n"
        f"WHERE {{ OPTIONAL {{ GRAPH {graph} {{ {node} <{COUNTERS}> ?before }} }} }}"
    )


async def keep_counters(
    client: UpdatesClient, base_iri: str, kind: str, counts: Callable[[], Mapping[str, int]]
) -> None:
    """Writes the counters until cancelled. An update that fails is not repeated; the next one has newer counters."""
    written = dict(counts())
    while True:
        await asyncio.sleep(WRITE_S)
        now = dict(counts())
        if now == written:
            continue
        request = UpdateRequest(sparql=counters_update(base_iri, kind, now), cause=DeclaredCause(kind, "counters"))
        [answer] = await client.updates([request])
        if isinstance(answer, GatewayError):
            logger.debug("adapter counters not stored", adapter=kind, reason=answer)
        else:
            written = now
