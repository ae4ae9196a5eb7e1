"""The lake's places, and the manifests of its batches."""

from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.engine.errors import ConfigurationError


def test_a_url_that_spark_cannot_read_is_said() -> None:
    with pytest.raises(ConfigurationError, match="Spark reads"):
        Lake("memory://lake").spark("segments")
    with pytest.raises(ConfigurationError, match="use a folder, or install the package that the URL needs"):
        Lake("nowhere://lake").path("segments")
    assert Lake("file:///tmp/lake").spark("bronze") == "file:///tmp/lake/bronze"


def test_a_manifest_that_is_damaged_is_named(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    bronze = table(lake, "bronze")
    bronze.commit(TableBatch(id="one", files=["batch=one/a.parquet"], rows=3))
    assert [batch.rows for batch in bronze.live()] == [3]
    (tmp_path / "bronze" / "_batches" / "two.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"two\.json: not a manifest: .*; remove it, and write"):
        bronze.all()


def test_the_time_of_a_file_is_unknown_if_it_is_gone_or_the_file_system_tells_none(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.write(b"x", "segments", "one")
    assert lake.modification_time("segments", "one") == pytest.approx((tmp_path / "segments" / "one").stat().st_mtime)
    assert lake.modification_time("segments", "other") is None
    # This one has the method of fsspec's base class.
    assert Lake("data://lake").modification_time("segments", "one") is None
