"""From landed segments to tables: these say what other engines find in the same segments, in whatever order they came
and wherever the work broke off."""

import contextlib
import hashlib
import queue
import re
import shutil
import threading
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pyoxigraph as ox
import pytest
from pyspark.sql import SparkSession

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.tables import bronze, export, terms
from lamplighter.cloud_sync.fleet.tables.compact import compact
from lamplighter.cloud_sync.fleet.tables.silver import Silver
from lamplighter.cloud_sync.fleet.tables.state import GatewayPast, nquads, write_lines
from lamplighter.engine.change_log import Record
from lamplighter.engine.change_log.rdf_patch import patches
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.terms import iri, lexical, literal
from tests.cloud_sync.fleet.tables.silver_oracle import Replay, Rows, bronze_row, differences, of_duckdb, of_lake
from tests.support import odd_gateway
from tests.support.places import ROOT
from tests.support.small_lake import SmallFleet, renamed, write_segment

Built = tuple[SmallFleet, Lake]
SILVER = ("streams", "observations", "actuations", "gateway_health")


def update(
    spark: SparkSession, lake: Lake, files_per_batch: int = 2000, say: Callable[[str], None] = lambda line: None
) -> None:
    bronze.ingest(spark, lake, files_per_batch=files_per_batch, say=say)
    Silver(spark, lake, say).update()


def segments(lake: Lake) -> list[Path]:
    return sorted(Path(lake.path("segments")).glob("*/*.ndjson.zst"))


@pytest.fixture(scope="module")
def replayed(silver_lake: Built) -> tuple[dict[str, Rows], dict[tuple[str, int, int], str]]:
    """Tables by pyoxigraph; and datasets, as SHA-256 of their N-Quads, at some records of each gateway."""
    fleet, _ = silver_lake
    found: dict[str, Rows] = {"streams": [], "observations": [], "actuations": []}
    states = {}

    def note(record: Record, store: ox.Store) -> None:
        if record.seq % 37 == 0 or (record.gw == odd_gateway.NAME and record.seq % 5 == 0):
            states[record.gw, record.epoch, record.seq] = digest([str(quad) for quad in store])

    for gateway in fleet.gateways:
        for name, rows in Replay(note).play(fleet.records(gateway)).tables.items():
            found[name] += rows
    return found, states


@pytest.fixture(scope="module")
def in_sql(silver_lake: Built, replayed: tuple[dict[str, Rows], Any]) -> dict[str, Rows]:
    """Tables by DuckDB."""
    return of_duckdb(segments(silver_lake[1]), replayed[0]["streams"])


def digest(statements: list[str]) -> str:
    return hashlib.sha256("".join(f"{text} .\n" for text in sorted(statements)).encode()).hexdigest()


@pytest.mark.parametrize("name", ["streams", "observations", "actuations"])
def test_table_is_what_a_replay_into_a_store_says(
    silver_lake: Built, replayed: tuple[dict[str, Rows], Any], name: str
) -> None:
    assert replayed[0][name]
    assert differences(of_lake(silver_lake[1], name), replayed[0][name]) == ([], [])


@pytest.mark.parametrize("name", ["observations", "actuations", "gateway_health"])
def test_table_is_what_sql_says(silver_lake: Built, in_sql: dict[str, Rows], name: str) -> None:
    assert in_sql[name]
    assert differences(of_lake(silver_lake[1], name), in_sql[name]) == ([], [])


def test_bronze_has_every_member_of_every_record(silver_lake: Built, in_sql: dict[str, Rows]) -> None:
    found = [bronze_row(row) for row in of_lake(silver_lake[1], "bronze")]
    assert {row["type"] for row in found} == {"commit", "timer", "cancel", "gap", "unsubscribe"}
    assert differences(found, [bronze_row(row) for row in in_sql["bronze"]]) == ([], [])


def test_the_simulated_truth_is_in_the_tables(silver_lake: Built) -> None:
    fleet, lake = silver_lake
    observations = of_lake(lake, "observations")
    for gateway, truth in fleet.truths.items():
        mine = [row for row in observations if row["gw"] == gateway]
        assert len(mine) == truth.readings
        for stream, expected in truth.streams.items():
            numbers = [row["number"] for row in mine if row["stream"] == stream and row["number"] is not None]
            assert (min(numbers, default=None), max(numbers, default=None)) == (expected.low, expected.high)
            assert sum(numbers) == pytest.approx(expected.sum)
            assert sum(row["flag"] is True for row in mine if row["stream"] == stream) == expected.trues


