"""An engine and the oracle that live through the same steps, compared after each: points 1 to 3 of the semantics.

Used by the property tests, by the mutation checks and by the soak. A case is made from a number, its seed; one that
fails is made smaller by leaving steps out, for a bounded time, and printed with its seed.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from unittest.mock import patch

import pyoxigraph as ox

from lamplighter.engine import Commit, Engine, Notification
from lamplighter.engine.delta import DELTA_QUADS_MAX
from lamplighter.engine.errors import GatewayError, LimitExceededError
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.updating.by_plan import UpdatePlan
from lamplighter.engine.updating.by_store import UsingGraphs
from lamplighter.engine.work import Meter, Work
from tests.properties.sparql_texts import Case, Cut, Graphs, Step, case_of
from tests.properties.windows import is_window
from tests.support.oracle import (
    REFUSALS,
    Answer,
    Oracle,
    QuadTexts,
    answer_from_json,
    parsed_dump,
    respelled,
    respelled_quads,
    respelled_rows,
    term_text,
)

NAMED_GRAPHS = "SELECT ?g { GRAPH ?g { } }"
SPU_CLASSES = ("telescoped", "seeded", "counted", "ordered", "re-evaluated")
FORMS = {
    "GROUP_CONCAT": re.compile(r"(?i)\bGROUP_CONCAT\b"),
    "OPTIONAL in EXISTS": re.compile(r"(?i)EXISTS\s*\{(?:[^{}]|\{[^{}]*\})*\bOPTIONAL\b"),
    "path in EXISTS": re.compile(r"(?i)EXISTS\s*\{(?:[^{}]|\{[^{}]*\})*[\w>)][*+?]"),
    "path in MINUS": re.compile(r"(?i)MINUS\s*\{(?:[^{}]|\{[^{}]*\})*[\w>)][*+?]"),
}
"""Forms of queries whose changes are counted if the store does not evaluate them."""
SHRINKING_SECONDS = 20.0

Rows = Counter[tuple[str | None, ...]]


@dataclass
class Follower:
    """A subscription as its subscriber sees it: a result kept up to date by nothing but notifications."""

    text: str
    spuid: str
    variables: tuple[str, ...]
    rows: Rows
    expected: Answer
    graphs: Graphs | None = None
    spu_class: str = ""
    sequence: int = 0
    cut: Cut | None = None

    def follow(self, notifications: Iterable[Notification]) -> None:
        mine = [notification for notification in notifications if notification.spuid == self.spuid]
        assert len(mine) <= 1, f"{len(mine)} notifications of one update: {self.text!r}"
        for notification in mine:
            self.sequence += 1
            assert notification.sequence == self.sequence, self.text
            added = rows_of(notification.added, self.variables)
            removed = rows_of(notification.removed, self.variables)
            assert added or removed, f"a notification of nothing: {self.text!r}"
            assert not added & removed, f"added and removed at once: {self.text!r}"
            assert removed <= self.rows, f"removed what was not there: {self.text!r}"
            self.rows = self.rows - removed + added


def rows_of(bag: Any, variables: tuple[str, ...]) -> Rows:
    """The rows of an engine's bag in the oracle's notation; its JSON must say the same."""
    assert tuple(bag.variables) == variables
    rows = respelled_rows(bag.rows)
    document = answer_from_json(bag.to_json())
    assert document.variables == variables
    assert document.rows == rows
    return rows


def in_order_of_text(text: str, variables: tuple[str, ...]) -> tuple[str, ...]:
    """The variables in the order in which the text names them first."""
    places = dict.fromkeys(token.text[1:] for token in tokens(text) if token.kind == "variable")
    return tuple(name for name in places if name in variables)


def in_order(answer: Answer, variables: tuple[str, ...]) -> Rows:
    """The rows of the oracle's answer with the columns in another order."""
    if answer.variables == variables:
        return answer.rows
    places = [answer.variables.index(name) for name in variables]
    return Counter(tuple(row[place] for place in places) for row in answer.ordered)


