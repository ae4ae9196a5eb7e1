"""The previous release, from the history: its data folders have to go on working, and the way back too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

COMMIT = "8e51933e"
"""Version 0.1.0. It runs with the dependencies of this version."""
_PAGE = Path("gateway/page/built")


def previous_tree() -> Path:
    """Its checkout, made once, with the environment and the web page of this one. Skips the test where a shallow clone
    does not have the commit."""
    tree = ROOT / "build/previous" / COMMIT
    if not tree.exists():
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", COMMIT], capture_output=True, check=False)
        if archive.returncode != 0:
            pytest.skip(f"the history lacks {COMMIT}, the previous version; git fetch --unshallow brings it")
        made = tree.with_name(f"{COMMIT}.{os.getpid()}")
        made.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(made)], input=archive.stdout, check=True)
        (made / ".venv").symlink_to(ROOT / ".venv")
        if (ROOT / _PAGE).is_dir():
            shutil.copytree(ROOT / _PAGE, made / _PAGE)
        try:
            made.rename(tree)
        except OSError:  # another process of the tests was first
            shutil.rmtree(made)
    return tree
