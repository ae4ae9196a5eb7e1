"""Up to which record the data of each gateway is too old."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from lamplighter.cloud_sync.fleet.deletion.selection import Cut, Place
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.tables import AHEAD_MAX, CLOCK_MIN, table
from lamplighter.cloud_sync.fleet.lazy import pa, pc
from lamplighter.engine.change_log import SegmentName, segment_name


class Cuts(NamedTuple):
    """cuts: by gateway; kept: gateways with old segments that stay, because no snapshot is behind them."""

    cuts: dict[str, Cut]
    kept: list[str]


def cuts_before(lake: Lake, before: datetime, *, without_state: bool) -> Cuts:
    """The cut of each gateway that has old records.

    By default the cut is at the newest snapshot of which all records are old, so that `state` can compute every dataset
    from there on. without_state: the cut is at the last old record. Whole segments are removed, so a cut inside of one
    moves to its begin.
    """
    old = _last_old(lake, before)
    found, kept = {}, []
    for gateway, segments in _segments(lake).items():
        end = old.get(gateway)
        if end is None:
            continue
        snapshots = [
            (name.epoch, name.first)
            for text in lake.names("snapshots", gateway)
            if (name := segment_name(text)) is not None and name.last is None and (name.epoch, name.first) <= end
        ]
        if without_state:
            found[gateway] = Cut(_begin_of_segment(end, segments), end)
        elif snapshots:
            found[gateway] = Cut(_begin_of_segment(max(snapshots), segments), max(snapshots))
        elif any((name.epoch, name.last) <= end for name in segments if name.last is not None):
            kept.append(gateway)
    return Cuts(found, sorted(kept))


def _begin_of_segment(place: Place, segments: list[SegmentName]) -> Place:
    """The place, or the one before the segment that has records on both sides of it."""
    for name in segments:
        if name.epoch == place[0] and name.first <= place[1] < (name.last or 0):
            return name.epoch, name.first - 1
    return place


def _segments(lake: Lake) -> dict[str, list[SegmentName]]:
    """The segments of each gateway that are landed or in bronze."""
    texts = {segment for batch in table(lake, "bronze").all() for segment in batch.segments}
    texts |= set(LandedSegments(lake).names())
    found: dict[str, list[SegmentName]] = defaultdict(list)
    for text in sorted(texts):
        gateway, _, file = text.rpartition("/")
        name = segment_name(file)
        if name is not None and name.last is not None:
            found[gateway].append(name)
    return dict(found)


def _last_old(lake: Lake, before: datetime) -> dict[str, Place]:
    """The last record of each gateway that is certainly older than a time.

    It is the last one with an older time by a trusted clock that is not behind a record with a newer one. Times by an
    untrusted clock may be wrong in either direction; those records are older than the trusted ones after them. Clocks
    are judged as in silver: one that was never set must not make the records of today old.
    """
    newer: dict[str, Place] = {}
    older: dict[str, list[Place]] = defaultdict(list)
    for gateway, place, old in _trusted_places(lake, before):
        if old:
            older[gateway].append(place)
        else:
            newer[gateway] = min(place, newer.get(gateway, place))
    found = {}
    for gateway, places in older.items():
        end = newer.get(gateway)
        certain = [place for place in places if end is None or place < end]
        if certain:
            found[gateway] = max(certain)
    return found


def _trusted_places(lake: Lake, before: datetime) -> Iterator[tuple[str, Place, bool]]:
    """Of the records with a trusted time, in each segment: the last older one, and the first other one (False)."""
    from pyarrow.parquet import ParquetFile

    bronze = table(lake, "bronze")
    for name in [name for batch in bronze.live() for name in batch.files]:
        with lake.fs.open(lake.path(bronze.name, name), "rb") as file:
            opened = ParquetFile(file)
            for number in range(opened.num_row_groups):
                rows = opened.read_row_group(number, ["gw", "epoch", "seq", "ts", "trusted", "segment", "landed"])
                rows = rows.filter(_is_trusted(rows))
                old = pc.less(rows.column("ts"), before)
                for chosen, end in ((old, "max"), (pc.invert(old), "min")):
                    groups = rows.filter(chosen).group_by(["gw", "epoch", "segment"]).aggregate([("seq", end)])
                    for row in groups.to_pylist():
                        yield row["gw"], (row["epoch"], row[f"seq_{end}"]), end == "max"


def _is_trusted(rows: pa.Table) -> Any:
    """For each row of BRONZE whether its time counts. Files of earlier versions have no landing times."""
    found = pc.and_(rows.column("trusted"), pc.greater_equal(rows.column("ts"), CLOCK_MIN))
    if "landed" in rows.column_names:
        ahead = pc.greater(pc.subtract(rows.column("ts"), rows.column("landed")), AHEAD_MAX)
        found = pc.and_(found, pc.invert(pc.fill_null(ahead, False)))
    return found
