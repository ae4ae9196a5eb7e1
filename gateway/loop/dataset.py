"""The engine of the gateway, and where its dataset lies: in memory, or in a store on disk beside the log."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from time import thread_time

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError, StoreError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.log.persistent_store import PersistentStore
from lamplighter.gateway.log.snapshots import newest
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.recovery_attempt import RecoveryAttempt
from lamplighter.gateway.loop.time_slicer import TimeSlicer
from lamplighter.gateway.settings import Settings

logger = EventLogger(__name__)


class StepTime:
    """The engine's clock: the time of the record that is being followed, and the wall clock otherwise."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now: datetime | None = None

    def __call__(self) -> datetime:
        return self.now or self._clock.wall()


class LiveDataset:
    """Owns the engine. A store that is damaged, or that the log does not vouch for, is emptied and filled anew.

    base: the snapshot that a start begins with. way_back: the delta from the store on disk to that snapshot, None for
    a dataset that has to be filled.
    """

    def __init__(
        self, settings: Settings, clock: Clock, log: LogWriter, slicer: TimeSlicer, attempt: RecoveryAttempt
    ) -> None:
        self.log = log
        self.slicer = slicer
        self.clock = clock
        self.time = StepTime(clock)
        self.base = newest(log.data / "snapshots", attempt.snapshots)
        path = settings.store.path
        self._store = PersistentStore(log.data / path, log, clock.boot) if path else None
        self.way_back = None if self._store is None else self._store.usable(*self.base.place, anew=attempt.careful)
        self.path = None if self._store is None else self._store.path
        self.engine = self._new_engine(settings, slicer)

    def _new_engine(self, settings: Settings, slicer: TimeSlicer) -> Engine:
        limits = settings.limits
        new_engine = partial(
            Engine,
            clock=self.time,
            delta_quads_max=limits.delta_quads_max,
            term_bytes_max=limits.term_bytes_max,
            evaluation_ms_max=limits.evaluation_ms_max,
            processor_time=thread_time,
            ends_costly=True,
            slices=slicer,
        )
        if self._store is None:
            return new_engine()
        try:
            return new_engine(store_path=self._store.path)
        except StoreError as error:
            logger.error("store damaged", reason=error)
            self._store.empty()
            self.way_back = None
            return new_engine(store_path=self._store.path)

    def finish(self) -> None:
        """Makes the store on disk as durable as the log, so that the next start can use it."""
        if self._store is not None:
            try:
                self.log.sync(always=True)  # the store must not know more
                self.engine.persist()
                self._store.mark_closed()
            except (OSError, GatewayError) as error:
                logger.error("store not closed properly", reason=error)
