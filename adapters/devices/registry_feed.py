"""Keeps the registry of devices in the dataset as an adapter finds them, while it runs.

::

    found devices ─▶ changed devices ─▶ Registry ─▶ update ─▶ gateway
                          ▲                                      │
                          └──── entries: subscription ◀──────────┘

The subscription tells what the dataset has, so that decisions of people, restarts and lost updates need no special
case: a device is settled when its entry is as announced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import NamedTuple

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, AdapterClient
from lamplighter.adapters.devices.availability import online_update
from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.devices.problem_writer import ProblemWriter
from lamplighter.adapters.devices.registry import Adopt, Entry, Registry
from lamplighter.engine.client import DeclaredCause, Notification, UpdateRequest
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import Bag

# Updates in one message to the gateway.
PORTION_MAX = 50
# SPARQL in one message to the gateway. A longer update goes alone.
UPDATE_CHARS_MAX = 256 * 1024

logger = EventLogger(__name__)


class FeedScope(NamedTuple):
    """kind: of the adapter, such as "mqtt"; adopt: what becomes of a device that is announced; sources: of its devices
    and problems. Those of other sources are left to other adapters."""

    kind: str
    adopt: Adopt
    sources: frozenset[str]


class RegistryFeed:
    """The devices and problems of one adapter.

    on_entries: called when `entries` may have changed. entries: devices of the dataset by identity. ready:
    set once they are known. refused: whether the gateway refuses the subscription; then nothing is proposed. rejected:
    updates that the gateway refused.
    """

    def __init__(
        self,
        client: AdapterClient,
        *,
        base_iri: str,
        scope: FeedScope,
        on_entries: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.registry = Registry(base_iri)
        self.entries: dict[str, Entry] = {}
        self.ready = asyncio.Event()
        self.refused = False
        self.rejected = 0
        self._client = client
        self._kind, self._adopt, self._sources = scope
        self._on_entries = on_entries
        self._clock = clock
        self._problems = ProblemWriter(client, base_iri=base_iri, kind=self._kind, sources=self._sources, clock=clock)
        self._announced: dict[str, Device] = {}
        self._gone: set[str] = set()
        self._unsettled: dict[str, None] = {}
        self._pauses: Pauses[str] = Pauses()
        # What the dataset is to say of devices.
        self._online: dict[str, bool] = {}
        # Updates of no one identity that are sent again.
        self._texts: deque[str] = deque()
        self._work = asyncio.Event()

    def announce(self, devices: Iterable[Device], gone: Iterable[str] = ()) -> None:
        """Takes devices as they are announced now. gone: identities of those that are not announced any more. `run`
        writes what follows."""
        for identity in gone:
            self._announced.pop(identity, None)
            self._gone.add(identity)
            self._unsettle(identity)
        for device in devices:
            self._announced[device.identity] = device
            self._gone.discard(device.identity)
            self._unsettle(device.identity)

    def say_online(self, states: Mapping[str, bool]) -> None:
        """Takes whether devices are online, by identity. `run` writes the newest state of each."""
        self._online |= states
        self._work.set()

    def note(self, problem: Problem) -> None:
        """Lists a problem in the dataset, within bounds."""
        if not self.refused:
            self._problems.note(problem)

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the engine client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name=f"{self._kind} devices")
            tasks.create_task(self._write(), name=f"{self._kind} device updates")
            tasks.create_task(self._write_problems(), name=f"{self._kind} problems")

    def status(self) -> str:
        """The end of a sentence for the status of the adapter; empty without devices."""
        states = [entry.adoption for entry in self.entries.values()]
        proposed, adopted = states.count("proposed"), states.count("adopted")
        said = [f"{adopted:,} adopted"] * bool(adopted) + [f"{proposed:,} proposed"] * bool(proposed)
        return f"; devices: {', '.join(said)}" if said else ""

    async def _write_problems(self) -> None:
        await self.ready.wait()
        await self._problems.run()

    async def _follow(self) -> None:
        try:
            async with aclosing(self._client.subscribe(self.registry.query)) as notifications:
                async for notification in notifications:
                    self._apply(notification)
        except UpstreamError:
            raise
        except GatewayError as error:
            logger.warning(f"{self._kind} devices are not discovered", reason=error)
            self.refused = True
            self.ready.set()

    def _apply(self, notification: Notification) -> None:
        """Updates the entries. Sequence 0 is the whole result and replaces all of them."""
        before = dict(self.entries) if notification.sequence == 0 else {}
        if before:
            self.entries.clear()
        removed: set[str] = set()
        for entry in self._read(notification.removed):
            if self.entries.get(entry.identity) == entry:
                del self.entries[entry.identity]
                self._unsettle(entry.identity)
                removed.add(entry.identity)
        for entry in self._read(notification.added):
            self.entries[entry.identity] = entry
            if before.get(entry.identity) != entry:
                self._unsettle(entry.identity)
        for identity in before.keys() - self.entries.keys():
            self._unsettle(identity)
        for identity in removed - self.entries.keys():
            self._problems.repeat(identity)
        self._on_entries()
        if not self.ready.is_set():
            self.ready.set()
            logger.info(f"{self._kind} devices known", devices=len(self.entries))

    def _read(self, bag: Bag) -> Iterable[Entry]:
        for row in bag:
            try:
                entry = self.registry.entry(row)
            except ValueError as error:
                logger.warning(f"{self._kind} device unreadable", reason=error)
                continue
            if entry.device.source in self._sources:
                yield entry

    def _unsettle(self, identity: str) -> None:
        self._unsettled[identity] = None
        self._work.set()

    def _update(self, identity: str) -> str | None:
        """The update that settles a device, None if it is settled."""
        entry, device = self.entries.get(identity), self._announced.get(identity)
        if device is not None:
            return self.registry.announced(entry, device, self._adopt)
        return self.registry.withdrawn(entry) if entry is not None and identity in self._gone else None

    async def _write(self) -> None:
        await self.ready.wait()
        failures = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_s()):
                    await self._work.wait()
            self._work.clear()
            while portion := self._portion():
                if await self._send(portion):
                    failures = 0
                    continue
                failures += 1
                await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))

    def _next_s(self) -> float | None:
        """How long the next device waits that was changed a short time ago; None if there is none."""
        due = min((self._pauses.due(identity) for identity in self._unsettled), default=None)
        return None if due is None else max(0.0, due - asyncio.get_running_loop().time())

    def _portion(self) -> list[tuple[str | None, str]]:
        """The next updates, each with the identity that it settles."""
        portion: list[tuple[str | None, str]] = []
        chars = 0
        while self._texts and len(portion) < PORTION_MAX:
            portion.append((None, self._texts.popleft()))
        while self._online and len(portion) < PORTION_MAX:
            identity, online = self._online.popitem()
            entry = self.entries.get(identity)
            if entry is not None:
                portion.append((None, online_update(self.registry.device_iri(entry.device), online)))
        now = asyncio.get_running_loop().time()
        for identity in list(self._unsettled):
            if self._pauses.due(identity) > now:
                continue
            text = self._update(identity)
            if text is not None:
                if len(portion) >= PORTION_MAX or (portion and chars + len(text) > UPDATE_CHARS_MAX):
                    break
                chars += len(text)
                portion.append((identity, text))
            del self._unsettled[identity]
        return portion

    async def _send(self, portion: Sequence[tuple[str | None, str]]) -> bool:
        """Whether each update has a final answer; the others wait for another attempt."""
        cause = DeclaredCause(self._kind, "devices")
        answers = await self._client.updates([UpdateRequest(sparql=text, cause=cause) for _, text in portion])
        again = []
        for (identity, text), answer in zip(portion, answers, strict=True):
            if isinstance(answer, GatewayError) and answer.retriable:
                again.append((identity, text))
                continue
            if identity is not None:
                self._pauses.changed(identity, asyncio.get_running_loop().time())
            if isinstance(answer, GatewayError):
                self.rejected += 1
                logger.error(f"{self._kind} device not stored", device=identity or "-", reason=answer)
        for identity, text in reversed(again):
            if identity is None:
                self._texts.appendleft(text)
            else:
                self._unsettled = {identity: None} | self._unsettled
        return not again
