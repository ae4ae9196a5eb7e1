"""Query text -> `FleetQuery`: the queries over a fleet, of subscriptions and in batch. Needs no Spark.

Supported: SELECT and ASK with triple patterns (and paths of fixed length without alternatives), GRAPH, FILTER,
OPTIONAL, UNION, VALUES and BIND. The result of a subscription consists of the solutions that use a new triple. For
MINUS, EXISTS, sub-SELECT, DISTINCT and the like, these are not the solutions that the new triples add, so they are
refused, and so are queries whose meaning depends on the order of evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise, product

from lamplighter.cloud_sync.fleet.sparql.expression_tree import NotCompiledError, expression_tree
from lamplighter.engine.errors import LimitExceededError, UnsupportedRequestError
from lamplighter.engine.sparql.algebra import (
    Bgp,
    Expression,
    Extend,
    Filter,
    Function,
    Graph,
    Join,
    LeftJoin,
    Node,
    OpaquePath,
    Pattern,
    Project,
    Union,
    Values,
    Variable,
    walk,
)
from lamplighter.engine.sparql.clock_function import calls
from lamplighter.engine.sparql.cursor import UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import Token, line_and_column
from lamplighter.engine.sparql.requests import QueryOutline, canonical, data_quads, declarations_and_body, parse_query
from lamplighter.engine.sparql.scopes import scope_fault
from lamplighter.engine.terms import Term

# Characters of a query.
CHARACTERS_MAX = 16_384
# Triple patterns of a query.
PATTERNS_MAX = 32
# Combinations of the alternatives of UNION outside of OPTIONAL: two UNIONs of three are nine.
BRANCHES_MAX = 16
# Braces of a query.
GROUPS_MAX = 64
# Nested brackets of any kind.
NESTING_MAX = 24
# IRIs and literals of a query, those of VALUES included.
CONSTANTS_MAX = 256
# Tokens of one expression.
EXPRESSION_TOKENS_MAX = 200

_AGGREGATES = ("COUNT", "SUM", "MIN", "MAX", "AVG", "SAMPLE", "GROUP_CONCAT")
_UNREPEATABLE = ("NOW", "RAND", "UUID", "STRUUID", "BNODE")
_ONE_EVENT = "a notification has the solutions of one event; let the receiver do it"
_SORTED = "the rows of a notification are sorted by their terms"
_TIMED = "the notification has the time of the commit"
_LATER = "query the endpoint when the notification arrives"
# What to do instead in a subscription -> the same in a query over the lake.
_IN_BATCH = {
    _ONE_EVENT: "group by variables and aggregate variables (BIND gives values to them), or use SQL over the tables",
    _SORTED: "order by variables; BIND gives values to them",
    _TIMED: "write the time",
    _LATER: "query the endpoint with the rows",
    f"it differs on each evaluation; {_TIMED}": "it differs on each evaluation",
}
# Keyword -> what to do instead.
_REFUSED = {
    "MINUS": "write OPTIONAL and FILTER(!BOUND(?x))",
    "EXISTS": "write OPTIONAL and FILTER(BOUND(?x)) or FILTER(!BOUND(?x))",
    "GROUP": _ONE_EVENT,
    "HAVING": _ONE_EVENT,
    "ORDER": _SORTED,
    "LIMIT": _ONE_EVENT,
    "OFFSET": _ONE_EVENT,
    "DISTINCT": _ONE_EVENT,
    "REDUCED": _ONE_EVENT,
    "FROM": "name the graph by GRAPH <iri> { ... }",
    "SERVICE": _LATER,
    **dict.fromkeys(_AGGREGATES, _ONE_EVENT),
    **dict.fromkeys(_UNREPEATABLE, f"it differs on each evaluation; {_TIMED}"),
}
_CALLED = frozenset((*_AGGREGATES, *_UNREPEATABLE))
_CUSTOM = re.compile(r"(?<=custom function )<[^>]*>")
_PATH_SIGNS = frozenset("*+?|!")


@dataclass(frozen=True)
class FleetQuery:
    """A query over the events of a fleet, or over its history or state.

    text: as written; form: SELECT or ASK; variables: the projection in its order, empty for ASK; tree: the WHERE with
    the expressions of the projection, in which constants are numbers; constants: the terms by number; shape: hex digest
    that is equal for queries which differ in constants only.
    """

    text: str
    form: str
    variables: tuple[str, ...]
    tree: Node
    constants: tuple[Term, ...]
    shape: str


def fleet_query(text: str, *, subscribed: bool = True) -> FleetQuery:
    """Reads a query. subscribed: of a subscription, otherwise over the records in the lake; errors name it so.

    Raises RequestSyntaxError with line and column, UnsupportedRequestError with line, column and the name of the
    construct, LimitExceededError.
    """
    if len(text) > CHARACTERS_MAX:
        raise LimitExceededError(
            f"the query has {len(text)} characters; a query over a fleet has {CHARACTERS_MAX} at most"
        )
    refusals = _Refusals(text, subscribed)
    outline = _outline(text, refusals)
    prologue, body = declarations_and_body(text)
    _check_tokens(outline.form, prologue, body, refusals)
    body = _with_signs_apart(body)
    spans = constant_spans(body)
    if len(spans) > CONSTANTS_MAX:
        raise refusals.limit(body[spans[CONSTANTS_MAX][0]], f"the query has more than {CONSTANTS_MAX} constants")
    constants = _terms(prologue, ["".join(token.text for token in body[start:end]) for start, end in spans])
    selecting = body
    if outline.form == "ASK":
        first = body[0]
        selecting = [first._replace(text="SELECT"), Token("sign", "*", first.end, first.end), *body[1:]]
    try:
        node = read_select(selecting, lambda raw: canonical("", raw)).node
    except UnknownSyntaxError as error:
        triple = (a for a, b in pairwise(body) if (a.text, b.text, b.start) == ("<", "<", a.end))
        raise refusals.error(next(triple, body[0]), "a triple term", "name the triple's parts") from error
    if not isinstance(node, Project):
        raise refusals.error(body[0], outline.form, _ONE_EVENT)
    variables = outline.columns if outline.form == "SELECT" else ()
    _check_tree(node.node, body, constants, refusals)
    functions = {
        part.number: constants[part.number]
        for expression in walk(node.node)
        if isinstance(expression, Expression)
        for part in expression.parts
        if isinstance(part, Function)
    }
    shape = sha256(repr((outline.form, variables, node.node, functions)).encode()).hexdigest()[:32]
    return FleetQuery(text, outline.form, variables, node.node, constants, shape)


def _outline(text: str, refusals: _Refusals) -> QueryOutline:
    try:
        return parse_query(text)
    except UnsupportedRequestError as error:
        found = _CUSTOM.search(str(error))
        if found is None:
            raise
        prologue, body = declarations_and_body(text)
        for start, end in constant_spans(body):
            raw = "".join(token.text for token in body[start:end])
            if body[start].kind in ("iri", "name") and canonical(prologue, raw) == found[0]:
                raise refusals.error(body[start], f"the function {found[0]}", "use SPARQL's own") from error
        raise


def required_patterns(query: FleetQuery) -> list[tuple[Pattern, ...]]:
    """For each branch of the query, the patterns of which every solution of the branch uses a match.

    The branches are the combinations of the alternatives of UNION outside of OPTIONAL. A branch without patterns has an
    empty tuple.
    """
    return _required_patterns(query.tree)


def _required_patterns(node: Node) -> list[tuple[Pattern, ...]]:
    match node:
        case Bgp(patterns):
            return [patterns]
        case Join(left, right):
            return [one + other for one, other in product(_required_patterns(left), _required_patterns(right))]
        case Union(left, right):
            return _required_patterns(left) + _required_patterns(right)
        case LeftJoin(inner, _, _) | Filter(inner, _) | Extend(inner, _, _) | Graph(_, inner):
            return _required_patterns(inner)
    return [()]


def _branch_count(node: Node) -> int:
    """The number of branches, without making them: each joined UNION multiplies it."""
    match node:
        case Join(left, right):
            return _branch_count(left) * _branch_count(right)
        case Union(left, right):
            return _branch_count(left) + _branch_count(right)
        case LeftJoin(inner, _, _) | Filter(inner, _) | Extend(inner, _, _) | Graph(_, inner):
            return _branch_count(inner)
    return 1


class _Refusals:
    """Errors with the place of a token in the text."""

    def __init__(self, text: str, subscribed: bool) -> None:
        self._text = text
        self._subscribed = subscribed

    def _of(self, token: Token) -> str:
        line, column = line_and_column(self._text, token.start)
        return f"line {line}, column {column}"

    def error(self, token: Token, construct: str, cure: str) -> UnsupportedRequestError:
        """construct: its name; cure: what to do instead, or ``""``."""
        if not self._subscribed:
            cure = _IN_BATCH.get(cure, cure)
        where = "fleet subscriptions" if self._subscribed else "fleet queries"
        said = f"{self._of(token)}: {construct} is not available in {where}"
        return UnsupportedRequestError(said + (cure and f"; {cure}"))

    def limit(self, token: Token, reason: str) -> LimitExceededError:
        parts = "subscriptions" if self._subscribed else "queries"
        return LimitExceededError(f"{self._of(token)}: {reason}; divide it into several {parts}")


def _check_tokens(form: str, prologue: str, body: Sequence[Token], refusals: _Refusals) -> None:
    """Refuses what keywords tell, and texts that are too large to be read."""
    if form not in ("SELECT", "ASK"):
        raise refusals.error(body[0], form, "write SELECT or ASK")
    depth = groups = 0
    for token, after in pairwise((*body, body[-1])):
        word = token.text.upper() if token.kind == "word" else ""
        if word in _REFUSED and (word not in _CALLED or after.text == "("):
            raise refusals.error(token, word, _REFUSED[word])
        if word == "SELECT" and token is not body[0]:
            raise refusals.error(token, "a SELECT inside of the query", _ONE_EVENT)
        if word in ("IRI", "URI") and after.text == "(" and "BASE" in prologue.upper():
            raise refusals.error(token, f"{word} with a BASE", "write the IRI in full")
        if token.kind == "sign":
            depth += (token.text in "({[") - (token.text in ")}]")
            groups += token.text == "{"
            if depth > NESTING_MAX:
                raise refusals.limit(token, f"brackets are nested more than {NESTING_MAX} deep")
            if groups > GROUPS_MAX:
                raise refusals.limit(token, f"the query has more than {GROUPS_MAX} groups")
    for position in calls(prologue, body):
        raise refusals.error(body[position], "the clock function", _TIMED)


def _check_tree(node: Node, body: Sequence[Token], constants: Sequence[Term], refusals: _Refusals) -> None:
    patterns = 0
    for part in walk(node):
        match part:
            case Pattern():
                patterns += 1
            case OpaquePath() | Project():  # a Project is what the grammar makes of an alternative path
                token = next(_path_signs(body), body[0])
                kinds = {"|": "with alternatives (|)", "!": "with a negated step (!)"}
                cure = "use UNION" if token.text == "|" else "write the steps as triple patterns"
                raise refusals.error(
                    token, f"a path {kinds.get(token.text, f'of variable length ({token.text})')}", cure
                )
            case Graph(name, inner) if isinstance(name, Variable) and _unlike_the_store(name, inner):
                what = f"GRAPH ?{name.name} around VALUES or an assignment of ?{name.name}"
                raise refusals.error(_variable(body, name.name), what, "write it outside of the GRAPH")
            case Expression():
                _check_expression(part, body, constants, refusals)
    if patterns > PATTERNS_MAX:
        raise refusals.limit(body[0], f"the query has {patterns} triple patterns, more than {PATTERNS_MAX}")
    if not patterns:
        raise refusals.error(body[0], "a query without a triple pattern", "no event could match it")
    branches = _branch_count(node)
    if branches > BRANCHES_MAX:
        raise refusals.limit(
            body[0], f"the UNIONs of the query combine to {branches} branches, more than {BRANCHES_MAX}"
        )
    fault = scope_fault(node)
    if fault is not None:
        name = fault.variable.name
        cure = "use the variable in the same group, or give it another name"
        raise refusals.error(_variable(body, name), f"{fault.reason} (?{name})", cure)


def _check_expression(
    expression: Expression, body: Sequence[Token], constants: Sequence[Term], refusals: _Refusals
) -> None:
    if len(expression.parts) > EXPRESSION_TOKENS_MAX:
        raise refusals.limit(body[0], f"an expression has more than {EXPRESSION_TOKENS_MAX} tokens")
    try:
        expression_tree(expression, constants)
    except NotCompiledError as error:
        part = expression.parts[error.token]
        if isinstance(part, Function):
            start, _ = constant_spans(body)[part.number]
            token = body[start]
        else:
            token = next((token for token in body if token.is_word(str(part).upper())), body[0])
        raise refusals.error(token, error.construct, error.cure) from error


def _unlike_the_store(name: Variable, node: Node) -> bool:
    """Whether the store gives the name of a GRAPH another meaning than SPARQL: VALUES alone leave it unbound."""
    return any(isinstance(part, Values) or (isinstance(part, Extend) and part.variable == name) for part in walk(node))


def _variable(body: Sequence[Token], name: str) -> Token:
    """The first occurrence of a variable."""
    return next((token for token in body if token.text in (name, f"?{name}", f"${name}")), body[0])


def _path_signs(body: Sequence[Token]) -> Iterator[Token]:
    """The signs that make a path longer than its steps: those outside of expressions."""
    for token, inside in _with_places(body):
        if inside is False and token.text in _PATH_SIGNS:
            yield token


def _with_signs_apart(body: Sequence[Token]) -> list[Token]:
    """The tokens, each sign of an expression apart from its number: numbers are constants, also negative ones."""
    return [
        token._replace(end=token.start) if inside and token.text in "+-" else token
        for token, inside in _with_places(body)
    ]


def _with_places(body: Sequence[Token]) -> Iterator[tuple[Token, bool | None]]:
    """Each token; for a sign that is no bracket also whether it is in an expression, None outside of all brackets."""
    opened: list[bool] = []  # for each bracket, whether it is in an expression
    for before, token in pairwise((body[0], *body)):
        inside = opened[-1] if opened else None
        if token.kind != "sign":
            yield token, None
            continue
        if token.text in ("(", "{", "["):
            called = before.kind == "word" and before.text != "a" and not before.is_word("VALUES")
            opened.append(token.text == "(" and (bool(inside) or called))
            inside = None
        elif token.text in (")", "}", "]"):
            opened.pop()
            inside = None
        yield token, inside


def _terms(prologue: str, raws: Sequence[str]) -> tuple[Term, ...]:
    """The canonical terms of constants as written, read at once."""
    block = " . ".join(f"<urn:{number}> <urn:x> {raw}" for number, raw in enumerate(raws))
    found = {quad.s: quad.o for quad in data_quads(prologue, f"{{ {block} }}")[0]}
    return tuple(found[f"<urn:{number}>"] for number in range(len(raws)))
