"""The only place that changes files under the data folder: a handful of operations, and what is made of them.

What a power cut may leave is decided by the order of these operations, so tests put a disk in their place
that loses power between any two of them. Reading needs no such care and goes to the files directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".new"
"""Ends the names of files that are not whole yet; a start removes them."""


class Disk:
    """The file system. Every method may raise OSError; what it was to change is then as before, or partly done.

    Contents are durable after `sync`, names (created, renamed, removed) after `sync_folder` of their folder.
    """

    def make_folder(self, path: Path) -> None:
        """Also the folders above it; nothing happens when it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """A new file, to be written at its end; its descriptor. A file of that name is emptied."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, file: int, data: bytes) -> int:
        """Appends; how many of the bytes were taken."""
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        """In one step; what was there under the name is gone."""
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; what was there under the name is gone."""
        target.unlink(missing_ok=True)
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """Nothing happens when there is no such file."""
        path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- made of these ---

    def write_all(self, file: int, data: bytes) -> None:
        """Appends all of it. Raises OSError; then part of it may be there."""
        written = self.write(file, data)
        while written < len(data):
            more = self.write(file, data[written:])
            if more == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += more

    def write_file(self, path: Path, content: Iterable[bytes]) -> None:
        """A whole file under its name, or none: written under another one, synced, renamed; durable on return."""
        temporary = path.with_name(path.name + TEMPORARY)
        try:
            file = self.create(temporary)
            try:
                for chunk in content:
                    self.write_all(file, chunk)
                self.sync(file)
            finally:
                self.close(file)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        self.sync_folder(path.parent)
