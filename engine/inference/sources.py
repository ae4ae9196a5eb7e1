"""Sources: which graphs have inferred triples, from which ontologies, and who may read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamplighter.engine.access import INFERRED, Access, Graphs
from lamplighter.engine.terms import Term


@dataclass(frozen=True)
class Sources:
    """graphs: each has an inferred graph of its own. ontologies: graphs whose triples count for each of them, too.

    None stands for the default graph. Raises ValueError for an inferred graph.
    """

    graphs: tuple[Term | None, ...] = ()
    ontologies: tuple[Term | None, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.graphs, *self.ontologies):
            if name is not None and name.startswith(INFERRED):
                raise ValueError(f"{name} has inferred triples itself; name the graph that they follow from")

    def of(self, graph: Term | None) -> tuple[Term | None, ...]:
        """The graphs that the inferred triples of a graph follow from, each once."""
        return tuple(dict.fromkeys((graph, *self.ontologies)))

    def readable(self, access: Access) -> Access:
        """The permissions of a client, with the inferred graphs.

        A client may read or subscribe to an inferred graph if it may do so with all graphs that it follows from.
        """
        # Naming the inferred graph itself is not sufficient: its triples would tell what the others have.
        return replace(access, read=self._readable(access.read), subscribe=self._readable(access.subscribe))

    def _readable(self, graphs: Graphs) -> Graphs:
        names = graphs.names
        if names is None:
            return graphs
        asserted = {name for name in names if name is None or not name.startswith(INFERRED)}
        inferred = {inferred_graph(graph) for graph in self.graphs if asserted.issuperset(self.of(graph))}
        return replace(graphs, names=frozenset(asserted | inferred))


def inferred_graph(graph: Term | None) -> Term:
    """The name of the graph with the triples that are inferred for a graph.

    ``<urn:lamplighter:inferred:default>`` for the default graph, ``<urn:lamplighter:inferred:http://example.org/g>``
    for ``<http://example.org/g>``.
    """
    return f"{INFERRED}{'default' if graph is None else graph[1:-1]}>"
