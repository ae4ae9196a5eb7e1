"""The Delta logs beside the manifests say what the manifests say."""

import json
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Batches, Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.delta_log import DELTA_TABLES, DeltaLog, follow_all
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.local.session import local_session

deltalake = import_module("deltalake")


@pytest.fixture
def bronze(tmp_path: Path) -> Batches:
    return table(Lake(str(tmp_path / "a lake")), "bronze")


def write(bronze: Batches, name: str, *numbers: int, replaces: tuple[str, ...] = (), **columns: Any) -> TableBatch:
    batch = TableBatch(id=name, files=[], rows=0, replaces=list(replaces))
    rows = pa.table({"seq": list(numbers), **{key: [value] * len(numbers) for key, value in columns.items()}})
    return bronze.commit(bronze.stage_rows(rows, batch))


def rows(bronze: Batches) -> list[dict[str, Any]]:
    """The rows by their values: the log names all columns of the table."""
    found = deltalake.DeltaTable(bronze.lake.path(bronze.name)).to_pyarrow_table().to_pylist()
    some = [{name: value for name, value in row.items() if value is not None} for row in found]
    return sorted(some, key=lambda row: row["seq"])


def log(bronze: Batches) -> list[dict[str, Any]]:
    files = sorted(Path(bronze.lake.path(bronze.name, "_delta_log")).glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_each_batch_is_a_commit_with_its_name(bronze: Batches) -> None:
    delta = DeltaLog(bronze)
    for number, name in enumerate(("000000000001-ab", "000000000002-cd", "000000000003-ef")):
        delta.add(write(bronze, name, number))
    assert rows(bronze) == [{"seq": 0}, {"seq": 1}, {"seq": 2}]
    commits = [line["commitInfo"] for line in log(bronze) if "commitInfo" in line]
    assert [one["batches"] for one in commits] == ["000000000001-ab", "000000000002-cd", "000000000003-ef"]


def test_a_log_that_was_left_behind_follows(bronze: Batches) -> None:
    DeltaLog(bronze).add(write(bronze, "a", 1))
    write(bronze, "b", 2)  # a kill came here
    batch = write(bronze, "c", 3)
    DeltaLog(bronze).add(batch)
    DeltaLog(bronze).add(batch)
    assert [row["seq"] for row in rows(bronze)] == [1, 2, 3]


def test_replaced_batches_leave_and_compaction_is_no_change_of_data(bronze: Batches) -> None:
    for number, name in enumerate("ab"):
        write(bronze, name, number)
    follow_all(bronze.lake, ["bronze", "observations"])
    write(bronze, "compact-1", 0, 1, replaces=("a", "b"))
    follow_all(bronze.lake, ["bronze"], data_change=False)
    assert [row["seq"] for row in rows(bronze)] == [0, 1]
    actions = [action for line in log(bronze) for kind in ("add", "remove") if (action := line.get(kind))]
    assert [one["dataChange"] for one in actions] == [True, True, False, False, False]
    write(bronze, "rest", replaces=("compact-1",))
    follow_all(bronze.lake, ["bronze"])
    assert rows(bronze) == []
    assert not deltalake.DeltaTable.is_deltatable(bronze.lake.path("silver/observations"))


def test_later_columns_are_added(bronze: Batches) -> None:
    earlier = Batches(bronze.lake, bronze.name, "seq BIGINT")
    DeltaLog(earlier).add(write(earlier, "a", 1))
    moment = datetime(2026, 6, 1, tzinfo=UTC)
    DeltaLog(bronze).add(write(bronze, "b", 2, landed=moment))
    assert rows(bronze) == [{"seq": 1}, {"seq": 2, "landed": moment}]


@pytest.mark.parametrize("name", DELTA_TABLES)
def test_the_log_has_the_columns_of_the_table_with_their_types(tmp_path: Path, name: str) -> None:
    of_table = table(Lake(str(tmp_path)), name)
    with local_session() as engine:
        row = engine.range(1).select(F.from_json(F.lit("{}"), of_table.schema).alias("row")).select("row.*")
        batch = of_table.write(row, TableBatch(id="one", files=[], rows=0))
    DeltaLog(of_table).add(batch)
    found = deltalake.DeltaTable(of_table.lake.path(of_table.name))
    file = pq.read_schema(of_table.lake.path(of_table.name, batch.files[0]))
    assert found.schema().to_json() == deltalake.Schema.from_arrow(file).to_json()
    assert found.to_pyarrow_table().to_pylist() == [dict.fromkeys(file.names)]
    assert json.loads(log(of_table)[-1]["add"]["stats"]) == {"numRecords": 1}


def test_a_column_without_nulls_in_the_first_files_may_have_some_later(bronze: Batches) -> None:
    delta = DeltaLog(bronze)
    for name, seq, boot, nullable in (("a", 1, "one", False), ("b", 2, None, True)):
        fields = [pa.field("seq", pa.int64(), nullable), pa.field("boot", pa.string(), nullable)]
        part = pa.table({"seq": [seq], "boot": [boot]}, pa.schema(fields))
        delta.add(bronze.commit(bronze.stage_rows(part, TableBatch(id=name, files=[], rows=0))))
    assert all(one.nullable for one in deltalake.DeltaTable(bronze.lake.path(bronze.name)).schema().fields)
    assert rows(bronze) == [{"seq": 1, "boot": "one"}, {"seq": 2}]


def test_a_damaged_log_stops_nothing_and_is_named(bronze: Batches) -> None:
    DeltaLog(bronze).add(write(bronze, "a", 1))
    for file in Path(bronze.lake.path(bronze.name, "_delta_log")).glob("*.json"):
        file.write_text("{")
    said: list[str] = []
    delta = DeltaLog(bronze, said.append)
    delta.add(write(bronze, "b", 2))
    assert "_delta_log" in said[0] and "remove the folder" in said[0]


def test_a_forgotten_gateway_is_not_in_the_log_s_tables(bronze: Batches) -> None:
    for name in ("gw-1", "gw-2"):
        batch = write(bronze, f"of-{name[-1]}", 1, 2, gw=name)
        bronze.commit(msgspec.structs.replace(batch, segments=[f"{name}/s"], landings={f"{name}/s": 1}))
    DeltaLog(bronze).follow()
    assert main(["forget", bronze.lake.url, "--gateway", "gw-1", "--yes"]) == 0
    assert {row["gw"] for row in rows(bronze)} == {"gw-2"}
    assert [(one.segments, one.landings) for one in bronze.live()] == [([], {}), (["gw-2/s"], {"gw-2/s": 1})]
    left = [path for path in Path(bronze.lake.url).rglob("*") if path.is_file() and b"gw-1" in path.read_bytes()]
    assert left == []


def test_a_lost_file_stops_no_batch_and_the_log_follows_when_it_is_back(bronze: Batches) -> None:
    first = write(bronze, "a", 1)
    place = Path(bronze.lake.path(bronze.name, first.files[0]))
    place.rename(place.with_suffix(".away"))
    said: list[str] = []
    delta = DeltaLog(bronze, said.append)
    delta.add(write(bronze, "b", 2))
    assert len(said) == 1 and "_delta_log: not written" in said[0] and first.files[0] in said[0]
    place.with_suffix(".away").rename(place)
    delta.add(write(bronze, "c", 3))
    assert [row["seq"] for row in rows(bronze)] == [1, 2, 3]


def test_a_commit_that_fails_while_the_log_follows_is_made_up_for_by_the_next_one(bronze: Batches) -> None:
    said: list[str] = []
    delta = DeltaLog(bronze, said.append)
    delta.add(write(bronze, "a", 1))
    logs = Path(bronze.lake.path(bronze.name, "_delta_log"))
    logs.rename(logs.with_name("away"))
    logs.write_text("no folder")
    delta.add(write(bronze, "b", 2))
    assert len(said) == 1
    logs.unlink()
    logs.with_name("away").rename(logs)
    delta.add(write(bronze, "c", 3))
    assert [row["seq"] for row in rows(bronze)] == [1, 2, 3]
