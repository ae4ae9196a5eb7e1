"""The command `try`, over a data folder that a gateway has left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lamplighter.gateway.__main__ import main
from tests.gateway.loop.test_redeclaring import come
from tests.support.gateway_parts import FakeClock, recovered_runner, update
from tests.support.places import ROOT

NOTES = {
    "namespaces": {"e": "http://e/"},
    "queries": {"THINGS": {"sparql": "SELECT ?thing { ?thing a e:Thing }"}},
    "updates": {
        "NOTE": {
            "sparql": "INSERT { ?thing e:seen true } WHERE {}",
            "forcedBindings": {"thing": {"type": "uri", "value": ""}},
        }
    },
    "extended": {"lamplighter": {"aggregators": {"note": {"query": "THINGS", "added": "NOTE"}}}},
}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A configuration whose data folder has six records."""
    async with recovered_runner(tmp_path / "data", FakeClock()) as runner:
        await update(runner, "INSERT DATA { <http://e/house> a <http://e/House> }")
        await come(runner, "one", "two", "three", "four", "five")
    (tmp_path / "lamplighter.toml").write_text("")
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "notes.jsap").write_text(json.dumps(NOTES))
    return tmp_path


def tried(folder: Path, *words: str) -> int:
    return main(["try", *words, "--config", str(folder / "lamplighter.toml")])


async def test_reactions_are_shown_with_their_effects(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (folder / "data").rglob("*") if path.is_file()}
    assert tried(folder, "notes", "--since", "1", "--last", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "(3 earlier reactions not shown; --last N shows more)",
        "2026-11-21 02:00:00  NOTE, note/added, after record 1/5",
        "    + <http://e/four> <http://e/seen> true",
        "2026-11-21 02:00:00  NOTE, note/added, after record 1/6",
        "    + <http://e/five> <http://e/seen> true",
        "notes would have reacted 5 times since 2026-11-21 02:00:00 UTC, in 5 records",
    ]
    assert {path: path.read_bytes() for path in before} == before


async def test_json_has_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(folder, str(folder / "apps" / "notes.jsap"), "--since", "1/3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["application"], found["records"], found["reactions"]) == ("notes", 3, 3)
    assert found["last"][0]["record"] == "1/4"
    assert found["last"][0]["added"] == [
        '<http://e/three> <http://e/seen> "true"^^<http://www.w3.org/2001/XMLSchema#boolean> .'
    ]


async def test_young_log_is_tried_from_its_beginning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(folder, "notes", "--since", "P300D") == 0
    assert "reacted 5 times since 2026-11-21" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nosuch"], "there is no such file, and no"),
        (["notes", "--since", "P1M"], "write a duration such as PT1H"),
        (["notes", "--since", "99"], "no record 99 is kept"),
        (["notes", "--since", "yesterday"], "--since: 'yesterday' is not a record"),
        (["notes", "--last", "0"], "--last 0: it must be 1 or more"),
        (["broken"], "unknown member"),
    ],
)
async def test_faults_are_named(folder: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "apps" / "smart-lighting.jsap", folder / "apps" / "broken.jsap")
    text = (folder / "apps" / "broken.jsap").read_text()
    (folder / "apps" / "broken.jsap").write_text(text.replace('"sparql"', '"sparkle"', 1))
    assert tried(folder, *words) != 0
    assert what in capsys.readouterr().err
