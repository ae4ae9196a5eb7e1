"""The folder ``deliveries`` of the data folder. Only the gateway's user may read it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lamplighter.gateway.disk import Disk

FOLDER: Final = "deliveries"
"""In the data folder."""


def store(disk: Disk, path: Path, content: bytes) -> None:
    """Writes a file of the folder, durable on return. The folder is made for its first file. Raises OSError."""
    folder = path.parent
    if not folder.exists():
        disk.make_folder(folder)
        folder.chmod(0o700)
        disk.sync_folder(folder.parent)  # without the name of the folder, a power cut takes its files, too
    disk.write_file(path, [content])
