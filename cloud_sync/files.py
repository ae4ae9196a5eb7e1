"""Small files that are there as a whole or not at all, whoever is killed or loses power while they are written."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ConfigurationError

_PART = ".sync-part"


def write_whole(path: Path, content: bytes) -> None:
    """Puts a small file in its place at once, over an older one; one writer at a time. Raises OSError."""
    part = path.with_name(path.name + _PART)
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def check_owner(data: Path, instead: str) -> None:
    """Raises ConfigurationError for root where the data folder is another user's: the service, which runs as that one,
    could not go on with what root would leave there. instead: what to do."""
    try:
        owner = data.stat().st_uid
    except OSError:  # not there yet, or whoever opens it says why not
        return
    if os.geteuid() == 0 != owner:
        raise ConfigurationError(f"{data} is not root's, and its user could not go on with root's files; {instead}")


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
