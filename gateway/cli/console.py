"""What commands print and ask: tables, JSON, the confirmation before what cannot be undone, progress bars."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.texts import cut, printable

CELL_CHARACTERS_MAX = 60


def print_json(value: object) -> None:
    """Prints JSON in ASCII, on one line. Control characters are escaped."""
    print(json.dumps(value).replace("\x7f", "\\u007f"))


def print_result(options: argparse.Namespace, value: object, text: str | Iterable[str]) -> None:
    """Prints the result of a command: with `--json` the value, otherwise a text, or lines, which are made only then."""
    if options.json:
        print_json(value)
    else:
        for line in [text] if isinstance(text, str) else text:
            print(line)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def shorten(text: str) -> str:
    """A text of a client or device for a cell of a table: without control sequences, and cut if it is long."""
    return cut(printable(text), CELL_CHARACTERS_MAX)


def plain_line(text: str) -> str:
    """On one line, without control sequences."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def confirm(question: str, *, yes: bool) -> bool:
    """True with `--yes`, or if the user at the terminal agrees. Raises ConfigurationError without a terminal."""
    if yes:
        return True
    # Input from a pipe is not read: it may be meant for the command itself.
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} There is no terminal for the answer; add --yes to confirm")
    try:
        agreed = ask(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # control and D
        agreed = False
    if not agreed:
        print("nothing was changed", file=sys.stderr)
    return agreed


def ask(question: str) -> str:
    """What the user types. The question goes to standard error: standard output may be a pipe. Raises EOFError."""
    print(question, end="", file=sys.stderr, flush=True)
    try:
        return input()
    except EOFError:
        print(file=sys.stderr)
        raise


_WIDTH = 30
_DRAWN_S = 0.1  # shortest time between two drawings


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
