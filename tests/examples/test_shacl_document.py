"""docs/inference-shapes.md, shapes: the example prints what is shown, and a gateway with its files refuses as shown."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.support.places import ROOT
from tests.support.running_gateway import rows, running_gateway, update

DOCUMENT = (ROOT / "docs" / "inference-shapes.md").read_text().partition("\n## Validate updates\n")[2]
BAD = "PREFIX : <http://example.org/> INSERT DATA { :desk a :Lamp ; :level 101 }"
GOOD = "PREFIX : <http://example.org/> INSERT DATA { :desk a :Lamp ; :level 100 }"


def block(language: str) -> str:
    return str(re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.S)[0])


def test_the_example_prints_what_is_shown() -> None:
    [(code, shown)] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT, re.S)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "docs/inference-shapes.md", "exec"), {})
    assert printed.getvalue().rstrip() == shown.rstrip()


def settings(folder: Path, **more: object) -> dict[str, Any]:
    """The table of the document, with its file of shapes in place."""
    (folder / "shapes").mkdir()
    (folder / "shapes" / "lamps.ttl").write_text(block("turtle"))
    return {**tomllib.loads(block("toml"))["shacl"], **more}


async def test_a_refusal_has_the_members_that_are_shown(tmp_path: Path) -> None:
    shown = json.loads(block("json"))
    async with running_gateway(tmp_path, shacl=settings(tmp_path)) as at:
        answer = await update(at, BAD)
        told = answer.json
        assert (answer.status, told["error"], told["status_code"]) == (422, shown["error"], shown["status_code"])
        assert told["error_description"].startswith(shown["error_description"].removesuffix(" ..."))
        report, expected = told["report"], shown["report"]
        assert {name: report[name] for name in expected if name != "sh:result"} == {
            name: value for name, value in expected.items() if name != "sh:result"
        }
        [result], [like] = report["sh:result"], expected["sh:result"]
        assert {name: result[name] for name in like} == like
        assert (await update(at, GOOD)).status == 200


async def test_the_query_finds_marked_violations(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, shacl=settings(tmp_path, mode="mark")) as at:
        assert (await update(at, BAD)).status == 200
        [found] = await rows(at, block("sparql"))
        assert (found["node"], found["value"]) == ("http://example.org/desk", "101")
        assert found["path"] == "http://example.org/level"
        assert (
            await update(at, "DELETE DATA { <http://example.org/desk> <http://example.org/level> 101 }")
        ).status == 200
        assert (await update(at, GOOD)).status == 200
        assert await rows(at, block("sparql")) == []
