"""Retention: which files of the log may be removed when it is over its limit (design section 5).

Files that a start needs are kept: the log behind the older of the two snapshots. Of the others, the oldest is removed
first. If it was not shipped, a gap record names the removed records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import Gap, seal_name
from lamplighter.engine.client.files import json_document, read_file
from lamplighter.gateway.log.reader import Segment, segments
from lamplighter.gateway.log.snapshots import KEPT, snapshots

DAMAGED_SHARE = 4  # damaged files may take one part in so many of the limit


class Shipped(msgspec.Struct, frozen=True):
    """`<data>/shipped.json`: the last record whose landing the collector has confirmed."""

    epoch: int
    last: int


def shipped_place(data: Path) -> tuple[int, int]:
    """(epoch, sequence) up to which everything was shipped."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        cursor = json_document(read_file(data / "shipped.json", follow=False), Shipped)
        return cursor.epoch, cursor.last
    return 0, 0


def used_bytes(data: Path) -> int:
    used = sum(_size(path) for folder in ("log", "snapshots", "damaged") for path in (data / folder).iterdir())
    with contextlib.suppress(FileNotFoundError):  # it is made when it is needed
        used += sum(map(_size, (data / "history").iterdir()))
    return used


def evictable(data: Path) -> Iterator[Segment]:
    """Sealed segments that no start needs, oldest first."""
    kept = snapshots(data / "snapshots")
    if len(kept) < KEPT:
        return
    needed = kept[-KEPT].place
    for segment in segments(data / "log"):
        if segment.name.last is None or (segment.name.epoch, segment.name.last) > needed:
            return
        yield segment


def gaps(lost: Iterable[Segment], bytes_max: int) -> list[Gap]:
    """Gap records for segments that are removed before they were shipped: one for adjacent segments."""
    found: list[Gap] = []
    reason = f"the log was over log.bytes_max = {bytes_max} before these records were shipped"
    for segment in lost:
        epoch, first, last = segment.name
        if found and found[-1].epoch == epoch and found[-1].last == first - 1:
            found[-1] = Gap(epoch, found[-1].first, reason, last)
        else:
            found.append(Gap(epoch, first, reason, last))
    return found


def files(segment: Segment) -> list[Path]:
    """A sealed segment and its seal."""
    return [segment.path, segment.path.parent / seal_name(segment.name)]


def size(segment: Segment) -> int:
    return sum(map(_size, files(segment)))


def too_much_damaged(data: Path, bytes_max: int) -> list[Path]:
    """The oldest damaged files beyond their share."""
    found = sorted((data / "damaged").iterdir(), key=lambda path: path.stat().st_mtime)
    excess = sum(map(_size, found)) - bytes_max // DAMAGED_SHARE
    result = []
    for path in found:
        if excess <= 0:
            break
        excess -= _size(path)
        result.append(path)
    return result


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
