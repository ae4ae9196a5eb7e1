"""Subscription numbers: number -> unit, in little more memory than the references need."""

from __future__ import annotations

from lamplighter.engine.matching.shapes import Unit


class UnitNumbers:
    """Maps each subscription's number to its unit. Numbers increase and are never reused.

    The units stand in chunks of a fixed size; a chunk is freed when its last subscription ends.
    """

    CHUNK = 256

    def __init__(self) -> None:
        self._chunks: dict[int, list[Unit | None]] = {}
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        chunk = self._chunks.get(number // self.CHUNK, [])
        place = number % self.CHUNK
        return place < len(chunk) and chunk[place] is not None

    def __getitem__(self, number: int) -> Unit:
        if number not in self:
            raise KeyError(number)
        unit = self._chunks[number // self.CHUNK][number % self.CHUNK]
        assert unit is not None
        return unit

    def add(self, unit: Unit) -> int:
        """Gives a subscriber of the unit its number."""
        number = self._next
        self._next += 1
        self._count += 1
        self._chunks.setdefault(number // self.CHUNK, []).append(unit)
        return number

    def pop(self, number: int) -> Unit:
        """Removes a number and returns its unit. Raises KeyError."""
        unit = self[number]
        self._count -= 1
        chunk = self._chunks[number // self.CHUNK]
        chunk[number % self.CHUNK] = None
        if len(chunk) == self.CHUNK and not any(chunk):
            del self._chunks[number // self.CHUNK]
        return unit
