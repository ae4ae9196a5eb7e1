"""What the demo checks itself with fails when something is wrong."""

import pytest

from benchmarks.spark_cost import line_fit
from lamplighter.cloud_sync.fleet.collection.missing import MissingRecords
from lamplighter.demo.fleet.checks import Check, gaps, missing, same, silent_sensors, table
from lamplighter.demo.fleet.truth import SegmentTruth, StreamTruth, Truth


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
    known = MissingRecords("gw-1", 1, 11, 30, False, "not here yet")
    lost = MissingRecords("gw-1", 1, 60, None, True, "the disk was full")
    assert gaps([truth], [known, lost]).ok
    assert not gaps([truth], []).ok
    assert not gaps([truth], [known, MissingRecords("gw-1", 1, 3, 4, False, "not here yet")]).ok


def test_a_difference_is_named() -> None:
    assert same("rows", 3, 3) == Check("rows", "3", "3", True)
    assert same("rows", 1234, 1233) == Check("rows", "1,234", "1,233", False)
    assert same("names", ["a", "b"], ["b", "a"]).ok
    different = same("names", ["a", "b", "b"], ["b", "c"])
    assert not different.ok and different.found == "2: 2 lack, 1 too many, such as a"
    lines = table([same("rows", 3, 3), different]).splitlines()
    assert [line.split()[-1] for line in lines] == ["found", "ok", "FAIL"]


def test_sensors_that_are_silent_at_the_end_may_be_found_and_those_that_never_sent_must_be() -> None:
    def stream(readings: int = 1, dead: str | None = None, silent: list[str] | None = None) -> StreamTruth:
        return StreamTruth("sensor", "property", "feature", None, readings, dead_since=dead, silent=silent)

    truth = Truth("gw-1", "latest")
    truth.streams = {
        "alive": stream(),
        "never": stream(readings=0),
        "long": stream(dead="2026-06-01T01:00:00.000000Z"),
        "lately": stream(dead="2026-06-01T11:00:00.000000Z"),
        "pause": stream(silent=["2026-06-01T10:00:00.000000Z", "2026-06-01T13:00:00.000000Z"]),
        "resumed": stream(silent=["2026-06-01T08:00:00.000000Z", "2026-06-01T10:00:00.000000Z"]),
    }

    def check(**states: str) -> Check:
        found = {("gw-1", name): state for name, state in states.items()} | {("gw-2", "other"): "dead"}
        return silent_sensors({"gw-1": truth}, "2026-06-01T12:00:00.000000Z", found)

    assert check(long="dead", never="never").ok
    assert check(long="dead", never="never", lately="dead", pause="dead").ok
    assert check(long="dead", never="never", pause="dead").found == "2, 1 silent lately, 0 alive"
    assert not check(never="never").ok
    assert not check(long="dead").ok
    assert not check(long="dead", never="dead").ok
    assert not check(long="never", never="never").ok
    assert not check(long="dead", never="never", alive="dead").ok
    assert not check(long="dead", never="never", resumed="dead").ok


def test_line_fit_is_that_of_least_squares() -> None:
    assert line_fit([(1, 3), (2, 5), (4, 9)]) == pytest.approx((1, 2, 0))
    intercept, slope, off = line_fit([(0, 1), (1, 1), (2, 4)])
    assert (intercept, slope, off) == pytest.approx((0.5, 1.5, 1))
    assert line_fit([(2, 8)]) == pytest.approx((0, 4, 0))
