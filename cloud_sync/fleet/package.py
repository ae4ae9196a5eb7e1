"""`lamplighter-fleet package`: the files that run the commands on an existing Spark cluster by `spark-submit`."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lamplighter
from lamplighter.cloud_sync.fleet.subcommands import add_command
from lamplighter.engine.errors import ConfigurationError

ARCHIVE = "lamplighter.zip"
SCRIPT = "lamplighter_fleet.py"
# Packages of ours that the commands import. The demo's commands are left out.
PARTS = ("cloud_sync", "engine", "ontology")

# The oldest time of the format, for all members, so that the same code gives the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def package(folder: Path) -> list[Path]:
    """Writes `lamplighter.zip`, for `--py-files`, and `lamplighter_fleet.py`. Replaces older ones. Raises OSError."""
    root = _root()
    folder.mkdir(parents=True, exist_ok=True)
    archive, script = folder / ARCHIVE, folder / SCRIPT
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in _files(root):
            member = zipfile.ZipInfo(f"lamplighter/{path.relative_to(root).as_posix()}", _TIME)
            member.external_attr = 0o644 << 16
            packed.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)
    script.write_bytes((root / "cloud_sync" / "fleet" / "submit.py").read_bytes())
    return [archive, script]


def _root() -> Path:
    found = Path(str(lamplighter.__file__)).parent
    if not found.is_dir():
        raise ConfigurationError(f"{found}: packed already; run this command where lamplighter is installed")
    return found


def _files(root: Path) -> Iterator[Path]:
    """The files of the package, sorted."""
    yield root / "__init__.py"
    for part in PARTS:
        # In a checkout, parts are links, which `rglob` follows only at the top.
        for path in sorted((root / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `package`."""
    parser = add_command(commands, "package", "write the files that spark-submit needs to run these commands")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder to write to")
    parser.set_defaults(run=_run_package)


def _run_package(arguments: argparse.Namespace) -> int:
    for path in package(arguments.folder):
        print(path)
    return 0
