"""Which ingested segments are matched next: those of each gateway in the order of its log.

A subscriber receives the matches of one gateway in the order in which the gateway committed them (causal order for
a client, Pellegrino 2013, 3.2). Segments may arrive out of order, so a segment behind a hole waits for the
missing ones, but not for ever: a gateway may have lost them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from lamplighter.engine.change_log import SegmentName, segment_name

# Epoch and sequence.
Place = tuple[int, int]

# How long a segment waits for missing ones before it.
ORDER_WAIT_S = 60.0
# Behind all numbers, so that every subscription sees the segment.
UNKNOWN = 2**62
_BEFORE_ALL: Place = (0, 0)


class ChosenSegment(NamedTuple):
    """A segment, `<gateway>/<name>`. late: later records of its gateway have been matched already. number: in the
    landing log; 0: it was ingested without one, `UNKNOWN`: and is not in the log."""

    segment: str
    late: bool
    number: int = 0


def landed_between(chosen: Sequence[ChosenSegment], begins: Iterable[int]) -> list[ChosenSegment]:
    """Of the segments that were chosen, those that can be matched together, since the same subscriptions see them: the
    first ones of each gateway that landed between the same two of the numbers at which subscriptions begin."""
    bounds = sorted(set(begins))
    first = {bisect_left(bounds, one.number) for one in chosen[:1]}
    found, passed = [], set()
    for one in chosen:
        gateway = _parts(one.segment)[0]
        if gateway in passed or bisect_left(bounds, one.number) not in first:
            passed.add(gateway)  # what is behind it in the order of the log waits with it
        else:
            found.append(one)
    return found


class SegmentOrder:
    """The segments that were ingested and not matched yet.

    Its memory grows with the number of segments of the lake, as the lists of segments in the manifests do.
    """

    def __init__(self) -> None:
        self._matched: set[str] = set()
        self._waiting: dict[str, dict[str, SegmentName]] = {}
        self._numbers: dict[str, int] = {}
        self._cursors: dict[str, Place] = {}
        # The matched segments of a gateway: where each begins, sorted, and the greatest end up to each.
        self._covered: dict[str, tuple[list[Place], list[Place]]] = {}

    def note_matched(self, segments: Iterable[str]) -> None:
        """Segments whose matches are in the table."""
        for segment in segments:
            gateway, name = _parts(segment)
            if name is None or segment in self._matched:
                continue
            self._matched.add(segment)
            self._covered.pop(gateway, None)
            self._waiting.get(gateway, {}).pop(segment, None)
            self._numbers.pop(segment, None)
            self._cursors[gateway] = max(self._cursors.get(gateway, _BEFORE_ALL), _end(name))

    def note_ingested(self, segments: Iterable[str], numbers: Mapping[str, int]) -> None:
        """Segments whose records are in bronze. numbers: in the landing log, of those that have one."""
        for segment in segments:
            gateway, name = _parts(segment)
            if name is not None and segment not in self._matched:
                self._waiting.setdefault(gateway, {})[segment] = name
                if segment in numbers:
                    self._numbers[segment] = numbers[segment]

    @property
    def without_number(self) -> set[str]:
        """Segments that wait and were ingested without a number."""
        return {segment for waiting in self._waiting.values() for segment in waiting if segment not in self._numbers}

    def note_numbers(self, segments: Iterable[str], numbers: Mapping[str, int]) -> None:
        """What the landing log says about such segments."""
        self._numbers.update((segment, numbers.get(segment, UNKNOWN)) for segment in segments)

    def is_matched(self, gateway: str, place: Place) -> bool:
        """Whether the segment of a record is matched."""
        if not self.is_behind(gateway, place):
            return False
        if gateway not in self._covered:
            found = (name for of, name in map(_parts, self._matched) if of == gateway and name is not None)
            names = sorted(found, key=lambda name: name[:2])
            self._covered[gateway] = [name[:2] for name in names], list(accumulate(map(_end, names), max))
        begins, ends = self._covered[gateway]
        number = bisect_right(begins, place)
        return number > 0 and ends[number - 1] >= place

    def is_behind(self, gateway: str, place: Place) -> bool:
        """Whether later records of a gateway are matched, or this one."""
        return place <= self._cursors.get(gateway, _BEFORE_ALL)

    @property
    def matched_segments(self) -> list[str]:
        """The matched segments, sorted."""
        return sorted(self._matched)

    def __len__(self) -> int:
        """The number of segments that are not matched yet."""
        return sum(map(len, self._waiting.values()))

    def following(
        self, age_s: Callable[[str], float], wait_s: float, limit: int, of: Callable[[str], bool] = lambda gateway: True
    ) -> list[ChosenSegment]:
        """The segments to match next, for each gateway in order. of: whether to take those of a gateway.

        age_s: seconds since a segment landed. It is asked only for segments behind a hole.
        wait_s: how long such a segment waits for the missing ones.
        limit: upper bound for their number, shared fairly by the gateways.
        """
        ready = [self._of_gateway(gateway, age_s, wait_s, limit) for gateway in sorted(self._waiting) if of(gateway)]
        share = max(1, limit // max(1, sum(map(bool, ready))))
        chosen = [one for of_gateway in ready for one in of_gateway[:share]]
        return chosen[:limit]

    def _of_gateway(
        self, gateway: str, age_s: Callable[[str], float], wait_s: float, limit: int
    ) -> list[ChosenSegment]:
        found: list[ChosenSegment] = []
        cursor = self._cursors.get(gateway, _BEFORE_ALL)
        for segment, name in sorted(self._waiting[gateway].items(), key=lambda item: item[1]):
            if len(found) >= limit:
                break
            late = (name.epoch, name.first) <= cursor
            if not late and not _follows(name, cursor) and age_s(segment) < wait_s:
                break
            found.append(ChosenSegment(segment, late, self._numbers.get(segment, 0)))
            cursor = max(cursor, _end(name))
        return found


def _parts(segment: str) -> tuple[str, SegmentName | None]:
    gateway, _, text = segment.rpartition("/")
    return gateway, segment_name(text)


def _end(name: SegmentName) -> Place:
    return name.epoch, name.first if name.last is None else name.last


def _follows(name: SegmentName, cursor: Place) -> bool:
    """Whether no record can be missing between a place and a segment. Epochs and sequences begin at 1."""
    epoch, sequence = cursor
    return (name.epoch, name.first) in ((epoch, sequence + 1), (epoch + 1, 1))
