"""The `lamplighter` command, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.support.places import ROOT

TIMEOUT_S = 120.0


def command_line(*arguments: object) -> list[str]:
    """The words of `lamplighter` with these arguments."""
    return [sys.executable, "-m", "lamplighter.gateway", *map(str, arguments)]


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `lamplighter` to its end, in the repository if `options` name no other folder. Standard input is empty.

    options: of subprocess.run, besides.
    """
    usual: dict[str, Any] = {"cwd": ROOT, "timeout": TIMEOUT_S}
    if "input" not in options:
        usual["stdin"] = subprocess.DEVNULL
    return subprocess.run(command_line(*arguments), capture_output=True, text=True, **usual | options)