class GraphOracle(Oracle):
    """An oracle that knows the protocol's graph parameters and can take over a dataset with its labels."""

    def query(self, sparql: str, graphs: Graphs | None = None) -> Answer:
        if graphs is None:
            return super().query(sparql)
        default: Any
        named: Any
        default, named = (None if given is None else [ox.NamedNode(name[1:-1]) for name in given] for given in graphs)
        solutions = self._store.query(sparql, default_graph=default, named_graphs=named)
        assert isinstance(solutions, ox.QuerySolutions), sparql
        rows = [tuple(None if term is None else term_text(term) for term in solution) for solution in solutions]
        return Answer([variable.value for variable in solutions.variables], rows)

    def __len__(self) -> int:
        return len(self._store)

    def has_more_rows(self, most: int, sparql: str, graphs: Graphs | None = None) -> bool:
        """Whether a query has more rows than that. They are not kept."""
        default, named = (
            None if given is None else [ox.NamedNode(name[1:-1]) for name in given] for given in graphs or (None, None)
        )
        solutions = self._store.query(sparql, default_graph=default, named_graphs=named)
        assert isinstance(solutions, ox.QuerySolutions), sparql
        return sum(1 for _ in islice(solutions, most + 1)) > most

    def relabel(self, nquads: bytes) -> None:
        """Takes an equal dataset whose blank nodes have other labels; the graphs without quads stay."""
        store = ox.Store()
        store.extend(ox.parse(nquads, ox.RdfFormat.N_QUADS))
        for graph in self._store.named_graphs():
            if next(self._store.quads_for_pattern(None, None, None, graph), None) is None:
                store.add_graph(graph)
        self._store = store

    def renew(self) -> None:
        """Takes a fresh store: one in memory never frees what was removed."""
        dump = self._store.dump(format=ox.RdfFormat.N_QUADS)
        assert dump is not None, "without an output file the dump is returned"
        self.relabel(dump)


QUADS_MAX = 120
"""Beyond, the dataset is cleared before an update: templates with new blank nodes multiply it each time they come."""
QUADS_ENOUGH, ROWS_ENOUGH = 1_500, 100_000
"""A case ends when one update makes more quads, or a subscription of it has more rows: patterns that share nothing have
the product of what they match, for which no memory is enough."""


class CaseTooLargeError(Exception):
    """The case is not gone on with."""


@dataclass
class Tally:
    """What a run has checked, so that a run that checks nothing of interest fails."""

    counts: Counter[str] = field(default_factory=Counter)

    def changed_share(self, spu_class: str = "") -> float:
        """Changed results among the results that were checked, of one class or of all."""
        of_class = f" {spu_class}" if spu_class else ""
        return self.counts[f"changed{of_class}"] / max(1, self.counts[f"checks{of_class}"])

    def __str__(self) -> str:
        figures = " ".join(f"{name.replace(' ', '_')}={count}" for name, count in sorted(self.counts.items()))
        shares = " ".join(f"{name}={self.changed_share(name):.2f}" for name in SPU_CLASSES)
        return f"{figures} changed_share={self.changed_share():.2f} {shares}"


class FewUnits(Meter):
    """Allows each evaluation so many units, about."""

    def __init__(self, work: Work, sharers: Sized, units_max: int) -> None:
        super().__init__(work, sharers)
        self._all = work
        self._units_max = units_max
        self._turn = -1
        self.left = units_max

    def more(self) -> None:
        if self._turn == self._all.turn:
            raise self._all.exceeded()
        self._turn = self._all.turn
        self.left = self._units_max


