"""Writes a greeting to the dataset."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from lamplighter.adapters.parts import AdapterContext, AdapterInput


class ToyAdapter:
    def __init__(self, greeting: str, context: AdapterContext) -> None:
        self.tried = context.tried
        self._greeting, self._client = greeting, context.client

    async def run(self) -> None:
        await self._client.update(f'INSERT DATA {{ <urn:toy> <urn:says> "{self._greeting}" }}')
        self.tried.set()
        await asyncio.Event().wait()

    def status(self) -> str:
        return "has said it" if self.tried.is_set() else "starting"


@dataclass(frozen=True)
class ToyParts:
    greeting: str

    def adapter(self, context: AdapterContext, before: ToyParts | None) -> ToyAdapter:
        return ToyAdapter(self.greeting, context)

    def adopt(self, running: ToyAdapter, before: ToyParts) -> bool:
        return False


def toy_parts(given: AdapterInput) -> ToyParts:
    return ToyParts(given.settings.greeting)
