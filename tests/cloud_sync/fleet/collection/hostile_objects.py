"""Good segments and snapshots of a gateway with one thing in them changed: numbers, times, texts, types, names.

All checksums, hashes and seals are made for what was changed, as a gateway in the wrong hands would make them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import msgspec
import zstandard

from lamplighter.engine.change_log import SUFFIX, Gap, Timer, encode
from tests.support.shipped_logs import lines_of, record, snapshot, snapshot_seal, written

NUMBERS = (-1, 0, 2**31, 2**53, 10**9, 10**12, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400)
TIMES = (
    *("", "garbage", "2026-11-21", "2026-11-21T10:00:00", "2026-11-21 10:00:00Z", "2026-13-01T00:00:00Z"),
    *("2026-02-30T00:00:00Z", "1969-12-31T23:59:59Z", "2200-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"),
    *("292278994-08-17T07:12:55Z", "-0001-01-01T00:00:00Z", "2026-11-21T24:01:00Z", "2026-11-21T10:00:00+99:00"),
    *("2026-11-21T10:00:00Z\n", "2026-W47-6T10:00:00Z", "٢٠٢٦-11-21T10:00:00Z", "2026-11-21T10:00:00Z" + "0" * 70_000),
)
TEXTS = (
    "",
    "\0",
    "a\nb",
    "\x1b[2J",
    "../../etc/passwd",
    "..",
    "/etc/passwd",
    "%00",
    "x" * 100_000,
    "💡" * 500,
    "gw-2/../x",
)
TYPES: tuple[Any, ...] = (None, True, 1.5, 1e308, [], {}, [[[]]], {"a": {"b": {}}}, "1", [None] * 9)
NAMES = (
    "1e9-000000000001-000000000002",
    "9" * 90 + "-000000000001-000000000003",
    "0" * 100,
    "a b (2)+.x",
    "1-1-1",
    "_",
)


@dataclass(frozen=True)
class Hostile:
    """An object with its seal. what: was changed."""

    what: str
    data: bytes
    seal: bytes
    stem: str = ""
    snapshot: bool = False

    def put(self, folder: Path, number: int) -> str:
        """Into the folder of its gateway, under a name of its own, if it is not to have a special one; the name."""
        stem = self.stem or f"1-{number:012d}"
        folder = folder / "snapshots" if self.snapshot else folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}{SUFFIX}").write_bytes(self.data)
        (folder / f"{stem}.json").write_bytes(self.seal)
        return stem


def line(members: dict[str, Any]) -> bytes:
    """A line with its checksum, of members of which msgspec would write none."""
    body = json.dumps(members, separators=(",", ":")).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, google_crc32c.value(body))


def sealed(lines: list[bytes], seal: dict[str, Any]) -> tuple[bytes, bytes]:
    """The file of those lines, and the seal with its size and hash unless it is to have others."""
    data = zstandard.ZstdCompressor().compress(b"".join(lines))
    own = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return data, json.dumps({name: own.get(name) if value is ... else value for name, value in seal.items()}).encode()


def good(gateway: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Three records of all kinds of members, and their seal, whose size and hash are still to be found (...)."""
    records = [record(gateway, 1, number) for number in (1, 2, 3)]
    records[0] = msgspec.structs.replace(records[0], request="r", client="c", synced=0)
    timer = Timer("t", "DELETE WHERE { ?s ?p ?o }", delay_us=5)
    records[1] = msgspec.structs.replace(records[1], type="timer", a=(), timer=timer)
    records[2] = record(gateway, 1, 3, gap=Gap(1, 1, "the card was damaged", 1))
    plain = [{name: value for name, value in msgspec.to_builtins(one).items() if name != "crc"} for one in records]
    seal: dict[str, Any] = {"v": 1, "gw": gateway, "epoch": 1, "first": 1, "last": 3, "count": 3}
    return plain, {**seal, "bytes": ..., "sha256": ..., "previous": None}


