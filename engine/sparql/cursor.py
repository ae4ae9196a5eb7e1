"""A cursor over the tokens of a request. It reads single tokens, constants, and blocks of constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamplighter.engine.sparql.algebra import Constant, Part, Values, Variable
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.terms import Term

# Literal as written -> canonical term.
Resolve = Callable[[str], Term]

CLOSING = {"(": ")", "{": "}", "[": "]"}


class UnknownSyntaxError(Exception):
    """Syntax that only the store's parser knows, such as triple terms. The text is then taken as a whole."""


def constant_spans(found: Sequence[Token]) -> list[tuple[int, int]]:
    """(first token, end token) of each constant: an IRI, a name, an unsigned number, or a literal with its suffix."""
    spans = []
    position = 0
    while position < len(found):
        start = position
        token = found[position]
        position += 1
        if token.kind == "string":
            if position < len(found) and found[position].kind == "language":
                position += 1
            elif position < len(found) and found[position].text == "^^":
                position += 2
        elif token.kind == "number":
            if start and found[start - 1].text in ("+", "-") and found[start - 1].end == token.start:
                continue
        elif token.kind not in ("iri", "name"):
            continue
        spans.append((start, position))
    return spans


class TokenCursor:
    """position: the index of the next token."""

    def __init__(self, found: Sequence[Token], resolve: Resolve) -> None:
        self.found = found
        self._resolve = resolve
        self.position = 0
        self._constants = {start: (number, end) for number, (start, end) in enumerate(constant_spans(found))}
        self._fresh = 0

    @property
    def _text(self) -> str:
        return self.found[self.position].text if self.position < len(self.found) else ""

    def _word(self, *words: str) -> bool:
        return self.position < len(self.found) and self.found[self.position].is_word(*words)

    def _take(self, *words: str) -> bool:
        """Consumes the next token if it is one of these words or signs; returns whether it was."""
        if self._word(*words) or (self._text in words and self.found[self.position].kind == "sign"):
            self.position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise UnknownSyntaxError(f"{self._text!r} instead of {text!r}")

    def _skip_to(self, *signs: str) -> None:
        """Moves to the next of these signs. Raises UnknownSyntaxError if there is none."""
        while self._text not in signs:
            if self.position >= len(self.found):
                raise UnknownSyntaxError("the text ends too early")
            self.position += 1

    def _new(self, name: str) -> Variable:
        self._fresh += 1
        return Variable(f"_:{name} {self._fresh}")  # the space keeps it different from all labels

    def _closing(self) -> int:
        """The position of the bracket that closes the next token."""
        depth = 0
        for position in range(self.position, len(self.found)):
            text = self.found[position].text
            if self.found[position].kind == "sign":
                depth += (text in CLOSING) - (text in CLOSING.values())
            if depth == 0:
                return position
        raise UnknownSyntaxError("brackets that do not balance")

    def term(self) -> Part:
        """A variable or constant."""
        if self.position in self._constants:
            number, self.position = self._constants[self.position]
            return Constant(number)
        token = self.found[self.position]
        self.position += 1
        if token.kind == "variable":
            return Variable(token.text[1:])
        if token.kind == "blank":
            return Variable(token.text)
        if token.is_word("TRUE", "FALSE"):
            return self._resolve(token.text)
        if token.text in ("+", "-") and self.found[self.position].kind == "number":
            self.position += 1
            return self._resolve(token.text + self.found[self.position - 1].text)
        raise UnknownSyntaxError(token.text)

    def _variable(self) -> Variable:
        token = self.found[self.position]
        self.position += 1
        if token.kind != "variable":
            raise UnknownSyntaxError(token.text)
        return Variable(token.text[1:])

    def _values(self) -> Values:
        """The block of terms behind VALUES."""
        variables = []
        single = not self._take("(")
        if single:
            variables.append(self._variable())
        else:
            while not self._take(")"):
                variables.append(self._variable())
        rows: list[tuple[Part | None, ...]] = []
        self._expect("{")
        while not self._take("}"):
            if single:
                rows.append((self._value(),))
            else:
                self._expect("(")
                row = []
                while not self._take(")"):
                    row.append(self._value())
                rows.append(tuple(row))
        return Values(tuple(variables), tuple(rows))

    def _value(self) -> Part | None:
        return None if self._take("UNDEF") else self.term()
