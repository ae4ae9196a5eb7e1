"""docs/library.md says what is so: its blocks run in order, and each prints what is shown below it."""

from __future__ import annotations

import asyncio
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.updating.documents import DOCUMENT_BYTES_MAX
from tests.support.places import ROOT
from tests.support.tables import each_row

DOCUMENT = (ROOT / "docs" / "library.md").read_text()
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.S)


def test_the_blocks_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(BLOCK.finditer(DOCUMENT))
    assert len(blocks) == DOCUMENT.count("```python")
    assert sum(block["printed"] is not None for block in blocks) == DOCUMENT.count("```text")
    names: dict[str, Any] = {"__name__": "library"}
    for block in blocks:
        line = DOCUMENT.count("\n", 0, block.start("code")) + 1
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + block["code"], "docs/library.md", "exec"), names)
        assert printed.getvalue() == (block["printed"] or ""), f"docs/library.md line {line}"


def test_limits_are_those_of_the_code() -> None:
    assert DOCUMENT_BYTES_MAX == 256 * 1024 * 1024
    assert "limited to 256 MiB" in DOCUMENT


async def test_an_engine_works_inside_a_running_loop() -> None:
    """As in a cell of a notebook, whose loop already runs."""
    with Engine() as engine:
        subscription = engine.subscribe("SELECT ?s { ?s <a:p> ?o }")
        engine.load(b"<a:s> <a:p> <a:o> .")
        told: asyncio.Queue[Any] = asyncio.Queue()
        engine.listen(told.put_nowait)
        await asyncio.to_thread(engine.update, "INSERT DATA { <a:t> <a:p> 1 }")
        commit = await told.get()
        assert [(n.spuid, n.added.rows) for n in commit.notifications] == [(subscription.spuid, (("<a:t>",),))]
        assert len(engine.query("SELECT ?s { ?s <a:p> ?o }")) == 2


GEO = (
    "PREFIX geo: <http://www.opengis.net/ont/geosparql#> "
    "PREFIX geof: <http://www.opengis.net/def/function/geosparql/> "
    "PREFIX uom: <http://www.opengis.net/def/uom/OGC/1.0/> "
)
SQUARE, POINT = "'POLYGON((0 0, 2 0, 2 2, 0 2, 0 0))'^^geo:wktLiteral", "'POINT(1 1)'^^geo:wktLiteral"
ONE_ARGUMENT = ["envelope", "convexHull", "centroid", "dimension", "isEmpty", "isSimple", "getSRID", "asGeoJSON"]
RELATIONS = [
    *(f"sf{name}" for name in ("Equals", "Disjoint", "Intersects", "Touches", "Crosses", "Within", "Contains")),
    *(f"eh{name}" for name in ("Equals", "Disjoint", "Meet", "Overlap", "Covers", "CoveredBy", "Inside", "Contains")),
    *(f"rcc8{name}" for name in ("eq", "dc", "ec", "po", "tppi", "tpp", "ntpp", "ntppi")),
    "sfOverlaps",
]


@each_row(
    "call",
    [
        *(f"{name}({SQUARE})" for name in ONE_ARGUMENT),
        *(f"{name}({POINT}, {SQUARE})" for name in RELATIONS),
        f"distance({POINT}, {POINT}, uom:metre)",
        f"length({SQUARE}, uom:metre)",
        f"perimeter({SQUARE}, uom:metre)",
        f"relate({POINT}, {SQUARE}, 'T*F**F***')",
    ],
)
def test_functions_of_geosparql_have_a_value(call: str) -> None:
    with Engine() as engine:
        assert list(engine.query(f"{GEO} SELECT ?x {{ BIND(geof:{call} AS ?x) FILTER(BOUND(?x)) }}"))


def test_other_functions_of_geosparql_are_refused() -> None:
    with Engine() as engine, pytest.raises(UnsupportedRequestError, match="buffer> is not supported"):
        engine.query(f"{GEO} SELECT (geof:buffer({POINT}, 1, uom:metre) AS ?x) {{}}")
