"""The power goes at any operation of the disk: what was acknowledged is there once, and the gateway starts."""

from __future__ import annotations

import secrets

import pytest

from tests.support.fault_rig import CUTS, run_many

CASES = 250


@pytest.mark.faults
def test_a_thousand_power_cuts_lose_nothing_that_was_acknowledged() -> None:
    first = secrets.randbelow(10**9)
    figures = run_many("cuts", CASES, first)
    print(f"{CASES * CUTS} power cuts, cases from {first}\n  {figures}")
    assert figures.left["files torn"] > 50
    assert figures.log["recovered from a snapshot"] > 50
    assert figures.log["segments sealed"] > 50
    assert figures.log["segments evicted"] > 5


@pytest.mark.faults
def test_a_sync_that_fails_ends_the_gateway_and_loses_nothing_that_was_acknowledged() -> None:
    first = secrets.randbelow(10**9)
    figures = run_many("broken", 120, first)
    print(f"cases from {first}\n  {figures}")
    assert figures.failed > 60
