"""Query text -> `BatchQuery`: queries over the records in a lake, with the solution modifiers that subscriptions lack.

Supported besides what `supported` reads: DISTINCT, LIMIT, OFFSET, ORDER BY variables, and COUNT, SUM, AVG, MIN and MAX
of a variable, with GROUP BY variables. These are cut out of the text, and `fleet_query` reads and checks the rest. What
is not supported stays in the text, so that `fleet_query` refuses it with its place. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lamplighter.cloud_sync.fleet.sparql.supported import CHARACTERS_MAX, FleetQuery, fleet_query
from lamplighter.engine.errors import GatewayError, UnsupportedRequestError
from lamplighter.engine.sparql.lexer import Token, line_and_column
from lamplighter.engine.sparql.requests import declarations_and_body, parse_query

FUNCTIONS = ("COUNT", "SUM", "AVG", "MIN", "MAX")
# The largest LIMIT and OFFSET of Spark.
_NUMBER_MAX = 2**31 - 1


@dataclass(frozen=True)
class AggregateColumn:
    """``(function(DISTINCT? ?argument) AS ?name)``. argument: None for ``COUNT(*)``."""

    name: str
    function: str
    argument: str | None
    distinct: bool


@dataclass(frozen=True)
class SolutionModifiers:
    """groups: the variables of GROUP BY; None if the query does not group. order: (variable, whether descending)."""

    distinct: bool = False
    groups: tuple[str, ...] | None = None
    aggregates: tuple[AggregateColumn, ...] = ()
    order: tuple[tuple[str, bool], ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class BatchQuery:
    """query: without modifiers; variables: of the answer. Of a query that groups, `query` has the variables that its
    groups and aggregates need."""

    query: FleetQuery
    variables: tuple[str, ...]
    modifiers: SolutionModifiers = field(default_factory=SolutionModifiers)

    @property
    def form(self) -> str:
        """SELECT or ASK."""
        return self.query.form


def batch_query(text: str) -> BatchQuery:
    """Reads a query. Raises as `fleet_query` does."""
    try:
        outline = parse_query(text) if len(text) <= CHARACTERS_MAX else None
    except GatewayError:
        outline = None  # and `fleet_query` tells the reason
    if outline is None or outline.form != "SELECT":
        query = fleet_query(text, subscribed=False)
        return BatchQuery(query, query.variables)
    _, body = declarations_and_body(text)
    read = _ModifierReader(body)
    query = replace(fleet_query(_without(text, read.cut, read.star), subscribed=False), text=text)
    modifiers = read.modifiers
    for name, _ in modifiers.order:
        if name not in outline.columns:
            line, column = line_and_column(text, read.ordered[name].start)
            raise UnsupportedRequestError(
                f"line {line}, column {column}: ORDER BY ?{name}, which SELECT does not have, is not available in "
                "fleet queries; add it to SELECT"
            )
    if modifiers.groups is not None:
        needed = (*modifiers.groups, *(one.argument for one in modifiers.aggregates if one.argument is not None))
        query = replace(query, variables=tuple(dict.fromkeys(needed)))
    return BatchQuery(query, outline.columns, modifiers)


def _without(text: str, cut: Sequence[Token], star: Token | None) -> str:
    """The text with spaces for some tokens, so that all others keep their places. star: the place of a ``*``."""
    signs = list(text)
    for token in cut:
        signs[token.start : token.end] = " " * (token.end - token.start)
    if star is not None:
        signs[star.start] = "*"
    return "".join(signs)


class _ModifierReader:
    """Reads the modifiers of a SELECT that has been parsed. cut: their tokens; star: where ``*`` replaces a projection
    with aggregates; ordered: the first place of a variable in ORDER BY."""

    def __init__(self, body: Sequence[Token]) -> None:
        self._body = body
        self.cut: list[Token] = []
        self.star: Token | None = None
        self.ordered: dict[str, Token] = {}
        self._distinct = body[1].is_word("DISTINCT")
        if self._distinct:
            self.cut.append(body[1])
        begin = 1 + self._distinct
        opened = next(at for at, token in enumerate(body) if token.text == "{")
        named = next((at for at in range(begin, opened) if body[at].is_word("WHERE", "FROM")), opened)
        self.modifiers = self._tail(SolutionModifiers(distinct=self._distinct), _closing(body, opened) + 1)
        self._project(body[begin:named])

    def _tail(self, found: SolutionModifiers, at: int) -> SolutionModifiers:
        """The modifiers behind the pattern, up to the first that is not supported."""
        body, self._groups = self._body, list[Token]()
        while at < len(body):
            token = body[at]
            if token.is_word("GROUP"):
                end = at + 2
                while end < len(body) and body[end].kind == "variable":
                    end += 1
                if end < len(body) and not body[end].is_word("ORDER", "LIMIT", "OFFSET"):
                    return found
                self._groups = list(body[at:end])
                found = replace(found, groups=tuple(one.text[1:] for one in body[at + 2 : end]))
            elif token.is_word("ORDER"):
                order, end = self._order(at + 2)
                if end < len(body) and not body[end].is_word("LIMIT", "OFFSET", "VALUES"):
                    return found
                self.cut += body[at:end]
                found = replace(found, order=order)
            elif token.is_word("LIMIT", "OFFSET") and body[at + 1].text.isdigit():
                end = at + 2
                number = min(int(body[at + 1].text), _NUMBER_MAX)
                self.cut += body[at:end]
                found = replace(found, limit=number) if token.is_word("LIMIT") else replace(found, offset=number)
            else:
                return found
            at = end
        return found

    def _order(self, at: int) -> tuple[tuple[tuple[str, bool], ...], int]:
        """(the variables of ORDER BY, the number of the token behind them)."""
        found: list[tuple[str, bool]] = []
        while at < len(self._body):
            token, descending = self._body[at], self._body[at].is_word("DESC")
            wrapped = descending or token.is_word("ASC")
            if wrapped and at + 3 < len(self._body) and self._body[at + 3].text == ")":
                token = self._body[at + 2]
            if token.kind != "variable":
                break
            self.ordered.setdefault(token.text[1:], token)
            found.append((token.text[1:], descending))
            at += 4 if wrapped else 1
        return tuple(found), at

    def _project(self, head: Sequence[Token]) -> None:
        """Reads a projection with aggregates or of a query that groups."""
        aggregates: list[AggregateColumn] = []
        at = 0
        while at < len(head):
            if head[at].kind == "variable":
                at += 1
                continue
            one, size = _aggregate(head[at:])
            if one is None:
                self.modifiers = replace(self.modifiers, groups=None)
                return
            aggregates.append(one)
            at += size
        if aggregates or self.modifiers.groups is not None:
            groups = self.modifiers.groups or ()
            self.modifiers = replace(self.modifiers, groups=groups, aggregates=tuple(aggregates))
            self.cut += [*head, *self._groups]
            self.star = head[0]


def _closing(body: Sequence[Token], opened: int) -> int:
    """The number of the brace that closes another one."""
    depth = 0
    for at in range(opened, len(body)):
        depth += (body[at].text == "{") - (body[at].text == "}")
        if depth == 0:
            return at
    raise AssertionError(body)


def _aggregate(tokens: Sequence[Token]) -> tuple[AggregateColumn | None, int]:
    """The aggregate at the beginning of some tokens, and the number of its tokens."""
    texts = [token.text for token in tokens[:9]]
    if len(texts) < 8 or texts[0] != "(" or texts[1].upper() not in FUNCTIONS or texts[2] != "(":
        return None, 0
    function, distinct = texts[1].upper(), texts[3].upper() == "DISTINCT"
    at = 3 + distinct
    name = tokens[at : at + 5]
    if len(name) < 5 or [one.text.upper() for one in name[1:3]] != [")", "AS"] or name[4].text != ")":
        return None, 0
    starred = name[0].text == "*"
    if not (starred or name[0].kind == "variable") or (distinct and (starred or function in ("SUM", "AVG"))):
        return None, 0
    argument = None if starred else name[0].text[1:]
    return AggregateColumn(name[3].text[1:], function, argument, distinct), at + 5
