"""Classes of requests: the order of importance in which a gateway takes what waits (Roffia 2018, 4.2)."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from lamplighter.engine.errors import MalformedRequestError

# A class as requests, profiles and permissions name it.
PriorityName = Literal["alarm", "control", "normal", "bulk"]


class Priority(IntEnum):
    """The class of a request. A smaller number is a higher class. NORMAL: of a request that names none."""

    ALARM = 0
    CONTROL = 1
    NORMAL = 2
    BULK = 3

    @property
    def word(self) -> str:
        """Its name on the wire, one of `PriorityName`."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Priority:
        """The class with that name. Raises MalformedRequestError."""
        try:
            return _BY_WORD[word]
        except KeyError:
            raise MalformedRequestError(
                f"priority: unknown class {word[:40]!r}; use alarm, control, normal or bulk"
            ) from None


_BY_WORD = {one.word: one for one in Priority}
