"""The commands on a standalone cluster by `spark-submit`, with the package of `lamplighter-fleet package`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.package import package
from lamplighter.cloud_sync.fleet.submit import DISTRIBUTIONS
from tests.cloud_sync.fleet.tables.silver_oracle import differences, of_lake
from tests.support import odd_gateway
from tests.support.components import require_command, require_module
from tests.support.small_lake import SmallFleet
from tests.support.spark_cluster import SUBMIT_S, StandaloneCluster

Built = tuple[SmallFleet, Lake]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master without workers."""
    require_command("java")
    require_module("pyspark")
    made = StandaloneCluster(tmp_path_factory.mktemp("cluster"), (*DISTRIBUTIONS.values(), "jinja2", "matplotlib"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    archive, script = package(tmp_path_factory.mktemp("package"))
    return archive, script


def test_ingest_by_spark_submit_makes_the_same_bronze(
    cluster: StandaloneCluster, packed: tuple[Path, Path], silver_lake: Built, tmp_path: Path
) -> None:
    """With a segment that is not what its name says: it is left out, and the exit code says so."""
    fleet, expected = silver_lake
    lake = Lake(str(tmp_path / "lake"))
    landed = fleet.land(lake)[0]
    wrong = Path(lake.path("segments", odd_gateway.NAME, "1-000000009000-000000009001.ndjson.zst"))
    shutil.copy(lake.path("segments", landed), wrong)
    cluster.worker()
    process = cluster.submit([packed[0]], packed[1], "ingest", lake.url)
    output, _ = process.communicate(timeout=SUBMIT_S)
    assert process.returncode == 1, output[-4000:]
    assert f"refused {odd_gateway.NAME}/{wrong.name}" in output
    assert differences(of_lake(lake, "bronze"), of_lake(expected, "bronze")) == ([], [])
