"""Which records have not landed, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloud_sync.fleet.segment_check import Range, without


@dataclass(frozen=True)
class Gap:
    """Records first to last of an epoch have not landed; last None: all from first on, nobody knows how many.

    said: the gateway itself says that they are lost, and reason is its own; else they may be on their way.
    """

    gw: str
    epoch: int
    first: int
    last: int | None
    said: bool
    reason: str


def gaps_of_epoch(
    gw: str, epoch: int, landed: list[Range], lost: list[tuple[int, int | None, str]], kept: list[Range]
) -> Iterator[Gap]:
    """landed, kept: in their order, the latter in quarantine; lost: what the gateway says (first, last, reason)."""
    ends = [first - 1 if last is None else last for first, last, _ in lost]
    end = max([last for _, last in [*landed, *kept]] + ends, default=0)
    if not landed and not lost and not kept:
        yield Gap(gw, epoch, 1, None, False, "nothing of this epoch has landed")
        return
    for missing in without((1, end), landed) if end else []:
        rest = [missing]
        for first, last, reason in lost:
            pieces = []
            for piece in rest:
                low, high = max(piece[0], first), piece[1] if last is None else min(piece[1], last)
                if low <= high:
                    yield Gap(gw, epoch, low, high, True, reason)
                    pieces += without(piece, [(low, high)])
                else:
                    pieces.append(piece)
            rest = pieces
        for piece in rest:
            absent = without(piece, kept)
            for low, high in absent:
                yield Gap(gw, epoch, low, high, False, "not here yet")
            for low, high in without(piece, absent):
                yield Gap(gw, epoch, low, high, False, "in quarantine")
    for first, last, reason in lost:
        if last is None:
            yield Gap(gw, epoch, max(first, end + 1), None, True, reason)
