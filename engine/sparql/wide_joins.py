"""Long runs of triples, written in parts that the store joins one after the other.

The store orders the joins of a group by comparing each pattern with each other one that shares a variable, again for
each place: O(n^4). A star of 64 triples takes 115 ms, one of 100 takes 700 ms and one of 128 takes 1.9 s, before a quad
is read. In parts of 16, joined by LATERAL, these are 7, 15 and 26 ms: each part is ordered by itself, and is evaluated
for the solutions of the parts before it. The solutions are the same, since the parts of a run have nothing but triples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sparql.cursor import UnknownSyntaxError
from lamplighter.engine.sparql.lexer import Token, tokens
from lamplighter.engine.sparql.limits import bracket_content, follows_member, is_in_clause
from lamplighter.engine.sparql.triples import TripleParser

# Triples of a run that the store orders as a whole, which takes it 35 ms.
RUN_MAX = 48
# Triples of a part of a longer run.
PART = 16
# Triples, steps of paths, groups and VALUES that the store may have to order in one group, which takes it 115 ms.
JOINED_MAX = 64
_STEPS = (".", ";", ",")
_NOT_JOINED = ("OPTIONAL", "UNION", "MINUS", "EXISTS", "LATERAL", "CONSTRUCT")
_APART = frozenset("[<{(|!*?")


class _Triple(NamedTuple):
    """A triple of a run: its text, and its variables."""

    text: str
    variables: frozenset[str]


@lru_cache(maxsize=64)
def in_parts(text: str) -> str:
    """A query whose long runs of triples are written in parts. Other texts are returned as they are, and so are runs
    with blank nodes, which cannot be named in two groups, and those with paths other than sequences."""
    # Most texts are short. Counting characters is a bound from above that costs a microsecond; only long ones are read.
    if sum(map(text.count, _STEPS)) < RUN_MAX:
        return text
    found = list(tokens(text))
    if any(one.is_word("CONSTRUCT") and other.text != "{" for one, other in pairwise(found)):
        return text  # in the short form, the pattern is the template, too
    written, position = [], 0
    for start, end in _runs(found):
        triples = _Run(text, found[start:end]).triples()
        if len(triples) > RUN_MAX:
            written += [text[position : found[start].start], _text_in_parts(triples)]
            position = found[end - 1].end
    return "".join([*written, text[position:]]) if written else text


@lru_cache(maxsize=64)
def bounded_joins(text: str) -> str:
    """A query in parts, for the store to evaluate while others wait. Raises LimitExceededError if it would order the
    joins for too long. Queries of clients run in processes of their own, and may join more."""
    text = in_parts(text)
    # As above: the count is never too small. Members of a list, which are two triples each, begin behind white space or
    # with such a sign.
    count = sum(map(text.count, (*_STEPS, "/", "{", "(", "[")))
    if "(" in text:
        count += 2 * (len(text.split()) + sum(map(text.count, "<\"'?$+-:")))
    if count > JOINED_MAX and _most_joins(text) > JOINED_MAX:
        raise LimitExceededError(
            f"more than {JOINED_MAX} groups, lists, blank nodes or paths are joined in one group; write plain triples "
            "with variables, or ask in several requests"
        )
    return text


@dataclass
class _Group:
    """An open bracket. content: as `bracket_content` has it. joins: the elements that are joined in it so far. last:
    those of the last group in it. apart: whether it is not joined with the group around it; whole: whether it is one
    element of that."""

    content: str
    joins: int = 0
    last: int = 0
    apart: bool = False
    whole: bool = False


def _most_joins(text: str) -> int:
    """The most elements that are joined in one group."""
    open_ = [_Group("patterns")]
    before: Token | None = None
    most, values, clause = 0, False, False
    for token in tokens(text):
        group = open_[-1]
        if token.kind == "sign" and token.text in ("{", "[", "("):
            content = bracket_content(token, before, group.content, values, clause)
            if clause and content == "members":
                content = "expression"  # a projection or a modifier joins nothing
            if content == "members":
                group.joins += 2
            open_.append(_Group(content, apart=before is not None and before.is_word(*_NOT_JOINED)))
        elif token.kind == "sign" and token.text in ("}", "]", ")") and len(open_) > 1:
            closed = open_.pop()
            most = max(most, closed.joins)
            around = open_[-1]
            # A group without such a word before it is joined with what is around it, so its elements count there.
            around.last = 1 if closed.apart or closed.whole else closed.joins + 1
            if not closed.apart and closed.content != "expression":
                around.joins += around.last
        elif token.is_word("UNION"):
            group.joins -= group.last - 1  # its branches are no elements
        elif token.is_word("SELECT"):
            group.whole = True
        elif token.text == "~" or (group.content == "members" and follows_member(token, before)):
            group.joins += 2
        elif group.content in ("patterns", "members"):
            group.joins += token.text in (*_STEPS, "/")
        values = token.is_word("VALUES") or (values and (token.kind == "variable" or token.text in ("(", ")")))
        clause = is_in_clause(token, clause)
        before = token
    return max(most, open_[0].joins)


def _runs(found: Sequence[Token]) -> list[tuple[int, int]]:
    """(first token, end token) of what may be a run: tokens between the braces and words of groups."""
    runs, start, depth = [], 0, 0
    for index, token in enumerate(found):
        if token.text in ("(", ")"):
            depth += 1 if token.text == "(" else -1
            start = index + 1  # behind a condition; a list or a path is no run anyway
        elif depth > 0:
            continue
        elif token.text in ("{", "}") or (token.kind == "word" and token.text.lower() not in ("a", "true", "false")):
            template = start > 1 and found[start - 2].is_word("CONSTRUCT")
            if index - start > RUN_MAX and not template:
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
        # How often the store finds a pair of a path such as !(:a|:b) depends on which of its ends it knows.
        if any(token.kind == "blank" or token.text in _APART for token in self.found):
            return []
        try:
            while self.position < len(self.found):
                self._subject()
                if self.position < len(self.found):
                    self._expect(".")
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


def _text_in_parts(triples: Sequence[_Triple]) -> str:
    """The triples in parts."""
    left, order, bound = list(triples), [], set[str]()
    while left:
        # Each triple follows one with which it shares a variable, if there is one, and those with fewer unknown
        # variables come first, so that no part makes a product that a later one reduces.
        following = min(left, key=lambda triple: (not triple.variables & bound, len(triple.variables - bound)))
        left.remove(following)
        order.append(following.text)
        bound |= following.variables
    # LATERAL keeps the order of parts, so the store orders the joins of each part alone.
    parts = [" . ".join(order[start : start + PART]) for start in range(0, len(order), PART)]
    return " LATERAL { ".join(parts) + " }" * (len(parts) - 1)