@pytest.fixture(scope="module")
def late_lake(
    spark: SparkSession, silver_lake: Built, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lake, list[str]]:
    """Some of the gateways, whose late segments were taken in last, in several batches; and what was said then."""
    fleet, _ = silver_lake
    lake = Lake(str(tmp_path_factory.mktemp("late")))
    fleet.land(lake, lambda fate: fate == "shipped", LATE)
    update(spark, lake, 6)
    fleet.land(lake, lambda fate: fate != "shipped", LATE)
    said: list[str] = []
    update(spark, lake, say=said.append)
    return lake, said


LATE = ("gw-000001", "gw-000003", odd_gateway.NAME)


def test_segments_that_come_late_and_out_of_order_change_nothing(
    spark: SparkSession, silver_lake: Built, late_lake: tuple[Lake, list[str]]
) -> None:
    lake, said = late_lake
    assert len(tables.table(lake, "bronze").live()) > 2
    assert any("rewritten" in line for line in said)
    for name in ("bronze", *SILVER):
        assert differences(rows_of(spark, lake, name), rows_of(spark, silver_lake[1], name, LATE)) == ([], []), name


def rows_of(spark: SparkSession, lake: Lake, name: str, gateways: Container[str] | None = None) -> Rows:
    """A table's rows; of one that readers add up, as these see them."""
    rows = of_lake(lake, name)
    if name == "gateway_health":
        rows = [row.asDict() for row in tables.read(spark, lake, name).collect()]
    return [row for row in rows if gateways is None or row["gw"] in gateways]


class Killed(Exception):
    """What a test does to whoever writes."""


@pytest.mark.parametrize(
    "deaths_max", [pytest.param(3, id="at three steps"), pytest.param(99, id="at every step", marks=pytest.mark.faults)]
)
def test_work_that_breaks_off_goes_on_to_the_same_tables(
    spark: SparkSession, silver_lake: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths_max: int
) -> None:
    fleet, whole = silver_lake
    broken = Lake(str(tmp_path))
    fleet.land(broken, gateways=[odd_gateway.NAME])
    write, deaths = Lake.write, 0
    met: set[str] = set()

    def dying(lake: Lake, data: bytes, *parts: str) -> None:
        """Whoever writes a manifest for the first time dies: before the first one, behind the second one, and so on."""
        nonlocal deaths
        first, before = "/".join(parts) not in met and deaths < deaths_max, len(met) % 2 == 0
        met.add("/".join(parts))
        if first and before:
            deaths += 1
            raise Killed
        write(lake, data, *parts)
        if first:
            deaths += 1
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "write", dying)
        died = -1
        while died < deaths:
            died = deaths
            # Spark wraps what a batch of the stream raises.
            with contextlib.suppress(Killed, UpstreamError):
                update(spark, broken)
    assert deaths >= min(deaths_max, 7)
    for name in ("bronze", *SILVER):
        expected = rows_of(spark, whole, name, [odd_gateway.NAME])
        assert differences(rows_of(spark, broken, name), expected) == ([], []), name


def test_segments_that_cannot_be_read_are_named_and_the_stream_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    [first, *_] = odd_gateway.segments()
    good = write_segment(tmp_path / "segments" / "gw-good", renamed(first, "gw-good"))
    write_segment(tmp_path / "segments" / "gw-alien", renamed(first, "gw-other"))
    cut = write_segment(tmp_path / "segments" / "gw-cut", renamed(first, "gw-cut"))
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    short = write_segment(tmp_path / "segments" / "gw-short", renamed(first[:-1], "gw-short"))
    short.rename(short.with_name(good.name))
    text = tmp_path / "segments" / "gw-text" / good.name
    text.parent.mkdir()
    text.write_bytes(b"no segment at all\n")
    said: list[str] = []
    bronze.ingest(spark, lake, say=said.append)
    batches = tables.table(lake, "bronze").live()
    reasons = {one.segment: one.reason for batch in batches for one in batch.refused}
    assert max(batch.quads_max or 0 for batch in batches) == max(len(one.a or ()) + len(one.k or ()) for one in first)
    assert f"gw-alien/{good.name}" in reasons and "gw-other" in reasons[f"gw-alien/{good.name}"]
    assert "4 records" in reasons[f"gw-short/{good.name}"]
    assert {row["gw"] for row in of_lake(lake, "bronze")} == {"gw-good"}
    assert {name.partition("/")[0] for name in bronze.unread(lake)} == {"gw-alien", "gw-cut", "gw-short", "gw-text"}
    # A good copy is taken when it is asked for, once.
    cut.write_bytes(whole)
    bronze.ingest_again(spark, lake, [f"gw-cut/{cut.name}"])
    bronze.ingest_again(spark, lake, [f"gw-cut/{cut.name}"])
    assert len(of_lake(lake, "bronze")) == 2 * len(first)


