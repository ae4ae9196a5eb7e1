"""Counts of several runs, summed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Self


@dataclass
class Summed:
    """A dataclass of numbers and counters that takes up another one."""

    def add(self, other: Self) -> None:
        for name in self.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, name, mine + theirs)
