"""The only module that changes files under the data folder: basic operations, and combinations of them.

The order of these operations decides what a power cut leaves, so tests replace them by a disk that loses power between
any two of them. Reading goes to the files directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = ".new"  # suffix of incomplete files; a start removes them


class Disk:
    """The file system. Every method may raise OSError; its change is then not done, or partly done. Contents are
    durable after `sync`, names (created, renamed, removed) after `sync_folder` of their folder."""

    def make_folder(self, path: Path) -> None:
        """Creates it and the folders above it; no effect if it exists."""
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> int:
        """The descriptor of a new file, for append. An existing file is truncated."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, file: int, data: bytes) -> int:
        """Appends; returns how many bytes were written."""
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces a file of that name."""
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; replaces a file of that name."""
        target.unlink(missing_ok=True)
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """No effect if there is no such file."""
        path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- combinations ---

    def write_all(self, file: int, data: bytes) -> None:
        """Appends all of it. Raises OSError; then part of it may be written."""
        written = self.write(file, data)
        while written < len(data):
            more = self.write(file, data[written:])
            if more == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += more

    def write_temporary(self, path: Path, content: Iterable[bytes]) -> None:
        """Writes and syncs a new file, whose name is not durable yet."""
        file = self.create(path)
        try:
            for chunk in content:
                self.write_all(file, chunk)
            self.sync(file)
        finally:
            self.close(file)

    def write_file(self, path: Path, content: Iterable[bytes]) -> None:
        """Writes a file atomically: under a temporary name, synced, renamed. Durable on return."""
        temporary = path.with_name(path.name + TEMPORARY)
        try:
            self.write_temporary(temporary, content)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        self.sync_folder(path.parent)
