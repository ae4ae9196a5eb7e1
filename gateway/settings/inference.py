"""``[inference]``: the graphs with inferred triples."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from lamplighter.engine.access import INFERRED
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
    return tuple(_term(name) for name in names)


def _term(name: str) -> Term | None:
    if name == "default":
        return None
    if not urlsplit(name).scheme:
        raise ValueError(f'{name!r} is not an absolute IRI such as http://example.org/graph, and not "default"')
    term = iri(name)
    if term.startswith(INFERRED):
        raise ValueError(f"{name} has inferred triples itself; name the graph that they follow from")
    return term
