"""The commands on a standalone cluster by `spark-submit`, with the package of `lamplighter-fleet package`, as in
docs/fleet.md."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.package import package
from lamplighter.cloud_sync.fleet.submit import DISTRIBUTIONS
from tests.cloud_sync.fleet.tables.silver_oracle import differences, of_lake
from tests.support import odd_gateway
from tests.support.components import require_command, require_module
from tests.support.small_lake import SmallFleet
from tests.support.spark_cluster import SUBMIT_S, StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Built = tuple[SmallFleet, Lake]
SEVERAL = Path(__file__).parents[2] / "support" / "several_commands.py"
GATEWAY = "gw-000001"


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
    steps = [line for line in output.splitlines() if " INFO " in line]
    assert len(steps) <= 3, "only the versions, which Spark tells before it knows the level"
    assert differences(of_lake(lake, "bronze"), of_lake(expected, "bronze")) == ([], [])


def commands(lake: Lake, out: Path) -> list[list[str]]:
    """Every command that runs Spark after `ingest`."""
    return [
        ["silver", lake.url],
        ["state", lake.url, GATEWAY, "--at", "1/100", "-o", str(out / "state.nq")],
        ["export", lake.url, "--format", "rdfpatch", "--gateway", GATEWAY, "-o", str(out / "patches.rdfp")],
        ["jobs", "health", lake.url, "--out", str(out / "health")],
        ["compact", lake.url],
    ]


@pytest.mark.faults
@pytest.mark.fleet_faults
def test_commands_end_with_the_same_results_while_a_worker_is_killed_and_replaced(
    cluster: StandaloneCluster,
    packed: tuple[Path, Path],
    silver_lake: Built,
    spark: "SparkSession",
    tmp_path: Path,
) -> None:
    """The worker dies with its executor, its shuffle files and its cached rows, between two steps of `silver`."""
    local = silver_lake[1]
    here, there = tmp_path / "here", tmp_path / "there"
    lake = Lake(str(there / "lake"))
    here.mkdir()
    shutil.copytree(local.path("segments"), lake.path("segments"))
    shutil.copytree(local.path("snapshots"), lake.path("snapshots"))
    shutil.copytree(local.path("bronze"), lake.path("bronze"))
    lines = there / "commands"
    lines.write_text("".join(f"{json.dumps(words)}\n" for words in commands(lake, there)))
    worker = cluster.worker()
    process = cluster.submit(packed, SEVERAL, lines)
    output = []
    killed = False
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        if line.startswith("facts: ") and not killed:
            cluster.kill(worker)
            cluster.worker()
            killed = True
    text = "".join(output)
    assert process.wait(SUBMIT_S) == 0 and killed, text[-4000:]
    assert [line.split()[2] for line in output if line.startswith("exit code")] == ["0:"] * 5, text[-4000:]
    own = Lake(str(here / "lake"))
    shutil.copytree(local.path(), own.path())
    for words in commands(own, here)[1:-1]:
        assert main(words) == 0
    for name in ("bronze", "streams", "observations", "actuations"):
        assert differences(of_lake(lake, name), of_lake(local, name)) == ([], []), name
    assert sorted((there / "state.nq").read_text().splitlines()) == sorted((here / "state.nq").read_text().splitlines())
    names = {path.relative_to(here) for path in here.rglob("*") if path.suffix in (".csv", ".rdfp", ".html")}
    assert len(names) == 2
    for name in names:
        assert (there / name).read_bytes() == (here / name).read_bytes(), name
