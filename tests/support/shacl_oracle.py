"""The reference for violations of shapes: pySHACL, which shares no code with the engine."""

from __future__ import annotations

from collections.abc import Iterable

import pyshacl
import rdflib

from lamplighter.engine.rdflib import term_from_rdflib, term_to_rdflib
from tests.support.shacl_results import ResultRow, Triple, result_rows


def graph_of(triples: Iterable[Triple]) -> rdflib.Graph:
    """The triples with their blank nodes."""
    graph = rdflib.Graph()
    for triple in triples:
        graph.add(tuple(map(term_to_rdflib, triple)))  # type: ignore[arg-type]
    return graph


def oracle_rows(data: Iterable[Triple], shapes: rdflib.Graph) -> set[ResultRow]:
    """What pySHACL finds."""
    _, report, _ = pyshacl.validate(graph_of(data), shacl_graph=shapes, inference="none", meta_shacl=False)
    assert isinstance(report, rdflib.Graph), report
    return result_rows(tuple(map(term_from_rdflib, triple)) for triple in report)  # type: ignore[misc,arg-type]
