"""The built files of the page, held in memory: some 110 KB."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BUILT = Path(__file__).parent / "built"
# Media types of what is served.
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True)
class Asset:
    """A file and its gzip. tag: the entity tag of the file; that of its gzip is another one (RFC 9110, 8.8.3)."""

    media_type: str
    plain: bytes
    packed: bytes
    tag: str


@dataclass(frozen=True)
class Assets:
    """The page. files: by name; each name has a hash of its content."""

    index: Asset
    files: Mapping[str, Asset]


def built_assets(folder: Path = BUILT) -> Assets | None:
    """The page as it was built, None if it was not."""
    try:
        files = {path.name: _asset(path) for path in sorted((folder / "assets").iterdir()) if path.suffix in _TYPES}
        return Assets(_asset(folder / "index.html"), files)
    except FileNotFoundError:
        return None


def _asset(path: Path) -> Asset:
    plain = path.read_bytes()
    tag = hashlib.sha256(plain).hexdigest()[:16]
    return Asset(_TYPES[path.suffix], plain, path.with_name(f"{path.name}.gz").read_bytes(), tag)
