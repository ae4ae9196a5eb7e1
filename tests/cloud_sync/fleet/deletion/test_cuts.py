"""Which records `retain` calls old, whatever the clocks of gateways say."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lamplighter.cloud_sync.fleet.deletion.cuts import cuts_before
from lamplighter.cloud_sync.fleet.deletion.selection import Cut
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table

NOW = datetime(2026, 7, 1, tzinfo=UTC)
OLD, UNSET, AHEAD = NOW - timedelta(days=500), datetime(1970, 1, 2, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
BEFORE = NOW - timedelta(days=365)


@pytest.mark.parametrize(
    ("times", "last"),
    [
        ([OLD, OLD, NOW], 2),
        ([UNSET, UNSET, UNSET], 0),
        ([NOW, UNSET, UNSET], 0),
        ([OLD, AHEAD, OLD], 3),
    ],
)
@pytest.mark.parametrize("landing_times", [True, False])
def test_a_clock_that_was_never_set_makes_nothing_old_and_one_that_is_ahead_keeps_nothing(
    tmp_path: Path, times: list[datetime], last: int, landing_times: bool
) -> None:
    lake = Lake(str(tmp_path))
    for number, time in enumerate(times, 1):
        segment = f"gw-1/1-{number:012d}-{number:012d}.ndjson.zst"
        row = {"gw": "gw-1", "epoch": 1, "seq": number, "ts": time, "trusted": True, "segment": segment}
        if landing_times:
            row["landed"] = OLD if time == OLD else NOW
        bronze = table(lake, "bronze")
        batch = TableBatch(id=f"b{number}", files=[], rows=0, segments=[segment])
        bronze.commit(bronze.stage_rows(pa.Table.from_pylist([row]), batch))
    if AHEAD in times and not landing_times:
        last = 1
    assert cuts_before(lake, BEFORE, without_state=True).cuts == ({"gw-1": Cut((1, last), (1, last))} if last else {})
