"""The change log on disk: one writer that appends, makes durable and recovers.

::

    <data>/lock                         held by the running gateway
    <data>/identity                     gw-xxxxxxxx, made at the first start
    <data>/log/1-000000000001.ndjson    <epoch>-<first sequence>.ndjson, the segment being written
    <data>/damaged/...                  what recovery set aside

A record is written with one `write`, and is durable after `sync`. A write that fails is cut off again, so
a refused commit leaves nothing behind. At the start a torn tail (bytes after the last good record, no good
record after them) is cut off; damage in the middle is set aside, and a new epoch begins with a gap record
(design 4.6). Sealing, snapshots and the byte budget are not here yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.change_log import VERSION, Cause, Gap, Graphs, Record, Timer, decode, encode
from engine.delta import QuadDelta
from engine.errors import ChangeLogError, ConfigurationError
from gateway.clock import Clock, iso
from gateway.settings import Durability

LINE_BYTES_MAX = 1024 * 1024 * 1024
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Recovery:
    """What the start found. cut_bytes: torn tail; set_aside: file with the damaged rest, if any."""

    records: int
    cut_bytes: int
    set_aside: Path | None


class LogWriter:
    """Single writer of a gateway's change log.

    Use: `open`, iterate over `replay`, then `append` and `sync`. append is cheap and synchronous; sync
    blocks for the disk and may run in another thread while no append does.
    """

    def __init__(self, data: Path, clock: Clock, durability: Durability = "fsync") -> None:
        self._data = data
        self._clock = clock
        self._durability = durability
        self._path = data / "log"
        self._lock: int | None = None
        self._file: int | None = None
        self._size = 0
        self._unsynced = False
        self.gateway = ""
        self.epoch = 1
        self.sequence = 0

    # --- start ---

    def open(self) -> None:
        """Takes the data folder. Raises ConfigurationError when it cannot be used or another gateway has it."""
        try:
            for folder in (self._data, self._path, self._data / "damaged"):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"data folder {self._data}: {error.strerror}; name a folder that can be written with --data"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise ConfigurationError(
                f"data folder {self._data}: another gateway is using it; stop that one or name another with --data"
            ) from error
        self.gateway = self._identity()

    def _identity(self) -> str:
        path = self._data / "identity"
        if not path.exists():
            temporary = path.with_suffix(".new")
            with temporary.open("w") as file:
                file.write(f"gw-{secrets.token_hex(4)}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            _sync_folder(self._data)
        return path.read_text().strip()

    def replay(self, take: Callable[[Record], None]) -> Recovery:
        """Hands every good record to `take`, in order, and makes the log ready for appending.

        Raises ChangeLogError when a file cannot be read.
        """
        records, cut, aside = 0, 0, None
        segments = sorted(filter(_is_segment, self._path.iterdir()), key=_epoch_and_first)
        for index, segment in enumerate(segments):
            end, reason = 0, ""
            for offset, record, trouble in self._read(segment):
                end, reason = offset, trouble
                if record is not None:
                    take(record)
                    records += 1
                    self.epoch, self.sequence = record.epoch, record.seq
            if reason:
                last = index == len(segments) - 1
                if last and not self._good_after(segment, end):
                    cut = segment.stat().st_size - end
                    _truncate(segment, end)
                else:
                    aside = self._set_aside(segment, end, segments[index + 1 :])
                    gap = Gap(self.epoch, self.sequence, reason, aside.name)
                    # Later segments were set aside too, and their epochs are used up.
                    self.epoch = 1 + max(self.epoch, *(_epoch_and_first(path)[0] for path in segments))
                    self.sequence = 0
                    self._start_segment()
                    record = self.append("gap", gap=gap)
                    self.sync()
                    _truncate(segment, end)  # last, so that a kill before it leaves the damage to be found again
                    take(record)
                    return Recovery(records, cut, aside)
        if segments:
            self._continue_segment(segments[-1])
        else:
            self._start_segment()
        return Recovery(records, cut, aside)

    def _read(self, segment: Path) -> Iterator[tuple[int, Record | None, str]]:
        """(offset behind it, record, "") for each good record; (offset of the trouble, None, what) if there is any."""
        offset = 0
        try:
            with segment.open("rb") as file:
                while line := file.readline(LINE_BYTES_MAX):
                    try:
                        if not line.endswith(b"\n"):
                            raise ValueError("the last line is not complete")
                        record = decode(line[:-1])
                        follows = (record.epoch, record.seq) == (self.epoch, self.sequence + 1)
                        begins = record.type == "gap" and record.epoch > self.epoch and record.seq == 1
                        if not (follows or begins):
                            followed = f"{record.epoch}/{record.seq} follows {self.epoch}/{self.sequence}"
                            raise ValueError(f"a record is missing: {followed}")
                    except ValueError as error:
                        yield offset, None, str(error)
                        return
                    offset += len(line)
                    yield offset, record, ""
        except OSError as error:
            raise ChangeLogError(
                str(error.strerror), path=segment, hint="check the disk", sequence=self.sequence
            ) from error

    def _good_after(self, segment: Path, offset: int) -> bool:
        """Whether a whole record stands there or later, if out of order: then this is damage and no torn tail."""
        with segment.open("rb") as file:
            file.seek(offset)
            for line in file:
                with contextlib.suppress(ValueError):
                    if line.endswith(b"\n"):
                        decode(line[:-1])
                        return True
        return False

    def _set_aside(self, segment: Path, offset: int, later: list[Path]) -> Path:
        """Copies the rest of a damaged segment, and moves the segments after it, to `damaged`."""
        name = f"{segment.stem}-from-{offset}-{secrets.token_hex(2)}.ndjson"
        target = self._data / "damaged" / name
        with segment.open("rb") as source, target.open("wb") as rest:
            source.seek(offset)
            while chunk := source.read(_CHUNK):
                rest.write(chunk)
            rest.flush()
            os.fsync(rest.fileno())
        for path in later:
            path.rename(self._data / "damaged" / f"{target.stem}-{path.name}")
        _sync_folder(self._data / "damaged")
        _sync_folder(self._path)
        return target

    def _start_segment(self) -> None:
        path = self._path / f"{self.epoch}-{self.sequence + 1:012d}.ndjson"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        _sync_folder(self._path)

    def _continue_segment(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = os.fstat(self._file).st_size
        self._unsynced = True  # who wrote it may have been killed before its sync

    # --- running ---

    def append(
        self,
        kind: str,
        *,
        cause: Cause | None = None,
        request: str | None = None,
        delta: QuadDelta | None = None,
        timer: Timer | None = None,
        cancel: str | None = None,
        gap: Gap | None = None,
    ) -> Record:
        """Writes one record with the next sequence. Raises ChangeLogError; then the log is as it was before."""
        assert self._file is not None
        delta = delta or QuadDelta()
        record = Record(
            v=VERSION,
            type=kind,
            gw=self.gateway,
            epoch=self.epoch,
            seq=self.sequence + 1,
            ts=iso(self._clock.wall()),
            trusted=self._clock.trusted(),
            boot=self._clock.boot,
            boottime_us=self._clock.boottime_us(),
            cause=cause,
            request=request,
            graphs=Graphs(delta.created, delta.dropped) if delta.created or delta.dropped else None,
            d=delta.removed,
            a=delta.added,
            k=delta.kept,
            timer=timer,
            cancel=cancel,
            gap=gap,
        )
        line = encode(record)
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise ChangeLogError(
                str(error.strerror),
                path=self._path,
                hint="free some space; nothing was changed",
                sequence=self.sequence,
            ) from error
        self._size += len(line)
        self.sequence += 1
        self._unsynced = True
        return record

    @property
    def waits(self) -> bool:
        """Whether `sync` waits for the disk."""
        return self._durability == "fsync"

    def sync(self) -> None:
        """Makes what was appended as durable as the policy says. Raises ChangeLogError: the disk is no good."""
        if self._unsynced and self._durability == "fsync":
            assert self._file is not None
            self._unsynced = False  # before, since records may be appended while the disk works
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._unsynced = True
                raise ChangeLogError(
                    str(error.strerror), path=self._path, hint="check the disk", sequence=self.sequence
                ) from error

    def close(self) -> None:
        """Lets go of the files."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None


def _is_segment(path: Path) -> bool:
    """Whether it is ours by its name; whatever else people put there is left alone."""
    return re.fullmatch(r"[0-9]+-[0-9]{12}\.ndjson", path.name) is not None


def _epoch_and_first(path: Path) -> tuple[int, int]:
    epoch, _, first = path.stem.partition("-")
    return int(epoch), int(first)


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
