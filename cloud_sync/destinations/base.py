"""The interface of a destination, and what its backends share."""

from __future__ import annotations

import contextlib
import errno
import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from lamplighter.engine.errors import GatewayError, UpstreamError

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
