"""A disk that is full or read-only for a while: updates are refused, all else goes on; with room again they do, too."""

from __future__ import annotations

import secrets
import sys

import pytest

from tests.support.amounts import Amounts
from tests.support.fault_rig import FULL_AT_MAX, run_case, run_many

FEW = 24
CASES = 4 * FULL_AT_MAX
"""Each operation, with both errnos, with a restart and without."""


def test_the_first_operations_that_find_the_disk_full(amounts: Amounts) -> None:
    for case in amounts.some(range(FEW)):
        run_case("full", case)


@pytest.mark.parametrize("kind", ["full", "cuts", "broken"])
def test_a_case_follows_from_its_number(kind: str) -> None:
    """No thread of the gateway runs beside the simulated time, however busy the machine is."""
    switched_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1.0)  # a thread gets its turn late
        assert str(run_case(kind, 124519915)) == str(run_case(kind, 124519915))
    finally:
        sys.setswitchinterval(switched_s)


@pytest.mark.faults
def test_each_operation_finds_the_disk_full() -> None:
    story = secrets.randbelow(10**6)
    figures = run_many("full", CASES, story * CASES)
    print(f"{CASES} full disks, story {story}\n  {figures}")
    assert figures.refused > CASES
    assert figures.failed > CASES
