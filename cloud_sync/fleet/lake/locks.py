"""Locks of a lake: one writer of bronze, of silver and of matches at a time, one delivery and one push.

On a folder the lock is the kernel's (flock) on `locks/<table>.lock`. It ends with its process, however that ends. On
object storage it is a lease, `locks/<table>/<number>.json`: who creates the next number has it (a conditional write),
renews it, and marks it as released. A lease that was not renewed for two minutes is taken over by the next number.
A process that was paused so long finds that out: `HeldLocks.check` before each step that others must not repeat, the
number of its lease as a fencing token in what it writes, and conditional writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake, LockLostError
from lamplighter.engine.errors import BusyError, UpstreamError

BRONZE, SILVER, MATCHES, DELIVERY, PUSH = "bronze", "silver", "matches", "delivery", "push"
LEASE_S = 120.0
RENEW_S = 30.0
_FOLDER = "locks"


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Holder(msgspec.Struct, frozen=True):
    """Who has a lock. since: RFC 3339; until: end of a lease, seconds since 1970."""

    command: str
    host: str
    pid: int
    since: str
    until: float = 0.0

    def __str__(self) -> str:
        return f"lamplighter-fleet {self.command} on {self.host}, process {self.pid}, since {self.since}"


class HeldLocks:
    """The locks of a process. On a folder they have no leases, and last as long as the process."""

    def __init__(self, leases: Mapping[str, Lease]) -> None:
        self._leases = leases

    def check(self) -> None:
        """Raises LockLostError if another process may have one of the locks; UpstreamError, OSError if that cannot be
        found out. It costs nothing as long as the leases are fresh."""
        for held in self._leases.values():
            held.check()

    def token(self, table: str) -> int:
        """A number that is greater than those of all earlier holders; 0 on a folder."""
        held = self._leases.get(table)
        return 0 if held is None else held.number


@contextlib.contextmanager
def writing(lake: Lake, command: str, *tables: str) -> Iterator[HeldLocks]:
    """Holds the locks of these tables. Raises BusyError, with the holder's name, if another process has one of them."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = Holder(command, socket.gethostname(), os.getpid(), since)
    leases = {}
    with contextlib.ExitStack() as held:
        for table in tables:
            if lake.local:
                held.enter_context(_file(lake, table, holder))
            else:
                leases[table] = held.enter_context(lease(lake, table, holder))
        yield HeldLocks(leases)


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
            raise _busy(lake, table, _decode_holder(os.read(lock, 4096)) or "another process") from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(holder), 0)
        yield
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _decode_holder(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except msgspec.MsgspecError:
        return None


@contextlib.contextmanager
def lease(
    lake: Lake,
    table: str,
    holder: Holder,
    *,
    renew_s: float = RENEW_S,
    wall: Callable[[], float] = time.time,
    elapsed: Callable[[], float] = _boot_seconds,
) -> Iterator[Lease]:
    """Holds a lease on object storage. Raises BusyError; LockLostError at the end if another process took it over."""
    held = Lease(lake, table, holder, wall, elapsed)
    end = threading.Event()

    def renew() -> None:
        while not end.wait(renew_s):
            # A failed renewal is repeated. The lease outlives three of them.
            with contextlib.suppress(Exception):
                held.renew()
            if held.lost:
                return

    thread = threading.Thread(target=renew, name=f"lease of {table}", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        end.set()
        thread.join()
        if not held.lost:
            held.release()
    if held.lost:
        raise held.lost_error()


class Lease:
    """A lease that this process has. wall: seconds since 1970; elapsed: seconds, also while the machine sleeps."""

    def __init__(
        self, lake: Lake, table: str, holder: Holder, wall: Callable[[], float], elapsed: Callable[[], float]
    ) -> None:
        self._lake = lake
        self._table = table
        self._holder = holder
        self._wall = wall
        self._elapsed = elapsed
        self._mutex = threading.Lock()
        self._renewed_at = elapsed()
        self.number = _create(lake, table, holder, wall)
        self.lost = False

    def check(self) -> None:
        """Raises LockLostError if another process has the lease; renews it if it is old. Raises OSError."""
        if not self.lost and self._elapsed() - self._renewed_at >= LEASE_S - RENEW_S:
            self.renew()
        if self.lost:
            raise self.lost_error()

    def renew(self) -> None:
        """Renews the lease, or notes that it is lost. Raises OSError, UpstreamError."""
        with self._mutex:
            now = self._elapsed()
            if not self._is_last():
                return
            if now - self._renewed_at >= LEASE_S - RENEW_S:
                # Another process may be taking it over right now: only one of both creates the next number.
                try:
                    self.number = _create(self._lake, self._table, self._holder, self._wall, mine=self.number)
                except BusyError:
                    self.lost = True
                    return
            else:
                _write_lease(self._lake, self._table, self.number, self._holder, self._wall() + LEASE_S)
                if not self._is_last():
                    return
            self._renewed_at = now

    def release(self) -> None:
        _write_lease(self._lake, self._table, self.number, self._holder, 0.0)

    def lost_error(self) -> LockLostError:
        return LockLostError(
            f"lake {self._lake.url!r}: the lock of {self._table} was not renewed for {LEASE_S:.0f} s, and another "
            "process has it; run the command again"
        )

    def _is_last(self) -> bool:
        self.lost = self.lost or max(_numbers(self._lake, self._table), default=0) > self.number
        return not self.lost


def _create(lake: Lake, table: str, holder: Holder, wall: Callable[[], float], mine: int | None = None) -> int:
    """Creates the next number. mine: that of an old lease of this process. Raises BusyError, UpstreamError, OSError."""
    number = 1
    for before in _numbers(lake, table)[-1:]:
        found = _decode_holder(lake.fs.cat_file(_path(lake, table, before)))
        if found is not None and found.until > wall() and before != mine:
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


def _write_lease(lake: Lake, table: str, number: int, holder: Holder, until: float) -> None:
    lake.fs.pipe_file(_path(lake, table, number), msgspec.json.encode(msgspec.structs.replace(holder, until=until)))
