"""Slices: how the engine lets others have a turn while it does something long.

The engine has no threads. It says where a long work may be interrupted, and whoever runs it decides what comes of
that; by default nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

LONG = 5000
"""Quads, rows or the like that a work has to do with before it is long: a few dozen milliseconds."""
SLICE = 1000
"""Of these, how many are done between two pauses."""

_Member = TypeVar("_Member")
_BESIDE = nullcontext()


class Slices:
    """Nothing is interrupted."""

    @property
    def elsewhere(self) -> bool:
        """Whether this is done by another thread than short works are: iterators of the native store cannot change
        from one to another."""
        return False

    def begin(self, size: int) -> None:
        """Says that a long work is ahead, with so many quads, rows or characters, and that nothing was changed yet.

        May raise what ends the work, which is done again from its beginning then. Called for each size above `LONG`.
        """

    def pause(self) -> None:
        """Lets others go on. The engine is in the middle of something, and must be left alone meanwhile."""

    def beside(self) -> AbstractContextManager[None]:
        """For a work that only reads, and cannot pause: others go on beside it, and may read the engine too."""
        return _BESIDE


def sliced(members: Sequence[_Member], slices: Slices) -> Iterator[Sequence[_Member]]:
    """The members in their order, a slice at a time, with a pause after each; all of them at once if they are few."""
    if len(members) <= LONG:
        if members:
            yield members
        return
    for start in range(0, len(members), SLICE):
        yield members[start : start + SLICE]
        slices.pause()
