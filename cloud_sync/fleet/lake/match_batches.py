"""Batches of the table `matches`: their ids, and the columns of their files.

The matcher names a batch by an ascending number of 12 digits. `compact` merges neighbours into `<first>-<last>`: its
manifest tells how many rows each of them had. Positions in the table, such as the cursors of delivery, keep their
meaning: the batches that were merged are still there by their numbers, only their rows are in another file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lamplighter.cloud_sync.fleet.lazy import pa

BATCH_DIGITS = 12


class MatchSpan(NamedTuple):
    """The numbers of the first and the last batch whose rows are in a batch, as text; and its id."""

    first: str
    last: str
    id: str


def match_span(id: str) -> MatchSpan | None:
    """The span of a batch; None if no batch of `matches` has this id."""
    first, dash, last = id.partition("-")
    last = last if dash else first
    if not (_is_number(first) and _is_number(last)) or (dash and first >= last):
        return None
    return MatchSpan(first, last, id)


def match_spans(ids: Iterable[str]) -> list[MatchSpan]:
    """The spans of batches in their order, without those that lie in another one: it has replaced them."""
    found: list[MatchSpan] = []
    spans = (span for id in ids if (span := match_span(id)) is not None)
    for span in sorted(spans, key=lambda one: (one.first, -int(one.last))):
        if not found or span.last > found[-1].last:
            found.append(span)
    return found


def following_id(ids: Iterable[str]) -> str:
    """The id of the next batch."""
    return match_id(1 + max((int(span.last) for id in ids if (span := match_span(id)) is not None), default=0))


def match_id(number: int) -> str:
    """The id of a batch that was not merged."""
    return f"{number:0{BATCH_DIGITS}d}"


def _is_number(text: str) -> bool:
    """Whether it is 12 digits, of which the last number is never reached."""
    return len(text) == BATCH_DIGITS and text.isascii() and text.isdigit() and text != "9" * BATCH_DIGITS


def match_schema() -> pa.Schema:
    """The columns of MATCHES."""
    text, whole, flag = pa.string(), pa.int32(), pa.bool_()
    return pa.schema(
        {
            "subscription": text,
            "version": whole,
            "gw": text,
            "epoch": whole,
            "seq": pa.int64(),
            "ts": pa.timestamp("us", "UTC"),
            "trusted": flag,
            "late": flag,
            "change": text,
            "graph": text,
            "form": text,
            "variables": pa.list_(text),
            "rows": pa.list_(pa.list_(text)),
            "incomplete": flag,
            "request": text,
        }.items()
    )
