"""Expressions of ``$filter`` and ``$orderby``: a recursive-descent parser of the OData subset of SensorThings 1.1.

Depth and size are bounded, so a text costs little whatever it says. Nothing of it is executed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lamplighter.gateway.gates.sensorthings.tokens import ExpressionError, ODataToken, tokens

DEPTH_MAX: Final = 32
NODES_MAX: Final = 500
STEPS_MAX: Final = 6  # of one property path
ORDER_KEYS_MAX: Final = 8

_COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")
_LITERALS = ("string", "duration", "geography", "datetime", "date", "time", "number")
_WORDS = ("and", "or", "not", *_COMPARISONS, "add", "sub", "mul", "div", "mod")


@dataclass(frozen=True)
class ODataLiteral:
    """A constant. kind: of its token, or "boolean", "null"; text: as written."""

    kind: str
    text: str
    position: int


@dataclass(frozen=True)
class Path:
    """A property, after navigation: ``Datastream/Thing/name``."""

    steps: tuple[str, ...]
    position: int


@dataclass(frozen=True)
class ODataOperation:
    """operator: such as "and", "eq", "add", "not", "negate", or the name of a function."""

    operator: str
    operands: tuple[Expression, ...]
    position: int
    is_call: bool = False


Expression = ODataLiteral | Path | ODataOperation


@dataclass(frozen=True)
class SortKey:
    path: Path
    descending: bool


def filter_expression(text: str, offset: int = 0) -> Expression:
    """The expression of a ``$filter``. Raises ExpressionError, which names the position."""
    parser = _ODataParser("$filter", text, offset)
    found = parser.disjunction()
    parser.end()
    return found


def order_keys(text: str, offset: int = 0) -> tuple[SortKey, ...]:
    """The keys of an ``$orderby``. Raises ExpressionError."""
    parser = _ODataParser("$orderby", text, offset)
    keys = [parser.order_key()]
    while parser.skip(","):
        keys.append(parser.order_key())
        if len(keys) > ORDER_KEYS_MAX:
            raise parser.error(f"there are more than {ORDER_KEYS_MAX} keys")
    parser.end()
    return tuple(keys)


class _ODataParser:
    def __init__(self, option: str, text: str, offset: int) -> None:
        self._option = option
        self._tokens = tokens(option, text, offset)
        self._place = 0
        self._depth = 0
        self._nodes = 0

    @property
    def _next(self) -> ODataToken:
        return self._tokens[self._place]

    def error(self, reason: str, token: ODataToken | None = None) -> ExpressionError:
        return ExpressionError(self._option, (token or self._next).position, reason)

    def _take(self) -> ODataToken:
        token = self._next
        self._place += 1
        return token

    def skip(self, text: str) -> bool:
        """Whether the next word is this one, which is taken."""
        if self._next.kind in ("name", "sign") and self._next.text == text:
            self._place += 1
            return True
        return False

    def end(self) -> None:
        if self._next.kind != "end":
            offset = self._next.kind == "time" and self._tokens[self._place - 1].kind == "datetime"
            cure = "a + in a URL is written %2B" if offset else "combine conditions with and, or"
            raise self.error(f"unexpected {self._next.text[:50]!r}; {cure}")

    def order_key(self) -> SortKey:
        if self._next.kind != "name":
            raise self.error("write a property, such as phenomenonTime desc")
        path = self._path(self._take())
        descending = self.skip("desc") or self.skip("DESC")  # Fraunhofer's client writes capitals
        if not descending:
            _ = self.skip("asc") or self.skip("ASC")
        if self._next.kind == "name":
            raise self.error(f"unexpected {self._next.text[:50]!r}; write asc or desc, and a comma between keys")
        return SortKey(path, descending)

    def _operation(
        self, operator: str, token: ODataToken, *operands: Expression, is_call: bool = False
    ) -> ODataOperation:
        self._count(token)
        return ODataOperation(operator, operands, token.position, is_call)

    def _count(self, token: ODataToken) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self.error(f"the expression has more than {NODES_MAX} parts; ask for less", token)

    def disjunction(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.error(f"the expression is nested more than {DEPTH_MAX} deep; remove parentheses")
        left = self._conjunction()
        while (token := self._next).text == "or" and self.skip("or"):
            left = self._operation("or", token, left, self._conjunction())
        self._depth -= 1
        return left

    def _conjunction(self) -> Expression:
        left = self._comparison()
        while (token := self._next).text == "and" and self.skip("and"):
            left = self._operation("and", token, left, self._comparison())
        return left

    def _comparison(self) -> Expression:
        left = self._sum()
        while self._next.kind == "name" and self._next.text in _COMPARISONS:
            token = self._take()
            left = self._operation(token.text, token, left, self._sum())
        return left

    def _sum(self) -> Expression:
        left = self._product()
        while self._next.kind == "name" and self._next.text in ("add", "sub"):
            token = self._take()
            left = self._operation(token.text, token, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._unary()
        while self._next.kind == "name" and self._next.text in ("mul", "div", "mod"):
            token = self._take()
            left = self._operation(token.text, token, left, self._unary())
        return left

    def _unary(self) -> Expression:
        prefixes = []
        while (self._next.kind, self._next.text) in (("name", "not"), ("sign", "-")):
            prefixes.append(self._take())
            if len(prefixes) > DEPTH_MAX:
                raise self.error("too many not and - in a row")
        found = self._primary()
        for token in reversed(prefixes):
            found = self._operation("not" if token.text == "not" else "negate", token, found)
        return found

    def _primary(self) -> Expression:
        token = self._take()
        if token.kind in _LITERALS:
            self._count(token)
            return ODataLiteral(token.kind, token.text, token.position)
        if token.kind == "sign" and token.text == "(":
            found = self.disjunction()
            self._close(token)
            return found
        if token.kind != "name" or token.text in _WORDS:
            what = repr(token.text[:50]) if token.text else "the end"
            raise self.error(f"expected a property, a constant or a function before {what}", token)
        if token.text in ("true", "false", "null"):
            self._count(token)
            return ODataLiteral("null" if token.text == "null" else "boolean", token.text, token.position)
        if self.skip("("):
            return self._call(token)
        return self._path(token)

    def _call(self, token: ODataToken) -> Expression:
        arguments: list[Expression] = []
        if not self.skip(")"):
            arguments.append(self.disjunction())
            while self.skip(","):
                arguments.append(self.disjunction())
            self._close(token)
        return self._operation(token.text, token, *arguments, is_call=True)

    def _close(self, opened: ODataToken) -> None:
        if not self.skip(")"):
            raise self.error(f"the parenthesis after position {opened.position + 1} is not closed; write )")

    def _path(self, first: ODataToken) -> Path:
        self._count(first)
        steps = [first.text]
        while self.skip("/"):
            if self._next.kind != "name":
                raise self.error("write the name of a property after /")
            steps.append(self._take().text)
        if len(steps) > STEPS_MAX:
            raise self.error(f"a path may have at most {STEPS_MAX} steps", first)
        return Path(tuple(steps), first.position)
