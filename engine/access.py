"""Access: the graphs that one client may read, write and subscribe to.

A client that may not read everything sees a dataset of its permitted graphs only. Write permission is checked for every
quad that an update asks to delete or insert, present or not, so that no answer reveals what a graph contains that the
client may not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lamplighter.engine.errors import AccessDeniedError
from lamplighter.engine.terms import Term

# The beginning of the names of graphs with inferred triples (`engine.inference`).
INFERRED = "<urn:lamplighter:inferred:"
# The graph with the violations of shapes (`engine.shacl`).
VIOLATIONS = "<urn:lamplighter:violations>"
# The beginnings of the names of graphs that follow from others, and that no request may write.
DERIVED = (INFERRED, VIOLATIONS)


@dataclass(frozen=True)
class Graphs:
    """A set of graphs.

    names: their IRIs as terms (``<...>``), and None for the default graph. If names itself is None, the set has all
    graphs, those included that do not exist yet. asserted: whether graphs that follow from others are left out. every:
    whether no graph is left out.
    """

    names: frozenset[Term | None] | None = None
    asserted: bool = False
    every: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", self.names is None and not self.asserted)

    def __contains__(self, graph: Term | None) -> bool:
        if self.asserted and graph is not None and graph.startswith(DERIVED):
            return False
        return self.names is None or graph in self.names

    def __and__(self, other: Graphs) -> Graphs:
        """The graphs that are in both sets."""
        names = other.names if self.names is None else self.names
        if self.names is not None and other.names is not None:
            names = self.names & other.names
        return Graphs(names, self.asserted or other.asserted)

    def check(self, wanted: Iterable[Term | None], verb: str) -> None:
        """Raises AccessDeniedError for a graph that is not in the set, whether it exists or not.

        verb: the denied action, for the message: read, write or subscribe to.
        """
        if self.every:
            return
        for graph in wanted:
            if graph not in self:
                if self.asserted and graph is not None and graph.startswith(DERIVED):
                    what, source = ("violations", "shapes") if graph == VIOLATIONS else ("inferred triples", "ontology")
                    raise AccessDeniedError(
                        f"nobody may {verb} {graph}, which has {what}; change the triples that they follow "
                        f"from, or the {source}"
                    )
                raise AccessDeniedError(
                    f"this client may not {verb} {'the default graph' if graph is None else f'the graph {graph}'}; "
                    "the operator of the gateway can permit it"
                )


# All graphs.
EVERY = Graphs()


@dataclass(frozen=True)
class Access:
    """The permissions of a client.

    read: for queries and for the WHERE of updates; write: for what updates delete, insert, create and drop; subscribe:
    for subscriptions.
    """

    read: Graphs = EVERY
    write: Graphs = EVERY
    subscribe: Graphs = EVERY

    def __and__(self, other: Access) -> Access:
        """What both permit."""
        return Access(self.read & other.read, self.write & other.write, self.subscribe & other.subscribe)

    @property
    def full(self) -> bool:
        return self.read.every and self.write.every and self.subscribe.every

    @property
    def blind(self) -> bool:
        """Whether the client may write a graph that it may not read."""
        read, write = self.read.names, self.write.names
        return read is not None and (write is None or not write <= read)


# All permissions.
FULL = Access()
_FULL_ASSERTED = Access(write=Graphs(asserted=True))


def asserting(access: Access) -> Access:
    """The same permissions, but to write graphs that follow from others."""
    if access is FULL:
        return _FULL_ASSERTED
    return replace(access, write=replace(access.write, asserted=True))


class Dataset(NamedTuple):
    """The graphs over which a query is evaluated.

    default: the graphs whose merge is the default graph, with None for the store's default graph; named: the named
    graphs. Each is None if neither the query nor the protocol chose one; then it is what is visible to the client.
    """

    default: tuple[Term | None, ...] | None = None
    named: tuple[Term, ...] | None = None
    visible: Graphs = EVERY

    def graphs(self, exists: Callable[[Term], bool]) -> tuple[tuple[Term | None, ...] | None, tuple[Term, ...] | None]:
        """The default and named graphs at this moment, each None for all of the store.

        exists: whether there is a graph of that name.
        """
        # Others are left out, because ``GRAPH ?g {}`` finds every graph that is listed.
        default, named, visible = self
        if visible.names is not None:
            if default is None:
                default = (None,) if None in visible.names else ()
            if named is None:
                named = tuple(sorted(name for name in visible.names if name is not None and exists(name)))
        return default, named
