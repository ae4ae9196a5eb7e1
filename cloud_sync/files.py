"""Files that are there as a whole or not at all, in folders in which others may write, too.

No symbolic link is followed below the folder that the operator has named, and what is no regular file is not read: a
link would let whoever writes in a folder read and overwrite files of the user that runs this program. Each component is
opened relative to the one before, so that nothing can be swapped between a check and its use. Hard links are followed:
nothing tells them from files, and Linux lets nobody link what he cannot write (``fs.protected_hardlinks``).
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
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Opening a FIFO for reading would wait for a writer."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder root/parts. make: the folders below root are made where they are missing.

    root may be a link, since the operator has named it. Raises UpstreamError for a link below it, OSError.
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
    """A regular file, to be read. folder: a descriptor of the folder that it is in; place: for errors.

    Raises UpstreamError for a link, a FIFO, a device; OSError.
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
    """A new file, to be written. What has its name, a link for instance, is removed before. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return os.fdopen(os.open(name, _CREATE, 0o666, dir_fd=folder), "wb")


def refuse_link(name: str | Path, folder: int | None, place: Path) -> None:
    """Raises UpstreamError if there is a link of that name."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise UpstreamError(f"{place}: a symbolic link, and none is followed here; remove it")


def write_whole(path: Path, content: bytes) -> None:
    """Puts a small file in its place at once, over an older one; one writer at a time. Raises OSError."""
    part = path.with_name(path.name + _PART)
    with create_plain(part) as file:
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
