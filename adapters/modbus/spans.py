"""Neighbouring registers or coils that one request reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lamplighter.adapters.mapping.registers import Entity, read_max


class Span(NamedTuple):
    """Registers or bits of a unit, from an address on."""

    unit: int
    entity: Entity
    address: int
    quantity: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.quantity

    def covers(self, other: Span) -> bool:
        return (
            (self.unit, self.entity) == (other.unit, other.entity)
            and self.address <= other.address
            and other.end <= self.end
        )


def join_spans(wanted: Span, others: Iterable[Span]) -> Span:
    """A span around `wanted` with others that reach it without a gap, within what one request may read.

    There is no gap, because a device refuses a request with an address that it does not have.
    """
    limit = read_max(wanted.entity)
    near = sorted({one for one in others if (one.unit, one.entity) == (wanted.unit, wanted.entity)})
    found = wanted
    for one in (*near, *reversed(near)):  # first to the right, then to the left
        begin, end = min(one.address, found.address), max(one.end, found.end)
        if one.address <= found.end and one.end >= found.address and end - begin <= limit:
            found = found._replace(address=begin, quantity=end - begin)
    return found
