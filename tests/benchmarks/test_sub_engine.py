"""Each part of `make bench` runs, at the smallest size; the figures are of no interest here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.effort import QUICK
from benchmarks.sub_engine import PARTS, main

LEAST = replace(
    QUICK,
    **dict.fromkeys(("lamp", "road", "road_filter", "timings", "scaling"), 1),
    fine=(400, 1_000),
    coarse=(310, 620),
    hot_values=400,
    hot_raw_values=100,
    hot_window=20,
    latency=2,
    **dict.fromkeys(("all_hit_lamp", "all_hit_road"), (1, 5)),
)


SHORT = ("lamp", "scrape")
"""Parts that `make test` runs. The others are run with the faults, so that it takes less than ten minutes."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.faults] * (name not in SHORT)) for name in PARTS]
)
def test_part_runs_and_is_reported(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    result = PARTS[name][0](LEAST, tmp_path, told.append)
    assert told or "unavailable" in result
    stored = json.loads(json.dumps(result, allow_nan=False))
    text = report.summary({name: stored})
    for limit in stored.get("targets", ()):
        assert limit["name"] in text
    assert not list(tmp_path.glob("*.log"))


def test_unknown_part_is_refused_and_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["lamb", "--out", str(tmp_path)])
    assert "lamb" in capsys.readouterr().err
