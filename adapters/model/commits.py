"""Readings -> durable updates: batches, owners and descriptions of streams, and what the gateway refuses.

Two batches may be under way, so that the gateway finds the next one when it has committed one. The numbers of the
commits tell whether the second one has overtaken readings that the gateway had refused for the moment. It is then
written again, so that the last update of a stream has its newest reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, TypeVar

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, UpdatesClient
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.lifetimes import Lifetimes
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.adapters.model.repeats import Repeats
from lamplighter.engine.client import DeclaredCause, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.sharing import portions
from lamplighter.engine.terms import Term, lexical

# SPARQL in one message to the gateway, well below the limit of its socket. A longer update goes alone.
UPDATE_CHARS_MAX = 512 * 1024
# Readings that are written together, besides those of the last message: each takes 2 kB as an update, and one message
# can have thousands.
BATCH_READINGS_MAX = 4_096
# How long messages are read in one go, besides the time of one message.
SLICE_S = 0.02
# How often readings that `throttle_s` holds back are looked at.
HELD_CHECK_S = 0.5
# Of all streams, on average; those of usual names have 800. Long topics make no more than so many streams.
STREAM_CHARS_MEAN = 2_000

logger = EventLogger(__name__)
Message = TypeVar("Message")


async def in_slices(messages: Iterable[Message]) -> AsyncIterator[Message]:
    """The messages. Other work of the loop, such as the watchdog, runs at least each `SLICE_S` between two of them:
    expressions and large payloads may take long."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for message in messages:
        yield message
        if loop.time() - begun >= SLICE_S:
            await asyncio.sleep(0)
            begun = loop.time()


class StreamOwners:
    """The streams of one run, at most `streams_max`, however their readings come. kind: of the adapter, such as "mqtt";
    warn: takes topic and reason of a reading that is refused."""

    def __init__(self, streams_max: int, warn: Callable[[str, str], None], *, kind: str) -> None:
        self.streams_max = streams_max
        self._warn, self._kind = warn, kind
        self._owners: dict[Term, tuple[str, Stream]] = {}
        self._chars = 0

    def may_write(self, broker: str, reading: Reading) -> bool:
        """Whether the reading is of the owner of its stream. broker: its name; "" for CoAP."""
        stream = reading.stream
        owner = self._owners.get(stream.iri)
        most = self.streams_max
        if owner is None and len(self._owners) < most and self._chars < STREAM_CHARS_MEAN * most:
            self._owners[stream.iri] = owner = broker, stream
            self._chars += stream.chars()
        if owner is None:
            self._warn("*", f"more than {most} streams ({self._kind}.streams_max)")
            return False
        name, owning = owner
        if owning is stream and name == broker:
            return True
        if owning != stream:
            self._warn(stream.topic, f"its stream {stream.iri} belongs to topic {owning.topic} by {owning.rule}")
        elif name != broker:
            self._warn(stream.topic, f"its stream {stream.iri} is read from broker {name!r}, not from {broker!r}")
        return owning == stream and name == broker

    def streams(self, broker: str) -> list[Stream]:
        """Those that were read from a broker."""
        return [stream for name, stream in self._owners.values() if name == broker]

    def forget(self, rules: Set[str]) -> set[Term]:
        """Forgets the streams of rules, and returns them."""
        found = {iri for iri, (_, stream) in self._owners.items() if stream.rule in rules}
        for iri in found:
            _, stream = self._owners.pop(iri)
            self._chars -= stream.chars()
        return found


class CommitCounters(Protocol):
    """Readings. committed: the update is durable; rejected: the gateway refused it permanently; repeated: dropped or
    replaced by a newer one, as on_repeat, dead_band and throttle_s say; outdated: dropped, as by its own time it is
    older than the live one."""

    committed: int
    rejected: int
    repeated: int
    outdated: int


@dataclass(slots=True, eq=False)
class Writing:
    """A batch of readings on its way. sent: all its updates are; last: the number of its last commit; settled: set by
    the caller, when its messages are acknowledged; refused: readings that the gateway refused permanently."""

    sent: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    last: int = 0
    refused: list[tuple[Reading, GatewayError]] = field(default_factory=list)


class _Step(NamedTuple):
    """One update of a batch. reading: what it is for; prepares: it describes the stream, or makes room for the value;
    describes: it describes the stream. delay: after which it ends the value, and ends: how; empty for
    the others."""

    sparql: str
    reading: Reading
    prepares: bool = False
    describes: bool = False
    delay: str = ""
    ends: str = ""

    def request(self, kind: str) -> UpdateRequest:
        reading, request_id = self.reading, None
        if reading.request_id:
            part = "description" if self.describes else "before" if self.prepares else "value"
            part = f"{self.ends} {self.delay}" if self.delay else part
            request_id = f"{reading.request_id}-{part}"
        cause = DeclaredCause(kind, reading.stream.topic)
        if self.delay:  # while the gateway is off it becomes due, and is run at its start
            return UpdateRequest(self.sparql, request_id=request_id, cause=cause, delay=self.delay, missed="run")
        return UpdateRequest(self.sparql, request_id=request_id, cause=cause)


class Warn(Protocol):
    def __call__(self, topic: str, reason: str, *, lost: bool = False) -> None:
        """Reports a reading that is not written. lost: the gateway refused it."""
        ...


