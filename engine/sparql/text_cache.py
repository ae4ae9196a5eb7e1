"""A cache for values that belong to request texts, bounded in entries and in characters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """An LRU cache with at most entries_max entries and characters_max characters.

    A limit on entries alone does not limit the memory, because clients send texts of any length. A value with more than
    characters_max characters is not stored.
    """

    def __init__(self, entries_max: int, characters_max: int) -> None:
        self._entries_max = entries_max
        self._characters_max = characters_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.characters = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """The keys, the least recently used one first."""
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value, None for an unknown key. Marks the key as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, characters: int) -> list[tuple[K, V]]:
        """Stores a value; returns the evicted entries. characters: the length to count for it."""
        self.pop(key)
        self._entries[key] = value, characters
        self.characters += characters
        gone = []
        while len(self._entries) > self._entries_max or self.characters > self._characters_max:
            old, (its, size) = self._entries.popitem(last=False)
            self.characters -= size
            gone.append((old, its))
        return gone

    def values(self) -> Iterator[V]:
        return (value for value, _ in self._entries.values())

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.characters -= entry[1]
        return entry[0]
