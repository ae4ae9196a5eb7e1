"""Which code is mutated, which tests judge it, and the texts that both runs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.places import ROOT

ROOMS = {
    "engine/matching": ("engine/matching/**/*.py",),
    "engine/updating": ("engine/updating/**/*.py",),
    "engine/change_log": ("engine/change_log/**/*.py",),
    "gateway/loop": ("gateway/loop/**/*.py",),
    "gateway/state": ("gateway/state/**/*.py",),
    "permissions": ("gateway/security/**/*.py", "engine/access*.py"),
    "adapters/mapping": ("adapters/mapping/**/*.py",),
}
"""name of a room -> patterns of its files."""

TESTS = (
    "tests/engine",
    "tests/gateway",
    "tests/adapters",
    "tests/properties",
    "tests/w3c",
    "tests/whole_gateway",
    "tests/examples",
)
"""The folders whose tests run the rooms' code within the process of the test."""

TIER = "not faults and not fleet and not image"
"""What `make test` runs."""


def files() -> Iterator[tuple[str, Path]]:
    """Each file of the rooms, as (room, absolute path), in the order of the rooms and of the paths."""
    for room, patterns in ROOMS.items():
        for pattern in patterns:
            yield from ((room, path) for path in sorted(ROOT.glob(pattern)))


def place(path: Path) -> str:
    """The path of a file within the repository, as in `engine/access.py`."""
    return path.relative_to(ROOT).as_posix()


def source_file(place: str) -> str:
    """The file that the code of a place names: modules are imported through the links in lamplighter/."""
    return str(ROOT / "lamplighter" / place)
