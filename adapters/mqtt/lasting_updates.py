"""Updates that are sent until the gateway has taken or refused each of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from lamplighter.engine.client import DeclaredCause, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 30.0


class UpdatingClient(Protocol):
    """What is needed of `engine.client.EngineClient`."""

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]: ...


async def write(
    client: UpdatingClient, texts: Sequence[str], cause: DeclaredCause, refused: Callable[[GatewayError], None]
) -> None:
    """Sends updates, and sends again those whose error is retriable. refused: called with each final error."""
    delay_s = BACKOFF_MIN_S
    while texts:
        answers = await client.updates([UpdateRequest(sparql=text, cause=cause) for text in texts])
        again = []
        for text, answer in zip(texts, answers, strict=True):
            if isinstance(answer, GatewayError) and answer.retriable:
                again.append(text)
            elif isinstance(answer, GatewayError):
                refused(answer)
        texts = again
        if texts:
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(delay_s * 2, BACKOFF_MAX_S)
