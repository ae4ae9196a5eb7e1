"""Recovery: from the newest snapshot and the change log behind it to where the last run ended.

::

    snapshot ─▶ dataset, Knowledge ─▶ records, each replayed ─▶ applications subscribe ─▶ the last record, matched again

Reactions stand right behind their trigger, so only the last record that no application caused can lack some: it is
held back until the applications follow the dataset, and what they owe by it then is struck out where it is recorded.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, StoreError
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.log.reader import Unfollowable
from lamplighter.gateway.log.snapshots import Base, Place, place_of, read_snapshot, shown
from lamplighter.gateway.log.writer import LogWriter, Recovery
from lamplighter.gateway.loop.resuming import Resuming
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.knowledge import Knowledge

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES_MAX = 6
"""Tries of one start: two of them for each thing that cannot be applied, and one more for each further one."""
_REASON_CHARACTERS_MAX = 300


class NotApplied(Exception):
    """A record, or a snapshot, cannot be applied; the state is of no use any more. place: where it stands."""

    def __init__(self, place: Place, *, snapshot: bool, error: Exception) -> None:
        what = "snapshot" if snapshot else "record"
        super().__init__(f"{what} {shown(place)} cannot be applied: {error!r}"[:_REASON_CHARACTERS_MAX])
        self.place = place
        self.snapshot = snapshot


@dataclass(frozen=True)
class Doubt:
    """What the tries of a start before this one have taught.

    careful: each record is written to the store at once, so that it is known which one cannot be; a store on disk is
    built anew. record, snapshots: what cannot be applied. tries: how many there were.
    """

    careful: bool = False
    record: Unfollowable | None = None
    snapshots: Mapping[Place, str] = field(default_factory=dict)
    tries: int = 0

    def after(self, error: NotApplied, log: Path) -> Doubt:
        """What is known after another one. Whatever it was may pass, so that nothing is given up at the first time.

        log: for the message. Raises ChangeLogError when there have been too many.
        """
        if self.tries >= _TRIES_MAX:
            hint = "is there memory enough? `lamplighter verify` says more; else restore a backup into another folder"
            raise ChangeLogError(str(error), path=log, hint=hint) from error
        if not self.careful:
            return replace(self, careful=True, tries=self.tries + 1)
        if error.snapshot:
            return replace(self, snapshots={**self.snapshots, error.place: str(error)}, tries=self.tries + 1)
        return replace(self, record=Unfollowable(error.place, str(error)), tries=self.tries + 1)


def applied(start: Callable[[Doubt], T], log: Path) -> T:
    """What a start gives, tried until every record and snapshot that it uses can be applied.

    start: makes everything anew and recovers it, with what the tries before have taught. log: for messages. Raises what
    `start` does, and ChangeLogError in the place of NotApplied after some tries.
    """
    doubt = Doubt()
    while True:
        try:
            return start(doubt)
        except NotApplied as error:
            doubt = doubt.after(error, log)
            logger.error("recovery begins once more reason=%s", error)


class Reacting(Protocol):
    """The runner's part in a recovery: the applications, and what they owe."""

    def follow_application(self, application: Application) -> None:
        """An application goes on that had begun."""
        ...

    def begin_application(self, application: Application, sequence: int) -> None:
        """An application begins with the record of that sequence."""
        ...

    def strike_out(self, record: Record) -> None:
        """A record is there; if it is a reaction that is owed, it is owed no longer."""
        ...

    def commit_again(self, record: Record) -> None:
        """Follows a commit's delta at the time of its record; what applications have to say to it is owed."""
        ...


