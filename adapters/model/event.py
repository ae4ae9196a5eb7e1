"""Model "event": each reading is a compound event (Pellegrino 2013), in a named graph of its own.

The graph has the observation and the link from the stream to it. Its IRI is the stream's, the result time and a
number. The newest N readings of a stream stay in the dataset; all are in the change log.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from datetime import datetime

from lamplighter.adapters.literals import FALSE, TRUE, datetime_term, nil_reason
from lamplighter.adapters.model.descriptions import description_update, quantity
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.terms import Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import (
    HAS_FEATURE_OF_INTEREST,
    HAS_SIMPLE_RESULT,
    LIVE_OBSERVATION,
    MADE_BY_SENSOR,
    NIL_REASON,
    NUMERIC_VALUE,
    OBSERVATION,
    OBSERVED_PROPERTY,
    RDF_TYPE,
    RESULT_TIME,
    TIME_PROBLEM,
)


class _Written:
    """The graphs of a stream that this process has written and that are live; whether there are no others."""

    __slots__ = ("alone", "graphs", "number", "time")

    def __init__(self) -> None:
        self.graphs: deque[Term] = deque()
        self.alone = False
        self.time = ""
        self.number = 0


class EventModel:
    """The updates of readings. kept: readings of a stream that stay live; streams_max: bounds the memory.

    Graphs of an earlier process are found by a query within the first updates of a stream, until `kept` readings of
    this process are live. After that each update drops one graph by its name.
    """

    def __init__(self, kept: int, streams_max: int) -> None:
        self._kept = kept
        self._streams_max = streams_max
        self._written: OrderedDict[Term, _Written] = OrderedDict()

    def description(self, stream: Stream) -> str:
        return description_update(stream, live=False)

    def forget(self, streams: Iterable[Term]) -> None:
        """Each reading has a graph of its own, in which a former rule has left nothing."""

    def outdated(self, reading: Reading) -> bool:
        """False: each reading is an observation of its own."""
        return False

    def updates(self, reading: Reading) -> list[str]:
        """The update that writes a reading and removes those that are not live any more."""
        stream = reading.stream
        written = self._written.get(stream.iri)
        if written is None:
            if len(self._written) >= self._streams_max:
                self._written.popitem(last=False)
            written = self._written[stream.iri] = _Written()
        else:
            self._written.move_to_end(stream.iri)
        tail = self._tail(written, reading)
        graph = iri(f"{lexical(stream.iri)}/{tail}")
        inserted = insertion(reading, graph, tail)
        if stream.lifetime is not None:  # the gateway inserts ends, of which this process knows nothing
            return [f"{trimming(stream, self._kept - 1)} ;\n{inserted}"]
        written.graphs.append(graph)
        if len(written.graphs) <= self._kept:
            if written.alone:
                return [inserted]
            written.alone = len(written.graphs) == self._kept
            return [f"{trimming(stream, self._kept - 1)} ;\n{inserted}"]
        return [f"DROP SILENT GRAPH {written.graphs.popleft()} ;\n{inserted}"]

    def _tail(self, written: _Written, reading: Reading) -> str:
        time = lexical(reading.time)
        written.number = written.number + 1 if written.time == time else 0
        written.time = time
        return f"{time}/{written.number}"


def insertion(reading: Reading, graph: Term, tail: str) -> str:
    """INSERT of a reading's graph, under the condition of its stream. A retained value that a live reading already has
    is not inserted."""
    stream = reading.stream
    observation = iri(f"{lexical(stream.observation)}/{tail}")
    nil = nil_reason(reading.value)
    result = (HAS_SIMPLE_RESULT, reading.value) if nil is None else (NIL_REASON, nil)
    triples = [
        (observation, RDF_TYPE, iri(OBSERVATION)),
        (observation, MADE_BY_SENSOR, stream.sensor),
        (observation, OBSERVED_PROPERTY, stream.property),
        (observation, HAS_FEATURE_OF_INTEREST, stream.feature),
        (observation, *result),
        (stream.iri, LIVE_OBSERVATION, observation),
    ]
    if not (reading.retained and reading.time_problem is not None):
        triples.append((observation, RESULT_TIME, reading.time))
    if reading.time_problem is not None:
        triples.append((observation, TIME_PROBLEM, literal(reading.time_problem)))
    if stream.result is not None and nil is None:
        number = iri(f"{lexical(stream.result)}/{tail}")
        triples += [*quantity(stream, observation, number), (number, NUMERIC_VALUE, reading.value)]
    body = " ".join(f"{s} <{p}> {o} ." for s, p, o in triples)
    if not reading.retained and not stream.condition:
        return f"INSERT DATA {{ GRAPH {graph} {{ {body} }} }}"
    inserted = f"INSERT {{ GRAPH {graph} {{ {body} }} }}\nWHERE {{ {stream.condition}"
    if not reading.retained:
        return inserted + "}"
    return (
        f"{inserted}FILTER NOT EXISTS {{ GRAPH ?g {{ "
        f"{stream.iri} <{LIVE_OBSERVATION}> ?live . ?live <{result[0]}> {result[1]} }} }} }}"
    )


def end_update(stream: Stream, value: Term, reported: datetime, at: datetime) -> str:
    """Inserts an event that ends the value, if the newest reading has a value, and was reported at this time or
    earlier. value: false, or a term for no value; then the newest reading has to be true. at: when it ends."""
    tail = f"{lexical(datetime_term(at))}/end"
    inserted = insertion(Reading(stream, value, datetime_term(at), False), iri(f"{lexical(stream.iri)}/{tail}"), tail)
    body = inserted.partition("{")[2].rpartition("}")[0] if not stream.condition else ""
    insert = f"INSERT {{{body}}}\nWHERE {{ " if body else inserted.rstrip("}")
    was = f"?last = {TRUE}" if value == FALSE else "BOUND(?last)"
    return (
        f"{insert}{{ SELECT ?last ?time {{ GRAPH ?g {{ {stream.iri} <{LIVE_OBSERVATION}> ?live "
        f"OPTIONAL {{ ?live <{HAS_SIMPLE_RESULT}> ?last }} OPTIONAL {{ ?live <{RESULT_TIME}> ?time }} }} }} "
        f"ORDER BY DESC(STR(?g)) LIMIT 1 }} "
        f"FILTER({was} && (!BOUND(?time) || ?time <= {datetime_term(reported)})) }}"
    )


def trimming(stream: Stream, kept: int) -> str:
    """The update that removes all graphs of the stream's readings but the newest ones."""
    return (
        f"DELETE {{ GRAPH ?g {{ ?s ?p ?o }} }}\nWHERE {{\n  {{ SELECT ?g {{ GRAPH ?g {{ {stream.iri} "
        f"<{LIVE_OBSERVATION}> ?live }} }} ORDER BY DESC(STR(?g)) OFFSET {kept} }}\n  GRAPH ?g {{ ?s ?p ?o }}\n}}"
    )
