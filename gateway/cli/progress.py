"""A progress bar on standard error, at a terminal only."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

_WIDTH = 30
_DRAWN_S = 0.1
"""Shortest time between two drawings."""


class ProgressBar:
    """what: is done; unit: of the count, such as "quads"; total: 0 if it is not known."""

    def __init__(self, what: str, unit: str, total: int = 0) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._shown = sys.stderr.isatty()
        self._drawn_at = -_DRAWN_S
        self.done = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")  # what follows has the line for itself
            sys.stderr.flush()

    def advance(self, count: int) -> None:
        self.done += count
        if self._shown and (now := time.monotonic()) - self._drawn_at >= _DRAWN_S:
            self._drawn_at = now
            sys.stderr.write(f"\r{self.line()}\x1b[K")
            sys.stderr.flush()

    def line(self) -> str:
        """`load a.ttl [#####     ]  50 %  1,000 of 2,000 quads`."""
        if not self._total:
            return f"{self._what}  {self.done:,} {self._unit}"
        part = min(self.done / self._total, 1.0)
        bar = "#" * int(part * _WIDTH)
        return f"{self._what} [{bar:<{_WIDTH}}] {part:4.0%}  {self.done:,} of {self._total:,} {self._unit}"

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks; counts their bytes."""
        for chunk in chunks:
            yield chunk
            self.advance(len(chunk))


class ReadFile(io.FileIO):
    """A file that counts the bytes that are read from it."""

    def __init__(self, path: Path, bar: ProgressBar) -> None:
        super().__init__(path)
        self._bar = bar

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._bar.advance(len(data))
        return data
