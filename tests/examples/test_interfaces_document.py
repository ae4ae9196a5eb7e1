"""docs/interfaces.md says what is so: its commands are run, and print what is shown below them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from benchmarks.gateway_process import Gateway, gateway_process
from tests.support.components import require_command
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "interfaces.md").read_text()
LIMIT_S = 120


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("interfaces")
    (folder / "apps").symlink_to(ROOT / "apps")
    with gateway_process(folder, gateway={"durability": "off", "clock_trusted": "always"}) as running:
        yield running


def blocks(section: str) -> list[str]:
    text = re.split(r"^## ", DOCUMENT.partition(f"\n## {section}\n")[2], flags=re.M)[0]
    return re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)


def first_lines(command: str, gateway: Gateway, count: int) -> list[str]:
    """The first lines that a command prints that does not end by itself."""
    program, *arguments = shlex.split(command.replace("localhost:8000", f"localhost:{gateway.http[1]}"))
    with subprocess.Popen(
        [require_command(program), "--max-time", str(LIMIT_S), "--silent", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = [process.stdout.readline().rstrip("\n") for _ in range(count)]
        process.kill()
    return found


def pattern(shown: str) -> str:
    """Of what is shown: `…` stands for any text, and an id for any id."""
    parts = re.split(r"…|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", shown)
    return ".+".join(map(re.escape, parts))


def test_server_sent_events(gateway: Gateway) -> None:
    with_output, by_name = blocks("Server-Sent Events")
    command, *shown = with_output.removeprefix("$ ").splitlines()
    for line, expected in zip(first_lines(command, gateway, len(shown)), shown, strict=True):
        assert re.fullmatch(pattern(expected), line), line
    first, second = first_lines(by_name.removeprefix("$ ").strip(), gateway, 2)
    assert first.startswith("id: ")
    assert '"vars":["lamp","time"]' in second
