"""Refreshes the generated blocks of all documents: ``python -m tests.docs``.

A block is ``<!-- generated: NAME -->`` ... ``<!-- end -->``. The function NAME_reference or NAME_table of a module
``tests/docs/*_reference.py`` makes its Markdown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from tests.support.places import ROOT

_BLOCK = re.compile(r"<!-- generated: ([\w-]+) -->\n.*?<!-- end -->", re.S)


def documents() -> Iterator[Path]:
    """Each document with a generated block."""
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        if _BLOCK.search(path.read_text()):
            yield path


def generators() -> dict[str, Callable[[], str]]:
    """Name of a block -> the function that makes it. Raises ValueError for two of one name."""
    found: dict[str, Callable[[], str]] = {}
    for path in sorted(Path(__file__).parent.glob("*_reference.py")):
        module = import_module(f"tests.docs.{path.stem}")
        for name, function in vars(module).items():
            block = re.fullmatch(r"([a-z]\w*)_(?:reference|table)", name)
            if block is None or getattr(function, "__module__", None) != module.__name__:
                continue
            block_name = block[1].replace("_", "-")
            if block_name in found:
                raise ValueError(f"{path.name} has a second generator of the block {block_name}")
            found[block_name] = function
    return found


def refreshed(text: str, made_by: dict[str, Callable[[], str]]) -> str:
    """The text of a document with its blocks made anew. Raises KeyError for a block that no function makes."""
    return _BLOCK.sub(
        lambda block: f"<!-- generated: {block[1]} -->\n\n{made_by[block[1]]().strip()}\n\n<!-- end -->", text
    )


def main() -> int:
    made_by = generators()
    for path in documents():
        text = path.read_text()
        if (new := refreshed(text, made_by)) != text:
            path.write_text(new)
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
