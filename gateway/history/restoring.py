"""Restores a backup while the gateway runs.

A fork compares the backup with the dataset, while updates continue. The difference, corrected by the commits in the
meantime, is one commit, so subscribers are notified of the exact change. The delayed updates of the backup replace the
pending ones, and its stored applications those of the gateway. Request ids, the files of ``apps/`` and resumable
subscriptions do not change: they belong to current clients and to the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import mmap
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from lamplighter.engine.change_log import Record, Timer
from lamplighter.engine.change_log.frames import ByteSource
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta, compose
from lamplighter.engine.errors import (
    ChangeLogError,
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    RequestError,
    StoreError,
)
from lamplighter.engine.slices import Slices
from lamplighter.engine.sparql.requests import parse_update
from lamplighter.engine.store.quad_store import QuadStore, check_graph_names, check_quads
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.clock import iso, moment
from lamplighter.gateway.disk import TEMPORARY, Disk
from lamplighter.gateway.log.snapshots import read_snapshot
from lamplighter.gateway.state.delayed import DELAY_US_MAX
from lamplighter.gateway.state.knowledge import snapshot_state
from lamplighter.gateway.state.stored_applications import StoredApplication, check_amount, check_name
from lamplighter.gateway.texts import cut
from lamplighter.gateway.workers.ad_hoc import Answer

KIND = "restore"  # the cause of the records of a restore; its id is gateway, epoch and sequence of the backup
RESTORE_BYTES_MAX = 1024 * 1024 * 1024  # a larger backup is refused
_ERROR_CHARACTERS_MAX = 500


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the output of the fork. place: only on the last one; error: code and description, then alone."""

    removed: tuple[Quad, ...] = ()
    added: tuple[Quad, ...] = ()
    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()
    timers: tuple[Timer, ...] = ()
    applications: tuple[StoredApplication, ...] | None = None
    place: str = ""
    error: str = ""


@dataclass(frozen=True)
class Difference:
    """The change from the state of a fork to that of a backup. timers: the delayed updates to set. applications: the
    stored ones; None: the backup says nothing of them, so they stay."""

    place: str
    delta: QuadDelta
    timers: tuple[Timer, ...]
    applications: tuple[StoredApplication, ...] | None = None

    def since(self, deltas: list[QuadDelta], slices: Slices = Slices()) -> QuadDelta:  # noqa: B008 - it has no state
        """The exact delta from the state after some commits that the fork has not seen."""
        # The fork compared with an older state: what came since is taken back first, as a part of the same net delta.
        undone = [delta.invert() for delta in reversed(deltas)]
        return compose([*undone, self.delta], slices)._replace(kept=())


@dataclass(frozen=True)
class Restored:
    """What was done. applications: stored ones that the gateway has now; None: they stayed."""

    place: str
    sequence: int
    removed: int
    added: int
    cancelled: int
    delayed: int
    applications: int | None


def comparison(path: Path, engine: Engine, pending_max: int, now: datetime) -> Callable[[BinaryIO], None]:
    """The work of a fork that writes `Part`s: the difference between the dataset and a backup. It opens no file.
    pending_max: reading stops at one more delayed update, since then all are refused; now: by the wall clock. Raises
    ChangeLogError when the backup cannot be read."""
    # The mapping outlives its file. An empty file cannot be mapped.
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else io.BytesIO()
    except OSError as error:
        raise ChangeLogError(str(error.strerror), path=path, hint="nothing was changed; try again") from error
    return partial(_compare, path, content, engine, pending_max, now)


def _compare(path: Path, content: ByteSource, engine: Engine, pending_max: int, now: datetime, out: BinaryIO) -> None:
    try:
        # In lines, so that the fork need not hold a difference that may be as large as the dataset.
        for part in _parts(path, content, engine, pending_max, now):
            out.write(msgspec.json.encode(part) + b"\n")
    except MemoryError:
        raise  # the backup is valid
    except GatewayError as error:
        out.write(msgspec.json.encode(Part(error=_shorten(str(error)))) + b"\n")
    except Exception as error:  # a forged file may cause any error; it is refused
        out.write(msgspec.json.encode(Part(error=_shorten(f"{path}: it cannot be restored: {error!r}"))) + b"\n")


def _shorten(text: str) -> str:
    return cut(text, _ERROR_CHARACTERS_MAX)


