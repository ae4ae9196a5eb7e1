"""Variables of an EXISTS that the group around it does not have.

SPARQL 1.1 Query, 18.6: EXISTS substitutes the variables that its own group binds. A variable of another group, which
has the same name by chance, is another variable: in

    ?s :in ?r . { ?r :label ?l FILTER EXISTS { ?r :has ?s } }

the ?s within EXISTS may be anything. The store takes it for that of the other group, or not, by the order in which it
evaluates the groups. So it gets a name of its own, before the text goes to the store or to a plan. A sub-SELECT within
EXISTS is another such scope (18.2.1): what it does not project has nothing to do with what is around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from lamplighter.engine.sparql.algebra import (
    Aggregate,
    Distinct,
    Expression,
    Extend,
    Filter,
    Group,
    LeftJoin,
    Node,
    OrderKey,
    Pattern,
    Project,
    Slice,
    Variable,
    visible,
)
from lamplighter.engine.sparql.cursor import CLOSING, UnknownSyntaxError
from lamplighter.engine.sparql.grammar import UpdateReader, read_select
from lamplighter.engine.sparql.lexer import Token, tokens

Scope = frozenset[Variable]
Span = tuple[int, int]


def with_own_variables(text: str) -> str:
    """A query or an update request with a name of its own for each such variable. Any other text is returned as it is,
    and so is one that the grammar does not know."""
    # Most texts have none, and are not read.
    if "EXISTS" not in text.upper():
        return text
    found = list(tokens(text))
    names = own_names(found)
    parts, position = [], 0
    for index, name in sorted(names.items()):
        parts += [text[position : found[index].start], name]
        position = found[index].end
    return "".join([*parts, text[position:]])


def own_names(found: Sequence[Token]) -> dict[int, str]:
    """The number of each such variable among the tokens -> its new name."""
    names: dict[int, str] = {}
    if not any(token.is_word("EXISTS") for token in found):
        return names
    used = Counter(token.text[1:] for token in found if token.kind == "variable")
    for start, node in _trees(found):
        for span, scope in _scopes(node, None):
            first, last = (start + position for position in span)
            inside = [index for index in range(first, last) if found[index].kind == "variable"]
            counts = Counter(found[index].text[1:] for index in inside)
            for index in inside:
                name = found[index].text[1:]
                # A variable of the same name that is not substituted: the store would take both for one.
                if Variable(name) not in scope and used[name] > counts[name]:  # it is outside, too
                    names[index] = f"?{_fresh(name, first, used)}"
    return names


def _fresh(name: str, number: int, used: Container[str]) -> str:
    """The same for all occurrences in one EXISTS or sub-SELECT. number: its first token."""
    fresh = f"{name}_{number}"
    while fresh in used:
        fresh += "_"
    return fresh


def _trees(found: Sequence[Token]) -> Iterator[tuple[int, Node]]:
    """The tree of the query, or of each block of an update, with the number of its first token. Those that the grammar
    does not know are left out."""
    form = _form(found)
    if form is None:
        for start, end in _blocks(found):
            block = found[start:end]
            if any(token.is_word("EXISTS") for token in block):
                with suppress(UnknownSyntaxError, IndexError):
                    yield start, UpdateReader(block, lambda raw: raw).group(0, None)
        return
    star: tuple[Token, ...] = _SELECT_ALL
    start = form + 1
    if found[form].is_word("SELECT"):
        star, start = (), form
    elif not found[form].is_word("ASK"):  # what CONSTRUCT and DESCRIBE make is not evaluated
        start = _where(found, form)
    with suppress(UnknownSyntaxError):
        query = read_select([*star, *found[start:]], lambda raw: raw, triple_terms=True, every_order=True)
        yield start - len(star), query.node


_SELECT_ALL = (Token("word", "SELECT", 0, 0), Token("sign", "*", 0, 0))


def _form(found: Sequence[Token]) -> int | None:
    """The number of the word that begins a query behind its declarations; None for an update."""
    for index, token in enumerate(found):
        if token.text in CLOSING or token.is_word("INSERT", "DELETE", "WITH"):
            return None
        if token.is_word("SELECT", "ASK", "CONSTRUCT", "DESCRIBE"):
            return index
    return None


def _where(found: Sequence[Token], form: int) -> int:
    """The number of the first token behind the template of a CONSTRUCT, or the names of a DESCRIBE."""
    if found[form].is_word("CONSTRUCT") and form + 1 < len(found) and found[form + 1].text == "{":
        return form + next((end for _, end in _blocks(found[form:])), len(found) - form)
    return next(
        (
            index
            for index, token in enumerate(found)
            if index > form and (token.text == "{" or token.is_word("WHERE", "FROM"))
        ),
        len(found),
    )


def _blocks(found: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """(first, end) of each block in braces that is in no other bracket."""
    depth = start = 0
    for index, token in enumerate(found):
        if token.kind != "sign":
            continue
        if token.text in CLOSING:
            if not depth:
                start = index
            depth += 1
        elif token.text in CLOSING.values():
            depth -= 1
            if not depth and token.text == "}":
                yield start, index + 1


def _scopes(node: Any, given: Scope | None) -> Iterator[tuple[Span, Scope]]:
    """Each EXISTS, and each sub-SELECT within one, the outer one first, with the variables that it shares with what is
    around it: those that are substituted, or projected. given: those of the EXISTS around it, None without one."""
    match node:
        case Filter(inner, expression) | Extend(inner, _, expression):
            yield from _scopes(inner, given)
            yield from _of_expressions((expression,), visible(inner), given)
        case LeftJoin(left, right, expressions):
            yield from _scopes(left, given)
            yield from _scopes(right, given)
            yield from _of_expressions(expressions, visible(left) | visible(right), given)
        case Group(inner, _, aggregates):
            yield from _scopes(inner, given)
            arguments = [aggregate.argument for _, aggregate in aggregates if aggregate.argument is not None]
            yield from _of_expressions(arguments, visible(inner), given)
        case Slice(inner, order):
            yield from _scopes(inner, given)
            yield from _of_expressions([key.expression for key in order], _order_scope(inner), given)
        case Project(inner, variables):
            projected = frozenset(variables)
            if given is not None:
                yield node.span, projected
            yield from _scopes(inner, None if given is None else given & projected)
        case tuple() if not isinstance(node, (Variable, Pattern)):
            for member in node:
                yield from _scopes(member, given)
        case _ if is_dataclass(node) and not isinstance(node, (Expression, Aggregate, OrderKey)):
            for field in fields(node):
                yield from _scopes(getattr(node, field.name), given)


def _order_scope(node: Node) -> Scope:
    """The variables of the solutions that ORDER BY sorts: those before the projection (18.2.4.4, 18.2.5)."""
    while isinstance(node, (Project, Distinct)):
        node = node.node
    return visible(node)


def _of_expressions(
    expressions: Sequence[Expression], bound: Scope, given: Scope | None
) -> Iterator[tuple[Span, Scope]]:
    scope = bound | (given or frozenset())
    for expression in expressions:
        for exists in expression.exists:
            yield exists.span, scope
            yield from _scopes(exists.node, scope)
