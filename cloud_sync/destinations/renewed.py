"""A destination of a process that stays: its options, and the files that they name, may change meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lamplighter.cloud_sync.destinations.base import Destination, StoredObject
from lamplighter.engine.errors import ConfigurationError, UpstreamError


class RenewedDestination(Destination):
    """Opens a destination again if its options have changed, and after each request that has failed: the files that the
    options name, such as a key, may be others by then, and a connection may be broken.

    make: opens it; read: reads its options. Both may raise ConfigurationError; the options of before count while they
    cannot be read. Several threads may use it.
    """

    def __init__(self, make: Callable[[dict[str, Any]], Destination], read: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._read = read
        self._lock = threading.Lock()
        options = read()
        self._opened: _OpenedDestination | None = _OpenedDestination(make(options), options)
        self.url = self._opened.to.url
        self.lists_from = self._opened.to.lists_from

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        with self._current() as to:
            return to.create(name, chunks)

    def put(self, name: str, data: bytes) -> None:
        with self._current() as to:
            to.put(name, data)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Iterator[bytes] | None]:
        with self._current() as to, to.open(name) as chunks:
            yield chunks

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        with self._current() as to:
            return to.entries(folder, after, most)

    def folders(self) -> list[str]:
        with self._current() as to:
            return to.folders()

    def close(self) -> None:
        with self._lock:
            self._drop(self._opened)

    @contextlib.contextmanager
    def _current(self) -> Iterator[Destination]:
        with self._lock:
            opened = self._newest()
            opened.users += 1
        try:
            yield opened.to
        except UpstreamError:
            with self._lock:
                self._drop(opened)
            raise
        finally:
            with self._lock:
                opened.users -= 1
                opened.close_if_unused()

    def _newest(self) -> _OpenedDestination:
        """That of the options of now. Raises UpstreamError."""
        opened = self._opened
        try:
            options = self._read()
        except ConfigurationError as error:  # the file is just being written
            if opened is None:
                raise UpstreamError(str(error)) from error
            return opened
        if opened is None or opened.options != options:
            try:
                found = _OpenedDestination(self._make(options), options)
            except ConfigurationError as error:
                raise UpstreamError(str(error)) from error
            self._drop(opened)
            self._opened = opened = found
        return opened

    def _drop(self, opened: _OpenedDestination | None) -> None:
        """Closes it when its last user has ended."""
        if opened is not None:
            opened.dropped = True
            opened.close_if_unused()
            if self._opened is opened:
                self._opened = None


class _OpenedDestination:
    """users: requests under way; dropped: whether it is closed behind the last of them."""

    def __init__(self, to: Destination, options: dict[str, Any]) -> None:
        self.to = to
        self.options = options
        self.users = 0
        self.dropped = self._closed = False

    def close_if_unused(self) -> None:
        if self.dropped and not self.users and not self._closed:
            self._closed = True
            self.to.close()
