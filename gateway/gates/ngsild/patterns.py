"""Regular expressions of requests (``~=``, ``idPattern``): those of bounded cost that the store and POSIX both have."""

from __future__ import annotations

import re
from typing import Final

from lamplighter.engine.errors import MalformedRequestError

PATTERN_CHARS_MAX: Final = 200
REPETITION_MAX: Final = 50
_PIECE = re.compile(
    r"""\\[dwsDWS\\.^$|?*+()\[\]{}/-]
      | \[\^?\]?(?:\\[dws\\\]\[^-]|[^\\\[\]&~|\n-]|\|(?!\|)|-(?!-))*\]
      | \((?!\?) | \(\?: | [)|^$.]
      | (?P<repeat>\{(?P<least>\d{1,3})(?:,(?P<most>\d{0,3}))?\})
      | (?P<operator>[*+?])
      | [^\\\[\](){}*+?|^$.]
    """,
    re.X | re.A,
)


def checked_pattern(text: str, place: str) -> str:
    """The pattern. place: in the request, for the error. Raises MalformedRequestError."""
    if len(text) > PATTERN_CHARS_MAX:
        raise MalformedRequestError(f"{place}: a pattern may have {PATTERN_CHARS_MAX} characters")
    at, repeats = 0, 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise MalformedRequestError(
                f"{place}: {text[at : at + 20]!r} at character {at + 1} is not supported in a pattern; write literals, "
                ". [] () | ^ $ * + ? {n,m} and \\d \\w \\s, and \\ before other signs"
            )
        if piece["repeat"]:
            repeats += 1
            if max(int(piece["least"]), int(piece["most"] or 0)) > REPETITION_MAX or repeats > 2:
                raise MalformedRequestError(f"{place}: a pattern may have two {{n,m}}, with at most {REPETITION_MAX}")
        at = piece.end()
    try:
        re.compile(text, re.A)
    except (re.error, RecursionError, OverflowError) as error:
        raise MalformedRequestError(f"{place}: no regular expression: {error}") from error
    return text
