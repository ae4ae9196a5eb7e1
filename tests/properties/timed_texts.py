"""Random subscriptions that compare the clock, and random steps: updates, clock steps, restarts.

The texts hold ``g:clock()`` and ``g:now()``; `at` puts an instant in their place, for the oracle. They add no duration
to a dateTime: whether the store can depends on the spelling of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

PREFIX = (
    "PREFIX : <http://example.org/> PREFIX g: <http://lamplighter.example/ns/gateway#> "
    "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
)
START = datetime(2026, 11, 21, 2, 0, 0, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS = 12
"""The times in the data lie within so many seconds from `START`."""
ENTITIES = (":e0", ":e1", ":e2", ":e3")
OPERATORS = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class Step:
    """kind: update, subscribe, unsubscribe, due (advance to what is due next), advance, back, snapshot, restart;
    seconds: of a clock step."""

    kind: str
    text: str = ""
    seconds: float = 0.0


def at(text: str, instant: datetime) -> str:
    microseconds = (instant - EPOCH) // timedelta(microseconds=1)
    return text.replace("g:clock()", str(microseconds)).replace("g:now()", date_time(instant))


def date_time(instant: datetime) -> str:
    return f'"{instant.replace(tzinfo=None).isoformat()}Z"^^xsd:dateTime'


class Texts:
    """Random texts from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def _one(self, *texts: str) -> str:
        return self.random.choice(texts)

    # --- data ---

    def time(self) -> str:
        if self.random.random() < 0.1:
            return self._one(
                '"2026-11-21T02:00:04"^^xsd:dateTime',
                '"2026-11-21T04:00:04+02:00"^^xsd:dateTime',
                '"2026-11-21T02:00:04.0000005Z"^^xsd:dateTime',
                '"2026-11-21"^^xsd:date',
                '"soon"',
                "4",
            )
        return date_time(START + timedelta(seconds=self.random.randrange(SECONDS)))

    def duration(self) -> str:
        seconds = self.random.randrange(1, 5)
        if self.random.random() < 0.08:
            return self._one('"P1M"^^xsd:yearMonthDuration', '"-PT2S"^^xsd:dayTimeDuration', "2")
        return f'"PT{seconds}S"^^xsd:{self._one("duration", "dayTimeDuration")}'

    def _number(self) -> str:
        number = (START - EPOCH) // timedelta(microseconds=1) + 1_000_000 * self.random.randrange(SECONDS)
        return self._one(str(number), str(number), f"{number}.5", f"{number}e0", "0", '"x"')

    def quad(self) -> str:
        subject = self._one(*ENTITIES)
        triple = self._one(
            f"{subject} :p {self._one(*ENTITIES)}",
            f"{subject} :at {self.time()}",
            f"{subject} :at {self.time()}",
            f"{subject} :hold {self.duration()}",
            f"{subject} :due {self._number()}",
            f"{subject} :v {self.random.randrange(4)}",
        )
        return f"GRAPH {self._one(':g0', ':g1')} {{ {triple} }}" if self.random.random() < 0.1 else f"{triple} ."

    def update(self) -> str:
        kind = self.random.random()
        if kind < 0.5:
            return f"{PREFIX}INSERT DATA {{ {' '.join(self.quad() for _ in range(self.random.randrange(1, 5)))} }}"
        if kind < 0.75:
            entity = self._one(*ENTITIES)
            return (
                f"{PREFIX}DELETE {{ {entity} :at ?old }} INSERT {{ {entity} :at {self.time()} }} "
                f"WHERE {{ OPTIONAL {{ {entity} :at ?old }} }}"
            )
        if kind < 0.9:
            return (
                f"{PREFIX}DELETE WHERE {{ {self._one(*ENTITIES)} {self._one(':p', ':at', ':hold', ':due', ':v')} ?o }}"
            )
        return f"{PREFIX}DELETE WHERE {{ GRAPH {self._one(':g0', ':g1')} {{ ?s ?p ?o }} }}"

    # --- queries ---

    def _group(self) -> tuple[str, str]:
        """Patterns, and a FILTER that compares the clock with their variables."""
        patterns, names = self.random.choice(
            [
                ("?a :at ?t", "t"),
                ("?a :at ?t", "t"),
                ("?a :p ?b . ?b :at ?t", "t"),
                ("?a :at ?t ; :hold ?d", "td"),
                ("?a :p ?b . ?a :at ?t . ?b :hold ?d", "td"),
                ("?a :due ?n", "n"),
                ("?a :due ?n ; :at ?t", "n"),
                ("GRAPH ?g { ?a :at ?t }", "t"),
                ("?a ?q ?t", "t"),
                ("?a :at ?t VALUES ?d { 'PT2S'^^xsd:dayTimeDuration 'PT3S'^^xsd:duration }", "td"),
            ]
        )
        if self.random.random() < 0.3:
            patterns = patterns.replace("?a ", self._one(*ENTITIES) + " ")
        return patterns, self.conditions(names)

    def conditions(self, names: str) -> str:
        sign = self._one(*OPERATORS)
        duration, number = self.duration(), self.random.randrange(3_000_000)
        found = {
            "t": (
                f"g:now() {sign} ?t",
                f"?t {sign} g:now()",
                f"g:now() - ?t {sign} {duration}",
                f"?t - (-{duration}) {sign} g:now()",
                f"(g:now() - {duration}) {sign} ?t",
                f"g:now() >= ?t && g:now() - {duration} < ?t",
                f"?t - g:now() {sign} {duration}",
            ),
            "td": (
                f"?t - (-?d) {sign} g:now()",
                f"g:now() - ?t {sign} ?d",
                f"?t {sign} g:now() - ?d",
                f"?t <= g:now() && ?t {sign} g:now() - ?d",
            ),
            "n": (
                f"g:clock() {sign} ?n",
                f"g:clock() - ?n {sign} {number}",
                f"?n + {number} {sign} g:clock()",
                f"g:clock() - {number} {sign} ?n * 1",
            ),
        }[names]
        return f"FILTER({self._one(*found)})"

    def query(self) -> str:
        patterns, condition = self._group()
        timed = f"{patterns} {condition}"
        other, another = self._group()
        text = self._one(
            f"SELECT * {{ {timed} }}",
            f"SELECT * {{ {timed} }}",
            f"SELECT ?a {{ {timed} }}",
            f"SELECT DISTINCT ?a {{ {timed} }}",
            f"SELECT * {{ {timed} FILTER(?a != :e1) }}",
            f"SELECT * {{ {timed} . {other} {another} }}",
            f"SELECT * {{ {{ {timed} }} UNION {{ {other} {another} }} }}",
            f"SELECT * {{ ?a :p ?c OPTIONAL {{ {timed} }} }}",
            f"SELECT * {{ {timed} OPTIONAL {{ ?a :p ?c }} }}",
            f"SELECT * {{ ?a :p ?c MINUS {{ {timed} }} }}",
            f"SELECT * {{ ?a :p ?c FILTER NOT EXISTS {{ {timed} }} }}",
            f"SELECT * {{ ?a :p ?c FILTER EXISTS {{ {timed} }} }}",
            f"SELECT ?a (COUNT(*) AS ?count) {{ {timed} }} GROUP BY ?a",
            f"SELECT ?a (SUM(?v) AS ?sum) (MAX(?v) AS ?max) (AVG(?v) AS ?avg) {{ {timed} . ?a :v ?v }} GROUP BY ?a",
            f"SELECT (COUNT(?a) AS ?count) {{ {timed} }}",
            f"SELECT ?c (COUNT(*) AS ?count) {{ {timed} . ?a :p ?c }} GROUP BY ?c HAVING(COUNT(*) > 1)",
            f"SELECT * {{ ?x :p ?a {{ SELECT ?a {{ {timed} }} }} }}",
            f"SELECT * {{ ?a :p+ ?c . {timed} }}",
            f"SELECT * {{ ?a :at ?t BIND(?t - {self.duration()} AS ?u) FILTER(?u {self._one(*OPERATORS)} g:now()) }}",
            f"SELECT * {{ ?a :p ?c OPTIONAL {{ {timed} OPTIONAL {{ ?a :v ?v }} }} }}",
        )
        return PREFIX + text

    # --- cases ---

    def case(self) -> list[Step]:
        """Some data, some subscriptions, and then everything in any order."""
        steps = [Step("update", self.update()) for _ in range(3)]
        steps += [Step("subscribe", self.query()) for _ in range(self.random.randrange(1, 4))]
        for _ in range(self.random.randrange(6, 16)):
            kind = self.random.random()
            if kind < 0.4:
                steps.append(Step("update", self.update()))
            elif kind < 0.62:
                steps.append(Step("due"))
            elif kind < 0.8:
                steps.append(Step("advance", seconds=self.random.choice([0.000001, 0.5, 1, 2, 3.5])))
            elif kind < 0.86:
                steps.append(Step("back", seconds=self.random.choice([0.000001, 1, 2.5, 6])))
            elif kind < 0.92:
                steps.append(Step("subscribe", self.query()))
            elif kind < 0.95:
                steps.append(Step("unsubscribe"))
            elif kind < 0.96:
                steps.append(Step("snapshot"))
            else:
                steps.append(Step("restart"))
        return steps
