"""Sources: where shapes come from, which graphs they are about, and what their violations do."""

from __future__ import annotations

from dataclasses import dataclass

from lamplighter.engine.access import VIOLATIONS, Access
from lamplighter.engine.shacl.model import Triple
from lamplighter.engine.terms import Term


@dataclass(frozen=True)
class ShapeSources:
    """triples: shapes that do not change. graph: the graph of the dataset with more shapes, None if there is none.
    data: the graphs whose merge is validated, with None for the default graph; None for all but the shapes graph.
    rejects: whether violations refuse an update where a shape does not say.

    Raises ValueError for a graph in two roles.
    """

    triples: tuple[Triple, ...] = ()
    graph: Term | None = None
    data: tuple[Term | None, ...] | None = (None,)
    rejects: bool = True

    def __post_init__(self) -> None:
        if self.graph == VIOLATIONS or VIOLATIONS in (self.data or ()):
            raise ValueError(f"{VIOLATIONS} has the violations; name another graph")
        if self.graph is not None and self.graph in (self.data or ()):
            raise ValueError(f"{self.graph} has the shapes; name other graphs for the data")

    def readable_by(self, access: Access) -> bool:
        """Whether a client may read all graphs that violations tell of."""
        return access.read.every or (self.data is not None and all(graph in access.read for graph in self.data))
