"""Units: those who share a shape, told apart by their constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.algebra import Constant


class Units:
    """The constants of those who share a plan, as a relation: the last join partner of every match.

    constants: the shape's, in the order in which a unit's key has them. all: key -> unit; a key is the one
    term where there is one constant, a tuple otherwise.
    """

    def __init__(self, constants: Sequence[Constant]) -> None:
        self.constants = tuple(constants)
        self.all: dict[Any, Any] = {}
        self._parts: dict[tuple[int, ...], dict[Any, dict[Any, None]]] = {}

    def part(self, positions: tuple[int, ...]) -> dict[Any, dict[Any, None]]:
        """An index of the keys by some of their constants; kept up to date from now on."""
        index = self._parts.get(positions)
        if index is None:
            index = self._parts[positions] = {}
            for key in self.all:
                index.setdefault(self._projected(key, positions), {})[key] = None
        return index

    def add(self, key: Any, unit: Any) -> None:
        self.all[key] = unit
        for positions, index in self._parts.items():
            index.setdefault(self._projected(key, positions), {})[key] = None

    def remove(self, key: Any) -> None:
        del self.all[key]
        for positions, index in self._parts.items():
            part = self._projected(key, positions)
            keys = index[part]
            del keys[key]
            if not keys:
                del index[part]

    @staticmethod
    def _projected(key: Any, positions: tuple[int, ...]) -> Any:
        return key[positions[0]] if len(positions) == 1 else tuple(key[position] for position in positions)
