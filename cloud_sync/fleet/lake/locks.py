"""Locks of a lake: one writer of bronze, of silver and of matches at a time, one delivery and one push.

On a folder the lock is the kernel's (flock) on `locks/<table>.lock`. It ends with its process, however that ends. On
object storage it is a lease, `locks/<table>/<number>.json`: who creates the next number has it (a conditional write),
renews it, and marks it as released. A lease that was not renewed for two minutes is taken over by the next number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake
from lamplighter.engine.errors import BusyError, UpstreamError

BRONZE, SILVER, MATCHES, DELIVERY, PUSH = "bronze", "silver", "matches", "delivery", "push"
LEASE_S = 120.0
RENEW_S = 30.0
_FOLDER = "locks"


class Holder(msgspec.Struct, frozen=True):
    """Who has a lock. since: RFC 3339; until: end of a lease, seconds since 1970."""

    command: str
    host: str
    pid: int
    since: str
    until: float = 0.0

    def __str__(self) -> str:
        return f"lamplighter-fleet {self.command} on {self.host}, process {self.pid}, since {self.since}"


@contextlib.contextmanager
def writing(lake: Lake, command: str, *tables: str) -> Iterator[None]:
    """Holds the locks of these tables. Raises BusyError, with the holder's name, if another process has one of them."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = Holder(command, socket.gethostname(), os.getpid(), since)
    with contextlib.ExitStack() as held:
        for table in tables:
            held.enter_context(_file(lake, table, holder) if lake.local else lease(lake, table, holder))
        yield


def _busy(lake: Lake, table: str, holder: object) -> BusyError:
    return BusyError(
        f"lake {lake.url!r}: {table} is being written by {holder}; run the command again when it has ended"
    )


@contextlib.contextmanager
def _file(lake: Lake, table: str, holder: Holder) -> Iterator[None]:
    path = Path(lake.path(_FOLDER, f"{table}.lock"))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not inherited by the JVM, which would keep the lock.
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _busy(lake, table, _read(os.read(lock, 4096)) or "another process") from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(holder), 0)
        yield
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _read(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.MsgspecError:
        return None


@contextlib.contextmanager
def lease(
    lake: Lake, table: str, holder: Holder, *, renew_s: float = RENEW_S, wall: Callable[[], float] = time.time
) -> Iterator[None]:
    """Holds a lease on object storage. Raises BusyError; UpstreamError at the end if another process took it over."""
    number = _create(lake, table, holder, wall)
    end, lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not end.wait(renew_s):
            # A failed renewal is repeated. The lease outlives three of them.
            with contextlib.suppress(Exception):
                if max(_numbers(lake, table)) > number:
                    lost.set()
                    return
                _put(lake, table, number, holder, wall() + LEASE_S)

    thread = threading.Thread(target=renew, name=f"lease of {table}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        if not lost.is_set():
            _put(lake, table, number, holder, 0.0)
    if lost.is_set():
        raise UpstreamError(
            f"lake {lake.url!r}: the lock of {table} was not renewed for {LEASE_S:.0f} s, and another process has it; "
            "run the command again"
        )


def _create(lake: Lake, table: str, holder: Holder, wall: Callable[[], float]) -> int:
    number = 1
    for before in _numbers(lake, table)[-1:]:
        found = _read(lake.fs.cat_file(_path(lake, table, before)))
        if found is not None and found.until > wall():
            raise _busy(lake, table, found)
        number = before + 1
    data = msgspec.json.encode(msgspec.structs.replace(holder, until=wall() + LEASE_S))
    try:
        lake.fs.pipe_file(_path(lake, table, number), data, mode="create")
    except OSError as error:  # file systems have several for "it exists"
        if number in _numbers(lake, table):
            raise _busy(lake, table, "another process that has just begun") from error
        raise UpstreamError(f"lake {lake.url!r}: the lock of {table} cannot be written: {error}; try again") from error
    for older in _numbers(lake, table):
        if older < number - 1:
            lake.fs.rm_file(_path(lake, table, older))
    return number


def _numbers(lake: Lake, table: str) -> list[int]:
    names = (name.removesuffix(".json") for name in lake.names(_FOLDER, table))
    return sorted(int(name) for name in names if name.isdecimal())


def _path(lake: Lake, table: str, number: int) -> str:
    return lake.path(_FOLDER, table, f"{number:012d}.json")


def _put(lake: Lake, table: str, number: int, holder: Holder, until: float) -> None:
    lake.fs.pipe_file(_path(lake, table, number), msgspec.json.encode(msgspec.structs.replace(holder, until=until)))
