"""Exceptions that nobody expected while a message was read: a fault of this program, for the log.

The message is dropped. If the exception ended the adapter, the same message could end it again after each start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lamplighter.engine.errors import PayloadError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

T = TypeVar("T")


class Failures:
    """The places of the code that failed; the log has the stack trace of the first failure of each. kind: of the
    adapter, such as "mqtt"."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._places: set[tuple[str, int]] = set()

    def guarded(self, topic: str, read: Callable[[], T]) -> T | list[PayloadError]:
        """What reading a message returns, or a list with the error to say of it."""
        try:
            return read()
        except Exception as error:
            return [self.payload_error(topic, error)]

    def payload_error(self, topic: str, error: Exception) -> PayloadError:
        """Logs an exception that is being handled. Returns what to say of the message."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        if place not in self._places:
            self._places.add(place)
            logger.exception(f"{self._kind} message failed", topic=topic[:200])
        return PayloadError(
            f"this message cannot be read, by a fault of the adapter ({type(error).__name__}); see its log"
        )
