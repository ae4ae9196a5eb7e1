"""The rule by which clients share what all of them use: a client may hold as much as it leaves free.

One alone gets half, the next one half of the rest, and so on. So none takes all of it from the others. `portions` cuts
what one client asks for into parts of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class Usage:
    """The use of one resource by each client. Clients that use nothing take no memory. total: of all."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.total = 0

    def add(self, client: str, amount: int = 1) -> None:
        """amount: negative to release."""
        self.total += amount
        now = self._of.get(client, 0) + amount
        if now:
            self._of[client] = now
        else:
            self._of.pop(client, None)

    def of(self, client: str) -> int:
        return self._of.get(client, 0)

    def most(self) -> int:
        """The largest use of one client."""
        return max(self._of.values(), default=0)

    def heaviest(self) -> str:
        """The client with the largest use, of those that use it."""
        return max(self._of, key=self.of)

    def __len__(self) -> int:
        """The number of clients that use it."""
        return len(self._of)


def fits(client: str, used: int, more: int, free: int) -> bool:
    """Whether a client that holds `used` may hold `more` of what is free."""
    if not client:
        return more <= free
    return used + 2 * more <= free + 1 and more <= free  # the last place of all can be taken, too


def refusal(client: str, used: int, more: int, free: int, room: str) -> str:
    """Why a client may not hold so much more, empty if it may; otherwise as `fits`. room: its name and size."""
    if fits(client, used, more, free):
        return ""
    if more > free:
        return f"{room} is reached"
    return f"this client holds {used} of {room}, and leaves {free} to others; a client may hold as much as it leaves"


def portions(
    items: Iterable[Item], size: Callable[[Item], int], size_max: int, count_max: int | None = None
) -> Iterator[list[Item]]:
    """Items in order, in lists of at most `size_max` together and `count_max` in number. A larger item is alone."""
    portion: list[Item] = []
    total = 0
    for item in items:
        own = size(item)
        if portion and (total + own > size_max or len(portion) == count_max):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += own
    if portion:
        yield portion
