"""What adapters need of `engine.client.EngineClient`, and the pauses between their attempts."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError

RETRY_MIN_S, RETRY_MAX_S = 0.2, 30.0


class UpdatesClient(Protocol):
    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]: ...


class AdapterClient(UpdatesClient, Protocol):
    def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]: ...


def retry_s(failures: int, min_s: float, max_s: float) -> float:
    """Seconds before the next attempt after ``failures`` failed ones: doubled each time, less up to half at random."""
    return min(max_s, min_s * 2.0 ** min(failures - 1, 32)) * random.uniform(0.5, 1)
