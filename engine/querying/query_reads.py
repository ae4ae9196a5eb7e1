"""Query text -> what queries of its skeleton read, if their cost follows from the quads that they find.

The functions and modifiers of such a query are on a list: each takes time linear in its operands, and none makes a
value longer than its operands together. So the cost of a query is bounded by the number of its solutions, and that by
the number of quads that match its patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lamplighter.engine.sparql.algebra import (
    Exists,
    Graph,
    LeftJoin,
    Minus,
    Node,
    OpaquePath,
    Pattern,
    Union,
    Values,
    Variable,
    certain,
    walk,
)
from lamplighter.engine.sparql.cursor import CLOSING, UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.sparql.projections import star_of
from lamplighter.engine.sparql.requests import canonical, declarations_and_body, parse_query
from lamplighter.engine.sparql.skeletons import Lifted, skeleton_of

TEXT_MAX = 4096
# Characters and tokens of the longest text. QueryReads a new skeleton takes 10 ms at most, and once.
TOKENS_MAX = 256
# Triple patterns. The store takes 0.5 s to order 100 of them, by the fourth power of their number; 16 take 1 ms.
PATTERNS_MAX = 16

_LISTED = """
SELECT ASK CONSTRUCT DISTINCT REDUCED WHERE FROM NAMED GRAPH OPTIONAL UNION MINUS FILTER EXISTS NOT BIND AS VALUES UNDEF
GROUP BY HAVING ORDER ASC DESC LIMIT OFFSET A TRUE FALSE COUNT SUM MIN MAX AVG BOUND IF COALESCE IN SAMETERM
ISIRI ISURI ISBLANK ISLITERAL ISNUMERIC STR LANG DATATYPE LANGMATCHES STRLEN SUBSTR STRBEFORE STRAFTER STRSTARTS STRENDS
CONTAINS ABS ROUND CEIL FLOOR NOW YEAR MONTH DAY HOURS MINUTES SECONDS TIMEZONE TZ
"""
# Words that such a query may have. Not those of regular expressions, and of functions whose results may be long.
_WORDS = frozenset(_LISTED.split())


@dataclass(frozen=True)
class CountedPattern:
    """A pattern, and whether a solution may lack it: one of OPTIONAL, UNION, MINUS or EXISTS."""

    pattern: Pattern
    optional: bool


@dataclass(frozen=True)
class QueryReads:
    """What queries of one skeleton read.

    form: SELECT, ASK or CONSTRUCT; unrepeatable: as in `QueryOutline`. columns: of a ``SELECT *``, else empty. node:
    the algebra of the WHERE with its modifiers; skipped: the constants before those of the node. certain: the variables
    that a part of the node binds in each solution, by its identity. patterns: those of the node; rows: the rows of its
    VALUES, multiplied; tokens: those of the text; width: at least the terms and the triples that one solution adds to
    the answer.
    """

    form: str
    unrepeatable: str | None
    columns: tuple[str, ...]
    node: Node
    skipped: int
    certain: dict[int, frozenset[Variable]]
    patterns: tuple[CountedPattern, ...]
    rows: int
    tokens: int
    width: int


def reads_of(text: str, lifted: Lifted) -> QueryReads | None:
    """What the query reads, None if its cost may depend on more than the quads that it finds.

    The text is parsed by the store, which raises RequestError for an invalid one.
    """
    if len(text) > TEXT_MAX:
        return None
    prologue, body = declarations_and_body(text)
    # The cheap tests first: the parser of the store comes after them.
    if not 0 < len(body) <= TOKENS_MAX or not _has_only_listed_words(body) or _separators(body) > PATTERNS_MAX:
        return None
    if skeleton_of(text, len(lifted.prologue), body, constant_spans(body)) != lifted.skeleton:
        return None
    outline = parse_query(text)
    selected = _as_select_all(body)
    if selected is None:
        return None
    skipped, width, select_body = selected
    try:
        node = read_select(select_body, lambda raw: canonical(prologue, raw)).node
    except UnknownSyntaxError:
        return None
    found = list(walk(node))
    if any(isinstance(part, (OpaquePath, Graph)) for part in found):
        return None  # reads an unknown number of quads; asks for the names of graphs, of empty ones too
    rows = 1
    for part in found:
        if isinstance(part, Values):
            # Several VALUES multiply; an empty one must not make the bound zero.
            rows *= 1 + len(part.rows)
    return QueryReads(
        outline.form,
        outline.unrepeatable,
        outline.columns if outline.form == "SELECT" and star_of(text) is not None else (),
        node,
        skipped,
        {id(part): certain(part) for part in found if isinstance(part, Node)},
        tuple(_count_patterns(node, optional=False)),
        rows,
        len(body),
        max(width, len(outline.columns), 1),
    )


def _has_only_listed_words(body: Sequence[Token]) -> bool:
    """Whether the query has no words but those of the list, and calls no function by its IRI."""
    if any(token.kind == "word" and token.text.upper() not in _WORDS for token in body):
        return False
    return not any(token.kind in ("iri", "name") and after.text == "(" for token, after in pairwise(body))


def _separators(body: Sequence[Token]) -> int:
    """At least the number of patterns, groups and steps of paths, whose order the store chooses."""
    return sum(token.kind == "sign" and token.text in ".;,/|{[" for token in body)


def _as_select_all(body: Sequence[Token]) -> tuple[int, int, list[Token]] | None:
    """The WHERE and the modifiers of a query as those of ``SELECT *``, for their structure.

    Returns the number of constants that it has before them, and of tokens in its template.
    """
    first = body[0]
    if first.is_word("SELECT"):
        return 0, 0, list(body)
    star = [Token("word", "SELECT", first.start, first.end), Token("sign", "*", first.end, first.end)]
    if first.is_word("ASK"):
        return 0, 1, [*star, *body[1:]]
    if not first.is_word("CONSTRUCT"):
        return None
    if body[1].text != "{":
        return 0, 3 * len(body), [*star, *body[1:]]  # the short form: the template is the pattern
    depth = 0
    for position, token in enumerate(body):
        if token.kind == "sign":
            depth += (token.text in CLOSING) - (token.text in CLOSING.values())
        if position > 0 and depth == 0:
            return len(constant_spans(body[: position + 1])), position, [*star, *body[position + 1 :]]
    return None


def _count_patterns(tree: Any, *, optional: bool) -> Iterator[CountedPattern]:
    if isinstance(tree, Pattern):
        yield CountedPattern(tree, optional)
    elif isinstance(tree, (LeftJoin, Minus)):
        yield from _count_patterns(tree.left, optional=optional)
        yield from _count_patterns(tree.right, optional=True)
        if isinstance(tree, LeftJoin):
            yield from _count_patterns(tree.condition, optional=True)
    else:
        for member in _members(tree):
            yield from _count_patterns(member, optional=optional or isinstance(tree, (Union, Exists)))


def _members(tree: Any) -> Iterable[Any]:
    if isinstance(tree, (str, Variable)) or tree is None:
        return ()
    if isinstance(tree, tuple):
        return tree
    return [getattr(tree, name) for name in getattr(tree, "__dataclass_fields__", ())]
