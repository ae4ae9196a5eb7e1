"""Two lives of a gateway are two histories in bronze, and each record is there once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.tables.bronze import ingest, unread
from tests.support.shipped_logs import segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.fleet


def test_each_life_of_a_restored_card_is_in_bronze_once_under_its_history(spark: SparkSession, tmp_path: Path) -> None:
    first = segments("gw-1", 1, [10, 5, 5])
    restored = segments("gw-1", 1, [7, 9], previous=first[0].seal.sha256, begin=11, seed=1)
    source, lake = tmp_path / "source", Lake(str(tmp_path / "lake"))
    for number, one in enumerate((*first, *restored)):
        one.put(source / "gw-1", f"{one.stem}.x{number}")
    with Collector(LocalFolder(source), tmp_path / "lake") as collector:
        collector.collect()
        assert collector.problems == []
    ingest(spark, lake)
    assert unread(lake) == []
    rows = tables.read(spark, lake, "bronze").select("gw", "epoch", "seq").collect()
    expected = [("gw-1", 1, seq) for seq in range(1, 21)] + [("gw-1~2", 1, seq) for seq in range(11, 27)]
    assert sorted(tuple(row) for row in rows) == expected
