"""A folder as a destination."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from lamplighter.cloud_sync.destinations.base import (
    CHUNK,
    PART,
    SMALL_BYTES_MAX,
    StoredObject,
    absent,
    check_object_name,
    errors,
    readable,
)
from lamplighter.cloud_sync.files import create_plain, open_plain, opened_folder
from lamplighter.engine.errors import UpstreamError


class LocalFolder:
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
            temporary, written = self._write_temporary(last, folder, chunks)
            try:
                # Unlike a rename, a link never replaces another file.
                os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links, which must have one writer
                os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
            if os.stat(last, dir_fd=folder, follow_symlinks=False).st_ino != written:
                raise UpstreamError(f"{self.url}/{name}: another process has written this file; check who writes there")
            os.fsync(folder)
            return True

    def put(self, name: str, data: bytes) -> None:
        with errors(f"{self.url}/{name}"), self._folder_of(name, make=True) as (folder, last):
            temporary, _ = self._write_temporary(last, folder, [data])
            os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def get(self, name: str) -> bytes | None:
        with errors(f"{self.url}/{name}"), absent(), self._open(name) as file:
            return file.read(SMALL_BYTES_MAX)
        return None

    def chunks(self, name: str) -> Iterator[bytes]:
        with errors(f"{self.url}/{name}"), absent(), self._open(name) as file:
            while data := file.read(CHUNK):
                yield data

    def exists(self, name: str) -> bool:
        with errors(f"{self.url}/{name}"), absent(), self._folder_of(name) as (folder, last):
            return _is_there(last, folder)
        return False

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

    def _write_temporary(self, name: str, folder: int, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Writes the bytes durably to a temporary file. Returns its name and inode."""
        temporary = name + PART
        try:
            with create_plain(temporary, folder) as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                return temporary, os.fstat(file.fileno()).st_ino
        except Exception:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)  # frees space if the disk is full
            raise

    def _make_sure(self) -> None:
        if not self._path.is_dir():
            raise UpstreamError(f"{self.url}: there is no such folder; create it, or mount it")


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
