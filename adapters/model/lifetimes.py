"""Values that end without another report: `off_delay_s` and `expire_after_s` of a rule.

::

    reading at 10:00:00 ─▶ delayed update for 10:00:30 ─▶ no report since 10:00:00? then false, or no value

The gateway keeps the delayed updates in its change log, so a value ends while no adapter runs, too, and across
restarts. An update has an effect only if the observation has no later result time.

A source that reports often would make an update of each report. Within a window, only the first one and the end of the
window have theirs. So a value ends on time after a single report, and a window later at most after many.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import NamedTuple

from lamplighter.adapters.literals import EXPIRED, FALSE, TRUE, datetime_term
from lamplighter.adapters.model.event import end_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.terms import Term, lexical, literal
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, NIL_REASON, NUMERIC_VALUE, RESULT_TIME, TIME_PROBLEM

NO_VALUE = literal(lexical(EXPIRED), datatype=NIL_REASON)
# In a lifetime: twice as many updates of a value may be pending.
WINDOWS = 10


class ValueEnd(NamedTuple):
    """A delayed update, and its delay as an xsd:dayTimeDuration. kind: "off" or "expiry"; both may have one delay."""

    kind: str
    sparql: str
    delay: str


class Lifetimes:
    """The ends of readings. State: the window of each stream that has a lifetime, for at most `streams_max` streams.

    events: each reading is an observation of its own, and so is an end."""

    def __init__(self, streams_max: int, *, events: bool = False) -> None:
        self._streams_max, self._events = streams_max, events
        # Its end, and whether it has an update.
        self._windows: OrderedDict[tuple[Term, str], tuple[datetime, bool]] = OrderedDict()

    def ends(self, reading: Reading) -> list[ValueEnd]:
        """What ends the value of a reading that is written."""
        stream, lifetime = reading.stream, reading.stream.lifetime
        if lifetime is None:
            return []
        found: list[ValueEnd] = []
        if lifetime.off_delay_s is not None and reading.value == TRUE:
            found += self._end(stream, "off", lifetime.off_delay_s, reading.received)
        if lifetime.expire_after_s is not None:
            found += self._end(stream, "expired", lifetime.expire_after_s, reading.received)
        return found

    def _end(self, stream: Stream, kind: str, lifetime_s: float, received: datetime) -> list[ValueEnd]:
        key = stream.iri, kind
        width = timedelta(seconds=lifetime_s / WINDOWS)
        end, ends = self._windows.pop(key, (received, True))
        if not end - width <= received < end:  # it is over, or the clock was stepped back
            at, end, ends = received, received + width, False
        elif ends:
            self._windows[key] = end, True
            return []
        else:
            at, ends = end, True
        self._windows[key] = end, ends
        while len(self._windows) > self._streams_max:
            self._windows.popitem(last=False)
        if self._events:
            text = end_update(stream, FALSE if kind == "off" else NO_VALUE, at, at + timedelta(seconds=lifetime_s))
        else:
            text = off_update(stream, at) if kind == "off" else expiry_update(stream, at)
        return [ValueEnd(kind, text, f"PT{lifetime_s + (at - received).total_seconds():.3f}S")]


def off_update(stream: Stream, reported: datetime) -> str:
    """Makes the value false, if it is still true by a report of this time or an earlier one."""
    observation = stream.observation
    where = f"{stream.condition}{observation} <{HAS_SIMPLE_RESULT}> {TRUE} {_not_later(stream, reported)}"
    if stream.lifetime is not None and stream.lifetime.expire_after_s is not None:
        # The value still expires by the time of its report.
        was, becomes = f"{observation} <{HAS_SIMPLE_RESULT}> {TRUE}", f"{observation} <{HAS_SIMPLE_RESULT}> {FALSE}"
        return f"DELETE {{ {was} }}\nINSERT {{ {becomes} }}\nWHERE {{ {where} }}"
    return (
        f"DELETE {{ {observation} <{HAS_SIMPLE_RESULT}> {TRUE} ; <{RESULT_TIME}> ?time ; <{TIME_PROBLEM}> ?problem }}\n"
        f"INSERT {{ {observation} <{HAS_SIMPLE_RESULT}> {FALSE} ; <{RESULT_TIME}> ?now }}\n"
        f"WHERE {{ {where} OPTIONAL {{ {observation} <{TIME_PROBLEM}> ?problem }} BIND(NOW() AS ?now) }}"
    )


def expiry_update(stream: Stream, reported: datetime) -> str:
    """Removes the value, if it is of a report of this time or an earlier one. The time of the report stays."""
    observation = stream.observation
    delete = f"{observation} <{HAS_SIMPLE_RESULT}> ?value"
    where = f"{stream.condition}{observation} <{HAS_SIMPLE_RESULT}> ?value {_not_later(stream, reported)}"
    if stream.result is not None:
        delete += f" . {stream.result} <{NUMERIC_VALUE}> ?number"
        where += f" OPTIONAL {{ {stream.result} <{NUMERIC_VALUE}> ?number }}"
    return f"DELETE {{ {delete} }}\nINSERT {{ {observation} <{NIL_REASON}> {EXPIRED} }}\nWHERE {{ {where} }}"


def _not_later(stream: Stream, reported: datetime) -> str:
    # A retained value has no result time.
    return (
        f"OPTIONAL {{ {stream.observation} <{RESULT_TIME}> ?time }} "
        f"FILTER(!BOUND(?time) || ?time <= {datetime_term(reported)})"
    )
