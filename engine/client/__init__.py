"""Client library: the public protocols from the client's side (Roffia 2016, II.B; SEPA protocol).

connection: `EngineClient`, one WebSocket to a gateway or another SEPA broker; messages: its messages; http:
`SparqlEndpoint`, the SPARQL 1.1 Protocol; changes: the change feed; patterns: `Producer`, `Consumer`, `Aggregator` and
`GenericClient` on a JSAP file; profile: reads JSAP files; files: the reader of files that others write; places: types
of settings that name files, hosts, URLs and users; state_files:
files of the program that another version may have written; oauth:
registration and tokens; addresses: URLs, Unix sockets and trust; results: answers as values; rdflib: a live graph of
RDFLib; sending: whole messages; outward: HTTP requests to URLs that others choose; inbox_reader:
`InboxReader`, a consumer of Linked Data Notifications; inboxes: what inboxes say; contexts: JSON-LD contexts that are
known without the network. The only package of `engine` that does I/O, but for a file that `Engine.load` reads. It
loads no store; what it exports, and the parser of RDF, are imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lamplighter.engine.errors import GatewayError, RefusedError, UpstreamError

if TYPE_CHECKING:
    from lamplighter.engine.client.changes import DatasetChange
    from lamplighter.engine.client.connection import EngineClient
    from lamplighter.engine.client.http import SparqlEndpoint
    from lamplighter.engine.client.inbox_reader import InboxReader
    from lamplighter.engine.client.messages import Notification, Tokens, UpdateAnswer, UpdateDelta
    from lamplighter.engine.client.oauth import Credentials, OAuth
    from lamplighter.engine.client.patterns import Aggregator, Consumer, GenericClient, Producer
    from lamplighter.engine.client.profile import load_profile
    from lamplighter.engine.protocol import DeclaredCause, KeptMessage, MessagePlace, UpdateRequest
    from lamplighter.engine.protocol.jsap import Jsap

__all__ = [
    "Aggregator",
    "Consumer",
    "Credentials",
    "DatasetChange",
    "DeclaredCause",
    "EngineClient",
    "GatewayError",
    "GenericClient",
    "InboxReader",
    "Jsap",
    "KeptMessage",
    "MessagePlace",
    "Notification",
    "OAuth",
    "Producer",
    "RefusedError",
    "SparqlEndpoint",
    "Tokens",
    "UpdateAnswer",
    "UpdateDelta",
    "UpdateRequest",
    "UpstreamError",
    "load_profile",
]

_HOMES = {
    "Aggregator": "lamplighter.engine.client.patterns",
    "Consumer": "lamplighter.engine.client.patterns",
    "Credentials": "lamplighter.engine.client.oauth",
    "DatasetChange": "lamplighter.engine.client.changes",
    "DeclaredCause": "lamplighter.engine.protocol",
    "EngineClient": "lamplighter.engine.client.connection",
    "GenericClient": "lamplighter.engine.client.patterns",
    "InboxReader": "lamplighter.engine.client.inbox_reader",
    "Jsap": "lamplighter.engine.protocol.jsap",
    "KeptMessage": "lamplighter.engine.protocol",
    "MessagePlace": "lamplighter.engine.protocol",
    "Notification": "lamplighter.engine.client.messages",
    "OAuth": "lamplighter.engine.client.oauth",
    "Producer": "lamplighter.engine.client.patterns",
    "SparqlEndpoint": "lamplighter.engine.client.http",
    "Tokens": "lamplighter.engine.client.messages",
    "UpdateAnswer": "lamplighter.engine.client.messages",
    "UpdateDelta": "lamplighter.engine.client.messages",
    "UpdateRequest": "lamplighter.engine.protocol",
    "load_profile": "lamplighter.engine.client.profile",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine.client' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
