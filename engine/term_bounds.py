"""How large and how deep terms may be.

The store's parser raises MemoryError for a statement of more than 16 MiB, and overflows the stack of the process where
triple terms are nested some thousands deep. What enters the dataset stays far below both, and documents are scanned
before a parser sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.terms import STORED_DEPTH_MAX, TERM_DEPTH_MAX, Quad, Term

TERM_BYTES_MAX = 1024 * 1024
"""Bytes of the longest term, in N-Triples syntax and UTF-8, unless the caller says otherwise."""
TERM_BYTES_LEAST, TERM_BYTES_MOST = 256 * 1024, 4_000_000
"""Such a limit is neither smaller, so that every term fits that stands in the text of an update which a plan serves,
nor larger, so that a statement of four such terms can be read back."""
DOCUMENT_DEPTH_MAX = 200
"""Objects and arrays within each other in JSON-LD, for which the native parser takes quadratic time."""

STATEMENT_BYTES_MAX = 16 * 1024 * 1024 - 64
"""Bytes of the longest N-Quads statement that can be read back."""

SHORT = 512
"""Characters of a term that needs no further look: it has 2 KiB at most, and 30 levels."""

_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|<(?!<)[^>]*+>|(?P<open><<\()|(?P<close>\)>>)', re.S)
"""In a term. Strings and IRIs are passed over."""
_TURTLE = re.compile(
    rb"""(?P<open><<) | (?P<close>>>)
       | \#[^\n\r]*+
       | <[^\x00-\x20<>"{}|^`]*+>
       | "{3}(?:[^"\\]++|\\.|"{1,2}(?!"))*+"{3} | '{3}(?:[^'\\]++|\\.|'{1,2}(?!'))*+'{3}
       | "(?!"")(?:[^"\\\n\r]++|\\.)*+"         | '(?!'')(?:[^'\\\n\r]++|\\.)*+'
       | \\.
       | (?P<fault>[<"'])""",
    re.X | re.S,
)
"""In N-Triples, Turtle and their kin. Behind a fault the parser reads nothing: an IRI or a string that does not end."""
_JSON = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<fault>")', re.S)


def check_terms(quads: Iterable[Quad], bytes_max: int) -> None:
    """Raises LimitExceededError for a term of more bytes, or with more than `TERM_DEPTH_MAX` levels."""
    for _ in checked(quads, bytes_max):
        pass


def checked(quads: Iterable[Quad], bytes_max: int) -> Iterator[Quad]:
    """The quads, each when it was looked at as `check_terms` does."""
    for quad in quads:
        s, p, o, g = quad
        # The object first: what is long is long there.
        if len(o) > SHORT or len(s) > SHORT or len(p) > SHORT or (g is not None and len(g) > SHORT):
            for term in (s, p, o, g or ""):
                check_term(term, bytes_max)
        yield quad


def check_term(term: Term, bytes_max: int) -> None:
    """As `check_terms`."""
    if len(term) <= SHORT:
        return
    if 4 * len(term) > bytes_max and (size := len(term.encode())) > bytes_max:
        raise LimitExceededError(
            f"a term that begins with {term[:40]!r} has {size} bytes, more than limits.term_bytes_max = {bytes_max}; "
            "keep large values elsewhere and store their address"
        )
    if "<<(" in term and (found := depth(term)) > TERM_DEPTH_MAX:
        raise LimitExceededError(_too_deep("triple terms", found))


def check_stored(quads: Iterable[Quad]) -> None:
    """Raises ValueError for quads that the store could not read back, whoever wrote them."""
    for quad in quads:
        s, p, o, g = quad
        if len(s) + len(p) + len(o) + len(g or "") <= SHORT:
            continue
        size = sum(len(term.encode()) + 1 for term in quad if term is not None) + 2
        if size > STATEMENT_BYTES_MAX:
            raise ValueError(f"a quad has {size} bytes, and {STATEMENT_BYTES_MAX} is the most that can be read")
        if (found := max(depth(term) for term in quad if term is not None)) > STORED_DEPTH_MAX:
            raise ValueError(f"triple terms are nested {found} deep, and {STORED_DEPTH_MAX} is the most")


def depth(term: Term) -> int:
    """How many triple terms a term has within each other; 0 for one that is none. No fewer than N-Quads would have
    with any other text of one line in its place."""
    return _depth(_BRACKET.finditer(term)) if "<<(" in term else 0


def check_turtle(document: bytes | str) -> None:
    """Raises LimitExceededError for N-Triples, N-Quads, Turtle, TriG or SPARQL data with triples nested too deep.

    An annotation (``{| |}``, ``~``) makes a triple term of what it annotates: one level more than the scan sees.
    Linear; a document with no more than `TERM_DEPTH_MAX` triples in angle brackets is not looked at any further.
    """
    data = document.encode() if isinstance(document, str) else document
    if data.count(b"<<") > TERM_DEPTH_MAX and (found := _depth(_TURTLE.finditer(data))) > TERM_DEPTH_MAX:
        raise LimitExceededError(_too_deep("triples", found))


def check_json(document: bytes) -> None:
    """Raises LimitExceededError for JSON that is nested more than `DOCUMENT_DEPTH_MAX` deep. Linear."""
    if (found := _depth(_JSON.finditer(document))) > DOCUMENT_DEPTH_MAX:
        raise LimitExceededError(
            f"the JSON is nested {found} deep, and {DOCUMENT_DEPTH_MAX} is the most; name the nodes and refer to them"
        )


def _depth(tokens: Iterator[re.Match[str]] | Iterator[re.Match[bytes]]) -> int:
    """The most brackets that are open at once, up to the first fault."""
    level = most = 0
    for token in tokens:
        kind = token.lastgroup
        if kind == "open":
            level += 1
            most = max(most, level)
        elif kind == "close":
            level = max(0, level - 1)
        elif kind == "fault":
            break
    return most


def _too_deep(what: str, found: int) -> str:
    return f"{what} are nested {found} deep, and {TERM_DEPTH_MAX} is the most; name the inner ones and refer to them"
