"""Dry runs: before the store evaluates something in the engine's loop, a process that can be killed evaluates it.

The cost of an update without a plan, and of a re-evaluated subscription, is unknown, and pyoxigraph cannot be stopped
(design 4.9). So a fork of the gateway runs it first, within limits, while others go on. What it found counts in the
request's turn, unless a commit in between touched what it read (`gateway.workers.solutions`). Then it is tried again,
and at last evaluated in its turn, within the part of the limit for which others may wait (`in_turn_ms`).

What was short is remembered, and evaluated in its turn from then on:

- by its text, and
- by its shape, if the text passes with a variable in place of each subject and object that is a constant. That
  evaluation finds the solutions of all texts of the shape, so none of them costs more. Constants that restrict
  what is subtracted (MINUS, EXISTS), the ends of paths, and those in expressions and VALUES stay as they are.

A WHERE with a single triple pattern that has a constant needs no dry run: the data is read once. It needs one if its
expressions may make long texts or search for patterns, or if it asks for the names of graphs.

The dataset grows after a passed dry run, and one quad may join two halves of it. So an evaluation that is `risky`, by
the size of the dataset and the number of patterns, is tried each time; in the loop a fork evaluates it
(`Reader.try_here`), whose solutions count. Each evaluation in the loop is measured too: above the limit, it has to pass
again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from lamplighter.engine.access import FULL, Access, Graphs
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import GatewayError, LimitExceededError
from lamplighter.engine.matching.aggregates import AGGREGATES
from lamplighter.engine.matching.costs import Costs
from lamplighter.engine.matching.filling import NotIndexedError
from lamplighter.engine.protocol import characters
from lamplighter.engine.sparql.algebra import (
    Aggregate,
    Constant,
    Exists,
    Expression,
    Function,
    Graph,
    Minus,
    OpaquePath,
    Pattern,
    Values,
    Variable,
    walk,
)
from lamplighter.engine.sparql.cursor import UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import join_tokens
from lamplighter.engine.sparql.requests import canonical, declarations_and_body
from lamplighter.engine.sparql.skeletons import TEXT_MAX, Lifted, Lifter, skeleton_of
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.terms import Bag, Term
from lamplighter.engine.updating.request import Request
from lamplighter.engine.work import in_turn_ms
from lamplighter.gateway.settings import LimitSettings
from lamplighter.gateway.sharing import ClientTurns
from lamplighter.gateway.workers.ad_hoc import TOGETHER_MAX, Reader
from lamplighter.gateway.workers.large_updates import LargeUpdateParser
from lamplighter.gateway.workers.recent_changes import RecentChanges
from lamplighter.gateway.workers.solutions import Trial, record_work

# Texts and shapes whose dry runs are remembered, least recently used first out.
REMEMBERED_MAX = 4096
# Characters of all known skeletons.
OUTLINES_CHARACTERS_MAX = 1024 * 1024
# Quads that the store reads in a millisecond, at least.
_LOOKS_PER_MS = 2000
CHARACTER_S = 1e-5
"""Time for the data in each character of a text, on a busy machine."""
ATTEMPTS_MAX = 3
"""Dry runs of a request whose solutions commits have touched, until it is evaluated in its turn."""
# Dry runs at the same time; more wait.
AT_ONCE_MAX = 2


class _Memory:
    """The most recently used keys."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def add(self, key: bytes) -> None:
        self._keys[key] = None
        if len(self._keys) > REMEMBERED_MAX:
            self._keys.popitem(last=False)

    def discard(self, key: bytes) -> None:
        self._keys.pop(key, None)


def _key(*parts: object) -> bytes:
    """Equal for equal arguments; of fixed length, since the texts have up to 16 MiB and many are remembered."""
    return blake2b(repr(parts).encode(errors="surrogatepass"), digest_size=16).digest()


def _names(graphs: Graphs) -> list[Term] | None:
    """The same for equal sets."""
    return None if graphs.names is None else sorted(graph or "" for graph in graphs.names)


@dataclass(frozen=True)
class _Outline:
    """Facts about a skeleton. general: numbers of the constants that may be variables; others: as in `_Shape`."""

    general: frozenset[int]
    linear: bool
    exponent: int | None


@dataclass(frozen=True)
class _Shape:
    """key: equal for texts that cost no more than `text`, which has variables for constants. linear: whether the
    dataset is read once at most; exponent: the power of the dataset's size that the cost is bounded by, None if it is
    not known."""

    key: bytes
    linear: bool
    exponent: int | None
    text: Callable[[], str]


class TrialWork(NamedTuple):
    """What a fork does. evaluate: called with the value of NOW(). requests: how many it is made of, each with the
    limits of one; whole: as in `Trial`; data_s: for data besides."""

    evaluate: Callable[[datetime], object]
    requests: int = 1
    whole: bool = False
    data_s: float = 0.0


