"""Sealing: finished segments become small, complete files, each with the hash of its predecessor.

Compressed in one frame, they take two thirds of the bytes. A sealed segment never changes. Its seal is a file beside it
and is written last; after a crash, an unfinished sealing is done again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
import zstandard

from lamplighter.engine.change_log import VERSION, Seal, SegmentName, place, seal_name, segment_name
from lamplighter.engine.change_log.frames import SEALED
from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.reader import CheckedLines, Segment, ends, seal_of, segments


def unsealed_segments(folder: Path, current: SegmentName | None, epoch: int, sequence: int) -> list[Segment]:
    """Segments to be sealed, oldest first. current: is being written; epoch, sequence: of the last record."""
    # A segment that begins behind it has no records, and the next segment may take its name.
    return [
        segment
        for segment in segments(folder)
        if not segment.is_sealed and segment.name != current and segment.begin <= (epoch, sequence)
    ]


def superseded_files(folder: Path) -> list[Path]:
    """Files of segments that are already sealed; the sealing was interrupted before the last step."""
    whole = {segment.begin for segment in segments(folder) if segment.is_sealed}
    names = [(path, segment_name(path.name)) for path in folder.iterdir()]
    return [path for path, name in names if name and name.last is None and (name.epoch, name.first) in whole]


def seal(disk: Disk, folder: Path, segment: Segment) -> Seal | None:
    """Seals a segment whose records are durable; None if it has none and was removed. Raises OSError, and
    ChangeLogError when the segment has lost records since they were written."""
    found = segments(folder)
    number = [other.begin for other in found].index(segment.begin)
    lines = CheckedLines(segment, ends(found).get(segment.name.epoch))
    compressed = _Compressed(lines)
    data = compressed.data()
    if not compressed.count:
        disk.remove(segment.path)
        return None
    gateway, epoch, first = place(compressed.first)
    _, _, last = place(compressed.last)
    after = found[number + 1] if number + 1 < len(found) else None
    next_ = None if after is None or after.name.epoch != epoch else after.name.first
    # Numbers without gaps, up to the next segment: else the card has lost something, and the seal would hide it.
    if compressed.count != last - first + 1 or (next_ is not None and last != next_ - 1):
        why = lines.reason or "the file is whole"
        raise ChangeLogError(
            f"records are missing behind {last}, where {next_} should follow: {why}",
            path=segment.path,
            hint="the card may be failing; keep a backup",
        )
    # Seals are a chain: the fleet sees a segment that is lacking or was replaced.
    previous = seal_of(found[number - 1]) if number else None
    name = SegmentName(epoch, first, last)
    sealed = Seal(
        v=VERSION,
        gw=gateway,
        epoch=epoch,
        first=first,
        last=last,
        count=compressed.count,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        previous=None if previous is None else previous.sha256,
    )
    # Segment, seal, and then the original goes: after a crash at any place `segments` finds a whole one.
    disk.write_file(folder / str(name), [data])
    disk.write_file(folder / seal_name(name), [msgspec.json.encode(sealed) + b"\n"])
    disk.remove(segment.path)
    return sealed


class _Compressed:
    """Lines in one frame; the lines, ten times as large, are never in memory together."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.first = self.last = b""
        self.count = 0

    def data(self) -> bytes:
        compressor = zstandard.ZstdCompressor(compression_params=SEALED).compressobj()
        parts = []
        for line in self._lines:
            self.first, self.last, self.count = self.first or line, line, self.count + 1
            if part := compressor.compress(line + b"\n"):
                parts.append(part)
        return b"".join([*parts, compressor.flush()])