def test_a_repaired_segment_is_taken_again_with_those_that_are_new(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    first, second, third, *_ = odd_gateway.segments()
    folder = tmp_path / "segments" / odd_gateway.NAME
    damaged = write_segment(folder, first)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:20])
    write_segment(folder, second)
    assert main(["ingest", str(tmp_path)]) == 1
    damaged.write_bytes(whole)
    write_segment(folder, third)
    assert main(["ingest", str(tmp_path)]) == 1, "it is not looked at unless that is asked for"
    assert main(["ingest", str(tmp_path), "--again"]) == 0
    assert sorted(row["seq"] for row in of_lake(lake, "bronze")) == [one.seq for one in (*first, *second, *third)]
    assert main(["ingest", str(tmp_path), "--again"]) == 0


def test_a_lost_frontier_makes_no_record_count_twice(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    [first, second, *_] = odd_gateway.segments()
    write_segment(tmp_path / "segments" / odd_gateway.NAME, first)
    bronze.ingest(spark, lake)
    (tmp_path / "bronze/frontier.json").write_text("damaged")
    write_segment(tmp_path / "segments" / odd_gateway.NAME, second)
    bronze.ingest(spark, lake)
    assert sorted(row["seq"] for row in of_lake(lake, "bronze")) == [record.seq for record in (*first, *second)]


def test_ingest_that_stays_takes_what_lands(spark: SparkSession, tmp_path: Path) -> None:
    lake, stopping = Lake(str(tmp_path)), threading.Event()
    said: queue.Queue[str] = queue.Queue()
    landing = bronze.Ingest(lake, said.put)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(bronze.keep_ingesting, landing, 0.05, stopping, lambda: spark)
        try:
            for records in odd_gateway.segments()[:2]:
                write_segment(tmp_path / "segments" / odd_gateway.NAME, records)
                assert f"{len(records)} records of 1 segment" in said.get(timeout=300)
        finally:
            stopping.set()
        running.result()
    assert len(of_lake(lake, "bronze")) == 9


def test_datasets_of_the_past_are_those_of_a_replay(
    spark: SparkSession, silver_lake: Built, replayed: tuple[Any, dict[tuple[str, int, int], str]]
) -> None:
    fleet, lake = silver_lake
    asked = {key: sha256 for key, sha256 in replayed[1].items() if key[0] in (odd_gateway.NAME, "gw-000002")}
    asked |= {
        (gateway, state.epoch, state.seq): state.sha256
        for gateway, truth in list(fleet.truths.items())[:2]
        for state in truth.states[-1:]
    }
    # Those of both epochs of the odd gateway, and one or two of the others.
    chosen = sorted(asked)[:: max(1, len(asked) // 6)]
    for gateway, epoch, seq in chosen:
        past = GatewayPast(spark, lake, gateway)
        lines = [row[0] for row in nquads(past.dataset((epoch, seq))).collect()]
        assert digest([line.removesuffix(" .") for line in lines]) == asked[gateway, epoch, seq], (gateway, epoch, seq)


def test_a_moment_is_the_last_record_that_is_not_later(spark: SparkSession, silver_lake: Built, tmp_path: Path) -> None:
    fleet, lake = silver_lake
    past = GatewayPast(spark, lake, odd_gateway.NAME)
    records = fleet.records(odd_gateway.NAME)
    assert past.place(records[7].ts) == (1, records[7].seq)
    assert (past.place("3"), past.place("1/3"), past.place("20")) == ((2, 3), (1, 3), (1, 20))
    count = write_lines(nquads(past.dataset((1, 1))).orderBy("line"), tmp_path / "state.nq")
    assert count == len((tmp_path / "state.nq").read_text().splitlines()) == len(records[0].a)
    for text, said in (
        ("2000-01-01", "no record 2000-01-01"),
        ("2/99", "no record 2/99"),
        ("noon", "write a sequence"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            past.place(text)
    with pytest.raises(ConfigurationError, match="bronze has no records"):
        GatewayPast(spark, lake, "gw-none")


def test_what_cannot_be_known_is_said(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    parts = odd_gateway.segments()
    write_segment(tmp_path / "segments" / odd_gateway.NAME, parts[0])
    write_segment(tmp_path / "segments" / odd_gateway.NAME, parts[2])
    bronze.ingest(spark, lake)
    with pytest.raises(ConfigurationError, match="records from 1/6 on are missing"):
        GatewayPast(spark, lake, odd_gateway.NAME).dataset((1, parts[2][-1].seq))


def test_patches_are_those_of_the_gateway_s_own_export(spark: SparkSession, silver_lake: Built) -> None:
    fleet, lake = silver_lake
    for gateway in ("gw-000001", odd_gateway.NAME):
        rows = export.patches(GatewayPast(spark, lake, gateway).records).orderBy("epoch", "seq").collect()
        assert "".join(row["patch"] + "\n" for row in rows) == "".join(patches(fleet.records(gateway)))


def test_a_table_as_delta_has_the_same_rows(silver_lake: Built, tmp_path: Path) -> None:
    deltalake = import_module("deltalake")
    _, lake = silver_lake
    for _ in range(2):  # what was there is replaced
        assert export.write_delta(lake, "observations", tmp_path / "delta") == len(of_lake(lake, "observations"))
    table = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    found = sorted((row["gw"], row["epoch"], row["seq"], row["observation"], row["value"]) for row in table.to_pylist())
    expected = of_lake(lake, "observations")
    assert found == sorted((row["gw"], row["epoch"], row["seq"], row["observation"], row["value"]) for row in expected)
    with pytest.raises(ConfigurationError, match="has no rows"):
        export.write_delta(Lake(str(tmp_path / "empty")), "streams", tmp_path / "other")


def test_compaction_leaves_the_tables_as_they_are_in_fewer_files(
    spark: SparkSession, late_lake: tuple[Lake, list[str]], tmp_path: Path
) -> None:
    before, lake = late_lake[0], Lake(str(tmp_path / "lake"))
    shutil.copytree(before.path(), lake.path())
    compact(spark, lake)
    for name in ("bronze", *SILVER):
        assert differences(rows_of(spark, lake, name), rows_of(spark, before, name)) == ([], []), name
        assert len(list(Path(lake.path(tables.table(lake, name).name)).glob("batch=*/*.parquet"))) == 1
    # Nothing is left to be done, and segments that were taken in are not taken in again.
    said: list[str] = []
    update(spark, lake, say=said.append)
    assert said == []


def test_documented_queries_find_something(spark: SparkSession, silver_lake: Built) -> None:
    text = (ROOT / "docs" / "fleet-tables.md").read_text()
    for name in ("bronze", *SILVER):
        tables.read(spark, silver_lake[1], name).createOrReplaceTempView(name)
    asked = set()
    for query in re.findall(r"```sql\n(.*?)```", text, re.S):
        found = re.search(r"\bFROM (\w+)", query)
        if found is not None and found[1] in ("bronze", *SILVER):
            assert spark.sql(query).take(1), query
            asked.add(found[1])
    assert asked == {"bronze", *SILVER}


@pytest.fixture
def odd_terms() -> Iterator[list[str]]:
    yield [
        *odd_gateway.VALUES,
        "_:b0",
        iri("http://a/"),
        literal("\x00\x7f\b\f\r\n\"'\\@<>^"),
        literal('"@en'),
        literal("x>", datatype="http://a/d"),
    ]


def test_terms_are_read_as_the_engine_reads_them(spark: SparkSession, odd_terms: list[str]) -> None:
    from pyspark.sql import functions as F

    frame = spark.createDataFrame([(text,) for text in odd_terms], "t STRING")
    column = F.col("t")
    rows = frame.select("t", terms.plain(column).alias("plain"), terms.datatype(column).alias("datatype")).collect()
    for row in rows:
        assert row["plain"] == lexical(row["t"])
        found = ox.parse(f"<s:s> <p:p> {row['t']} .", ox.RdfFormat.N_TRIPLES)
        [triple] = list(found)
        expected = triple.object.datatype.value if isinstance(triple.object, ox.Literal) else None
        assert row["datatype"] == expected
