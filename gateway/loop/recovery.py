"""Recovery: from the newest snapshot and the change log behind it to where the last run ended.

::

    snapshot ─▶ dataset, Knowledge ─▶ records, each replayed ─▶ applications subscribe ─▶ the last record, matched again

Reactions stand right behind their trigger, so only the last record that no application caused can lack some: it is
held back until the applications follow the dataset, and what is pending by it then is struck out where it is recorded.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lamplighter.engine.change_log import Record
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, StoreError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import iso
from lamplighter.gateway.log.damage import DamageReport
from lamplighter.gateway.log.snapshots import Place, place_of, read_snapshot
from lamplighter.gateway.log.writer import LogWriter, Recovery
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.dataset import LiveDataset
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.obligations import Obligations
from lamplighter.gateway.loop.recovery_attempt import RecoveryAttempt, ReplayError
from lamplighter.gateway.loop.resumption import ResumptionService
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.state.applications import KIND as APPLICATION
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.knowledge import Knowledge

logger = EventLogger(__name__)


def _is_of_the_disk(error: BaseException) -> bool:
    """Whether a store on disk could not be read or written."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StoreError) and isinstance(cause.__cause__, OSError):
            return True
        cause = cause.__cause__
    return False


@dataclass(slots=True, eq=False, repr=False)
class LogReplay:
    """One start. _attempt: what earlier tries have taught."""

    _dataset: LiveDataset
    _resumption: ResumptionService[Sink]
    _aggregators: Aggregators
    _obligations: Obligations
    _ledger: Ledger
    _attempt: RecoveryAttempt
    _log: LogWriter = field(init=False)
    _knowledge: Knowledge = field(init=False)

    def __post_init__(self) -> None:
        self._log, self._knowledge = self._dataset.log, self._ledger.knowledge

    def run(
        self, applications: Sequence[Application], progress: Callable[[int], None], *, strict: bool
    ) -> tuple[Recovery, list[Application]]:
        """What was found, and the applications whose beginning is not recorded yet.

        progress: told how many records were taken up so far.
        Raises ChangeLogError when the log cannot be read, or is damaged and strict; ReplayError.
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
        recovery = self._log.replay(take, *self._dataset.base.place, strict=strict, unfollowable=self._attempt.record)
        if recovery.set_aside:
            logger.error("change log damaged", aside=recovery.set_aside, epoch=self._log.epoch, reason=recovery.reason)
        instant = self._knowledge.instant.before(last[0] if last else None)
        if instant is not None:
            self._dataset.engine.reach(instant)
        waiting = self._follow_applications(applications, last)
        for record in last:
            self._obligations.strike_out(record)
            self._replay(record)
            for application in [application for application in waiting if record.cause == application.began]:
                self._aggregators.begin(application, record.seq)
                waiting.remove(application)
        with self._applying((self._log.epoch, self._log.sequence)):
            self._flush()  # what cannot be written is found here, and not when the gateway is at work
        self._knowledge.delayed.rebase()
        self._resumption.distrust(self._dataset.clock.boot, lost=recovery.set_aside is not None)
        self._resumption.resumables.detach_all(self._dataset.clock.boottime_us())
        if recovery.cut_bytes:
            logger.warning("torn tail cut off", bytes=recovery.cut_bytes, sequence=self._log.sequence)
        return recovery, waiting

    def _restore_snapshot(self) -> None:
        """Starts from the newest snapshot that is whole."""
        base = self._dataset.base
        for error in base.errors:
            logger.error("snapshot damaged", reason=error)
            with contextlib.suppress(OSError):
                self._log.damage.add(DamageReport(iso(self._dataset.clock.wall()), f"snapshot {error}"))
                self._log.disk.rename(error.path, self._log.data / "damaged" / f"snapshot-{error.path.name}")
        with self._applying(base.place, snapshot=True):
            if self._dataset.way_back is not None:
                self._dataset.engine.converge(self._dataset.way_back, base.place[1])
                self._dataset.way_back = None
            elif base.snapshot is not None:
                self._dataset.engine.restore(read_snapshot(base.snapshot.path)[1], base.graphs, base.place[1])
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
                self._aggregators.resume(application)
            else:
                waiting.append(application)
        return waiting

    def _replay(self, record: Record) -> None:
        with self._applying(place_of(record)):
            self._ledger.replay(record)
            if record.type == "commit":
                self._resumption.lose_taken_over()
            if self._attempt.careful:
                self._flush()

    def _flush(self) -> None:
        try:
            self._dataset.engine.store.flush()
        except StoreError as error:
            if not _is_of_the_disk(error):
                raise
            # It may be full, and what waits is written later.

    @contextlib.contextmanager
    def _applying(self, place: Place, *, snapshot: bool = False) -> Iterator[None]:
        """Raises ReplayError for whatever goes wrong, unless it is the disk or the configuration."""
        try:
            yield
        except (ChangeLogError, ConfigurationError):
            raise
        except Exception as error:
            if _is_of_the_disk(error):
                raise
            raise ReplayError(place, snapshot=snapshot, error=error) from error
