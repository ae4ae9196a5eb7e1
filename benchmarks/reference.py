"""The paper's two algorithms, written down plainly: SPUs with LUTT, CTS and BOOSTER, and the naive one of Smart-M3.

Both work on a raw pyoxigraph store, share no code with the engine, and take the texts of `benchmarks.street_lighting`
(Roffia 2016, III and V.B): queries of one basic graph pattern, updates of one DELETE/INSERT/WHERE.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyoxigraph as ox

from benchmarks import street_lighting as street

Row = tuple[str, ...]
"""Terms in N-Triples syntax, in the order of the projection."""

Pattern = tuple[str, str, str]
"""Terms in N-Triples syntax, or variables such as ?lamp."""


class Triple(NamedTuple):
    """A triple as text, for string matching, and as the store takes it."""

    terms: tuple[str, str, str]
    quad: ox.Quad


class RowDelta(NamedTuple):
    """A notification: the rows that left and entered a result, without order."""

    removed: list[Row]
    added: list[Row]


# --- endpoint ---------------------------------------------------------------------------------------


class RawEndpoint:
    """The SPARQL endpoint below the SPUs: an in-memory store."""

    def __init__(self, knowledge_base: bytes) -> None:
        self.store = ox.Store()
        self.store.bulk_load(knowledge_base, format=ox.RdfFormat.N_TRIPLES)

    def update(self, text: str) -> tuple[list[Triple], list[Triple]]:
        """Executes an update; the triples that it removed and added (III.B, step 2).

        The store does not return them. They are the results of two CONSTRUCT queries with the update's templates, less
        what was not there, what stays and what was there already. text: prefix, DELETE, INSERT and WHERE, a line each.
        """
        prefix, delete, insert, where = text.split("\n")
        deleted, inserted = (
            set(self.store.query(f"{prefix}\nCONSTRUCT {template[len('DELETE ') :]}\n{where}"))
            for template in (delete, insert)
        )
        removed = [_quad(triple) for triple in deleted - inserted]
        added = [_quad(triple) for triple in inserted]
        removed = [quad for quad in removed if quad in self.store]
        added = [quad for quad in added if quad not in self.store]
        self.store.update(text)
        return [_triple(quad) for quad in removed], [_triple(quad) for quad in added]

    def matching(self, pattern: Pattern) -> Iterable[ox.Quad]:
        """The quads that match a triple pattern."""
        return self.store.quads_for_pattern(*(None if _is_variable(term) else _term(term) for term in pattern), None)


def _quad(triple: ox.Triple) -> ox.Quad:
    return ox.Quad(triple.subject, triple.predicate, triple.object)


def _triple(quad: ox.Quad) -> Triple:
    return Triple((str(quad.subject), str(quad.predicate), str(quad.object)), quad)


def _is_variable(term: str) -> bool:
    return term.startswith("?")


def _term(text: str) -> ox.NamedNode:
    return ox.NamedNode(text[1:-1])


# --- SPU --------------------------------------------------------------------------------------------


class BasicQuery:
    """One basic graph pattern with a projection, read from a text of the paper's table 3.

    variables: the projection, without question marks. patterns: its triple patterns. As in the paper's table 4, an IRI
    that a FILTER requires of a variable stands in its place.
    """

    def __init__(self, text: str) -> None:
        head, _, body = text.partition("WHERE")
        self.variables = tuple(re.findall(r"\?(\w+)", head))
        body = body.strip(" {}").replace("ns:", f"<{street.NS}")
        required = re.search(r"\.? FILTER\((\?\w+) = (<[^>]+>)\)", body)
        if required is not None:
            body = body.replace(required[0], "").replace(required[1], required[2])
        words = [word if not word.startswith("<") or word.endswith(">") else f"{word}>" for word in body.split()]
        found = [tuple(words[start : start + 3]) for start in range(0, len(words), 4)]
        assert all(word == "." for word in words[3::4]), text
        self.patterns: tuple[Pattern, ...] = tuple((s, p, o) for s, p, o in found)


class Spu:
    """A SPARQL processing unit: LUTT, CTS and BOOSTER of one subscription (Roffia 2016, III).

    lutt: whether triples are filtered. Without, the BOOSTER is given all triples and the CTS takes all.
    """

    def __init__(self, text: str, endpoint: RawEndpoint, *, lutt: bool = True) -> None:
        self.query = BasicQuery(text)
        self.lutt: list[tuple[str | None, ...]] | None = None
        if lutt:
            self.lutt = [
                tuple(None if _is_variable(term) else term for term in pattern) for pattern in self.query.patterns
            ]
        self.cts = ox.Store()
        for pattern in self.query.patterns:
            self.cts.extend(endpoint.matching(pattern))

    def passed(self, triples: Sequence[Triple]) -> list[Triple]:
        """The triples that match the LUTT: string matching, where a wildcard is None (III.B, step 3)."""
        if self.lutt is None:
            return list(triples)
        return [
            triple
            for triple in triples
            for s, p, o in self.lutt
            if (s is None or s == triple.terms[0])
            and (p is None or p == triple.terms[1])
            and (o is None or o == triple.terms[2])
        ]

    def boosted(self, removed: Sequence[Triple], added: Sequence[Triple]) -> RowDelta:
        """The BOOSTER: what the triples change in the result. Updates the CTS (III.C, steps 5.1 to 5.3)."""
        gone = self._found(removed)
        for triple in removed:
            self.cts.remove(triple.quad)
        for triple in added:
            self.cts.add(triple.quad)
        come = self._found(added)
        return RowDelta(list((gone - come).elements()), list((come - gone).elements()))

    def _found(self, triples: Sequence[Triple]) -> Counter[Row]:
        """The paper's algorithm "Find binding results", for the one query of the subscription."""
        solutions: set[tuple[tuple[str, str], ...]] = set()
        for triple in triples:
            for pattern in self.query.patterns:
                bindings = _match(pattern, triple)
                if bindings is not None:
                    solutions.update(tuple(sorted(solution.items())) for solution in self._query(bindings))
        return Counter(tuple(dict(solution)[f"?{name}"] for name in self.query.variables) for solution in solutions)

    def _query(self, bindings: dict[str, str]) -> list[dict[str, str]]:
        """The solutions of the query on the CTS in which some variables are bound already."""
        patterns = [" ".join(bindings.get(term, term) for term in pattern) for pattern in self.query.patterns]
        body = " . ".join(patterns)
        free = sorted({term for pattern in self.query.patterns for term in pattern if _is_variable(term)} - {*bindings})
        if not free:
            return [bindings] if self.cts.query(f"ASK {{ {body} }}") else []
        found = self.cts.query(f"SELECT {' '.join(free)} {{ {body} }}")
        return [bindings | dict(zip(free, map(str, solution), strict=True)) for solution in found]


def _match(pattern: Pattern, triple: Triple) -> dict[str, str] | None:
    """The paper's procedure Match: the variables that a triple binds in a pattern, None if it does not match."""
    bindings: dict[str, str] = {}
    for term, value in zip(pattern, triple.terms, strict=True):
        if (bindings.setdefault(term, value) if _is_variable(term) else term) != value:
            return None
    return bindings


# --- naive ------------------------------------------------------------------------------------------


class NaiveSpu:
    """The algorithm of Smart-M3 (Roffia 2016, III.D, A2): queries the endpoint after each update, and compares."""

    def __init__(self, text: str, endpoint: RawEndpoint) -> None:
        self._text = text
        self._store = endpoint.store
        self.rows = self.queried()

    def queried(self) -> list[Row]:
        """All rows of the result at this moment."""
        return [tuple(str(term) for term in solution) for solution in self._store.query(self._text)]

    def compared(self, rows: list[Row]) -> RowDelta:
        """What has changed since the last result: each row is compared with each, N x N comparisons."""
        before, self.rows = self.rows, rows
        return RowDelta([row for row in before if row not in rows], [row for row in rows if row not in before])
