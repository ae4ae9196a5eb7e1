"""The table of columns in docs/fleet-tables.md, made from the schemas of the lake."""

from __future__ import annotations

import re
from itertools import groupby

from lamplighter.cloud_sync.fleet.lake.tables import SCHEMAS

QUADS = "array<struct<s: string, p: string, o: string, g: string>>"


def columns(schema: str) -> list[tuple[str, str]]:
    """Names and types of the columns of a DDL, types in lower case; arrays of quads are `quads`."""
    parts = re.split(r",\s*(?![^<]*>)", schema.lower().replace(QUADS, "quads").strip())
    named = (part.strip().partition(" ") for part in parts)
    return [(name, kind.replace("array<", "arrays of ").replace(">", "")) for name, _, kind in named]


def fleet_tables_reference() -> str:
    """A Markdown table with a row for each table; columns of one type that stand together name it once."""
    lines = ["| table | columns |", "| --- | --- |"]
    for table, schema in SCHEMAS.items():
        groups = groupby(columns(schema), key=lambda column: column[1])
        text = "; ".join(f"{', '.join(f'`{name}`' for name, _ in group)} {kind}" for kind, group in groups)
        lines.append(f"| `{table}` | {text} |")
    return "\n".join(lines) + "\n"
