"""What is remembered of texts: the last used ones, and only so many characters of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Keys and their values; the one that was used longest ago goes first, when there are more of them than
    `entries_max` or more characters than `characters_max`.

    A bound on entries alone bounds no memory where the texts are a client's and may be long. One that is longer than
    all may be together is not remembered.
    """

    def __init__(self, entries_max: int, characters_max: int) -> None:
        self._entries_max = entries_max
        self._characters_max = characters_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.characters = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """From the one that goes first."""
        return iter(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value, None for a key that is not remembered. It counts as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, characters: int) -> list[tuple[K, V]]:
        """Remembers a value that takes so many characters; returns what is not remembered any more."""
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