class ModelSettings(Protocol):
    """Of the table of an adapter. events_kept, streams_max: as of `EventModel`."""

    @property
    def model(self) -> Literal["latest", "event"]: ...
    @property
    def events_kept(self) -> int: ...
    @property
    def streams_max(self) -> int: ...


class ReadingCommits:
    """Writes readings in a model. kind: of the adapter, such as "mqtt"; counters: counted here.

    repeats: which readings are dropped. numbered: whether the gateway tells the numbers of commits; without them,
    batches have to be written in turn.
    """

    def __init__(
        self,
        client: UpdatesClient,
        *,
        kind: str,
        settings: ModelSettings,
        counters: CommitCounters,
        warn: Warn,
    ) -> None:
        self._client = client
        self._kind = kind
        self._counters = counters
        self._warn = warn
        self._model: LatestModel | EventModel = LatestModel()
        if settings.model == "event":
            self._model = EventModel(settings.events_kept, settings.streams_max)
        self.repeats = Repeats(settings.streams_max)
        self._lifetimes = Lifetimes(settings.streams_max, events=settings.model == "event")
        self._described: set[Term] = set()
        self._changes = 0
        self.numbered = False

    def selected(self, readings: Iterable[Reading], now: datetime) -> list[Reading]:
        """The readings that are to be written: without repeated and older ones, with those that were held back until
        now. now: by the clock of `received`."""
        written: list[Reading] = []
        for reading in readings:
            if self._model.outdated(reading):
                self._counters.outdated += 1
                logger.debug(f"{self._kind} reading outdated", topic=reading.stream.topic, time=lexical(reading.time))
            elif (kept := self.repeats.written(reading)) is not None:
                written.append(kept)
            else:
                self._counters.repeated += 1
        due = self.repeats.due(now) if self.repeats.held else []
        self._counters.repeated -= len(due)
        return written + due

    async def write(self, readings: Sequence[Reading], one: Writing, before: Writing | None) -> None:
        """Returns when each reading is durable or finally refused, after the batch before it has been settled."""
        changes = self._changes
        parts = list(portions(self._steps(readings), lambda step: len(step.sparql), UPDATE_CHARS_MAX))
        if before is not None:
            await before.sent.wait()
        numbers: list[int | None] = []
        for index, steps in enumerate(parts, 1):
            if index == len(parts):
                one.sent.set()  # the next batch continues only after `_commit` has sent these
            numbers += await self._commit(steps, changes, one)
        one.sent.set()
        known = [number for number in numbers if number is not None]
        if numbers:
            self.numbered = len(known) == len(numbers)
        if before is not None:
            await before.settled.wait()
            if known and before.last > min(known):
                for steps in parts:
                    known += [number or 0 for number in await self._commit(steps, changes, one, again=True)]
        one.last = max(known, default=0 if before is None else before.last)

    def describe_again(self, streams: Iterable[Term]) -> None:
        """The next readings of these streams bring their descriptions."""
        self._changes += 1  # a description that is under way now is not theirs
        streams = frozenset(streams)
        self._described -= streams
        self._model.forget(streams)

    def _steps(self, readings: Sequence[Reading]) -> list[_Step]:
        """The updates of readings, in order; a stream's description comes before its first reading."""
        steps: list[_Step] = []
        described: set[Term] = set()
        for reading in readings:
            stream = reading.stream.iri
            if stream not in self._described and stream not in described:
                described.add(stream)
                description = self._model.description(reading.stream)
                steps.append(_Step(description, reading, prepares=True, describes=True))
            *first, last = self._model.updates(reading)
            steps += [_Step(text, reading, prepares=True) for text in first]
            steps.append(_Step(last, reading))
            if reading.stream.lifetime is not None:
                ends = self._lifetimes.ends(reading)
                steps += [_Step(end.sparql, reading, prepares=True, delay=end.delay, ends=end.kind) for end in ends]
        return steps

    async def _commit(self, steps: list[_Step], changes: int, one: Writing, *, again: bool = False) -> list[int | None]:
        """The numbers of the commits, when each step has a final answer. again: the steps were committed before.

        A step that failed temporarily is sent again, together with the later steps of its stream, so that the last
        update of a stream has its newest reading.
        """
        failures = 0
        said = False
        numbers: list[int | None] = []
        while steps:
            answers = await self._client.updates([step.request(self._kind) for step in steps])
            unsettled: list[_Step] = []
            streams: set[Term] = set()
            for step, answer in zip(steps, answers, strict=True):
                stream = step.reading.stream
                error = None
                if isinstance(answer, GatewayError):
                    error = answer
                else:
                    numbers.append(answer.sequence)
                if stream.iri in streams or (error and error.retriable):
                    streams.add(stream.iri)
                    unsettled.append(step)
                    if error and not said:
                        said = True
                        logger.warning(f"{self._kind} readings wait for the gateway", reason=error)
                elif error:
                    self._counters.rejected += not step.prepares
                    one.refused.append((step.reading, error))
                    self._warn(stream.topic, f"the gateway refused it: {error}", lost=True)
                elif step.describes:
                    if changes == self._changes:
                        self._described.add(stream.iri)
                elif not step.prepares and not again:
                    self._counters.committed += 1
            steps = unsettled
            if steps:
                failures += 1
                await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))
        return numbers
