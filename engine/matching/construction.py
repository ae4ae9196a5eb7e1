"""Subscriptions to ASK and CONSTRUCT: the triples that the solutions of a query make of its template.

The solutions are followed as those of a SELECT query. A triple is in the result while at least one solution makes it,
so each unit counts them. ASK needs no counts here: it is the SELECT of ``COUNT(*) > 0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.sparql.plain_updates import VARIABLE
from lamplighter.engine.terms import Binding, Quad, Term, is_blank, is_iri, is_literal

ASK_COLUMNS = ("ask",)
TRIPLE_COLUMNS = ("subject", "predicate", "object")

# A triple of a template: a term, or the column of the row that has it, in each position.
TriplePattern = tuple[int | Term, int | Term, int | Term]


@dataclass(frozen=True)
class ConstructTemplate:
    """The template of a CONSTRUCT query, over the rows of the SELECT query that finds its solutions."""

    triples: tuple[TriplePattern, ...]

    def construct(self, row: Binding) -> set[Binding]:
        """The triples that a solution makes; those with an unbound or misplaced term are left out (16.2)."""
        found: set[Binding] = set()
        for pattern in self.triples:
            s, p, o = (row[part] if isinstance(part, int) else part for part in pattern)
            if s and p and o and not is_literal(s) and not s.startswith("<<") and is_iri(p):
                found.add((s, p, o))
        return found


def template_of(patterns: Iterable[Quad], columns: Sequence[str]) -> ConstructTemplate:
    """The template of triples as `construct_parts` reads them. columns: the variables of the rows.

    Raises UnsupportedRequestError for a blank node, and for a triple term with variables.
    """

    def part(term: Term) -> int | Term:
        if term.startswith(f"<{VARIABLE}"):
            return columns.index(term[len(VARIABLE) + 1 : -1])
        if is_blank(term):
            raise UnsupportedRequestError(
                "a template of a subscription has no blank nodes, since each solution would make new ones; make an "
                "IRI for it, as in BIND(IRI(CONCAT(STR(?x), '/part')) AS ?part)"
            )
        if VARIABLE in term:
            raise UnsupportedRequestError("a template of a subscription has no triple terms with variables")
        return term

    return ConstructTemplate(tuple((part(s), part(p), part(o)) for s, p, o, _ in patterns))


class ConstructedTriples:
    """The triples of one unit, each with the number of solutions that make it."""

    __slots__ = ("_counts", "_template")

    def __init__(self, template: ConstructTemplate) -> None:
        self._template = template
        self._counts: Counter[Binding] | None = None

    @property
    def size(self) -> int:
        """The number of counted triples."""
        return len(self._counts or ())

    def first(self, rows: Iterable[Binding]) -> list[Binding]:
        """The triples now. rows: all solutions."""
        if self._counts is None:
            self._counts = self._count_triples(rows)
        return list(self._counts)

    def change(self, removed: Iterable[Binding], added: Iterable[Binding]) -> tuple[list[Binding], list[Binding]]:
        """The triples that go and come with solutions. An error leaves the counts unchanged."""
        counts = self._counts
        assert counts is not None
        difference = self._count_triples(added)
        difference.subtract(self._count_triples(removed))
        after = {triple: counts[triple] + change for triple, change in difference.items()}
        gone = [triple for triple, count in after.items() if not count and triple in counts]
        come = [triple for triple, count in after.items() if count and triple not in counts]
        counts.update({triple: after[triple] - counts[triple] for triple in after})
        for triple in gone:
            del counts[triple]
        return gone, come

    def _count_triples(self, rows: Iterable[Binding]) -> Counter[Binding]:
        made = self._template.construct
        return Counter(triple for row in rows for triple in made(row))
