"""Each test of the W3C data-shapes suite: the violations that the engine finds are those of the expected report."""

from __future__ import annotations

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import VIOLATIONS
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import InvalidShapesError
from lamplighter.engine.shacl.sources import ShapeSources
from lamplighter.engine.terms import Quad
from lamplighter.engine.updating.documents import opened, quads_of
from tests.shacl.suite import cases, documents
from tests.support.components import missing
from tests.support.shacl_results import RDF, SH, result_rows
from tests.support.suites import SuiteMissingError
from tests.support.tables import each_row

MF = "http://www.w3.org/2001/sw/DataAccess/tests/test-manifest#"
SHT = "http://www.w3.org/ns/shacl-test#"
BASE = "urn:w3c:"
BYTES_MAX = 10_000_000
SPELLINGS = {
    "property/datatype-ill-formed.ttl": "55 as an xsd:integer is the same value to the store as 55 as an xsd:byte",
    "property/uniqueLang-002.ttl": '"1"^^xsd:boolean is the same value to the store as true',
}
"""test -> why the store, which keeps values and not spellings, cannot tell what it is about."""


def test_suite_is_there() -> None:
    try:
        assert len(documents()) > 100
    except SuiteMissingError as error:
        missing(str(error))


def quads(name: str) -> list[Quad]:
    return quads_of(opened(documents()[name], "ttl", BYTES_MAX), None, f"{BASE}{name}", BYTES_MAX, BYTES_MAX)


@each_row("name", cases())
def test_report_is_that_of_the_suite(name: str) -> None:
    document = quads(name)
    one = {(quad.s, quad.p): quad.o for quad in document}
    [entry] = [quad.s for quad in document if quad.p == f"<{RDF}type>" and quad.o == f"<{SHT}Validate>"]
    action, expected = one[entry, f"<{MF}action>"], one[entry, f"<{MF}result>"]
    data, shapes = (
        document if place == f"<{BASE}{name}>" else quads(place[1 + len(BASE) : -1])
        for place in (one[action, f"<{SHT}{kind}Graph>"] for kind in ("data", "shapes"))
    )
    with Engine() as engine:
        engine.commit(QuadDelta(added=tuple(data)))
        sources = ShapeSources(tuple(quad[:3] for quad in shapes), rejects=False)
        if expected == f"<{SHT}Failure>":
            with pytest.raises(InvalidShapesError):
                engine.validate(sources)
            return
        engine.validate(sources)
        found = result_rows(quad[:3] for quad in engine.store.quads(VIOLATIONS))
    same = found == result_rows(quad[:3] for quad in document)
    assert same == (name not in SPELLINGS)
    assert not same or bool(found) == ('"false"' in one[expected, f"<{SH}conforms>"])
