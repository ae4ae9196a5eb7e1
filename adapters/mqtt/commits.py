"""Readings -> durable updates: descriptions of streams, batches, and what the gateway refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, UpdatesClient, retry_s
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.inbox import InboxCounters
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.engine.client import DeclaredCause, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term, lexical

UPDATE_CHARS_MAX = 256 * 1024
"""SPARQL in one message to the gateway, well below the limit of its socket. A longer update goes alone."""

logger = EventLogger(__name__)


@dataclass(slots=True)
class MqttCounters(InboxCounters):
    """Since the adapter was made, also those of its inbox. They count readings, except dropped_unmapped.

    committed: the update is durable; dropped_payload: payload or topic is broken; dropped_unmapped: messages whose
    topic no rule covers; refused: the stream belongs to another topic, or is one too many; rejected: the gateway
    refused it permanently; repeated: dropped or replaced by a newer one, as on_repeat, dead_band and throttle_s say;
    outdated: dropped, as by its own time it is older than the live one.
    """

    committed: int = 0
    dropped_payload: int = 0
    dropped_unmapped: int = 0
    refused: int = 0
    rejected: int = 0
    repeated: int = 0
    outdated: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    """One update of a batch. reading: what it is for; prepares: it describes the stream, or makes room for the value;
    describes: it describes the stream."""

    sparql: str
    reading: Reading
    prepares: bool = False
    describes: bool = False


class Warn(Protocol):
    def __call__(self, topic: str, reason: str, *, lost: bool = False) -> None:
        """Reports a reading that is not written. lost: the gateway refused it."""
        ...


class ReadingCommits:
    """Writes readings in the model of the settings. counters: `committed` and `rejected` are counted here."""

    def __init__(self, client: UpdatesClient, settings: MqttSettings, counters: MqttCounters, warn: Warn) -> None:
        self._client = client
        self._counters = counters
        self._warn = warn
        self._model: LatestModel | EventModel = LatestModel()
        if settings.model == "event":
            self._model = EventModel(settings.events_kept, settings.streams_max)
        self._described: set[Term] = set()

    def current(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings that are not older than the live ones."""
        found = []
        for reading in readings:
            if self._model.outdated(reading):
                self._counters.outdated += 1
                logger.debug("mqtt reading outdated", topic=reading.stream.topic, time=lexical(reading.time))
            else:
                found.append(reading)
        return found

    async def write(self, readings: Sequence[Reading]) -> None:
        """Returns when each reading is durable or finally refused."""
        for steps in _portions(self._steps(readings)):
            await self._commit(steps)

    def describe_again(self, streams: Iterable[Term]) -> None:
        """The next readings of these streams bring their descriptions."""
        self._described.difference_update(streams)

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
        return steps

    async def _commit(self, steps: list[_Step]) -> None:
        """Returns when each step has a final answer.

        A step that failed temporarily is sent again, together with the later steps of its stream, so that the last
        update of a stream has its newest reading.
        """
        failures = 0
        said = False
        while steps:
            answers = await self._client.updates(
                [
                    UpdateRequest(sparql=step.sparql, cause=DeclaredCause("mqtt", step.reading.stream.topic))
                    for step in steps
                ]
            )
            again: list[_Step] = []
            streams: set[Term] = set()
            for step, answer in zip(steps, answers, strict=True):
                stream = step.reading.stream
                error = answer if isinstance(answer, GatewayError) else None
                if stream.iri in streams or (error and error.retriable):
                    streams.add(stream.iri)
                    again.append(step)
                    if error and not said:
                        said = True
                        logger.warning("mqtt readings wait for the gateway", reason=error)
                elif error:
                    self._counters.rejected += not step.prepares
                    self._warn(stream.topic, f"the gateway refused it: {error}", lost=True)
                elif step.describes:
                    self._described.add(stream.iri)
                elif not step.prepares:
                    self._counters.committed += 1
            steps = again
            if steps:
                failures += 1
                await asyncio.sleep(retry_s(failures, RETRY_MIN_S, RETRY_MAX_S))


def _portions(steps: list[_Step]) -> Iterator[list[_Step]]:
    """The steps in order, in lists of at most `UPDATE_CHARS_MAX` characters, or of one step."""
    portion: list[_Step] = []
    chars = 0
    for step in steps:
        if portion and chars + len(step.sparql) > UPDATE_CHARS_MAX:
            yield portion
            portion, chars = [], 0
        portion.append(step)
        chars += len(step.sparql)
    if portion:
        yield portion
