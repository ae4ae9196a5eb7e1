"""How far `ingest` is in the landing log, `<lake>/bronze/frontier.json`.

The manifests of bronze say what is ingested. The frontier saves reading them while nothing lands. If the file is lost
or damaged, or the log is another one, `ingest` begins at the first number and finds that it has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake
from lamplighter.cloud_sync.fleet.lake.landings import LandingLine, LandingLog

_FILE = ("bronze", "frontier.json")


class _FrontierFile(msgspec.Struct, frozen=True, kw_only=True):
    """last: the last line of the log that was looked at; unread: lines before it whose segments are not in bronze."""

    v: int = 1
    last: LandingLine = LandingLine(0)
    unread: list[LandingLine] = []


class Frontier:
    """One process at a time may change it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        try:
            self._file = msgspec.json.decode(lake.fs.cat_file(lake.path(*_FILE)), type=_FrontierFile)
        except (FileNotFoundError, ValueError):  # those of msgspec too
            self._file = _FrontierFile()

    @property
    def number(self) -> int:
        return self._file.last.number

    @property
    def unread(self) -> dict[str, LandingLine]:
        """Segments before the frontier that are not in bronze, because they could not be read."""
        return {one.segment: one for one in self._file.unread}

    def check(self, log: LandingLog) -> None:
        """Goes back to the begin if the log does not have the last line that was looked at."""
        last = self._file.last
        found = log.after(last.number - 1, 1) if last.number else []
        if last.number and [one.segment for one in found] != [last.segment]:
            self._file = msgspec.structs.replace(self._file, last=LandingLine(0))

    def advance(self, last: LandingLine | None, unread: Iterable[LandingLine]) -> None:
        """Moves behind a line, durably. None: where it is. unread: all before it. Raises OSError."""
        new = msgspec.structs.replace(self._file, unread=list(unread), last=last or self._file.last)
        if new != self._file:
            self._lake.write(msgspec.json.encode(new) + b"\n", *_FILE)
            self._file = new

    def forget(self, leaves: Callable[[str], bool]) -> None:
        """Takes the names of some segments out of the file."""
        last = self._file.last
        if leaves(last.segment):
            last = LandingLine(last.number)
        self.advance(last, [one for one in self._file.unread if not leaves(one.segment)])
