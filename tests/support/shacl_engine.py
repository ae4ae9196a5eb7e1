"""Engines with shapes, and what they find."""

from __future__ import annotations

from typing import Any

from lamplighter.engine import Engine
from lamplighter.engine.access import VIOLATIONS
from lamplighter.engine.shacl.sources import ShapeSources
from lamplighter.engine.store.audit import Auditor
from lamplighter.engine.updating.documents import opened, quads_of
from tests.support.shacl_results import Triple

NAMESPACES = {
    "": "http://e/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "sh": "http://www.w3.org/ns/shacl#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "gateway": "http://lamplighter.example/ns/gateway#",
}
PREFIXES = "".join(f"PREFIX {name}: <{iri}> " for name, iri in NAMESPACES.items())
BYTES_MAX = 100_000_000


def shape_triples(turtle: str) -> tuple[Triple, ...]:
    """The triples of a document; it may use the prefixes."""
    document = opened((PREFIXES + turtle).encode(), "ttl", BYTES_MAX)
    return tuple(quad[:3] for quad in quads_of(document, None, None, BYTES_MAX, BYTES_MAX))


def validating(turtle: str, engine: Engine | None = None, **sources: Any) -> Engine:
    """An engine that validates. sources: as in `ShapeSources`."""
    engine = engine or Engine()
    engine.validate(ShapeSources(shape_triples(turtle), **sources))
    return engine


def found(engine: Engine) -> set[str]:
    """The violations: focus node, component and value, without namespaces."""
    results: dict[str, dict[str, str]] = {}
    for s, p, o, _ in engine.store.quads(VIOLATIONS):
        results.setdefault(s, {})[p.rpartition("#")[2][:-1]] = o
    return {
        " ".join(
            _bare(one[name]).removesuffix("ConstraintComponent")
            for name in ("focusNode", "sourceConstraintComponent", "value")
            if name in one
        )
        for one in results.values()
        if "focusNode" in one
    }


def _bare(term: str) -> str:
    if term.startswith('"'):
        return term[1 : term.rindex('"')]
    return term.strip("<>").rpartition("/")[2].rpartition("#")[2]


def differences(engine: Engine) -> list[str]:
    """What index and store do not have in common."""
    auditor = Auditor(engine.store, engine.cts)
    different: list[str] = []
    while not auditor.rounds:
        different += auditor.step(1000)
    return different
