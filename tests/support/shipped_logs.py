"""Change logs as gateways write them, made without a gateway: records, segments with their seals, data folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import zstandard

from lamplighter.engine.change_log import (
    SUFFIX,
    Cause,
    Gap,
    GraphChanges,
    Record,
    Seal,
    SegmentName,
    SnapshotPart,
    encode,
    seal_name,
)

_GRAPH = "<http://e/g>"


def record(
    gateway: str, epoch: int, sequence: int, *, gap: Gap | None = None, seed: int = 0, epoch_id: str = ""
) -> Record:
    """A commit, or a gap record. seed: of what it says."""
    value = f'"{Random(f"{seed} {gateway} {epoch} {sequence}").randrange(10**9)}"'
    return Record(
        v=1,
        type="gap" if gap else "commit",
        gw=gateway,
        epoch=epoch,
        seq=sequence,
        ts=f"2026-11-21T10:{sequence // 60 % 60:02}:{sequence % 60:02}.000000Z",
        trusted=True,
        boot="b",
        boottime_us=sequence * 1_000_000,
        cause=None if gap else Cause("mqtt", f"street/{sequence}"),
        a=() if gap else ((f"<http://e/{sequence}>", "<http://e/p>", value, _GRAPH),),
        gap=gap,
        epoch_id=epoch_id,
    )


@dataclass(frozen=True)
class Written:
    """A sealed segment."""

    seal: Seal
    data: bytes

    @property
    def name(self) -> SegmentName:
        return SegmentName(self.seal.epoch, self.seal.first, self.seal.last)

    @property
    def stem(self) -> str:
        return str(self.name).removesuffix(SUFFIX)

    @property
    def seal_bytes(self) -> bytes:
        return msgspec.json.encode(self.seal) + b"\n"

    def put(self, folder: Path, stem: str | None = None) -> None:
        """Data and seal, under another stem if one is named."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem or self.stem}{SUFFIX}").write_bytes(self.data)
        (folder / f"{stem or self.stem}.json").write_bytes(self.seal_bytes)


def lines_of(data: bytes) -> list[bytes]:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data).splitlines()


def written(lines: Sequence[bytes], first: Record, previous: str | None, *, level: int = 3) -> Written:
    """A segment of these lines, of which first is the first."""
    data = zstandard.ZstdCompressor(level=level).compress(b"".join(lines))
    last = first.seq + len(lines) - 1
    digest = hashlib.sha256(data).hexdigest()
    return Written(
        Seal(1, first.gw, first.epoch, first.seq, last, len(lines), len(data), digest, previous),
        data,
    )


def segments(
    gateway: str, epoch: int, sizes: Sequence[int], *, previous: str | None = None, begin: int = 1, seed: int = 0
) -> list[Written]:
    """Segments of so many records each, one behind the other."""
    found: list[Written] = []
    for size in sizes:
        records = [record(gateway, epoch, number, seed=seed) for number in range(begin, begin + size)]
        found.append(written([encode(one) for one in records], records[0], previous))
        previous, begin = found[-1].seal.sha256, begin + size
    return found


def recut(cut: Sequence[Written], first: int, last: int) -> Written:
    """Records first to last of those segments as one segment."""
    lines = [line + b"\n" for one in cut for line in lines_of(one.data)]
    low = cut[0].seal.first
    return written(lines[first - low : last - low + 1], record(cut[0].seal.gw, cut[0].seal.epoch, first), None, level=1)


def snapshot(gateway: str, epoch: int, sequence: int, quads: int = 3) -> bytes:
    """The content of a snapshot's file."""
    head = msgspec.structs.replace(record(gateway, epoch, sequence), type="snapshot", a=(), cause=None)
    batch = tuple((f"<http://e/{number}>", "<http://e/p>", '"1"', _GRAPH) for number in range(quads))
    parts = [
        {"snapshot": SnapshotPart(0, state=msgspec.Raw(b"{}")), "graphs": GraphChanges(created=(_GRAPH,))},
        {"snapshot": SnapshotPart(1), "a": batch},
        {"snapshot": SnapshotPart(2, last=True, quads=quads)},
    ]
    return zstandard.ZstdCompressor().compress(b"".join(encode(msgspec.structs.replace(head, **one)) for one in parts))


def snapshot_seal(gateway: str, epoch: int, sequence: int, content: bytes) -> bytes:
    """What is shipped beside a snapshot's file; it says three quads if the file is damaged."""
    quads = 3
    with suppress(zstandard.ZstdError, IndexError):
        quads = msgspec.json.decode(lines_of(content)[-1])["snapshot"]["quads"]
    digest = hashlib.sha256(content).hexdigest()
    return (
        f'{{"v":1,"gw":"{gateway}","epoch":{epoch},"seq":{sequence},"quads":{quads},'
        f'"bytes":{len(content)},"sha256":"{digest}"}}\n'
    ).encode()


class DataFolder:
    """What a gateway has written, as far as the shipper cares."""

    def __init__(self, path: Path, gateway: str = "gw-1") -> None:
        self.path = path
        self.gateway = gateway
        for folder in ("log", "snapshots"):
            (path / folder).mkdir(parents=True)
        (path / "identity").write_text(gateway)

    def add(self, *sealed: Written) -> None:
        for one in sealed:
            one.put(self.path / "log")

    def evict(self, one: Written) -> None:
        (self.path / "log" / str(one.name)).unlink()
        (self.path / "log" / seal_name(one.name)).unlink()

    def add_snapshot(self, epoch: int, sequence: int) -> None:
        content = snapshot(self.gateway, epoch, sequence)
        (self.path / "snapshots" / str(SegmentName(epoch, sequence))).write_bytes(content)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where the machine has such: tests that sync some thousand times need not wait for a disk."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def landed_records(lake: Path, folder: str = "segments") -> list[bytes]:
    """The lines of all landed files, in the order of their files' names; read without any of the code under test."""
    files = sorted((lake / folder).rglob(f"*{SUFFIX}"))
    return [line for file in files for line in lines_of(file.read_bytes())]


def records_of(cut: Sequence[Written]) -> list[bytes]:
    return [line for one in cut for line in lines_of(one.data)]
