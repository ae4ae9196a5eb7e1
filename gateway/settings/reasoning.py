"""``[inference]``: the graphs with inferred triples; ``[shacl]``: the shapes that updates are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from lamplighter.engine.access import INFERRED, VIOLATIONS
from lamplighter.engine.terms import Term, iri

GRAPHS_MAX = 100  # graphs that one list may name


class InferenceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[inference]``. graphs: IRIs, or ``default``, of the graphs that get an inferred graph each; empty: off.
    ontologies: graphs whose triples count for each of them, too."""

    graphs: list[str] = []
    ontologies: list[str] = []


def graph_terms(names: Sequence[str]) -> tuple[Term | None, ...]:
    """The graphs that a list names, None for the default graph. Raises ValueError."""
    if len(names) > GRAPHS_MAX:
        raise ValueError(f"{len(names)} graphs are named; {GRAPHS_MAX} are the most")
    return tuple(_graph_term(name) for name in names)


def _graph_term(name: str) -> Term | None:
    if name == "default":
        return None
    if not urlsplit(name).scheme:
        raise ValueError(f'{name!r} is not an absolute IRI such as http://example.org/graph, and not "default"')
    term = iri(name)
    if term.startswith(INFERRED):
        raise ValueError(f"{name} has inferred triples itself; name the graph that they follow from")
    return term


FILES_MAX = 100  # names of files that the list may have


class ShaclSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[shacl]``. shapes: files beside the configuration, with ``*`` for any characters; profile: whether the shapes
    of the gateway's own readings, actuations and devices count too; graph: the IRI of a graph with more shapes. None of
    them: off. data: IRIs, or ``default``, of the graphs whose merge is checked; ``all`` for all. mode: what a violation
    does where its shape does not say."""

    shapes: list[str] = []
    profile: bool = False
    graph: str = ""
    data: list[str] = msgspec.field(default_factory=lambda: ["default"])
    mode: Literal["reject", "mark"] = "reject"

    @property
    def on(self) -> bool:
        return bool(self.shapes or self.profile or self.graph)


def check_shacl(settings: ShaclSettings) -> None:
    """Raises ValueError, whose first argument is the key at fault."""
    if len(settings.shapes) > FILES_MAX:
        raise ValueError("shapes", f"{len(settings.shapes)} files are named; {FILES_MAX} are the most")
    for key, made in (("graph", lambda: shapes_graph(settings)), ("data", lambda: data_graphs(settings))):
        try:
            made()
        except ValueError as error:
            raise ValueError(key, str(error)) from error


def shapes_graph(settings: ShaclSettings) -> Term | None:
    """The graph with shapes, None if there is none. Raises ValueError."""
    return _term(settings.graph) if settings.graph else None


def data_graphs(settings: ShaclSettings) -> tuple[Term | None, ...] | None:
    """The graphs with data, with None for the default graph; None for all graphs. Raises ValueError."""
    names = settings.data
    if not names:
        raise ValueError('name at least one graph; "default" is the default graph, "all" are all graphs')
    if len(names) > GRAPHS_MAX:
        raise ValueError(f"{len(names)} graphs are named; {GRAPHS_MAX} are the most")
    if "all" in names:
        if len(names) > 1:
            raise ValueError('"all" stands alone')
        return None
    if settings.graph in names:
        raise ValueError(f"{settings.graph} has the shapes; name other graphs for the data")
    return tuple(None if name == "default" else _term(name, inferred=True) for name in names)


def _term(name: str, *, inferred: bool = False) -> Term:
    if not urlsplit(name).scheme:
        raise ValueError(f"{name!r} is not an absolute IRI such as http://example.org/graph")
    term = iri(name)
    if term == VIOLATIONS or (term.startswith(INFERRED) and not inferred):
        raise ValueError(f"the gateway itself writes {name}; name another graph")
    return term
