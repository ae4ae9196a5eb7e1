"""The projection of a SELECT: the columns of ``SELECT *``, and the variables that AS assigns.

The store sorts the columns of ``SELECT *`` by name. Here they have the order in which the text names them, and the
store gets a text that lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lamplighter.engine.errors import UnsupportedRequestError
from lamplighter.engine.sparql.lexer import Token, line_and_column, tokens

# Characters of an expression in a message.
EXPRESSION_SHOWN = 100


def in_text_order(text: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a checked SELECT query, those of ``SELECT *`` in the order of their first place in the text.

    columns: as the store names them.
    """
    if star_of(text) is None:
        return tuple(columns)
    names = dict.fromkeys(token.text[1:] for token in tokens(text) if token.kind == "variable")
    selected = frozenset(columns)
    return tuple(name for name in names if name in selected)


def with_columns(text: str, columns: Sequence[str]) -> str:
    """A checked SELECT query with its columns in place of the ``*``. A query without ``*`` or columns is returned as it
    is."""
    star = star_of(text)
    if star is None or not columns:
        return text
    names = " ".join(f"?{name}" for name in columns)
    return f"{text[: star.start]} {names} {text[star.end :]}"


def star_of(text: str) -> Token | None:
    """The ``*`` of the outermost projection."""
    selected = False
    for token in tokens(text):
        if selected and not token.is_word("DISTINCT", "REDUCED"):
            return token if token.text == "*" else None
        selected = selected or token.is_word("SELECT")
    return None


@dataclass
class _Select:
    """What is known of the SELECT of a group. clause: SELECT or HAVING while it is read; depth: open round brackets;
    assigned: variable that its projection assigns -> number of the token AS."""

    clause: str = ""
    depth: int = 0
    assigned: dict[str, int] = field(default_factory=dict)


def check_having(text: str, found: Sequence[Token]) -> None:
    """Raises UnsupportedRequestError for a HAVING that uses a variable which AS assigns in the same SELECT.

    HAVING is evaluated before these assignments (SPARQL 1.1 Query, 18.2.4.2 and 18.2.4.4), so that the variable is
    unbound in it. found: the tokens of the text; those of data may be missing.
    """
    if not any(token.is_word("HAVING") for token in found):
        return
    groups = [_Select()]
    for index, token in enumerate(found):
        select = groups[-1]
        if token.text == "{":
            if not select.depth:  # else it is that of an EXISTS
                select.clause = ""
            groups.append(_Select())
        elif token.text == "}":
            groups = groups[:-1] or [_Select()]
        elif token.is_word("SELECT"):
            groups[-1] = _Select("SELECT")
        elif token.text in ("(", ")"):
            select.depth += 1 if token.text == "(" else -1
        elif token.is_word("HAVING"):
            select.clause = "HAVING"
        elif token.is_word("ORDER", "LIMIT", "OFFSET", "VALUES"):
            select.clause = ""
        elif token.kind == "variable" and select.clause == "SELECT":
            if select.depth == 1 and found[index - 1].is_word("AS"):
                select.assigned[token.text[1:]] = index - 1
        elif token.kind == "variable" and select.clause == "HAVING" and token.text[1:] in select.assigned:
            raise _without_value(text, token, _expression_before(text, found, select.assigned[token.text[1:]]))


def _expression_before(text: str, found: Sequence[Token], position: int) -> str:
    """The text of the expression that ends before the AS at a position."""
    start, depth = position, 0
    while start and (depth or found[start - 1].text != "("):
        start -= 1
        depth += (found[start].text == ")") - (found[start].text == "(")
    return text[found[start].start : found[position].start].strip()


def _without_value(text: str, token: Token, expression: str) -> UnsupportedRequestError:
    line, column = line_and_column(text, token.start)
    shown = expression if len(expression) <= EXPRESSION_SHOWN else f"{expression[:EXPRESSION_SHOWN]}..."
    return UnsupportedRequestError(
        f"line {line}, column {column}: {token.text} has no value in HAVING, which is evaluated before AS assigns it; "
        f"repeat the expression in its place: {shown}"
    )
