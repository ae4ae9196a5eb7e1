"""The landing log of a lake: what has landed, in the order of landing, by ascending numbers.

`<lake>/landings/<first>.ndjson` has one line for each number from <first> on, without a hole, `LINES_A_FILE` at most.
So the place of a number is computed, and whether something is new costs one look at one file. The collector appends.
A line without a segment is of a file that is gone: its gateway is forgotten, or retention has removed it.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import msgspec

from lamplighter.cloud_sync.fleet.lake.folder import Lake
from lamplighter.engine.errors import ConfigurationError

FOLDER = "landings"
LINES_A_FILE = 10_000


class LandingLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line. segment: `<gateway>/<name>`, "" for one that is gone; at: when it landed, RFC 3339."""

    number: int
    segment: str = ""
    at: str = ""


_decode = msgspec.json.Decoder(LandingLine).decode


def file_name(number: int) -> str:
    """The file that has a number."""
    return f"{(number - 1) // LINES_A_FILE * LINES_A_FILE + 1:012d}.ndjson"


class LandingLog:
    """Reads the log of a lake. The place of the last line that was read is remembered, in bytes."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._place = 0, 0  # a number, and where its line ends in its file

    def exists(self) -> bool:
        """Whether a collector that gives numbers works on the lake."""
        return self._size(self._path(1)) is not None

    def after(self, number: int, limit: int) -> list[LandingLine]:
        """The next lines, `limit` at most; none if nothing has landed since. Raises ConfigurationError, OSError."""
        found: list[LandingLine] = []
        while len(found) < limit:
            lines = self._lines(number + len(found), limit - len(found))
            found += lines
            # The rest is in the next file.
            if not lines or (number + len(found)) % LINES_A_FILE:
                break
        return found

    def last(self) -> int:
        """The number of the last line; 0 without a log."""
        firsts = [name.removesuffix(".ndjson") for name in self._lake.names(FOLDER)]
        first = max((int(name) for name in firsts if name.isdecimal()), default=1)
        return first - 1 + len(self.after(first - 1, LINES_A_FILE))

    def numbers(self, segments: Container[str]) -> dict[str, int]:
        """The numbers of some segments, as far as the log has them. Reads the whole log. Raises as `after`."""
        found: dict[str, int] = {}
        number = 0
        while lines := self.after(number, LINES_A_FILE):
            found.update((one.segment, one.number) for one in lines if one.segment in segments)
            number = lines[-1].number
        return found

    def blank(self, leaves: Callable[[str], bool]) -> None:
        """Takes the names of some segments out of the log. No other process may read or write it."""
        for name in self._lake.names(FOLDER):
            before = self._lake.fs.cat_file(self._lake.path(FOLDER, name)).splitlines(keepends=True)
            after = [_blank(line) if leaves(_line(line, name).segment) else line for line in before]
            if after != before:
                self._lake.write(b"".join(after), FOLDER, name)
        self._place = 0, 0

    def _lines(self, number: int, limit: int) -> list[LandingLine]:
        """As `after`, from one file."""
        path = self._path(number + 1)
        known, offset = self._place
        if known != number or number % LINES_A_FILE == 0:
            offset = 0
        try:
            size = self._size(path) or 0
            if offset and size == offset:
                return []
            if size < offset:  # the log was written again, and files are gone since
                offset = 0
            data = self._lake.fs.cat_file(path, start=offset)
        except FileNotFoundError:
            return []
        lines = data.splitlines(keepends=True)
        skipped = 0 if offset else number % LINES_A_FILE
        if lines and not lines[-1].endswith(b"\n"):  # being written
            del lines[-1]
        chosen = lines[skipped : skipped + limit]
        found = [_line(line, path) for line in chosen]
        if [one.number for one in found] != list(range(number + 1, number + 1 + len(found))):
            raise ConfigurationError(
                f"{path}: its lines are not those of the numbers from {number + 1} on; remove the folder, and the next "
                "round of collect writes it again"
            )
        if found:
            self._place = found[-1].number, offset + sum(map(len, lines[: skipped + len(chosen)]))
        elif not offset:
            self._place = number, sum(map(len, lines[:skipped]))
        return found

    def _size(self, path: str) -> int | None:
        """The size of a file; None if it does not exist."""
        try:
            # Otherwise s3fs answers from an earlier listing.
            return int(self._lake.fs.info(path, refresh=True)["size"])
        except FileNotFoundError:
            return None

    def _path(self, number: int) -> str:
        return self._lake.path(FOLDER, file_name(number))


def _blank(line: bytes) -> bytes:
    return msgspec.json.encode(LandingLine(_decode(line).number)) + b"\n"


def _line(line: bytes, place: str) -> LandingLine:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{place}: not a line of the landing log: {error}; remove the folder, and the next round of collect "
            "writes it again"
        ) from error
