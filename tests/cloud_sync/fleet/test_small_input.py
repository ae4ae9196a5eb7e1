"""Which settings of Spark a command chooses by the size of its input. No session starts."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from tests.support.components import require_module

GATEWAY = "gw-000001"


class NoSessionError(Exception):
    """Raised in place of a session."""


class Chosen:
    """Stands for Spark's builder: keeps the settings."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> "Chosen":
        return self

    def master(self, url: str) -> "Chosen":
        return self.config("spark.master", url)

    def config(self, key: str, value: str) -> "Chosen":
        self.settings[key] = value
        return self

    def getOrCreate(self) -> Any:
        raise NoSessionError


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Chosen:
    require_module("pyspark")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = Chosen()
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "_check_java", lambda: None)
    return builder


def small(chosen: Chosen) -> bool:
    """Whether all settings for small input were chosen; some of them would be an error."""
    same = {chosen.settings.get(key) == value for key, value in session.SMALL.items()}
    assert len(same) == 1, chosen.settings
    return same.pop()


def land(lake: Lake, records: int) -> None:
    folder = Path(lake.path("segments", GATEWAY))
    folder.mkdir(parents=True)
    (folder / f"1-{1:012}-{records:012}.ndjson.zst").touch()


def bronze_of(lake: Lake, records: int, name: str = "one") -> None:
    table(lake, "bronze").commit(TableBatch(id=name, files=[f"batch={name}/part.parquet"], rows=records))


def observations_of(lake: Lake, rows: int, *sources: str) -> None:
    table(lake, "observations").commit(
        TableBatch(id="made", files=["batch=made/part.parquet"], rows=rows, sources=list(sources))
    )


LIMIT = session.ROWS_SMALL


@pytest.mark.parametrize(("records", "expected"), [(LIMIT, True), (LIMIT + 1, False)])
def test_ingest_counts_the_records_that_segments_name(
    tmp_path: Path, chosen: Chosen, records: int, expected: bool
) -> None:
    land(lake := Lake(str(tmp_path / "lake")), records)
    with pytest.raises(NoSessionError):
        main(["ingest", lake.url])
    assert small(chosen) is expected


def test_a_stream_that_stays_is_never_small(tmp_path: Path, chosen: Chosen) -> None:
    land(lake := Lake(str(tmp_path / "lake")), 1)
    with pytest.raises(NoSessionError):
        main(["ingest", lake.url, "--every", "10"])
    assert small(chosen) is False


def test_silver_counts_records_that_observations_do_not_have(tmp_path: Path, chosen: Chosen) -> None:
    lake = Lake(str(tmp_path / "lake"))
    bronze_of(lake, LIMIT * 100, "old")
    observations_of(lake, LIMIT * 100, "old")
    bronze_of(lake, LIMIT, "new")
    with pytest.raises(NoSessionError):
        main(["silver", lake.url])
    assert small(chosen) is True
    chosen.settings.clear()
    bronze_of(lake, 1, "newer")
    with pytest.raises(NoSessionError):
        main(["silver", lake.url])
    assert small(chosen) is False


@pytest.mark.parametrize(("rows", "expected"), [(LIMIT, True), (LIMIT + 1, False)])
def test_jobs_count_readings(tmp_path: Path, chosen: Chosen, rows: int, expected: bool) -> None:
    lake = Lake(str(tmp_path / "lake"))
    observations_of(lake, rows)
    with pytest.raises(NoSessionError):
        main(["jobs", "all", lake.url])
    assert small(chosen) is expected


def of_arguments(*conf: str, master: str | None = None) -> None:
    with pytest.raises(NoSessionError):
        session.of_arguments(argparse.Namespace(engine="spark", conf=list(conf), master=master), "a test", rows=1)


def test_what_the_user_gives_wins(chosen: Chosen) -> None:
    of_arguments("spark.sql.adaptive.enabled=true", "spark.driver.extraJavaOptions=-Xss4m")
    assert chosen.settings["spark.sql.adaptive.enabled"] == "true"
    assert chosen.settings["spark.driver.extraJavaOptions"] == "-Xss4m"
    assert chosen.settings["spark.sql.codegen.wholeStage"] == "false"


@pytest.mark.parametrize(("master", "expected"), [(None, True), ("local[2]", True), ("spark://head:7077", False)])
def test_a_cluster_keeps_its_settings(chosen: Chosen, master: str | None, expected: bool) -> None:
    of_arguments(master=master)
    assert small(chosen) is expected
    chosen.settings.clear()
    if master:
        of_arguments(f"spark.master={master}")
        assert small(chosen) is expected


def test_spark_submit_keeps_its_settings(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    of_arguments()
    assert small(chosen) is False
