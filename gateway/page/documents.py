"""The built documents. Their list is in memory; a file is read when it is requested."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import msgspec

BUILT_DOCUMENTS = Path(__file__).parent / "built-docs"
_LIST = "files.json"


class SiteFile(msgspec.Struct, frozen=True):
    """A file of the site. tag: the entity tag of its content; size: of the content in bytes; packed: whether it is
    stored as gzip."""

    media_type: str
    tag: str
    size: int
    packed: bool


class Documents:
    """The site. files: by path; each that is stored is in this list, and no other file is read."""

    def __init__(self, folder: Path, files: Mapping[str, SiteFile]) -> None:
        self._folder = folder
        self.files = files

    @property
    def pages(self) -> list[str]:
        return [name for name in self.files if name.endswith(".html")]

    def content(self, name: str, *, packed: bool) -> bytes:
        """The content of a listed file, or its gzip. Raises OSError."""
        if not self.files[name].packed:
            return (self._folder / name).read_bytes()
        stored = (self._folder / f"{name}.gz").read_bytes()
        return stored if packed else gzip.decompress(stored)


def built_documents(folder: Path = BUILT_DOCUMENTS) -> Documents | None:
    """The site as it was built, None if it was not."""
    try:
        content = (folder / _LIST).read_bytes()
    except FileNotFoundError:
        return None
    return Documents(folder, msgspec.json.decode(content, type=dict[str, SiteFile]))