def _parts(path: Path, content: ByteSource, engine: Engine, pending_max: int, now: datetime) -> Iterator[Part]:
    head, batches = read_snapshot(path, content=content)
    names = head.graphs.created if head.graphs else ()
    # A separate store makes the terms canonical. Nothing is written before the file was read to its end.
    wanted = QuadStore()
    try:
        engine.store.check(Quad("<urn:s>", "<urn:p>", "<urn:o>", name) for name in names)
        check_graph_names(names)
        # Before any output. A backup that is damaged at its end must not have changed anything.
        wanted.fill(_possible(batches, engine.store), names)
        timers = tuple(islice(_timers(head, now), pending_max + 1))
        applications = _applications(head)
    except ValueError as error:
        raise ChangeLogError(f"damaged: {error}", path=path, hint="take an older one") from error
    for removed in _missing(engine.store, wanted):
        yield Part(removed=removed)
    for added in _missing(wanted, engine.store):
        yield Part(added=added)
    there, present = set(wanted.graphs()), set(engine.store.graphs())
    yield Part(
        created=tuple(sorted(there - present)),
        dropped=tuple(sorted(present - there)),
        timers=timers,
        applications=applications,
        place=f"{head.gw}/{head.epoch}/{head.seq}",
    )


def _missing(these: QuadStore, those: QuadStore) -> Iterator[tuple[Quad, ...]]:
    """The quads that are only in the first argument, in batches."""
    for batch in these.batches():
        missing = tuple(quad for quad, there in zip(batch, those.contains(batch), strict=True) if not there)
        if missing:
            yield missing


def _possible(batches: Iterator[tuple[Quad, ...]], store: QuadStore) -> Iterator[tuple[Quad, ...]]:
    """The same quads. store: their target. Raises ValueError, LimitExceededError for too long or too deep terms."""
    before = 0
    for batch in batches:
        store.check(batch)
        check_quads(batch, before)
        before += len(batch)
        yield batch


def _applications(head: Record) -> tuple[StoredApplication, ...] | None:
    """The stored applications of a backup. Raises ValueError."""
    stored = snapshot_state(head).stored
    if stored is None:
        return None
    try:
        check_amount(stored)
        for one in stored:
            check_name(one.name)
    except GatewayError as error:
        raise ValueError(f"stored applications: {error}") from error
    if len({one.name for one in stored}) < len(stored):
        raise ValueError("stored applications: two have the same name")
    return tuple(stored)


def _timers(head: Record, now: datetime) -> Iterator[Timer]:
    """The delayed updates of a backup under new ids, with their remaining time. Raises ValueError."""
    state = snapshot_state(head).delayed
    boot = state.boot
    now_us = head.boottime_us if boot is None or boot.boot == head.boot else boot.uptime_us
    good: set[str] = set()  # texts
    for number, (record, due_us) in enumerate(state.pending):
        timer = record.timer
        assert timer is not None
        # Against the clock of the backup: a timer waits here as long as it still had to there, whatever time has gone
        # by.
        left_us = None if due_us is None else max(0, due_us - now_us)
        if left_us is not None and left_us > DELAY_US_MAX:
            raise ValueError(f"delayed.pending[{number}]: it is due in {left_us} microseconds, later than any may be")
        for text in timer.texts:
            if text not in good:
                try:
                    parse_update(text)
                except RequestError as error:
                    raise ValueError(f"delayed.pending[{number}]: timer.update: {error}") from error
                good.add(text)
        at = None if timer.at is None else iso(moment(timer.at))
        # New ids: the same backup may be restored twice, and an id stands for one timer of the whole log.
        yield msgspec.structs.replace(timer, id=uuid.uuid4().hex, delay_us=left_us, at=at)


async def difference(answer: Answer) -> Difference:
    """The output of the fork. Raises MalformedRequestError for an invalid backup, StoreError if the fork failed."""
    removed: list[Quad] = []
    added: list[Quad] = []
    decoder = msgspec.json.Decoder(Part)
    rest = b""
    last = Part()
    async for chunk in answer.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            last = decoder.decode(line)
            removed += last.removed
            added += last.added
        # The decoding of a large difference would hold up the updates that the restore promises to let through.
        await asyncio.sleep(0)
    if last.error:
        raise MalformedRequestError(last.error)
    # Only the last line has a place, so an output that was cut off, such as by the killer of processes, is never taken
    # for a whole one.
    if not last.place or rest:
        raise StoreError("the backup could not be compared with the dataset; is there enough memory?")
    delta = QuadDelta(tuple(removed), tuple(added), (), last.created, last.dropped)
    return Difference(last.place, delta, last.timers, last.applications)


@contextlib.asynccontextmanager
async def receive(disk: Disk, folder: Path, chunks: AsyncIterator[bytes]) -> AsyncIterator[Path]:
    """A file with the received bytes; a start removes it. Raises LimitExceededError, ChangeLogError."""
    path = folder / f"restore-{uuid.uuid4().hex}{TEMPORARY}"
    size = 0
    try:
        try:
            file = disk.create(path)
            try:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > RESTORE_BYTES_MAX:
                        raise LimitExceededError(f"a backup may have at most {RESTORE_BYTES_MAX} bytes")
                    await asyncio.to_thread(disk.write_all, file, chunk)
            finally:
                disk.close(file)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            raise ChangeLogError(reason, path=path, hint="free some space; nothing was changed") from error
        yield path
    finally:
        with contextlib.suppress(OSError):
            disk.remove(path)
