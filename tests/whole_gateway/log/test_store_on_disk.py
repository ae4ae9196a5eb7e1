"""Queries to a gateway with a dataset on disk."""

from __future__ import annotations

from pathlib import Path

from tests.support.running_gateway import rows, running_gateway
from tests.support.running_gateway import update as http_update


async def test_queries_are_answered_from_the_store_on_disk(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, store={"path": "store"}) as addresses:
        for number in range(3):
            assert (await http_update(addresses, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")).status == 200
        found = await rows(addresses, "SELECT ?o { ?s ?p ?o } ORDER BY ?o")
        assert [row["o"] for row in found] == ["0", "1", "2"]
    assert (tmp_path / "data" / "store").is_dir()
