"""Updates that are sent until the gateway has taken or refused each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, UpdatesClient
from lamplighter.engine.client import DeclaredCause, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.pacing import back_off_s


async def write(
    client: UpdatesClient, texts: Sequence[str], cause: DeclaredCause, refused: Callable[[GatewayError], None]
) -> None:
    """Sends updates, and sends again those whose error is retriable. refused: called with each final error."""
    failures = 0
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
            failures += 1
            await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))
