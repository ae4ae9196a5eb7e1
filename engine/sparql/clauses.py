"""Clauses put into SPARQL texts: VALUES for several bindings, FROM and USING for a profile's graphs.

Texts are cut at their tokens, so that strings, comments and IRIs stay untouched. They are not parsed; the endpoint
reports their errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from lamplighter.engine.errors import ForcedBindingError
from lamplighter.engine.sparql.forced_bindings import REMEMBERED_MAX, bind
from lamplighter.engine.sparql.lexer import Token, tokens
from lamplighter.engine.terms import Term, is_blank

_DECLARATION = {"PREFIX": 3, "BASE": 2}  # tokens of each


class RequestPart(NamedTuple):
    """One operation with the declarations before it. start, end: its place in the text; body: its tokens."""

    start: int
    end: int
    body: list[Token]

    @property
    def is_modify(self) -> bool:
        """DELETE or INSERT with a template and a WHERE."""
        return self._starts_with("WITH") or (self._starts_with("DELETE", "INSERT") and self.body[1].text == "{")

    @property
    def is_delete_where(self) -> bool:
        return self._starts_with("DELETE") and self.body[1].is_word("WHERE")

    def _starts_with(self, *words: str) -> bool:
        return len(self.body) > 1 and self.body[0].is_word(*words)

    def names_dataset(self) -> bool:
        """Whether the text names its dataset, by FROM, WITH or USING."""
        return any(token.is_word("FROM", "WITH", "USING") for token, depth in _with_depth(self.body) if not depth)

    def where(self) -> Token | None:
        """The opening brace of the WHERE; None if there is none that may contain more than triples."""
        braces = [token for token, depth in _with_depth(self.body) if not depth and token.text == "{"]
        if self._starts_with("CONSTRUCT"):
            return braces[1] if len(braces) > 1 else None  # CONSTRUCT WHERE takes a template
        if self._starts_with("SELECT", "ASK", "DESCRIBE"):
            return braces[0] if braces else None
        return braces[-1] if self.is_modify and len(braces) > 1 else None


def parts(text: str) -> list[RequestPart]:
    """The operations of an update, or the query as the only part."""
    found, result, position = list(tokens(text)), [], 0
    while position < len(found):
        start = position
        while position < len(found) and found[position].text.upper() in _DECLARATION:
            position += _DECLARATION[found[position].text.upper()]
        begin = position = min(position, len(found))
        depth = 0
        while position < len(found) and (depth > 0 or found[position].text != ";"):
            depth += {"{": 1, "}": -1}.get(found[position].text, 0)
            position += 1
        if position > start:
            result.append(RequestPart(found[start].start, found[position - 1].end, found[begin:position]))
        position += 1
    return result


def with_rows(
    text: str,
    variables: Sequence[str],
    rows: Sequence[Sequence[Term | None]],
    new_nodes: Collection[str] = (),
) -> str:
    """The text with a VALUES block at the beginning of each WHERE, in each part that uses one of the variables.

    Operations that cannot contain VALUES (INSERT DATA, DELETE WHERE, ...) are repeated once for each row. In a row,
    None is undefined. new_nodes: as of `bound`. Raises ForcedBindingError for a query that cannot contain VALUES, and
    for a blank node in VALUES.
    """
    pieces: list[str] = []
    end = 0
    for part in parts(text):
        pieces.append(text[end : part.start])
        end = part.end
        brace = part.where()
        if not any(token.kind == "variable" and token.text[1:] in variables for token in part.body):
            pieces.append(text[part.start : part.end])
        elif brace is not None:
            pieces += [text[part.start : brace.end], " ", values_block(variables, rows), text[brace.end : part.end]]
        elif part.body[0].is_word("SELECT", "ASK", "CONSTRUCT", "DESCRIBE"):
            raise ForcedBindingError(
                f"{part.body[0].text.upper()} without a WHERE of its own cannot take arrays; write WHERE {{ ... }}"
            )
        else:
            operation = text[part.body[0].start : part.end]
            given = [
                {name: term for name, term in zip(variables, row, strict=True) if term is not None} for row in rows
            ]
            pieces += [
                text[part.start : part.body[0].start],
                " ;\n".join(bind(operation, row, new_nodes) for row in given),
            ]
    return "".join([*pieces, text[end:]])


@lru_cache(REMEMBERED_MAX)
def listed_variables(text: str) -> frozenset[str]:
    """The variables of projections, GROUP BY and ORDER BY, where a term cannot replace them."""
    names, listing, depth = set(), False, 0
    for token in tokens(text):
        if token.is_word("SELECT", "BY"):
            listing, depth = True, 0
        elif token.text in ("(", ")"):
            depth += 1 if token.text == "(" else -1
        elif depth == 0 and (token.text in ("{", "}") or token.is_word("WHERE", "FROM", "HAVING", "ORDER", "LIMIT")):
            listing = False
        elif listing and depth == 0 and token.kind == "variable":
            names.add(token.text[1:])
    return frozenset(names)


def values_block(variables: Sequence[str], rows: Sequence[Sequence[Term | None]]) -> str:
    """A VALUES block (SPARQL 1.1 Query, 10.2). None is undefined. Raises ForcedBindingError for a blank node."""
    for row in rows:
        for name, term in zip(variables, row, strict=True):
            if term is not None and is_blank(term):
                raise ForcedBindingError(f"?{name}: {term} is a blank node, which VALUES cannot have; give an IRI")
    lines = " ".join(f"({' '.join(term or 'UNDEF' for term in row)})" for row in rows)
    return f"VALUES ({' '.join(f'?{name}' for name in variables)}) {{ {lines} }} "


def with_dataset(text: str, default: Sequence[Term], named: Sequence[Term]) -> str:
    """A query with FROM and FROM NAMED, or an update with USING and USING NAMED in each operation that reads.

    The clauses have the effect of the protocol's graph parameters (SPARQL 1.1 Protocol, 2.1.4 and 2.2.3). Parts that
    name a dataset themselves are left unchanged.
    """
    if not default and not named:
        return text
    pieces, end = [], 0
    for place, piece, resume in _dataset_edits(text, default, named):
        pieces += [text[end:place], piece]
        end = resume
    return "".join([*pieces, text[end:]])


def _dataset_edits(text: str, default: Sequence[Term], named: Sequence[Term]) -> Iterator[tuple[int, str, int]]:
    """(position, text to insert there, position at which the original text continues)."""
    for part in parts(text):
        if not part.body or part.names_dataset():
            continue
        keyword = "USING" if part.is_modify or part.is_delete_where else "FROM"
        clauses = " ".join(
            [*(f"{keyword} {graph}" for graph in default), *(f"{keyword} NAMED {graph}" for graph in named)]
        )
        if part.is_delete_where:
            pattern = text[part.body[2].start : part.end]
            yield part.body[1].start, f"{pattern} {clauses} WHERE {pattern}", part.end
            continue
        brace = part.where()
        if brace is None and part.body[0].is_word("CONSTRUCT"):
            brace = next((token for token in part.body if token.text == "{"), None)
        if brace is None:
            if part.body[0].is_word("DESCRIBE"):
                yield part.end, f" {clauses} ", part.end
            continue  # the part reads nothing
        before = max((token for token in part.body if token.end <= brace.start), key=lambda token: token.start)
        place = before.start if before.is_word("WHERE") else brace.start
        yield place, f" {clauses} ", place


def _with_depth(body: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """The tokens, each with the number of open braces and brackets before it."""
    depth = 0
    for token in body:
        if token.text in ("}", ")"):
            depth -= 1
        yield token, depth
        if token.text in ("{", "("):
            depth += 1