class DryRun:
    """A request of unknown cost. texts: what is evaluated. trial: what was found, None if it was not tried."""

    again = False

    def __init__(
        self, dry_runs: DryRuns, key: bytes, shape: _Shape | None, texts: Sequence[str], work: TrialWork
    ) -> None:
        self._dry_runs = dry_runs
        self._key = key
        self._shape = shape
        self._texts = texts
        self._work = work._replace(requests=min(work.requests, TOGETHER_MAX))
        self.trial: Trial | None = None

    @property
    def _is_risky(self) -> bool:
        return any(map(self._dry_runs.risky, self._texts))

    @property
    def has_passed(self) -> bool:
        """Whether the loop may run it, as far as known."""
        dry_runs, shape = self._dry_runs, self._shape
        if self.trial is not None:
            return True
        if self._is_risky:
            return False
        if self._key in dry_runs.passed or (shape is not None and shape.key in dry_runs.passed):
            return True
        # It reads the dataset once at most. A failure says that this one is an exception.
        return shape is not None and shape.linear and self._key not in dry_runs.failed

    async def perform(self, client: str = "") -> None:
        """client: whose turn it takes. Raises LimitExceededError for a request that the loop must not run."""
        dry_runs, shape = self._dry_runs, self._shape
        async with dry_runs.turns.of(client):
            if self.has_passed:
                return  # another one has passed in the meantime
            dry_runs.runs += 1
            # The text with variables for constants costs at least as much. If it passes, all texts of the shape have.
            if shape is not None and shape.key not in dry_runs.failed and not self._is_risky:
                try:
                    await dry_runs.reader.trial(lambda: dry_runs.engine.store.select(shape.text()), in_turn=True)
                except LimitExceededError:
                    dry_runs.failed.add(shape.key)
                else:
                    dry_runs.passed.add(shape.key)
                    return
            # The general text was too dear: this one alone may pass.
            self.trial = await dry_runs.try_work(self._work)
            dry_runs.failed.discard(self._key)
            if not self.is_long:
                dry_runs.passed.add(self._key)

    @property
    def is_long(self) -> bool:
        """Whether it took so long that others should not wait for it."""
        return self.trial is not None and self.trial.ms * 2 > in_turn_ms(self._dry_runs.limits.evaluation_ms_max)

    def took(self, seconds: float) -> None:
        """Records its processor time in the loop; above the limit it has to pass again."""
        dry_runs = self._dry_runs
        # The dataset has grown since.
        if seconds * 1000 > in_turn_ms(dry_runs.limits.evaluation_ms_max) * self._work.requests:
            dry_runs.passed.discard(self._key)
            dry_runs.failed.add(self._key)
            if self._shape is not None:
                dry_runs.passed.discard(self._shape.key)
                dry_runs.failed.add(self._shape.key)


async def _breathe(client: str = "") -> None:
    """Has nothing to try."""


class IndexJob:
    """Indexes many quads in portions, between which others have their turn. Whether that was all of what a request
    needs is found out by another look at it."""

    again = True
    has_passed = False
    trial = None
    is_long = False

    def __init__(self, dry_runs: DryRuns, predicate: Term | None, by_object: bool) -> None:
        self._dry_runs = dry_runs
        self._predicate = predicate
        self._by_object = by_object

    async def perform(self, client: str = "") -> None:
        """client: whose turn it takes."""
        dry_runs, cts = self._dry_runs, self._dry_runs.engine.cts
        async with dry_runs.index_turns.of(client):
            try:
                while True:
                    await dry_runs.reader.steady.wait()
                    if cts.fill_some(self._predicate, by_object=self._by_object):
                        break
                    await asyncio.sleep(0)
            finally:
                cts.stop_filling(self._predicate)

    def took(self, seconds: float) -> None:
        """Has nothing to remember."""


class Breath:
    """Passes at once: what had to be known of a request took so long that others go first. again: whether the request
    is looked at again then."""

    def __init__(self, *, again: bool = False) -> None:
        self.again = again

    has_passed = True
    trial = None
    is_long = False

    perform = staticmethod(_breathe)

    def took(self, seconds: float) -> None:
        """Has nothing to remember."""


