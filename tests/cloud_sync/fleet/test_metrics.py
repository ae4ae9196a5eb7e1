"""The metrics that a command leaves for node_exporter."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.metrics import write_metrics


def samples(path: Path) -> dict[tuple[str, str], float]:
    """(name, table) -> value."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        for one in family.samples:
            assert one.labels["command"] and one.labels["lake"]
            found[one.name.removeprefix("lamplighter_fleet_"), one.labels.get("table", "")] = one.value
    return found


def test_the_last_success_is_kept_while_the_command_fails(tmp_path: Path) -> None:
    lake, path = Lake(str(tmp_path / "lake")), tmp_path / "ingest.prom"
    for number in range(2):
        table(lake, "bronze").commit(TableBatch(id=f"{number}", files=[], rows=3))
    write_metrics(path, "ingest", lake, 1, 2.5)
    first = samples(path)
    assert first["table_rows", "bronze"] == 6
    assert first["table_batches", "bronze"] == 2
    assert (first["exit_code", ""], first["duration_seconds", ""]) == (1, 2.5)
    assert first["last_success_timestamp_seconds", ""] == first["last_run_timestamp_seconds", ""]
    write_metrics(path, "ingest", lake, 2, 1.0)
    second = samples(path)
    assert second["last_success_timestamp_seconds", ""] == first["last_success_timestamp_seconds", ""]
    assert second["last_run_timestamp_seconds", ""] > first["last_run_timestamp_seconds", ""]
    assert [name.name for name in tmp_path.iterdir() if name.is_file()] == ["ingest.prom"]


def test_a_command_that_fails_writes_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ingest.prom"
    assert main(["ingest", str(tmp_path / "lake"), "--metrics", str(path)]) == 2
    found = samples(path)
    assert found["exit_code", ""] == 2
    assert ("last_success_timestamp_seconds", "") not in found
    assert main(["ingest", str(tmp_path / "lake"), "--metrics", str(tmp_path / "nowhere" / "x.prom")]) == 2
    assert "nowhere/x.prom: No such file or directory; use a file in a folder that exists" in capsys.readouterr().err


def test_comparisons_of_matches_ahead_are_added_up(tmp_path: Path) -> None:
    lake, path = Lake(str(tmp_path / "lake")), tmp_path / "match.prom"
    for number, outcomes in enumerate(({"equal": 5}, {"equal": 2, "different": 1})):
        table(lake, "matches").commit(TableBatch(id=f"{number:012d}", files=[], rows=0, compared=outcomes))
    write_metrics(path, "subscriptions", lake, 0, 1.0)
    families = text_string_to_metric_families(path.read_text())
    [ahead] = [family for family in families if family.name == "lamplighter_fleet_ahead_matches"]
    found = {one.labels["outcome"]: one.value for one in ahead.samples}
    assert found == {"equal": 7, "different": 1, "unfound": 0}
