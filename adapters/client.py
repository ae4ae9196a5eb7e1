"""What adapters need of `engine.client.EngineClient`, and the bounds of the pauses between their attempts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError

RETRY_MIN_S, RETRY_MAX_S = 0.2, 30.0


class UpdatesClient(Protocol):
    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]: ...


class AdapterClient(UpdatesClient, Protocol):
    def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]: ...
