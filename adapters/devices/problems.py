"""Problems with messages and announcements, as triples that ``lamplighter devices problems`` lists. Pure.

They are in the graph ``<base>graph/problems``, bounded in number and rate: whoever may publish could otherwise fill the
change log. They are of one run of the adapter, whose first update is `Problems.forgetting`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.draft import plain
from lamplighter.adapters.literals import datetime_term
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.ontology.vocabulary import (
    BROKER,
    COUNT,
    LAST_SEEN,
    MQTT_TOPIC,
    OF_DEVICE,
    RDF_TYPE,
    REASON,
    REPORTED_PROBLEM,
    SOURCE,
)

# Problems at once; the one that is longest not seen goes first.
KEPT_MAX = 500
NEW_PER_MINUTE_MAX = 120
# The count of a problem is written at most this often.
AGAIN = timedelta(minutes=1)
LASTING_MAX = 5_000
# Problems of devices that last until their announcements change, and how many are written in a minute. The number of
# devices bounds them, and they are not forgotten for others.
LASTING_PER_MINUTE_MAX = 300
_MINUTE = timedelta(minutes=1)
REASON_CHARS_MAX, REASONS_MAX = 400, 8
"""Of a problem that says what is left out, and problems of one device."""


def left_out_problems(source: str, broker: str, topic: str, identity: str, lines: Iterable[str]) -> list[Problem]:
    """The lasting problems that say what is not used of a device, as few as their length permits. topic: where it is
    announced; identity: empty if it is unknown."""
    reasons: list[str] = []
    for line in lines:
        line = plain(line, REASON_CHARS_MAX)
        if reasons and len(reasons[-1]) + len(line) + 2 <= REASON_CHARS_MAX:
            reasons[-1] += f"; {line}"
        else:
            reasons.append(line)
    if len(reasons) > REASONS_MAX:
        reasons[REASONS_MAX - 1 :] = ["and more"]
    return [
        Problem(source, broker, topic, f"not used: {reason}", identity, f"left out {number}")
        for number, reason in enumerate(reasons, 1)
    ]


@dataclass(slots=True)
class _Known:
    count: int
    written: datetime


class Problems:
    """The problems of one gateway's adapter. base_iri: ends with a slash.

    unwritten: problems that were one too many in their minute, and lasting ones for which there is no room.
    """

    def __init__(self, base_iri: str) -> None:
        self.unwritten = 0
        self._base_iri = base_iri
        self._graph = iri(f"{base_iri}graph/problems")
        self._known: OrderedDict[Term, _Known] = OrderedDict()
        # Their reasons.
        self._lasting: dict[Term, str] = {}
        self._minute: tuple[datetime, int] | None = None
        self._lasting_minute: tuple[datetime, int] | None = None

    def forgetting(self, sources: Iterable[str]) -> str:
        """The first update of a run. sources: of the adapter's problems; those of other sources stay."""
        names = " ".join(literal(one) for one in sorted(sources))
        return (
            f"DELETE {{ GRAPH {self._graph} {{ ?problem ?property ?value }} }}\n"
            f"WHERE {{ VALUES ?source {{ {names} }} "
            f"GRAPH {self._graph} {{ ?problem <{SOURCE}> ?source ; ?property ?value }} }}"
        )

    def replacing(self, source: str, identity: str, problems: Iterable[Problem], now: datetime) -> str:
        """The update that makes these all lasting problems of a device. source: of all of them."""
        device = iri(f"{self._base_iri}device/{identity}")
        forgetting = (
            f"DELETE {{ GRAPH {self._graph} {{ ?problem ?property ?value }} }} WHERE {{ GRAPH {self._graph} {{ "
            f"?problem <{SOURCE}> {literal(source)} ; <{OF_DEVICE}> {device} ; ?property ?value }} }}"
        )
        insertions = (self._insertion(self._lasting_node(one), one, now) for one in problems)
        return " ;\n".join((forgetting, *insertions))

    @property
    def query(self) -> str:
        """All problems, the newest first: source, topic, device, reason, count, time."""
        return f"""\
SELECT ?source ?topic ?device ?reason ?count ?seen WHERE {{
  GRAPH {self._graph} {{
    ?problem <{SOURCE}> ?source ; <{MQTT_TOPIC}> ?topic ; <{REASON}> ?reason ; <{COUNT}> ?count ; <{LAST_SEEN}> ?seen .
    OPTIONAL {{ ?problem <{OF_DEVICE}> ?device }}
  }}
}} ORDER BY DESC(?seen) ?topic ?reason"""

    def update(self, problem: Problem, now: datetime) -> str | None:
        """The update that notes a problem; None if the dataset need not change. now: an aware datetime."""
        node = self._node(problem.source, problem.broker, problem.topic, problem.reason, problem.device)
        known = self._known.get(node)
        if known is not None:
            known.count += 1
            self._known.move_to_end(node)
            if now - known.written < AGAIN:
                return None
            known.written = now
            return self._counted(node, known)
        if not self._may_add(now):
            self.unwritten += 1
            return None
        self._known[node] = _Known(1, now)
        forgotten = ""
        if len(self._known) > KEPT_MAX:
            oldest, _ = self._known.popitem(last=False)
            forgotten = self._without(oldest)
        return forgotten + self._insertion(node, problem, now)

    def may_change(self, now: datetime) -> bool:
        """Whether a lasting problem may be written now; each time counts."""
        self._lasting_minute, count = _count_in(self._lasting_minute, now)
        return count < LASTING_PER_MINUTE_MAX

    def lasting_update(self, problem: Problem, now: datetime) -> str | None:
        """The update that writes a problem that lasts instead of the one about the same, or ends it; None if the
        dataset need not change. now: an aware datetime."""
        node = self._lasting_node(problem)
        before = self._lasting.pop(node, "")
        if problem.reason and len(self._lasting) >= LASTING_MAX:
            self.unwritten += 1
            return self._without(node).removesuffix(" ;\n") if before else None
        if problem.reason:
            self._lasting[node] = problem.reason
        if problem.reason == before:
            return None
        if not problem.reason:
            return self._without(node).removesuffix(" ;\n")
        return (self._without(node) if before else "") + self._insertion(node, problem, now)

    def forget_lasting(self, problem: Problem) -> None:
        """Takes a lasting problem as one that is not written, because others have deleted it."""
        self._lasting.pop(self._lasting_node(problem), None)

    def _lasting_node(self, problem: Problem) -> Term:
        return self._node(problem.source, problem.broker, problem.device or problem.topic, problem.about, "lasting")

    def _node(self, *texts: str) -> Term:
        digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return iri(f"{self._base_iri}problem/{digest}")

    def _without(self, node: Term) -> str:
        """The operation that forgets a problem, before another one."""
        return f"DELETE WHERE {{ GRAPH {self._graph} {{ {node} ?p ?o }} }} ;\n"

    def _insertion(self, node: Term, problem: Problem, now: datetime) -> str:
        triples = [
            (RDF_TYPE, iri(REPORTED_PROBLEM)),
            (SOURCE, literal(problem.source)),
            (MQTT_TOPIC, literal(plain(problem.topic, 500))),
            (REASON, literal(plain(problem.reason, 500))),
            (COUNT, _number(1)),
            (LAST_SEEN, datetime_term(now, "seconds")),
        ]
        if problem.broker:
            triples.append((BROKER, literal(problem.broker)))
        if problem.device:
            triples.append((OF_DEVICE, iri(f"{self._base_iri}device/{problem.device}")))
        lines = "".join(f"  {node} <{name}> {value} .\n" for name, value in triples)
        return f"INSERT DATA {{ GRAPH {self._graph} {{\n{lines}}} }}"

    def _counted(self, node: Term, known: _Known) -> str:
        seen = datetime_term(known.written, "seconds")
        return (
            f"WITH {self._graph}\n"
            f"DELETE {{ {node} <{COUNT}> ?count ; <{LAST_SEEN}> ?seen }}\n"
            f"INSERT {{ {node} <{COUNT}> {_number(known.count)} ; <{LAST_SEEN}> {seen} }}\n"
            f"WHERE {{ {node} <{COUNT}> ?count ; <{LAST_SEEN}> ?seen }}"
        )

    def _may_add(self, now: datetime) -> bool:
        self._minute, count = _count_in(self._minute, now)
        return count < NEW_PER_MINUTE_MAX


def _count_in(minute: tuple[datetime, int] | None, now: datetime) -> tuple[tuple[datetime, int], int]:
    """The minute with one more, which may be a new one; and how many there were before."""
    begun, count = minute if minute is not None and timedelta() <= now - minute[0] < _MINUTE else (now, 0)
    return (begun, count + 1), count


def _number(count: int) -> Term:
    return literal(str(count), datatype=XSD + "integer")
