"""A log with a record that the engine cannot apply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lamplighter.engine.core import Commit, Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.gateway.settings import Settings
from tests.support.gateway_parts import FakeClock, recovered_runner, update

BAD = "<urn:bad>"
Breaks = Callable[[Exception], None]


def insert(number: int, what: str = "urn:s") -> str:
    return f"INSERT DATA {{ <{what}> <urn:p> {number} }}"


def is_bad(delta: QuadDelta) -> bool:
    return any(quad.s == BAD for quad in delta.added)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Has the engine fail on a quad that it could follow before."""
    commit = Engine.commit

    def begin(error: Exception) -> None:
        def fails(self: Engine, delta: QuadDelta, sequence: int | None = None) -> Commit:
            if is_bad(delta):
                raise error
            return commit(self, delta, sequence)

        monkeypatch.setattr(Engine, "commit", fails)

    return begin


async def play(data: Path, clock: FakeClock, settings: Settings | None = None) -> None:
    """Records 1 to 6, of which 4 is bad; the first is of a delayed update."""
    async with recovered_runner(data, clock, settings=settings) as runner:
        await update(runner, insert(99), delay="P1D")
        for number in (2, 3):
            await update(runner, insert(number))
        await update(runner, insert(4, "urn:bad"))
        for number in (5, 6):
            await update(runner, insert(number))
