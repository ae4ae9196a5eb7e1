"""A start over a log with a record that cannot be applied."""

from __future__ import annotations

from pathlib import Path

from tests.support.gateway_parts import (
    FakeClock,
)
from tests.support.running_gateway import rows, running_gateway
from tests.support.unfollowable_log import Breaks, play
from tests.support.unfollowable_log import breaks as breaks


async def test_the_service_starts_over_such_a_log(tmp_path: Path, breaks: Breaks) -> None:
    await play(tmp_path / "data", FakeClock())
    breaks(MemoryError())

    async with running_gateway(tmp_path) as at:
        assert len(await rows(at, "SELECT ?o { ?s ?p ?o FILTER(?o < 99) }")) == 2