class Comparison:
    """One engine and one oracle that live through the same case.

    whole_every: the datasets are compared as a whole after every so many updates, and at the end. In between the
    engine is not made to write its delta to the store. units_max: after which the plans of subscriptions give up.
    """

    def __init__(
        self,
        tally: Tally,
        whole_every: int = 3,
        units_max: int | None = None,
        delta_quads_max: int = DELTA_QUADS_MAX,
    ) -> None:
        self._units_max = units_max
        self.engine = Engine(delta_quads_max=delta_quads_max)
        self.oracle = GraphOracle()
        self.followers: list[Follower] = []
        self.tally = tally
        self._whole_every = whole_every
        self._updates = 0
        self._bounded = False
        self._quads: set[QuadTexts] = set()
        self._graphs: set[str] = set()

    def run(self, case: Case) -> None:
        self.tally.counts["cases"] += 1
        self._bounded = True  # what is generated may grow by itself
        try:
            with patch("lamplighter.engine.matching.ordering.SPARE", 0):  # else no window of a case is ever refilled
                for step in case.steps:
                    self.take(step)
            self.check_dataset()
        except CaseTooLargeError:
            self.tally.counts["too large"] += 1
        else:
            classes = [self.engine.describe(one.spuid).spu_class for one in self.followers]
            self.tally.counts["gave up"] += sum(
                one.spu_class != now for one, now in zip(self.followers, classes, strict=True)
            )
        finally:
            self.engine.close()

    def take(self, step: Step) -> None:
        match step.kind:
            case "subscribe":
                if self.oracle.has_more_rows(ROWS_ENOUGH, step.cut.whole if step.cut else step.text, step.graphs):
                    raise CaseTooLargeError
                with self._few_units():
                    try:
                        self.subscribe(step.text, step.graphs, step.cut)
                    except LimitExceededError:  # also without `units_max`: a product of unconnected patterns
                        self.tally.counts["too costly"] += 1
            case "unsubscribe":
                self.unsubscribe(int(step.text))
            case "load":
                self._load(step.text)
            case "update" if step.graphs is not None:
                self._update_using(step)
            case _:
                self.update(step.text)

    def _few_units(self) -> AbstractContextManager[object]:
        """Has plans that are made meanwhile give up soon."""
        units_max = self._units_max
        if units_max is None:
            return nullcontext()
        return patch("lamplighter.engine.matching.plan.Meter", lambda work, sharers: FewUnits(work, sharers, units_max))

    def subscribe(self, text: str, graphs: Graphs | None = None, cut: Cut | None = None) -> Follower:
        expected = self.oracle.query(text, graphs)
        default, named = graphs or (None, None)
        subscription = self.engine.subscribe(text, default_graphs=default, named_graphs=named)
        variables = tuple(subscription.first.variables)
        assert set(variables) == set(expected.variables)
        if variables != expected.variables:  # the store sorts those of `SELECT *`
            assert variables == in_order_of_text(text, variables)
        rows = rows_of(subscription.first, variables)
        assert isinstance(subscription.spuid, str)
        one = Follower(text, subscription.spuid, variables, rows, expected, graphs, subscription.spu_class, cut=cut)
        self._check_rows(one)
        self.followers.append(one)
        self.tally.counts["subscriptions"] += 1
        return one

    def unsubscribe(self, number: int) -> None:
        if self.followers:
            self.engine.unsubscribe(self.followers.pop(number % len(self.followers)).spuid)

    def update(self, text: str) -> None:
        if self.engine.quad_count > QUADS_MAX:
            self.change("CLEAR ALL", lambda: self.oracle.update("CLEAR ALL"), lambda: self.engine.update("CLEAR ALL"))
        came_before = _plans(self.engine, text) is not None
        self.change(text, lambda: self.oracle.update(text), lambda: self.engine.update(text))
        self.tally.counts["again"] += came_before
        self.tally.counts["planned"] += came_before and any(_plans(self.engine, text) or ())

    def _update_using(self, step: Step) -> None:
        default, named = step.graphs or (None, None)
        using = UsingGraphs(default or (), named or ())
        self.change(
            step.text,
            lambda: self.oracle.update(step.same),
            lambda: self.engine.commit(self.engine.prepare(self.engine.request(step.text, using))),
        )

    def _load(self, text: str) -> None:
        data = text.encode()
        self.change(
            text,
            lambda: self.oracle.load(data, "application/n-quads"),
            lambda: self.engine.load(data, media_type="application/n-quads"),
        )

    def change(self, text: str, oracle_step: Callable[[], Any], engine_step: Callable[[], Commit]) -> None:
        """Lets both change, and compares what can be seen of it."""
        refused: Exception | None = None
        try:
            oracle_step()
        except REFUSALS as refusal:
            refused = refusal
        if self._bounded and self.followers and len(self.oracle) > QUADS_MAX:
            self._check_size()
        notifications: tuple[Notification, ...] = ()
        before = self._classes()
        try:
            with self._few_units():
                commit = engine_step()
        except GatewayError as error:
            if self._bounded and refused is None and isinstance(error, LimitExceededError):
                raise CaseTooLargeError from error  # a product of patterns fills the templates of an update
            assert refused is not None, f"refused by the engine alone: {error}: {text!r}"
            assert isinstance(refused, SyntaxError) == isinstance(error, SyntaxError), (refused, error)
            self.tally.counts["refused"] += 1
        else:
            assert refused is None, f"refused by the oracle alone: {refused}: {text!r}"
            self._check_delta(commit)
            self._check_takeovers(commit, before)
            notifications = tuple(commit.notifications)
            assert not commit.ended
            self.tally.counts["updates"] += 1
            self.tally.counts["effective"] += commit.delta.changes
        assert not self.engine.faults, "a fault that was made good is a fault"
        known = {one.spuid for one in self.followers}
        assert all(one.spuid in known for one in notifications), "a notification for nobody"
        self._updates += 1
        if self._updates % self._whole_every == 0:
            self.check_dataset()
        for one in self.followers:
            one.follow(notifications)
            self._check_follower(one)

    def _classes(self) -> dict[str, str]:
        return {one.spuid: self.engine.describe(one.spuid).spu_class for one in self.followers}

    def _check_takeovers(self, commit: Commit, before: dict[str, str]) -> None:
        """Whoever is followed in another way is told so, and `describe` says the same."""
        after = self._classes()
        takeovers = {one.spuid: one for one in commit.takeovers}
        assert {spuid for spuid in after if after[spuid] != before[spuid]} <= set(takeovers)
        for spuid, takeover in takeovers.items():
            info = self.engine.describe(spuid)
            by_store = info.spu_class == "re-evaluated"
            assert (takeover.spu_class, takeover.reason) == (info.spu_class, info.reason)
            assert bool(info.reason) is by_store
            if by_store:  # one that returns may have been the store's from the beginning
                assert info.taken_over is not None
                assert info.taken_over == commit.sequence or before[spuid] == "re-evaluated"
            self.tally.counts["taken over" if by_store else "returned"] += 1

    def _check_size(self) -> None:
        """Ends a case before the engine follows an update that multiplies rows."""
        if len(self.oracle) > QUADS_ENOUGH:
            raise CaseTooLargeError
        if any(
            self.oracle.has_more_rows(ROWS_ENOUGH, one.cut.whole if one.cut else one.text, one.graphs)
            for one in self.followers
        ):
            raise CaseTooLargeError

    def renew_oracle(self) -> None:
        self.oracle.renew()

    def known_quads(self) -> str:
        """The dataset after the last delta that was right, as N-Quads."""
        return "".join(" ".join(term for term in quad if term) + " .\n" for quad in sorted(self._quads, key=str))

    def _check_delta(self, commit: Commit) -> None:
        after, graphs = self.oracle.quads(), self.oracle.graphs()
        known = _blank_nodes(self._quads)
        if _blank_nodes(after) - known:
            dump = self.engine.dump("application/n-quads")
            assert coloured(parsed_dump(dump), known) == coloured(after, known), "other blank nodes"
            self.oracle.relabel(dump)
            after, graphs = self.oracle.quads(), self.oracle.graphs()
            self.tally.counts["relabelled"] += 1
        assert respelled_quads(commit.added) == Counter(after - self._quads)
        assert respelled_quads(commit.removed) == Counter(self._quads - after)
        assert {respelled(graph) for graph in commit.delta.created} == graphs - self._graphs
        assert {respelled(graph) for graph in commit.delta.dropped} == self._graphs - graphs
        self._quads, self._graphs = after, graphs

    def check_dataset(self) -> None:
        assert parsed_dump(self.engine.dump("application/n-quads")) == Counter(self.oracle.quads())
        graphs = answer_from_json(self.engine.query(NAMED_GRAPHS).to_json())
        assert graphs.rows == Counter((graph,) for graph in self.oracle.graphs())

    def _check_follower(self, one: Follower) -> None:
        expected = self._check_rows(one)
        changed = expected.rows != one.expected.rows
        for name, count in (("checks", 1), ("changed", changed)):
            self.tally.counts[name] += count
            self.tally.counts[f"{name} {one.spu_class}"] += count
        if changed and one.spu_class != "re-evaluated":
            self.tally.counts.update(f"changed {name}" for name, form in FORMS.items() if form.search(one.text))
        one.expected = expected

    def _check_rows(self, one: Follower) -> Answer:
        return self.check_rows(one.rows, one.variables, one.text, one.graphs, one.cut)

    def check_rows(
        self, rows: Rows, variables: tuple[str, ...], text: str, graphs: Graphs | None = None, cut: Cut | None = None
    ) -> Answer:
        """Compares what a client has with a fresh evaluation, and returns that."""
        expected = self.oracle.query(text, graphs)
        if cut is not None:
            whole = self.oracle.query(cut.whole, graphs)
            assert is_window(whole, rows, cut), f"{text!r}: no window of {whole}: {rows}"
        else:
            right = in_order(expected, variables)
            assert same_rows(rows, right, text), f"{text!r}: too much {rows - right}, too little {right - rows}"
        return expected


