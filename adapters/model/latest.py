"""Model "latest": one live observation per stream, in the default graph. Each reading replaces its result and time.

A reading whose own time is older than that of the live one is dropped, as is a historical one. Without a value, the
observation has gateway:nilReason in place of the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from lamplighter.adapters.literals import NIL, datetime_term, nil_reason
from lamplighter.adapters.model.descriptions import description_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.terms import Term, lexical, literal
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, NIL_REASON, NUMERIC_VALUE, RESULT_TIME, TIME_PROBLEM

_UNKNOWN = ""


class LatestModel:
    """The updates of readings. State: the mark that the observation of each stream certainly has, and the newest time
    of streams whose messages have one."""

    def __init__(self) -> None:
        # Time problem, and the term for no value.
        self._marks: dict[Term, tuple[str | None, Term | None]] = {}
        # `_UNKNOWN`: the live reading has a time problem, so its time does not compare.
        self._times: dict[Term, Term] = {}
        # Streams whose next update has to compare the times itself; an earlier run wrote the live reading.
        self._first: set[Term] = set()

    def description(self, stream: Stream) -> str:
        return description_update(stream)

    def outdated(self, reading: Reading) -> bool:
        """Whether a reading is older than the live one. If not, the caller writes it."""
        if reading.historical or not reading.own_time:
            return reading.historical
        stream = reading.stream
        if reading.time_problem is not None:
            self._times[stream.iri] = _UNKNOWN
            return False
        live = self._times.get(stream.iri)
        if live is None and stream.keep is None:  # what `repeats` has noted must be written
            self._first.add(stream.iri)
        if live and reading.time < live and not _ahead(live, reading.received):
            return True
        self._times[stream.iri] = reading.time
        return False

    def forget(self, streams: Iterable[Term]) -> None:
        """What the observations of these streams have may be of a former rule."""
        for stream in streams:
            self._marks.pop(stream, None)

    def updates(self, reading: Reading) -> list[str]:
        """The updates that write a reading, in order."""
        stream, problem = reading.stream, reading.time_problem
        if stream.iri in self._first:
            self._first.discard(stream.iri)
            return [reading_update(reading, marks=True, compares=problem is None)]
        if reading.retained:
            self._marks.pop(stream.iri, None)  # it may or may not be written
            return [reading_update(reading, marks=True)]
        mark = problem, reading.value if reading.value.endswith(NIL) else None
        # What a lifetime has ended is marked by the gateway, without a word to the adapter.
        marks = stream.lifetime is not None or self._marks.get(stream.iri) != mark
        if marks:
            self._marks[stream.iri] = mark
        text = reading_update(reading, marks=marks)
        return [clearing_update(stream), text] if reading.again else [text]


def _ahead(time: Term, received: datetime) -> bool:
    """Whether a time was written while the clocks were wrong: it is after the arrival of a later message."""
    return received.tzinfo is not None and datetime.fromisoformat(lexical(time)) > received


def reading_update(reading: Reading, *, marks: bool = False, compares: bool = False) -> str:
    """Replaces value and time of the stream's live observation.

    A retained message has the state without the time of its change, and the broker repeats it. With the value that is
    already stored it changes nothing. Another value gets no result time, so that no query takes it for a fresh one.
    marks: also replaces the marks `gateway:timeProblem` and `gateway:nilReason`; otherwise the observation has the
    reading's already.
    compares: changes nothing if the live observation has a later time, without a mark and not after the arrival.
    """
    stream = reading.stream
    observation, problem = stream.observation, reading.time_problem
    nil = nil_reason(reading.value)
    result = f"<{HAS_SIMPLE_RESULT}> {reading.value}" if nil is None else f"<{NIL_REASON}> {nil}"
    insert = f"{observation} {result}"
    if not (reading.retained and problem is not None):
        insert += f" . {observation} <{RESULT_TIME}> {reading.time}"
    delete = f"{observation} <{HAS_SIMPLE_RESULT}> ?value . {observation} <{RESULT_TIME}> ?time"
    where = f"""
  {stream.condition}OPTIONAL {{ {observation} <{HAS_SIMPLE_RESULT}> ?value }}
  OPTIONAL {{ {observation} <{RESULT_TIME}> ?time }}"""
    if marks or reading.retained:
        for name, variable in ((TIME_PROBLEM, "?problem"), (NIL_REASON, "?nil")):
            delete += f" . {observation} <{name}> {variable}"
            where += f"\n  OPTIONAL {{ {observation} <{name}> {variable} }}"
        if problem is not None:
            insert += f" . {observation} <{TIME_PROBLEM}> {literal(problem)}"
    if stream.result is not None:
        delete += f" . {stream.result} <{NUMERIC_VALUE}> ?number"
        where += f"\n  OPTIONAL {{ {stream.result} <{NUMERIC_VALUE}> ?number }}"
        if nil is None:
            insert += f" . {stream.result} <{NUMERIC_VALUE}> {reading.value}"
    if compares:
        later = ""
        if reading.received.tzinfo is not None:
            later = f" || ?time > {datetime_term(reading.received)}"
        where += f"\n  FILTER(!BOUND(?time) || BOUND(?problem) || ?time <= {reading.time}{later})"
    if reading.retained:
        where += f"\n  FILTER NOT EXISTS {{ {observation} {result} }}"
    return f"DELETE {{ {delete} }}\nINSERT {{ {insert} }}\nWHERE {{{where}\n}}"


def clearing_update(stream: Stream) -> str:
    """Removes the value of the live observation, so that subscriptions see an equal one enter again."""
    return f"DELETE WHERE {{ {stream.observation} <{HAS_SIMPLE_RESULT}> ?value }}"
