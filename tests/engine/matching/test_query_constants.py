"""Indexes over the constants of the queries that share a shape follow what is added and removed."""

from __future__ import annotations

import itertools

from lamplighter.engine.matching.query_constants import QueryConstants
from lamplighter.engine.sparql.algebra import Constant

KEYS = tuple(itertools.product("ab", "cd", "ef"))


def test_indexes_and_projections_have_what_is_there_and_no_more() -> None:
    constants = [Constant(number) for number in range(3)]
    units = QueryConstants(constants)
    units.add(KEYS[0], "unit")
    first = units.part((0,))
    projected = units.projection(constants[:2])
    assert projected is not None
    of_projection = projected.part((1,))
    there = {KEYS[0]}
    for adds, keys in ((True, KEYS[1:]), (False, KEYS[::2]), (True, KEYS[:1]), (False, (KEYS[0], *KEYS[1::2]))):
        for key in keys:
            if adds:
                units.add(key, "unit")
                there.add(key)
            else:
                units.remove(key)
                there.remove(key)
            assert set(units.all) == there
            assert {part: set(found) for part, found in first.items()} == {
                part: {key for key in there if key[0] == part} for part in {key[0] for key in there}
            }
            pairs = {key[:2] for key in there}
            assert {pair: set(found) for pair, found in projected.all.items()} == {
                pair: {key for key in there if key[:2] == pair} for pair in pairs
            }
            assert {part: set(found) for part, found in of_projection.items()} == {
                part: {pair for pair in pairs if pair[1] == part} for part in {pair[1] for pair in pairs}
            }
    assert not there
