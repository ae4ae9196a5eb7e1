"""Random queries of 17 to 32 triple patterns, and edits of what they match.

The graphs are sparse: a subject has at most two values of a predicate, so that a join of many patterns has few rows.
"""

from __future__ import annotations

from random import Random

from tests.properties.sparql_texts import Case, Step

PREFIX = "PREFIX : <http://example.org/w#> "
PREDICATES = tuple(f":p{number}" for number in range(32))
THINGS = (":a", ":b", ":c")
GRAPHS = (":g", ":h")
PATTERNS = (17, 18, 20, 24, 28, 31)


class WideWriter:
    """Writes the steps of one case, choice by choice."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._one = random.choice
        self._graph = self._one((None, None, None, ":g", "?g"))

    def _placed(self, text: str) -> str:
        return text if self._graph is None else f"GRAPH {self._graph} {{ {text} }}"

    def query(self) -> str:
        """One query of each form that holds many patterns."""
        count = self._one(PATTERNS)
        predicates = self._random.sample(PREDICATES, count)
        patterns = [self._pattern(number, predicate) for number, predicate in enumerate(predicates)]
        first, rest = patterns[0], patterns[1:]
        cut = self._random.randrange(1, count - 1)
        some, others = " ".join(rest[:cut]), rest[cut:]
        body = self._one(
            (
                self._placed(" ".join(patterns)),
                self._placed(" ".join(patterns)),
                f"{self._placed(f'{first} {some}')} {' '.join(f'OPTIONAL {{ {self._placed(it)} }}' for it in others)}",
                f"{self._placed(f'{first} {some}')} OPTIONAL {{ {self._placed(' '.join(others))} }}",
                f"{self._placed(first)} FILTER {self._one(('', 'NOT '))}EXISTS {{ {self._placed(' '.join(rest))} }}",
                f"{self._placed(f'{first} {some}')} MINUS {{ {self._placed(' '.join((first, *others)))} }}",
                f"{{ {self._placed(f'{first} {some}')} }} UNION {{ {self._placed(' '.join((first, *others)))} }}",
                f"{self._placed(' '.join(patterns))} FILTER ( ?v0 != {self._one(THINGS)} && ?v1 != 1 )",
            )
        )
        form = self._one(("SELECT * {{ {} }}", "SELECT ?s ?v0 {{ {} }}", "SELECT DISTINCT ?s {{ {} }}", *_TOTALS))
        return PREFIX + form.format(body)

    def _pattern(self, number: int, predicate: str) -> str:
        """Patterns of one subject, of a chain of subjects, and of a constant."""
        subject = "?s" if number == 0 else self._one(("?s", "?s", "?s", "?s", ":a", "?v0", f"?v{number - 1}"))
        turned = number > 0 and self._random.random() < 0.1
        return f"?v{number} {predicate} {subject} ." if turned else f"{subject} {predicate} ?v{number} ."

    def _quad(self, predicate: str, subject: str | None = None) -> str:
        text = f"{subject or self._one(THINGS)} {predicate} {self._one(THINGS)}"
        graph = self._one((None, *GRAPHS)) if self._graph == "?g" else self._graph
        return text if graph is None else f"GRAPH {graph} {{ {text} }}"

    def start(self) -> str:
        """Most subjects have most predicates, whose objects are subjects."""
        quads = [self._quad(predicate, thing) for predicate in PREDICATES for thing in THINGS if self._likely()]
        return f"{PREFIX} INSERT DATA {{ {' . '.join(quads)} }}"

    def _likely(self) -> bool:
        return self._random.random() < 0.97

    def update(self) -> str:
        quads = [self._quad(self._one(PREDICATES)) for _ in range(self._one((2, 4, 8)))]
        predicate, graph = self._one(PREDICATES), self._graph
        where = f"?s {predicate} ?o" if graph is None else f"GRAPH {graph} {{ ?s {predicate} ?o }}"
        swapped = where.replace("?s", "?x").replace("?o", "?s").replace("?x", "?o")
        thing = self._one(THINGS)
        return PREFIX + self._one(
            (
                f"INSERT DATA {{ {' . '.join(quads)} }}",
                f"DELETE DATA {{ {' . '.join(quads)} }}",
                f"DELETE {{ {where} }} INSERT {{ {swapped} }} WHERE {{ {where} FILTER ( ?s = {thing} ) }}",
                f"DELETE {{ {where} }} WHERE {{ {where} FILTER ( ?s = {thing} ) }}",
                f"INSERT {{ {where} }} WHERE {{ VALUES ( ?s ?o {graph if graph == '?g' else ''} ) "
                f"{{ ( {thing} {self._one(THINGS)} {self._one(GRAPHS) if graph == '?g' else ''} ) }} }}",
            )
        )

    def case(self) -> Case:
        steps = [Step("update", self.start())]
        steps += [Step("subscribe", self.query()) for _ in range(3)]
        steps += [Step("update", self.update()) for _ in range(8)]
        return Case(tuple(steps))


_TOTALS = (
    "SELECT ( COUNT( * ) AS ?t ) {{ {} }}",
    'SELECT ?s ( GROUP_CONCAT( STR( ?v0 ) ; SEPARATOR = "|" ) AS ?t ) {{ {} }} GROUP BY ?s',
)


def wide_case(seed: int) -> Case:
    """The case that a number stands for."""
    return WideWriter(Random(seed)).case()
