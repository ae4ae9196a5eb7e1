"""Notifications over MQTT (SensorThings 1.1, 14.2): new Observations are published at the broker of `[mqtt]`.

::

    loop ─▶ resumable subscriptions ─▶ queue of this door ─▶ broker: v1.1/Datastreams('...')/Observations
                    ▲                                          │ acknowledged
                    └──────────── spuids and sequences ◀───────┘ written to the data folder

The messages of one Datastream come in the order of their commits. After a broken connection or a restart the door goes
on behind the last acknowledged notification; what was sent without an acknowledgement is sent again, with the same
@iot.id and resultTime. Where it cannot go on, and at the first start, it publishes the Observations that are there, and
what changes while these are on their way, also after a restart.
The retained messages of a Datastream without an Observation are deleted, also of one that left while the door was away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from lamplighter.adapters.mqtt.connection import BrokerConnection, Canary
from lamplighter.adapters.mqtt.credentials import read_credentials
from lamplighter.adapters.mqtt.link import Publish
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.client.files import read_file
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import ConfigurationError, GatewayError, QueueFullError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.protocol import Results, Resume
from lamplighter.engine.terms import Bag, Term, iri, is_iri, lexical, term_from_json
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.gates.sensorthings.entities import DATASTREAMS, OBSERVATIONS, PHENOMENON_TIME
from lamplighter.gateway.gates.sensorthings.ids import id_of
from lamplighter.gateway.gates.sensorthings.options import QueryOptions, options
from lamplighter.gateway.gates.sensorthings.reading import ANSWER_BYTES_MAX, EntityReading, FoundEntity
from lamplighter.gateway.gates.sensorthings.retained import RetainedTopics, Topics
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.security.callers import ANYBODY
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.resumption import AttachedSubscription
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, LIVE_OBSERVATION, RESULT_TIME, TIME_PROBLEM

logger = EventLogger(__name__)

PLACE_FILE: Final = "sensorthings-mqtt.json"
RETAINED_FILE: Final = "sensorthings-mqtt-retained.jsonl"
KEEP: Final = "P1D"  # how long the subscription is kept while the broker is away; `resume.keep_s_max` may be less
ROWS_MAX: Final = 5_000  # observations that wait here for the broker; further ones wait in the subscription
_AT_ONCE = 20
_CHECKED_AT_ONCE = 500
_RETRY_MIN_S, _RETRY_MAX_S = 1.0, 30.0
_END_S = 5.0  # how long the end of a subscription is awaited
_PARTS = (("time", RESULT_TIME), ("phenomenon", PHENOMENON_TIME), ("problem", TIME_PROBLEM))
_LIVE = f"?stream {iri(LIVE_OBSERVATION)} ?e . ?e {iri(HAS_SIMPLE_RESULT)} ?raw "
_PATTERN = _LIVE + " ".join(f"OPTIONAL {{ ?e {iri(predicate)} ?{name} }}" for name, predicate in _PARTS)
_SELECT = "SELECT ?stream ?e ?raw ?time ?phenomenon ?problem"
# Of Observations in the default graph and in named graphs: a plan follows each, and none follows their union.
QUERIES: Final = (f"{_SELECT} {{ {_PATTERN} }}", f"{_SELECT} {{ GRAPH ?g {{ {_PATTERN} }} }}")

_Row = Mapping[str, Term]


class _AcknowledgedPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """begins: whether Observations of the first result may not have been acknowledged."""

    spuid: str
    sequence: int
    begins: bool = False


class _Missed(msgspec.Struct):
    added: dict[str, Any] = msgspec.field(name="addedResults")
    removed: dict[str, Any] = msgspec.field(name="removedResults")


class _Notice(NamedTuple):
    """rows: Observations that came; left: streams that have lost one, and have no new one."""

    sequence: int
    rows: Sequence[_Row]
    left: frozenset[Term] = frozenset()


class NoticeSink:
    """The sink of the subscription. ended_by: why nothing follows; behind: more notifications wait in the gateway."""

    kind = "mqtt"

    def __init__(self) -> None:
        self.client = "sensorthings"
        self.identity: str | None = None
        self.since: datetime | None = None
        self.connection: object = self
        self.notices: deque[_Notice] = deque()
        self.work = asyncio.Event()
        self.behind = False
        self.ended_by: str | None = None
        self._waiting = 0

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        if reset is not None:
            logger.warning("observations may be published again", reason=reset)
        self._add(0, _solutions(subscription.first))

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        for missed in attached.missed:
            found = msgspec.json.decode(b"{%b}" % missed.members, type=_Missed)
            added, removed = (
                [{name: term_from_json(term) for name, term in row.items()} for row in bag["results"]["bindings"]]
                for bag in (found.added, found.removed)
            )
            self._add(missed.sequence, added, removed)

    def notify(self, notification: Notification, results: Results) -> None:
        self._add(notification.sequence, _solutions(notification.added), _solutions(notification.removed))

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.ended_by = str(error)
        self.work.set()

    def taken_over(self, spuid: str, by: Sink) -> None:
        self.ended_by = "another subscriber resumed the subscription"
        self.work.set()

    def name_no_commits(self) -> None:
        """Nothing names them."""

    def take(self) -> _Notice:
        notice = self.notices.popleft()
        self._waiting -= len(notice.rows)
        return notice

    def _add(self, sequence: int, rows: Sequence[_Row], removed: Sequence[_Row] = ()) -> None:
        if self.behind or (self.notices and self._waiting + len(rows) > ROWS_MAX):
            self.behind = True
        else:
            # A new value replaces the retained message by itself. Only a stream without one has to be cleared.
            left = {row["stream"] for row in removed} - {row["stream"] for row in rows}
            self.notices.append(_Notice(sequence, rows, frozenset(left)))
            self._waiting += len(rows)
        self.work.set()


def _solutions(bag: Bag) -> list[_Row]:
    return [{name: term for name, term in zip(bag.variables, row, strict=True) if term is not None} for row in bag.rows]


class _Listener:
    """Listens to the connection. accepted: set when the broker has accepted it."""

    def __init__(self) -> None:
        self.accepted = asyncio.Event()

    def on_connected(self, connection: BrokerConnection, session_present: bool) -> None:
        self.accepted.set()

    def on_subscribed(self, connection: BrokerConnection, filters: Sequence[str], refused: Sequence[str]) -> None:
        """Nothing is subscribed to."""

    def on_message(self, connection: BrokerConnection, message: Publish) -> None:
        """None comes."""

    def on_drained(self, connection: BrokerConnection) -> None:
        """Nothing is awaited."""

    def on_canaries_given_up(self, connection: BrokerConnection) -> None:
        """None is sent."""


class Notices:
    """Publishes until cancelled. root: the URL of the service root, for links. Raises ConfigurationError."""

    def __init__(self, runner: Runner, settings: Settings, data: Path, root: str) -> None:
        mqtt, own = settings.mqtt, settings.sensorthings
        if not mqtt.host:
            raise ConfigurationError("sensorthings.mqtt needs a broker; set host in [mqtt]")
        broker = mqtt.all_brokers()["default"]
        self._broker: BrokerSettings = msgspec.structs.replace(
            # A client id of its own: with that of the adapter, each would end the connection of the other.
            broker,
            client_id=f"{broker.session}-sensorthings",
            canary_s=0,
            shared="",
        )
        self._credentials = read_credentials(broker, "mqtt")
        self._runner = runner
        self._base_iri = settings.gateway.base_iri
        self._data = data
        self._root = root
        self._topic = own.path.strip("/")
        self._selections = {f"?$select={text}": _selection(text) for text in own.mqtt_select}
        self._places: list[_AcknowledgedPlace | None] = [None] * len(QUERIES)
        self._retained = RetainedTopics()
        self._publishing = asyncio.Lock()  # both queries may have Observations of one stream
        self._connections = 0

    async def run(self) -> None:
        self._places = self._kept_places()
        failures = 0
        while True:
            begun = self._connections
            try:
                await self._publish_over_connection()
            except (UpstreamError, OSError, ValueError) as error:
                failures = 1 if self._connections > begun else failures + 1
                if failures == 1:
                    logger.warning("observations not published", broker=self._broker.host, reason=error)
                await asyncio.sleep(back_off_s(failures, _RETRY_MIN_S, _RETRY_MAX_S))

    async def _publish_over_connection(self) -> None:
        """One connection. Raises UpstreamError, OSError or ValueError when it is over."""
        await asyncio.to_thread(self._retained.load, self._data / RETAINED_FILE)
        listener = _Listener()
        connection = BrokerConnection(
            self._broker,
            (),
            listener,
            credentials=self._credentials,
            canary=Canary(0),
            receive_max=1,
        )
        await connection.open()
        ended = asyncio.ensure_future(connection.ended())
        work = asyncio.ensure_future(self._publish_all(connection, listener))
        try:
            await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            raise UpstreamError(ended.result().reason if ended.done() else "the connection ended")
        finally:
            for task in (ended, work):
                task.cancel()
            await asyncio.wait({ended, work})
            connection.close()

    async def _publish_all(self, connection: BrokerConnection, listener: _Listener) -> None:
        await listener.accepted.wait()
        # Counted when the broker accepts: a failure afterwards is a first one, and the pause short again.
        self._connections += 1
        logger.info("observations are published", broker=self._broker.host, topic=f"{self._topic}/#")
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(QUERIES)):
                    tasks.create_task(self._publish_query(connection, number), name=f"observations {number}")
        except ExceptionGroup as errors:
            # Either query ends the connection; their errors have one reason as a rule.
            raise errors.exceptions[0] from None

    async def _publish_query(self, connection: BrokerConnection, number: int) -> None:
        """Publishes the Observations of one query, until the connection ends. Raises UpstreamError, OSError."""
        while True:
            sink = NoticeSink()
            place = self._places[number]
            spuid = await self._subscribe(number, sink, None if place is None or place.begins else place)
            try:
                if place is None or place.spuid != spuid:
                    await self._begin(connection, spuid, number)
                # What left while nothing was published has no notification.
                await self._clear(connection, self._retained.topics)
                await self._follow(connection, sink, spuid, number)
            finally:
                place = self._places[number]
                if place is None or place.spuid != spuid:
                    await self._end(spuid, sink)  # no place names it, so that nobody would resume it
                elif sink.ended_by is None:
                    self._runner.disconnect(sink, [spuid])
            await self._runner.probe()  # the sink is detached

    async def _subscribe(self, number: int, sink: NoticeSink, place: _AcknowledgedPlace | None) -> str:
        """The spuid; another one than that of the place if it cannot go on there. Raises UpstreamError."""
        resume = Resume(KEEP) if place is None else Resume(KEEP, place.spuid, place.sequence)
        try:
            subscribing = self._runner.subscribe(QUERIES[number], sink, None, None, resume=resume, caller=ANYBODY)
            return await asyncio.shield(subscribing)
        except asyncio.CancelledError:
            # It has its turn all the same, and a subscription that no place names would be kept for nobody.
            await asyncio.wait({subscribing}, timeout=_END_S)
            if subscribing.done() and not subscribing.cancelled() and subscribing.exception() is None:
                spuid = subscribing.result()
                if place is None or place.spuid != spuid:
                    await self._end(spuid, sink)
            raise
        except GatewayError as error:
            raise UpstreamError(f"the gateway refuses the subscription: {error}") from error

    async def _begin(self, connection: BrokerConnection, spuid: str, number: int) -> None:
        """Keeps the place of a new subscription before its first result is published, so that nothing is lost that
        changes while that is on its way. Raises UpstreamError, OSError.

        What a former one has missed that did not get further comes before. Its first result does not: that of the new
        one has what is left of it.
        """
        sink = NoticeSink()
        former = self._places[number]
        if former is not None and former.begins:
            sink.behind = True
            while sink.behind:
                sink = NoticeSink()
                resumed = await self._subscribe(number, sink, self._places[number])
                try:
                    await self._publish_waiting(connection, sink, resumed, number, begins=True)
                finally:
                    self._runner.disconnect(sink, [resumed])
        former, self._places[number] = self._places[number], _AcknowledgedPlace(spuid, 0, begins=True)
        self._keep_places()
        if former is not None:
            await self._end(former.spuid, sink)

    async def _end(self, spuid: str, sink: NoticeSink) -> None:
        """Waits for it, or the loop could end before; what is not ended here ends by itself after KEEP."""
        self._runner.disconnect(sink, [spuid])
        with suppress(QueueFullError):
            end = self._runner.unsubscribe(spuid, sink)
            await asyncio.wait({end}, timeout=_END_S)
            end.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _follow(self, connection: BrokerConnection, sink: NoticeSink, spuid: str, number: int) -> None:
        """Publishes what a sink receives; returns when nothing follows there."""
        while True:
            await sink.work.wait()
            sink.work.clear()
            await self._publish_waiting(connection, sink, spuid, number)
            if sink.ended_by is not None:
                logger.warning("subscription of the observations ended", reason=sink.ended_by)
                return
            if sink.behind:
                return

    async def _publish_waiting(
        self, connection: BrokerConnection, sink: NoticeSink, spuid: str, number: int, *, begins: bool = False
    ) -> None:
        """Publishes what waits in a sink, and keeps the place behind it. Raises UpstreamError, OSError."""
        while sink.notices:
            notice = sink.take()
            await self._publish(connection, notice.rows)
            if notice.left:
                await self._clear(connection, notice.left)
            # Behind the acknowledgements of the broker: a crash before repeats, and loses nothing.
            self._places[number] = _AcknowledgedPlace(spuid, notice.sequence, begins)
            # Once for all that were waiting, not for each: it wears the card.
            if not sink.notices:
                self._keep_places()

    async def _publish(self, connection: BrokerConnection, rows: Sequence[_Row]) -> None:
        """Returns when the broker has acknowledged all. Raises UpstreamError, OSError."""
        async with self._publishing:
            # Noted before they are published: a retained message that nobody knows of could never be deleted.
            await self._note({row["stream"]: self._topics(row["stream"]) for row in rows if is_iri(row["stream"])})
            # Some at a time, so that a large first result does not fill the send buffer.
            for start in range(0, len(rows), _AT_ONCE):
                messages = [one for row in rows[start : start + _AT_ONCE] for one in self._messages(row)]
                sent = [connection.publish(topic, payload, 1, retain=retain) for topic, payload, retain in messages]
                await asyncio.gather(*sent)

    async def _clear(self, connection: BrokerConnection, streams: Iterable[Term]) -> None:
        """Deletes the retained messages of those streams that have no Observation, and those on topics that are not
        used any more. Raises UpstreamError, OSError."""
        async with self._publishing:
            known = [stream for stream in streams if stream in self._retained.topics]
            for start in range(0, len(known), _CHECKED_AT_ONCE):
                some = known[start : start + _CHECKED_AT_ONCE]
                live = await self._live(some)
                wanted = {stream: self._topics(stream) if stream in live else [] for stream in some}
                gone = [
                    topic for stream in some for topic in self._retained.topics[stream] if topic not in wanted[stream]
                ]
                for first in range(0, len(gone), _AT_ONCE):
                    part = gone[first : first + _AT_ONCE]
                    await asyncio.gather(*(connection.publish(topic, b"", 1, retain=True) for topic in part))
                # And forgotten after they are deleted, for the same reason.
                await self._note(wanted)

    async def _live(self, streams: Sequence[Term]) -> set[Term]:
        """Those that have an Observation. Raises UpstreamError."""
        values = f"VALUES ?stream {{ {' '.join(streams)} }}"
        patterns = f"{{ {values} {_LIVE} }} UNION {{ {values} GRAPH ?g {{ {_LIVE} }} }}"
        try:
            query = f"SELECT DISTINCT ?stream {{ {patterns} }}"
            streams_left = await select(self._runner, ANYBODY, query, ANSWER_BYTES_MAX)
        except GatewayError as error:
            raise UpstreamError(f"the gateway does not tell which Datastreams are left: {error}") from error
        return {row["stream"] for row in streams_left.bindings()}

    async def _note(self, topics: Topics) -> None:
        """Returns when the file has the retained topics of streams. Raises OSError."""
        if differing := self._retained.differing(topics):
            await asyncio.to_thread(self._retained.note, differing)

    def _path(self, stream: Term) -> str:
        return f"{self._topic}/{DATASTREAMS.set}('{id_of(lexical(stream), self._base_iri)}')/{OBSERVATIONS.set}"

    def _topics(self, stream: Term) -> list[str]:
        return [self._path(stream) + text for text in ("", *self._selections)]

    def _messages(self, row: _Row) -> list[tuple[str, bytes, bool]]:
        """Topic, payload and whether it is retained, of one Observation."""
        if not is_iri(row["e"]) or not is_iri(row["stream"]):
            return []
        found = FoundEntity(lexical(row["e"]), row, 0)
        reading = EntityReading(self._runner, self._base_iri, self._root, ANYBODY)
        topic = self._path(row["stream"])
        whole = msgspec.json.encode(reading.members(OBSERVATIONS, found, QueryOptions()))
        messages = [(f"{self._topic}/{OBSERVATIONS.set}", whole, False), (topic, whole, True)]
        for text, selection in self._selections.items():
            part = msgspec.json.encode(reading.members(OBSERVATIONS, found, selection))
            messages.append((topic + text, part, True))
        return messages

    def _kept_places(self) -> list[_AcknowledgedPlace | None]:
        """Those of an earlier run; None for none, and for a file that a power cut has spoiled."""
        with suppress(OSError, msgspec.DecodeError):
            content = read_file(self._data / PLACE_FILE, follow=False)
            found = msgspec.json.decode(content, type=list[_AcknowledgedPlace | None])
            if len(found) == len(QUERIES):
                return found
        return [None] * len(QUERIES)

    def _keep_places(self) -> None:
        """Without a sync: an older place only publishes some Observations again."""
        file = self._data / PLACE_FILE
        written = file.with_suffix(".new")
        try:
            written.write_bytes(msgspec.json.encode(self._places))
            written.replace(file)
        except OSError as error:
            logger.warning("place not kept", file=file, reason=error)


def _selection(text: str) -> QueryOptions:
    """Raises ConfigurationError."""
    try:
        return options({"$select": text}, OBSERVATIONS, many=True)
    except GatewayError as error:
        raise ConfigurationError(f"sensorthings.mqtt_select: {error}") from error
