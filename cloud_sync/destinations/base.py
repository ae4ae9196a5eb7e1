"""The interface of a destination, and what its backends share."""

from __future__ import annotations

import contextlib
import errno
import heapq
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import urlsplit

from lamplighter.engine.errors import GatewayError, UpstreamError

# Suffix of files that are still being written. Readers ignore them.
PART = ".part"
# Upper bound for a seal or an answer.
SMALL_BYTES_MAX = 64 * 1024
CHUNK = 64 * 1024
MAKE_SURE = "check that it exists and can be reached, and that the options file is complete"


class StoredObject(NamedTuple):
    """An object in a listing. version: changes when the object is written again."""

    name: str
    size: int
    version: str


class Destination(Protocol):
    """What shipper and collector need of a destination. Every method may raise UpstreamError and can be retried."""

    url: str
    """For messages; without credentials."""
    lists_from: bool
    """Whether a listing that starts after a name is cheaper than a full one."""

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        """Creates an object durably. False if the name is taken; the existing object stays as it is."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Writes a small object and replaces an older one."""
        ...

    def open(self, name: str) -> AbstractContextManager[Iterator[bytes] | None]:
        """The bytes of an object in chunks; None if it does not exist.

        One request decides both: absence is never concluded from another request than the one for the content.
        """
        ...

    def get(self, name: str, most: int = SMALL_BYTES_MAX) -> bytes | None:
        """The bytes of a small object, the first so many of a larger one; None if it does not exist."""
        with self.open(name) as chunks:
            if chunks is None:
                return None
            data = bytearray()
            for chunk in chunks:
                data += chunk
                if len(data) >= most:
                    break
            return bytes(data[:most])

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        """The objects directly in a folder whose names are greater than ``after``, sorted by name, at most ``most``."""
        ...

    def folders(self) -> list[str]:
        """The names of the top-level folders, sorted."""
        ...

    def close(self) -> None:
        """Closes the connections. Raises nothing. The destination cannot be used afterwards."""
        ...


def display_url(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def check_object_name(name: str) -> str:
    assert name
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    return name


def readable(entries: Iterable[StoredObject], after: str, most: int | None) -> list[StoredObject]:
    """The result of `Destination.entries` for a listing in any order. Keeps at most ``most`` entries in memory."""
    found = (entry for entry in entries if entry.name > after and not entry.name.endswith(PART))
    return sorted(found) if most is None else heapq.nsmallest(most, found)


def chunks_of(file: BinaryIO, place: str) -> Iterator[bytes]:
    """The bytes of an open object. Raises UpstreamError."""
    with errors(place):
        while data := file.read(CHUNK):
            yield data


@contextlib.contextmanager
def errors(place: str) -> Iterator[None]:
    """Turns every exception of the block into UpstreamError: each library has exceptions of its own."""
    try:
        yield
    except GatewayError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            cure = {errno.ENOSPC: "free disk space there", errno.EACCES: "give this user write access"}.get(
                error.errno or 0
            )
            raise UpstreamError(f"{place}: {error.strerror}; {cure or MAKE_SURE}") from error
        told = str(error).rstrip(". ")
        raise UpstreamError(f"{place}: {type(error).__name__}: {told}; {MAKE_SURE}") from error


def absent() -> contextlib.AbstractContextManager[None]:
    """Suppresses the errors of an object that does not exist."""
    return contextlib.suppress(FileNotFoundError, NotADirectoryError)
