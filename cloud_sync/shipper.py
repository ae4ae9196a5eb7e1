"""Ships sealed segments, oldest first, and snapshots where history has a hole; moves on by what is confirmed.

An object is sent before its seal, under a name that is still free. No state is required: after a kill, the next run
finds the objects at the destination and compares them. The shipper lists nothing at the destination. Each run asks for
the answers that it waits for, oldest first, and stops at the first one that is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from lamplighter.cloud_sync.answers import LANDED, REFUSED, SEAL, SNAPSHOTS, CollectorAnswer, SnapshotSeal
from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.files import open_plain
from lamplighter.cloud_sync.lineage import Lineage, newest_epoch_id, record_hash
from lamplighter.cloud_sync.pace import Pace, PaceClock
from lamplighter.cloud_sync.settings import SyncSettings
from lamplighter.cloud_sync.status import (
    Sealed,
    SentSnapshot,
    Status,
    blocking,
    read_status,
    sealed_segments,
    with_lag,
    write_shipped,
    write_status,
)
from lamplighter.engine.change_log import SUFFIX, VERSION, Seal, SegmentName, decode, segment_name
from lamplighter.engine.client.files import read_text
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

# The most names under which one segment is sent.
NAMES_MAX = 5
# Number of segments after which the shipper looks for answers again.
ROUND = 50
_CHUNK = 64 * 1024


class Disposition(Enum):
    """State of a segment that was sent. SETTLED: the collector has it, landed or in quarantine, or the gateway has
    removed it; WAITS: the collector has not answered; SENT_AGAIN: sent again just now."""

    SETTLED = auto()
    WAITS = auto()
    SENT_AGAIN = auto()


@contextlib.contextmanager
def alone(data: Path) -> Iterator[None]:
    """Holds the lock of a data folder's shipper. Raises ConfigurationError; UpstreamError if it is held elsewhere."""
    try:
        # A lock needs no write access, so the data folder's user can lock a file that root has made.
        lock = os.open(data / "sync.lock", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(f"{data}: {error.strerror}; set --data to the gateway's data folder") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UpstreamError(f"{data}: another `lamplighter sync` is running; wait for it, or stop it") from error
        yield
    finally:
        os.close(lock)


class Shipper:
    """Ships one data folder while its gateway runs. data: the gateway's data folder."""

    def __init__(self, data: Path, to: Destination, settings: SyncSettings, clock: PaceClock | None = None) -> None:
        self._data = data
        self._to = to
        self._settings = settings
        self._clock = clock or PaceClock()
        self._pace = Pace(settings.bytes_per_s_max, self._clock)
        self._gateway = gateway_identity(data)
        self.status = self._known_here(read_status(data))

    def run(self) -> Status:
        """Sends what is waiting and returns the new status. Raises GatewayError, after writing it to `sync.json`."""
        try:
            if self._ship():
                self._update(last_success=self._clock.wall(), last_error="", last_error_at=None)
        except (GatewayError, OSError) as error:
            with contextlib.suppress(OSError):  # the first error is reported
                self._update(last_error=str(error), last_error_at=self._clock.wall())
                self._save()
            if isinstance(error, OSError):
                place = Path(error.filename) if error.filename else self._data
                raise ChangeLogError(str(error.strerror), path=place, hint="check the disk") from error
            raise
        self._save()
        return self.status

    def _ship(self) -> bool:
        """False outside the window."""
        if not self._open():
            logger.info("nothing sent outside sync.window", window=self._settings.window)
            return False
        self._confirm()
        lineage = Lineage(self._to, self._gateway, self._data)
        if why := lineage.fork():
            self._tell(f"{why}; its next start begins a new epoch, see Restored and copied gateways in docs/ship.md")
        while True:
            self._ship_snapshot()
            waiting = sealed_segments(self._data, self.status.sent)
            before = self.status.sent
            more = bool(waiting) and self._ship_round(waiting)
            if self.status.sent != before:
                lineage.put_head(self.status.sent)
            if not more:
                self._tell_blocking()
                return True
            self._save()
            self._confirm()

    def _ship_round(self, waiting: list[Sealed]) -> bool:
        """Sends up to `ROUND` of them. False if there is no more to do."""
        for segment in waiting[:ROUND]:
            if not self._open():
                logger.info("sync.window closed", window=self._settings.window)
                return False
            if segment is waiting[-1] and segment.seal() is None:
                return False  # it is being sealed
            sealed = self._seal(segment)
            if sealed is not None and self._segment_is_sent(segment, sealed[1]):
                size = sealed[0].bytes
                self._note_hole(segment.name)
                self._update(
                    sent=segment.end,
                    sent_segments=self.status.sent_segments + 1,
                    sent_bytes=self.status.sent_bytes + size,
                )
                write_status(self._data, self.status)
                logger.info("segment sent", name=segment.name, bytes=size)
        return True

    def _seal(self, segment: Sealed) -> tuple[Seal, bytes] | None:
        """A segment's seal, decoded and as bytes; None if the gateway has removed the segment.

        A seal that cannot be read is replaced by one that is computed from the segment. The collector can still check
        the segment: each line has a checksum, and the next seal names this segment's hash.
        """
        if (found := segment.seal()) is not None:
            return found
        epoch, first, last = segment.name
        assert last is not None
        with contextlib.suppress(FileNotFoundError), open_plain(segment.path) as file:
            sha256, size = _sha256(file), file.tell()
            seal = Seal(VERSION, self._gateway, epoch, first, last, last - first + 1, size, sha256, None)
            self._tell(f"{segment.path}: the seal cannot be read; the segment is shipped with a new one")
            return seal, msgspec.json.encode(seal) + b"\n"
        return None

    def _segment_is_sent(self, segment: Sealed, seal: bytes, name: int = 0) -> bool:
        """Sends a segment and its seal. False if the gateway has removed it. name: number of the first name to try."""
        try:
            with open_plain(segment.path) as file:  # an open file can be read even after the gateway removes it
                self._send("", segment.stem, file, seal, name)
        except FileNotFoundError:
            logger.info("segment removed before it was sent", name=segment.name)
            return False
        return True

    def _send(self, folder: str, stem: str, file: BinaryIO, seal: bytes, name: int = 0) -> str:
        """Sends an object, then its seal, under the first name that is free or has the same content. Returns the name.

        Raises UpstreamError.
        """
        digest = ""
        for number in range(name, NAMES_MAX):
            tried = _numbered_name(stem, number)
            place = "/".join(filter(None, (self._gateway, folder, tried)))
            file.seek(0)
            if not self._to.create(place + SUFFIX, self._pace(_chunks(file))):
                digest = digest or _sha256(file)
                with self._to.open(place + SUFFIX) as chunks:
                    if chunks is None:  # it was taken, and is free now; the next run sends it
                        raise UpstreamError(
                            f"{self._to.url}/{place}{SUFFIX}: the object has gone; check who removes it"
                        )
                    if _digest(chunks) != digest:
                        continue
            if not self._to.create(place + SEAL, [seal]) and self._to.get(place + SEAL) != seal:
                continue
            return tried
        raise UpstreamError(
            f"{self._to.url}/{self._gateway}: all {NAMES_MAX} names of {stem} have other content; check whether "
            "another gateway has the same identity, and who else writes there"
        )

    # --- confirmation ---

    def _confirm(self) -> None:
        """Advances `confirmed` over the segments that have an answer, up to the first one without."""
        before = self.status.confirmed
        unbroken = True
        try:
            for segment in sealed_segments(self._data, before):
                if segment.end > self.status.sent:
                    break
                sealed = self._seal(segment)
                disposition = Disposition.SETTLED if sealed is None else self._disposition(segment, *sealed)
                if disposition is Disposition.WAITS:
                    break
                unbroken = unbroken and disposition is Disposition.SETTLED
                if unbroken:
                    self._update(confirmed=segment.end)
        finally:
            if self.status.confirmed != before:
                write_shipped(self._data, self.status.confirmed)
                self._save()
        snapshot = self.status.snapshot
        if snapshot is not None and not snapshot.landed:
            self._confirm_snapshot(snapshot)

    def _disposition(self, segment: Sealed, seal: Seal, content: bytes) -> Disposition:
        """The state of a segment that was sent. A segment that arrived damaged, or has gone, is sent again."""
        sha256 = seal.sha256
        for number in range(NAMES_MAX):
            place = f"{self._gateway}/{_numbered_name(segment.stem, number)}"
            landed = self._answer(place + LANDED)
            if landed is not None and landed.sha256 == sha256:
                return Disposition.SETTLED
            if landed is not None:
                # The landed object is not this segment. Send the segment under another name.
                self._tell(
                    f"{self._to.url}/{place}{LANDED}: the collector confirms sha256 {landed.sha256}, but the segment "
                    f"here has {sha256}; check whether another gateway has the same identity, and who else writes there"
                )
            refused = self._answer(place + REFUSED)
            if refused is not None and self._is_here(segment, refused) and self._to.get(place + SEAL) == content:
                # The collector has the same bytes and keeps them. The gateway may remove its copy.
                self._update(refused=self.status.refused + 1)
                self._tell(f"{segment.name}: the collector keeps it in quarantine: {refused.reason}")
                return Disposition.SETTLED
            if landed is None and refused is None:
                if self._is_there(place):
                    return Disposition.WAITS
                return (
                    Disposition.SENT_AGAIN if self._segment_is_sent(segment, content, number) else Disposition.SETTLED
                )
        self._tell(
            f"{segment.name}: all {NAMES_MAX} names at the destination have other content, so the segment waits; check "
            "who else writes there"
        )
        return Disposition.WAITS

    def _is_there(self, place: str) -> bool:
        """Whether the destination has an object and its seal."""
        if self._to.get(place + SEAL) is None:
            return False
        with self._to.open(place + SUFFIX) as chunks:
            return chunks is not None

    def _is_here(self, segment: Sealed, refused: CollectorAnswer) -> bool:
        """Whether the refused object has the bytes of this segment."""
        # Then sending it again would change nothing.
        with contextlib.suppress(FileNotFoundError), open_plain(segment.path) as file:
            return _sha256(file) == refused.sha256
        return True  # the gateway has removed the segment: nothing can be sent

    def _confirm_snapshot(self, snapshot: SentSnapshot) -> None:
        place = f"{self._gateway}/{SNAPSHOTS}/{snapshot.stem}"
        landed = self._answer(place + LANDED)
        if landed is not None and landed.sha256 == snapshot.sha256:
            self._update(snapshot=msgspec.structs.replace(snapshot, landed=True))
        elif refused := self._answer(place + REFUSED):
            self._update(snapshot=None)
            self._tell(f"snapshot {snapshot.stem}: the collector keeps it in quarantine: {refused.reason}")

    def _answer(self, name: str) -> CollectorAnswer | None:
        content = self._to.get(name)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=CollectorAnswer)
        except msgspec.MsgspecError as error:
            raise UpstreamError(f"{self._to.url}/{name}: not a collector's answer: {error}; remove it") from error

    # --- snapshots ---

    def _note_hole(self, name: SegmentName) -> None:
        """Requests a snapshot if records before this segment were removed before they were sent."""
        epoch, last = self.status.sent
        expected = last + 1 if epoch == name.epoch else 1
        if name.first > expected:
            self._update(wanted=(name.epoch, name.first - 1))
            logger.warning(
                "records removed before they were sent",
                epoch=self.status.wanted[0],
                first=expected,
                last=name.first - 1,
            )

    def _ship_snapshot(self) -> None:
        newest = _newest_snapshot(self._data)
        if newest is None or not self._snapshot_due(newest):
            return
        path = self._data / "snapshots" / str(newest)
        try:
            with open_plain(path) as file:
                seal = msgspec.structs.replace(
                    _snapshot_seal(file, self._gateway, newest),
                    record=record_hash(self._data, newest.epoch, newest.first),
                    epoch_id=newest_epoch_id(self._data, newest.epoch),
                )
                stem = str(newest).removesuffix(SUFFIX)
                stem = self._send(SNAPSHOTS, stem, file, msgspec.json.encode(seal) + b"\n")
        except FileNotFoundError:
            return  # a newer snapshot has replaced it
        except (ValueError, zstandard.ZstdError) as error:
            self._tell(f"{path}: the snapshot is damaged and is not shipped: {error}")
            return
        self._update(
            snapshot=SentSnapshot(newest.epoch, newest.first, stem, seal.sha256, self._clock.wall()),
            wanted=self.status.wanted if self.status.wanted > (newest.epoch, newest.first) else (0, 0),
        )
        self._save()
        logger.info("snapshot sent", name=newest, quads=seal.quads, bytes=seal.bytes)

    def _snapshot_due(self, newest: SegmentName) -> bool:
        place, sent = (newest.epoch, newest.first), self.status.snapshot
        if sent is None:
            return True
        if place <= sent.place:
            return False
        wanted = self.status.wanted
        age_s = self._clock.wall() - sent.at
        # If the clock was set back, the age is unknown.
        old = not 0 <= age_s < self._settings.snapshot_s
        return newest.epoch > sent.epoch or (wanted != (0, 0) and place >= wanted) or old

    # --- status ---

    def _known_here(self, status: Status) -> Status:
        """The status, without what it says of another destination."""
        if status.destination == self._to.url:
            return status
        return msgspec.structs.replace(
            status, destination=self._to.url, sent=status.confirmed, snapshot=None, last_error="", last_error_at=None
        )

    def _open(self) -> bool:
        return not self._clock.trusted() or self._settings.open_at(datetime.fromtimestamp(self._clock.wall()))

    def _tell(self, problem: str) -> None:
        if problem != self.status.problem:
            logger.error("shipping problem", reason=problem)
        self._update(problem=problem, problem_at=self._clock.wall())

    def _tell_blocking(self) -> None:
        path = blocking(self._data)
        if path is not None:
            self._tell(
                f"{path}: the gateway has not sealed it, so later segments wait; `lamplighter verify` shows what is "
                "wrong with it"
            )

    def _update(self, **members: object) -> None:
        self.status = msgspec.structs.replace(self.status, **members)

    def _save(self) -> None:
        self.status = msgspec.structs.replace(with_lag(self.status, self._data), at=self._clock.wall())
        write_status(self._data, self.status)


