"""Parts of the change feed from the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamplighter.engine.access import FULL, Graphs
from lamplighter.gateway.history import changes
from lamplighter.gateway.history.changes import LogPosition, part_of, position_of
from tests.support.gateway_parts import records, recovered_runner, update


async def test_only_so_many_records_are_read_for_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the client sees them or not."""
    async with recovered_runner(tmp_path) as runner:
        for number in range(5):
            await update(runner, f"INSERT DATA {{ GRAPH <http://g> {{ <http://{number}> <http://p> 1 }} }}")
    found, newest = records(tmp_path), (1, 5)
    monkeypatch.setattr(changes, "SCANNED_MAX", 3)
    for visible, seen in ((FULL.read, 3), (Graphs(frozenset({"<http://other>"})), 0)):
        part = part_of(found, LogPosition((1, 0)), newest, visible, 100)
        assert (len(part.changes), part.at, part.ended) == (seen, position_of(found[2]), False)
        part = part_of(found[3:], part.at, newest, visible, 100)
        assert (len(part.changes), part.at, part.ended) == (min(seen, 2), position_of(found[4]), True)
