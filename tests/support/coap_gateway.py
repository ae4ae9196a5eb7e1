"""Stands in for the gateway's client of the CoAP adapter: an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from lamplighter.engine import Engine
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import Bag, lexical
from lamplighter.ontology.vocabulary import PREFIXES

NAMES = "".join(f"PREFIX {name}: <{address}> " for name, address in PREFIXES.items())


class EngineGateway:
    """Any number of subscriptions. texts: the updates that it took from the adapter."""

    connected = True

    def __init__(self) -> None:
        self.engine = Engine()
        self.texts: list[str] = []
        self._heard: dict[str, asyncio.Queue[Notification | None]] = {}

    def write(self, text: str) -> None:
        commit = self.engine.update(NAMES + text)
        for note in commit.notifications:
            heard = Notification(note.spuid, note.sequence, note.added, note.removed, commit=(1, commit.sequence))
            self._heard[note.spuid].put_nowait(heard)

    def come_back(self) -> None:
        """Repeats all first results, as the client does after each interruption."""
        for heard in self._heard.values():
            heard.put_nowait(None)

    def found(self, where: str) -> list[str]:
        """The sorted texts of ?x."""
        return sorted(lexical(row["x"]) for row in self.engine.query(f"{NAMES} SELECT ?x {{ {where} }}"))

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        first = self.engine.subscribe(sparql)
        heard = self._heard[first.spuid] = asyncio.Queue()
        yield Notification(first.spuid, 0, first.first, Bag(first.first.variables))
        try:
            while True:
                notification = await heard.get()
                if notification is None:
                    self.engine.unsubscribe(first.spuid)
                    del self._heard[first.spuid]
                    first = self.engine.subscribe(sparql)
                    self._heard[first.spuid] = heard
                    notification = Notification(first.spuid, 0, first.first, Bag(first.first.variables))
                yield notification
        finally:
            self.engine.unsubscribe(first.spuid)
            del self._heard[first.spuid]

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        for request in requests:
            self.texts.append(request.sparql)
            self.write(request.sparql)
        return [UpdateAnswer(sequence=1, delayed=None) for _ in requests]
