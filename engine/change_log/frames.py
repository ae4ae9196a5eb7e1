"""Lines in zstd frames: a file is readable up to any damage, also while it is written.

Each line is flushed, so it ends a block (RFC 8878, 3.1.1.2). A frame ends after some kilobytes, so that the frames
behind a damaged one are readable. `zstdcat` reads such files. A file that was not closed ends in an incomplete frame;
`zstdcat` prints its lines and then reports an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

import zstandard

# Bytes after which a frame ends. A damaged bit makes at most one frame unreadable; the frames cost a few per cent.
FRAME_BYTES = 8 * 1024
LIVE_LEVEL = 1
# Parameters for sealed segments: the size of level 9, with 2 MB of memory instead of 14 MB.
SEALED = zstandard.ZstdCompressionParameters.from_level(9, window_log=20, hash_log=17, chain_log=17)
# A skippable frame (RFC 8878, 3.1.2) at the end of a file that was closed: all lines before it are durable.
CLOSED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00end\n"
_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_MAX = 128 * 1024
# Bytes that are decompressed at once: at most 32 MiB, since four bytes may be a block of 128 KiB.
_READ_BYTES = 1024
_WINDOW_MAX = 128 * 1024 * 1024
_RLE = 1


class FrameWriter:
    """Lines -> bytes to append to a file. All returned bytes must be written in order; otherwise begin a new file."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=LIVE_LEVEL, write_content_size=False)
        self._frame: zstandard.ZstdCompressionObj | None = None
        self._bytes = 0
        # Whether the next line begins a frame.
        self.at_start = True

    def add(self, line: bytes) -> bytes:
        """The bytes to append for a line. Once they are written, the line is readable."""
        ended = self.end() if self.at_start else b""
        if self._frame is None:
            self._frame = self._compressor.compressobj()
        # A block for each record: what is written is readable up to here, without the end of the frame.
        data = self._frame.compress(line) + self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        self._bytes += len(data)
        self.at_start = self._bytes >= FRAME_BYTES
        return ended + data

    def end(self) -> bytes:
        """The bytes that end the frame."""
        if self._frame is None:
            return b""
        data = self._frame.flush()
        self._frame, self._bytes, self.at_start = None, 0, True
        return data


class Tail(NamedTuple):
    """The end of the readable lines.

    offset: the position behind them; reason: the damage, empty if there is none; blocks: the complete blocks from the
    damaged one on, by their headers.
    """

    offset: int
    reason: str
    blocks: int


class FrameReader:
    """Iterates over the lines of a file's bytes, up to the end or the first damage. tail is valid afterwards.

    closed: whether the file ends in `CLOSED`.
    """

    def __init__(self, data: bytes) -> None:
        # The mark is no frame, so it is cut off before reading.
        self.closed = data.endswith(CLOSED)
        self._data = data[: -len(CLOSED)] if self.closed else data
        self._good = 0  # end of the lines of all earlier blocks
        self._block = 0  # begin of this block
        self.tail = Tail(0, "", 0)

    def __iter__(self) -> Iterator[bytes]:
        """Lines without their newlines."""
        data, offset = self._data, 0
        rest: list[bytes] = []  # of a line that continues in the next block
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
                    # Behind a whole block: the frame of a running writer has no end yet.
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
                    # A line may begin in one block and end in another.
                    yield from b"".join([*rest, whole]).split(b"\n")
                    rest, self._good = [], offset
                if after:
                    rest.append(after)
        if rest:
            self.stop("the last line is not complete")
        else:
            self.tail = Tail(offset, "", 0)

    def stop(self, reason: str) -> None:
        """Ends the iteration at the last returned line, which the caller has found to be damaged."""
        self.tail = Tail(self._good, reason, _blocks(self._data, self._block))

    def later_lines(self) -> Iterator[bytes]:
        """The lines of the frames behind the damage, complete frames or not."""
        data, offset = self._data, self.tail.offset
        # The four bytes may also occur within a block; then the header or the blocks behind them are none.
        while (offset := data.find(_MAGIC, offset + 1)) >= 0:
            header = _header_size(data, offset)
            if header is None:
                continue
            end, last = offset + header, False
            while not last and (block := _block(data, end)) is not None:
                end, last = block
            yield from FrameReader(data[offset:end])


def _header_size(data: bytes, offset: int) -> int | None:
    """The size of the frame header at offset (RFC 8878, 3.1.1.1), None if there is none."""
    if data[offset : offset + 4] != _MAGIC:
        return None
    try:
        # A header has 18 bytes at most.
        size: int = zstandard.frame_header_size(data[offset : offset + 18])
    except zstandard.ZstdError:
        return None
    return size if offset + size <= len(data) else None


def _block(data: bytes, offset: int) -> tuple[int, bool] | None:
    """(end of the block at offset, whether it is the last of its frame), None if it is incomplete."""
    if offset + 3 > len(data):
        return None
    header = int.from_bytes(data[offset : offset + 3], "little")
    # RFC 8878, 3.1.1.2: Last_Block, Block_Type and Block_Size in three bytes, little-endian.
    last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
    # A repeated byte stands once, whatever the size.
    end = offset + 3 + (1 if kind == _RLE else size)
    if size > _BLOCK_MAX or kind > 2 or end > len(data):
        return None
    if size == 0 and not last:
        # No writer makes an empty block within a frame. The zeros that ext4 leaves behind a file's last durable byte
        # after a power cut look like one in each three bytes: 22 million of them in 64 MB.
        return None
    return end, last


def _blocks(data: bytes, offset: int) -> int:
    """The number of consecutive blocks from offset on, by their headers."""
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


class ByteSource(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def frame_lines(content: ByteSource, line_bytes_max: int, bytes_max: float = inf) -> Iterator[bytes]:
    """The lines, without newlines, of a stream that is exactly one frame, as sealed segments and snapshots are.

    Raises OSError, and ValueError for any other stream, for a line of more than line_bytes_max bytes, and for lines of
    more than bytes_max bytes together.
    """
    # A frame may ask for a window of gigabytes; others than our writers make such files.
    frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX).decompressobj()
    parts: list[bytes] = []
    total = size = 0
    while data := content.read(_READ_BYTES):
        if frame.eof:
            raise ValueError("there is data after its end")
        try:
            text = frame.decompress(data)
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        if frame.unused_data:
            raise ValueError("there is data after its end")
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
