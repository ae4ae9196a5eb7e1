"""What people do to the street: keys of the terminal, and wishes in the dataset.

Wishes are how other programs press the keys over the public protocols; the view Street of the web page has a button for
each offer::

    <base>demo/p demo:offers "add a person"      the demo offers this, and changes the text as it applies
    [] demo:asks <base>demo/p                    a wish; the demo fulfils it and removes it
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical, literal

DEMO = "http://lamplighter.example/ns/demo#"
QUIT = "q"
_PREFIX = f"PREFIX demo: <{DEMO}>"
_WISHES = f"{_PREFIX} SELECT ?wish ?action WHERE {{ ?wish demo:asks ?action }}"
CLEAR = f"{_PREFIX} DELETE WHERE {{ ?action demo:offers ?text }} ; {_PREFIX} DELETE WHERE {{ ?wish demo:asks ?action }}"
"""Removes offers and wishes, also those that an earlier demo left."""


class Controls:
    """actions: key -> what it does; it returns the text of its next offer. offers: key -> text of the first offer."""

    def __init__(
        self, actions: Mapping[str, Callable[[], Awaitable[str]]], offers: Mapping[str, str], base_iri: str
    ) -> None:
        self._actions = actions
        self._offers = dict(offers)
        self._base = f"{base_iri}demo/"
        self._pressed: asyncio.Queue[str] = asyncio.Queue()

    @property
    def line(self) -> str:
        """The keys and what they do."""
        return ", ".join(f"{key} {text}" for key, text in self._offers.items())

    def press(self, key: str) -> None:
        if key in self._actions:
            self._pressed.put_nowait(key)

    async def offer(self, client: EngineClient) -> None:
        """Writes the offers to the dataset."""
        await client.update(CLEAR)
        await client.update(f"{_PREFIX} INSERT DATA {{ {' '.join(map(self._offer, self._offers))} }}")

    async def take_wishes(self, client: EngineClient) -> None:
        """Removes each wish from the dataset and presses its key, until cancelled."""
        async with contextlib.aclosing(client.subscribe(_WISHES)) as notifications:
            async for notification in notifications:
                for row in notification.added.bindings():
                    key = lexical(row["action"]).removeprefix(self._base)
                    if key in self._actions:
                        await client.update(f"{_PREFIX} DELETE WHERE {{ ?wish demo:asks <{self._base}{key}> }}")
                        self.press(key)

    async def act(self, client: EngineClient) -> None:
        """Does what is pressed, one after the other, until cancelled."""
        while True:
            key = await self._pressed.get()
            self._offers[key] = await self._actions[key]()
            await client.update(
                f"{_PREFIX} DELETE {{ <{self._base}{key}> demo:offers ?text }} INSERT {{ {self._offer(key)} }} "
                f"WHERE {{ <{self._base}{key}> demo:offers ?text }}"
            )

    def _offer(self, key: str) -> str:
        return f"<{self._base}{key}> demo:offers {literal(self._offers[key])} ."
