"""EXISTS with variables of other groups: query, update and subscription agree with the standard, whatever the order.

EXISTS is in a group, or in the projection, GROUP BY, HAVING or ORDER BY of the whole query. The store takes no GROUP BY
in a CONSTRUCT.

The third voice is an evaluation of SPARQL 1.1 Query, 18, by hand: bottom-up, and with substitution in EXISTS (18.6).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.terms import Bag, Term
from tests.support.tables import each_row

Solution = dict[str, Term]
Triples = frozenset[tuple[Term, Term, Term]]
Data = dict[str, Triples]
"""Name of the graph, "" for the default graph -> its triples."""
GRAPH = "<urn:g>"


@dataclass(frozen=True)
class Triple:
    s: str
    p: str
    o: str

    def __str__(self) -> str:
        return f"{self.s} {self.p} {self.o} ."


@dataclass(frozen=True)
class Block:
    """A group with what is before its brace: nothing, OPTIONAL, MINUS or GRAPH <urn:g>."""

    before: str
    group: Group

    def __str__(self) -> str:
        return f"{self.before} {self.group}"


@dataclass(frozen=True)
class Union:
    left: Group
    right: Group

    def __str__(self) -> str:
        return f"{self.left} UNION {self.right}"


@dataclass(frozen=True)
class Condition:
    """FILTER, or BIND to a variable, of an EXISTS."""

    group: Group
    negated: bool = False
    variable: str = ""

    def __str__(self) -> str:
        exists = f"{'NOT ' if self.negated else ''}EXISTS {self.group}"
        return f"BIND({exists} AS {self.variable})" if self.variable else f"FILTER({exists})"


@dataclass(frozen=True)
class Select:
    """A sub-SELECT."""

    variables: tuple[str, ...]
    group: Group

    def __str__(self) -> str:
        return f"{{ SELECT {' '.join(self.variables)} {self.group} }}"


@dataclass(frozen=True)
class Bound:
    variable: str

    def __str__(self) -> str:
        return f"FILTER(BOUND({self.variable}))"


Element = Triple | Block | Union | Condition | Select | Bound
Test = Condition | Bound


@dataclass(frozen=True)
class Group:
    elements: tuple[Element, ...]

    def __str__(self) -> str:
        return f"{{ {' '.join(map(str, self.elements))} }}"


def group(*elements: Element) -> Group:
    return Group(elements)


# --- the standard --------------------------------------------------------------------------------------


def solutions(pattern: Group, data: Data, graph: str, given: Solution) -> list[Solution]:
    """Those of a group. given: the values that an EXISTS around it substitutes."""
    found, filters = without_filters(pattern, data, graph, given)
    return [one for one in found if all(holds(test, one, data, graph, given) for test in filters)]


def without_filters(pattern: Group, data: Data, graph: str, given: Solution) -> tuple[list[Solution], list[Test]]:
    found: list[Solution] = [{}]
    filters = []
    for element in pattern.elements:
        match element:
            case Triple():
                found = join(found, matches(element, data[graph], given))
            case Union(left, right):
                found = join(found, solutions(left, data, graph, given) + solutions(right, data, graph, given))
            case Select(variables, inner):
                inside = {name: term for name, term in given.items() if name in variables}
                found = join(found, [restricted(one, variables) for one in solutions(inner, data, graph, inside)])
            case Block("OPTIONAL", inner):
                right, conditions = without_filters(inner, data, graph, given)
                found = [one for left in found for one in optional(left, right, conditions, data, graph, given)]
            case Block("MINUS", inner):
                others = solutions(inner, data, graph, given)
                found = [
                    one for one in found if not any(one.keys() & other.keys() and agree(one, other) for other in others)
                ]
            case Block(before, inner):
                found = join(found, solutions(inner, data, GRAPH if before else graph, given))
            case Condition(variable=variable) if variable:
                found = [{**one, variable: truth(holds(element, one, data, graph, given))} for one in found]
            case Condition() | Bound():
                filters.append(element)
    return found, filters


def optional(
    left: Solution, right: Sequence[Solution], conditions: Sequence[Test], data: Data, graph: str, given: Solution
) -> list[Solution]:
    joined = [one for one in join([left], right) if all(holds(test, one, data, graph, given) for test in conditions)]
    return joined or [left]


def restricted(solution: Solution, variables: Sequence[str]) -> Solution:
    return {name: term for name, term in solution.items() if name in variables}


def holds(test: Test, solution: Solution, data: Data, graph: str, given: Solution) -> bool:
    if isinstance(test, Bound):
        return test.variable in {**given, **solution}
    return bool(solutions(test.group, data, graph, {**given, **solution})) != test.negated


def truth(value: bool) -> Term:
    return f'"{str(value).lower()}"^^<http://www.w3.org/2001/XMLSchema#boolean>'


def agree(one: Solution, other: Solution) -> bool:
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def join(left: Sequence[Solution], right: Sequence[Solution]) -> list[Solution]:
    return [{**one, **other} for one in left for other in right if agree(one, other)]


def matches(pattern: Triple, triples: Triples, given: Solution) -> list[Solution]:
    parts = [given.get(part, part) for part in (pattern.s, pattern.p, pattern.o)]
    found = []
    for triple in sorted(triples):
        solution: Solution = {}
        if all(
            solution.setdefault(part, term) == term if part[0] == "?" else part == term
            for part, term in zip(parts, triple, strict=True)
        ):
            found.append(solution)
    return found


# --- the family -----------------------------------------------------------------------------------------

IN, HAS, LABEL = "<urn:in>", "<urn:has>", "<urn:label>"
OUTER = (
    (Triple("?s", IN, "?r"),),
    (Triple("?s", IN, "?r"), Block("OPTIONAL", group(Triple("?s", HAS, "?z")))),
)
INNER = (Triple("?r", LABEL, "?l"), Triple("?x", LABEL, "?l"))
WITHIN = (
    group(Triple("?r", HAS, "?s")),
    group(Triple("?s", IN, "?r")),
    group(Triple("?x", HAS, "?s")),
    group(Triple("?r", HAS, "?z")),
    group(Triple("?r", HAS, "?y"), Condition(group(Triple("?y", HAS, "?s")), negated=True)),
    group(Triple("?r", HAS, "?y"), Block("", group(Triple("?s", IN, "?r")))),
    group(Select(("?r",), group(Triple("?r", HAS, "?s")))),
    group(Triple("?r", HAS, "?s"), Select(("?s",), group(Triple("?s", IN, "?r")))),
    group(Select(("?r",), group(Triple("?r", HAS, "?y"), Bound("?s")))),
)
CONTAINERS: tuple[Callable[[Group], Block | Union], ...] = (
    lambda inner: Block("", inner),
    lambda inner: Block("OPTIONAL", inner),
    lambda inner: Block("MINUS", inner),
    lambda inner: Block(f"GRAPH {GRAPH}", inner),
    lambda inner: Union(inner, group(Triple("?s", HAS, "?r"))),
    lambda inner: Block("", group(Block("", inner), Triple("?r", LABEL, "?m"))),
)


def family() -> Iterator[Group]:
    for outer, container, inner, within, negated, bound, first in product(
        OUTER, CONTAINERS, INNER, WITHIN, (False, True), (False, True), (False, True)
    ):
        test = Condition(within, negated, "?b" if bound else "")
        block = container(group(inner, test))
        yield group(block, *outer) if first and not isinstance(block, Block) else group(*outer, block)
        if first and isinstance(block, Block) and not block.before:
            yield group(block, *outer)


def triples(rng: random.Random) -> Triples:
    nodes = [f"<urn:{name}>" for name in "abc"]
    return frozenset(
        (rng.choice(nodes), rng.choice((IN, HAS, LABEL)), rng.choice(nodes)) for _ in range(rng.randint(2, 7))
    )


def inserted(data: Data) -> str:
    default, named = (" ".join(" ".join(triple) + " ." for triple in sorted(data[graph])) for graph in ("", GRAPH))
    return f"INSERT DATA {{ {default} GRAPH {GRAPH} {{ {named} }} }}"


Rows = Counter[frozenset[tuple[str, Term]]]


def rows(bag: Bag) -> Rows:
    return Counter(frozenset((f"?{name}", term) for name, term in row.items()) for row in bag.bindings())


def answered(engine: Engine, text: str) -> Rows:
    """The rows of a SELECT, and the triples of a CONSTRUCT."""
    answer = engine.query(text)
    if isinstance(answer.value, Bag):
        return rows(answer.value)
    names = ("?subject", "?predicate", "?object")
    return Counter(frozenset(zip(names, triple, strict=True)) for triple in answer)


def counted(found: Iterable[Solution]) -> Rows:
    return Counter(frozenset(solution.items()) for solution in found)


# --- around the WHERE -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projected:
    """EXISTS in the projection."""

    group: Group
    condition: Condition

    def __str__(self) -> str:
        return f"SELECT ?r ({exists(self.condition)} AS ?e) {self.group}"

    def rows(self, data: Data) -> Iterator[Solution]:
        for one in solutions(self.group, data, "", {}):
            yield {"?r": one["?r"], "?e": truth(holds(self.condition, one, data, "", {}))}


@dataclass(frozen=True)
class Having:
    """EXISTS in HAVING, where the solutions are those of GROUP BY."""

    group: Group
    condition: Condition

    def __str__(self) -> str:
        return f"SELECT ?r (COUNT(*) AS ?e) {self.group} GROUP BY ?r HAVING({exists(self.condition)})"

    def rows(self, data: Data) -> Iterator[Solution]:
        for room, count in Counter(one["?r"] for one in solutions(self.group, data, "", {})).items():
            if holds(self.condition, {"?r": room}, data, "", {}):
                yield {"?r": room, "?e": integer(count)}


@dataclass(frozen=True)
class Key:
    """EXISTS as the key of GROUP BY."""

    group: Group
    condition: Condition

    def __str__(self) -> str:
        return f"SELECT ?r (COUNT(*) AS ?e) {self.group} GROUP BY ({exists(self.condition)} AS ?r)"

    def rows(self, data: Data) -> Iterator[Solution]:
        keys = Counter(holds(self.condition, one, data, "", {}) for one in solutions(self.group, data, "", {}))
        for key, count in keys.items():
            yield {"?r": truth(key), "?e": integer(count)}


@dataclass(frozen=True)
class Ordered:
    """EXISTS in ORDER BY: false is before true. Its variables need not be projected."""

    group: Group
    condition: Condition

    def __str__(self) -> str:
        return f"SELECT ?r {self.group} ORDER BY ({exists(self.condition)})"

    def rows(self, data: Data) -> Iterator[Solution]:
        for one in solutions(self.group, data, "", {}):
            yield {"?r": one["?r"]}

    def first(self, data: Data) -> Counter[Term | None]:
        """The values of the rows that come first."""
        found = solutions(self.group, data, "", {})
        return Counter(one["?r"] for one in found if not holds(self.condition, one, data, "", {}))


Around = Projected | Having | Key | Ordered
MADE = "<urn:made>"
ROOMS = (
    group(Triple("?s", IN, "?r")),
    group(Triple("?s", IN, "?r"), Block("MINUS", group(Triple("?r", HAS, "?z")))),
    group(Triple("?s", IN, "?r"), Select(("?r",), group(Triple("?r", LABEL, "?z")))),
    group(Triple("?s", IN, "?r"), Block("OPTIONAL", group(Triple("?s", HAS, "?z")))),
)


def exists(condition: Condition) -> str:
    return f"{'NOT ' if condition.negated else ''}EXISTS {condition.group}"


def integer(value: int) -> Term:
    return f'"{value}"^^<http://www.w3.org/2001/XMLSchema#integer>'


def around() -> Iterator[Around]:
    for room, within, negated in product(ROOMS, WITHIN, (False, True)):
        condition = Condition(within, negated)
        yield from (form(room, condition) for form in (Projected, Having, Key, Ordered))


PATTERNS = [*enumerate(dict.fromkeys(family()))]
AROUND = [*enumerate(around())]
CONSTRUCTED = PATTERNS[::4]


@each_row("number, pattern", PATTERNS[::13])
def test_query_update_and_subscription_agree_with_the_standard(number: int, pattern: Group) -> None:
    check(number, pattern)


@pytest.mark.faults
@each_row("number, pattern", PATTERNS)
def test_the_whole_family_agrees_with_the_standard(number: int, pattern: Group) -> None:
    check(number, pattern)


@each_row("number, select", AROUND[::7])
def test_exists_outside_of_the_where_agrees_with_the_standard(number: int, select: Around) -> None:
    check_around(number, select)


@pytest.mark.faults
@each_row("number, select", AROUND)
def test_the_whole_family_outside_of_the_where_agrees_with_the_standard(number: int, select: Around) -> None:
    check_around(number, select)


@each_row("number, pattern", CONSTRUCTED[::19])
def test_construct_agrees_with_the_standard(number: int, pattern: Group) -> None:
    check_construct(number, pattern)


@pytest.mark.faults
@each_row("number, pattern", CONSTRUCTED)
def test_the_whole_family_of_construct_agrees_with_the_standard(number: int, pattern: Group) -> None:
    check_construct(number, pattern)


def check(number: int, pattern: Group) -> None:
    text = f"SELECT * {pattern}"
    for engine, data, right in compared(number, text, lambda data: solutions(pattern, data, "", {})):
        made = engine.prepare(f"INSERT {{ ?s {MADE} ?r }} WHERE {pattern}").added
        pairs = {(names["?s"], names["?r"]) for names in map(dict, right) if {"?s", "?r"} <= names.keys()}
        assert {(quad.s, quad.o) for quad in made} == pairs, f"update: {text} over {data}"


def check_around(number: int, select: Around) -> None:
    for engine, data, right in compared(number, str(select), select.rows):
        if isinstance(select, Ordered):
            values = [row.get("r") for row in engine.query(str(select))]
            first = select.first(data)
            assert Counter(values[: first.total()]) == first, f"order: {select} over {data}"
            continue
        made = engine.prepare(f"INSERT {{ {MADE} {MADE} ?e }} WHERE {{ {select} }}").added
        assert {quad.o for quad in made} == {dict(row)["?e"] for row in right}, f"update: {select} over {data}"


def check_construct(number: int, pattern: Group) -> None:
    def made(data: Data) -> Iterator[Solution]:
        found = solutions(pattern, data, "", {})
        for s, o in {(one["?s"], one["?r"]) for one in found if {"?s", "?r"} <= one.keys()}:
            yield {"?subject": s, "?predicate": MADE, "?object": o}

    for _ in compared(number, f"CONSTRUCT {{ ?s {MADE} ?r }} WHERE {pattern}", made):
        pass


def compared(
    number: int, text: str, expected: Callable[[Data], Iterable[Solution]]
) -> Iterator[tuple[Engine, Data, Rows]]:
    """The engine with random data, the data, and the rows that query and subscription have both been found to give."""
    rng = random.Random(number)
    engine = Engine()
    subscription = engine.subscribe(text)
    followed = rows(subscription.first)
    assert followed == counted(expected({"": frozenset(), GRAPH: frozenset()}))
    for _ in range(3):
        data = {"": triples(rng), GRAPH: triples(rng)}
        commit = engine.update(f"CLEAR ALL; {inserted(data)}")
        for change in commit.notifications:
            followed = followed - rows(change.removed) + rows(change.added)
        right = counted(expected(data))
        assert answered(engine, text) == right, f"query: {text} over {data}"
        assert followed == right, f"subscription: {text} over {data}"
        yield engine, data, right
