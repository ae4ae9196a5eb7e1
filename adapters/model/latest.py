"""Model "latest": one live observation per stream, in the default graph. Each reading replaces its result and time."""

from __future__ import annotations

from lamplighter.adapters.model.descriptions import description_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.terms import Term, literal
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, NUMERIC_VALUE, RESULT_TIME, TIME_PROBLEM

_UNKNOWN = ""


class LatestModel:
    """The updates of readings. State: the mark that the observation of each stream certainly has."""

    def __init__(self) -> None:
        self._marks: dict[Term, str | None] = {}

    def description(self, stream: Stream) -> str:
        return description_update(stream)

    def updates(self, reading: Reading) -> list[str]:
        """The updates that write a reading, in order."""
        stream, problem = reading.stream, reading.time_problem
        if reading.retained:
            self._marks.pop(stream.iri, None)  # it may or may not be written
            return [reading_update(reading, marks=True)]
        marks = self._marks.get(stream.iri, _UNKNOWN) != problem
        if marks:
            self._marks[stream.iri] = problem
        text = reading_update(reading, marks=marks)
        return [clearing_update(stream), text] if reading.again else [text]


def reading_update(reading: Reading, *, marks: bool = False) -> str:
    """Replaces value and time of the stream's live observation.

    A retained message has the state without the time of its change, and the broker repeats it. With the value that is
    already stored it changes nothing. Another value gets no result time, so that no query takes it for a fresh one.
    marks: also replaces the mark `gateway:timeProblem`; otherwise the observation has the reading's already.
    """
    stream = reading.stream
    observation, problem = stream.observation, reading.time_problem
    insert = f"{observation} <{HAS_SIMPLE_RESULT}> {reading.value}"
    if not (reading.retained and problem is not None):
        insert += f" . {observation} <{RESULT_TIME}> {reading.time}"
    delete = f"{observation} <{HAS_SIMPLE_RESULT}> ?value . {observation} <{RESULT_TIME}> ?time"
    where = f"""
  OPTIONAL {{ {observation} <{HAS_SIMPLE_RESULT}> ?value }}
  OPTIONAL {{ {observation} <{RESULT_TIME}> ?time }}"""
    if marks or reading.retained:
        delete += f" . {observation} <{TIME_PROBLEM}> ?problem"
        where += f"\n  OPTIONAL {{ {observation} <{TIME_PROBLEM}> ?problem }}"
        if problem is not None:
            insert += f" . {observation} <{TIME_PROBLEM}> {literal(problem)}"
    if stream.result is not None:
        delete += f" . {stream.result} <{NUMERIC_VALUE}> ?number"
        where += f"\n  OPTIONAL {{ {stream.result} <{NUMERIC_VALUE}> ?number }}"
        insert += f" . {stream.result} <{NUMERIC_VALUE}> {reading.value}"
    if reading.retained:
        where += f"\n  FILTER NOT EXISTS {{ {observation} <{HAS_SIMPLE_RESULT}> {reading.value} }}"
    return f"DELETE {{ {delete} }}\nINSERT {{ {insert} }}\nWHERE {{{where}\n}}"


def clearing_update(stream: Stream) -> str:
    """Removes the value of the live observation, so that subscriptions see an equal one enter again."""
    return f"DELETE WHERE {{ {stream.observation} <{HAS_SIMPLE_RESULT}> ?value }}"
