"""The public protocols from the other side: producers, consumers and aggregators (Roffia 2016, II.B; SEPA protocol).

`EngineClient` speaks with a Lamplighter gateway, or subscribes at another SEPA broker, by one WebSocket.
`SparqlEndpoint` queries and updates by HTTP whatever speaks the SPARQL 1.1 Protocol. `Producer`, `Consumer`,
`Aggregator` and `GenericClient` take addresses and texts from a JSAP file. The only package of `engine` that does
I/O; it loads no store, and what needs an HTTP client is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.client.connection import EngineClient
from engine.client.messages import Notification, Tokens, UpdateAnswer
from engine.errors import GatewayError, RefusedError, UpstreamError
from engine.protocol import DeclaredCause, UpdateRequest

if TYPE_CHECKING:
    from engine.client.http import SparqlEndpoint
    from engine.client.oauth import Credentials, OAuth
    from engine.client.patterns import Aggregator, Consumer, GenericClient, Producer
    from engine.client.profile import load_profile
    from engine.jsap import Jsap

__all__ = [
    "Aggregator",
    "Consumer",
    "Credentials",
    "DeclaredCause",
    "EngineClient",
    "GatewayError",
    "GenericClient",
    "Jsap",
    "Notification",
    "OAuth",
    "Producer",
    "RefusedError",
    "SparqlEndpoint",
    "Tokens",
    "UpdateAnswer",
    "UpdateRequest",
    "UpstreamError",
    "load_profile",
]

_HOMES = {
    "Aggregator": "engine.client.patterns",
    "Consumer": "engine.client.patterns",
    "Credentials": "engine.client.oauth",
    "GenericClient": "engine.client.patterns",
    "Jsap": "engine.jsap",
    "OAuth": "engine.client.oauth",
    "Producer": "engine.client.patterns",
    "SparqlEndpoint": "engine.client.http",
    "load_profile": "engine.client.profile",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine.client' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
