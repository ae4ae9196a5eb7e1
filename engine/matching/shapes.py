"""Shapes: what subscribed queries have in common when their constants are lifted out.

Subscriptions to the same query share a *unit*, however they spell it: the SPU of the paper (Roffia 2016, III). Units
whose queries differ in constants only share a *shape* and its plan, so that a changed quad is matched once for all of
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from lamplighter.engine.access import Dataset
from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.matching.analysis import Unsupported, in_graphs, with_equalities
from lamplighter.engine.matching.clock_index import ClockIndex, Condition
from lamplighter.engine.matching.clock_patterns import ClockPattern, with_clock_patterns
from lamplighter.engine.matching.construction import ConstructedTriples
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.filling import NotIndexedError
from lamplighter.engine.matching.lutt import EVERYTHING, PatternSignature
from lamplighter.engine.matching.ordering import ORDERED, OrderedRows, Window, without_window
from lamplighter.engine.matching.paths import with_paths
from lamplighter.engine.matching.plan import Plan
from lamplighter.engine.matching.prices import Spent
from lamplighter.engine.matching.query_constants import QueryConstants
from lamplighter.engine.matching.query_texts import ParsedQuery
from lamplighter.engine.matching.signatures import signature_of
from lamplighter.engine.matching.spu import RE_EVALUATED, ReevaluatingSpu
from lamplighter.engine.sparql.algebra import (
    Constant,
    Function,
    Graph,
    Node,
    OpaquePath,
    Part,
    Pattern,
    Select,
    Variable,
    rewritten,
    takes_apart,
    walk,
)
from lamplighter.engine.sparql.clock_conditions import ClockRefusal
from lamplighter.engine.terms import XSD, Binding, Term, is_iri
from lamplighter.engine.work import Meter, Work

# Chosen graphs of a query with a plan. Each pattern is one of each graph in it.
GRAPHS_MAX = 16
_INTEGER = f'"^^<{XSD}integer>'


class SharedQuery:
    """The SPU: shared by all subscribers whose queries are equal up to the names of variables.

    key: the constants (`QueryConstants`). number, sequence, columns: number, last notification and columns of the first
    subscriber. others: number -> [sequence, columns] of the others; None saves memory, since most units have one
    subscriber. spu: set if the store evaluates the unit. times: row -> the times at which its occurrences appeared, in
    microseconds, oldest first; None without a clock column. window: set if the plan's rows are ordered and cut.
    triples: set if subscribers get the triples that the rows make of a template.
    """

    __slots__ = ("columns", "key", "number", "others", "sequence", "shape", "spu", "times", "triples", "window")

    def __init__(self, shape: Shape, key: Any) -> None:
        self.shape = shape
        self.key = key
        self.number: int | None = None
        self.sequence = 0
        self.columns: tuple[str, ...] = ()
        self.others: dict[int, list[Any]] | None = None
        self.spu: ReevaluatingSpu | None = None
        self.times: dict[Binding, list[int]] | None = {} if shape.parsed.clocks else None
        template = shape.parsed.template
        self.triples = None if template is None else ConstructedTriples(template)
        self.window = self.new_window()

    def new_window(self) -> OrderedRows | None:
        """The window over the rows of the shape's plan, if they are ordered and cut."""
        window, plan = self.shape.window, self.shape.plan
        if window is None or plan is None:
            return None
        return OrderedRows(window, partial(plan.first, self.key), plan.meter)

    @property
    def spu_class(self) -> str:
        """The mode in which the result is kept up to date; part of the answer to the subscriber."""
        return self.shape.spu_class

    @property
    def reason(self) -> str:
        """Why the store evaluates it; empty if a plan follows it."""
        return "" if self.spu is None else self.shape.reason

    def rows(self) -> Sequence[Binding]:
        """The current result."""
        if self.spu is not None:
            return self.spu.rows
        if self.window is not None:
            return self.window.rows()
        assert self.shape.plan is not None
        return self.shape.plan.first(self.key)

    def visible_rows(self) -> Sequence[Binding] | None:
        """The rows that subscribers have, if the store may give others that are as right; else None.

        The index must be as at the last commit, or a window without a settled change. Raises what the plan raises.
        """
        if self.window is not None:
            return self.window.window_rows
        plan = self.shape.plan
        return plan.first(self.key) if plan is not None and plan.differs and self.number is not None else None

    @property
    def row_count(self) -> int:
        """The number of rows kept for it alone: the last result of the store, those in and near a window, different
        ones with the time of their appearance, and triples that are counted."""
        rows = 0 if self.spu is None else len(self.spu.rows)
        rows += 0 if self.window is None else self.window.size
        return rows + len(self.times or ()) + (0 if self.triples is None else self.triples.size)

    def with_times(self, rows: Sequence[Binding], now: int) -> list[Binding]:
        """The whole result, each row with the time at which it appeared; new rows get now."""
        assert self.times is not None
        found = []
        for row, count in Counter(rows).items():
            known = self.times.setdefault(row, [])
            # Rows that other subscribers have already keep their times.
            known += [now] * (count - len(known))
            found += [self._with_time(row, time) for time in known]
        return found

    def timed_change(
        self, removed: Sequence[Binding], added: Sequence[Binding], now: int
    ) -> tuple[list[Binding], list[Binding]]:
        """The removed rows with the time at which each appeared, and the added rows with now.

        Of equal rows the oldest is removed first. An error leaves the unit unchanged.
        """
        assert self.times is not None
        # Copies, so that an error changes nothing.
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
        for index in self.shape.parsed.clocks:
            values.insert(index, f'"{time}{_INTEGER}')
        return tuple(values)

    def enter(self, number: int, columns: tuple[str, ...]) -> None:
        """Adds a subscriber."""
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
        """The numbers of all subscribers."""
        assert self.number is not None
        return [self.number, *(self.others or ())]

    def leave(self, number: int) -> bool:
        """Removes a subscriber; returns whether any is left."""
        if number == self.number:
            self.number = None
            if self.others:
                # Most queries have one subscriber, who needs no dictionary; another takes the place when it leaves.
                self.number, (self.sequence, self.columns) = self.others.popitem()
        else:
            assert self.others is not None
            del self.others[number]
        return self.number is not None


