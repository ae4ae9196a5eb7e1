"""Seeds of random cases: as many as were asked for, and more of them where chance has left something out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

LONGER = 10
"""How many times the number of cases run at most."""


def seeds(cases: int, check: Callable[[], None]) -> Iterator[int]:
    """Consecutive numbers from a random one: `cases` of them, and then others until `check` holds.

    check: asserts what all cases together have to come to, whatever their number. It is called last of all, so that a
    loop over all the numbers ends with its AssertionError if it does not hold after `LONGER` times the cases.
    """
    first = secrets.randbelow(10**9)
    yield from range(first, first + cases)
    for number in range(first + cases, first + LONGER * cases):
        try:
            check()
        except AssertionError:
            yield number
        else:
            return
    check()