class ParseJob:
    """A request with a large text: it is parsed first, then tried if the store has to evaluate something."""

    again = False

    def __init__(self, dry_runs: DryRuns, request: Request, access: Access, *, evaluated: bool) -> None:
        self._dry_runs = dry_runs
        self._request = request
        self._access = access
        self._evaluated = evaluated
        self._next: DryRun | ParseJob | None = None

    @property
    def has_passed(self) -> bool:
        return self._request.operations is not None and (self._next is None or self._next.has_passed)

    @property
    def trial(self) -> Trial | None:
        return None if self._next is None else self._next.trial

    @property
    def is_long(self) -> bool:
        return self._next is not None and self._next.is_long

    async def perform(self, client: str = "") -> None:
        """client: whose turn it takes. Raises RequestError for an invalid text or one that the loop must not run,
        StoreError."""
        request = self._request
        if request.operations is None:
            request.operations = await self._dry_runs.parser.operations(request.texts, client)
            self._next = self._dry_runs.of_update(request, self._access, evaluated=self._evaluated)
        if self._next is not None:
            await self._next.perform(client)

    def took(self, seconds: float) -> None:
        """As of a dry run."""
        if self._next is not None:
            self._next.took(seconds)


class DryRuns:
    """Dry runs that passed, and what has to pass before a request runs."""

    def __init__(self, engine: Engine, reader: Reader, limits: LimitSettings) -> None:
        self.engine = engine
        self.reader = reader
        self.limits = limits
        self.turns = ClientTurns(AT_ONCE_MAX)
        self.index_turns = ClientTurns(1)
        self.passed = _Memory()
        self.failed = _Memory()
        self.changes = RecentChanges()
        # Requests that had to be tried.
        self.runs = 0
        self.parser = LargeUpdateParser(reader)
        self._lifter = Lifter(canonical)
        self._outlines = LruCache[str, _Outline | None](REMEMBERED_MAX, OUTLINES_CHARACTERS_MAX)

    def of_update(self, request: Request, access: Access = FULL, *, evaluated: bool = True) -> DryRun | ParseJob | None:
        """What has to pass before an update runs: the parsing of a large text, then a dry run of what the store would
        evaluate. None for nothing, and for an invalid text. evaluated: whether it runs now; a delayed one has its dry
        run when it is due.

        For a client that may read only some graphs, the dry run is over those, and counts only for that client.
        """
        if len(request.text) > TEXT_MAX and request.operations is None:
            return ParseJob(self, request, access, evaluated=evaluated)
        if not evaluated:
            return None
        with suppress(GatewayError):
            texts = request.evaluations(access)
            if not texts:
                return None
            shape = None
            # Only then the text says all of what is read; the others are remembered by themselves.
            if request.single and not request.using and access.read.every:
                shape = self._shape(texts[0])
            key = _key(request.text, request.using, _names(access.read))
            # Its data has cost its time already, where it was parsed.
            data_s = len(request.text) * CHARACTER_S if request.large else 0.0
            work = TrialWork(
                lambda now: self.engine.prepare(request, access=access, now=now),
                len(request.texts),
                request.reads_graphs,
                data_s,
            )
            return DryRun(self, key, shape, texts, work)
        return None

    async def try_work(self, work: TrialWork) -> Trial | None:
        """What a work finds in a fork, None if that is not known. Raises as `Reader.trial`."""
        await self.reader.steady.wait()
        # Not behind the fork: what is committed before it may count as a change since then, but not the other way.
        version, now = self.changes.watch(), self.engine.now

        def record() -> bytes:
            return record_work(self.engine, lambda: work.evaluate(now), bare=False, data=work.data_s > 0)

        frames = await self.reader.trial(record, work.data_s, work.requests)
        return Trial(frames, version, now, whole=work.whole) if frames else None

    def of_subscription(
        self,
        sparql: str,
        default_graphs: Sequence[Term] | None,
        named_graphs: Sequence[Term] | None,
        access: Access = FULL,
    ) -> DryRun | IndexJob | None:
        """None for a subscription that has a plan, and for an invalid one."""
        with suppress(GatewayError):
            subscribe = partial(
                self.engine.subscribe, sparql, default_graphs=default_graphs, named_graphs=named_graphs, access=access
            )
            try:
                text = self.engine.evaluation_of_subscription(
                    sparql, default_graphs=default_graphs, named_graphs=named_graphs, access=access, gradual=True
                )
            except NotIndexedError as error:
                return IndexJob(self, error.predicate, error.by_object)
            if text is None:
                return None
            dataset = tuple(None if names is None else tuple(names) for names in (default_graphs, named_graphs))
            shape = self._shape(text) if dataset == (None, None) and access.subscribe.every else None
            return DryRun(
                self,
                _key(text, *dataset, _names(access.subscribe)),
                None if shape is None else replace(shape, linear=False),  # the number of rows counts, too
                [text],
                TrialWork(lambda now: self.check_first(subscribe().first)),
            )
        return None

    def check_first(self, first: Bag) -> None:
        """Raises LimitExceededError for a first result that is too long."""
        if len(first) > self.limits.first_result_rows_max:
            raise LimitExceededError(
                f"the first result has more than limits.first_result_rows_max = {self.limits.first_result_rows_max} "
                "rows; narrow the subscription down"
            )
        self.check_characters("the first result", characters(first))

    def check_characters(self, what: str, count: int) -> None:
        """Raises LimitExceededError for results that would be too long a text. count: of the characters of their
        terms."""
        most = self.limits.result_characters_max
        if count > most:
            raise LimitExceededError(
                f"{what} has more than limits.result_characters_max = {most} characters of terms, where a term counts "
                "in each row that has it; select fewer variables, or narrow the subscription down"
            )

    def risky(self, text: str) -> bool:
        """Whether the evaluation of a query by the store may now take longer than others may wait: one more quad may
        join two halves of the dataset."""
        shape = self._shape(text)
        if shape is None or shape.exponent is None:
            return True
        if shape.exponent <= 1:
            return False
        # From above: each pattern of the product reads the whole dataset.
        looks: int = self.engine.quad_count**shape.exponent
        return looks > in_turn_ms(self.limits.evaluation_ms_max) * _LOOKS_PER_MS

    def _shape(self, text: str) -> _Shape | None:
        lifted: Lifted | None = None
        with suppress(GatewayError, SyntaxError, ValueError, RuntimeError):
            lifted = self._lifter.lift(text)
        if lifted is None:
            return None
        if lifted.skeleton not in self._outlines:
            self._outlines.put(lifted.skeleton, _outline(text, lifted), len(lifted.skeleton))
        outline = self._outlines.get(lifted.skeleton)
        if outline is None:
            return None
        fixed = tuple(
            lifted.terms.index(term) if number in outline.general else term for number, term in enumerate(lifted.terms)
        )
        key = _key(lifted.prologue, lifted.skeleton, fixed)
        return _Shape(key, outline.linear, outline.exponent, lambda: _generalise(text, lifted, outline))


