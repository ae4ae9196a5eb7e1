"""Random shapes and updates: the graph of violations against pySHACL, after every update.

One engine marks: its graph of violations has what pySHACL finds in the merge of the data graphs, whether shapes come as
a document or from a graph, and whether violations begin or end. One engine refuses: an update with a result that was
not there before has no effect, on dataset or index; all others are committed. ``SHACL_SEED`` repeats a case.
"""

from __future__ import annotations

import os
import random
import secrets

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import VIOLATIONS
from lamplighter.engine.errors import ShapesViolatedError
from lamplighter.engine.shacl.sources import ShapeSources
from tests.support.amounts import Amounts
from tests.support.shacl_cases import E, ShapesWriter, update
from tests.support.shacl_engine import differences, shape_triples
from tests.support.shacl_oracle import graph_of, oracle_rows
from tests.support.shacl_results import ResultRow, Triple, result_rows

pytestmark = pytest.mark.faults

CASES = 40
SEED = int(os.environ.get("SHACL_SEED") or secrets.randbits(32))
STEPS = 6
G, OTHER, SHAPES = f"<{E}g>", f"<{E}other>", f"<{E}shapes>"


def data_of(engine: Engine, graphs: tuple[str | None, ...]) -> set[Triple]:
    return {quad[:3] for graph in graphs for quad in engine.store.quads(graph)}


def rows_of(engine: Engine) -> set[ResultRow]:
    return result_rows(quad[:3] for quad in engine.store.quads(VIOLATIONS))


def test_violations_are_those_of_pyshacl(amounts: Amounts) -> None:
    for seed in range(SEED, SEED + amounts.of(CASES)):
        _compared(seed)


def _compared(seed: int) -> None:
    chance = random.Random(seed)
    writer = ShapesWriter(chance)
    triples = shape_triples(writer.document())
    shapes = graph_of(triples)
    graphs = chance.choice([(None,), (None, G), None])
    read = (None, G, OTHER) if graphs is None else graphs
    targets = ["", f"GRAPH {G}", f"GRAPH {OTHER}"] if graphs != (None,) else [""]
    with Engine() as marking, Engine() as refusing:
        for _ in range(chance.randint(0, 3)):
            marking.update(update(chance, targets))
        in_graph = chance.random() < 0.3
        if in_graph:
            marking.validate(ShapeSources(graph=SHAPES, data=graphs, rejects=False))
            marking.load("".join(f"{' '.join(triple)} .\n" for triple in triples).encode(), graph=SHAPES)
        else:
            marking.validate(ShapeSources(triples, data=graphs, rejects=False))
        assert rows_of(marking) == oracle_rows(data_of(marking, read), shapes), f"at the start, seed {seed}"
        refusing.validate(ShapeSources(triples, data=graphs))
        before = oracle_rows(data_of(refusing, read), shapes)
        for _ in range(STEPS):
            text = update(chance, targets)
            marking.update(text)
            assert rows_of(marking) == oracle_rows(data_of(marking, read), shapes), f"{text}, seed {seed}"
            assert not differences(marking), seed
            dump, sequence = sorted(refusing.dump().splitlines()), refusing.sequence
            try:
                refusing.update(text)
            except ShapesViolatedError as error:
                assert error.report is not None
                assert sorted(refusing.dump().splitlines()) == dump
                assert refusing.sequence == sequence
                assert not differences(refusing), seed
                refusing.validate(ShapeSources(triples, data=graphs, rejects=False))
                refusing.update(text)
                after = oracle_rows(data_of(refusing, read), shapes)
                assert writer.nests or _refusing(after - before), f"{text}, seed {seed}"
                refusing.validate(ShapeSources(triples, data=graphs))
            else:
                after = oracle_rows(data_of(refusing, read), shapes)
                assert not _refusing(after - before), f"{text}, seed {seed}"
            assert rows_of(refusing) == after, seed
            before = after


def _refusing(rows: set[ResultRow]) -> bool:
    return any(row.severity.endswith("#Violation>") for row in rows)
