"""Lines in zstd frames that can be read up to any point of damage, while they are being written, too.

Each line is flushed, so it ends a block (RFC 8878, 3.1.1.2), and a frame is ended after some kilobytes, so
that what comes after damage can be read again. `zstdcat` reads such a file; one that was not closed ends in an
unfinished frame, of which it shows all lines and then complains.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

import zstandard

FRAME_BYTES = 8 * 1024
"""After so many a frame is ended: that costs a few per cent, and one bad bit makes no more than that unreadable."""
LIVE_LEVEL = 1
SEALED = zstandard.ZstdCompressionParameters.from_level(9, window_log=20, hash_log=17, chain_log=17)
"""Of sealed segments: as small as level 9 makes them, with 2 MB of memory instead of 14."""
CLOSED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00end\n"
"""A skippable frame (RFC 8878, 3.1.2) that ends a file whose writer took its leave: all before it is durable."""
_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_MAX = 128 * 1024
_READ_BYTES = 1024
"""At once of a whole frame: a block says in four bytes what unpacked are 128 KiB, so this is at most 32 MiB."""
_WINDOW_MAX = 128 * 1024 * 1024
_RLE = 1


class FrameWriter:
    """Lines -> bytes to append to a file. What was given out must be written, in order; else begin a new file."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=LIVE_LEVEL, write_content_size=False)
        self._frame: zstandard.ZstdCompressionObj | None = None
        self._bytes = 0

    @property
    def at_start(self) -> bool:
        """Whether the next line begins a frame."""
        return self._frame is None or self._bytes >= FRAME_BYTES

    def add(self, line: bytes) -> bytes:
        """The bytes of a line, with which it can be read."""
        ended = self.end() if self.at_start else b""
        if self._frame is None:
            self._frame = self._compressor.compressobj()
        data = self._frame.compress(line) + self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        self._bytes += len(data)
        return ended + data

    def end(self) -> bytes:
        """The bytes that end the frame."""
        if self._frame is None:
            return b""
        data = self._frame.flush()
        self._frame, self._bytes = None, 0
        return data


class Tail(NamedTuple):
    """What comes after the lines that could be read. offset: where it begins; reason: what is wrong, "" if nothing is;
    blocks: how many blocks follow that are all there by their headers, the bad one included."""

    offset: int
    reason: str
    blocks: int


class FrameReader:
    """Iterates over the lines of a file's bytes, up to its end or the first damage; then `tail` says what follows."""

    def __init__(self, data: bytes) -> None:
        self.closed = data.endswith(CLOSED)
        """Whether the file ends in `CLOSED`."""
        self._data = data[: -len(CLOSED)] if self.closed else data
        self._good = 0  # where the lines end that were given out before those of this block
        self._block = 0  # where this block begins
        self.tail = Tail(0, "", 0)

    def __iter__(self) -> Iterator[bytes]:
        """Lines without their newlines."""
        data, offset = self._data, 0
        rest: list[bytes] = []  # of a line that goes on in the next block
        while offset < len(data):
            self._block = offset
            header = _header_size(data, offset)
            if header is None:
                self.stop("no zstd frame begins here")
                return
            frame = zstandard.ZstdDecompressor().decompressobj()
            last = False
            begin, offset = offset, offset + header
            while not last:
                block = _block(data, offset)
                if block is None:
                    if offset == len(data) and not rest:
                        self.tail = Tail(offset, "", 0)
                    else:
                        self._block = offset
                        self.stop("the file breaks off")
                    return
                self._block = offset
                end, last = block
                try:
                    content = frame.decompress(data[begin:end])
                except zstandard.ZstdError as error:
                    self.stop(f"a zstd block cannot be read: {error}")
                    return
                begin = offset = end
                whole, found, after = content.rpartition(b"\n")
                if found:
                    yield from b"".join([*rest, whole]).split(b"\n")
                    rest, self._good = [], offset
                if after:
                    rest.append(after)
        if rest:
            self.stop("the last line is not complete")
        else:
            self.tail = Tail(offset, "", 0)

    def stop(self, reason: str) -> None:
        """To be called by whoever finds the line that was given out last to be wrong; iteration is over then."""
        self.tail = Tail(self._good, reason, _blocks(self._data, self._block))

    def later_lines(self) -> Iterator[bytes]:
        """Lines of the frames behind the damage, as far as there are any, whole or not."""
        data, offset = self._data, self.tail.offset
        while (offset := data.find(_MAGIC, offset + 1)) >= 0:
            header = _header_size(data, offset)
            if header is None:
                continue
            end, last = offset + header, False
            while not last and (block := _block(data, end)) is not None:
                end, last = block
            yield from FrameReader(data[offset:end])


def _header_size(data: bytes, offset: int) -> int | None:
    """The size of the frame header that begins there (RFC 8878, 3.1.1.1)."""
    if data[offset : offset + 4] != _MAGIC:
        return None
    try:
        size: int = zstandard.frame_header_size(data[offset : offset + 18])
    except zstandard.ZstdError:
        return None
    return size if offset + size <= len(data) else None


def _block(data: bytes, offset: int) -> tuple[int, bool] | None:
    """(where the block ends, whether it is the last of its frame), None if it is not all there."""
    if offset + 3 > len(data):
        return None
    header = int.from_bytes(data[offset : offset + 3], "little")
    kind, size = header >> 1 & 3, header >> 3
    end = offset + 3 + (1 if kind == _RLE else size)
    if size > _BLOCK_MAX or kind > 2 or end > len(data):
        return None
    return end, bool(header & 1)


def _blocks(data: bytes, offset: int) -> int:
    """How many blocks stand there one after the other, by their headers."""
    count, within = 0, _header_size(data, offset) is None
    while offset < len(data):
        if within:
            block = _block(data, offset)
            if block is None:
                break
            (offset, last), count = block, count + 1
            within = not last
        else:
            header = _header_size(data, offset)
            if header is None:
                break
            offset += header
            within = True
    return count


class Content(Protocol):
    """What bytes can be read from, one part after the other."""

    def read(self, size: int, /) -> bytes: ...


def frame_lines(content: Content, line_bytes_max: int, bytes_max: float = inf) -> Iterator[bytes]:
    """The lines, without their newlines, of what is one frame and ends with it, as sealed segments and snapshots do.

    Raises ValueError for anything else, and for a line, or lines together, of more bytes; OSError.
    """
    frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX).decompressobj()
    parts: list[bytes] = []
    total = size = 0
    while data := content.read(_READ_BYTES):
        if frame.eof:
            raise ValueError("something stands behind its end")
        try:
            text = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if frame.unused_data:
            raise ValueError("something stands behind its end")
        total += len(text)
        if total > bytes_max:
            raise ValueError(f"it unpacks to more than {bytes_max} bytes")
        *whole, rest = text.split(b"\n")
        if whole:
            whole[0] = b"".join([*parts, whole[0]])
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if max([size, *map(len, whole)]) > line_bytes_max:
            raise ValueError(f"a line is longer than {line_bytes_max} bytes")
        yield from whole
    if not frame.eof or size:
        raise ValueError("it breaks off")
