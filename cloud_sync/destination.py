"""Where segments go and come from: a folder, an S3 bucket, or whatever else fsspec reaches.

Names are relative, with slashes. An object is there as a whole or not at all, whoever is killed while it is written.
Folders need nothing but Python; fsspec and what it loads are imported when a URL asks for them.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from lamplighter.cloud_sync.files import create_plain, open_plain, opened_folder
from lamplighter.engine.errors import ConfigurationError, GatewayError, UpstreamError

PART = ".part"
"""Ends the names of files that are not whole yet. Nobody reads them."""
SMALL_BYTES_MAX = 64 * 1024
"""More than this no seal and no confirmation has."""
CHUNK = 64 * 1024
MAKE_SURE = "make sure that it is there and can be reached, and that the options file has what it asks for"


class Entry(NamedTuple):
    """An object in a listing. version: differs when the object was written again."""

    name: str
    size: int
    version: str


class Destination(Protocol):
    """What shipper and collector ask of it. Every method may raise UpstreamError, after which it may be asked again."""

    url: str
    """For people; without credentials."""
    lists_from: bool
    """Whether listing what comes after a name is cheaper than listing all."""

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        """Writes an object that is not there yet, durably; False if there is one, which stays as it is."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Writes a small object, over an older one too."""
        ...

    def get(self, name: str) -> bytes | None:
        """A small object, None if there is none."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """An object's bytes, part after part; nothing at all if there is none."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        ...

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[Entry]:
        """The objects directly in a folder whose names are greater than ``after``, in the order of their names; the
        first so many of them."""
        ...

    def folders(self) -> list[str]:
        """The folders at the top."""
        ...

    def close(self) -> None:
        """Ends its connections. Raises nothing; afterwards it cannot be asked any more."""
        ...


def destination(url: str, options: dict[str, Any]) -> Destination:
    """What a setting names: a folder by its path or as ``file:``, else what fsspec knows by that protocol.

    options: as of `cloud_sync.settings.storage_options`. Raises ConfigurationError, UpstreamError.
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "file", "local"):
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{url}: a folder is written as /path or file:///path")
        return LocalFolder(Path(unquote(parts.path)) if parts.scheme else Path(url))
    if parts.password:
        raise ConfigurationError(f"{shown(url)}: passwords belong into the file that sync.options_file names")
    from lamplighter.cloud_sync.remote import FsspecFolder, S3Bucket

    if parts.scheme in ("s3", "s3a"):
        return S3Bucket(url, options)
    return FsspecFolder(url, options)


def shown(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def checked(name: str) -> str:
    assert name
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    return name


def readable(entries: Iterable[Entry], after: str, most: int | None) -> list[Entry]:
    """Those of a listing, in any order, that `Destination.entries` returns; no more of them are kept in memory."""
    found = (entry for entry in entries if entry.name > after and not entry.name.endswith(PART))
    return sorted(found) if most is None else heapq.nsmallest(most, found)


@contextlib.contextmanager
def errors(place: str) -> Iterator[None]:
    """Whatever goes wrong in there is the destination's: each library has exceptions of its own."""
    try:
        yield
    except GatewayError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            cure = {errno.ENOSPC: "make room there", errno.EACCES: "let this user write there"}.get(error.errno or 0)
            raise UpstreamError(f"{place}: {error.strerror}; {cure or MAKE_SURE}") from error
        told = str(error).rstrip(". ")
        raise UpstreamError(f"{place}: {type(error).__name__}: {told}; {MAKE_SURE}") from error


def absent() -> contextlib.AbstractContextManager[None]:
    """What is not there is not read; that is no error."""
    return contextlib.suppress(FileNotFoundError, NotADirectoryError)


class LocalFolder:
    """A folder of this machine, or one that is mounted. It is not made here: where a mount is missing the disk below it
    is not to be filled. Links in it are refused (see `cloud_sync.files`): it may belong to the gateways."""

    lists_from = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = str(path)

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        with errors(f"{self.url}/{name}"), self._folder_of(name, make=True) as (folder, last):
            if _is_there(last, folder):
                return False
            temporary, written = self._written(last, folder, chunks)
            try:
                # Unlike a rename it never takes the place of another file.
                os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return False
            except OSError:  # a file system without links; it has one writer
                os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
            if os.stat(last, dir_fd=folder, follow_symlinks=False).st_ino != written:
                raise UpstreamError(f"{self.url}/{name}: somebody has put another file there meanwhile")
            os.fsync(folder)
            return True

    def put(self, name: str, data: bytes) -> None:
        with errors(f"{self.url}/{name}"), self._folder_of(name, make=True) as (folder, last):
            temporary, _ = self._written(last, folder, [data])
            os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def get(self, name: str) -> bytes | None:
        with errors(f"{self.url}/{name}"), absent(), self._opened(name) as file:
            return file.read(SMALL_BYTES_MAX)
        return None

    def chunks(self, name: str) -> Iterator[bytes]:
        with errors(f"{self.url}/{name}"), absent(), self._opened(name) as file:
            while data := file.read(CHUNK):
                yield data

    def exists(self, name: str) -> bool:
        with errors(f"{self.url}/{name}"), absent(), self._folder_of(name) as (folder, last):
            return _is_there(last, folder)
        return False

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[Entry]:
        with (
            errors(f"{self.url}/{folder}"),
            absent(),
            opened_folder(self._path, checked(folder).split("/")) as opened,
            os.scandir(opened) as listing,
        ):
            return readable(_entries(listing, after), after, most)
        return []

    def folders(self) -> list[str]:
        with errors(self.url):
            self._make_sure()
            with os.scandir(self._path) as listing:
                # A link to a folder is listed, so that whoever asks for what is in it is told.
                return sorted(one.name for one in listing if one.is_dir())

    def close(self) -> None:
        pass

    @contextlib.contextmanager
    def _folder_of(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that an object is in, and the object's name there."""
        if make:
            self._make_sure()
        *parts, last = checked(name).split("/")
        try:
            with opened_folder(self._path, parts, make=make) as folder:
                yield folder, last
        except NotADirectoryError as error:
            if not make:
                raise
            place = self._path.joinpath(*parts)
            raise UpstreamError(f"{place}: there is a file of that name; name another folder") from error

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        with self._folder_of(name) as (folder, last), open_plain(last, folder, self._path / name) as file:
            yield file

    def _written(self, name: str, folder: int, chunks: Iterable[bytes]) -> tuple[str, int]:
        """A durable file beside name that has the bytes: what it is called, and its inode."""
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
                os.unlink(temporary, dir_fd=folder)  # a full disk is full enough
            raise

    def _make_sure(self) -> None:
        if not self._path.is_dir():
            raise UpstreamError(f"{self.url}: there is no such folder; make it, or mount what should be there")


def _is_there(name: str, folder: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        return True
    return False


def _entries(listing: Iterable[os.DirEntry[str]], after: str) -> Iterator[Entry]:
    """What is no folder; a link, too, so that whoever opens it is told."""
    for file in listing:
        # A name that is no UTF-8 is no object's.
        if file.name > after and file.name.isprintable() and not file.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # it has gone just now
                status = file.stat(follow_symlinks=False)
                yield Entry(file.name, status.st_size, str(status.st_mtime_ns))
