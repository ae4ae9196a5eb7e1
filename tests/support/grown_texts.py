"""Random SPARQL texts of the whole grammar, in which a few lists are long and a few brackets deep: n up to 2,000.

A text has no function that differs from one evaluation to the next, and nothing whose value depends on the order of
solutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from tests.support.productions import PATTERNS

COUNT_MAX = 2000
TEXT_MAX = 60_000
_VARIABLES = ("?s", "?o", "?x", "?y", "?z")
_LONG = (8, 20, 40, 60, 120, 260, COUNT_MAX)
_HOT = 0.15
"""How often a list is long, or a bracket deep, of a text that may have another one."""


def data(subjects: int = 40) -> str:
    """An update that makes a dataset in which most patterns match something, in the default graph and two others."""
    lines = []
    for number in range(subjects):
        s = f"<urn:s{number}>"
        lines.append(f"{s} <urn:p0> {number % 7} ; <urn:p1> <urn:s{(number * 3 + 1) % subjects}> .")
        lines.append(f"{s} <urn:p2> 'text {number % 5}' ; <urn:q> {number % 3}, <urn:s{(number + 1) % subjects}> .")
        if number % 3 == 0:
            lines.append(f"{s} <urn:p> <urn:s{(number + 2) % subjects}> ; <urn:p3> true , 2.5 , 'x'@en .")
    some = " ".join(lines[: subjects // 2])
    return f"INSERT DATA {{ {' '.join(lines)} GRAPH <urn:g0> {{ {some} }} GRAPH <urn:g1> {{ {lines[0]} }} }}"


class GrownTexts:
    """Writes them from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._hot = 0  # long lists and deep brackets that the present text may still have
        self._left = 0  # characters
        self._fresh = 0

    def pattern(self) -> str:
        """What stands between the braces of a WHERE."""
        random = self._random
        self._hot, self._left, self._fresh = random.choice((0, 1, 1, 1, 2)), TEXT_MAX, 0
        return self._group(random.choice((1, 1, 2, 3)))

    def select(self, pattern: str) -> str:
        """A query whose result is that of the pattern, or of an aggregate of it."""
        random = self._random
        choice = random.random()
        if choice < 0.6:
            return f"SELECT * {{ {pattern} }}"
        if choice < 0.7:
            return f"SELECT DISTINCT ?s ?o {{ {pattern} }}"
        if choice < 0.8:
            return f"SELECT (COUNT(*) AS ?rows) (MIN(?s) AS ?least) {{ {pattern} }}"
        if choice < 0.9:
            return f"SELECT ?s (COUNT(?o) AS ?rows) {{ {pattern} }} GROUP BY ?s"
        columns = self._list(lambda number: f"(({self._expression(1)}) AS ?column{number})")
        return f"SELECT ?s {columns} {{ {pattern} }}"

    # --- sizes ---

    def _count(self) -> int:
        """How many members a list has, or how deep a bracket is."""
        random = self._random
        if self._hot and random.random() < _HOT:
            self._hot -= 1
            # Most are within the limits of a text, which costs more than a refusal.
            return round(math.exp(random.uniform(math.log(4), math.log(random.choice(_LONG)))))
        return random.choice((1, 1, 1, 1, 1, 1, 2, 3))

    def _list(self, member: Callable[[int], str], between: str = " ") -> str:
        found: list[str] = []
        count = self._count()
        hot, fixed = count > 3, self._random.random() < 0.5
        held, self._hot = self._hot, 0 if hot else self._hot  # what is in a long list is short
        first = ""
        for number in range(count):
            if self._left < 0:
                break
            # Of a long list, all members are alike or each is another one.
            first = first if first and hot and fixed and "?f" not in first else member(number)
            text = first.replace("<urn:p0>", f"<urn:p{number}>") if hot and fixed else first
            self._left -= len(text)
            found.append(text)
        self._hot = held
        return between.join(found)

    def _deep(self, opening: str, inner: str, closing: str) -> str:
        count = self._count()
        count = max(1, min(count, self._left // (len(opening) + len(closing))))
        self._left -= count * (len(opening) + len(closing))
        return opening * count + inner + closing * count

    # --- terms ---

    def _variable(self) -> str:
        return self._random.choice(_VARIABLES)

    def _new_variable(self) -> str:
        self._fresh += 1
        return f"?f{self._fresh}"

    def _constant(self) -> str:
        random = self._random
        return random.choice((f"<urn:s{random.randrange(40)}>", str(random.randrange(7)), "'text 1'", "true", "'x'@en"))

    def _subject(self) -> str:
        random = self._random
        return self._variable() if random.random() < 0.85 else f"<urn:s{random.randrange(40)}>"

    def _object(self) -> str:
        random = self._random
        choice = random.random()
        if choice < 0.7:
            return self._variable()
        if choice < 0.9:
            return self._constant()
        if choice < 0.95:
            return f"({self._list(lambda number: random.choice((str(number), '?o')))})"
        return self._deep("[ <urn:p0> ", "?o", " ]")

    def _verb(self) -> str:
        random = self._random
        choice = random.random()
        if choice < 0.7:
            return random.choice(("<urn:p0>", "<urn:p0>", "<urn:p1>", "<urn:p2>", "<urn:q>", "<urn:p>"))
        return "?p" if choice < 0.75 else self._path(2)

    def _path(self, depth: int) -> str:
        random = self._random
        if not depth:
            return random.choice(("<urn:p0>", "<urn:p1>", "<urn:p>"))
        kind = random.choice(("/", "|", "*", "^", "!", "(", "?"))
        if kind in "/|":
            return f"({self._list(lambda _: self._path(depth - 1), kind)})"
        if kind in "*?":
            return f"({self._path(depth - 1)}){random.choice('*+?') if kind == '*' else '?'}"
        if kind == "!":
            return f"!({self._list(lambda number: f'<urn:p{number % 9}>', '|')})"
        return self._deep("^(" if kind == "^" else "(", self._path(depth - 1), ")")

    # --- expressions ---

    def _expression(self, depth: int) -> str:
        random = self._random
        if not depth:
            return random.choice((self._variable(), self._constant()))
        inner = depth - 1
        operator = random.choice(("&&", "||", "+", "*", "-"))
        one = self._expression
        return random.choice(
            (
                lambda: self._list(lambda _: f"({one(inner)})", operator),
                lambda: f"{one(0)} {random.choice(('=', '!=', '<', '>='))} {one(0)}",
                lambda: f"{self._variable()} {random.choice(('IN', 'NOT IN'))} ({self._list(lambda _: one(0), ',')})",
                lambda: f"COALESCE({self._list(lambda _: one(inner), ',')})",
                lambda: f"CONCAT({self._list(lambda _: f'STR({one(0)})', ',')})",
                lambda: self._deep(f"IF({one(0)} = 1, {one(0)}, ", one(0), ")"),
                lambda: self._deep(random.choice(("(", "!(", "-(", "STR(", "UCASE(", "ABS(")), one(inner), ")"),
                lambda: f"CONTAINS(STR({one(0)}), 'x')",
                lambda: f"REGEX(STR({one(0)}), '^(t|e|x)*{random.randrange(9)}')",
                lambda: f"{random.choice(('', 'NOT '))}EXISTS {{ {self._group(1)} }}",
                lambda: f"BOUND({self._variable()})",
                lambda: f"STRLEN(REPLACE(STR({one(0)}), 't', 'aa'))",
            )
        )()

    # --- groups ---

    def _triples(self) -> str:
        def one(_: int) -> str:
            objects = self._list(lambda _: self._object(), ", ")
            more = "" if self._random.random() < 0.8 else f"; {self._list(lambda _: f'{self._verb()} ?z', '; ')}"
            return f"{self._subject()} {self._verb()} {objects} {more} ."

        return self._list(one)

    def _production(self) -> str:
        """One of the productions as they are."""
        random = self._random
        name = random.choice(list(PATTERNS))
        count = self._count()
        text = PATTERNS[name](count)
        while len(text) > max(self._left, 200):
            count = count // 2 or 1
            text = PATTERNS[name](count)
            if count == 1:
                break
        self._left -= len(text)
        return f"{{ {text} }}"

    def _group(self, depth: int) -> str:
        return f"{self._triples()} {self._list(lambda _: self._element(depth))}"

    def _element(self, depth: int) -> str:
        random = self._random
        if not depth:
            return self._triples()
        inner = depth - 1
        return random.choice(
            (
                self._triples,
                self._production,
                self._production,
                lambda: self._list(lambda _: f"OPTIONAL {{ {self._group(inner)} }}"),
                lambda: self._deep(f"OPTIONAL {{ ?s <urn:p0> {self._variable()} . ", self._triples(), "}"),
                lambda: self._list(lambda _: f"MINUS {{ {self._group(inner)} }}"),
                lambda: self._list(lambda _: f"{{ {self._group(inner)} }}", " UNION "),
                lambda: f"GRAPH {random.choice(('?g', '<urn:g0>'))} {{ {self._group(inner)} }}",
                lambda: self._list(lambda _: f"FILTER({self._expression(2)})"),
                lambda: self._list(lambda _: f"BIND(({self._expression(2)}) AS {self._new_variable()})"),
                lambda: f"VALUES {self._variable()} {{ {self._list(lambda _: self._constant())} }}",
                lambda: f"VALUES (?s ?o) {{ {self._list(lambda number: f'(<urn:s{number % 40}> {number % 7})')} }}",
                lambda: f"{{ SELECT {random.choice(('?s', '?s ?o', 'DISTINCT ?s', '*'))} {{ {self._group(inner)} }} }}",
                lambda: f"{{ SELECT ?s (COUNT(*) AS {self._new_variable()}) {{ {self._group(inner)} }} GROUP BY ?s }}",
                lambda: self._deep("{ ", self._group(inner), " }"),
                lambda: self._deep("{ SELECT * { ?s ?p ?o . ", self._triples(), "} }"),
                lambda: self._list(lambda _: f"FILTER {random.choice(('', 'NOT '))}EXISTS {{ {self._group(inner)} }}"),
            )
        )()
