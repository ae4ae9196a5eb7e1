"""The only place of the running gateway that appends to the change log.

Each record that is appended is followed by what the gateway knows (`Knowledge`) before anything else happens. The gap
record that begins an epoch is the exception: the log writes it itself, and recovery has drawn its conclusions already.
"""

from __future__ import annotations

from datetime import datetime

from lamplighter.engine.change_log import Record
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.failures import behind_its_log
from lamplighter.gateway.state.knowledge import Knowledge


class Journal:
    """Appends records and has them followed."""

    def __init__(self, log: LogWriter, knowledge: Knowledge) -> None:
        self.log = log
        self.knowledge = knowledge

    def append(self, entry: LogEntry, now: datetime | None = None, trusted: bool | None = None) -> Record:
        """The record that was appended. now, trusted: as `LogWriter.append`.

        Raises ChangeLogError and LimitExceededError when nothing was appended, BrokenEngineError when the record
        cannot be followed.
        """
        record = self.log.append(entry, now, trusted)
        try:
            self.knowledge.follow(record)
        except Exception as error:
            raise behind_its_log(error) from error
        return record
