"""How many deliveries are tried at the same time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from lamplighter.gateway.sharing import ClientTurns

SLOW_S = 1.0
"""A receiver that took longer for its last answer counts as slow."""


class Slots:
    """The requests that run at the same time. Those that fail, are slow, or have not answered yet have slots of their
    own, so that they do not take those of the others."""

    def __init__(self, concurrent_max: int) -> None:
        slow = concurrent_max // 2
        self._prompt, self._slow = ClientTurns(concurrent_max - slow), ClientTurns(slow)

    def of(self, client: str, *, slow: bool) -> AbstractAsyncContextManager[None]:
        """One of a client, whose requests have their turns with those of the others."""
        return (self._slow if slow else self._prompt).of(client)
