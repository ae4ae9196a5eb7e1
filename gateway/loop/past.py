"""What clients ask of the past: each request is answered by a fork that reads the data folder, never by the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import BinaryIO

import msgspec

from lamplighter.engine.change_log import decode
from lamplighter.engine.errors import ChangeLogError, UnknownResourceError
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.history.log_page import RECORDS_MAX, LogRange, page, page_of, told
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.workers.ad_hoc import Reader


class Past:
    """The past of a running gateway."""

    def __init__(self, reader: Reader, log: LogWriter, clock: Clock) -> None:
        self._reader = reader
        self._log = log
        self._clock = clock

    async def records(self, wanted: LogRange) -> bytes:
        """A page of the change log (`LogPage`) as JSON. The newest records are answered from memory.

        Raises UnknownResourceError, QueueFullError, LimitExceededError.
        """
        newest, lines = self._log.tail.acknowledged, None
        bounded = wanted.begin is not None or wanted.to is not None
        if isinstance(wanted.after, tuple) and not bounded and wanted.last is None:
            lines = self._log.tail.behind(wanted.after, RECORDS_MAX + 1)
        elif wanted.last is not None and not bounded and wanted.after is None:
            lines = self._log.tail.newest(wanted.last)
        if lines is not None:
            return _encode(page((decode(line[:-1]) for line in lines), newest, wanted.quads))
        return await self._found(lambda history: _encode(page_of(history, wanted, newest)))

    async def _found(self, find: Callable[[History], bytes]) -> bytes:
        """What a function finds in a fork."""
        answer = await self._reader.beside(partial(self._write, find))
        async with aclosing(answer.chunks()) as chunks:
            return b"".join([chunk async for chunk in chunks])

    def _write(self, find: Callable[[History], bytes], out: BinaryIO) -> None:
        try:
            found = find(History(self._log.data, self._clock))
        except ChangeLogError as error:
            raise UnknownResourceError(told(error)) from error
        out.write(b"+")
        out.write(found)


_encode = msgspec.json.Encoder().encode
