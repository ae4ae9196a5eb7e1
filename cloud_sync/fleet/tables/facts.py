"""Facts of snapshots: descriptions whose segments are missing in the lake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.tables import streams
from lamplighter.cloud_sync.fleet.tables.bronze import read_snapshots, records
from lamplighter.engine.change_log import segment_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def snapshots_of(lake: Lake, gateways: Iterable[str]) -> list[str]:
    """The landed snapshots of some gateways, `<gw>/<name>`."""
    return [
        f"{gateway}/{name}"
        for gateway in gateways
        for name in lake.names("snapshots", gateway)
        if segment_name(name) is not None
    ]


def add_snapshots(spark: SparkSession, lake: Lake, new: list[str], prefix: str) -> TableBatch:
    """Writes the facts of snapshots as one batch, whose manifest names them as its segments.

    prefix: of the batch's name, so that two commands at the same time write different folders.
    """
    batch = TableBatch(id=f"{prefix}-{name_of(new)}", files=[], rows=0, segments=new)
    return table(lake, "facts").write(snapshot_facts(spark, lake, new), batch, files=1)


def snapshot_facts(spark: SparkSession, lake: Lake, snapshots: list[str]) -> DataFrame:
    """FACTS of the default graphs in snapshots."""
    lines = records(read_snapshots(spark, lake, snapshots)).where("gw IS NOT NULL")
    return streams.facts(lines, default_graph_only=True)


def name_of(sources: Iterable[str]) -> str:
    """A batch name that depends only on its sources, so that a repeated run replaces what a crash left."""
    return hashlib.sha256("\n".join(sorted(sources)).encode()).hexdigest()[:16]
