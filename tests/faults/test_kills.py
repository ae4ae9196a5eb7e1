"""Gateways that are killed again and again under load: what was acknowledged is there, and everything happened once."""

from __future__ import annotations

import secrets

import pytest

from tests.faults.killed_gateway import APPLY, RELEASE
from tests.support.kills import MOMENT, run_streets

pytestmark = pytest.mark.faults

KILLS = 160


async def test_everything_has_one_effect_across_kills() -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    tally = await run_streets(KILLS, seed)
    print(tally)
    assert tally.kills.total() >= KILLS
    for place in (APPLY, RELEASE, MOMENT, "sync log", "write log", "write log temporary"):
        assert tally.kills[place] > 0, place
    assert any(place.endswith("snapshots temporary") for place in tally.kills)
    assert tally.updates > 10 * KILLS
    assert tally.delayed > KILLS
    assert tally.reactions > KILLS
