"""The benchmark of fleet subscriptions works in small sizes; each part checks the number of its matches itself."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.fleet_latency import landing_segments, latency_queries
from benchmarks.fleet_subscriptions import Bench, run_part
from benchmarks.fleet_workload import ACCEPT_ALL, chain_query, fine_query, shaped_queries
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("name", "targets"), [("osma-csma", 1), ("stages", 0)])
def test_part_measures_in_a_small_size(
    name: str, targets: int, spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_part(name, Bench(tmp_path, 1, quick=True, spark=spark))
    assert result.note in capsys.readouterr().out
    assert len(result.targets) == targets
    assert all(cost > 0 for points in result.series.values() for _, cost in points)


def test_workload_has_as_many_shapes_as_it_says() -> None:
    assert len({fleet_query(query).shape for query in shaped_queries(256)}) == 256
    assert len({fleet_query(fine_query(number)).shape for number in range(10)}) == 1
    assert len({fleet_query(chain_query(number)).shape for number in range(10)}) == 1
    assert fleet_query(ACCEPT_ALL).variables == ("g",)
    assert len({fleet_query(query).shape for query in latency_queries()}) > 10


def test_segments_that_land_have_no_hole(tmp_path: Path) -> None:
    landings = landing_segments(tmp_path, 3, 20, 5)
    assert [one.second for one in landings] == [second for second in range(5) for _ in range(3)]
    for gateway in {one.gateway for one in landings}:
        names = [one.name for one in landings if one.gateway == gateway]
        assert all(after.epoch > before.epoch or after.first == before.last + 1 for before, after in pairwise(names))
        assert all(
            (one.path.parent.name, one.path.name) == (gateway, str(one.name))
            for one in landings
            if one.gateway == gateway
        )