def _is_of_the_disk(error: BaseException) -> bool:
    """Whether a store on disk could not be read or written."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StoreError) and isinstance(cause.__cause__, OSError):
            return True
        cause = cause.__cause__
    return False


class Recovering:
    """One start.

    way_back: leads a dataset on disk to the snapshot, None for one that has to be filled; problem: is told what is to
    be said in the gateway's health; doubt: what tries before have taught.
    """

    def __init__(
        self,
        log: LogWriter,
        base: Base,
        engine: Engine,
        way_back: QuadDelta | None,
        knowledge: Knowledge,
        resuming: Resuming[Sink],
        reacting: Reacting,
        problem: Callable[[str], None],
        doubt: Doubt,
    ) -> None:
        self._doubt = doubt
        self._log = log
        self._base = base
        self._engine = engine
        self._way_back = way_back
        self._knowledge = knowledge
        self._resuming = resuming
        self._reacting = reacting
        self._problem = problem

    def run(
        self, applications: Sequence[Application], clock: Clock, progress: Callable[[int], None], *, strict: bool
    ) -> tuple[Recovery, list[Application]]:
        """What was found, and the applications whose beginning is not recorded yet.

        progress: told how many records were taken up so far.
        Raises ChangeLogError when the log cannot be read, or is damaged and strict; NotApplied.
        """
        last: list[Record] = []  # the last record that no application caused, and the reactions behind it
        taken = itertools.count(1)

        def take(record: Record) -> None:
            progress(next(taken))
            if not (record.cause and record.cause.kind == APPLICATION and record.cause.seq is not None):
                for earlier in last:
                    self._replay(earlier)
                last.clear()
            last.append(record)

        self._restore_snapshot()
        recovery = self._log.replay(take, *self._base.place, strict=strict, unfollowable=self._doubt.record)
        if recovery.set_aside:
            self._problem(
                f"the change log was damaged: {recovery.reason}; what was not taken over is in {recovery.set_aside}"
            )
            logger.error(
                "change log damaged aside=%s epoch=%d reason=%s", recovery.set_aside, self._log.epoch, recovery.reason
            )
        waiting = self._follow_applications(applications, last)
        for record in last:
            self._reacting.strike_out(record)
            self._replay(record)
            for application in [application for application in waiting if record.cause == application.began]:
                self._reacting.begin_application(application, record.seq)
                waiting.remove(application)
        with self._applying((self._log.epoch, self._log.sequence)):
            self._flush()  # what cannot be written is found here, and not when the gateway is at work
        self._knowledge.delayed.rebase()
        self._resuming.distrust(clock.boot, lost=recovery.set_aside is not None)
        self._resuming.resumables.detach_all(clock.boottime_us())
        if recovery.cut_bytes:
            logger.warning("torn tail cut off bytes=%d sequence=%d", recovery.cut_bytes, self._log.sequence)
        return recovery, waiting

    def _restore_snapshot(self) -> None:
        """Starts from the newest snapshot that is whole."""
        base = self._base
        for error in base.errors:
            self._problem(f"snapshot {error}")
            logger.error("snapshot is damaged reason=%s", error)
            with contextlib.suppress(OSError):
                self._log.disk.rename(error.path, self._log.data / "damaged" / f"snapshot-{error.path.name}")
        with self._applying(base.place, snapshot=True):
            if self._way_back is not None:
                self._engine.converge(self._way_back, base.place[1])
            elif base.snapshot is not None:
                self._engine.restore(read_snapshot(base.snapshot.path)[1], base.graphs, base.place[1])
            if base.head is not None:
                self._knowledge.restore(base.head)

    def _follow_applications(self, applications: Sequence[Application], last: Sequence[Record]) -> list[Application]:
        """Has those that run follow the dataset; those that do not."""
        register = self._knowledge.register
        running = [application for application in applications if register.has(application)]
        if last:
            register.follow(
                last[0]
            )  # ahead of its turn: it may say that one of them ended, or that another version began
        waiting = []
        for application in applications:
            if application in running and register.has(application):
                self._reacting.follow_application(application)
            else:
                waiting.append(application)
        return waiting

    def _replay(self, record: Record) -> None:
        with self._applying(place_of(record)):
            self._knowledge.follow(record)
            if record.type == "commit":
                self._reacting.commit_again(record)
            if self._doubt.careful:
                self._flush()

    def _flush(self) -> None:
        try:
            self._engine.flush()
        except StoreError as error:
            if not _is_of_the_disk(error):
                raise
            # It may be full, and what waits is written later.

    @contextlib.contextmanager
    def _applying(self, place: Place, *, snapshot: bool = False) -> Iterator[None]:
        """Raises NotApplied for whatever goes wrong, unless it is the disk or the configuration."""
        try:
            yield
        except (ChangeLogError, ConfigurationError):
            raise
        except Exception as error:
            if _is_of_the_disk(error):
                raise
            raise NotApplied(place, snapshot=snapshot, error=error) from error
