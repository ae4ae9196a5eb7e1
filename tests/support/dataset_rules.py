"""Rules of a dataset, and a gateway that notifies of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from lamplighter.adapters.mapping.dataset_rules import QUERY
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import Bag, iri, literal
from tests.support.mapping_rules import BASE

A = {"stream": {"topic": "a/{x}", "payload": "number", "property": "gateway:temperature"}}
B = {"stream": {"topic": "b/#", "payload": "number", "property": "gateway:temperature", "sensor": "b"}}


class RulesGateway:
    """Stands in for the engine client: notifies of rules, and keeps the updates."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[GatewayError] = []
        self.queue: asyncio.Queue[Notification | GatewayError] = asyncio.Queue()
        self.notify(0)

    def notify(self, sequence: int, added: dict[str, Any] | None = None, removed: dict[str, Any] | None = None) -> None:
        self.queue.put_nowait(Notification("spu", sequence, bag(added or {}), bag(removed or {})))

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        if sparql != QUERY:
            await asyncio.Event().wait()  # the desired states of actuators, of which there are none
        while True:
            found = await self.queue.get()
            if isinstance(found, GatewayError):
                raise found
            yield found

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        answers: list[UpdateAnswer | GatewayError] = []
        for request in requests:
            if self.errors:
                answers.append(self.errors.pop(0))
            else:
                self.texts.append(request.sparql)
                answers.append(UpdateAnswer(sequence=len(self.texts)))
        return answers

    def count(self, part: str) -> int:
        return sum(part in text for text in self.texts)


def bag(rules: dict[str, Any]) -> Bag:
    rows = [(iri(f"{BASE}mapping/{name}"), literal(json.dumps(rule))) for name, rule in rules.items()]
    return Bag(("mapping", "rule"), rows)
