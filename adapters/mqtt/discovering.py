"""Keeps the registry of devices in the dataset as devices announce themselves, while the adapter runs.

::

    announcement ─▶ Announcements ─▶ changed devices ─▶ Registry ─▶ update ─▶ gateway
                                          ▲                                      │
                                          └──── entries: subscription ◀──────────┘

The subscription tells what the dataset has, so that decisions of people, restarts and lost updates need no special
case: a device is settled when its entry is as announced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, AdapterClient, retry_s
from lamplighter.adapters.devices.availability import Availabilities, online_update
from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.devices.registry import Adopt, Entry, Registry
from lamplighter.adapters.mapping import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mqtt.discovery.announced import ANNOUNCEMENT_BYTES_MAX
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements, Changes
from lamplighter.adapters.mqtt.failures import Failures
from lamplighter.adapters.mqtt.inbox import Message
from lamplighter.engine.client import DeclaredCause, Notification, UpdateRequest
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag, Term

ALL_FILTERS = tuple(one for found in FORMATS.values() for one in found.filters)
"""Of all formats: a session of a broker may still have those of formats that were in the settings before."""
PORTION_MAX = 50
"""Updates in one message to the gateway."""
UPDATE_CHARS_MAX = 256 * 1024
"""SPARQL in one message to the gateway. A longer update goes alone."""
PROBLEMS_QUEUED_MAX = 1_000

logger = EventLogger(__name__)


class Discovering:
    """Announcements of all brokers of an adapter.

    filters_changed: called when `filters` has changed. ready: set once the dataset's devices are known; announcements
    are read after that. rejected: updates that the gateway refused.
    """

    def __init__(
        self,
        client: AdapterClient,
        *,
        base_iri: str,
        formats: Iterable[str],
        adopt: Adopt,
        devices_max: int,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.filters_changed: Callable[[], None] = lambda: None
        self.ready = asyncio.Event()
        self.rejected = 0
        self._client = client
        self._adopt: Adopt = adopt
        self._clock = clock
        self._registry = Registry(base_iri)
        self._problems = Problems(base_iri)
        self._announcements = Announcements(formats, devices_max=devices_max)
        self._availabilities = Availabilities()
        self._entries: dict[str, Entry] = {}
        self._adopted: dict[Term, str] = {}
        """Identities of the adopted devices by their IRIs."""
        self._announced: dict[str, Device] = {}
        self._gone: set[str] = set()
        self._unsettled: dict[str, None] = {}
        self._pauses = Pauses()
        self._online: dict[str, bool] = {}
        """What the dataset is to say of devices."""
        self._texts: deque[str] = deque([self._problems.forgetting])
        self._refused = False
        self._failures = Failures()
        self._work = asyncio.Event()
        self._work.set()

    def filters(self, broker: str) -> list[str]:
        """What to subscribe to at a broker: announcements, and availability of adopted devices."""
        return [*self._announcements.filters, *self._availabilities.filters(broker)]

    @property
    def asks(self) -> list[tuple[str, str]]:
        """Messages that make devices announce themselves."""
        return self._announcements.asks

    def covers(self, broker: str, topic: str) -> bool:
        """Whether `take_all` takes messages of the topic."""
        return self._announcements.covers(topic) or self._availabilities.covers(broker, topic)

    def says_online(self, device: Term) -> bool:
        """Whether an availability topic has said whether a device is online. device: its IRI."""
        return self._availabilities.heard(self._adopted.get(device, ""))

    def bytes_max(self, topic: str) -> int:
        """The longest payload that is read of a topic."""
        return ANNOUNCEMENT_BYTES_MAX if self._announcements.covers(topic) else PAYLOAD_BYTES_MAX

    async def take_all(self, broker: str, messages: Iterable[Message]) -> None:
        """Takes the announcements of a batch. Waits for the dataset's devices before the first one."""
        for message in messages:
            if self._announcements.covers(message.topic):
                await self.ready.wait()
                self.take(broker, message.topic, message.payload)
                await asyncio.sleep(0)  # a list of devices may take a second
            for identity, online in self._availabilities.read(broker, message.topic, message.payload).items():
                self._online[identity] = online
                self._work.set()

    def take(self, broker: str, topic: str, payload: bytes) -> None:
        """Reads an announcement; what follows from it is written by `run`."""
        if self._refused:
            return
        try:
            changes = self._announcements.read(broker, topic, payload)
        except Exception as error:
            reason = str(self._failures.payload_error(topic, error))
            changes = Changes(problems=[Problem("announcement", broker, topic, reason)])
        for problem in changes.problems:
            self.note(problem)
        for identity in changes.gone:
            self._announced.pop(identity, None)
            self._gone.add(identity)
            self._unsettle(identity)
        for device in changes.devices:
            self._announced[device.identity] = device
            self._gone.discard(device.identity)
            self._unsettle(device.identity)

    def note(self, problem: Problem) -> None:
        """Lists a problem in the dataset, within bounds."""
        text = None if self._refused else self._problems.update(problem, self._clock())
        if text is not None and len(self._texts) < PROBLEMS_QUEUED_MAX:
            self._texts.append(text)
            self._work.set()

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the engine client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="mqtt devices")
            tasks.create_task(self._write(), name="mqtt device updates")

    def status(self) -> str:
        """The end of a sentence for the status of the adapter; empty without devices."""
        states = [entry.adoption for entry in self._entries.values()]
        proposed, adopted = states.count("proposed"), states.count("adopted")
        said = [f"{adopted:,} adopted"] * bool(adopted) + [f"{proposed:,} proposed"] * bool(proposed)
        return f"; devices: {', '.join(said)}" if said else ""

    async def _follow(self) -> None:
        try:
            async with aclosing(self._client.subscribe(self._registry.query)) as notifications:
                async for notification in notifications:
                    self._apply(notification)
        except UpstreamError:
            raise
        except GatewayError as error:
            logger.warning("mqtt devices are not discovered", reason=error)
            self._refused = True
            self.ready.set()

    def _apply(self, notification: Notification) -> None:
        """Updates the entries. Sequence 0 is the whole result and replaces all of them."""
        before = dict(self._entries) if notification.sequence == 0 else {}
        if before:
            self._entries.clear()
        for entry in self._read(notification.removed):
            if self._entries.get(entry.identity) == entry:
                del self._entries[entry.identity]
                self._unsettle(entry.identity)
        for entry in self._read(notification.added):
            self._entries[entry.identity] = entry
            if before.get(entry.identity) != entry:
                self._unsettle(entry.identity)
        for identity in before.keys() - self._entries.keys():
            self._unsettle(identity)
        filters = {broker: self._availabilities.filters(broker) for broker in self._brokers()}
        adopted = [one.device for one in self._entries.values() if one.adoption == "adopted"]
        self._adopted = {self._registry.device_iri(device): device.identity for device in adopted}
        self._online |= self._availabilities.replace(adopted)
        if filters != {broker: self._availabilities.filters(broker) for broker in self._brokers()}:
            self.filters_changed()
        if not self.ready.is_set():
            self._announcements.restore(entry.device for entry in self._entries.values())
            self.ready.set()
            logger.info("mqtt devices known", devices=len(self._entries))

    def _brokers(self) -> set[str]:
        return {entry.device.broker for entry in self._entries.values()}

    def _read(self, bag: Bag) -> Iterable[Entry]:
        for row in bag:
            try:
                yield self._registry.entry(row)
            except ValueError as error:
                logger.warning("mqtt device unreadable", reason=error)

    def _unsettle(self, identity: str) -> None:
        self._unsettled[identity] = None
        self._work.set()

    def _update(self, identity: str) -> str | None:
        """The update that settles a device, None if it is settled."""
        entry, device = self._entries.get(identity), self._announced.get(identity)
        if device is not None:
            return self._registry.announced(entry, device, self._adopt)
        return self._registry.withdrawn(entry) if entry is not None and identity in self._gone else None

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
                await asyncio.sleep(retry_s(failures, RETRY_MIN_S, RETRY_MAX_S))

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
            entry = self._entries.get(identity)
            if entry is not None:
                portion.append((None, online_update(self._registry.device_iri(entry.device), online)))
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
        cause = DeclaredCause("mqtt", "devices")
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
                logger.error("mqtt device not stored", device=identity or "-", reason=answer)
        for identity, text in reversed(again):
            if identity is None:
                self._texts.appendleft(text)
            else:
                self._unsettled = {identity: None} | self._unsettled
        return not again
