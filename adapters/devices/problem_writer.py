"""Keeps the problems of one adapter in the dataset while it runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.problems import LASTING_MAX, Problems
from lamplighter.adapters.lasting_updates import write
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger

# Updates in one message to the gateway.
PORTION_MAX = 50
PROBLEMS_QUEUED_MAX = 1_000
# A problem that lasts is written after this time: the entities of a device are announced one by one.
SETTLED_S = 1.0
# After it, more lasting problems may be written.
AGAIN_S = 5.0

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
        # Those that are not written yet, the newest about each thing.
        self._lasting: dict[tuple[str, ...], Problem] = {}
        # Those that last now.
        self._current: dict[tuple[str, ...], Problem] = {}
        # When they are written, as time of the loop.
        self._lasting_at: float | None = None

    def note(self, problem: Problem) -> None:
        """Lists a problem in the dataset, within bounds of `Problems`."""
        assert problem.source in self._sources, "the next run would not forget it"
        if problem.about:
            key = problem.source, problem.broker, problem.device or problem.topic, problem.about
            if key in self._current or len(self._current) < LASTING_MAX:
                self._current[key] = self._lasting[key] = problem
                if not problem.reason:
                    del self._current[key]
                self._work.set()
            return
        text = self._problems.update(problem, self._clock())
        if text is not None and len(self._texts) < PROBLEMS_QUEUED_MAX:
            self._texts.append(text)
            self._work.set()

    def repeat(self, identity: str) -> None:
        """Writes the lasting problems of a device again, after a removal of the device has deleted them."""
        for key, problem in self._current.items():
            if problem.device == identity:
                self._problems.forget_lasting(problem)
                self._lasting[key] = problem
                self._work.set()

    async def run(self) -> None:
        """Runs until cancelled. Raises UpstreamError when the engine client is closed."""

        def refused(error: GatewayError) -> None:
            logger.error(f"{self._kind} problem not stored", reason=error)

        while True:
            # Not until the timeout: a text may come while lasting ones wait.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._lasting_at):
                    await self._work.wait()
            self._work.clear()
            self._take_lasting(asyncio.get_running_loop().time())
            while self._texts:
                portion = [self._texts.popleft() for _ in range(min(PORTION_MAX, len(self._texts)))]
                await write(self._client, portion, DeclaredCause(self._kind, "devices"), refused)

    def _take_lasting(self, now: float) -> None:
        """Queues the updates of lasting problems that are due, and sets when the next are. now: time of the loop."""
        if not self._lasting:
            self._lasting_at = None
        elif self._lasting_at is None:
            self._lasting_at = now + SETTLED_S
        elif now >= self._lasting_at:
            while self._lasting and len(self._texts) < PROBLEMS_QUEUED_MAX:
                if not self._problems.may_change(self._clock()):
                    break
                text = self._problems.lasting_update(self._lasting.pop(next(iter(self._lasting))), self._clock())
                if text is not None:
                    self._texts.append(text)
            self._lasting_at = now + AGAIN_S if self._lasting else None
