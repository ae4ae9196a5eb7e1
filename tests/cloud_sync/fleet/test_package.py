"""What `lamplighter-fleet package` writes, and what the entry script says where something is missing."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet import submit
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.package import ARCHIVE, SCRIPT, package
from tests.support.linked_packages import link, needed


def run(script: Path, path: Iterable[Path], *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the script by a Python with nothing installed but what `path` has."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-S", str(script), *words], cwd=script.parent, env=environment, capture_output=True, text=True
    )


def test_the_driver_needs_the_listed_packages_and_no_others(tmp_path: Path) -> None:
    assert main(["package", str(tmp_path / "made")]) == 0
    archive, script = tmp_path / "made" / ARCHIVE, tmp_path / "made" / SCRIPT
    found = link(needed(submit.DISTRIBUTIONS.values()).values(), tmp_path / "packages")
    helped = run(script, [archive, found], "--help")
    assert helped.returncode == 0, helped.stderr
    assert "ingest" in helped.stdout
    absent = run(script, [found], "--help")
    assert (absent.returncode, absent.stdout) == (2, "")
    assert "no package lamplighter; add --py-files lamplighter.zip" in absent.stderr
    bare = run(script, [archive], "--help")
    assert bare.returncode == 2
    assert "-m pip install fsspec google-crc32c msgspec pyarrow zstandard" in bare.stderr


def test_an_old_python_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(submit, "PYTHON_MIN", (99, 0))
    assert submit.main() == 2
    assert "set PYSPARK_PYTHON to Python 99.0 or newer" in capsys.readouterr().err


def test_the_archive_has_code_and_the_files_beside_it(tmp_path: Path) -> None:
    archive, script = package(tmp_path / "one")
    again, _ = package(tmp_path / "other")
    assert archive.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(archive) as packed:
        names = packed.namelist()
        assert packed.read("lamplighter/cloud_sync/fleet/submit.py") == script.read_bytes()
    assert len(names) == len(set(names))
    assert {"lamplighter/__init__.py", "lamplighter/cloud_sync/fleet/report/page.css"} <= set(names)
    assert {name.split("/")[1] for name in names} == {"__init__.py", "cloud_sync", "engine", "ontology"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
