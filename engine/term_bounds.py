"""Limits on the size and the nesting of terms.

The store's parser raises MemoryError for a statement of more than 16 MiB, and overflows the stack of the process if
triple terms are nested some thousand levels deep. The limits are far below both, and documents are scanned before they
are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.terms import STORED_DEPTH_MAX, TERM_DEPTH_MAX, Quad, Term

# Default limit on a term, in bytes of its N-Triples form in UTF-8.
TERM_BYTES_MAX = 1024 * 1024
# Range of the limit. Any term in the text of an update with a plan is within the least. A statement of four terms of
# the most can still be read back.
TERM_BYTES_LEAST, TERM_BYTES_MOST = 256 * 1024, 4_000_000
# Nested objects and arrays in JSON-LD. The native parser takes quadratic time for them.
DOCUMENT_DEPTH_MAX = 200

# Bytes of the longest N-Quads statement that can be read back.
STATEMENT_BYTES_MAX = 16 * 1024 * 1024 - 64

# Characters of a term that needs no check: it has at most 2 KiB and 30 levels.
SHORT = 512

# The brackets of a term. Strings and IRIs are skipped.
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|<(?!<)[^>]*+>|(?P<open><<\()|(?P<close>\)>>)', re.S)
# The brackets of N-Triples, N-Quads, Turtle and TriG. A fault is an unterminated IRI or string, where parsers stop.
_TURTLE = re.compile(
    rb"""(?P<open><<) | (?P<close>>>)
       | \#[^\n\r]*+
       | <[^\x00-\x20<>"{}|^`]*+>
       | "{3}(?:[^"\\]++|\\.|"{1,2}(?!")|(?!))*+"{3} | '{3}(?:[^'\\]++|\\.|'{1,2}(?!')|(?!))*+'{3}
       | "(?!"")(?:[^"\\\n\r]++|\\.)*+"         | '(?!'')(?:[^'\\\n\r]++|\\.)*+'
       | \\.
       | (?P<fault>[<"'])""",
    re.X | re.S,
)
_JSON = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<fault>")', re.S)


def check_terms(quads: Iterable[Quad], bytes_max: int) -> None:
    """Raises LimitExceededError for a term of more than bytes_max bytes or `TERM_DEPTH_MAX` levels."""
    for _ in check_quads(quads, bytes_max):
        pass


def check_quads(quads: Iterable[Quad], bytes_max: int) -> Iterator[Quad]:
    """The quads, each yielded after its check. Raises as `check_terms`."""
    for quad in quads:
        s, p, o, g = quad
        # The object first: most long terms are objects.
        if len(o) > SHORT or len(s) > SHORT or len(p) > SHORT or (g is not None and len(g) > SHORT):
            for term in (s, p, o, g or ""):
                check_term(term, bytes_max)
        yield quad


def check_term(term: Term, bytes_max: int) -> None:
    """Raises as `check_terms`."""
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
    """Raises ValueError for quads that the store could not read back."""
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
    """The levels of nested triple terms; 0 for a term that is none.

    For malformed text it is at least the depth that the store's parser would reach.
    """
    return _depth(_BRACKET.finditer(term)) if "<<(" in term else 0


def check_turtle(document: bytes | str) -> None:
    """Raises LimitExceededError for N-Triples, N-Quads, Turtle, TriG or SPARQL data with triples nested too deep.

    An annotation (``{| |}``, ``~``) makes a triple term of what it annotates, one level more than the scan counts.
    Takes linear time; a document with at most `TERM_DEPTH_MAX` opening brackets is not scanned.
    """
    data = document.encode() if isinstance(document, str) else document
    if data.count(b"<<") > TERM_DEPTH_MAX and (found := _depth(_TURTLE.finditer(data))) > TERM_DEPTH_MAX:
        raise LimitExceededError(_too_deep("triples", found))


def check_json(document: bytes) -> None:
    """Raises LimitExceededError for JSON that is nested more than `DOCUMENT_DEPTH_MAX` deep. Takes linear time."""
    if (found := _depth(_JSON.finditer(document))) > DOCUMENT_DEPTH_MAX:
        raise LimitExceededError(
            f"the JSON is nested {found} deep, and {DOCUMENT_DEPTH_MAX} is the most; name the nodes and refer to them"
        )


def _depth(tokens: Iterator[re.Match[str]] | Iterator[re.Match[bytes]]) -> int:
    """The largest number of open brackets, up to the first fault."""
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