class PlanContext(NamedTuple):
    """What plans are compiled with: the index, the limit of work, and the comparisons with the clock."""

    cts: Cts
    work: Work
    clock_index: ClockIndex


class Shape:
    """The shared plan of queries that differ in lifted constants only.

    parsed, terms: of any one of the queries. dataset: the graphs chosen outside of the text. plan: None if only the
    store can evaluate the queries; reason then says why. units: the units by their constants.
    conditions: its comparisons with the clock; without a plan, they tell when to evaluate again.
    kept: numbers of the lifted constants, each group of equal ones once. tree: the algebra with the constants that are
    not lifted put in; None if the grammar does not know the syntax. window: the rows that ORDER BY with LIMIT leaves of
    those of the plan. spent: the processor time of the plan in commits.
    """

    def __init__(
        self,
        parsed: ParsedQuery,
        terms: Sequence[Term],
        context: PlanContext,
        dataset: Dataset | None,
        by_store: str | None = None,
    ) -> None:
        """by_store: the reason if the store is to evaluate the queries even if a plan could."""
        self.key: Any = None
        self.subscribers = 0
        self.spent = Spent()
        self.parsed = parsed
        self.dataset = dataset
        # Equal constants are one: a query that has a term twice has another shape than one with two terms, and its plan
        # compares less.
        first_with: dict[Term, int] = {}
        numbers = sorted(parsed.lifted)
        self.kept = tuple(dict.fromkeys(first_with.setdefault(terms[number], number) for number in numbers))
        same = {number: first_with[terms[number]] for number in numbers}
        self._fixed = {number: term for number, term in enumerate(terms) if number not in same}
        self._same = same
        self.tree: Node | None = None
        self.plan: Plan | None = None
        self.window: Window | None = None
        self._new_plan: Callable[[], tuple[Plan, Window | None]] | None = None
        self.conditions: list[Condition] = []
        self.units = QueryConstants([Constant(number) for number in self.kept])
        self.reason = "syntax that only the store knows"
        if parsed.select is not None:
            self._compile(parsed.select, terms, context, by_store)

    def _compile(self, select: Select, terms: Sequence[Term], context: PlanContext, by_store: str | None) -> None:
        """Makes plan and conditions, or finds the reason why there is no plan. Raises UnsupportedRequestError."""
        parsed, dataset, same = self.parsed, self.dataset, self._same
        cts, work, clock_index = context

        def change(part: Any) -> Any:
            if isinstance(part, Function):
                return terms[part.number]
            if isinstance(part, Constant):
                return Constant(same[part.number]) if part.number in same else terms[part.number]
            return part

        def is_named(part: Part) -> bool:
            return is_iri(terms[part.number]) if isinstance(part, Constant) else isinstance(part, str) and is_iri(part)

        self.tree = rewritten(select.node, change)
        # `tree` keeps the paths as they are, for the signature.
        tree = with_paths(self.tree)
        if dataset is not None or select.default_graphs or select.named_graphs:
            graphs = self._only_default(select, terms)
            # The store alone could not follow it: it does not know when a comparison changes.
            if (graphs is None or len(graphs) > 1) and with_clock_patterns(tree, clock_index.predicates)[1]:
                raise UnsupportedRequestError(
                    "a comparison with the clock in a dataset of several graphs, or of graphs of which the client may "
                    "not see all; name one graph by FROM, or each by GRAPH"
                )
            if graphs is None:
                self.reason = (
                    "a dataset of chosen graphs with GRAPH, or with named ones"
                    if dataset is None or dataset.visible.every
                    else "graphs that the client may not see, or GRAPH with a variable where it may not see all"
                )
                return
            # Each pattern becomes a union over the graphs, so the branches multiply.
            if len(graphs) > GRAPHS_MAX:
                self.reason = f"more than {GRAPHS_MAX} chosen graphs"
                return
            if len(graphs) > 1 and any(isinstance(node, OpaquePath) for node in walk(self.tree)):
                self.reason = "a path of any length in several chosen graphs"
                return
            if len(graphs) > 1 and any(isinstance(node, Pattern) and takes_apart(node) for node in walk(self.tree)):
                self.reason = "a triple term in several chosen graphs"
                return
            tree = in_graphs(tree, graphs)
        tree, patterns = with_clock_patterns(tree, clock_index.predicates)
        # After the clock patterns, which read filters as written.
        tree = with_equalities(tree, is_named)
        self._open(patterns, tree, context)
        # The conditions were opened before: without a plan they still tell when to evaluate.
        if by_store is not None or parsed.prologue:
            self.reason = by_store or "IRI() with a BASE"
            return
        new_plan = partial(_new_plan, tree, parsed.order, self.units, cts, work, incremental=bool(patterns))
        try:
            self.plan, self.window = new_plan()
            self._new_plan = new_plan
        except Unsupported as unsupported:
            self.reason = str(unsupported)
        except NotIndexedError:
            self.close()
            raise

    def begin_plan(self) -> None:
        """Makes the plan again, after `close_plan`."""
        assert self._new_plan is not None
        self.plan, self.window = self._new_plan()

    def close_plan(self) -> None:
        """Releases what the plan holds in the CTS."""
        assert self.plan is not None
        self.plan.close()
        self.plan = self.window = None

    def _open(self, patterns: Sequence[ClockPattern], tree: Node, context: PlanContext) -> None:
        """Compiles the comparisons with the clock. Raises UnsupportedRequestError."""
        meter, touched = Meter(context.work, self.units.all), context.clock_index.touched
        try:
            for pattern in patterns:
                self.conditions.append(Condition(self, pattern, tree, context.cts, meter, touched))
        except (ClockRefusal, Unsupported) as error:
            self.close()
            raise UnsupportedRequestError(str(error)) from error
        except NotIndexedError:
            self.close()
            raise

    @property
    def spu_class(self) -> str:
        if self.plan is None:
            return RE_EVALUATED
        return self.plan.spu_class if self.window is None else ORDERED

    def _only_default(self, select: Select, terms: Sequence[Term]) -> list[Term | None] | None:
        """The graphs that are the default graph of a dataset without named graphs; None for another dataset."""
        if any(
            isinstance(node, Graph) or (isinstance(node, (Pattern, OpaquePath)) and node.graph is not None)
            for node in walk(select)
            if not (isinstance(node, Pattern) and takes_apart(node))
        ):
            return None
        if self.dataset is not None:
            default_graphs, named_graphs, _ = self.dataset
            return list(default_graphs) if default_graphs and not named_graphs else None
        if select.named_graphs or not select.default_graphs:
            return None
        graphs: list[Term | None] = [
            terms[graph.number] for graph in select.default_graphs if isinstance(graph, Constant)
        ]
        return graphs if len(graphs) == len(select.default_graphs) else None

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
        """The query text of a unit."""
        return self.parsed.render(self.terms(key))

    def name(self, key: Any) -> str:
        """The text as the store evaluates it, with a comment if the dataset is not chosen in it: the same text over
        other graphs is another query, and costs something else."""
        text = self.text(key)
        if self.dataset is None:
            return text
        # A digest, since names of graphs are a client's.
        graphs = repr(self.dataset).encode(errors="surrogatepass")
        return f"{text}\n# {blake2b(graphs, digest_size=16).hexdigest()}"

    def signature(self, key: Any) -> PatternSignature:
        """The quads on which the result of a unit can depend."""
        # Syntax that only the store knows: any quad may matter.
        if self.tree is None or self.parsed.select is None:
            return EVERYTHING
        default_graphs, named_graphs, _ = self.dataset or Dataset()
        select = self.parsed.select
        chosen = default_graphs is not None or named_graphs is not None or select.default_graphs or select.named_graphs
        return signature_of(self.tree, self.terms(key), chosen=bool(chosen))

    def close(self) -> None:
        """Releases what the shape holds in the CTS."""
        if self.plan is not None:
            self.plan.close()
        for condition in self.conditions:  # behind the plan, which names their predicates
            condition.close()


def _new_plan(
    tree: Node, names: Sequence[str], units: QueryConstants, cts: Cts, work: Work, *, incremental: bool
) -> tuple[Plan, Window | None]:
    """A plan with the window over its rows. Raises Unsupported."""
    tree, columns, window = without_window(tree, [Variable(name) for name in names])
    return Plan(tree, columns, units, cts, work, incremental=incremental), window
