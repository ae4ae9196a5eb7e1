"""The engine in this process makes of the same segments and tables what Spark makes of them, and each reads on where
the other one stopped."""

import argparse
import math
import shutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyarrow import Schema
from pyarrow.parquet import read_schema, read_table
from pyspark.sql import SparkSession

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis, AnalysisOptions
from lamplighter.cloud_sync.fleet.jobs.commands import write_results
from lamplighter.cloud_sync.fleet.jobs.results import RESULTS
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.local.session import LocalSession, local_session
from lamplighter.cloud_sync.fleet.tables import bronze
from lamplighter.cloud_sync.fleet.tables.compact import compact
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.cloud_sync.fleet.tables.state import GatewayPast, nquads
from lamplighter.engine.errors import ConfigurationError
from tests.cloud_sync.fleet.jobs.made_up_tables import BASE, START, small_fleet
from tests.cloud_sync.fleet.tables.silver_oracle import differences, of_lake
from tests.support.shipped_logs import segments
from tests.support.small_lake import SmallFleet, records_of, renamed, write_segment

COLLECTED = segments("gw-1", 1, [3] * 4)
Built = tuple[SmallFleet, Lake]
TABLES = ("bronze", "facts", "streams", "observations", "actuations", "gateway_health")
OF_JOBS = ("streams", "observations", "actuations", "gateway_health")
# Columns that are means of floating-point numbers, or made of one: their last digits depend on the order of the sum.
MEANS = ("mean", "uptime", "_mean", "scale", "z", "worst_z", "on_s", "kwh", "down_s", "gateway_down_s")


@pytest.fixture
def engine() -> Iterator[LocalSession]:
    with local_session() as found:
        yield found


def update(engine: LocalSession, lake: Lake, said: list[str] | None = None) -> list[str]:
    said = [] if said is None else said
    bronze.ingest(engine, lake, files_per_batch=6, say=said.append)
    Silver(engine, lake, said.append).update()
    return said


def schema_of(lake: Lake, name: str) -> Schema:
    table = tables.table(lake, name)
    return read_schema(lake.path(table.name, table.live()[0].files[0]))


def assert_same_columns(lake: Lake, other: Lake, name: str) -> None:
    ours, theirs = schema_of(lake, name), schema_of(other, name)
    # Whether Parquet says of a column or of members that none is null is up to the engine.
    kinds = [[(one.name, str(one.type).replace(" not null", "")) for one in schema] for schema in (ours, theirs)]
    assert kinds[0] == kinds[1], name


def test_tables_are_those_of_spark(silver_lake: Built, tmp_path: Path, engine: LocalSession) -> None:
    fleet, spark_lake = silver_lake
    lake = Lake(str(tmp_path / "lake"))
    fleet.land(lake, lambda fate: fate == "shipped")
    update(engine, lake)
    fleet.land(lake, lambda fate: fate != "shipped")
    said = update(engine, lake)
    assert any("rewritten" in line for line in said)
    for name in TABLES:
        assert_same_columns(lake, spark_lake, name)
        if name != "gateway_health":  # which has a row for each part here
            assert differences(of_lake(lake, name), of_lake(spark_lake, name)) == ([], []), name
    compact(engine, lake)
    for name in TABLES:
        assert_same_rows_of_readers(engine, lake, spark_lake, name)


def test_each_engine_reads_on_where_the_other_one_stopped(
    spark: SparkSession, silver_lake: Built, tmp_path: Path
) -> None:
    fleet, spark_lake = silver_lake
    lake = Lake(str(tmp_path / "lake"))
    fleet.land(lake, lambda fate: fate == "shipped")
    with local_session() as engine:
        update(engine, lake)
    fleet.land(lake, lambda fate: fate == "late")
    said: list[str] = []
    bronze.ingest(spark, lake, say=said.append)
    assert said != []
    Silver(spark, lake).update()
    fleet.land(lake)
    with local_session() as engine:
        update(engine, lake)
    for name in TABLES:
        assert_same_rows_of_readers(spark, lake, spark_lake, name)


def assert_same_rows_of_readers(engine: session.Session, lake: Lake, other: Lake, name: str) -> None:
    ours, theirs = ([row.asDict() for row in tables.read(engine, one, name).collect()] for one in (lake, other))
    assert differences(ours, theirs) == ([], []), name


def collect(folder: Path, source: Path, *numbers: int) -> Lake:
    for number in numbers:
        COLLECTED[number].put(source / "gw-1")
    with Collector(LocalFolder(source), folder) as collector:
        collector.collect(full=True)
    return Lake(str(folder))


