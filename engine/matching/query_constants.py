"""The constants of the queries that share a shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamplighter.engine.sparql.algebra import Constant


class QueryConstants:
    """The constants of all units of a shape, as a relation with which every matcher joins.

    constants: the columns of the relation. all: key -> unit. A key is a term if there is one constant, else a tuple.
    """

    def __init__(self, constants: Sequence[Constant]) -> None:
        self.constants = tuple(constants)
        self.all: dict[Any, Any] = {}
        self._parts: dict[tuple[int, ...], dict[Any, dict[Any, None]]] = {}
        self._projections: dict[tuple[int, ...], QueryConstants] = {}

    def projection(self, constants: Sequence[Constant]) -> QueryConstants | None:
        """The units projected to some of their constants, each combination once. It follows later changes.

        Its `all` maps each combination to the keys of its units. None for no constants.
        """
        positions = tuple(position for position, constant in enumerate(self.constants) if constant in constants)
        if not positions or len(positions) == len(self.constants):
            return self if positions else None
        found = self._projections.get(positions)
        if found is None:
            found = self._projections[positions] = QueryConstants([self.constants[position] for position in positions])
            found.all = self.part(positions)
        return found

    def part(self, positions: tuple[int, ...]) -> dict[Any, dict[Any, None]]:
        """The index of the keys by the constants at these positions. It follows later changes."""
        index = self._parts.get(positions)
        if index is None:
            index = self._parts[positions] = {}
            for key in self.all:
                index.setdefault(self._project(key, positions), {})[key] = None
        return index

    def add(self, key: Any, unit: Any) -> None:
        self.all[key] = unit
        for positions, index in self._parts.items():
            part = self._project(key, positions)
            keys = index.get(part)
            if keys is None:
                keys = index[part] = {}
                if positions in self._projections:
                    self._projections[positions].add(part, keys)
            keys[key] = None

    def remove(self, key: Any) -> None:
        del self.all[key]
        for positions, index in self._parts.items():
            part = self._project(key, positions)
            keys = index[part]
            del keys[key]
            if not keys:
                if positions in self._projections:
                    self._projections[positions].remove(part)
                else:
                    del index[part]

    @staticmethod
    def _project(key: Any, positions: tuple[int, ...]) -> Any:
        return key[positions[0]] if len(positions) == 1 else tuple(key[position] for position in positions)
