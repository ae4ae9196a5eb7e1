"""One Spark session for all tests of the fleet: starting it takes longer than most of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.fleet.lake import Lake
from tests.support.components import require_command, require_module
from tests.support.destinations import s3 as s3
from tests.support.small_lake import SmallFleet, small_fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A session of two cores and little memory."""
    require_command("java")
    require_module("pyspark")
    from lamplighter.cloud_sync.fleet.session import session

    settings = {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Tests are over before the JVM's better compiler pays, and compiling expressions never does.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    made = session("tests", "local[2]", settings)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> SmallFleet:
    """Four simulated gateways, and one by hand."""
    return small_fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="session")
def silver_lake(
    spark: "SparkSession", simulated: SmallFleet, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SmallFleet, Lake]:
    """The fleet, and a lake with all of its records in bronze and silver."""
    from lamplighter.cloud_sync.fleet.tables.bronze import ingest
    from lamplighter.cloud_sync.fleet.tables.silver import Silver

    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    simulated.land(lake)
    ingest(spark, lake)
    Silver(spark, lake).update()
    return simulated, lake
