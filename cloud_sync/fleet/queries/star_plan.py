"""How the triple patterns of a query are answered: which of them are stars, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.sparql.stars import (
    VALUES_MAX,
    PatternGroup,
    may_be_wide,
    narrow_predicates,
    pattern_groups,
    star_predicates,
    term_of,
    values_most,
)
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery
from lamplighter.engine.sparql.algebra import Bgp, Part, Pattern, Variable, walk
from lamplighter.engine.terms import Term

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class StarPlan:
    """most: the largest number of values of a subject in one graph, of each predicate that a star could have; empty if
    none has more than `VALUES_MAX`."""

    query: FleetQuery
    most: Mapping[Term, int]

    @classmethod
    def of(cls, quads: DataFrame, key: Sequence[str], query: FleetQuery) -> StarPlan:
        """The plan for a query over quads, as `csma.solutions` takes them. Counts values if there are stars."""
        predicates = star_predicates(query)
        wide = bool(predicates) and may_be_wide(quads, key, predicates)
        return cls(query, values_most(quads, key, predicates) if wide else {})

    @cached_property
    def narrow(self) -> frozenset[Term]:
        """The predicates that stars may have."""
        return narrow_predicates(self.query, self.most)

    def lines(self) -> Iterator[str]:
        """Each group of patterns with its plan."""
        for node in walk(self.query.tree):
            if isinstance(node, Bgp):
                for group in pattern_groups(node.patterns, self.query.constants, self.narrow):
                    yield f"{self._plan(group, node.patterns)}: {' . '.join(map(self._pattern_text, group))}"

    def _plan(self, group: PatternGroup, patterns: Sequence[Pattern]) -> str:
        [first, *others] = group
        if others:
            return "star, one grouping by subject"
        if isinstance(first.p, Variable):
            return "join, the predicate is a variable"
        alike = [one for one in patterns if (one.s, one.graph) == (first.s, first.graph)]
        most = self.most.get(term_of(first.p, self.query.constants), 0)
        if len(alike) > 1 and most > VALUES_MAX:
            return f"join, a subject has {most:,} values of the predicate, more than {VALUES_MAX:,}"
        return "join, no other pattern has the subject in the same group"

    def _pattern_text(self, pattern: Pattern) -> str:
        triple = " ".join(map(self._term, pattern[:3]))
        return triple if pattern.graph is None else f"GRAPH {self._term(pattern.graph)} {{ {triple} }}"

    def _term(self, part: Part) -> str:
        if isinstance(part, Variable):
            return part.name if part.name.startswith("_:") else f"?{part.name}"
        return term_of(part, self.query.constants)
