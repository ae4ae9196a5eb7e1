"""Numbers of landed files, and the landing log in the lake, which ingest reads from its frontier on.

The ledger gives each file a number in the transaction that lands it. Numbers ascend, and none is given out twice. The
log (`lake.landings`) is a copy of them for readers, who may be on other machines: it is written after the files are in
place, so a reader finds each file. A collector that was killed leaves at most a shorter log, or a torn last line.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.files import opened_folder, sync_folder
from lamplighter.cloud_sync.fleet.collection.ledger import Landed
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.landings import FOLDER, LINES_A_FILE, LandingLine, file_name

_APPEND = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LANDED = "s.gw, s.epoch, s.first, s.last, s.source, s.at, s.ts"


class LandingNumbers:
    """The table `landings` of the ledger. Changes belong into a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, gw: str, epoch: int, first: int) -> None:
        # An earlier version that has forgotten the gateway has left the old number.
        self._db.execute("INSERT OR REPLACE INTO landings (gw, epoch, first) VALUES (?, ?, ?)", (gw, epoch, first))

    def add_missing(self) -> None:
        """Numbers what a collector has landed that gave no numbers, in the order of the times."""
        self._db.execute(
            "INSERT INTO landings (gw, epoch, first) SELECT gw, epoch, first FROM segments AS s WHERE NOT EXISTS "
            "(SELECT 1 FROM landings AS n WHERE n.gw = s.gw AND n.epoch = s.epoch AND n.first = s.first) "
            "ORDER BY at, gw, epoch, first"
        )

    @property
    def last(self) -> int:
        """The last number that was given out; 0 before the first."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'landings'").fetchone()
        return 0 if row is None else int(row[0])

    def continue_after(self, number: int) -> None:
        """Gives out only greater numbers. No effect if that is so already."""
        if number > self.last:
            self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'landings'")
            self._db.execute("INSERT INTO sqlite_sequence VALUES ('landings', ?)", (number,))

    def between(self, after: int, last: int) -> Iterator[tuple[int, Landed]]:
        """The files with numbers in (after, last], ascending. Those of forgotten gateways are not there."""
        rows = self._db.execute(
            f"SELECT n.number, {_LANDED} FROM landings AS n JOIN segments AS s USING (gw, epoch, first) "
            "WHERE n.number > ? AND n.number <= ? ORDER BY n.number",
            (after, last),
        )
        return ((number, Landed(*row)) for number, *row in rows)


class LandingLogWriter:
    """Writes the landing log of a lake in a folder. One collector at a time does so.

    Raises OSError, and UpstreamError for a link in the place of a file.
    """

    def __init__(self, lake: Path, numbers: LandingNumbers, segments: LandedSegments) -> None:
        self._lake = lake
        self._segments = segments
        self._numbers = numbers
        self._last = self._repair()
        self._sizes = self._sizes_now()

    def write(self) -> None:
        """Appends what has landed since the last call, durably. The files must be in place."""
        # Somebody may have removed the log, and an error of the disk may have left a part of the last lines.
        if self._sizes_now() != self._sizes:
            self._last = self._repair()
        while (last := min(self._numbers.last, _last_of_file(self._last + 1))) > self._last:
            self._append(last)
        self._sizes = self._sizes_now()

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self._last

    def _append(self, last: int) -> None:
        """Appends the lines up to a number, all of which are in one file."""
        landed = dict(self._numbers.between(self._last, last))
        lines = []
        for number in range(self._last + 1, last + 1):
            one = landed.get(number)
            if one is not None and self._segments.has(one.segment):
                lines.append(msgspec.json.encode(LandingLine(number, one.segment, one.at)) + b"\n")
            else:  # the gateway is forgotten, or retention has removed the file
                lines.append(msgspec.json.encode(LandingLine(number)) + b"\n")
        name = file_name(self._last + 1)
        with opened_folder(self._lake, [FOLDER], make=True) as folder:
            descriptor = os.open(name, _APPEND, 0o644, dir_fd=folder)
            try:
                content = b"".join(lines)
                begin = os.lseek(descriptor, 0, os.SEEK_END)
                if os.write(descriptor, content) < len(content):
                    os.ftruncate(descriptor, begin)
                    raise OSError(28, os.strerror(28), str(self._lake / FOLDER / name))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(self._lake / FOLDER)
        self._last = last

    def _sizes_now(self) -> list[int]:
        """The sizes of the files with the last line and with the next one; -1 for one that is missing."""
        paths = [self._lake / FOLDER / file_name(number) for number in (max(self._last, 1), self._last + 1)]
        return [path.lstat().st_size if path.exists() else -1 for path in paths]

    def _repair(self) -> int:
        """Removes a torn last line. Returns the number of the last line; 0 without a log."""
        try:
            names = sorted(one.name for one in (self._lake / FOLDER).iterdir())
        except FileNotFoundError:
            return 0
        for name in reversed(names):
            first = name.partition(".")[0]
            if not first.isdecimal() or name != file_name(int(first)):
                continue
            with opened_folder(self._lake, [FOLDER]) as folder:
                descriptor = os.open(name, _APPEND, dir_fd=folder)
                with os.fdopen(descriptor, "r+b") as file:
                    content = file.read()
                    whole = content.rfind(b"\n") + 1
                    file.truncate(whole)
                    os.fsync(descriptor)
            return int(first) - 1 + content.count(b"\n")
        return 0


def _last_of_file(number: int) -> int:
    """The last number of the file that has a number."""
    return (number - 1) // LINES_A_FILE * LINES_A_FILE + LINES_A_FILE
