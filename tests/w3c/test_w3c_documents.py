"""The documents of the RDF 1.2 suites: what the engine reads of them, and writes and reads again.

They are not in a package (`tests.w3c.suite`); `tests/rdf12` has documents of our own.
"""

from __future__ import annotations

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import RequestSyntaxError
from tests.support.oracle import REFUSALS, canonical
from tests.w3c import suite
from tests.w3c.known_failures import KNOWN_FAILURES
from tests.w3c.suite import DocumentTest


def documents() -> tuple[DocumentTest, ...]:
    return suite.found(suite.document_tests) if suite.CHECKOUT is not None else ()


def outcome(test: DocumentTest) -> set[str] | None:
    """The quads that the store reads, in its spelling; None if it refuses the document."""
    store = ox.Store()
    try:
        store.extend(suite.parsed(test.path))
    except REFUSALS:
        return None
    return canonical(store)


def expected(test: DocumentTest) -> set[str] | None:
    if test.result is None:
        return outcome(test) or set() if test.accepted else None
    store = ox.Store()
    store.extend(suite.parsed(test.result))
    return canonical(store)


@pytest.mark.parametrize("test", documents(), ids=lambda test: test.name)
def test_document_is_loaded_as_the_store_reads_it(test: DocumentTest) -> None:
    content, base = suite.files()[test.path], suite.iri_of(test.path)
    read = outcome(test)
    with Engine() as engine, Engine() as other:
        if read is None:
            with pytest.raises(RequestSyntaxError):
                engine.load(content, test.syntax.media_type, base=base)
            assert engine.quad_count == 0
            return
        engine.load(content, test.syntax.media_type, base=base)
        for media_type in ("application/n-quads", "application/trig"):
            other.update("DROP ALL")
            other.load(engine.dump(media_type), media_type)
            assert canonical(ox.parse(other.dump("application/n-quads"), ox.RdfFormat.N_QUADS)) == read


@pytest.mark.skipif(suite.CHECKOUT is None, reason="W3C_RDF_TESTS names no checkout of rdf-tests")
def test_store_fails_the_known_documents_only() -> None:
    failed = {test.name for test in documents() if outcome(test) != expected(test)}
    assert failed == {name for name, kind in KNOWN_FAILURES if kind == "document"}
