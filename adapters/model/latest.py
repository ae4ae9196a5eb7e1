"""Model "latest": one live observation per stream, in the default graph. Each reading replaces its result and time."""

from __future__ import annotations

from lamplighter.adapters.model.descriptions import description_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.terms import Term, literal
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, NUMERIC_VALUE, RESULT_TIME, TIME_PROBLEM


class LatestModel:
    """The updates of readings. State: the streams whose observation certainly has no mark, at most all streams."""

    def __init__(self) -> None:
        self._unmarked: set[Term] = set()

    def description(self, stream: Stream) -> str:
        return description_update(stream)

    def updates(self, reading: Reading) -> list[str]:
        """The updates that write a reading, in order."""
        stream = reading.stream
        marked = reading.retained or reading.time_problem is not None
        if not marked and stream.iri in self._unmarked:
            text = reading_update(reading)
        else:
            text = reading_update(reading, marks=True)
            (self._unmarked.discard if marked else self._unmarked.add)(stream.iri)
        return [clearing_update(stream), text] if reading.again else [text]


def reading_update(reading: Reading, *, marks: bool = False) -> str:
    """Replaces value and time of the stream's live observation.

    A retained message has the state without the time of its change, and the broker repeats it. With the value that is
    already stored it changes nothing. Another value gets no result time, so that no query takes it for a fresh one.
    marks: also replaces the mark `gateway:timeProblem`, if there is one. A reading that has a mark writes it always.
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
    if marks or problem is not None:
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
