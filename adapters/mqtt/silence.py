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
from collections import abc
from collections.abc import Callable, Hashable, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.devices.availability import online_update
from lamplighter.adapters.devices.intervals import Intervals, Learned, ReportingChannel, interval_update
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.literals import NUMBERS, OFFLINE
from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.inbox import Inbox
from lamplighter.adapters.parts import AdapterContext
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
    """A broker of the adapter: its connection, and the rules for it."""

    @property
    def inbox(self) -> Inbox: ...

    @property
    def mapping(self) -> Mapping: ...


class _FormerStream(NamedTuple):
    """A row of the query: what an earlier run learned of a stream."""

    stream: Term
    topic: str
    device: Term
    interval_s: float
    online: bool | None


class Silence:
    """The devices of an adapter. intervals: without a factor, nothing is done. feed: reads what an earlier run has
    learned; None: nothing. says_online: whether an availability topic says if a device is online. brokers: by name.
    """

    def __init__(
        self,
        context: AdapterContext,
        intervals: Intervals,
        feed: AdapterClient | None,
        brokers: abc.Mapping[str, SilenceBroker],
        *,
        says_online: Callable[[Term], bool],
    ) -> None:
        self._client, self._feed, self._brokers = context.client, feed, brokers
        self._clock, self._elapsed = context.now, context.elapsed
        self._says_online = says_online
        self._intervals = intervals
        self._former: list[_FormerStream] = []
        """Rows of the query whose topic no rule reads yet: the rules of the dataset come later."""
        self._rules_known = False
        self._connected: set[str] = set()
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
        if not self._intervals.factor:
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

    def note_commit(self, broker: str, took_s: float) -> None:
        """A batch of a broker took so long. What came meanwhile may have waited."""
        if took_s > STALL_S:
            self._intervals.interrupted(broker, self._elapsed())

    def change_rules(self, changed: set[Term], *, known: bool) -> None:
        """The rules have changed. changed: streams that may be described in another way now; known: whether the rules
        of the dataset are among them, and not still to come."""
        self._rules_known = known
        self._restore()
        self._intervals.keep(
            lambda channel, stream: (
                stream not in changed and self._brokers[str(channel.source)].mapping.covers(channel.name)
            )
        )
        self._changed()

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        if not self._intervals.factor:
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
            broker = next((name for name, found in self._brokers.items() if found.mapping.covers(one.topic)), None)
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
        inbox = self._brokers[str(source)].inbox
        return inbox.subscribed.is_set() and not len(inbox) and not inbox.queue.under_way

    def _mark(self, now: float) -> None:
        """Marks the devices that are overdue, once their brokers have delivered something since that was seen."""
        asked, self._asked = self._asked, {}
        for device in self._intervals.overdue(now, self._ready):
            inboxes = {one: self._brokers[str(one)].inbox for one in self._intervals.sources(device)}
            before = asked.get(device)
            arrivals = {name: inbox.arrivals for name, inbox in inboxes.items()}
            if before is None or any(
                count is not None and count == before.get(name) for name, count in arrivals.items()
            ):
                self._asked[device] = arrivals if before is None else before
                for inbox in inboxes.values():
                    inbox.demand_canary()
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
