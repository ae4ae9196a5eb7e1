"""docs/fleet-tables.md has the columns of the tables and of the results of jobs as the code has them."""

from __future__ import annotations

import re

from lamplighter.cloud_sync.fleet.jobs.results import RESULTS
from lamplighter.cloud_sync.fleet.lake.tables import SCHEMAS
from tests.docs.fleet_tables_reference import columns
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "fleet-tables.md"


def test_the_columns_of_a_schema_are_read() -> None:
    assert columns("a STRING, b ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, g: STRING>>, c ARRAY<ARRAY<STRING>>") == [
        ("a", "string"),
        ("b", "quads"),
        ("c", "arrays of arrays of string"),
    ]
    assert all(len(columns(schema)) > 5 for schema in SCHEMAS.values())


def test_each_column_of_a_result_is_named() -> None:
    """Percentiles of reaction times stand there in other words."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for result in RESULTS.values():
        [named] = [row[2] for row in rows if len(row) == 3 and f"`{result.name}`" in row[1]]
        shown = {name for name in result.columns if not name.endswith(("_p50_ms", "_p99_ms"))}
        assert shown <= set(re.findall(r"\w+", named)), result.name
