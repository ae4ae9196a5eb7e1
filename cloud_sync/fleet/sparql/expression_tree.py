"""Tokens of an expression -> tree (SPARQL 1.1 Query, section 19.8, productions 110 to 128).

Oxigraph's parser has accepted the text before, so the parser here only has to see the structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamplighter.engine.sparql.algebra import Constant, Exists, Expression, Function, Variable
from lamplighter.engine.sparql.requests import canonical
from lamplighter.engine.terms import XSD, Term


@dataclass(frozen=True)
class Literal:
    """A literal that is part of the tree, since the grammar does not lift it out: a boolean or a signed number."""

    term: Term


@dataclass(frozen=True)
class FunctionCall:
    """An operator or a function with its arguments.

    name: the sign of an operator (``||``, ``+``, ``!``), ``negative`` or ``positive`` for a sign before an operand,
    ``IN``, ``NOT IN`` (the first argument is on the left), a function's keyword in upper case, or ``xsd:`` and the name
    of the datatype of a cast.
    """

    name: str
    arguments: tuple[Tree, ...]


Tree = Variable | Constant | Literal | FunctionCall

# Datatypes of XML Schema with a cast function.
CASTS = frozenset(("boolean", "dateTime", "decimal", "double", "float", "integer", "string"))

FUNCTIONS = frozenset(
    (
        *("BOUND", "IF", "COALESCE", "SAMETERM", "ISIRI", "ISURI", "ISBLANK", "ISLITERAL", "ISNUMERIC"),
        *("STR", "LANG", "LANGMATCHES", "DATATYPE", "IRI", "URI", "STRDT", "STRLANG"),
        *("ABS", "CEIL", "FLOOR", "ROUND"),
        *("STRLEN", "SUBSTR", "UCASE", "LCASE", "ENCODE_FOR_URI", "CONTAINS", "STRSTARTS", "STRENDS", "STRBEFORE"),
        *("STRAFTER", "CONCAT"),
        *("YEAR", "MONTH", "DAY", "HOURS", "MINUTES", "SECONDS", "TIMEZONE", "TZ"),
        *("MD5", "SHA1", "SHA256", "SHA384", "SHA512"),
    )
)

_SYNONYMS = {"URI": "IRI", "ISURI": "ISIRI"}
# Operators by precedence, the weakest first.
_BINARY = (("||",), ("&&",), ("=", "!=", "<", ">", "<=", ">="), ("+", "-"), ("*", "/"))
_RELATIONS = 2
_CURES = {
    "REGEX": "use CONTAINS, STRSTARTS or STRENDS",
    "REPLACE": "use STRBEFORE, STRAFTER and CONCAT",
    "EXISTS": "write the pattern outside of the filter",
    "NOT EXISTS": "use OPTIONAL and !BOUND",
    "NOW": "compare with the time in the notification",
}


class NotCompiledError(Exception):
    """A construct that fleet subscriptions do not have.

    construct: its name, such as ``REGEX``; cure: what to write instead, or ``""``; token: the index of its token in
    `Expression.parts`. The caller knows the place in the text, and raises UnsupportedRequestError.
    """

    def __init__(self, construct: str, token: int) -> None:
        self.construct = construct
        self.cure = _CURES.get(construct, "")
        self.token = token
        super().__init__(f"{construct} is not available in fleet subscriptions" + (self.cure and f"; {self.cure}"))


def expression_tree(expression: Expression, constants: Sequence[Term]) -> Tree:
    """The tree of an expression.

    constants: the terms by number, of which only the names of functions are read; they belong to the shape of a query,
    since they are part of the tree. Aggregates are variables of the algebra's Group. Raises NotCompiledError.
    """
    return _ExpressionParser(expression, constants).tree()


class _ExpressionParser:
    """Precedence climbing over the tokens. position: the index of the next token."""

    def __init__(self, expression: Expression, constants: Sequence[Term]) -> None:
        self._parts = expression.parts
        self._constants = constants
        self._position = 0

    def tree(self) -> Tree:
        found = self._binary(0)
        assert self._position == len(self._parts), self._parts
        return found

    def _binary(self, level: int) -> Tree:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while True:
            if level == _RELATIONS and self._word() in ("IN", "NOT"):
                name = "IN" if self._take("IN") else "NOT IN"
                if name == "NOT IN":
                    self._position += 2
                left = FunctionCall(name, (left, *self._arguments()))
            elif (sign := self._sign()) in _BINARY[level]:
                self._position += 1
                left = FunctionCall(sign, (left, self._binary(level + 1)))
            else:
                return left

    def _unary(self) -> Tree:
        sign = self._sign()
        if sign not in ("!", "+", "-"):
            return self._primary()
        self._position += 1
        if sign != "!" and self._number():
            self._position += 1
            return Literal(canonical("", sign + str(self._parts[self._position - 1])))
        return FunctionCall({"!": "!", "+": "positive", "-": "negative"}[sign], (self._unary(),))

    def _primary(self) -> Tree:
        at = self._position
        token = self._parts[at]
        self._position += 1
        if isinstance(token, (Variable, Constant)):
            return token
        if isinstance(token, Exists):
            raise NotCompiledError("NOT EXISTS" if token.negated else "EXISTS", at)
        if isinstance(token, Function):
            return self._cast(self._constants[token.number], at)
        if token == "(":
            found = self._binary(0)
            self._position += 1
            return found
        word = token.upper()
        if word in ("TRUE", "FALSE"):
            return Literal(f'"{word.lower()}"^^<{XSD}boolean>')
        if token[0].isdigit() or token[0] == ".":  # the operand of a minus without a space
            return Literal(canonical("", token))
        if word not in FUNCTIONS:
            raise NotCompiledError(word, at)
        return FunctionCall(_SYNONYMS.get(word, word), self._arguments())

    def _cast(self, name: Term, at: int) -> Tree:
        local = name[1:-1].removeprefix(XSD)
        if local not in CASTS:
            raise NotCompiledError(f"the function {name}", at)
        arguments = self._arguments()
        if len(arguments) != 1:
            raise NotCompiledError(f"xsd:{local} with {len(arguments)} arguments", at)
        return FunctionCall(f"xsd:{local}", arguments)

    def _arguments(self) -> tuple[Tree, ...]:
        """The list in brackets that follows."""
        self._position += 1
        found = []
        while not self._take(")"):
            if self._word() == "DISTINCT":
                raise NotCompiledError("DISTINCT in a function call", self._position)
            found.append(self._binary(0))
            self._take(",")
        return tuple(found)

    def _take(self, text: str) -> bool:
        taken = self._word() == text
        self._position += taken
        return taken

    def _sign(self) -> str:
        """The next token if it is text, or ``""``."""
        part = self._parts[self._position] if self._position < len(self._parts) else None
        return part if isinstance(part, str) else ""

    def _word(self) -> str:
        return self._sign().upper()

    def _number(self) -> bool:
        return self._sign()[:1].isdigit() or self._sign()[:1] == "."
