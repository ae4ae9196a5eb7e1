"""Texts of others for people: without control sequences, and cut; and the names that are nearest to a mistyped one."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest

NEAREST_MAX = 3
_COMPARED_MAX = 50  # names that are compared closely
_CHARACTERS_MAX = 100  # of each name that are compared
_ALIKE = 0.6  # of 1


def cut(text: str, characters: int) -> str:
    """The text, or its beginning with an ellipsis if it is longer."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def printable(text: str) -> str:
    """A text of a client or device without control sequences: each of their characters is shown as its code."""
    return "".join(sign if sign.isprintable() else f"\\u{ord(sign):04X}" for sign in text)


def folded(text: str) -> str:
    """A name as it is compared: case, accents and blanks do not matter, so that Kueche and Küche still differ."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(sign for sign in decomposed if not unicodedata.combining(sign))
    return " ".join(plain.split())


def nearest(text: str, names: Iterable[str]) -> list[str]:
    """The names that look most like a text, best first; those that contain it count as alike."""
    # Comparing a text with each of 10,000 names would take a second. Pairs of letters find the ones that may be alike.
    wanted = folded(text[:_CHARACTERS_MAX])
    pairs = _pairs(wanted)
    candidates = []
    for name in dict.fromkeys(names):
        other = folded(name[:_CHARACTERS_MAX])
        shared = len(pairs & _pairs(other))
        if shared:
            candidates.append((shared / (len(other) + len(wanted)), name, other))
    matcher = SequenceMatcher(b=wanted, autojunk=False)
    found = []
    for _, name, other in nlargest(_COMPARED_MAX, candidates):
        matcher.set_seq1(other)
        ratio = 1.0 if wanted and wanted in other else matcher.ratio()
        if ratio >= _ALIKE:
            found.append((-ratio, len(name), name))
    return [name for _, _, name in sorted(found)[:NEAREST_MAX]]


def _pairs(text: str) -> set[str]:
    padded = f" {text} "
    return {padded[place : place + 2] for place in range(len(padded) - 1)}


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: the nearest ones; empty if there are none."""
    quoted = [f'"{printable(name)}"' for name in names]
    return f"; did you mean {' or '.join(quoted)}?" if quoted else ""
