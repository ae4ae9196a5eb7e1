"""SPARQL text -> tokens, with their places.

SPARQL's tokens form a regular language (SPARQL 1.1 Query, section 19.8), so one expression finds them; what a
``<`` begins depends on where it stands. What they mean together is for Oxigraph and `engine.grammar` to say.
What is refused by tokens (SERVICE, too deep a nesting) must not be hidden from them: where Oxigraph might cut a text
elsewhere there is a token of the kind ``other``, and such a text is not given to it. Used where text has to be changed
or cut without touching strings, comments and IRIs: forced bindings, the operations of an update, the guard against
functions that differ on each evaluation.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_BASE = (  # PN_CHARS_BASE
    r"A-Za-z\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u02FF\u0370-\u037D\u037F-\u1FFF\u200C\u200D\u2070-\u218F\u2C00-\u2FEF"
    r"\u3001-\uD7FF\uF900-\uFDCF\uFDF0-\uFFFD\U00010000-\U000EFFFF"
)
_CHAR = rf"[{_BASE}0-9_\u00B7\u0300-\u036F\u203F\u2040]"  # PN_CHARS without "-", and what VARNAME may hold
_LOCAL = rf"(?:{_CHAR}|:|%[0-9A-Fa-f]{{2}}|\\[_~.\-!$&'()*+,;=/?#@%])"
_TOKEN = re.compile(
    rf"""
    (?P<skip>(?:[\x20\t\r\n]|\#[^\n\r]*)+)
  | (?P<iri><[^\x00-\x20<>"{{}}|^`]*>)
  | (?P<string>\"\"\"(?:(?:\"|\"\")?(?:[^"\\]|\\.))*\"\"\"
             |'''(?:(?:'|'')?(?:[^'\\]|\\.))*'''
             |"(?:[^"\\\n\r]|\\.)*"
             |'(?:[^'\\\n\r]|\\.)*')
  | (?P<variable>[?$]{_CHAR}+)
  | (?P<blank>_:{_CHAR}(?:(?:{_CHAR}|[.\-])*(?:{_CHAR}|-))?)
  | (?P<name>(?:[{_BASE}](?:(?:{_CHAR}|[.\-])*(?:{_CHAR}|-))?)?:(?:{_LOCAL}(?:(?:{_LOCAL}|[.\-])*(?:{_LOCAL}|-))?)?)
  | (?P<number>[0-9]+\.[0-9]*[eE][+-]?[0-9]+|\.?[0-9]+[eE][+-]?[0-9]+|[0-9]*\.[0-9]+|[0-9]+)
  | (?P<language>@[A-Za-z]+(?:-[A-Za-z0-9-]+)*)
  | (?P<word>[A-Za-z][A-Za-z0-9_]*)
  | (?P<sign>\^\^|&&|\|\||!=|<=|>=|[{{}}()\[\].,;*/|^!=<>+\-&?$~])
  | (?P<other>.)
    """,
    re.X | re.S,
)
_UNLIKE_AN_EXPRESSION = re.compile(r"<[^#'()]*//")
_OPERATORS = frozenset([*"([{,;=!<+-*/|^", "!=", "<=", ">=", "&&", "||", "^^"])  # and what else an operand follows


# Keywords that a bracket may follow without being functions.
_BEFORE_BRACKET = frozenset(("SELECT", "DISTINCT", "REDUCED", "FILTER", "BIND", "VALUES", "BY", "HAVING", "IN", "A"))


class Token(NamedTuple):
    """kind: iri, string, variable, blank, name (prefixed), number, language, word, sign, or other (not SPARQL)."""

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether this is one of these keywords, given in upper case."""
        return self.kind == "word" and self.text.upper() in words


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a SPARQL text without white space and comments. Never raises: see the kind ``other``."""
    position = 0
    before: Token | None = None
    opened: list[str] = []  # "(" where there may be an expression, "data" where there are values only, or "{"
    values = False
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found and found.lastgroup
        kind, end = found.lastgroup, found.end()
        if kind == "iri" and before is not None:
            glued = _glued(text, position)
            kind = _angle(found.group(), before, glued, opened[-1] if opened else "{")
            end = end if kind == "iri" else position + 1
        if kind != "skip":
            token = Token(kind, text[position:end], position, end)
            yield token
            if kind == "sign" and token.text in "({[":
                opened.append(_opened(token.text, before, values, opened[-1] if opened else "{"))
            elif kind == "sign" and token.text in ")}]" and opened:
                opened.pop()
            # VALUES, its variables, and a brace
            values = token.is_word("VALUES") or (values and (kind == "variable" or token.text in ("(", ")")))
            before = token
        position = end


def _angle(iri: str, before: Token, glued: int, place: str) -> str:
    """What begins with a ``<`` where an IRI would fit: ``iri``, ``sign``, or ``other`` if only the grammar can tell.

    It compares where an operand stands before it in an expression, as in `?a<?b&&NOW()>?c`, and expressions stand in
    round brackets. Elsewhere two of them begin a triple. glued: how many stand right before it; place: what was opened
    last.
    """
    if place != "(":
        return "sign" if glued % 2 else "iri"
    operand = glued or not (before.kind == "sign" and before.text in _OPERATORS)
    if not operand or _UNLIKE_AN_EXPRESSION.match(iri):
        return "iri"
    if "#" in iri or "'" in iri or iri.count("(") != iri.count(")"):
        return "other"  # a comment, a string or a bracket might begin in it, and go on behind it
    return "sign" if "(" in iri or "&&" in iri else "iri"


def _glued(text: str, position: int) -> int:
    """How many signs ``<`` end there."""
    start = position
    while start > 0 and text[start - 1] == "<":
        start -= 1
    return position - start


def _opened(bracket: str, before: Token | None, values: bool, place: str) -> str:
    if place == "data" or (bracket == "{" and (values or (before and before.is_word("DATA", "INSERT", "DELETE")))):
        return "data"
    return "(" if bracket == "(" else "{"


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Both from 1."""
    before = text[:position]
    line = before.count("\n") + 1
    return line, position - (before.rfind("\n") + 1) + 1


def joined(texts: Iterable[str]) -> str:
    """Tokens as a text again. A function's name and its bracket stay together: Oxigraph 0.5 insists for some."""
    parts: list[str] = []
    for text in texts:
        if text[0] == "(" and parts and parts[-1].isidentifier() and parts[-1].upper() not in _BEFORE_BRACKET:
            parts[-1] += text
        else:
            parts.append(text)
    return " ".join(parts)
