"""A reload changes the limit on the length of queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamplighter.engine.errors import LimitExceededError
from lamplighter.gateway.settings import LimitSettings, Settings
from tests.support.gateway_parts import recovered_runner

QUERY = "SELECT ?s { ?s <http://p> ?o }"
BYTES_MAX = 2000


def padded(size: int, *, sign: str = "") -> str:
    """A query of so many bytes that can be read if it is not too long; sign: stands at its end instead of a blank."""
    return QUERY + " " * (size - len((QUERY + sign).encode())) + sign


async def test_the_limit_is_taken_up_by_a_reload(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        assert runner.queries.outline(padded(BYTES_MAX + 1)).form == "SELECT"
        await runner.apply(Settings(limits=LimitSettings(query_bytes_max=BYTES_MAX)))
        with pytest.raises(LimitExceededError, match="query_bytes_max"):
            runner.queries.outline(padded(BYTES_MAX + 1))
