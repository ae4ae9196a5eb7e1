"""Folders with links to chosen distributions of the test environment: as good as an installation of these alone."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(requirements: Iterable[str], extra: str = "") -> dict[str, importlib.metadata.Distribution]:
    """The distributions of this environment that the requirements ask for, directly or not, by name."""
    waiting = [(text, extra) for text in requirements]
    found: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        text, chosen = waiting.pop()
        asked = Requirement(text)
        name = canonicalize_name(asked.name)
        if name in found or (asked.marker and not asked.marker.evaluate({"extra": chosen})):
            continue
        found[name] = importlib.metadata.distribution(name)
        for one in found[name].requires or ():
            waiting += [(one, inner) for inner in (asked.extras or {""})]
    return found


def link(distributions: Iterable[importlib.metadata.Distribution], folder: Path) -> Path:
    """A folder with links to what the distributions have at the top of site-packages."""
    folder.mkdir()
    for one in distributions:
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            place = Path(str(one.locate_file(top)))
            if place.suffix != ".pth" and not (folder / top).exists():
                (folder / top).symlink_to(place)
    return folder
