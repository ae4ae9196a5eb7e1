"""Unique labels for blank nodes that were made in a fork.

Forks of one process start with the same state of the native library's random numbers, so the blank nodes of two forks
have the same labels. A random mask for each fork makes them different. So do more random numbers than it draws from one
seed.
"""

from __future__ import annotations

import re
import secrets

import pyoxigraph as ox

from lamplighter.engine.terms import Term

# A blank node of the native library in a triple term; IRIs and literals that look like one are matched first.
_LABEL = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|_:([0-9a-f]+)')

# Blank nodes, of 16 random bytes each, after which the native library surely seeds anew: it does so after 64 KiB.
_DRAWS = 8192


def draw_anew() -> None:
    """Has this process draw other random numbers than its parent and its siblings."""
    for _ in range(_DRAWS):
        ox.BlankNode()


class FreshNodes:
    """Makes the labels of one fork differ from those of all others.

    A label is a random number of 128 bits in hexadecimal, without leading zeros: one in 17 has fewer than 32 digits.
    """

    def __init__(self) -> None:
        # The first digit stays: the native library chooses a letter, with which a label may be a name in XML.
        self._mask = secrets.randbits(124)
        self._known: dict[Term, Term] = {}

    def term(self, term: Term) -> Term:
        """The term with its blank nodes relabelled; other terms are unchanged."""
        if term.startswith("_:"):
            known = self._known.get(term)
            if known is None:
                digits = len(term) - 2
                mask = self._mask & ((1 << 4 * (digits - 1)) - 1)
                known = self._known[term] = f"_:{int(term[2:], 16) ^ mask:0{digits}x}"
            return known
        if term.startswith("<<(") and "_:" in term:
            return _LABEL.sub(lambda found: self.term(found[0]) if found[1] else found[0], term)
        return term
