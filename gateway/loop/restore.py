"""Snapshots, backups and restores of the running gateway: what needs the loop.

A fork has the dataset as it is in the turn of the request, and writes or compares while updates go on
(`gateway.log.snapshots`, `gateway.history.restoring`). A restore is one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from lamplighter.engine.change_log import Cause, Gap, Record
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError, QueueFullError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.history.restoring import KIND as RESTORE
from lamplighter.gateway.history.restoring import Difference, Restored, comparison
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.maintenance import SnapshotResult
from lamplighter.gateway.log.snapshots import write
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import LiveSettings, Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.workers.ad_hoc import Answer, Reader

logger = EventLogger(__name__)

WriteDataset = Callable[[Sequence[Term], Iterable[Iterable[Quad]], BinaryIO], None]
"""Writes the names of all graphs and the quads in batches."""


@dataclass(slots=True, eq=False, repr=False)
class Restore:
    """The steps of snapshots and restores; for the log keeper, and for operators."""

    _ledger: Ledger
    _reader: Reader
    _reactions: Reactions
    _delays: Delays
    _queue: Queue
    _current: LiveSettings
    _engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self._engine = self._ledger.engine

    @property
    def quad_count(self) -> int:
        """How many quads the dataset has."""
        return self._engine.quad_count

    def take_snapshot(self) -> asyncio.Future[SnapshotResult]:
        """A snapshot of this moment, written by a fork."""

        def take() -> SnapshotResult:
            self._reactions.flush_pending()  # what is pending is not in a snapshot
            store, names, head = self._engine.store, self._engine.store.graphs(), self._ledger.log.head()
            store.flush()
            return SnapshotResult(head, self._reader.stream(partial(self._write, head, names)))

        return self._queue.post(take, in_loop=True)

    def _write(self, head: Record, names: Sequence[Term], out: BinaryIO) -> None:
        """In the fork."""
        state = msgspec.json.encode(self._ledger.knowledge.state())
        write(out, head, names, state, self._engine.snapshot())

    def copy_dataset(self, write: WriteDataset) -> asyncio.Future[SnapshotResult]:
        """The dataset of this moment in another form, written by a fork. The outcome is set when the record that it
        belongs to is as durable as the policy requires."""

        def take() -> SnapshotResult:
            store, names, head = self._engine.store, self._engine.store.graphs(), self._ledger.log.head()
            store.flush()
            return SnapshotResult(head, self._reader.stream(lambda out: write(names, self._engine.snapshot(), out)))

        return self._queue.post(take, in_loop=True)

    def note_gap(self, gap: Gap) -> asyncio.Future[None]:
        """Records that a part of the history went."""

        def note() -> None:
            self._reactions.flush_pending()
            self._ledger.record(entries.gap(gap))

        return self._queue.post(note)

    def begin(self, backup: Path) -> asyncio.Future[Answer]:
        """Has a fork compare the dataset with a backup (`restoring.difference` reads the outcome). Until `end`, what
        is committed is noted. Raises ChangeLogError when it cannot be read; the outcome is a QueueFullError while
        another one is being restored."""
        pending_max = self._current.settings.delayed.pending_max
        work = comparison(backup, self._engine, pending_max, self._ledger.clock.wall())

        def begin() -> Answer:
            if self._ledger.since is not None:
                raise QueueFullError("another backup is being restored; try again later")
            self._engine.store.flush()
            answer = self._reader.stream(work)
            self._ledger.since = []
            return answer

        return self._queue.post(begin, in_loop=True)

    def restore(self, difference: Difference) -> asyncio.Future[Restored]:
        """Makes dataset and delayed updates those of the backup. The outcome is a ChangeLogError if the log did not
        take all of it; if that was not at the very beginning, the same once more does what is left to be done."""
        return self._queue.post(partial(self._restore, difference))

    def _restore(self, difference: Difference) -> Restored:
        since = self._ledger.since
        assert since is not None, "begin comes first"
        pending_max = self._current.settings.delayed.pending_max
        if len(difference.timers) > pending_max:
            raise LimitExceededError(f"the backup has more than delayed.pending_max = {pending_max} delayed updates")
        self._reactions.new_request()
        delayed = self._ledger.knowledge.delayed
        cause = Cause(RESTORE, difference.place)
        going = [record.timer.id for record, _ in delayed.state().pending if record.timer is not None]
        self._ledger.slicer.begin(LONG)
        delta = self._engine.prepare_change(difference.since(since, self._ledger.slicer))
        commit = self._ledger.commit(delta, cause)
        self._reactions.flush_pending()  # a reaction stands behind its trigger, before anything else
        going = [name for name in going if delayed.pending.get(name) is not None]
        for name in going:
            self._delays.cancel(name, cause)
            self._ledger.slicer.pause()
        for timer in difference.timers:
            self._delays.put_back(timer, cause)
            self._ledger.slicer.pause()
        self._delays.rearm()
        since.clear()
        logger.info("backup restored", place=difference.place, sequence=commit.sequence)
        return Restored(
            difference.place,
            commit.sequence,
            len(delta.removed),
            len(delta.added),
            len(going),
            len(difference.timers),
            None if difference.applications is None else len(difference.applications),
        )

    def end(self) -> None:
        """Notes nothing any more."""
        self._ledger.since = None
