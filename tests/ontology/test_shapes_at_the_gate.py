"""The SHACL shapes of the profile in an engine that refuses: what adapters write passes, what breaks it is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import ShapesViolatedError
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings.reasoning import ShaclSettings
from tests.ontology.test_shapes import BROKEN, NAMES, SOURCES, good
from tests.support.places import ROOT
from tests.support.shacl_engine import differences, found
from tests.support.tables import each_row

__all__ = ["good"]


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with the profile's shapes for the merge of all graphs."""
    sources = shape_sources(ShaclSettings(profile=True, data=["all"]), ROOT)
    assert sources is not None
    with Engine() as engine:
        engine.validate(sources)
        yield engine


@pytest.mark.parametrize("source", SOURCES)
def test_no_update_of_an_adapter_is_refused(source: str, engine: Engine) -> None:
    for text in SOURCES[source]():
        engine.update(text)
    assert engine.quad_count > 2
    assert found(engine) == set()


@each_row("fault", BROKEN, is_amount=True)
def test_what_breaks_the_dataset_is_refused(fault: str, good: bytes, engine: Engine) -> None:
    engine.load(good, media_type="application/n-triples")
    before = engine.quad_count
    with pytest.raises(ShapesViolatedError, match="ns/shapes#"):
        engine.update(NAMES + BROKEN[fault])
    assert (engine.quad_count, found(engine), differences(engine)) == (before, set(), [])
