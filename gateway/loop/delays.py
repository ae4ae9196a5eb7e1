"""The records of delayed updates: set, cancelled, skipped. `gateway.loop.timers` executes what is due."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Cause, Missed, Timer
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.sharing import refusal
from lamplighter.engine.updating.request import Request
from lamplighter.gateway.clock import iso
from lamplighter.gateway.log import entries
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import LiveSettings, Queue
from lamplighter.gateway.loop.scheduler import Scheduler
from lamplighter.gateway.state.delayed import DelayedUpdates, Pending, at_moment, delay_us, text_bytes
from lamplighter.gateway.state.quotas import check
from lamplighter.gateway.state.request_ids import Accepted

logger = EventLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class Delays:
    """Writes the records of timers. After it has, the scheduler looks at what is due next."""

    delayed: DelayedUpdates
    _ledger: Ledger
    _scheduler: Scheduler
    _queue: Queue
    _current: LiveSettings

    def add(
        self,
        request: Request,
        delay: str | None,
        at: str | None,
        missed: Missed | None,
        cause: Cause,
        request_id: str | None = None,
        client: str | None = None,
        access: Access = FULL,
    ) -> Accepted:
        """A delayed update is pending. Raises GatewayError; nothing has changed then."""
        settings = self._current.settings
        if delay is not None and at is not None:
            raise MalformedRequestError("use either delay or at, not both")
        most, used = settings.delayed.pending_max, self.delayed.usage.of(client or "")
        if why := refusal(client or "", used, 1, most - len(self.delayed), f"delayed.pending_max = {most}"):
            raise LimitExceededError(f"{why}; cancel some, or have the operator raise it")
        request.check(access)  # its errors belong to whoever asks now
        timer = Timer(
            id=uuid.uuid4().hex,
            update=request.text,
            delay_us=None if delay is None else delay_us(delay),
            at=None if at is None else iso(at_moment(at)),
            missed=missed or settings.delayed.missed,
            client=client,
            parts=tuple(map(len, request.parts)) if len(request.parts) > 1 else (),
        )
        if client is not None:
            self._check_quotas(client, timer)
        record = self._ledger.record(entries.timer(timer, cause, request_id, client))
        self.rearm()
        return Accepted(record.seq, timer.id)

    def _check_quotas(self, client: str, timer: Timer) -> None:
        """Raises LimitExceededError."""
        quotas, delayed = self._current.quotas(), self.delayed
        check(delayed.usage.of(client), 1, "delayed_max", quotas.delayed_max, "the pending delayed updates")
        used, more = delayed.usage_bytes.of(client), text_bytes(timer)
        check(used, more, "delayed_bytes_max", quotas.delayed_bytes_max, "the bytes of pending delayed updates")

    def put_back(self, timer: Timer, cause: Cause) -> None:
        """A delayed update of a backup is pending. `rearm` is due after the last one. Raises ChangeLogError."""
        self._ledger.record(entries.timer(timer, cause))

    def cancel(self, name: str, cause: Cause) -> None:
        """One is not pending any more. `rearm` is due after the last one. Raises ChangeLogError."""
        self._ledger.record(entries.cancel(name, cause))

    def rearm(self) -> None:
        """Has the scheduler look again, once the records are durable."""
        self._queue.release(self._scheduler.rearm)

    def skip_missed(self, pending: Pending) -> bool:
        """Whether one became due while the gateway was off and is not wanted then. It is cancelled in that case."""
        name, policy = pending.timer.id, pending.timer.missed
        missed = self.delayed.miss_of(name)
        if missed is None:
            return False
        logger.info("delayed update missed", id=name, due=missed.due, late_s=f"{missed.late_s:.3f}", policy=policy)
        if policy == "run":
            return False
        self.cancel(name, Cause("missed", name))
        self._queue.counters.delayed_skipped += 1
        return True
