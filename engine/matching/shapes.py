"""Shapes: what subscribed queries have in common when their constants are lifted out.

Whoever subscribes to the same query, however it is spelt, shares a *unit*: the SPU of the paper (Roffia 2016,
III). Units whose queries differ in constants only share a *shape*, and with it the plan, so that a changed
quad is matched once for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lamplighter.engine.access import Dataset
from lamplighter.engine.matching.analysis import Unsupported, in_graph, rewritten, with_equalities
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.lutt import ANY, EVERYTHING, Footprint, TriplePattern
from lamplighter.engine.matching.plan import Plan
from lamplighter.engine.matching.spu import RE_EVALUATED, ReevaluatingSpu
from lamplighter.engine.matching.units import Units
from lamplighter.engine.sparql.algebra import (
    Aggregate,
    Constant,
    Expression,
    Function,
    Graph,
    Node,
    OpaquePath,
    Part,
    Pattern,
    Project,
    Select,
    Variable,
    walk,
)
from lamplighter.engine.sparql.grammar import UnknownSyntaxError, constant_spans, read_select
from lamplighter.engine.sparql.lexer import Token, joined
from lamplighter.engine.terms import XSD, Binding, Term, is_iri
from lamplighter.engine.work import Work

_INTEGER = f'"^^<{XSD}integer>'
_INTEGER_END = len(_INTEGER)


@dataclass(frozen=True)
class Spelling:
    """What the skeleton of a query tells, whatever the constants.

    text: its tokens in a standard layout, with constants as numbers and variables renamed in the order in which
    they come, and its columns. columns: the projection's variables as the subscriber calls them; order: as they
    are renamed. lifted: numbers of the constants that only say which subject, object, graph or operand is meant;
    the others belong to the shape. select: None where only the store knows the syntax. parts: the tokens of text.
    """

    text: str
    columns: tuple[str, ...]
    order: tuple[str, ...]
    lifted: frozenset[int]
    select: Select | None
    parts: tuple[str | int, ...]
    prologue: str = ""
    """The declarations, where the function IRI() makes BASE matter to more than the constants."""
    clocks: tuple[int, ...] = ()
    """Indexes of the columns that say when a row appeared; they are in columns, and in nothing else here."""

    def render(self, terms: Sequence[Term]) -> str:
        """The query with these constants."""
        body = joined(part if isinstance(part, str) else _written(terms[part]) for part in self.parts)
        return f"{self.prologue} {body}" if self.prologue else body


def _written(term: Term) -> str:
    """The term in SPARQL syntax: after LIMIT stands a bare integer."""
    return term[1:-_INTEGER_END] if term.endswith(_INTEGER) and term[1:-_INTEGER_END].isdigit() else term


def read_spelling(found: Sequence[Token], columns: Sequence[str], resolve: Callable[[str], Term]) -> Spelling:
    """Reads the tokens of a checked query without its declarations; columns: as the store names them."""
    spans = {start: (number, end) for number, (start, end) in enumerate(constant_spans(found))}
    names: dict[str, str] = {}
    parts: list[str | int] = []
    texts: list[str] = []
    renamed: list[Token] = []
    position = 0
    while position < len(found):
        token = found[position]
        if position in spans:
            number, end = spans[position]
            parts.append(number)
            texts.append(f"\x01{number}{'iri' if token.kind in ('iri', 'name') else ''}")
            renamed += found[position:end]
            position = end
            continue
        text = token.text
        if token.kind == "variable":
            text = names.setdefault(f"?{text[1:]}", f"?v{len(names)}")
        elif token.kind == "blank":
            text = names.setdefault(text, f"_:b{len(names)}")
        elif token.kind == "word" and text != "a":
            text = text.lower() if token.is_word("TRUE", "FALSE") else text.upper()
        renamed.append(token._replace(text=text))
        position += 1
        if token.kind == "number":  # with a sign before it, or it would be a constant
            parts.append(f"{parts.pop()}{text}")
            texts.append(f"{texts.pop()}{text}")
            continue
        texts.append(text)
        before = found[position - 2] if position > 1 else None
        if token.kind == "sign" and before is not None and (before.kind, before.end) == ("sign", token.start):
            text = f"{parts.pop()}{text}"  # `<<(` and the like are one sign to the store
        parts.append(text)
    order = tuple(names[f"?{column}"][1:] for column in columns)
    select = _read(renamed, order, resolve)
    text = " ".join([*texts, *order])
    return Spelling(text, tuple(columns), order, _lifted(select), select, tuple(parts))


def _read(found: Sequence[Token], order: Sequence[str], resolve: Callable[[str], Term]) -> Select | None:
    try:
        select = read_select(found, resolve)
    except UnknownSyntaxError:
        return None
    projections = [node for node in walk(select) if isinstance(node, Project)]
    return select if {variable.name for variable in projections[0].variables} == set(order) else None


def _lifted(select: Select | None) -> frozenset[int]:
    free: set[int] = set()
    fixed: set[int] = set()
    for node in walk(select):
        match node:
            case Pattern(s, p, o, graph):
                free |= _numbers(s, o, graph)
                fixed |= _numbers(p)
            case OpaquePath(s, steps, o, graph):
                free |= _numbers(s, o, graph)
                fixed |= _numbers(*steps)
            case Aggregate(_, _, Expression(parts)) if ";" in parts:  # the separator is no operand
                fixed |= _numbers(*parts)
            case Expression(parts):
                free |= _numbers(*parts)
    return frozenset(free - fixed)


def _numbers(*parts: Any) -> set[int]:
    return {part.number for part in parts if isinstance(part, Constant)}


def graphs_read(tree: Any, terms: Sequence[Term]) -> set[Term | None] | None:
    """The graphs that patterns and GRAPH name, None among them for the default graph; None where a variable does."""
    found: set[Term | None] = set()
    for node in walk(tree):
        match node:
            case Pattern(_, _, _, graph) | OpaquePath(_, _, _, graph) | Graph(graph, _):
                if isinstance(graph, Variable):
                    return None
                found.add(terms[graph.number] if isinstance(graph, Constant) else graph)
    return found


class Unit:
    """Subscribers whose queries are the same but for the names of their variables: what they share (the SPU).

    Most units have one subscriber, so the first one's number, last notification and columns stand here; others
    have theirs in a dict that is made when they come. spu: for units that are re-evaluated.
    """

    __slots__ = ("columns", "key", "number", "others", "sequence", "shape", "spu", "times")

    def __init__(self, shape: Shape, key: Any) -> None:
        self.shape = shape
        self.key = key
        self.number: int | None = None
        self.sequence = 0
        self.columns: tuple[str, ...] = ()
        self.others: dict[int, list[Any]] | None = None
        self.spu: ReevaluatingSpu | None = None
        self.times: dict[Binding, list[int]] | None = {} if shape.spelling.clocks else None

    @property
    def spu_class(self) -> str:
        """How the result is kept up to date, told to the subscriber."""
        return self.shape.spu_class

    def rows(self) -> Sequence[Binding]:
        """The current result."""
        if self.spu is not None:
            return self.spu.rows
        assert self.shape.plan is not None
        return self.shape.plan.first(self.key)

    def timed(self, rows: Sequence[Binding], now: int) -> list[Binding]:
        """The whole result with the time at which each row appeared: now, for those that are new."""
        assert self.times is not None
        found = []
        for row, count in Counter(rows).items():
            known = self.times.setdefault(row, [])
            known += [now] * (count - len(known))
            found += [self._with_time(row, time) for time in known]
        return found

    def timed_change(
        self, removed: Sequence[Binding], added: Sequence[Binding], now: int
    ) -> tuple[list[Binding], list[Binding]]:
        """Rows that go, with the time at which each appeared, and rows that come now, with that time.

        Of equal rows the oldest goes first. If it fails nothing has happened.
        """
        assert self.times is not None
        times = {row: list(self.times.get(row, ())) for row in (*removed, *added)}
        gone = [self._with_time(row, times[row].pop(0)) for row in removed]
        come = [self._with_time(row, now) for row in added]
        for row in added:
            times[row].append(now)
        self.times.update(times)
        for row in removed:
            if row in self.times and not self.times[row]:
                del self.times[row]
        return gone, come

    def _with_time(self, row: Binding, time: int) -> Binding:
        values = list(row)
        for index in self.shape.spelling.clocks:
            values.insert(index, f'"{time}{_INTEGER}')
        return tuple(values)

    def enter(self, number: int, columns: tuple[str, ...]) -> None:
        if self.number is None:
            self.number, self.sequence, self.columns = number, 0, columns
        else:
            if self.others is None:
                self.others = {}
            self.others[number] = [0, columns]

    def count_others(self) -> None:
        """Counts one more notification for each subscriber but the first."""
        for member in (self.others or {}).values():
            member[0] += 1

    @property
    def numbers(self) -> list[int]:
        """Of all its subscribers."""
        assert self.number is not None
        return [self.number, *(self.others or ())]

    def leave(self, number: int) -> bool:
        """Whether somebody is left."""
        if number == self.number:
            self.number = None
            if self.others:
                self.number, (self.sequence, self.columns) = self.others.popitem()
        else:
            assert self.others is not None
            del self.others[number]
        return self.number is not None


class Shape:
    """Queries that differ in lifted constants only. reason: why there is no plan, if there is none."""

    def __init__(
        self, spelling: Spelling, terms: Sequence[Term], cts: Cts, dataset: Dataset | None, work: Work
    ) -> None:
        self.key: Any = None
        self.subscribers = 0
        self.spelling = spelling
        self.dataset = dataset
        first_with: dict[Term, int] = {}
        self.numbers = tuple(number for number in sorted(spelling.lifted))
        self.kept = tuple(dict.fromkeys(first_with.setdefault(terms[number], number) for number in self.numbers))
        same = {number: first_with[terms[number]] for number in self.numbers}
        self._fixed = {number: term for number, term in enumerate(terms) if number not in same}
        self._same = same
        self.tree: Node | None = None
        self.plan: Plan | None = None
        self.units = Units([Constant(number) for number in self.kept])
        self.reason = "syntax that only the store knows"
        select = spelling.select
        if select is None:
            return

        def change(part: Any) -> Any:
            if isinstance(part, Function):
                return terms[part.number]
            if isinstance(part, Constant):
                return Constant(same[part.number]) if part.number in same else terms[part.number]
            return part

        def named(part: Part) -> bool:
            return is_iri(terms[part.number]) if isinstance(part, Constant) else isinstance(part, str) and is_iri(part)

        self.tree = rewritten(select.node, change)
        tree = self.tree
        if dataset is not None or select.default_graphs or select.named_graphs:
            graph = self._only_graph(select, terms)
            if graph is None:
                self.reason = (
                    "a dataset of several chosen graphs, or GRAPH in one"
                    if dataset is None or dataset.visible.every
                    else "graphs that the client may not see, or GRAPH with a variable where it may not see all"
                )
                return
            tree = in_graph(tree, graph)
        if spelling.prologue:
            self.reason = "IRI() with a BASE"
            return
        try:
            columns = [Variable(name) for name in spelling.order]
            self.plan = Plan(with_equalities(tree, named), columns, self.units, cts, work)
        except Unsupported as unsupported:
            self.reason = str(unsupported)

    @property
    def spu_class(self) -> str:
        return RE_EVALUATED if self.plan is None else self.plan.spu_class

    def _only_graph(self, select: Select, terms: Sequence[Term]) -> Term | None:
        """The graph that alone is the dataset: its triples are the default graph, and there is no other."""
        if any(
            isinstance(node, Graph) or (isinstance(node, Pattern) and node.graph is not None) for node in walk(select)
        ):
            return None
        if self.dataset is not None:
            default_graphs, named_graphs, _ = self.dataset
            return default_graphs[0] if default_graphs and len(default_graphs) == 1 and not named_graphs else None
        if len(select.default_graphs) != 1 or select.named_graphs:
            return None
        [graph] = select.default_graphs
        return terms[graph.number] if isinstance(graph, Constant) else None

    def constants(self, terms: Sequence[Term]) -> Any:
        """The key of the unit with these constants."""
        if len(self.kept) == 1:
            return terms[self.kept[0]]
        return tuple(terms[number] for number in self.kept)

    def terms(self, key: Any) -> list[Term]:
        """All constants of a unit, by number."""
        kept = dict(zip(self.kept, (key,) if len(self.kept) == 1 else key, strict=True))
        count = len(self._fixed) + len(self._same)
        return [kept[self._same[number]] if number in self._same else self._fixed[number] for number in range(count)]

    def text(self, key: Any) -> str:
        """The query of a unit."""
        return self.spelling.render(self.terms(key))

    def footprint(self, key: Any) -> Footprint:
        """What the result of a unit can depend on (Roffia 2016, III.B)."""
        if self.tree is None or self.spelling.select is None:
            return EVERYTHING
        terms = self.terms(key)
        default_graphs, named_graphs, _ = self.dataset or Dataset()
        select = self.spelling.select
        chosen = default_graphs is not None or named_graphs is not None or select.default_graphs or select.named_graphs
        patterns: dict[TriplePattern, None] = {}
        graph_names = False

        def term(part: Part | None) -> Term:
            if isinstance(part, Constant):
                return terms[part.number]
            return part if isinstance(part, str) else ANY

        def place(graph: Part | None) -> Term | None:
            return ANY if chosen else None if graph is None else term(graph)

        for node in walk(self.tree):
            match node:
                case Pattern(s, p, o, graph):
                    patterns[TriplePattern(term(s), term(p), term(o), place(graph))] = None
                case OpaquePath(s, steps, o, graph, zero_length):
                    # A path of length zero joins every node of the graph to itself, a constant while it is one.
                    joins_nodes = zero_length and isinstance(s, Variable) and isinstance(o, Variable)
                    for step in (None,) if joins_nodes else steps:
                        patterns[TriplePattern(ANY, ANY if step is None else term(step), ANY, place(graph))] = None
                    for end in (s, o) if zero_length and not joins_nodes else ():
                        if not isinstance(end, Variable):
                            patterns[TriplePattern(term(end), ANY, ANY, place(graph))] = None
                            patterns[TriplePattern(ANY, ANY, term(end), place(graph))] = None
                case Graph():
                    graph_names = True
        return Footprint(tuple(patterns), graph_names)

    def close(self) -> None:
        """Lets go of what the plan holds in the CTS."""
        if self.plan is not None:
            self.plan.close()