def _outline(text: str, lifted: Lifted) -> _Outline | None:
    prologue, body = declarations_and_body(text)
    # Two lexers have read the text; where they differ, nothing is known of it.
    if skeleton_of(text, len(lifted.prologue), body, constant_spans(body)) != lifted.skeleton:
        return None
    try:
        select = read_select(body, lambda raw: canonical(prologue, raw))
    except UnknownSyntaxError:
        return None
    found = list(walk(select.node))
    patterns = [part for part in found if isinstance(part, Pattern)]
    linear = (
        len(patterns) <= 1
        and all(any(not isinstance(part, Variable) for part in pattern[:3]) for pattern in patterns)
        and not any(isinstance(part, (OpaquePath, Values, Exists, Graph)) for part in found)
        and not any(isinstance(part, Aggregate) and part.name not in AGGREGATES for part in found)
        and not any(isinstance(part, Expression) and _may_grow(part) for part in found)
    )
    return _Outline(frozenset(_general(select.node)), linear, _exponent(found))


def _exponent(found: Sequence[Any]) -> int | None:
    """One for each triple pattern, and two for a path of any length, whose ends may all be connected. None where
    something else multiplies solutions: the names of all graphs do, of empty ones too."""
    if any(
        isinstance(part, (Values, Graph))
        or (isinstance(part, Aggregate) and part.name not in AGGREGATES)
        or (isinstance(part, Expression) and _may_grow(part))
        for part in found
    ):
        return None
    return sum(isinstance(part, Pattern) + 2 * isinstance(part, OpaquePath) for part in found)


def _may_grow(expression: Expression) -> bool:
    """Whether it may cost more than reading its operands."""
    return Costs(expression.parts).growing or any(isinstance(part, Function) for part in expression.parts)


def _general(tree: Any) -> Iterator[int]:
    """The numbers of the constants that are subjects and objects of patterns which only add solutions."""
    if isinstance(tree, Pattern):
        yield from (part.number for part in (tree.s, tree.o) if isinstance(part, Constant))
    elif isinstance(tree, Minus):
        yield from _general(tree.left)
    elif isinstance(tree, tuple) and not isinstance(tree, (Variable, Constant)):
        for member in tree:
            yield from _general(member)
    elif hasattr(tree, "__dataclass_fields__") and not isinstance(tree, (Expression, OpaquePath, Exists)):
        for member in fields(tree):
            yield from _general(getattr(tree, member.name))


def _generalise(text: str, lifted: Lifted, outline: _Outline) -> str:
    """The text with a variable for each constant that may be one; equal constants become the same variable."""
    prologue, body = declarations_and_body(text)
    words = [token.text for token in body]
    for number, (start, end) in reversed(list(enumerate(constant_spans(body)))):
        if number in outline.general:
            words[start:end] = [f"?lamplighter_{lifted.terms.index(lifted.terms[number])}"]
    return f"{prologue} {join_tokens(words)}"
