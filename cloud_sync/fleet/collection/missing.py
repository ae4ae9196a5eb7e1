"""Which records have not landed, and why. Works on ranges, so the cost does not depend on the number of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from lamplighter.cloud_sync.fleet.collection.segment_check import Range, without

# First and last sequence that a gateway reports as lost, None for all later ones, and the reason.
Said = tuple[int, int | None, str]

Part = TypeVar("Part", Range, tuple[int, int, str])


@dataclass(frozen=True)
class MissingRecords:
    """Records first to last of an epoch have not landed. last None: all from first on, an unknown number.

    said: the gateway reports them as lost, with its reason; otherwise they may still arrive. last_epoch: the gap covers
    all epochs up to this one.
    """

    gw: str
    epoch: int
    first: int
    last: int | None
    said: bool
    reason: str
    last_epoch: int | None = None


def gaps_of_gateway(
    gw: str, landed: dict[int, list[Range]], lost: dict[int, list[Said]], kept: dict[int, list[Range]]
) -> Iterator[MissingRecords]:
    """The gaps of a gateway, sorted. By epoch: landed ranges, ascending; reported losses; ranges in quarantine."""
    expected = 1
    for epoch in sorted({*landed, *lost, *kept}):
        if epoch > expected:
            last_epoch = epoch - 1 if epoch - 1 > expected else None
            told = "nothing of these epochs has landed" if last_epoch else "nothing of this epoch has landed"
            yield MissingRecords(gw, expected, 1, None, False, told, last_epoch)
        found = gaps_of_epoch(gw, epoch, landed.get(epoch, []), lost.get(epoch, []), kept.get(epoch, []))
        yield from sorted(found, key=lambda gap: gap.first)
        expected = epoch + 1


def gaps_of_epoch(
    gw: str, epoch: int, landed: list[Range], lost: list[Said], kept: list[Range]
) -> Iterator[MissingRecords]:
    """The gaps of an epoch. landed: ascending; lost: reported by the gateway; kept: in quarantine.

    Each missing record is in one gap. If several reports of a loss cover it, the one that begins first counts.
    """
    ends = [first - 1 if last is None else last for first, last, _ in lost]
    end = max([last for _, last in [*landed, *kept]] + ends, default=0)
    missing = without((1, end), landed) if end else []
    said: list[tuple[int, int, str]] = []
    for first, last, reason in sorted(lost, key=lambda one: one[0]):
        begin = max(first, said[-1][1] + 1) if said else first
        if begin <= (end if last is None else last):
            said.append((begin, end if last is None else last, reason))
    for (low, high), (_, _, reason) in common(missing, said):
        yield MissingRecords(gw, epoch, low, high, True, reason)
    silent = difference(missing, [(low, high) for low, high, _ in said])
    quarantined = union(kept)
    for low, high in difference(silent, quarantined):
        yield MissingRecords(gw, epoch, low, high, False, "not here yet")
    for (low, high), _ in common(silent, [(low, high, "") for low, high in quarantined]):
        yield MissingRecords(gw, epoch, low, high, False, "in quarantine")
    for first, last, reason in lost:
        if last is None:
            yield MissingRecords(gw, epoch, max(first, end + 1), None, True, reason)


# --- ascending ranges without overlaps, in one pass -------------------------------------------------------------


def union(ranges: Iterable[Range]) -> list[Range]:
    """The union of ranges in any order, which may overlap."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _meeting(wholes: list[Range], parts: list[Part]) -> Iterator[tuple[Range, list[Part]]]:
    """Each range with the parts that meet it."""
    at = 0
    for low, high in wholes:
        while at < len(parts) and parts[at][1] < low:
            at += 1
        end = at
        while end < len(parts) and parts[end][0] <= high:
            end += 1
        yield (low, high), parts[at:end]


def common(wholes: list[Range], parts: list[tuple[int, int, str]]) -> Iterator[tuple[Range, tuple[int, int, str]]]:
    """The intersection, each range with the part that it belongs to."""
    for (low, high), met in _meeting(wholes, parts):
        for part in met:
            yield (max(low, part[0]), min(high, part[1])), part


def difference(wholes: list[Range], parts: list[Range]) -> list[Range]:
    """The first ranges minus the second."""
    found = []
    for (low, high), met in _meeting(wholes, parts):
        begin = low
        for first, last in met:
            if first > begin:
                found.append((begin, first - 1))
            begin = max(begin, last + 1)
        if begin <= high:
            found.append((begin, high))
    return found
