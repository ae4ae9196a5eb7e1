"""Units: those who share a shape, told apart by their constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamplighter.engine.sparql.algebra import Constant


class Units:
    """The constants of those who share a plan, as a relation: the last join partner of every match.

    constants: the shape's, in the order in which a unit's key has them. all: key -> unit; a key is the one
    term where there is one constant, a tuple otherwise.
    """

    def __init__(self, constants: Sequence[Constant]) -> None:
        self.constants = tuple(constants)
        self.all: dict[Any, Any] = {}
        self._parts: dict[tuple[int, ...], dict[Any, dict[Any, None]]] = {}
        self._projections: dict[tuple[int, ...], Units] = {}

    def projection(self, constants: Sequence[Constant]) -> Units | None:
        """The units by some of their constants alone, each combination once; kept up to date from now on.

        In `all` it has the keys of these units. None for no constant, for then there is nothing to tell them by.
        """
        positions = tuple(position for position, constant in enumerate(self.constants) if constant in constants)
        if not positions or len(positions) == len(self.constants):
            return self if positions else None
        found = self._projections.get(positions)
        if found is None:
            found = self._projections[positions] = Units([self.constants[position] for position in positions])
            found.all = self.part(positions)
        return found

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
            part = self._projected(key, positions)
            keys = index.get(part)
            if keys is None:
                keys = index[part] = {}
                if positions in self._projections:
                    self._projections[positions].add(part, keys)
            keys[key] = None

    def remove(self, key: Any) -> None:
        del self.all[key]
        for positions, index in self._parts.items():
            part = self._projected(key, positions)
            keys = index[part]
            del keys[key]
            if not keys:
                if positions in self._projections:
                    self._projections[positions].remove(part)
                else:
                    del index[part]

    @staticmethod
    def _projected(key: Any, positions: tuple[int, ...]) -> Any:
        return key[positions[0]] if len(positions) == 1 else tuple(key[position] for position in positions)
