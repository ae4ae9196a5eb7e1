"""The SUB Engine: a sequential semantic publish-subscribe engine (Roffia 2016) as a library.

>>> from lamplighter.engine import Engine
>>> engine = Engine()
>>> lamps = engine.subscribe("SELECT ?lamp WHERE { ?lamp <http://example.org/state> 'ON' }")
>>> commit = engine.update("INSERT DATA { <http://example.org/lamp/1> <http://example.org/state> 'ON' }")
>>> commit.notifications[0].added.rows
(('<http://example.org/lamp/1>',),)

core: `Engine`, one update at a time; terms, delta: values; errors: the error tree; access: permissions by graph;
term_bounds: limits of a term; networks: allowed addresses; pacing: rate limits and back-off; sharing: shares of
clients; tables: results as text and HTML; work: the cost of an evaluation; slices: pauses in long work; log_events:
events with fields, for the client and the other packages; extras: optional dependencies; rdflib: RDFLib's terms,
results and graphs.
Packages: sparql, store, matching, querying, updating, inference, shacl, change_log, protocol, client.

Names are imported at first use, so that `engine.client` and `engine.change_log.codec` load no pyoxigraph.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamplighter.engine.core import Commit, Engine, Notification, QueryResult, Subscription
    from lamplighter.engine.delta import BindingDelta, QuadDelta
    from lamplighter.engine.terms import Bag, Quad

__all__ = [
    "Bag",
    "BindingDelta",
    "Commit",
    "Engine",
    "Notification",
    "Quad",
    "QuadDelta",
    "QueryResult",
    "Subscription",
]

_HOMES = {
    "Bag": "lamplighter.engine.terms",
    "Quad": "lamplighter.engine.terms",
    "BindingDelta": "lamplighter.engine.delta",
    "QuadDelta": "lamplighter.engine.delta",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "lamplighter.engine.core")), name)
