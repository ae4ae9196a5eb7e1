"""Atomic files in folders that other users may write to.

Below the folder that the operator names, symbolic links are refused, and only regular files are read. Otherwise another
user of the folder could make this process read or overwrite its own user's files. Each path component is opened
relative to the one before, so nothing can be swapped between a check and its use. Hard links are followed: they cannot
be told from files, and Linux refuses to link a file that the user cannot write (``fs.protected_hardlinks``).
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from lamplighter.engine.errors import ConfigurationError, UpstreamError

_PART = ".sync-part"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Non-blocking, because opening a FIFO for reading would wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder root/parts. make: create missing folders below root.

    root itself may be a link. Raises UpstreamError for a link below it, OSError.
    """
    descriptor = os.open(root, _FOLDER)
    try:
        for number, part in enumerate(parts):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
                    os.fsync(descriptor)
            try:
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError:
                refuse_link(part, descriptor, root.joinpath(*parts[: number + 1]))
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def open_plain(name: str | Path, folder: int | None = None, place: Path | None = None) -> io.BufferedReader:
    """Opens a regular file for reading. folder: descriptor of its folder; place: its path in error messages.

    Raises UpstreamError for a link, a FIFO or a device; OSError.
    """
    place = place or Path(name)
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        refuse_link(name, folder, place)
        raise
    file: io.BufferedReader = io.BufferedReader(io.FileIO(str(place), opener=lambda _name, _flags: descriptor))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise UpstreamError(f"{place}: not a regular file; remove it")
    return file


def create_plain(name: str | Path, folder: int | None = None) -> BinaryIO:
    """Creates a file for writing. An existing file or link of that name is removed first. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return os.fdopen(os.open(name, _CREATE, 0o666, dir_fd=folder), "wb")


def refuse_link(name: str | Path, folder: int | None, place: Path) -> None:
    """Raises UpstreamError if the name is a symbolic link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise UpstreamError(f"{place}: a symbolic link, which is not followed here; remove it")


def write_whole(path: Path, content: bytes, modified: float | None = None) -> None:
    """Replaces a small file atomically and durably. There must be one writer at a time. Raises OSError.

    modified: its time, in seconds since 1970; by default now.
    """
    part = path.with_name(path.name + _PART)
    with create_plain(part) as file:
        file.write(content)
        file.flush()
        if modified is not None:
            os.utime(file.fileno(), (modified, modified))
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def check_owner(data: Path, instead: str) -> None:
    """Raises ConfigurationError if root runs this on another user's data folder.

    instead: what to run.
    """
    # The service runs as that user and could not write the files that root would leave.
    try:
        owner = data.stat().st_uid
    except OSError:  # it does not exist yet; other errors are reported where the folder is opened
        return
    if os.geteuid() == 0 != owner:
        raise ConfigurationError(f"{data} belongs to another user, who could not write files made by root; {instead}")


def sync_folder(path: Path) -> None:
    """Makes the directory entries of a folder durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
