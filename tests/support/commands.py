"""The `lamplighter` command, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from tests.support.fork_server import ForkedProcess
from tests.support.places import ROOT

TIMEOUT_S = 120.0


def command_line(*arguments: object) -> list[str]:
    """The words of `lamplighter` with these arguments."""
    return [sys.executable, "-m", "lamplighter.gateway", *map(str, arguments)]


def command(
    *arguments: object,
    input: str = "",
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_S,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs `lamplighter` to its end. input: its standard input; timeout: seconds. check: raises CalledProcessError if
    the command fails."""
    # Files, not pipes: nobody has to read them while the command runs.
    with TemporaryFile("w+") as given, TemporaryFile("w+b") as output, TemporaryFile("w+b") as errors:
        given.write(input)
        given.seek(0)
        words = [str(word) for word in arguments]
        with ForkedProcess(words, stdin=given, stdout=output, stderr=errors, cwd=cwd, env=env) as process:
            try:
                code = process.wait(timeout)
            except BaseException:
                process.kill()
                raise
        texts = []
        for file in (output, errors):
            file.seek(0)
            # Newlines as subprocess's text mode translates them.
            texts.append(file.read().decode().replace("\r\n", "\n").replace("\r", "\n"))
    done = subprocess.CompletedProcess(words, code, *texts)
    if check:
        done.check_returncode()
    return done
