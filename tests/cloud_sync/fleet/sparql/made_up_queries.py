"""Random queries of fleet subscriptions and random events, over few terms, so that joins have matches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.sparql.event_store import StoredEvent
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, fleet_query
from lamplighter.engine.errors import LimitExceededError, UnsupportedRequestError
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.terms import XSD, Term

NODES = [f"<urn:{name}>" for name in "abcd"]
PREDICATES = [f"<urn:{name}>" for name in "pqr"]
NUMBERS = [f'"{number}"^^<{XSD}integer>' for number in (1, 2, 3)]
OBJECTS = [*NODES, *NUMBERS, '"x"', '"x"@en']
GRAPHS = [None, "<urn:a>", "<urn:g>"]
ELEMENTS = ("triples", *["filter"] * 2, *["optional"] * 2, "union", "values", "bind", "graph", "group")
VARIABLES = ["?x", "?y", "?z", "?v"]


@dataclass(frozen=True)
class MadeUpEvent:
    """triples: (s, p, o, new), one of them new."""

    graph: Term | None
    triples: tuple[tuple[Term, Term, Term, bool], ...]


def made_up_event(random: Random) -> MadeUpEvent:
    found = {
        (random.choice(NODES), random.choice(PREDICATES), random.choice(OBJECTS)): random.random() < 0.4
        for _ in range(random.randint(1, 9))
    }
    first = next(iter(found))
    found[first] = True
    return MadeUpEvent(random.choice(GRAPHS), tuple((*triple, new) for triple, new in found.items()))


def stored_event(event: MadeUpEvent) -> StoredEvent:
    new, old = ([(s, p, o) for s, p, o, is_new in event.triples if is_new is wanted] for wanted in (True, False))
    return StoredEvent(new, old, event.graph)


@dataclass
class QueryMaker:
    """Writes one query. A blank node or the middle of a path is written as ``{hiddenN}``, a constant as ``{cN}``."""

    random: Random
    hidden: int = 0
    constants: list[list[Term]] = field(default_factory=list)

    def constant(self, choices: list[Term]) -> str:
        self.constants.append(choices)
        return f"{{c{len(self.constants) - 1}}}"

    def subject(self) -> str:
        return self.random.choice(VARIABLES) if self.random.random() < 0.8 else self.constant(NODES)

    def object(self) -> str:
        return self.random.choice(VARIABLES) if self.random.random() < 0.75 else self.constant(OBJECTS)

    def verb(self) -> str:
        return self.random.choice(VARIABLES) if self.random.random() < 0.2 else self.constant(PREDICATES)

    def triples(self) -> str:
        """Some triples, with blank nodes and paths."""
        parts, blank = [], None
        for _ in range(self.random.choice((1, 1, 1, 2, 2))):
            chance = self.random.random()
            if chance < 0.1:
                self.hidden += 1
                steps = (self.subject(), self.constant(PREDICATES), self.constant(PREDICATES), self.object())
                parts.append(f"{{path{self.hidden}|{'|'.join(steps)}}}")
            elif chance < 0.25:
                if blank is None:
                    self.hidden += 1
                    blank = f"{{hidden{self.hidden}}}"
                ends = [blank, self.object()] if self.random.random() < 0.5 else [self.subject(), blank]
                parts.append(f"{ends[0]} {self.verb()} {ends[1]}")
            else:
                parts.append(f"{self.subject()} {self.verb()} {self.object()}")
        return " . ".join(parts) + " . "

    def expression(self, depth: int = 0) -> str:
        random = self.random
        variable, other = random.choice(VARIABLES), random.choice(VARIABLES)
        found = [
            lambda: f"bound({variable})",
            lambda: f"isIRI({variable})",
            lambda: f"sameTerm({variable}, {other})",
            lambda: f"sameTerm({variable}, {self.constant(OBJECTS)})",
            lambda: f"({variable} > {self.constant(NUMBERS)})",
            lambda: f"({variable} < {other})",
        ]
        if depth < 2:
            found += [
                lambda: f"(!{self.expression(depth + 1)})",
                lambda: f"({self.expression(depth + 1)} && {self.expression(depth + 1)})",
                lambda: f"({self.expression(depth + 1)} || {self.expression(depth + 1)})",
            ]
        return random.choice(found)()

    def value(self) -> str:
        variable = self.random.choice(VARIABLES)
        found = [
            lambda: variable,
            lambda: self.constant(OBJECTS),
            lambda: f"COALESCE({variable}, {self.constant(OBJECTS)})",
            lambda: f"IF({self.expression(1)}, {variable}, {self.constant(OBJECTS)})",
            lambda: self.expression(1),
        ]
        return self.random.choice(found)()

    def values(self) -> str:
        names = self.random.sample(VARIABLES, self.random.choice((1, 2)))
        rows = [
            " ".join("UNDEF" if self.random.random() < 0.3 else self.constant(OBJECTS) for _ in names)
            for _ in range(self.random.choice((0, 1, 2, 2, 3, 3)))
        ]
        return f"VALUES ({' '.join(names)}) {{{{ {' '.join(f'({row})' for row in rows)} }}}} "

    def group(self, depth: int = 0) -> str:
        random, parts = self.random, []
        if depth == 0 or random.random() < 0.8:
            parts.append(self.triples())
        for _ in range(random.choice((0, 1, 2, 2, 3)) if depth < 3 else 0):
            kind = random.choice(
                ("triples", "filter", "filter", "optional", "optional", "union", "values", "bind", "graph", "group")
            )
            if kind == "triples":
                parts.append(self.triples())
            elif kind == "filter":
                parts.append(f"FILTER({self.expression()}) ")
            elif kind == "optional":
                parts.append(f"OPTIONAL {self.group(depth + 1)} ")
            elif kind == "union":
                parts.append(f"{self.group(depth + 1)} UNION {self.group(depth + 1)} ")
            elif kind == "values":
                parts.append(self.values())
            elif kind == "bind":
                parts.append(f"BIND({self.value()} AS ?{random.choice(('b', 'b', 'd', 'z'))}) ")
            elif kind == "graph":
                name = random.choice(("?g", "?g", "?x", self.constant(NODES)))
                parts.append(f"GRAPH {name} {self.group(depth + 1)} ")
            else:
                parts.append(self.group(depth + 1) + " ")
        if random.random() < 0.2:
            random.shuffle(parts)
        return f"{{{{ {''.join(parts)}}}}}"


@dataclass(frozen=True)
class MadeUpQuery:
    """query: as a subscriber writes it; all_variables: the same WHERE, with each solution's variables visible."""

    query: FleetQuery
    all_variables: str


