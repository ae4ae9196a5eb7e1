"""Log events: a name and its fields, by the standard `logging`.

>>> log = EventLogger("example")
>>> log.info("subscription ended", spuid="23885343", reason="the client is away")
>>> str(Event("subscription ended", {"spuid": "23885343", "reason": "the client is away"}))
'subscription ended spuid=23885343 reason="the client is away"'

`engine.client`, the adapters, `cloud_sync` and `gateway` log by it; the rest of the engine returns facts and does not
log. A handler that stores fields reads them from the `Event`, which is the message of the record.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping

# How many frames the caller of `EventLogger.info` is above the call of `logging`.
_CALLER = 3
# Frames of a stack trace in the log: the innermost ones. A recursion that ran out of stack has a thousand.
FRAMES_MAX = 40


class Event:
    """What happened, in a few words that never change, and its fields in the order given.

    Fields that are None are left out. The text is made only when a handler asks for it.
    """

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = {key: value for key, value in fields.items() if value is not None}

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={_quote(str(value))}" for key, value in self.fields.items())])


class EventLogger:
    """Logs events under a name, usually that of the module.

    exc_info: an exception whose stack trace is logged as well; True for the exception that is being handled. The
    exception keeps no more than `FRAMES_MAX` frames.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        self._log(logging.WARNING, event, fields, exc_info)

    def error(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        self._log(logging.ERROR, event, fields, exc_info)

    def exception(self, event: str, /, **fields: object) -> None:
        """An error with the stack trace of the exception that is being handled."""
        self._log(logging.ERROR, event, fields, True)

    def _log(
        self, level: int, event: str, fields: Mapping[str, object], exc_info: BaseException | bool | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            _shorten(sys.exc_info()[1] if exc_info is True else exc_info)
            self._logger.log(level, Event(event, fields), exc_info=exc_info, stacklevel=_CALLER)


def _shorten(error: BaseException | bool | None) -> None:
    """Takes the outer frames of a long stack trace from an exception, and from those that caused it."""
    shortened: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in shortened:
        shortened.add(id(error))
        frame, count = error.__traceback__, 0
        while frame is not None:
            frame, count = frame.tb_next, count + 1
        for _ in range(count - FRAMES_MAX):
            assert error.__traceback__ is not None
            error.__traceback__ = error.__traceback__.tb_next
        error = error.__cause__ or error.__context__


def _quote(text: str) -> str:
    """A value on one line and in one piece: as a JSON string unless it is a plain word."""
    if text.isprintable() and text and not any(sign in ' "=' for sign in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
