"""JSON objects of announcements that remember which of their keys a format has read.

A key is understood (the format reads it), harmless (the format lists it: it says nothing of values, states and
commands), or left out. What is left out becomes a problem of the device, so that no part of a meaning is dropped
silently. No format can forget a key: what it does not ask for is left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any


class Declared(dict[str, Any]):
    """An object of an announcement; objects within are of the same kind.

    read_names: keys that were read, by `get`, ``[]`` and `read_all`.
    """

    __slots__ = ("_settled", "read_names")

    def __init__(self, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self.read_names: set[str] = set()
        self._settled = False

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        self.read_names.add(name)
        if type(value) is dict:
            value = Declared(value)
            super().__setitem__(name, value)
        elif type(value) is list:
            declare_items(value)
        return value

    def read_all(self) -> Iterator[tuple[str, Any]]:
        """All keys with their values, as read."""
        for name in list(self):
            yield name, self[name]

    def rename(self, names: Mapping[str, str]) -> None:
        """Writes abbreviated keys in full."""
        for short in [name for name in self if name in names]:
            self[names[short]] = self.pop(short)

    def mark(self, names: Container[str]) -> None:
        """Takes these keys as read."""
        self.read_names |= {name for name in self if name in names}

    def settle(self) -> None:
        """Says that what is left out of it, and of what is in it, has been told."""
        self._settled = True

    def omissions(self, harmless: Container[str], within: str = "") -> Iterator[str]:
        """Paths of the keys that say something and were neither read nor are harmless, without indices."""
        for name, value in () if self._settled else super().items():
            if name in self.read_names:
                yield from _omissions(value, harmless, f"{within}{name}.")
            elif name not in harmless and not _is_blank(value):
                yield f"{within}{name}"


def declare_items(values: list[Any]) -> None:
    """Makes the objects of a list such ones, in place."""
    for number, value in enumerate(values):
        if type(value) is dict:
            values[number] = Declared(value)
        elif type(value) is list:
            declare_items(value)


def _omissions(value: object, harmless: Container[str], within: str) -> Iterator[str]:
    if isinstance(value, Declared):
        yield from value.omissions(harmless, within)
    elif isinstance(value, list):
        for item in value:
            yield from _omissions(item, harmless, within)


def _is_blank(value: object) -> bool:
    """Whether a value says nothing: null, and empty texts, lists and objects. False and 0 say something."""
    if isinstance(value, list):
        return all(map(_is_blank, value))
    return value is None or value == "" or value == {}
