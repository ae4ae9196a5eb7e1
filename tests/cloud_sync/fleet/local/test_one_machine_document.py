"""The commands of docs/fleet.md for one machine, one after the other, print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from tests.support.places import ROOT

_NUMBER = re.compile(r"[0-9a-f]{8}\b|\d+(\.\d+)? MB")


def _shown() -> list[tuple[list[str], list[str]]]:
    """Each command of the section that needs no Spark, with the lines that the page shows behind it."""
    [section] = re.findall(r"^## One machine$(.*?)^## ", (ROOT / "docs/fleet.md").read_text(), re.M | re.S)
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", section, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((shlex.split(line[2:], comments=True), []))
            else:
                found[-1][1].append(line)
    return [(words, lines) for words, lines in found if words[0] == "lamplighter-fleet" and "--master" not in words]


def test_the_commands_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = _shown()
    assert len(commands) > 7
    for words, lines in commands:
        assert main(words[1:]) == 0, words
        printed = capsys.readouterr()
        there = [_NUMBER.sub("?", line) for line in (printed.err + printed.out).splitlines()]
        for line in lines:
            assert _NUMBER.sub("?", line) in there, words
    assert (tmp_path / "lake/results/report.html").exists()
