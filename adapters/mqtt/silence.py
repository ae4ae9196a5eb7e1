"""Marks devices as offline that report regularly and are silent for several of their intervals.

::

    readings ─▶ Intervals ─▶ overdue? ─▶ canary: does the broker deliver? ─▶ gateway:online false, gateway:lastSeen
                    ▲
                    └── gateway:reportingInterval of an earlier run, read once at the start

Silence is the device's only if a report would have arrived: the broker is connected and returns a canary, no message
waits for the gateway, and the process was not stopped. Where an availability topic says whether a device is online,
nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from lamplighter.adapters.client import AdapterClient, UpdatesClient
from lamplighter.adapters.devices.availability import online_update
from lamplighter.adapters.devices.intervals import Intervals, Learned, ReportingChannel, interval_update
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.literals import NUMBERS, OFFLINE
from lamplighter.adapters.model.readings import Reading
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term, lexical
from lamplighter.ontology.vocabulary import (
    HOSTS,
    LIVE_OBSERVATION,
    MADE_BY_SENSOR,
    MQTT_TOPIC,
    ONLINE,
    REPORTING_INTERVAL,
    RESULT_TIME,
)

CHECK_S = 1.0
"""Between two looks for silent devices."""
STALL_S = 5.0
"""If the process was stopped or a commit took longer, messages may have waited, and the silence does not count."""
RECONNECT_S = 60.0
"""Silence after a connection to a broker that does not count: devices have to connect again, too."""
PORTION_MAX = 50
"""Updates in one message to the gateway."""

QUERY = f"""\
SELECT ?stream ?topic ?interval ?device ?online ?time WHERE {{
  ?stream <{REPORTING_INTERVAL}> ?interval ; <{MQTT_TOPIC}> ?topic .
  {{ ?stream <{LIVE_OBSERVATION}> ?reading . ?reading <{MADE_BY_SENSOR}> ?sensor
    OPTIONAL {{ ?reading <{RESULT_TIME}> ?time }} }}
  UNION {{ ?stream <{MADE_BY_SENSOR}> ?sensor }}
  ?device <{HOSTS}> ?sensor
  OPTIONAL {{ ?device <{ONLINE}> ?online }}
}}"""

logger = EventLogger(__name__)


class SilenceBroker(Protocol):
    """The inbox of a broker. subscribed: set while it is connected; its length: messages that wait."""

    @property
    def subscribed(self) -> asyncio.Event: ...

    @property
    def arrivals(self) -> int | None: ...

    def demand_canary(self) -> None: ...

    def __len__(self) -> int: ...


class _FormerStream(NamedTuple):
    """A row of the query: what an earlier run learned of a stream."""

    stream: Term
    topic: str
    device: Term
    interval_s: float
    online: bool | None


class Silence:
    """The devices of an adapter. factor: learned intervals of silence before a device is offline, 0: nothing is done;
    topics_max: topics that are watched.

    clock: wall time, for people; elapsed: seconds of a monotonic clock; says_online: whether an availability topic
    says if a device is online; covers: whether a rule reads a topic of a broker. feed: reads what an earlier run has
    learned; None: nothing.
    """

    def __init__(
        self,
        client: UpdatesClient,
        feed: AdapterClient | None,
        *,
        factor: float,
        topics_max: int,
        clock: Callable[[], datetime],
        elapsed: Callable[[], float],
        says_online: Callable[[Term], bool],
        covers: Callable[[str, str], bool],
    ) -> None:
        self.brokers: Mapping[str, SilenceBroker] = {}
        self._client, self._feed = client, feed
        self._used = factor > 0
        self._clock, self._elapsed = clock, elapsed
        self._says_online, self._covers = says_online, covers
        self._intervals = Intervals(factor, topics_max)
        self._former: list[_FormerStream] = []
        """Rows of the query whose topic no rule reads yet: the rules of the dataset come later."""
        self._rules_known = False
        self._connected: set[str] = set()
        self._busy: set[str] = set()
        self._asked: dict[Term, dict[Hashable, int | None]] = {}
        """Of devices that are overdue: arrivals at their brokers when that was seen first."""
        self._seen: dict[Term, datetime] = {}
        """When the devices that are offline were last heard, while it is not written."""
        self._seen_before: dict[Term, datetime] = {}
        """The newest result times of earlier runs."""
        self._offline: set[Term] = set()
        self._work = asyncio.Event()

    def take(self, broker: str, readings: Iterable[Reading]) -> None:
        """Takes the readings of a batch. Retained ones and deaths are no sign of life."""
        if not self._used:
            return
        reports: dict[tuple[str, Term], tuple[Term, list[Term]]] = {}
        for reading in readings:
            if reading.retained or reading.value == OFFLINE:
                continue
            stream = reading.stream
            report = reports.setdefault((stream.topic, stream.platform), (stream.iri, []))
            if not reading.value.endswith(NUMBERS):
                report[1].append(reading.value)
        if reports:
            now = self._elapsed()
            for (topic, device), (iri, states) in reports.items():
                self._intervals.heard(ReportingChannel(broker, topic, device), iri, now, states)
            self._changed()

    def connected(self, broker: str, *, connected: bool) -> None:
        """Notes the state of a broker's connection."""
        if connected and broker not in self._connected:
            self._connected.add(broker)
            self._intervals.interrupted(broker, self._elapsed(), RECONNECT_S)
        elif not connected:
            self._connected.discard(broker)

    def committing(self, broker: str) -> None:
        """A batch of the broker goes to the gateway."""
        self._busy.add(broker)

    def committed(self, broker: str, took_s: float, *, others: bool) -> None:
        """The batch is committed. What came meanwhile may have waited. others: whether there are more on their way."""
        if not others:
            self._busy.discard(broker)
        if took_s > STALL_S:
            self._intervals.interrupted(broker, self._elapsed())

    def change_rules(self, changed: set[Term], *, known: bool) -> None:
        """The rules have changed. changed: streams that may be described in another way now; known: whether the rules
        of the dataset are among them, and not still to come."""
        self._rules_known = known
        self._restore()
        self._intervals.keep(
            lambda channel, stream: stream not in changed and self._covers(str(channel.source), channel.name)
        )
        self._changed()

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        if not self._used:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(), name="mqtt silence updates")
            if self._feed is not None:
                await self._read_former(self._feed)
            tasks.create_task(self._check(), name="mqtt silent devices")

    async def _read_former(self, feed: AdapterClient) -> None:
        try:
            async with aclosing(feed.subscribe(QUERY)) as notifications:
                async for notification in notifications:
                    for row in notification.added.bindings():
                        said = lexical(row["online"]) if "online" in row else None
                        online = None if said is None else said in ("true", "1")
                        values = row["stream"], lexical(row["topic"]), row["device"], float(lexical(row["interval"]))
                        self._former.append(_FormerStream(*values, online))
                        self._note_time(row["device"], row.get("time"))
                    break
        except UpstreamError:
            raise
        except (GatewayError, KeyError, ValueError) as error:
            logger.warning("mqtt reporting intervals are learned again", reason=error)
        self._restore()

    def _note_time(self, device: Term, time: Term | None) -> None:
        """Notes the result time of a reading of an earlier run."""
        try:
            seen = datetime.fromisoformat("" if time is None else lexical(time))
        except ValueError:
            return
        if seen.tzinfo is not None:
            self._seen_before[device] = max(seen, self._seen_before.get(device, seen))

    def _restore(self) -> None:
        """Takes the rows whose topics are read by now. Once all rules are known, the others are of rules that are
        gone."""
        former, self._former = self._former, []
        now = self._elapsed()
        for one in former:
            broker = next((name for name in self.brokers if self._covers(name, one.topic)), None)
            if broker is None:
                self._former.append(one)
                continue
            channel = ReportingChannel(broker, one.topic, one.device)
            self._intervals.restore(Learned(channel, one.stream, one.interval_s, one.online), now)
            if broker in self._connected:
                self._intervals.interrupted(broker, now, RECONNECT_S)
        if self._rules_known:
            for one in self._former:
                self._intervals.drop(one.stream, one.device)
            self._former.clear()
        self._changed()

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            await asyncio.sleep(CHECK_S)
            before, checked = checked, loop.time()
            if checked - before > CHECK_S + STALL_S:
                self._intervals.interrupted(None, self._elapsed())
            else:
                self._mark(self._elapsed())

    def _ready(self, source: Hashable) -> bool:
        """Whether a report of a device would have arrived and been taken, if the broker delivers."""
        broker = self.brokers[str(source)]
        return broker.subscribed.is_set() and not len(broker) and source not in self._busy

    def _mark(self, now: float) -> None:
        """Marks the devices that are overdue, once their brokers have delivered something since that was seen."""
        asked, self._asked = self._asked, {}
        for device in self._intervals.overdue(now, self._ready):
            brokers = {one: self.brokers[str(one)] for one in self._intervals.sources(device)}
            before = asked.get(device)
            arrivals = {name: broker.arrivals for name, broker in brokers.items()}
            if before is None or any(
                count is not None and count == before.get(name) for name, count in arrivals.items()
            ):
                self._asked[device] = arrivals if before is None else before
                for broker in brokers.values():
                    broker.demand_canary()
                continue
            seen = self._intervals.mark(device)
            if not self._says_online(device):
                last = self._seen_before.get(device)
                if seen is not None:
                    last = self._clock() - timedelta(seconds=now - seen)
                if last is not None:
                    self._seen[device] = last
                self._offline.add(device)
                logger.info("mqtt device silent", device=device, last_seen=last)
                self._work.set()

    def _changed(self) -> None:
        if self._intervals.online or self._intervals.intervals or self._offline:
            self._work.set()

    async def _write(self) -> None:
        """Writes the newest state of each device, and the intervals."""

        def refused(error: GatewayError) -> None:
            logger.error("mqtt device state not stored", reason=error)

        while True:
            await self._work.wait()
            self._work.clear()
            texts = list(self._updates())
            for first in range(0, len(texts), PORTION_MAX):
                portion = texts[first : first + PORTION_MAX]
                await write(self._client, portion, DeclaredCause("mqtt", "silence"), refused)

    def _updates(self) -> Iterable[str]:
        """The updates that are due; they count as written."""
        found = self._intervals
        online, intervals, offline = found.online, found.intervals, self._offline
        found.online, found.intervals, self._offline = {}, {}, set()
        for stream, interval_s in intervals.items():
            yield interval_update(stream, interval_s)
        for device in offline - online.keys():
            yield online_update(device, False, self._seen.pop(device, None))
        for device, state in online.items():
            self._seen.pop(device, None)
            if not self._says_online(device):
                yield online_update(device, state)
                if device in offline or state:
                    logger.debug("mqtt device reports", device=device)
