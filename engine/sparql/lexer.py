"""SPARQL text -> tokens, with their places.

SPARQL's tokens form a regular language (SPARQL 1.1 Query, section 19.8), so one expression finds them; what a
``<`` begins depends on where it stands. What they mean together is for Oxigraph and `engine.sparql.grammar` to say.
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
_CHARS = rf"{_BASE}0-9_\u00B7\u0300-\u036F\u203F\u2040"  # PN_CHARS without "-", and what VARNAME may hold
_ESCAPES = r"%[0-9A-Fa-f][0-9A-Fa-f]|\\[_~.\-!$&'()*+,;=/?#@%]"
# Where a prefixed name without a colon would be looked for over and over again: a run of its characters, as `a.a.a`.
_PREFIX = rf"(?:[{_BASE}][{_CHARS}.\-]*+(?<!\.))?"
_WORD = rf"""(?P<word>[A-Za-z][A-Za-z0-9_]*+(?![{_CHARS}.\-]))
  | (?P<run>[{_BASE}][{_CHARS}.\-]*+)"""


def _pattern(prefix: str, word: str) -> re.Pattern[str]:
    """One token. Each alternative looks at no character more than a few times and keeps no state for each of them.

    The groups that repeat are possessive. Python before 3.11.5 goes on behind them from where the last alternative
    failed, so that one must not have moved: it is (?!), or begins with all that can fail.
    """
    return re.compile(
        rf"""
    (?P<skip>[\x20\t\r\n]++|\#[^\n\r]*+)
  | (?P<iri><[^\x00-\x20<>"{{}}|^`]*+>)
  | (?P<string>\"\"\"(?:[^"\\]++|\\.|\"(?!\"\")|(?!))*+\"\"\"
             |'''(?:[^'\\]++|\\.|'(?!'')|(?!))*+'''
             |"[^"\\\n\r]*+(?:\\.[^"\\\n\r]*+)*+"
             |'[^'\\\n\r]*+(?:\\.[^'\\\n\r]*+)*+')
  | (?P<open>["'])
  | (?P<variable>[?$][{_CHARS}]++)
  | (?P<blank>_:[{_CHARS}][{_CHARS}.\-]*+)
  | (?P<name>{prefix}:(?:(?:[{_CHARS}:]|{_ESCAPES})(?:[{_CHARS}:.\-]++|{_ESCAPES})*+)?)
  | (?P<number>[0-9]++\.[0-9]*+[eE][+-]?[0-9]++|\.?[0-9]++[eE][+-]?[0-9]++|[0-9]*+\.[0-9]++|[0-9]++)
  | (?P<language>@[A-Za-z]++(?:-[A-Za-z0-9-]++)?)
  | {word}
  | (?P<sign>\^\^|&&|\|\||!=|<=|>=|[{{}}()\[\].,;*/|^!=<>+\-&?$~])
  | (?P<other>.)
    """,
        re.X | re.S,
    )


_TOKEN = _pattern(_PREFIX, _WORD)
_IN_RUN = _pattern("", "(?P<word>[A-Za-z][A-Za-z0-9_]*+)")
_STRING = {quote: re.compile(rf"{quote}[^{quote}\\\n\r]*+(?:\\.[^{quote}\\\n\r]*+)*+", re.S) for quote in "\"'"}
"""A string on one line, up to where it ends or its line does."""
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
    """The tokens of a SPARQL text without white space and comments. Never raises: see the kind ``other``.

    The time is linear in the length of any text. Besides the token, only the open brackets are kept.
    """
    position = run_end = 0
    before: Token | None = None
    opened: list[str] = []  # "(" where there may be an expression, "data" where there are values only, or "{"
    values = False
    unended = _Unended(text)
    while position < len(text):
        if unended.any and (end := unended.quote(position)):
            yield (before := Token("other" if end == position + 1 else "string", text[position:end], position, end))
            values, position = False, end
            continue
        found = (_TOKEN if position >= run_end else _IN_RUN).match(text, position)
        assert found and found.lastgroup
        kind, end = found.lastgroup, found.end()
        if kind == "skip":
            position = end
            continue
        if kind == "run":  # no colon follows it, so it is words, numbers and signs
            run_end = end
            continue
        if kind == "iri" and before is not None:
            glued = _glued(text, position)
            kind = _angle(found.group(), before, glued, opened[-1] if opened else "{")
            end = end if kind == "iri" else position + 1
        elif kind in ("name", "blank") and text[end - 1] == ".":
            end = _without_dots(text, end)
        elif kind == "open" or (kind == "string" and end == position + 2 and text.startswith(text[position], end)):
            unended.add(position)
            kind = "other" if kind == "open" else kind
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


def _without_dots(text: str, end: int) -> int:
    """Where a name ends that has dots at its end, which do not belong to it unless one is escaped."""
    while text[end - 1] == ".":
        end -= 1
    return end + 1 if text[end - 1] == "\\" else end


class _Unended:
    """Quotes that begin no string, since it would not end: what was looked at for one is not looked at for the next.

    A later quote of that kind, which an earlier one has passed over, stands behind a backslash. From there on, both see
    the same. any: whether there are some.
    """

    def __init__(self, text: str) -> None:
        self.any = False
        self._text = text
        self._until = {'"': 0, "'": 0}  # before this place a quote begins no string of one line
        self._long: set[str] = set()  # of which quote three begin none

    def add(self, position: int) -> None:
        """At position there is a quote where the pattern found no string, or an empty one before a third quote."""
        quote = self._text[position]
        self.any = True
        if self._text.startswith(quote * 3, position):
            self._long.add(quote)
        else:
            found = _STRING[quote].match(self._text, position)
            assert found is not None
            self._until[quote] = found.end()

    def quote(self, position: int) -> int:
        """Where the token of a quote at position ends, 0 if there is none or it is for the pattern to say."""
        text, quote = self._text, self._text[position]
        if quote not in self._until:
            return 0
        if text.startswith(quote * 3, position):
            return position + 2 if quote in self._long else 0
        return position + 1 if position < self._until[quote] else 0


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
