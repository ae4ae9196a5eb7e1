"""Keeps the problems of one adapter in the dataset while it runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.lasting_updates import write
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger

PORTION_MAX = 50
"""Updates in one message to the gateway."""
PROBLEMS_QUEUED_MAX = 1_000

logger = EventLogger(__name__)


class ProblemWriter:
    """kind: of the adapter, such as "mqtt"; sources: of its problems. Those of other sources are left to others."""

    def __init__(
        self,
        client: UpdatesClient,
        *,
        base_iri: str,
        kind: str,
        sources: Iterable[str],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._kind = kind
        self._sources = frozenset(sources)
        self._clock = clock
        self._problems = Problems(base_iri)
        self._texts: deque[str] = deque([self._problems.forgetting(self._sources)])
        self._work = asyncio.Event()
        self._work.set()

    def note(self, problem: Problem) -> None:
        """Lists a problem in the dataset, within bounds of `Problems`."""
        assert problem.source in self._sources, "the next run would not forget it"
        text = self._problems.update(problem, self._clock())
        if text is not None and len(self._texts) < PROBLEMS_QUEUED_MAX:
            self._texts.append(text)
            self._work.set()

    async def run(self) -> None:
        """Runs until cancelled. Raises UpstreamError when the engine client is closed."""

        def refused(error: GatewayError) -> None:
            logger.error(f"{self._kind} problem not stored", reason=error)

        while True:
            await self._work.wait()
            self._work.clear()
            while self._texts:
                portion = [self._texts.popleft() for _ in range(min(PORTION_MAX, len(self._texts)))]
                await write(self._client, portion, DeclaredCause(self._kind, "devices"), refused)
