"""Deltas: the changes of the dataset by one commit, and of a subscription's result by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lamplighter.engine.slices import Slices, sliced
from lamplighter.engine.tables import sample
from lamplighter.engine.terms import Bag, Quad, Term

# Quads that the templates of one update request may make, unless the caller sets another limit.
DELTA_QUADS_MAX = 1_000_000


class QuadDelta(NamedTuple):
    """The net effect of an update request on a dataset.

    removed: quads that were present and are absent afterwards; added: the opposite. kept: quads that the request
    inserted although they were present; the change log records them, because a repeated value is still a reading.
    created, dropped: names of graphs; a graph may exist without quads. No quad is in two of the members, no name in
    both.
    """

    removed: tuple[Quad, ...] = ()
    added: tuple[Quad, ...] = ()
    kept: tuple[Quad, ...] = ()
    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()

    def __repr__(self) -> str:
        """The members that are not empty, with their first items."""
        members = ((name, value) for name, value in zip(self._fields, self, strict=True) if value)
        return f"QuadDelta({', '.join(f'{name}={sample(value)}' for name, value in members)})"

    @property
    def changes(self) -> bool:
        """Whether the delta changes the dataset."""
        return bool(self.removed or self.added or self.created or self.dropped)

    def invert(self) -> QuadDelta:
        """The delta that undoes this one. It has no kept quads, which changed nothing."""
        return QuadDelta(removed=self.added, added=self.removed, created=self.dropped, dropped=self.created)


def join_deltas(delta: QuadDelta, others: Sequence[QuadDelta]) -> QuadDelta:
    """One delta of several that have no quad and no graph in common. The kept quads are those of the first."""
    parts = (delta, *others)
    return QuadDelta(
        removed=tuple(quad for part in parts for quad in part.removed),
        added=tuple(quad for part in parts for quad in part.added),
        kept=delta.kept,
        created=tuple(name for part in parts for name in part.created),
        dropped=tuple(name for part in parts for name in part.dropped),
    )


def compose(deltas: Sequence[QuadDelta], slices: Slices = Slices()) -> QuadDelta:  # noqa: B008 - it has no state
    """One delta with the effect of several consecutive ones, each relative to the one before.

    A quad that is removed and added again is kept.
    """
    if len(deltas) == 1:
        return deltas[0]
    removed: dict[Quad, None] = {}
    added: dict[Quad, None] = {}
    kept: dict[Quad, None] = {}
    created: dict[Term, None] = {}
    dropped: dict[Term, None] = {}
    for delta in deltas:
        for some in sliced(delta.removed, slices):
            for quad in some:
                kept.pop(quad, None)
                if quad in added:
                    del added[quad]
                else:
                    removed[quad] = None
        for some in sliced(delta.added, slices):
            for quad in some:
                if quad in removed:
                    del removed[quad]
                    kept[quad] = None
                else:
                    added[quad] = None
        for some in sliced(delta.kept, slices):
            for quad in some:
                if quad not in added:
                    kept[quad] = None
        _follow(delta.dropped, created, dropped)
        _follow(delta.created, dropped, created)
    return QuadDelta(tuple(removed), tuple(added), tuple(kept), tuple(created), tuple(dropped))


def _follow(names: Iterable[Term], undone: dict[Term, None], done: dict[Term, None]) -> None:
    for name in names:
        if name in undone:
            del undone[name]
        else:
            done[name] = None


@dataclass(frozen=True)
class BindingDelta:
    """Bindings that entered and left the result of a subscription. No binding is in both bags."""

    added: Bag
    removed: Bag

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def binding_delta(before: Bag, after: Bag) -> BindingDelta:
    """The smallest change that turns one result of a subscription into the next.

    before, after: bags over the same variables. Returns added and removed with ``before - removed + added == after``;
    both are empty if nothing changed, and then no notification is due. Source: Roffia 2016, II.A, definition of a
    notification.
    """
    return BindingDelta(added=after - before, removed=before - after)