def test_both_read_the_landing_log_from_the_same_frontier(spark: SparkSession, tmp_path: Path) -> None:
    lake = collect(tmp_path / "a lake [1]", tmp_path / "source", 0, 1)
    copy = Lake(str(shutil.copytree(lake.url, tmp_path / "spark")))
    with local_session() as engine:
        bronze.ingest(engine, lake)
        Silver(engine, lake).update()
    bronze.ingest(spark, copy)
    Silver(spark, copy).update()
    for name in ("bronze", "gateway_health"):
        assert_same_rows_of_readers(spark, lake, copy, name)
    assert all(row["landed"] is not None for row in of_lake(lake, "bronze"))
    ours, theirs = (tables.table(one, "bronze").live() for one in (lake, copy))
    assert [(one.id.partition("-")[0], one.segments, one.landings, one.rows) for one in ours] == [
        (one.id.partition("-")[0], one.segments, one.landings, one.rows) for one in theirs
    ]
    assert frontier(lake) == frontier(copy)
    # Both take turns on one lake.
    collect(tmp_path / "a lake [1]", tmp_path / "source", 2)
    bronze.ingest(spark, lake)
    collect(tmp_path / "a lake [1]", tmp_path / "source", 3)
    with local_session() as engine:
        bronze.ingest(engine, lake)
    assert [[*batch.landings.values()] for batch in tables.table(lake, "bronze").live()] == [[1, 2], [3], [4]]
    delta = import_module("deltalake").DeltaTable(lake.path("bronze")).to_pyarrow_table()
    assert sorted(delta["seq"].to_pylist()) == sorted(row["seq"] for row in of_lake(lake, "bronze"))


def frontier(lake: Lake) -> bytes:
    return Path(lake.path("bronze", "frontier.json")).read_bytes()


def test_a_run_without_new_segments_starts_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = collect(tmp_path / "lake", tmp_path / "source", 0)
    assert run("ingest", lake.url) == 0
    monkeypatch.setattr(session, "engine_of", lambda *_, **__: pytest.fail("an engine was asked for"))
    assert run("ingest", lake.url) == 0


def results(found: Analysis, out: Path) -> None:
    with found:
        write_results(found, tuple(RESULTS), Lake(str(out)))


def analysis(engine: Any, paths: dict[str, list[str]], options: AnalysisOptions) -> Analysis:
    frames = [
        tables.health_of_parts(frame) if name == "gateway_health" else frame
        for name in OF_JOBS
        for frame in [engine.read.schema(tables.SCHEMAS[name]).parquet(*paths[name])]
    ]
    streams, observations, actuations, health = frames
    short_plans = session.has_short_plans(engine, 0)
    return Analysis(streams, observations, actuations, health, options, short_plans=short_plans)


def of_made_up(folder: Path) -> dict[str, list[str]]:
    small_fleet().write(folder)
    return {name: [str(folder / f"{name}.parquet")] for name in OF_JOBS}


def of_simulated(lake: Lake) -> dict[str, list[str]]:
    found = {name: tables.table(lake, name) for name in OF_JOBS}
    return {
        name: [lake.path(table.name, file) for batch in table.live() for file in batch.files]
        for name, table in found.items()
    }


