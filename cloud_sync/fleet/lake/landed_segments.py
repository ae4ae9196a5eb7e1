"""Landed segments of a lake: files, and packs of many.

`<lake>/segments/<gateway>/<day>-<number>.zip` is a pack: segments that landed on a day, under the names of their files.
They are stored as they are, because they are compressed; the comment of each has the time of its landing, in seconds
since 1970. `compact` packs what is in bronze. The collector still compares later deliveries with it.

A pack is whole before the files of its segments are removed, and never changes. A kill may leave a segment twice: then
the file counts, and of several packs the last one. The comment of the pack is the CRC-32 of its list of members: a ZIP
file has none, and a segment whose name is damaged would look like one that retention has removed.
"""

from __future__ import annotations

import errno
import io
import os
import re
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from lamplighter.cloud_sync.files import open_plain
from lamplighter.cloud_sync.fleet.lake.folder import Lake, LockLostError
from lamplighter.engine.change_log import segment_name
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.tables import count_text

FOLDER = "segments"
# A pack is in memory while it is written. Larger segments stay files.
PACK_BYTES_MAX = 64 * 1024**2
SEGMENT_BYTES_MAX = 8 * 1024**2
# Names of members that a process remembers.
KNOWN_MAX = 200_000
_PACK = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})-([0-9]{1,6})\.zip")


class _PackMember(NamedTuple):
    """landed: seconds since 1970; at: of its content in the pack."""

    landed: float
    at: int
    size: int
    crc: int


