"""Lands single files in the lake, or in quarantine. It is crash-safe.

The manifest is written before files move. A file is written to ``incoming/`` and synced. The transaction that accepts
it records its target; then it is moved. After a kill, the next collector finds the moves that are left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import zstandard

from lamplighter.cloud_sync.answers import SNAPSHOTS
from lamplighter.cloud_sync.destinations.base import PART
from lamplighter.cloud_sync.files import create_plain, opened_folder, sync_folder
from lamplighter.cloud_sync.fleet.collection.histories import Histories, rename_lines
from lamplighter.cloud_sync.fleet.collection.landing_numbers import LandingLogWriter
from lamplighter.cloud_sync.fleet.collection.ledger import (
    ANSWERED_NEVER,
    KNOWN,
    LANDED,
    QUARANTINED,
    UNANSWERED,
    LogHistory,
    Object,
    Quarantined,
)
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.collection.segment_check import (
    CHAIN,
    CONFLICT,
    NEWER,
    Bad,
    Bounds,
    CheckedSegment,
    Range,
    checked_segment,
    checked_snapshot,
    lines,
    sha256_of,
    without,
)
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.engine.change_log import SUFFIX, SegmentName
from lamplighter.engine.errors import UpstreamError

SEGMENTS, QUARANTINE, INCOMING = "segments", "quarantine", "incoming"
# Quarantine space of one gateway. Of further objects only the beginning is kept.
QUARANTINE_BYTES_MAX = 4 * 1024**3
BEGINNING_BYTES = 64 * 1024
_LEVEL = 9


class Landing:
    """The lake's side of a collector. Every method may raise OSError and can be retried."""

    def __init__(self, lake: Path, manifest: Manifest, bounds: Bounds, wall: Callable[[], float]) -> None:
        self._lake = lake
        self._manifest = manifest
        self._bounds = bounds
        self._wall = wall
        segments = LandedSegments(Lake(str(lake)))
        self._histories = Histories(manifest, segments, bounds)
        self._numbers = itertools.count()
        self._kept: dict[str, int] = {}  # bytes in quarantine, by gateway
        self._moved: set[str] = set()
        self._log = LandingLogWriter(lake, manifest.landings, segments)
        with opened_folder(lake, [INCOMING], make=True):
            pass

    def recover(self) -> None:
        """Completes the moves of a collector that was killed, and numbers what has no landing number."""
        self._move(self._manifest.moves())
        with self._manifest.transaction():
            # A ledger that was restored from a backup must not give out numbers that readers have seen.
            self._manifest.landings.continue_after(self._log.last)
            self._manifest.landings.add_missing()
        with opened_folder(self._lake, [INCOMING]) as folder, os.scandir(folder) as listing:
            for left in listing:
                os.unlink(left.name, dir_fd=folder)
        self.settle()

    def settle(self) -> None:
        """Writes the landing log, and removes completed moves from the manifest."""
        # An error of the disk may have left a move.
        self._move([move for move in self._manifest.moves() if move[0] not in self._moved])
        self._log.write()
        if self._moved:
            with self._manifest.transaction():
                self._manifest.forget_moves(self._moved)
            self._moved.clear()

    def receive(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """Writes bytes to a durable file in `incoming/`. Returns its name, relative to the lake, and its size.

        Of a file that is too large only the beginning is kept. Raises UpstreamError of the chunks and leaves no file.
        """
        name, size = self._incoming(), 0
        with create_plain(self._lake / name) as file:
            try:
                for chunk in chunks:
                    size += len(chunk)
                    file.write(chunk)
                    if size > self._bounds.bytes_max:
                        break
            except UpstreamError:
                (self._lake / name).unlink()  # it will be received again
                raise
            file.flush()
            os.fsync(file.fileno())
        return name, size

    def land(self, gateway: str, path: str, version: str, incoming: str, seal: bytes) -> Object:
        """Checks a file that `receive` has made, and lands or quarantines it. Returns the outcome.

        path: of the object at the source, without its suffix; version: as listed there; seal: the content of its seal.
        """
        try:
            return self._land_safely(gateway, path, version, incoming, seal)
        except Bad as bad:
            return self._quarantine(gateway, path, version, incoming, seal, bad)

    def retry(self, kept: list[Quarantined]) -> list[tuple[str, Object]]:
        """Checks files in quarantine again. Returns the paths and outcomes of those that pass."""
        found = []
        for one in kept:
            gateway = one.path.partition("/")[0]
            version = self._manifest.version(one.path)
            with contextlib.suppress(Bad):
                taken = self._land_safely(gateway, one.path, version, f"{QUARANTINE}/{one.file}", one.seal, one)
                found.append((one.path, taken))
                self._kept.pop(gateway, None)
                self.settle()  # a file of the same name may be quarantined again
        return found

    def _land_safely(
        self, gateway: str, path: str, version: str, incoming: str, seal: bytes, released: Quarantined | None = None
    ) -> Object:
        """As `_land`, but turns every unexpected exception into Bad: one object must never end the round."""
        try:
            return self._land(gateway, path, version, incoming, seal, released)
        except (Bad, OSError, UpstreamError, sqlite3.OperationalError):
            raise
        except Exception as error:
            raise Bad(f"it cannot be checked: {type(error).__name__}: {error}") from error

    def _land(
        self, gateway: str, path: str, version: str, incoming: str, seal: bytes, released: Quarantined | None = None
    ) -> Object:
        """Lands a file. Raises Bad without a change. released: the quarantine entry of incoming, if it has one."""
        file, at = self._lake / incoming, self._now()
        if file.stat().st_size > self._bounds.bytes_max:
            raise Bad(f"it has more than {self._bounds.bytes_max} bytes")
        moves: dict[str, str] = {}
        segment = snapshot = None
        ranges: list[Range] = []
        if path.count("/") > 1:
            snapshot = checked_snapshot(file, seal, gateway, self._bounds)
            sha256, place = snapshot.seal.sha256, SegmentName(snapshot.seal.epoch, snapshot.seal.seq)
            history = self._histories.of_snapshot(snapshot)
            landed = self._manifest.snapshot(history.name, place.epoch, place.first)
            if landed is not None and landed != sha256:
                raise Bad(f"another snapshot of record {place.epoch}/{place.first} has landed", CONFLICT)
            if landed is None:
                taken = self._rename(incoming, gateway, history.name)
                moves[taken] = f"{SNAPSHOTS}/{history.name}/{place}"
        else:
            segment = checked_segment(file, seal, gateway, self._bounds)
            sha256 = segment.seal.sha256
            try:
                history, fork = self._histories.continued_by(segment, file)
            except Bad as bad:
                raise Bad(str(bad), bad.kind, tuple(gap for _, _, gap in segment.gaps)) from bad
            if fork is None:
                ranges = self._fresh(segment, history)
            else:
                # What is before the fork belongs to the other history, and lands when it comes from there.
                history = LogHistory(gateway, len(self._manifest.histories(gateway)) + 1, history, *fork)
                first = fork[1] + 1 if fork[0] == segment.seal.epoch else segment.seal.first
                ranges = [(first, segment.seal.last)]
            moves = self._files(segment, history, ranges, incoming)
        found = Object(version, sha256, LANDED if moves else KNOWN, "", at, UNANSWERED)
        if released is not None:
            moves.setdefault(incoming, self._incoming())
            moves[f"{QUARANTINE}/{_reason_file(released.file)}"] = self._incoming()
        sync_folder(self._lake / INCOMING)
        with self._manifest.transaction():
            if segment is not None:
                if fork is not None:
                    self._manifest.fork(history, at)
                self._manifest.take_in(segment, history, ranges, path, at)
            elif snapshot is not None and landed is None:
                self._manifest.take_snapshot_in(snapshot, history, path, at)
            if released is not None:
                self._manifest.release(released.file)
            self._manifest.plan_moves(moves)
            self._manifest.put_object(path, found)
        self._move(moves.items())
        for left in (incoming, *(target for target in moves.values() if target.startswith(INCOMING))):
            (self._lake / left).unlink(missing_ok=True)
        return found

    def _fresh(self, segment: CheckedSegment, history: LogHistory) -> list[Range]:
        """The ranges of a segment that have not landed in its history. Raises Bad if it does not fit there."""
        seal = segment.seal
        landed = self._manifest.landed_in(history, seal.epoch, seal.first, seal.last)
        fresh = without((seal.first, seal.last), [part for _, part in landed])
        if fresh and (broken := self._manifest.broken_chain(segment, history)):
            raise Bad(broken, CHAIN)
        return fresh

    def _files(
        self, segment: CheckedSegment, history: LogHistory, ranges: list[Range], incoming: str
    ) -> dict[str, str]:
        """Files with these ranges of a segment: source -> target, relative to the lake."""
        seal, name = segment.seal, history.name
        targets = [f"{SEGMENTS}/{name}/{SegmentName(seal.epoch, *one)}" for one in ranges]
        if ranges == [(seal.first, seal.last)]:
            return {self._rename(incoming, seal.gw, name): targets[0]}
        moves = {}
        for (first, last), target in zip(ranges, targets, strict=True):
            content = rename_lines(lines(self._lake / incoming, self._bounds), seal.gw, name)
            part, _ = self.receive(_compress(itertools.islice(content, first - seal.first, last - seal.first + 1)))
            moves[part] = target
        return moves

    def _rename(self, incoming: str, gateway: str, name: str) -> str:
        """A file with the lines of a received one, under the name of a history."""
        if gateway == name:
            return incoming
        found, _ = self.receive(_compress(rename_lines(lines(self._lake / incoming, self._bounds), gateway, name)))
        return found

    def _quarantine(self, gateway: str, path: str, version: str, incoming: str, seal: bytes, bad: Bad) -> Object:
        sha256, at = sha256_of(self._lake / incoming), self._now()
        stem = path.removeprefix(f"{gateway}/").replace("/", "-")
        file = f"{gateway}/{stem}{SUFFIX}"
        if (other := self._manifest.quarantined_hash(file)) is not None and other != sha256:
            file = f"{gateway}/{stem}.{sha256[:12]}{SUFFIX}"
        told = {"source": f"{path}{SUFFIX}", "sha256": sha256, "at": at, "kind": bad.kind, "reason": str(bad)}
        reason, _ = self.receive([msgspec.json.format(msgspec.json.encode(told)), b"\n"])
        whole = self._limit_quarantine(gateway, self._lake / incoming)
        # A segment of a newer version is not refused: a newer collector may accept it. Neither is one whose history is
        # not known yet, nor one of which only the beginning is kept: its gateway must keep it.
        final = whole and bad.kind not in (NEWER, CHAIN, CONFLICT)
        answered = UNANSWERED if final else ANSWERED_NEVER
        found = Object(version, sha256, QUARANTINED, str(bad), at, answered)
        moves = {incoming: f"{QUARANTINE}/{file}", reason: f"{QUARANTINE}/{_reason_file(file)}"}
        sync_folder(self._lake / INCOMING)
        with self._manifest.transaction():
            self._manifest.quarantine(Quarantined(file, path, sha256, bad.kind, str(bad), at, seal))
            self._manifest.claim(file, gateway, bad.gaps)
            self._manifest.plan_moves(moves)
            self._manifest.put_object(path, found)
        self._move(moves.items())
        return found

    def _limit_quarantine(self, gateway: str, file: Path) -> bool:
        """Counts a file towards the gateway's quarantine space, and truncates it if the space is used up.

        Returns whether the file is whole.
        """
        if gateway not in self._kept:
            folder = self._lake / QUARANTINE / gateway
            self._kept[gateway] = sum(one.stat().st_size for one in folder.iterdir()) if folder.is_dir() else 0
        size = file.stat().st_size
        whole = size <= BEGINNING_BYTES or self._kept[gateway] + size <= QUARANTINE_BYTES_MAX
        if not whole:
            os.truncate(file, BEGINNING_BYTES)
        self._kept[gateway] += min(size, BEGINNING_BYTES) if not whole else size
        return whole

    def _move(self, moves: Iterable[tuple[str, str]]) -> None:
        folders = set()
        for source, target in moves:
            *parts, name = target.split("/")
            with (
                opened_folder(self._lake, parts, make=True) as folder,
                contextlib.suppress(FileNotFoundError),  # a collector that was killed has moved it
            ):
                # `ingest` takes the file's time for that of its landing.
                os.utime(self._lake / source, (self._wall(), self._wall()), follow_symlinks=False)
                os.rename(self._lake / source, name, dst_dir_fd=folder)
            folders.add(self._lake.joinpath(*parts))
            self._moved.add(source)
        for path in folders:
            sync_folder(path)

    def _incoming(self) -> str:
        """A free name in `incoming/`, relative to the lake."""
        return f"{INCOMING}/{next(self._numbers)}{PART}"

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _reason_file(file: str) -> str:
    return file.removesuffix(SUFFIX) + ".reason.json"


def _compress(content: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without newlines, compressed to one zstd frame."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    for line in content:
        yield compressor.compress(line + b"\n")
    yield compressor.flush()