@pytest.fixture(scope="module", params=["simulated", "made up"])
def both(
    request: pytest.FixtureRequest, spark: SparkSession, silver_lake: Built, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The results of both engines over the same tables: of this one, of Spark."""
    folder = tmp_path_factory.mktemp("results")
    if request.param == "simulated":
        paths, options = of_simulated(silver_lake[1]), AnalysisOptions()
    else:
        paths = of_made_up(folder / "tables")
        since, until = START.replace(hour=6), START.replace(day=2, hour=20)
        options = AnalysisOptions(since=since, until=until, z_min=2.0, watts_of={f"{BASE}lamp/9": 150.0})
    results(analysis(spark, paths, options), folder / "spark")
    with local_session() as engine:
        results(analysis(engine, paths, options), folder / "local")
    return folder / "local", folder / "spark"


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_those_of_spark(both: tuple[Path, Path], name: str) -> None:
    ours, theirs = (read_table(one / RESULTS[name].job / f"{name}.parquet") for one in both)
    kinds = [[(field.name, field.type) for field in one.schema] for one in (ours, theirs)]
    assert kinds[0] == kinds[1]
    assert ours.num_rows == theirs.num_rows
    for mine, other in zip(ours.to_pylist(), theirs.to_pylist(), strict=True):
        for column, value in other.items():
            if column in MEANS and isinstance(value, float):
                assert math.isclose(mine[column], value, rel_tol=1e-12, abs_tol=1e-12), (column, mine, other)
            else:
                assert mine[column] == value, (column, mine, other)
    lines = [(one / RESULTS[name].job / f"{name}.csv").read_text().count("\n") for one in both]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("at", ["20", "2026-06-01T01:30:00Z"])
def test_a_state_is_that_of_spark(spark: SparkSession, silver_lake: Built, at: str) -> None:
    fleet, lake = silver_lake
    for gateway in fleet.gateways:
        with local_session() as engine:
            ours = state(GatewayPast(engine, lake, gateway), at)
        assert ours == state(GatewayPast(spark, lake, gateway), at)
        assert ours[1] != []


def state(past: GatewayPast, at: str) -> tuple[Any, list[str]]:
    """Of a record, and the quads as of it; or why there is none, as for a time before the first record."""
    try:
        place = past.place(at)
    except ConfigurationError as error:
        return None, [str(error)]
    return place, sorted(row[0] for row in nquads(past.dataset(place)).collect())


# --- the commands


@pytest.fixture
def landed(simulated: SmallFleet, tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    simulated.land(lake)
    return lake


def run(*arguments: str) -> int:
    return main([*arguments, "--engine", "local"])


def test_commands_run_without_spark(
    landed: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "session", lambda *_, **__: pytest.fail("Spark was asked for"))
    assert run("ingest", landed.url) == 0
    assert run("silver", landed.url) == 0
    assert run("jobs", "all", landed.url) == 0
    assert run("report", landed.url) == 0
    assert run("compact", landed.url) == 0
    assert all(Path(landed.path("results", one.job, f"{one.name}.csv")).exists() for one in RESULTS.values())
    capsys.readouterr()
    assert run("ingest", landed.url) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [("query", "ASK { ?s ?p ?o }"), ("export", "--format", "rdfpatch", "--gateway", "gw-000001", "-o", "there")],
)
def test_a_command_of_spark_alone_is_refused_by_name(
    silver_lake: Built, command: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command[0], silver_lake[1].url, *command[1:]) == 2
    said = capsys.readouterr().err
    assert f"{command[0]} runs on Spark only" in said
    assert "--engine spark" in said


def test_what_the_engine_cannot_do_is_said_with_the_cure(landed: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ingest", landed.url, "--master", "local[2]") == 2
    assert "--master and --conf are for Spark" in capsys.readouterr().err
    arguments = argparse.Namespace(engine="local", master=None, conf=[])
    with (
        pytest.raises(ConfigurationError, match="--engine local reads a lake in a folder"),
        session.engine_of(arguments, "jobs", Lake("memory://lake")),
    ):
        pass


@pytest.mark.parametrize(
    ("engine", "rows", "master", "expected"),
    [
        ("auto", session.ROWS_LOCAL, None, True),
        ("auto", session.ROWS_LOCAL + 1, None, False),
        ("auto", None, None, False),
        ("auto", 1, "local[2]", False),
        ("spark", 1, None, False),
        ("local", None, None, True),
    ],
)
def test_auto_chooses_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, rows: int | None, master: str | None, expected: bool
) -> None:
    monkeypatch.setattr(session, "session", lambda *_, **__: None)
    arguments = argparse.Namespace(engine=engine, master=master, conf=[])
    with session.engine_of(arguments, "silver", Lake(str(tmp_path)), rows=rows) as found:
        assert isinstance(found, LocalSession) is expected


# --- files that cannot be read


def damaged(lake: Lake, simulated: SmallFleet, name: str) -> Path:
    """A segment of a further gateway, cut off within its last block."""
    folder = Path(lake.path("segments", name))
    gateway = simulated.gateways[0]
    segment = simulated.truths[gateway].segments[0]
    records = records_of(simulated.segment(gateway, segment.name, segment.fate))
    path = write_segment(folder, renamed(records, name))
    whole = path.read_bytes()
    path.with_suffix(".good").write_bytes(whole)
    path.write_bytes(whole[: len(whole) * 3 // 4])
    return path


def test_a_damaged_segment_is_refused_alone_until_a_good_copy_is_there(
    landed: Lake, simulated: SmallFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged(landed, simulated, "gw-damaged")
    assert run("ingest", landed.url) == 1
    said = capsys.readouterr().err
    assert f"refused gw-damaged/{path.name}: " in said
    assert f"not in bronze: gw-damaged/{path.name}" in said
    (reason,) = [one.reason for batch in tables.table(landed, "bronze").live() for one in batch.refused]
    assert "\n" not in reason
    gateways = {row["gw"] for row in of_lake(landed, "bronze")}
    assert gateways == set(simulated.gateways)
    shutil.move(path.with_suffix(".good"), path)
    assert run("ingest", landed.url) == 1  # it is not read again by itself
    assert run("ingest", landed.url, "--again") == 0
    assert {row["gw"] for row in of_lake(landed, "bronze")} == {*simulated.gateways, "gw-damaged"}


def test_a_disk_that_is_full_refuses_nothing(
    landed: Lake, engine: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: LocalSession, query: str, path: Path) -> None:
        raise self.error("IO Error: no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LocalSession, "write", full)
        with pytest.raises(engine.error, match="no space left"):
            bronze.ingest(engine, landed)
    assert tables.table(landed, "bronze").all() == []
    bronze.ingest(engine, landed)
    assert bronze.unread(landed) == []
