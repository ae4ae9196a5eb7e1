"""Long runs of triples, written in parts that the store joins one after the other.

The store orders the joins of a group by comparing each pattern with each other one that shares a variable, again for
each place: O(n^4). A star of 64 triples takes 115 ms, one of 100 takes 700 ms and one of 128 takes 1.9 s, before a quad
is read. In parts of 16, joined by LATERAL, these are 7, 15 and 26 ms: each part is ordered by itself, and is evaluated
for the solutions of the parts before it. The solutions are the same, since the parts of a run have nothing but triples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from lamplighter.engine.sparql.cursor import UnknownSyntaxError
from lamplighter.engine.sparql.lexer import Token, tokens
from lamplighter.engine.sparql.triples import TripleParser

RUN_MAX = 48
"""Triples of a run that the store orders as a whole, which takes it 35 ms."""
PART = 16
"""Triples of a part of a longer run."""
_STEPS = (".", ";", ",")


class _Triple(NamedTuple):
    """A triple of a run: its text, and its variables."""

    text: str
    variables: frozenset[str]


@lru_cache(maxsize=64)
def in_parts(text: str) -> str:
    """A query whose long runs of triples are written in parts. Other texts are returned as they are, and so are runs
    with blank nodes, which cannot be named in two groups."""
    if sum(map(text.count, _STEPS)) < RUN_MAX:
        return text
    found = list(tokens(text))
    written, position = [], 0
    for start, end in _runs(found):
        triples = _Run(text, found[start:end]).triples()
        if len(triples) > RUN_MAX:
            written += [text[position : found[start].start], _joined(triples)]
            position = found[end - 1].end
    return "".join([*written, text[position:]]) if written else text


def _runs(found: Sequence[Token]) -> list[tuple[int, int]]:
    """(first token, end token) of what may be a run: tokens between the braces and words of groups."""
    runs, start = [], 0
    for index, token in enumerate(found):
        if token.text in ("{", "}") or (token.kind == "word" and token.text not in ("a", "true", "false")):
            if index - start > RUN_MAX:
                runs.append((start, index))
            start = index + 1
    return runs


class _Run(TripleParser):
    """Reads a run of triples, without resolving its constants."""

    def __init__(self, text: str, found: Sequence[Token]) -> None:
        super().__init__(found, lambda raw: raw)
        self._sparql = text
        self._triples_found: list[_Triple] = []

    def triples(self) -> list[_Triple]:
        """Its triples; none if it is something else, or cannot be taken apart."""
        if any(token.kind == "blank" or token.text in ("[", "<", "{") for token in self.found):
            return []
        try:
            while self.position < len(self.found):
                if not self._take("."):
                    self._subject()
        except (UnknownSyntaxError, IndexError):
            return []
        return self._triples_found

    def _subject(self) -> None:
        start = self.position
        self.term()
        subject = start, self.position
        while True:
            start = self.position
            self._verb()
            verb = start, self.position
            while True:
                start = self.position
                self.term()
                self._add(subject, verb, (start, self.position))
                if not self._take(","):
                    break
            more = False
            while self._take(";"):
                more = True
            if not more or self._text in (".", ""):
                return

    def _add(self, *spans: tuple[int, int]) -> None:
        words, names = [], set()
        for start, end in spans:
            words.append(self._sparql[self.found[start].start : self.found[end - 1].end])
            names |= {token.text[1:] for token in self.found[start:end] if token.kind == "variable"}
        self._triples_found.append(_Triple(" ".join(words), frozenset(names)))


def _joined(triples: Sequence[_Triple]) -> str:
    """The triples in parts. Each triple follows one with which it shares a variable, if there is one, and those with
    fewer unknown variables come first, so that no part makes a product that a later one reduces."""
    left, order, bound = list(triples), [], set[str]()
    while left:
        following = min(left, key=lambda triple: (not triple.variables & bound, len(triple.variables - bound)))
        left.remove(following)
        order.append(following.text)
        bound |= following.variables
    parts = [" . ".join(order[start : start + PART]) for start in range(0, len(order), PART)]
    return " LATERAL { ".join(parts) + " }" * (len(parts) - 1)