def gateway_identity(data: Path) -> str:
    """The name of a data folder's gateway. Raises ConfigurationError."""
    try:
        return read_text(data / "identity", follow=False).strip()
    except OSError as error:
        raise ConfigurationError(
            f"{data / 'identity'}: {error.strerror}; start the gateway once, or set --data to its data folder"
        ) from error


def _numbered_name(stem: str, number: int) -> str:
    return f"{stem}.r{number}" if number else stem


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while True:
        try:
            data = file.read(_CHUNK)
        except OSError as error:
            hint = "the card may be failing; make a backup"
            raise ChangeLogError(str(error.strerror), path=Path(file.name), hint=hint) from error
        if not data:
            return
        yield data


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _sha256(file: BinaryIO) -> str:
    file.seek(0)
    return _digest(_chunks(file))


def _newest_snapshot(data: Path) -> SegmentName | None:
    names = (segment_name(path.name) for path in (data / "snapshots").iterdir())
    return max((name for name in names if name is not None and name.last is None), default=None)


def _snapshot_seal(file: BinaryIO, gateway: str, name: SegmentName) -> SnapshotSeal:
    """The seal of a snapshot file, which names no record yet. Raises ValueError or ZstdError for a truncated file."""
    sha256 = _sha256(file)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    last = b""
    with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as content:
        for line in io.BufferedReader(content):
            last = line
    part = decode(last.rstrip(b"\n")).snapshot
    if part is None or not part.last or part.quads is None:
        raise ValueError("it is truncated")
    return SnapshotSeal(VERSION, gateway, name.epoch, name.first, part.quads, size, sha256)
