"""Slices: points at which the engine's owner may interrupt long work.

The engine has no threads. It calls a `Slices` object where long work may pause, and the owner's subclass decides what
happens there. By default nothing does.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import TypeVar

# Quads, rows or characters above which work counts as long: it takes some ten milliseconds.
LONG = 5000
# Quads or rows that are handled between two pauses.
SLICE = 1000

_Member = TypeVar("_Member")
_Key = TypeVar("_Key", bound=Hashable)
_BESIDE = nullcontext()


class Slices:
    """Never interrupts anything."""

    @property
    def elsewhere(self) -> bool:
        """Whether long work runs in another thread than short work."""
        # An iterator of the native store must stay in the thread that created it.
        return False

    def begin(self, size: int) -> None:
        """Announces long work, before anything has been changed.

        size: its quads, rows or characters, more than `LONG`. May raise an error to end the work, which the owner then
        starts again from its beginning.
        """

    def pause(self) -> None:
        """Lets other tasks run. They must not use the engine, which is in the middle of a step."""

    def beside(self) -> AbstractContextManager[None]:
        """A context for work that only reads and cannot pause. Other tasks run meanwhile, and may read the engine."""
        return _BESIDE


def sliced(members: Sequence[_Member], slices: Slices, size: int = SLICE) -> Iterator[Sequence[_Member]]:
    """The members in order, in slices with a pause after each; in one slice if they are few.

    size: the members of a slice. Few are as many slices as `LONG` has.
    """
    if len(members) <= size * (LONG // SLICE):
        if members:
            yield members
        return
    for start in range(0, len(members), size):
        yield members[start : start + size]
        slices.pause()


def distinct(members: Iterable[_Key], slices: Slices) -> dict[_Key, None]:
    """The members in order, each once, with pauses if they are many, equal or not."""
    found: dict[_Key, None] = {}
    rest, count = iter(members), 0
    while some := list(islice(rest, SLICE)):
        if len(some) < SLICE and not found:
            return dict.fromkeys(some)
        found.update(dict.fromkeys(some))
        count += len(some)
        if count > LONG:
            slices.begin(count)
            slices.pause()
    return found


@contextmanager
def uncollected() -> Iterator[None]:
    """Stops the collection of cyclic garbage while many objects are made."""
    # It would look at all of them again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
