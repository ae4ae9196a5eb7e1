"""The official client of the Model Context Protocol, at a gateway under test; and an application for it."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.running_gateway import TIMEOUT_S

EX = "http://example.org/"
APPLICATION: dict[str, Any] = {
    "namespaces": {"ex": EX},
    "queries": {
        "TEMPERATURES": {
            "description": "The rooms and their temperatures",
            "sparql": "SELECT ?room ?value { ?room ex:temperature ?value } ORDER BY ?room",
            "forcedBindings": {"room": {"type": "uri", "description": "only this room"}},
        },
        "WARMER": {
            "sparql": "# Rooms that are warmer than a limit.\nSELECT ?room { ?room ex:temperature ?v "
            "FILTER(?v > ?limit) } ORDER BY ?room",
            "forcedBindings": {"limit": {"datatype": "xsd:decimal", "value": ""}},
        },
        "LABELLED": {"sparql": "SELECT ?room { ?room ex:label ?text }", "forcedBindings": {"text": {"value": ""}}},
        "ANY": {"sparql": "ASK { ?room ex:temperature ?value }", "forcedBindings": {"room": {"type": "uri"}}},
        "GRAPH": {"sparql": "CONSTRUCT WHERE { ?room ex:temperature ?value }"},
        "SECRETS": {"sparql": "SELECT ?s { ?s ex:secret ?o }", "graphs": {"default-graph-uri": [f"{EX}hidden"]}},
        "OPEN": {
            "sparql": "SELECT ?s ?o { ?s ex:said ?o } ORDER BY ?o",
            "graphs": {"default-graph-uri": [f"{EX}open"]},
        },
        "EVERYWHERE": {"sparql": "SELECT ?g ?o { GRAPH ?g { ?s ex:said ?o } } ORDER BY ?o"},
    },
    "updates": {
        "SET": {
            "description": "Replaces the temperature of a room",
            "sparql": "DELETE { ?room ex:temperature ?o } INSERT { ?room ex:temperature ?value } "
            "WHERE { OPTIONAL { ?room ex:temperature ?o } }",
            "forcedBindings": {
                "room": {"type": "uri", "value": ""},
                "value": {"datatype": "xsd:decimal", "value": ""},
            },
        },
        "COUNT": {
            "sparql": "INSERT { [] ex:counted true } WHERE {}",
        },
        "NOTE": {
            "sparql": "INSERT DATA { GRAPH ex:open { ?thing ex:said ?text } }",
            "forcedBindings": {"thing": {"type": "uri", "value": ""}, "text": {"value": ""}},
        },
        "LATER": {"sparql": "INSERT DATA { ex:later ex:said true }", "delay": "PT1H"},
    },
}
"""Queries and updates of each kind, and of several graphs."""
ROOMS = f"""PREFIX ex: <{EX}> INSERT DATA {{
  ex:kitchen ex:temperature 21.5 ; ex:label "kitchen" . ex:attic ex:temperature 30 ; ex:label "attic" .
  GRAPH ex:open {{ ex:anna ex:said "hello", "ciao"@it }}
  GRAPH ex:hidden {{ ex:anna ex:secret 1 ; ex:said "psst" }} }}"""

SLOW = "SELECT (COUNT(*) AS ?count) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l . ?m ?n ?o }"
"""A query that a dataset of some hundred quads keeps running."""


def declared(folder: Path, application: dict[str, Any] = APPLICATION, name: str = "house") -> None:
    """Writes an application where the gateway of a folder finds it."""
    (folder / "apps").mkdir(parents=True, exist_ok=True)
    (folder / "apps" / f"{name}.jsap").write_text(json.dumps(application))


@asynccontextmanager
async def context_client(
    url: str, *, token: str = "", tls: ssl.SSLContext | None = None, legacy: bool = False
) -> AsyncIterator[Client]:
    """url: of anything of the gateway. token: with its scheme. legacy: by the handshake of 2025-11-25."""
    place = urlsplit(url)
    headers = {"Authorization": token} if token else {}
    async with httpx2.AsyncClient(
        headers=headers, timeout=TIMEOUT_S, verify=True if tls is None else tls, trust_env=False
    ) as http:
        transport = streamable_http_client(f"{place.scheme}://{place.netloc}/mcp", http_client=http)
        async with Client(transport, mode="legacy" if legacy else "auto") as client:
            yield client