def of_segments(gateway: str) -> Iterator[Hostile]:
    """Each member of each record and of the seal, with each value of its kind; then some that agree with each other."""
    records, seal = good(gateway)
    for number, one in enumerate(records):
        for path, value in leaves(one):
            for other in others(path, value):
                changed = [replaced(one, path, other) if at == number else each for at, each in enumerate(records)]
                yield Hostile(f"record {number} {path} = {other!r:.60}", *sealed(list(map(line, changed)), seal))
    for name, value in seal.items():
        for other in others((name,), 1 if value is ... else value):
            yield Hostile(f"seal {name} = {other!r:.60}", *sealed(list(map(line, records)), {**seal, name: other}))
    for number in NUMBERS:
        epoch = [{**one, "epoch": number} for one in records]
        yield Hostile("all of an epoch", *sealed(list(map(line, epoch)), {**seal, "epoch": number}))
        places = [{**one, "seq": number + at} for at, one in enumerate(records)]
        yield Hostile(
            "all from a sequence on", *sealed(list(map(line, places)), {**seal, "first": number, "last": number + 2})
        )
        ranges = {**seal, "last": number, "count": number}
        yield Hostile("a range", *sealed(list(map(line, records)), ranges))
    for name in NAMES:
        yield Hostile(f"name {name:.60}", *sealed(list(map(line, records)), {**seal, "first": 7}), stem=name)
    yield Hostile("deep", *sealed([line(records[0])[:-2] + b',"x":' + b"[" * 100_000 + b"\n"], seal))
    deep = b'{"v":1,"gw":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    yield Hostile("a deep seal", sealed(list(map(line, records)), seal)[0], deep)
    yield Hostile("a number of 9,000 digits", sealed(list(map(line, records)), seal)[0], b'{"v":' + b"9" * 9000 + b"}")


def of_snapshots(gateway: str) -> Iterator[Hostile]:
    content = snapshot(gateway, 1, 9)
    lines = [{name: value for name, value in json.loads(text).items() if name != "crc"} for text in lines_of(content)]
    seal = {**json.loads(snapshot_seal(gateway, 1, 9, content)), "bytes": ..., "sha256": ...}
    for number, one in enumerate(lines):
        for path, value in leaves(one):
            for other in others(path, value):
                changed = [replaced(one, path, other) if at == number else each for at, each in enumerate(lines)]
                what = f"snapshot {number} {path} = {other!r:.60}"
                yield Hostile(what, *sealed(list(map(line, changed)), seal), snapshot=True)
    for name, value in seal.items():
        for other in others((name,), 1 if value is ... else value):
            what = f"snapshot's seal {name} = {other!r:.60}"
            changed_seal = {**seal, name: other}
            yield Hostile(what, *sealed(list(map(line, lines)), changed_seal), snapshot=True)
    for number in NUMBERS:
        for member in ("epoch", "seq"):
            moved = [{**one, member: number} for one in lines]
            what = f"all of {member}"
            changed_seal = {**seal, member: number}
            yield Hostile(what, *sealed(list(map(line, moved)), changed_seal), snapshot=True)


def noise(gateway: str, random: Random, count: int) -> Iterator[Hostile]:
    """Good segments with some bytes of the file, of a line or of the seal changed at random."""
    one = record(gateway, 1, 1)
    whole = written([encode(one)], one, None)
    for _ in range(count):
        place = random.choice(["file", "line", "seal"])
        if place == "line":
            body = bytes(_scrambled(bytearray(msgspec.json.encode(one)[:-1]), random))
            bad = written([b'%s,"crc":"%08x"}\n' % (body, google_crc32c.value(body))], one, None)
            yield Hostile("noise in a line", bad.data, bad.seal_bytes)
        elif place == "file":
            yield Hostile("noise in a file", bytes(_scrambled(bytearray(whole.data), random)), whole.seal_bytes)
        else:
            yield Hostile("noise in a seal", whole.data, bytes(_scrambled(bytearray(whole.seal_bytes), random)))


def _scrambled(content: bytearray, random: Random) -> bytearray:
    for _ in range(random.randint(1, 8)):
        content[random.randrange(len(content))] = random.randrange(256)
    return content


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every member with its path, those that have members too."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from leaves(each, (*path, number))


def others(path: tuple[Any, ...], value: Any) -> Iterator[Any]:
    yield from TYPES
    if path[-1] in ("ts", "at"):
        yield from TIMES
    if isinstance(value, str):
        yield from TEXTS
    if isinstance(value, int):
        yield from NUMBERS


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy
