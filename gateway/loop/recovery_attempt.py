"""Starts that fail because a record or a snapshot cannot be applied: what each try teaches the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.log.reader import UnreplayableRecord
from lamplighter.gateway.log.snapshots import Place, label

logger = EventLogger(__name__)

T = TypeVar("T")

_TRIES_MAX = 6
"""Tries of one start: two of them for each thing that cannot be applied, and one more for each further one."""
_REASON_CHARACTERS_MAX = 300


class ReplayError(Exception):
    """A record, or a snapshot, cannot be applied; the state is of no use any more. place: where it stands."""

    def __init__(self, place: Place, *, snapshot: bool, error: Exception) -> None:
        what = "snapshot" if snapshot else "record"
        super().__init__(f"{what} {label(place)} cannot be applied: {error!r}"[:_REASON_CHARACTERS_MAX])
        self.place = place
        self.snapshot = snapshot


@dataclass(frozen=True)
class RecoveryAttempt:
    """What the tries of a start before this one have taught.

    careful: each record is written to the store at once, so that it is known which one cannot be; a store on disk is
    built anew. record, snapshots: what cannot be applied. tries: how many there were.
    """

    careful: bool = False
    record: UnreplayableRecord | None = None
    snapshots: Mapping[Place, str] = field(default_factory=dict)
    tries: int = 0

    def next(self, error: ReplayError, log: Path) -> RecoveryAttempt:
        """What is known after another one. The first failure only switches to careful mode: it may be transient.

        log: for the message. Raises ChangeLogError when there have been too many.
        """
        if self.tries >= _TRIES_MAX:
            hint = "is there enough memory? `lamplighter verify` has details; else restore a backup into another folder"
            raise ChangeLogError(str(error), path=log, hint=hint) from error
        if not self.careful:
            return replace(self, careful=True, tries=self.tries + 1)
        if error.snapshot:
            return replace(self, snapshots={**self.snapshots, error.place: str(error)}, tries=self.tries + 1)
        return replace(self, record=UnreplayableRecord(error.place, str(error)), tries=self.tries + 1)


def recover_with_retries(start: Callable[[RecoveryAttempt], T], log: Path) -> T:
    """What a start gives, tried until every record and snapshot that it uses can be applied.

    start: makes everything anew and recovers it, with what the tries before have taught. log: for messages. Raises what
    `start` does, and ChangeLogError in the place of ReplayError after some tries.
    """
    attempt = RecoveryAttempt()
    while True:
        try:
            return start(attempt)
        except ReplayError as error:
            attempt = attempt.next(error, log)
            logger.error("recovery restarted", reason=error)
