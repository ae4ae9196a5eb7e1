"""Shell completion and manual pages are made from the parser, and shells and mandoc read them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from lamplighter.gateway.__main__ import command_parser, main
from lamplighter.gateway.cli.command_tree import PLACES, SHELLS, CommandNode, manuals, tree, write_files
from tests.support.components import require_command
from tests.support.places import ROOT

LINES = {
    "": {"log", "devices", "query", "--help"},
    "log": {"show", "export", "restore"},
    "log show": {"--json", "--last", "--from"},
    "devices list --state": {"proposed", "adopted", "retired", "ignored"},
    "query --format": {"table", "json", "csv", "tsv", "turtle"},
    "completion": {"bash", "zsh", "fish"},
}
"""Words behind `lamplighter` -> some of those that may follow."""


@pytest.fixture(scope="module")
def root() -> CommandNode:
    return tree(command_parser())


@pytest.fixture(scope="module")
def usr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("usr")
    write_files(folder, command_parser())
    return folder


def offered(shell: str, script: Path, line: str, environment: Mapping[str, str] | None = None) -> set[str]:
    """What a shell offers behind a line."""
    words = ["lamplighter", *line.split()]
    if shell == "bash":
        text = (
            f"source {script}; COMP_WORDS=({' '.join(words)} ''); COMP_CWORD={len(words)}; _lamplighter; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
    elif shell == "zsh":
        # Of its completion system only the two functions that the script calls.
        text = (
            "compadd() { shift; print -l -- $@ }; _files() { print FILES }; "
            f"words=({' '.join(words)} ''); CURRENT={len(words) + 1}; f() {{ source {script} }}; f"
        )
    else:
        text = f"source {script}; complete -C '{' '.join(words)} '; complete -C '{' '.join(words)} -'"
    program = [require_command(shell), *(["-f"] if shell == "zsh" else []), "-c", text]
    variables = {**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})}
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, env=variables)
    assert (done.returncode, done.stderr) == (0, ""), done
    return {found.partition("\t")[0] for found in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", LINES)
def test_a_shell_offers_what_may_follow(usr: Path, shell: str, line: str) -> None:
    found = offered(shell, usr / PLACES[shell], line)
    assert found >= LINES[line], found
    if line in ("devices list --state", "query --format") and shell != "fish":
        assert found == LINES[line]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", ["explain", "devices show", "init motion-light --light", "readings --room"])
def test_a_shell_offers_the_names_that_people_gave(usr: Path, shell: str, line: str, tmp_path: Path) -> None:
    program = tmp_path / "lamplighter"
    program.write_text('#!/bin/sh\n[ "$1 $2 $3" = "names --plain --kind" ] && printf "%s\\n" "Lampe / Küche" hall\n')
    program.chmod(0o755)
    found = offered(shell, usr / PLACES[shell], line, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    plain = {one.replace("\\ ", " ") for one in found}
    assert plain >= {"Lampe / Küche", "hall"}, found


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_what_the_package_installs(
    usr: Path, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == (usr / PLACES[shell]).read_text()


def test_each_command_has_a_manual_page_with_all_options(root: CommandNode) -> None:
    pages = dict(manuals(root))
    assert set(pages) == {"lamplighter", *(f"lamplighter-{one.words[-1]}" for one in root.subcommands)}
    for one in root.all():
        page = pages["-".join(one.words[:2])]
        for action in one.options if len(one.words) > 1 else []:
            for string in action.option_strings:
                assert string.replace("-", "\\-") in page, (one.name, string)
    assert "EXIT STATUS" in pages["lamplighter"]


def test_manual_pages_have_no_faults(usr: Path) -> None:
    pages = sorted((usr / "share/man/man1").glob("*.1"))
    done = subprocess.run(
        [require_command("mandoc"), "-T", "lint", "-W", "warning", *map(str, pages)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert told == [], "\n".join(told)


def test_the_package_has_them() -> None:
    script = (ROOT / "image" / "deb" / "build.sh").read_text()
    assert "write_files(Path(sys.argv[1]), command_parser())" in script