_AGGREGATE = re.compile(r"(?i)\b(SUM|AVG|MIN|MAX)\s*\(")
_CONCATENATION = re.compile(r"(?i)\bGROUP_CONCAT\s*\(")
_SEPARATORS = re.compile(r"[ |;]")
_NUMBER = re.compile(r'"([^"]*)"\^\^<http://www.w3.org/2001/XMLSchema#(?:integer|decimal|float|double)>')


def same_rows(rows: Rows, expected: Rows, text: str) -> bool:
    """Whether two bags are equal, or differ only in what the store leaves to the order of its quads.

    That is the last digits of a sum of floats, which one of equal numbers of several types is the least, and the order
    of the members of GROUP_CONCAT.
    """
    if rows == expected:
        return True
    if _CONCATENATION.search(text):
        rows, expected = _sorted(rows), _sorted(expected)
    if _AGGREGATE.search(text):
        return _rounded(rows) == _rounded(expected)
    return rows == expected


def _sorted(rows: Rows) -> Rows:
    """The rows with the pieces of each text between separators in order."""
    found: Rows = Counter()
    for row, count in rows.items():
        terms: list[str | None] = []
        for term in row:
            if term is not None and term[0] == '"':
                end = term.rindex('"')
                term = f'"{"|".join(sorted(_SEPARATORS.split(term[1:end])))}{term[end:]}'
            terms.append(term)
        found[tuple(terms)] += count
    return found


