"""Lakes in folders whose names mean something to others, in a locale without an encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from tests.support.components import require_module
from tests.support.fleet_events import commit
from tests.support.small_lake import write_segment

pytestmark = pytest.mark.fleet

SCRIPT = """
import sys
from lamplighter.cloud_sync.fleet.__main__ import main
lake, *commands = sys.argv[1:]
for command in commands:
    assert main([*command.split(), lake, "--master", "local[1]"]) == 0, command
"""


def test_a_lake_in_a_folder_with_an_odd_name_in_the_posix_locale(tmp_path: Path) -> None:
    require_module("pyspark")
    name = "lake[1] {a,b}* \u00fc"
    lake = Lake(str(tmp_path / name))
    write_segment(Path(lake.path("segments", "gw-1")), [commit(seq, gw="gw-1") for seq in (1, 2, 3)])
    decoy = "lake1 axy \u00fc"  # a pattern would find it
    other = tmp_path / decoy / "segments" / "gw-1"
    write_segment(other, [commit(seq, gw="gw-1") for seq in (1, 2)])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_") and key != "LANG"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, lake.url, "ingest", "silver", "jobs clocks"],
        env={**environment, "LC_ALL": "POSIX"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "bronze has 3 records" in done.stdout
    assert [batch.rows for batch in table(lake, "bronze").live()] == [3]
    health = table(lake, "gateway_health").live()
    assert [batch.rows for batch in health] == [1]
    assert (tmp_path / name / "results" / "clocks").is_dir()
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, decoy])
    assert not (tmp_path / decoy / "bronze").exists()
