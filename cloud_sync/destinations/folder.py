"""A folder as a destination."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from lamplighter.cloud_sync.destinations.base import (
    PART,
    Destination,
    StoredObject,
    absent,
    check_object_name,
    chunks_of,
    errors,
    readable,
)
from lamplighter.cloud_sync.files import open_plain, opened_folder
from lamplighter.engine.errors import UpstreamError

# Not truncated before it is locked: another writer may be at it.
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class LocalFolder(Destination):
    """A folder of this machine, or a mounted one.

    The folder itself is never created: if a mount is missing, the disk below it must not fill up. Symbolic links in it
    are refused (see `cloud_sync.files`), because gateways may write to it.
    """

    lists_from = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = str(path)

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        with errors(f"{self.url}/{name}"), self._folder_of(name, make=True) as (folder, last):
            if _is_there(last, folder):
                return False
            with self._temporary(last, folder, chunks) as (temporary, written):
                try:
                    # Unlike a rename, a link never replaces another file.
                    os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                except FileExistsError:
                    return False
                except OSError:  # a file system without hard links, which must have one writer
                    os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            if os.stat(last, dir_fd=folder, follow_symlinks=False).st_ino != written:
                raise UpstreamError(f"{self.url}/{name}: another process has written this file; check who writes there")
            os.fsync(folder)
            return True

    def put(self, name: str, data: bytes) -> None:
        with errors(f"{self.url}/{name}"), self._folder_of(name, make=True) as (folder, last):
            with self._temporary(last, folder, [data]) as (temporary, _):
                os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Iterator[bytes] | None]:
        with contextlib.ExitStack() as opened:
            file: BinaryIO | None = None
            with errors(f"{self.url}/{name}"), absent():
                file = opened.enter_context(self._open(name))
            yield None if file is None else chunks_of(file, f"{self.url}/{name}")

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        with (
            errors(f"{self.url}/{folder}"),
            absent(),
            opened_folder(self._path, check_object_name(folder).split("/")) as opened,
            os.scandir(opened) as listing,
        ):
            return readable(_entries(listing, after), after, most)
        return []

    def folders(self) -> list[str]:
        with errors(self.url):
            self._make_sure()
            with os.scandir(self._path) as listing:
                # A link to a folder is listed: opening it reports the error.
                return sorted(one.name for one in listing if one.is_dir())

    def close(self) -> None:
        pass

    @contextlib.contextmanager
    def _folder_of(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the object's folder, and the object's name in it."""
        if make:
            self._make_sure()
        *parts, last = check_object_name(name).split("/")
        try:
            with opened_folder(self._path, parts, make=make) as folder:
                yield folder, last
        except NotADirectoryError as error:
            if not make:
                raise
            place = self._path.joinpath(*parts)
            raise UpstreamError(f"{place}: a file, not a folder; remove it, or use another destination") from error

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        with self._folder_of(name) as (folder, last), open_plain(last, folder, self._path / name) as file:
            yield file

    @contextlib.contextmanager
    def _temporary(self, name: str, folder: int, chunks: Iterable[bytes]) -> Iterator[tuple[str, int]]:
        """The name and inode of a temporary file with these bytes, which are durable. Removed at the end, if it is
        still there.

        Raises UpstreamError if another process writes this object: it would write to the same file.
        """
        temporary = name + PART
        with _exclusive_file(temporary, folder, f"{self.url}/{name}") as file:
            written = os.fstat(file.fileno()).st_ino
            try:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                yield temporary, written
            finally:
                with contextlib.suppress(OSError):
                    if os.stat(temporary, dir_fd=folder, follow_symlinks=False).st_ino == written:
                        os.unlink(temporary, dir_fd=folder)

    def _make_sure(self) -> None:
        if not self._path.is_dir():
            raise UpstreamError(f"{self.url}: there is no such folder; create it, or mount it")


@contextlib.contextmanager
def _exclusive_file(name: str, folder: int, place: str) -> Iterator[BinaryIO]:
    """An empty file of that name for writing, locked. A killed writer's file is used again."""
    while True:
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            # A link, or what a writer has left that was killed after linking it to an object.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                os.unlink(name, dir_fd=folder)
        with os.fdopen(os.open(name, _WRITE, 0o666, dir_fd=folder), "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UpstreamError(f"{place}: another process is writing it; this one tries again later") from error
            except OSError:
                pass  # a file system without locks, which must have one writer
            if _is_named(file, name, folder):
                os.ftruncate(file.fileno(), 0)
                yield file
                return


def _is_named(file: BinaryIO, name: str, folder: int) -> bool:
    """Whether an open file is a regular file with this name only. Its last writer may just have linked and removed
    it."""
    status = os.fstat(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return named.st_ino == status.st_ino and stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return False


def _is_there(name: str, folder: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return True
    return False


def _entries(listing: Iterable[os.DirEntry[str]], after: str) -> Iterator[StoredObject]:
    """Entries that are not folders. Links are included: opening one reports the error."""
    for file in listing:
        # An object's name is always UTF-8.
        if file.name > after and file.name.isprintable() and not file.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # it was removed after the listing
                status = file.stat(follow_symlinks=False)
                yield StoredObject(file.name, status.st_size, str(status.st_mtime_ns))
