"""Descriptions of resources: what the dataset says about an IRI, as RDF or as a page.

A description has the triples of the IRI, those of the blank nodes that they lead to, and some that lead to the IRI. It
is bounded, and is made in a fork (`gateway.workers.ad_hoc`). IRIs are looked up as terms: no query text is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

import pyoxigraph as ox

from lamplighter.engine.access import Graphs
from lamplighter.engine.errors import UnknownResourceError, UnsupportedRequestError
from lamplighter.engine.store.renewal import native_name
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS
from lamplighter.ontology.vocabulary import PREFIXES

HTML = "text/html"
# Media types of a description; the first is the default.
FORMATS = ("text/turtle", "application/n-triples", "application/ld+json", HTML)

# Triples of the IRI and of its blank nodes.
OUTGOING_MAX = 1000
# Triples whose object is the IRI.
INCOMING_MAX = 100
# Blank nodes in a row that are followed.
DEPTH_MAX = 4

Node: TypeAlias = ox.NamedNode | ox.BlankNode
_Graph: TypeAlias = ox.NamedNode | ox.BlankNode | ox.DefaultGraph | None


@dataclass
class ResourceDescription:
    """about: the IRI; outgoing: the triples of the IRI and of its blank nodes, by subject; cut: whether there are more
    triples than the bounds allow."""

    about: ox.NamedNode
    outgoing: dict[Node, list[ox.Triple]] = field(default_factory=dict)
    incoming: list[ox.Triple] = field(default_factory=list)
    cut: bool = False

    @property
    def triples(self) -> list[ox.Triple]:
        own = [triple for triples in self.outgoing.values() for triple in triples]
        return [*own, *(triple for triple in self.incoming if triple.subject != self.about)]


@dataclass(frozen=True)
class ResourceRequest:
    """iris: the IRIs that the client may mean; the first that the dataset has is described. media_type: of `FORMATS`;
    base_iri: pages link to the paths of the IRIs below it."""

    iris: Sequence[str]
    media_type: str
    base_iri: str

    def write(self, store: ox.Store, visible: Graphs, out: BinaryIO) -> None:
        """Writes the document behind a ``+``. visible: the graphs that the client may read.

        Raises UnknownResourceError, and UnsupportedRequestError for triples that the format does not have.
        """
        for text in self.iris:
            try:
                name = ox.NamedNode(text)
            except ValueError:
                continue  # not an IRI, so the dataset cannot have it
            found = description(store, name, visible)
            if found.outgoing or found.incoming:
                out.write(b"+")
                out.write(self._document(found))
                return
        raise UnknownResourceError(f"no graph that this client may read has triples of <{self.iris[0]}>")

    def _document(self, found: ResourceDescription) -> bytes:
        if self.media_type == HTML:
            from lamplighter.gateway.workers.resource_page import page  # `html` takes 0.3 MB of an idle gateway

            return page(found.about, found.outgoing, found.incoming, self.base_iri, cut=found.cut)
        try:
            written = ox.serialize(found.triples, format=GRAPH_FORMATS[self.media_type], prefixes=PREFIXES)
        except (OSError, ValueError) as error:
            raise UnsupportedRequestError(f"{self.media_type} cannot express the description: {error}") from error
        assert written is not None
        return written


def description(store: ox.Store, about: ox.NamedNode, visible: Graphs) -> ResourceDescription:
    """The triples of the visible graphs about an IRI, without duplicates."""
    found = ResourceDescription(about)
    seen: set[Node] = {about}
    room, level = OUTGOING_MAX, [about]
    for _ in range(DEPTH_MAX + 1):
        following: list[Node] = []
        for node in level:
            triples, more = _first(_matches(store, visible, subject=node), room)
            found.cut |= more
            room -= len(triples)
            if triples:
                found.outgoing[node] = triples
            for triple in triples:
                if isinstance(triple.object, ox.BlankNode) and triple.object not in seen:
                    seen.add(triple.object)
                    following.append(triple.object)
        level = following  # type: ignore[assignment]
    found.cut |= bool(level)
    found.incoming, more = _first(_matches(store, visible, object=about), INCOMING_MAX)
    found.cut |= more
    return found


def _first(matches: Iterator[ox.Triple], number: int) -> tuple[list[ox.Triple], bool]:
    """The first so many different triples, and whether there are more."""
    found: dict[ox.Triple, None] = {}
    for triple in matches:
        if triple in found:
            continue
        if len(found) >= number:
            return list(found), True
        found[triple] = None
    return list(found), False


def _matches(
    store: ox.Store, visible: Graphs, subject: Node | None = None, object: ox.NamedNode | None = None
) -> Iterator[ox.Triple]:
    for graph in _graphs(visible):
        for quad in store.quads_for_pattern(subject, None, object, graph):
            yield quad.triple


def _graphs(visible: Graphs) -> list[_Graph]:
    """The graphs of a pattern each; None stands for all."""
    if visible.names is None:
        return [None]
    default: list[_Graph] = [ox.DefaultGraph()] if None in visible.names else []
    return default + [native_name(name) for name in sorted(name for name in visible.names if name is not None)]