def _rounded(rows: Rows) -> Counter[tuple[str | None, ...]]:
    found: Counter[tuple[str | None, ...]] = Counter()
    for row, count in rows.items():
        numbers = [None if term is None else _NUMBER.fullmatch(term) for term in row]
        found[tuple(f"{float(n[1]):.6g}" if n else term for n, term in zip(numbers, row, strict=True))] += count
    return found


def _plans(engine: Engine, text: str) -> list[UpdatePlan | None] | None:
    """The plans for updates of this shape, None for a shape that is not known."""
    try:
        lifted = engine._updates.plans._lifter.lift(text)
    except Exception:
        return None
    shape = engine._updates.plans._shapes.get(lifted.skeleton)
    return None if shape is None else list(shape.plans.values())


def _blank_nodes(quads: Iterable[QuadTexts]) -> set[str]:
    return {term for quad in quads for term in quad if term is not None and term.startswith("_:")}


def coloured(quads: Iterable[QuadTexts], known: Container[str]) -> Counter[tuple[Any, ...]]:
    """The quads with a colour for each new blank node, refined by its neighbours.

    Equal for isomorphic datasets, and hardly ever for others. Unlike a canonical form (RDFC-1.0) it takes no
    exponential time where many new nodes look the same.
    """
    quads = list(quads)
    of_node: dict[str, list[QuadTexts]] = {}
    for quad in quads:
        for term in _blank_nodes([quad]):
            if term not in known:
                of_node.setdefault(term, []).append(quad)
    colours: dict[str | None, Any] = dict.fromkeys(of_node, 0)
    for _ in range(4):
        colours = {
            node: hash(
                tuple(sorted(hash(tuple(-1 if t == node else colours.get(t, t) for t in quad)) for quad in found))
            )
            for node, found in of_node.items()
        }
    return Counter(tuple(colours.get(term, term) for term in quad) for quad in quads)