def made_up_queries(
    random: Random, variants: int, refused: Counter[str], make: type[QueryMaker] = QueryMaker
) -> list[MadeUpQuery]:
    """Queries of one shape with different constants. refused: counts the reasons why texts were not taken."""
    while True:
        maker = make(random)
        where = maker.group()
        names = [*VARIABLES, "?b", "?g"]
        projection = random.choice(("*", "*", " ".join(random.sample(names, random.randint(1, 3))), "ASK"))
        expression = f"({maker.value()} AS ?made)" if projection not in ("*", "ASK") and random.random() < 0.2 else ""
        found = []
        try:
            for _ in range(variants):
                terms = {f"c{number}": random.choice(choices) for number, choices in enumerate(maker.constants)}
                plain = _filled(where, terms, hidden="_:b{}", path="{} {}/{} {}")
                shown = _filled(where, terms, hidden="?hidden{}", path="{0} {1} ?hidden{4} . ?hidden{4} {2} {3}")
                extend = expression.format(**terms)
                head = "ASK" if projection == "ASK" else f"SELECT {projection} {extend}"
                query = fleet_query(f"{head} {plain}")
                bind = f" BIND{extend}" if extend else ""
                found.append(MadeUpQuery(query, f"SELECT * {{ {shown}{bind} }}"))
        except UnsupportedRequestError as error:
            refused[str(error).partition(": ")[2].partition(" (")[0].partition(" is not")[0]] += 1
            continue
        except SyntaxError:
            refused["syntax"] += 1
            continue
        except LimitExceededError:
            refused["a limit"] += 1
            continue
        assert len({one.query.shape for one in found}) == 1
        return found


def _filled(where: str, terms: dict[str, Term], hidden: str, path: str) -> str:
    """The WHERE with its constants, and its hidden variables as blank nodes and paths, or as variables."""
    parts = where.split("{path")
    text = parts[0]
    for part in parts[1:]:
        inside, depth = "", 0
        for sign in part:
            if sign == "}" and depth == 0:
                break
            depth += (sign == "{") - (sign == "}")
            inside += sign
        number, *ends = inside.split("|")
        text += path.format(*ends, number) + part[len(inside) + 1 :]
    numbers = {f"hidden{number}": hidden.format(number) for number in range(40)}
    return text.format(**numbers, **terms)


class EventOracle:
    """The solutions that new triples add, by Oxigraph: of the bag of an event's solutions over all of its triples,
    those that are not in the bag over its old triples."""

    def __init__(self, event: MadeUpEvent) -> None:
        self._all = _dataset(event, event.triples)
        self._old = _dataset(event, [triple for triple in event.triples if not triple[3]])

    def rows(self, query: MadeUpQuery) -> Counter[tuple[Term | None, ...]]:
        before, after = (_bag(store, query.all_variables) for store in (self._old, self._all))
        found: Counter[tuple[Term | None, ...]] = Counter()
        for solution, count in (after - before).items():
            terms = dict(solution)
            found[tuple(terms.get(name) for name in query.query.variables)] += count
        return found


def _dataset(event: MadeUpEvent, triples: list[tuple[Term, Term, Term, bool]]) -> ox.Store:
    """The event's graph serves as default graph and, if it has a name, as named graph."""
    store = ox.Store()
    text = " ".join(f"{s} {p} {o} ." for s, p, o, _ in triples)
    store.load(text.encode(), ox.RdfFormat.TURTLE)
    if event.graph is not None:
        name = ox.NamedNode(event.graph[1:-1])
        store.add_graph(name)
        store.load(text.encode(), ox.RdfFormat.TURTLE, to_graph=name)
    return store


def _bag(store: ox.Store, text: str) -> Counter[frozenset[tuple[str, Term]]]:
    answer = store.query(text)
    names = [variable.value for variable in answer.variables]
    return Counter(
        frozenset((name, term_text(solution[name])) for name in names if solution[name] is not None)
        for solution in answer
    )
