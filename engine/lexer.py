"""SPARQL text -> tokens, with their places.

SPARQL's tokens form a regular language (SPARQL 1.1 Query, section 19.8), so one expression finds them;
what they mean together is for Oxigraph and `engine.grammar` to say. Used where text has to be changed or cut
without touching strings, comments and IRIs: forced bindings, the operations of an update, the guard
against functions that differ on each evaluation.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_CHAR = r"[\w\u00B7\u0300-\u036F\u203F\u2040]"  # PN_CHARS, and what VARNAME may hold
_LOCAL = rf"(?:{_CHAR}|:|%[0-9A-Fa-f]{{2}}|\\[_~.\-!$&'()*+,;=/?#@%])"
_TOKEN = re.compile(
    rf"""
    (?P<skip>(?:\s|\#[^\n\r]*)+)
  | (?P<iri><[^\x00-\x20<>"{{}}|^`]*>)
  | (?P<string>\"\"\"(?:(?:\"|\"\")?(?:[^"\\]|\\.))*\"\"\"
             |'''(?:(?:'|'')?(?:[^'\\]|\\.))*'''
             |"(?:[^"\\\n\r]|\\.)*"
             |'(?:[^'\\\n\r]|\\.)*')
  | (?P<variable>[?$]{_CHAR}+)
  | (?P<blank>_:{_CHAR}(?:(?:{_CHAR}|[.\-])*(?:{_CHAR}|-))?)
  | (?P<name>(?:[^\W\d_](?:(?:{_CHAR}|[.\-])*(?:{_CHAR}|-))?)?:(?:{_LOCAL}(?:(?:{_LOCAL}|[.\-])*(?:{_LOCAL}|-))?)?)
  | (?P<number>[0-9]+\.[0-9]*[eE][+-]?[0-9]+|\.?[0-9]+[eE][+-]?[0-9]+|[0-9]*\.[0-9]+|[0-9]+)
  | (?P<language>@[A-Za-z]+(?:-[A-Za-z0-9-]+)*)
  | (?P<word>[A-Za-z]\w*)
  | (?P<sign>\^\^|&&|\|\||!=|<=|>=|[{{}}()\[\].,;*/|^!=<>+\-&?$~])
  | (?P<other>.)
    """,
    re.X | re.S,
)
_COMPARISON_INSIDE = re.compile(r"&&|\|\||\(\)")


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
    position, previous_end, operand = 0, -1, False
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found and found.lastgroup
        kind, end = found.lastgroup, found.end()
        if kind == "iri" and operand and previous_end == position and _COMPARISON_INSIDE.search(text, position, end):
            # `?a<?b&&NOW()>?c` is three comparisons, which only the grammar can tell from an IRI. Read as an
            # IRI it would hide a function from the guard below; IRIs glued to an operand do not hold such signs.
            kind, end = "sign", position + 1
        if kind != "skip":
            yield Token(kind, text[position:end], position, end)
            operand = kind in ("variable", "number", "string", "name") or text[position] == ")"
            previous_end = end
        position = end


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