class LandedSegments:
    """Finds, reads and packs them. Names are `<gateway>/<file>`. Raises OSError; UpstreamError for a damaged pack."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        # The members of packs, by gateway and pack.
        self._known: dict[tuple[str, str], dict[str, _PackMember]] = {}
        self._known_count = 0

    def names(self, *, packs: bool = True) -> Iterator[str]:
        """All of them, by gateway. packs: also those in packs, each of which is opened."""
        for gateway in self._lake.names(FOLDER):
            files = self._lake.names(FOLDER, gateway)
            found = {name for name in files if segment_name(name) is not None}
            if packs:
                found.update(name for pack in _packs(files) for name in self._members(gateway, pack))
            yield from (f"{gateway}/{name}" for name in sorted(found))

    def open(self, segment: str) -> BinaryIO | None:
        """A segment for reading; None if it is not there."""
        gateway, _, name = segment.partition("/")
        for _ in range(2):  # between two looks it may be packed
            try:
                return self._open(gateway, name)
            except FileNotFoundError:
                pass
            if pack := self._pack_of(gateway, name):
                return io.BytesIO(self._content(gateway, pack, name))
        return None

    def read(self, segment: str) -> bytes:
        """The content of a segment. Raises FileNotFoundError."""
        file = self.open(segment)
        if file is None:
            raise FileNotFoundError(2, os.strerror(2), self._path(*segment.split("/")))
        with file:
            return file.read()

    def has(self, segment: str) -> bool:
        gateway, _, name = segment.partition("/")
        place = FOLDER, gateway, name
        # Between two looks it may be unpacked.
        return self._lake.exists(*place) or self._pack_of(gateway, name) is not None or self._lake.exists(*place)

    def has_packs(self) -> bool:
        return any(_packs(self._lake.names(FOLDER, gateway)) for gateway in self._lake.names(FOLDER))

    def unpack(self, segment: str) -> bool:
        """Makes a file of a packed segment, with the time of its landing. False: it is in no pack."""
        gateway, _, name = segment.partition("/")
        pack = self._pack_of(gateway, name)
        if pack is not None:
            self._unpack(gateway, pack, name)
        return pack is not None

    # --- changes: one process at a time ---

    def unpack_all(self, say: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Makes files of all packed segments, and removes the packs. check: as in `pack`."""
        count = 0
        for gateway in self._lake.names(FOLDER):
            there = self._lake.names(FOLDER, gateway)
            packs = _packs(there)
            counting = {name: pack for pack in packs for name in self._members(gateway, pack)}
            for name in sorted(counting.keys() - set(there)):  # a file counts
                check()
                self._unpack(gateway, counting[name], name)
                count += 1
            for pack in packs:
                check()
                self._lake.remove(FOLDER, gateway, pack)
        self._forget_known()
        say(f"segments: {count_text(count, 'file')} unpacked")

    def pack(
        self,
        chosen: Container[str],
        now: float | None = None,
        say: Callable[[str], None] = lambda line: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Packs the chosen segments that landed before today. check: raises if another process may write."""
        today, count = _day(time.time() if now is None else now), 0
        for gateway in self._lake.names(FOLDER):
            by_day: dict[str, list[tuple[str, float]]] = {}
            for name in self._lake.names(FOLDER, gateway):
                if segment_name(name) is None or f"{gateway}/{name}" not in chosen:
                    continue
                landed = self._lake.modification_time(FOLDER, gateway, name)
                if landed is not None and _day(landed) < today:
                    by_day.setdefault(_day(landed), []).append((name, landed))
            for day, some in sorted(by_day.items()):
                count += self._pack_day(gateway, day, some, check)
        if count:
            say(f"segments: {count_text(count, 'file')} packed")

    def drop(self, gateway: str, leaves: Callable[[str], bool]) -> None:
        """Removes members of packs, by the names of their files, and those that do not count."""
        packs = _packs(self._lake.names(FOLDER, gateway))
        # Of several packs the last one counts: a repetition after a kill finds the others in the one made for them.
        counting = {name: pack for pack in packs for name in self._members(gateway, pack)}
        for pack in packs:
            members = self._members(gateway, pack)
            kept = [one for one in members if not leaves(one) and counting[one] == pack]
            if len(kept) == len(members):
                continue
            if kept:
                content = [(one, self._content(gateway, pack, one), members[one].landed) for one in kept]
                self._write(gateway, pack[:10], content)
            self._lake.remove(FOLDER, gateway, pack)
        self._forget_known()

    def _unpack(self, gateway: str, pack: str, name: str) -> None:
        # The time is set before the file counts: a repetition after a kill leaves files as they are.
        landed = self._members(gateway, pack)[name].landed
        self._lake.write(self._content(gateway, pack, name), FOLDER, gateway, name, modified=landed)

    def _pack_day(self, gateway: str, day: str, some: list[tuple[str, float]], check: Callable[[], None]) -> int:
        """Packs some files of a day. Returns how many."""
        content: list[tuple[str, bytes, float]] = []
        count = size = 0
        packs = [one for one in _packs(self._lake.names(FOLDER, gateway)) if one.startswith(day)]
        packed = {name: pack for pack in packs for name in self._members(gateway, pack)}
        for name, landed in some:
            data = self._lake.content(FOLDER, gateway, name)
            pack = packed.get(name)
            if pack is not None and self._content(gateway, pack, name) == data:
                self._lake.remove(FOLDER, gateway, name)  # a kill has left it
            elif len(data) <= SEGMENT_BYTES_MAX:
                if size + len(data) > PACK_BYTES_MAX:
                    count += self._replace(gateway, day, content, check)
                    content, size = [], 0
                content.append((name, data, landed))
                size += len(data)
        return count + self._replace(gateway, day, content, check)

    def _replace(
        self, gateway: str, day: str, content: list[tuple[str, bytes, float]], check: Callable[[], None]
    ) -> int:
        """Writes a pack, and removes the files. One file alone stays."""
        if len(content) < 2:
            return 0
        check()
        self._write(gateway, day, content)
        for name, _, _ in content:
            self._lake.remove(FOLDER, gateway, name)
        return len(content)

    def _write(self, gateway: str, day: str, content: list[tuple[str, bytes, float]]) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as pack:
            for name, data, landed in content:
                info = zipfile.ZipInfo(name, datetime.fromtimestamp(max(landed, _ZIP_BEGIN), UTC).timetuple()[:6])
                info.comment = repr(landed).encode()
                pack.writestr(info, data)
            pack.comment = _comment(pack)
        packs = _packs(self._lake.names(FOLDER, gateway))
        number = 1 + max((_number(one) for one in packs if one.startswith(day)), default=0)
        name = f"{day}-{number}.zip"
        # A process that was paused until its lease was lost must not replace a pack of another one.
        mark = "" if self._lake.local else None
        if self._lake.write_if(file.getvalue(), mark, FOLDER, gateway, name) is None:
            raise LockLostError(f"{self._path(gateway, name)}: another process has written it; run the command again")

    # --- packs ---

    def _pack_of(self, gateway: str, name: str) -> str | None:
        """The pack whose member counts."""
        packs = _packs(self._lake.names(FOLDER, gateway))
        return next((pack for pack in reversed(packs) if name in self._members(gateway, pack)), None)

    def _members(self, gateway: str, pack: str) -> dict[str, _PackMember]:
        found = self._known.get((gateway, pack))
        if found is None:
            found = self._list_of(gateway, pack)
            self._known_count += len(found)
            if self._known_count > KNOWN_MAX:
                self._forget_known()
                self._known_count = len(found)
            self._known[gateway, pack] = found
        return found

    def _forget_known(self) -> None:
        self._known, self._known_count = {}, 0

    def _content(self, gateway: str, pack: str, name: str) -> bytes:
        # Without zipfile, which reads the list of all members each time.
        member = self._members(gateway, pack)[name]
        with self._open(gateway, pack) as file:
            file.seek(member.at)
            data = file.read(member.size)
        if zlib.crc32(data) != member.crc:
            raise self._error(gateway, pack, f"{name} in the pack", "its checksum does not match")
        return data

    def _list_of(self, gateway: str, pack: str) -> dict[str, _PackMember]:
        try:
            with self._open(gateway, pack) as file, zipfile.ZipFile(file) as content:
                if content.comment != _comment(content):
                    raise zipfile.BadZipFile("the list of its members is damaged")
                return {
                    one.filename: _PackMember(
                        float(one.comment),
                        one.header_offset + zipfile.sizeFileHeader + len(one.filename),  # type: ignore[attr-defined]
                        one.file_size,
                        one.CRC,
                    )
                    for one in content.infolist()
                }
        # The others are of damaged flags and lengths; EINVAL of a place before the begin.
        except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OSError, struct.error) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise self._error(gateway, pack, "the pack", str(error)) from error

    def _error(self, gateway: str, pack: str, what: str, why: str) -> UpstreamError:
        return UpstreamError(
            f"{self._path(gateway, pack)}: {what} is damaged: {why}; restore it from a backup, or unpack it in its "
            "folder (TZ=UTC unzip -n), and remove it and the segments that unzip finds damaged"
        )

    def _open(self, gateway: str, name: str) -> BinaryIO:
        path = self._path(gateway, name)
        return open_plain(Path(path)) if self._lake.local else cast(BinaryIO, self._lake.fs.open(path, "rb"))

    def _path(self, *parts: str) -> str:
        return self._lake.path(FOLDER, *parts)


def _comment(pack: zipfile.ZipFile) -> bytes:
    """The checksum of the list of members."""
    listed = [(one.filename, one.header_offset, one.file_size, one.CRC, one.comment) for one in pack.infolist()]
    return b"crc32 %08x" % zlib.crc32(repr(listed).encode())


_ZIP_BEGIN = datetime(1980, 1, 1, tzinfo=UTC).timestamp()


def _packs(names: list[str]) -> list[str]:
    """The packs among some files, in the order in which they were made."""
    return sorted((name for name in names if _PACK.fullmatch(name)), key=lambda name: (name[:10], _number(name)))


def _number(pack: str) -> int:
    return int(pack[11:].partition(".")[0])


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
