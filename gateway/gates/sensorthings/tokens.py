"""The words of OData expressions (OData 4.0 ABNF, the part that SensorThings 1.1 uses), with their positions."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lamplighter.engine.errors import MalformedRequestError

EXPRESSION_CHARS_MAX: Final = 8_192  # of the text of one query option

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^']|'')*')
      | (?P<duration>duration'[^']*')
      | (?P<geography>geography'[^']*')
      | (?P<datetime>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,12})?)?
                     (?:Z|[+-][0-9]{2}:[0-9]{2})?)
      | (?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})
      | (?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,12})?)?)
      | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<name>[@A-Za-z_][A-Za-z0-9_.]*)
      | (?P<sign>[()/,-])
    )""",
    re.X,
)


class ODataToken(NamedTuple):
    """kind: "string", "duration", "geography", "datetime", "date", "time", "number", "name", "sign" or "end"; text: as
    written; position: from 0, in the text of its option."""

    kind: str
    text: str
    position: int


class ExpressionError(MalformedRequestError):
    """A query option that cannot be understood, or asks for what is not supported."""

    code = "invalid_option"

    def __init__(self, option: str, position: int, reason: str) -> None:
        super().__init__(f"{option}, position {position + 1}: {reason}")


def tokens(option: str, text: str, offset: int = 0) -> list[ODataToken]:
    """The words of a text, and an end. offset: of the text in its option. Raises ExpressionError."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(option, offset, f"it is longer than {EXPRESSION_CHARS_MAX} characters; ask for less")
    found, place, text = [], 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            rest = text[place:].lstrip()
            place = len(text) - len(rest)
            raise ExpressionError(option, offset + place, f"unexpected {rest[:20]!r}; {_cure(rest[0])}")
        kind = match.lastgroup
        assert kind is not None
        found.append(ODataToken(kind, match[kind], offset + match.start(kind)))
        place = match.end()
    found.append(ODataToken("end", "", offset + len(text)))
    return found


def _cure(sign: str) -> str:
    if sign == "'":
        return "a string ends with ', and a ' in it is written twice"
    if sign in "<>=!":
        return "write eq, ne, gt, ge, lt or le"
    if sign in "+*%&|":
        return "write add, mul, mod, and, or; a + in a URL is written %2B"
    if sign == '"':
        return "strings are written in '...'"
    return "see the operators and functions in docs/sensorthings.md"