# -- running many -----------------------------------------------------------------------------------------------------


class CaseFailedError(AssertionError):
    """A case on which engine and oracle differ; the message holds its seed, the smallest form found, and how."""


def failure(case: Case, units_max: int | None = None) -> Exception | None:
    """What is found on a case. Whatever the engine raises that is no refusal is a finding too."""
    try:
        Comparison(Tally(), units_max=units_max).run(case)
    except Exception as error:
        return error
    return None


def smaller(case: Case, seconds: float = SHRINKING_SECONDS, units_max: int | None = None) -> Case:
    """The failing case without the steps that are not needed for it to fail, as far as the time reaches."""
    deadline = time.monotonic() + seconds
    steps = list(case.steps)
    shrunk = True
    while shrunk:
        shrunk = False
        for position in reversed(range(len(steps))):
            if time.monotonic() > deadline:
                return Case(tuple(steps))
            rest = steps[:position] + steps[position + 1 :]
            if failure(Case(tuple(rest)), units_max) is not None:
                steps, shrunk = rest, True
    for position, step in enumerate(steps):
        for shorter in _shorter(step):
            if time.monotonic() > deadline:
                break
            tried = [*steps[:position], shorter, *steps[position + 1 :]]
            if failure(Case(tuple(tried)), units_max) is not None:
                steps = tried
                break
    return Case(tuple(steps))


def _shorter(step: Step) -> Iterable[Step]:
    """The operations of a plainly written request, one at a time."""
    if step.kind == "update" and step.graphs is None and "#" not in re.sub("<[^>]*>", "", step.text):
        found = re.split(r" ; ", step.text)
        if len(found) > 1:
            prologue = re.match(r"((?:PREFIX \S+ <[^>]*> |BASE <[^>]*> )*)", found[0])
            assert prologue is not None
            for number, operation in enumerate(found):
                yield replace(step, text=operation if number == 0 else prologue.group() + operation)


def run_cases(seeds: Iterable[int], tally: Tally | None = None, units_max: int | None = None) -> Tally:
    """Runs the cases of these seeds. Raises CaseFailedError for the first that fails."""
    tally = tally or Tally()
    for seed in seeds:
        case = case_of(seed)
        try:
            Comparison(tally, units_max=units_max).run(case)
        except Exception as error:
            small = smaller(case, units_max=units_max)
            found = failure(small, units_max) or error
            raise CaseFailedError(
                f"seed {seed} fails; to repeat it: python -m tests.soak --case {seed}\n{small!r}\n"
                f"{type(found).__name__}: {found}"
            ) from error
    return tally
