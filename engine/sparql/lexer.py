"""SPARQL text -> tokens with their positions.

SPARQL's tokens form a regular language (SPARQL 1.1 Query, section 19.8), so one regular expression finds them; only the
meaning of ``<`` depends on the context. Oxigraph and `engine.sparql.grammar` parse the syntax.

Checks on tokens (SERVICE, nesting) must not be bypassed by a text that Oxigraph tokenizes differently. Where that is
possible, the token has the kind ``other``, and the text is refused.

Tokens also allow to change or cut a text without touching strings, comments and IRIs.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

# The first and the last code point of each range. They do not overlap.
Ranges = tuple[tuple[int, int], ...]


def _one_of(ranges: Ranges, others: str = "") -> str:
    """The expression of one character in the ranges, or of the others.

    It names those that do not match: `re` visits each named one of the first 65,536 when it compiles a set.
    """
    named = sorted([*ranges, *((ord(sign), ord(sign)) for sign in others)])
    starts, ends = [0, *(last + 1 for _, last in named)], [*(first - 1 for first, _ in named), 0x10FFFF]
    between = (rf"\U{start:08X}-\U{end:08X}" for start, end in zip(starts, ends, strict=True) if start <= end)
    return f"[^{''.join(between)}]"


_BASE_RANGES: Ranges = (  # PN_CHARS_BASE
    *((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2FF), (0x370, 0x37D), (0x37F, 0x1FFF)),
    *((0x200C, 0x200D), (0x2070, 0x218F), (0x2C00, 0x2FEF), (0x3001, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFFD)),
    (0x10000, 0xEFFFF),
)
_CHARS_RANGES: Ranges = (  # PN_CHARS without "-", and the characters of VARNAME
    *_BASE_RANGES,
    *((0x30, 0x39), (0x5F, 0x5F), (0xB7, 0xB7), (0x300, 0x36F), (0x203F, 0x2040)),
)
_BASE, _CHARS = _one_of(_BASE_RANGES), _one_of(_CHARS_RANGES)
_CHARS_DASH_DOT = _one_of(_CHARS_RANGES, "-.")
_CHARS_COLON = _one_of(_CHARS_RANGES, ":")
_CHARS_COLON_DASH_DOT = _one_of(_CHARS_RANGES, ":-.")
_ESCAPES = r"%[0-9A-Fa-f][0-9A-Fa-f]|\\[_~.\-!$&'()*+,;=/?#@%]"
# Without it, a run of name characters such as `a.a.a` would be searched for a colon again and again.
_PREFIX = rf"(?:{_BASE}{_CHARS_DASH_DOT}*+(?<!\.))?"
_WORD = rf"""(?P<word>[A-Za-z][A-Za-z0-9_]*+(?!{_CHARS_DASH_DOT}))
  | (?P<run>{_BASE}{_CHARS_DASH_DOT}*+)"""


def _pattern(prefix: str, word: str) -> re.Pattern[str]:
    """The expression of one token. It takes linear time, and no memory for each character.

    Repeated groups are possessive. Python before 3.11.5 continues after them at the position where the last alternative
    failed, so that alternative must fail without consuming: it is (?!), or begins with everything that can fail.
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
  | (?P<variable>[?$]{_CHARS}++)
  | (?P<blank>_:{_CHARS}{_CHARS_DASH_DOT}*+)
  | (?P<name>{prefix}:(?:(?:{_CHARS_COLON}|{_ESCAPES})(?:{_CHARS_COLON_DASH_DOT}++|{_ESCAPES}|(?!))*+)?)
  | (?P<number>[0-9]++\.[0-9]*+[eE][+-]?[0-9]++|\.?[0-9]++[eE][+-]?[0-9]++|[0-9]*+\.[0-9]++|[0-9]++)
  | (?P<language>@[A-Za-z]++(?:-[A-Za-z0-9-]++)?)
  | {word}
  | (?P<sign>\^\^|&&|\|\||!=|<=|>=|[{{}}()\[\].,;*/|^!=<>+\-&?$~])
  | (?P<other>.)
    """,
        re.X | re.S,
    )


_TOKEN = _pattern(_PREFIX, _WORD)


@cache
def _in_run() -> re.Pattern[str]:
    """The expression of one token within a run. Few texts have one, and it takes 8 ms to compile."""
    return _pattern("", "(?P<word>[A-Za-z][A-Za-z0-9_]*+)")


# Usual data, up to a bracket, a comment or an unusual spelling: tokens of which no check and no limit asks. What could
# go on as another token is followed by `AFTER_NAME`.
AFTER_NAME = r"(?=[\x20\t\r\n;,}]|\.[\x20\t\r\n}])"
_PLAIN_DATA = re.compile(
    rf"""(?:[\x20\t\r\n;,]++|\.(?![0-9])
  | <[^\x00-\x20<>"{{}}|^`\\]*+>
  | "[^"\\\n\r]*+(?:\\.[^"\\\n\r]*+)*+"(?!")(?:@[A-Za-z]++(?:-[A-Za-z0-9-]++)?{AFTER_NAME}|\^\^(?=[<A-Za-z:]))?
  | (?:[A-Za-z][A-Za-z0-9_-]*+)?:[A-Za-z0-9_-]*+{AFTER_NAME}
  | (?:[?$][A-Za-z0-9_]++|_:[A-Za-z0-9]++|[+-]?[0-9]++(?:\.[0-9]++)?|a|true|false){AFTER_NAME}
  | (?!))*+""",
    re.X | re.S,
)

# In plain data: what may have the sign of a variable inside of it, or the name of a variable.
_PLAIN_VARIABLE = re.compile(r'<[^>]*+>|"[^"\\]*+(?:\\.[^"\\]*+)*+"|[?$]([A-Za-z0-9_]++)', re.S)

# A string on one line, up to its end or the end of the line.
_STRING = {quote: re.compile(rf"{quote}[^{quote}\\\n\r]*+(?:\\.[^{quote}\\\n\r]*+)*+", re.S) for quote in "\"'"}
_UNLIKE_AN_EXPRESSION = re.compile(r"<[^#'()]*//")
_OPERATORS = frozenset([*"([{,;=!<+-*/|^", "!=", "<=", ">=", "&&", "||", "^^"])  # tokens after which an operand follows


# Keywords before a bracket that are no functions.
_BEFORE_BRACKET = frozenset(("SELECT", "DISTINCT", "REDUCED", "FILTER", "BIND", "VALUES", "BY", "HAVING", "IN", "A"))


class Token(NamedTuple):
    """kind: iri, string, variable, blank, name (prefixed), number, language, word, sign, other (not SPARQL), or data,
    which is read as one."""

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these keywords. words: in upper case."""
        return self.kind == "word" and self.text.upper() in words


def tokens(text: str, *, each_of_data: bool = True) -> Iterator[Token]:
    """The tokens of a text, without white space and comments. Raises nothing; invalid text has the kind ``other``.

    each_of_data: False reads usual data at once, of which there may be much; its tokens, without brackets, are one of
    the kind ``data``.
    Takes time linear in the length of any text, and memory for the open brackets only.
    """
    position = run_end = 0
    at_once: bool | None = False if each_of_data else None  # None before the first data
    before: Token | None = None
    opened: list[str] = []  # "(" for a bracket that may contain an expression, "data" for values, else "{"
    values = False
    unended = _Unended(text)
    while position < len(text):
        # Asked first, or the expression would scan to the end of the text again for each such quote.
        if unended.any and (end := unended.quote(position)):
            yield (before := Token("other" if end == position + 1 else "string", text[position:end], position, end))
            values, position = False, end
            continue
        within_data = opened and opened[-1] == "data" and position >= run_end and text[position - 1] != "<"
        if within_data and at_once is not False:
            if at_once is None:
                at_once = "SERVICE" not in text.upper()  # a name may hide the keyword, see `requests`
            found = _PLAIN_DATA.match(text, position)
            if at_once and found and found.end() > position:
                yield (before := Token("data", "", position, found.end()))
                values, position = False, found.end()
                continue
        found = (_TOKEN if position >= run_end else _in_run()).match(text, position)
        assert found and found.lastgroup
        kind, end = found.lastgroup, found.end()
        if kind == "skip":
            position = end
            continue
        if kind == "run":  # no colon follows, so it consists of words, numbers and signs
            # Tokens up to there are read by the other expression, which does not look for a colon.
            run_end = end
            continue
        if kind == "iri" and before is not None:
            # `<<` begins a triple term, so an odd one behind it is an IRI again.
            glued = _less_than_run(text, position)
            kind = _angle(found.group(), before, glued, opened[-1] if opened else "{")
            end = end if kind == "iri" else position + 1
        elif kind in ("name", "blank") and text[end - 1] == ".":
            end = _without_dots(text, end)
        # An empty string before a third quote is the beginning of a long string that does not end.
        elif kind == "open" or (kind == "string" and end == position + 2 and text.startswith(text[position], end)):
            unended.add(position)
            kind = "other" if kind == "open" else kind
        token = Token(kind, text[position:end], position, end)
        yield token
        if kind == "sign" and token.text in "({[":
            # Which bracket is around a token decides what `<` means.
            opened.append(_bracket_place(token.text, before, values, opened[-1] if opened else "{"))
        elif kind == "sign" and token.text in ")}]" and opened:
            opened.pop()
        # true from VALUES up to its brace
        values = token.is_word("VALUES") or (values and (kind == "variable" or token.text in ("(", ")")))
        before = token
        position = end


def with_other_variables(block: str, other: Callable[[str], str]) -> str:
    """A block of quad patterns, with another text in the place of each variable. other: its name -> the text."""
    if _PLAIN_DATA.fullmatch(block, 1, len(block) - 1):
        return _PLAIN_VARIABLE.sub(lambda found: other(found[1]) if found[1] else found[0], block)
    parts, position = [], 0
    for token in tokens(block):
        if token.kind == "variable":
            parts += [block[position : token.start], other(token.text[1:])]
            position = token.end
    return "".join([*parts, block[position:]])


def _without_dots(text: str, end: int) -> int:
    """The end of a name without its final dots, which belong to it only if escaped."""
    while text[end - 1] == ".":
        end -= 1
    # The last dot that was taken off belongs to the escape.
    return end + 1 if text[end - 1] == "\\" else end


class _Unended:
    """Quotes that begin no string, because it would not end.

    The text after such a quote is scanned once, which keeps the lexer linear: a later quote of the same kind within the
    scanned text is escaped, and would find the same. any: whether there are such quotes.
    """

    def __init__(self, text: str) -> None:
        self.any = False
        self._text = text
        self._until = {'"': 0, "'": 0}  # a quote before this position begins no string of one line
        self._long: set[str] = set()  # quotes that begin no long string if three stand together

    def add(self, position: int) -> None:
        """Records a quote at which the expression found no string, or an empty one before a third quote."""
        quote = self._text[position]
        self.any = True
        if self._text.startswith(quote * 3, position):
            self._long.add(quote)
        else:
            found = _STRING[quote].match(self._text, position)
            assert found is not None
            self._until[quote] = found.end()

    def quote(self, position: int) -> int:
        """The end of the token of a recorded quote at position; 0 if there is none."""
        text, quote = self._text, self._text[position]
        if quote not in self._until:
            return 0
        if text.startswith(quote * 3, position):
            return position + 2 if quote in self._long else 0
        return position + 1 if position < self._until[quote] else 0


def _angle(iri: str, before: Token, glued: int, place: str) -> str:
    """The kind of a ``<`` at which an IRI would match: ``iri``, ``sign``, or ``other`` if only the grammar can tell.

    After an operand in an expression it is a comparison, as in `?a<?b&&NOW()>?c`; expressions are in round brackets.
    Elsewhere two signs begin a triple. glued: the signs directly before it; place: the innermost open bracket.
    """
    if place != "(":
        return "sign" if glued % 2 else "iri"
    operand = glued or not (before.kind == "sign" and before.text in _OPERATORS)
    if not operand or _UNLIKE_AN_EXPRESSION.match(iri):
        return "iri"
    if "#" in iri or "'" in iri or iri.count("(") != iri.count(")"):
        return "other"  # a comment, a string or a bracket might begin inside and continue behind it
    return "sign" if "(" in iri or "&&" in iri else "iri"


def _less_than_run(text: str, position: int) -> int:
    """The number of consecutive signs ``<`` that end at position."""
    start = position
    while start > 0 and text[start - 1] == "<":
        start -= 1
    return position - start


def _bracket_place(bracket: str, before: Token | None, values: bool, place: str) -> str:
    if place == "data" or (bracket == "{" and (values or (before and before.is_word("DATA", "INSERT", "DELETE")))):
        return "data"
    return "(" if bracket == "(" else "{"


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """The line and column of a position, both from 1."""
    before = text[:position]
    line = before.count("\n") + 1
    return line, position - (before.rfind("\n") + 1) + 1


def join_tokens(texts: Iterable[str]) -> str:
    """The text of tokens. Function names and their brackets stay together, as Oxigraph 0.5 requires for some."""
    parts: list[str] = []
    for text in texts:
        if text[0] == "(" and parts and parts[-1].isidentifier() and parts[-1].upper() not in _BEFORE_BRACKET:
            parts[-1] += text
        else:
            parts.append(text)
    return " ".join(parts)
