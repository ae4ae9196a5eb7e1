"""Records of actuations -> the gateway, those of many actuators in one message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.devices.sender import OutputCounters
from lamplighter.engine.client import DeclaredCause, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger

TOGETHER_MAX = 50

logger = EventLogger(__name__)


class ActuationWriter:
    """One message is under way at a time; updates that come meanwhile are in the next ones, in their order.

    kind: of the adapter. The client retries while the gateway is away or full; other refusals are final, and logged
    here.
    """

    def __init__(self, client: UpdatesClient, kind: str, counters: OutputCounters) -> None:
        self._client = client
        self.kind = kind
        self._counters = counters
        self._waiting: deque[tuple[UpdateRequest, asyncio.Future[UpdateAnswer | GatewayError]]] = deque()
        self._filled = asyncio.Event()

    async def run(self) -> None:
        """Runs until cancelled. Raises UpstreamError when the client is closed."""
        while True:
            await self._filled.wait()
            taken = [self._waiting.popleft() for _ in range(min(TOGETHER_MAX, len(self._waiting)))]
            if not self._waiting:
                self._filled.clear()
            answers = await self._client.updates([request for request, _ in taken])
            for (_, answered), answer in zip(taken, answers, strict=True):
                if not answered.done():  # the one that waits for it was cancelled
                    answered.set_result(answer)

    async def record(self, text: str, origin: str) -> None:
        """Returns when the dataset has an update, while `run` runs. origin: for its cause, such as a topic."""
        answered: asyncio.Future[UpdateAnswer | GatewayError] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._request(text, origin), answered))
        self._filled.set()
        self._check(await answered, origin)

    async def store(self, texts: Sequence[str], origin: str) -> None:
        """Returns when the dataset has the updates, in one message of their own."""
        for answer in await self._client.updates([self._request(text, origin) for text in texts]):
            self._check(answer, origin)

    def _request(self, text: str, origin: str) -> UpdateRequest:
        return UpdateRequest(sparql=text, cause=DeclaredCause(self.kind, origin))

    def _check(self, answer: UpdateAnswer | GatewayError, origin: str) -> None:
        if isinstance(answer, GatewayError):
            self._counters.unrecorded += 1
            logger.error(f"{self.kind} state not recorded", origin=origin, reason=answer)
