"""Access: what one client may read, change and subscribe to, graph by graph.

Pure values. A client that may not read everything sees a dataset made of its permitted graphs alone; what it may
write is judged by the quads that its update names, whether they are there or not, so that no answer tells what a
graph holds that it may not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lamplighter.engine.errors import AccessDeniedError
from lamplighter.engine.terms import Term


@dataclass(frozen=True)
class Graphs:
    """A set of graphs. names: their IRIs as terms (``<...>``), None among them for the default graph; None for every
    graph, those that do not exist yet too."""

    names: frozenset[Term | None] | None = None

    @property
    def every(self) -> bool:
        return self.names is None

    def __contains__(self, graph: Term | None) -> bool:
        return self.names is None or graph in self.names

    def check(self, wanted: Iterable[Term | None], verb: str) -> None:
        """Raises AccessDeniedError for a graph that is not in the set, whether it exists or not.

        verb: what the client wants to do to it: read, write, subscribe to.
        """
        if self.names is None:
            return
        for graph in wanted:
            if graph not in self.names:
                raise AccessDeniedError(
                    f"this client may not {verb} {'the default graph' if graph is None else f'the graph {graph}'}; "
                    "the operator of the gateway can permit it"
                )


EVERY = Graphs()
"""Every graph."""


@dataclass(frozen=True)
class Access:
    """What a client may do. read: queries, and the WHERE of updates; write: what updates delete, insert, create and
    drop; subscribe: subscriptions."""

    read: Graphs = EVERY
    write: Graphs = EVERY
    subscribe: Graphs = EVERY

    @property
    def full(self) -> bool:
        return self.read.names is None and self.write.names is None and self.subscribe.names is None

    @property
    def blind(self) -> bool:
        """Whether it may write a graph that it may not read."""
        read, write = self.read.names, self.write.names
        return read is not None and (write is None or not write <= read)


FULL = Access()
"""Everything."""


class Dataset(NamedTuple):
    """What a query is evaluated over, as far as it is not all of the store.

    default: the graphs whose merge is the default graph, None among them for the store's default graph; named: the
    named graphs; each None where neither request nor protocol chose: then it is what is visible to the client.
    """

    default: tuple[Term | None, ...] | None = None
    named: tuple[Term, ...] | None = None
    visible: Graphs = EVERY

    def graphs(self, exists: Callable[[Term], bool]) -> tuple[tuple[Term | None, ...] | None, tuple[Term, ...] | None]:
        """Default and named graphs at this moment; None for all that the store has.

        exists: whether there is a graph of that name; GRAPH ?g {} would find each one that is listed.
        """
        default, named, visible = self
        if visible.names is not None:
            if default is None:
                default = (None,) if None in visible.names else ()
            if named is None:
                named = tuple(sorted(name for name in visible.names if name is not None and exists(name)))
        return default, named
