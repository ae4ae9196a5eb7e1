"""What the demo checks itself with fails when something is wrong."""

import pytest

from benchmarks.fleet import line_fit
from lamplighter.cloud_sync.fleet.collection.missing import Gap
from lamplighter.demo.fleet.checks import Check, gaps, missing, same, table
from lamplighter.demo.fleet.truth import SegmentTruth, Truth


@pytest.fixture
def truth() -> Truth:
    """Two missing segments in a row, and the last ones of both epochs."""
    fates = ["shipped", "missing", "missing", "shipped", "missing"]
    found = Truth("gw-1", "latest")
    for number, fate in enumerate(fates):
        first = number * 10 + 1
        name = f"1-{first:012d}-{first + 9:012d}.ndjson.zst"
        found.segments.append(SegmentTruth(name, first, first + 9, 0, fate))  # type: ignore[arg-type]
    found.segments.append(SegmentTruth("2-000000000001-000000000005.ndjson.zst", 1, 5, 0, "missing"))
    return found


def test_missing_segments_in_a_row_are_one_gap(truth: Truth) -> None:
    assert missing(truth) == [("gw-1", 1, 11, 30), ("gw-1", 1, 41, 50), ("gw-1", 2, 1, 5)]


def test_gaps_are_those_behind_which_something_has_come(truth: Truth) -> None:
    known = Gap("gw-1", 1, 11, 30, False, "not here yet")
    lost = Gap("gw-1", 1, 60, None, True, "the disk was full")
    assert gaps([truth], [known, lost]).ok
    assert not gaps([truth], []).ok
    assert not gaps([truth], [known, Gap("gw-1", 1, 3, 4, False, "not here yet")]).ok


def test_a_difference_is_named() -> None:
    assert same("rows", 3, 3) == Check("rows", "3", "3", True)
    assert same("rows", 1234, 1233) == Check("rows", "1,234", "1,233", False)
    assert same("names", ["a", "b"], ["b", "a"]).ok
    different = same("names", ["a", "b", "b"], ["b", "c"])
    assert not different.ok and different.found == "2: 2 lack, 1 too many, such as a"
    lines = table([same("rows", 3, 3), different]).splitlines()
    assert [line.split()[-1] for line in lines] == ["found", "ok", "FAIL"]


def test_line_fit_is_that_of_least_squares() -> None:
    assert line_fit([(1, 3), (2, 5), (4, 9)]) == pytest.approx((1, 2, 0))
    intercept, slope, off = line_fit([(0, 1), (1, 1), (2, 4)])
    assert (intercept, slope, off) == pytest.approx((0.5, 1.5, 1))
    assert line_fit([(2, 8)]) == pytest.approx((0, 4, 0))
