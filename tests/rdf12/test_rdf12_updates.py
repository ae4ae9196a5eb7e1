"""Updates of SPARQL 1.2: the dataset that each request leaves, by the store and by the engine, and its net delta."""

from __future__ import annotations

import pyoxigraph as ox

from lamplighter.engine import Engine
from tests.rdf12.cases import UPDATES, UpdateCase
from tests.rdf12.reading import dataset, request
from tests.support.oracle import canonical
from tests.support.tables import each_row
from tests.w3c.pair import data_block
from tests.w3c.test_w3c_updates import native


@each_row("case", UPDATES, ids=lambda case: case.name)
def test_update_leaves_the_expected_dataset_and_tells_it(case: UpdateCase) -> None:
    raw, wanted = dataset(case.before), dataset(case.after)
    with Engine() as engine:
        for again in (False, True):  # then by a plan, if the shape has one
            engine.update(f"DROP ALL ; INSERT DATA {{ {data_block(raw)} }}")
            before = set(ox.parse(engine.dump("application/n-quads"), ox.RdfFormat.N_QUADS))
            commit = engine.update(request(case.text))
            after = set(ox.parse(engine.dump("application/n-quads"), ox.RdfFormat.N_QUADS))
            assert canonical(after) == canonical(wanted), again
            assert before - native(commit.removed) | native(commit.added) == after
    raw.update(request(case.text))
    assert canonical(raw) == canonical(wanted)
