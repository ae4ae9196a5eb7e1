"""Answers queries that read few quads, within a bound that is known before the store evaluates them.

::

    text ─▶ skeleton ─▶ what it reads ─▶ the quads that it can use, up to a limit ─▶ bound on its solutions
                                                                  │                        │ low enough
                                                                  └──▶ store of these ◀────┘ ─▶ answer

The store evaluates the query over a store of these quads. So whatever the query is, its meaning and the text of its
answer are the store's own, and whatever the dataset is, neither skewed data nor an unlucky order of joins can make it
long. What is over a limit is left to a process that can be killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyoxigraph as ox

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.querying.excerpts import Excerpt, TooLarge
from lamplighter.engine.querying.query_reads import QueryReads, reads_of
from lamplighter.engine.sparql.projections import with_columns
from lamplighter.engine.sparql.requests import QueryOutline, canonical
from lamplighter.engine.sparql.skeletons import Lifted, Lifter
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.sparql.wide_joins import bounded_joins
from lamplighter.engine.store.quad_store import QuadStore, query_native
from lamplighter.engine.terms import Term

READS_MAX = 1024
# Skeletons that are remembered, and their characters together.
READS_CHARACTERS_MAX = 256 * 1024
# Units of about 1 us: solutions, times the steps that each may take.
WORK_MAX = 5000
# A bound on the characters of an answer.
ANSWER_CHARACTERS_MAX = 1024 * 1024
# Graphs that a query may be restricted to; the store looks a pattern up in each of them.
GRAPHS_MAX = 64
# Quads of an excerpt that the store passes over in a unit, when it looks for those of a pattern.
_PASSED_PER_UNIT = 32

# Tokens of expressions that the store evaluates for a solution in a unit, if their operands are short.
_TOKENS_PER_UNIT = 8
# Characters of an operand that take the store as long as calling the function.
_COPIED_PER_UNIT = 512

Native = ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples


class SmallQueries:
    """Remembers what queries read, by their skeletons. store: the dataset."""

    def __init__(self, store: QuadStore) -> None:
        self._store = store
        self._lifter = Lifter(canonical)
        self._reads = LruCache[str, QueryReads | None](READS_MAX, READS_CHARACTERS_MAX)

    def outline(self, text: str) -> QueryOutline | None:
        """The outline of a query whose skeleton is known, which has been checked; None for others."""
        lifted = self._lift(text)
        reads = None if lifted is None else self._reads.get(lifted.skeleton)
        return None if reads is None else QueryOutline(text, reads.form, reads.unrepeatable)

    def answer(
        self,
        text: str,
        default_graphs: Sequence[Term | None] | None,
        named_graphs: Sequence[Term] | None,
        rows_max: int,
    ) -> Native | None:
        """The answer of a query with at most rows_max rows, None if it may be costly or fails.

        The graphs are given as to `QuadStore.select`.
        """
        lifted = self._lift(text) if self._store.in_memory else None
        if lifted is None:
            return None
        graphs = 1 if default_graphs is None else max(1, len(default_graphs))
        if graphs > GRAPHS_MAX or (named_graphs is not None and len(named_graphs) > GRAPHS_MAX):
            return None
        with suppress(GatewayError, TooLarge):
            reads = self._reads_of(text, lifted)
            if reads is not None:
                excerpt = Excerpt(self._store, reads, lifted.terms)
                if _within_limits(excerpt, reads, graphs, rows_max, len(text)):
                    scratch = ox.Store()
                    scratch.extend(reversed(excerpt.quads))  # so that its lists have the order of the store's
                    # However few quads there are, the store may order joins for seconds.
                    listed = bounded_joins(with_columns(text, reads.columns) if reads.columns else text)
                    return query_native(scratch, listed, default_graphs, named_graphs)
        return None

    def _lift(self, text: str) -> Lifted | None:
        with suppress(GatewayError, SyntaxError, ValueError, RuntimeError):
            return self._lifter.lift(text)
        return None

    def _reads_of(self, text: str, lifted: Lifted) -> QueryReads | None:
        skeleton = lifted.skeleton
        if skeleton not in self._reads:
            self._reads.put(skeleton, reads_of(text, lifted), len(skeleton))
        return self._reads.get(skeleton)


def _within_limits(excerpt: Excerpt, reads: QueryReads, graphs: int, rows_max: int, characters: int) -> bool:
    solutions = excerpt.solutions_max()
    longest = max(excerpt.longest, characters)
    lookups = (1 + len(reads.patterns)) * graphs * (1 + len(excerpt.quads) / _PASSED_PER_UNIT)
    expressions = reads.tokens * (1 + longest / _COPIED_PER_UNIT) / _TOKENS_PER_UNIT
    return (
        solutions * (reads.width if reads.form == "CONSTRUCT" else 1) <= rows_max
        and solutions * (lookups + expressions) <= WORK_MAX
        and solutions * reads.width * longest <= ANSWER_CHARACTERS_MAX
    )
