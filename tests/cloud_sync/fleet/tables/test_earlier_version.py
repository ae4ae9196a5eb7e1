"""A lake of a version without landing log, packs and Delta logs goes on, and its results are those of a new lake."""

import contextlib
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection.ledger import FILE
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import read, table
from lamplighter.cloud_sync.fleet.local.session import local_session
from tests.cloud_sync.fleet.tables.silver_oracle import differences
from tests.support.lake_files import files_with

LATER_COLUMNS = {"bronze": ["landed"], "gateway_health": ["ahead", "landed"]}


def test_a_lake_of_an_earlier_version_goes_on_to_the_same_results(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    assert main(["simulate", str(fleet), "--gateways", "2", "--days", "0.05", "--records", "40", "--seed", "3"]) == 0
    shipped = sorted((fleet / "shipped").glob("*/1-*"))
    lakes = [Lake(str(tmp_path / name)) for name in ("earlier", "new")]
    for lake in lakes:
        source = tmp_path / f"source of {Path(lake.url).name}"
        _ship([one for one in shipped if int(one.name.split("-")[1]) <= 160], source)
        _run(lake, source)
        if lake is lakes[0]:
            _make_earlier(lake)
        _ship(shipped, source)
        _run(lake, source)
        assert main(["jobs", "all", lake.url, "--engine", "local"]) == 0
    earlier, new = lakes
    with local_session() as engine:
        for name in ("bronze", "facts", "streams", "observations", "actuations", "gateway_health"):
            rows = [[row.asDict() for row in read(engine, lake, name).collect()] for lake in lakes]
            assert rows[0] != []
            assert differences(*([_without(row, LATER_COLUMNS.get(name, [])) for row in one] for one in rows)) == (
                [],
                [],
            ), name
    results = [path.relative_to(new.path("results")) for path in Path(new.path("results")).rglob("*.csv")]
    assert len(results) > 8
    for path in results:
        texts = [_rounded(Path(lake.path("results", str(path))).read_text()) for lake in lakes]
        assert texts[0] == texts[1], path
    state = [tmp_path / f"{number}.nq" for number in range(2)]
    for lake, output in zip(lakes, state, strict=True):
        assert main(["compact", lake.url, "--engine", "local"]) == 0
        assert main(["state", lake.url, "gw-000001", "--at", "1/100", "--engine", "local", "-o", str(output)]) == 0
    assert state[0].read_bytes() == state[1].read_bytes() != b""
    assert main(["forget", earlier.url, "--gateway", "gw-000001", "--yes"]) == 0
    assert files_with(Path(earlier.url), "gw-000001") == []


def _ship(objects: list[Path], source: Path) -> None:
    for one in objects:
        (source / one.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(one, source / one.parent.name)


def _run(lake: Lake, source: Path) -> None:
    assert main(["collect", str(source), lake.url]) == 0
    for command in ("ingest", "silver"):
        assert main([command, lake.url, "--engine", "local"]) == 0


def _make_earlier(lake: Lake) -> None:
    """Takes away what that version did not write."""
    folder = Path(lake.url)
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        for name in ("histories", "claims", "landings", "epoch_ids"):
            db.execute(f"DROP TABLE {name}")
    shutil.rmtree(folder / "landings")
    (folder / "bronze/frontier.json").unlink()
    for log in folder.rglob("_delta_log"):
        shutil.rmtree(log)
    for name, columns in LATER_COLUMNS.items():
        found = table(lake, name)
        for batch in found.live():
            for file in batch.files:
                path = lake.path(found.name, file)
                pq.write_table(pq.ParquetFile(path).read().drop_columns(columns), path)
            found.commit(msgspec.structs.replace(batch, landings={}))


def _without(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in columns}


def _rounded(text: str) -> str:
    """The last digits of a mean depend on the order of the rows."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.9g}", text)
