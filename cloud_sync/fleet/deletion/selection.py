"""What is removed: from rows of the tables, segments, snapshots and notifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lamplighter.cloud_sync.early_notifications import EarlyNotification
from lamplighter.cloud_sync.fleet.lake.folder import FORK, gateway_of
from lamplighter.cloud_sync.fleet.lazy import pa, pc
from lamplighter.cloud_sync.fleet.subscriptions.push import PushedOrder
from lamplighter.engine.change_log import segment_name

# Epoch and sequence.
Place = tuple[int, int]

# The columns of a row's last record, where they are not epoch and seq.
_LAST = {"gateway_health": ("epoch", "last_seq"), "streams": ("until_epoch", "until_seq")}


class Selection(Protocol):
    """What a deletion or retention removes."""

    def columns(self, table: str) -> list[str]:
        """The columns that `removal_mask` needs; none if the table stays as it is."""
        ...

    def removal_mask(self, table: str, rows: pa.Table) -> Any:
        """A boolean array: which of these rows are removed."""
        ...

    def segment(self, segment: str) -> bool:
        """Whether a segment, `<gateway>/<name>`, is removed."""
        ...

    def snapshot(self, snapshot: str) -> bool:
        """Whether a snapshot, `<gateway>/<name>`, is removed."""
        ...

    def rest(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows as they shall be. Those of `matches` keep their places, which the cursors of delivery count."""
        ...

    def notification(self, told: dict[str, Any]) -> bool:
        """Whether a notification is removed: its JSON object, or a match as in the table. KeyError if it is neither."""
        ...

    def ahead(self, gateway: str, told: EarlyNotification) -> bool:
        """Whether a notification that a gateway has sent ahead of its segments is removed."""
        ...

    def order(self, order: PushedOrder) -> PushedOrder | None:
        """What stays of the last order for a pushed subscription; None if it is removed."""
        ...


def blank_rows(rows: pa.Table, gone: Any) -> pa.Table:
    """The same number of rows; those that are gone belong to no subscription and have no values."""
    for number, field in enumerate(rows.schema):
        blank = pa.scalar("" if field.name == "subscription" else None, field.type)
        if pa.types.is_nested(field.type):
            numbers = pa.array(range(rows.num_rows), pa.int64())
            column = rows.column(number).take(pc.if_else(gone, pa.scalar(None, pa.int64()), numbers))
        else:
            column = pc.if_else(gone, blank, rows.column(number))
        rows = rows.set_column(number, field.with_nullable(True), column)
    return rows


def _without(table: str, rows: pa.Table, gone: Any) -> pa.Table:
    return blank_rows(rows, gone) if table == "matches" else rows.filter(pc.invert(gone))


def _place_of(told: dict[str, Any]) -> tuple[str, Place]:
    if "gw" in told:
        return told["gw"], (told["epoch"], told["seq"])
    return told["gateway"], (told["epoch"], told["sequence"])


@dataclass(frozen=True)
class OfGateway:
    """Everything of one gateway, in all its histories."""

    gateway: str

    def has(self, name: str) -> bool:
        """Whether a name in the lake is that of the gateway, or of one of its histories."""
        return gateway_of(name) == self.gateway

    def columns(self, table: str) -> list[str]:
        return ["gw"]

    def removal_mask(self, table: str, rows: pa.Table) -> Any:
        names = rows.column("gw")
        return pc.fill_null(pc.or_(pc.equal(names, self.gateway), pc.starts_with(names, self.gateway + FORK)), False)

    def segment(self, segment: str) -> bool:
        return self.has(segment.rpartition("/")[0])

    def snapshot(self, snapshot: str) -> bool:
        return self.segment(snapshot)

    def rest(self, table: str, rows: pa.Table) -> pa.Table:
        return _without(table, rows, self.removal_mask(table, rows))

    def notification(self, told: dict[str, Any]) -> bool:
        return self.has(_place_of(told)[0])

    def ahead(self, gateway: str, told: EarlyNotification) -> bool:
        return gateway == self.gateway

    def order(self, order: PushedOrder) -> PushedOrder | None:
        return None if order.gateway == self.gateway else order


@dataclass(frozen=True)
class Cut:
    """records: the last record that is removed. snapshot: older ones are removed; None: none are."""

    records: Place
    snapshot: Place | None


@dataclass(frozen=True)
class OutdatedRecords:
    """The records of each gateway up to a cut. Descriptions of streams stay: `rewriting.collapsed` merges them."""

    cuts: Mapping[str, Cut]

    def columns(self, table: str) -> list[str]:
        return [] if table == "facts" else ["gw", *_LAST.get(table, ("epoch", "seq"))]

    def removal_mask(self, table: str, rows: pa.Table) -> Any:
        epoch, seq = _LAST.get(table, ("epoch", "seq"))
        return self.up_to(rows, epoch, seq)

    def up_to(self, rows: pa.Table, epoch: str, seq: str) -> Any:
        """Which rows are at or before the cuts, by their columns gw and these."""
        names = sorted(self.cuts)
        number = pc.index_in(rows.column("gw"), pa.array(names, pa.string()))
        cut_epoch = pc.take(pa.array([self.cuts[name].records[0] for name in names], pa.int64()), number)
        cut_seq = pc.take(pa.array([self.cuts[name].records[1] for name in names], pa.int64()), number)
        of_row = rows.column(epoch).cast(pa.int64())
        within = pc.or_kleene(
            pc.less(of_row, cut_epoch),
            pc.and_kleene(pc.equal(of_row, cut_epoch), pc.less_equal(rows.column(seq), cut_seq)),
        )
        return pc.fill_null(within, False)

    def segment(self, segment: str) -> bool:
        gateway, _, text = segment.rpartition("/")
        name, cut = segment_name(text), self.cuts.get(gateway)
        return name is not None and name.last is not None and cut is not None and (name.epoch, name.last) <= cut.records

    def snapshot(self, snapshot: str) -> bool:
        gateway, _, text = snapshot.rpartition("/")
        name, cut = segment_name(text), self.cuts.get(gateway)
        return name is not None and cut is not None and cut.snapshot is not None and name[:2] < cut.snapshot

    def rest(self, table: str, rows: pa.Table) -> pa.Table:
        return _without(table, rows, self.removal_mask(table, rows))

    def notification(self, told: dict[str, Any]) -> bool:
        gateway, place = _place_of(told)
        cut = self.cuts.get(gateway)
        return cut is not None and place <= cut.records

    def ahead(self, gateway: str, told: EarlyNotification) -> bool:
        cut = self.cuts.get(gateway)
        return cut is not None and told.commit is not None and told.commit <= cut.records

    def order(self, order: PushedOrder) -> PushedOrder | None:
        return order  # a gateway still evaluates it
