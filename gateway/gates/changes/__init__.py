"""The change feed: every change of the dataset that a client may read, so that others replicate it exactly.

api: the paths and their parameters; stream: the feed by Server-Sent Events; positions: the positions that clients
get; forms: changes and datasets as NDJSON, RDF Patch, events and N-Quads.
"""

from lamplighter.gateway.gates.changes.api import ChangeFeed

__all__ = ["ChangeFeed"]
