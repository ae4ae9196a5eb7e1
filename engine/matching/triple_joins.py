"""Joins with triple terms: a term is taken apart where it is known, and put together where its parts are.

::

    ?claim rdf:reifies <<( ?s :level ?o )>>   ─▶   ?claim rdf:reifies ?t . t = ?s + rest . rest = :level + ?o

A quad with such an object is joined with patterns of ?s and ?o, and a quad of these patterns with ?claim: both are
lookups. Terms are N-Triples texts, so that the parts of ``<<( s p o )>>`` are found at its first two spaces: subject
and predicate have none.
"""

from __future__ import annotations

from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.source_text import Consume, Scope, Source
from lamplighter.engine.sparql.algebra import TRIPLE_TERM, Constant, Part, Pattern, Variable

_OPENED, _CLOSED = "<<( ", " )>>"
# Rank (`JoinCodegen._rank`) of a triple term of which too little is known: every other pattern comes before it.
_LATER = 10.0


class TripleCodegen(Source):
    """Writes what takes triple terms apart (`TRIPLE_TERM`), and puts them together."""

    def triple(self, pattern: Pattern, scope: Scope, consume: Consume) -> None:
        """Writes the only match of a pattern. Raises Unsupported if neither the whole nor both of its parts are known.

        A whole of parts that make no triple, such as a literal as its subject, is no term of the dataset.
        """
        term = pattern.p == TRIPLE_TERM
        whole, (first, second) = pattern.s, _parts(pattern)
        if _is_known(whole, scope):
            text = self.part(whole, scope)
            self.emit(f"meter.left -= len({text}) >> 12")
            one, other = self.name("v"), self.name("v")
            if term:
                with self.block(f"if {text}.startswith({_OPENED!r}):"):
                    self.emit(f"{one}, {other} = {text}[{len(_OPENED)}:].split(' ', 1)")
                    self._agree([(first, one), (second, other)], scope, consume)
            else:
                self.emit(f"{one}, {other} = {text}[:-{len(_CLOSED)}].split(' ', 1)")
                self._agree([(first, one), (second, other)], scope, consume)
        elif _is_known(first, scope) and _is_known(second, scope):
            assert isinstance(whole, Variable)
            made = self.name("v")
            parts = [self.part(first, scope), repr(" "), self.part(second, scope)]
            self.emit(f"{made} = {' + '.join([repr(_OPENED), *parts] if term else [*parts, repr(_CLOSED)])}")
            self.emit(f"meter.left -= len({made}) >> 12")
            consume(scope.binding(whole, made))
        else:
            raise Unsupported("a triple term that no pattern of the same group finds")

    def triple_rank(self, pattern: Pattern, scope: Scope) -> float:
        """The rank of a match, as `JoinCodegen._rank` gives it for triple patterns."""
        found = _is_known(pattern.s, scope) or all(_is_known(part, scope) for part in _parts(pattern))
        return 0.0 if found else _LATER

    def _agree(self, pairs: list[tuple[Part, str]], scope: Scope, consume: Consume) -> None:
        """Binds parts to the terms that they are found to be, or tests that they are these."""
        if not pairs:
            consume(scope)
            return
        (part, name), *rest = pairs
        if not _is_known(part, scope):
            assert isinstance(part, (Variable, Constant))
            self._agree(rest, scope.binding(part, name), consume)
            return
        with self.block(f"if {self.part(part, scope)} == {name}:"):
            self._agree(rest, scope, consume)


def _parts(pattern: Pattern) -> tuple[Part, Part]:
    assert pattern.graph is not None
    return pattern.o, pattern.graph


def _is_known(part: Part, scope: Scope) -> bool:
    return not isinstance(part, (Variable, Constant)) or part in scope.bound
