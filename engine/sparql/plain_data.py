"""INSERT DATA and DELETE DATA of usual spelling -> quads, by one expression for all of the text.

It is several times as fast as a store that parses the text and is read back. What is not of this form, such as a text
with blank nodes, comments or errors, is left to the store's parser, which knows all forms and has the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyoxigraph as ox

from lamplighter.engine.sparql.lexer import AFTER_NAME
from lamplighter.engine.sparql.skeletons import PREFIXES, SPACE, usual_term
from lamplighter.engine.sparql.triples import RDF_TYPE
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.terms import XSD, Quad, Term

# Creates a named tuple in half the time of its own constructor.
_new: Any = tuple.__new__

_IRI = r'<[^\x00-\x20<>"{}|^`\\]*+>'
_NAME = rf"(?:[A-Za-z][A-Za-z0-9_-]*+)?:(?:[A-Za-z0-9_][A-Za-z0-9_-]*+)?{AFTER_NAME}"
_NAMED = rf"{_IRI}|{_NAME}"
_STRING = r"""(?:"[^"\\\n\r]*+(?:\\.[^"\\\n\r]*+)*+"(?!")|'[^'\\\n\r]*+(?:\\.[^'\\\n\r]*+)*+'(?!'))"""
_LITERAL = (
    rf"{_STRING}(?:@[A-Za-z]++(?:-[A-Za-z0-9-]++)?{AFTER_NAME}|\^\^(?:{_NAMED}))?"
    rf"|(?:[+-]?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false){AFTER_NAME}"
)
# From the first sign of the text to the brace of its data.
_HEAD = re.compile(rf"({PREFIXES})(?P<verb>INSERT|DELETE){SPACE}++DATA{SPACE}*+\{{", re.I | re.A)
# (graph that begins, subject, predicate, object, signs behind it, or what has another form). The last takes all of the
# rest, so that the expression is not tried at each of its signs.
_STATEMENT = re.compile(
    rf"{SPACE}*+(?:"
    rf"(?:[Gg][Rr][Aa][Pp][Hh](?:{SPACE}++|(?=<))({_NAMED}){SPACE}*+\{{{SPACE}*+)?"
    rf"(?:(?:({_NAMED}){SPACE}*+)?({_NAMED}|a{AFTER_NAME}){SPACE}*+)?({_NAMED}|{_LITERAL}){SPACE}*+"
    rf"((?:[.;,}}]{SPACE}*+)++|(?=[Gg][Rr][Aa][Pp][Hh][\x20\t\r\n<]))"
    r"|(.++))",
    re.A | re.S,
)
_GROUPS = 6
# The signs behind an object: what follows, and how many braces they close. A point may follow the brace of a graph.
_ENDS = {
    **{head: (";" if head == ";" else ".", 0) for head in ("", ".", ";", ";.")},
    ",": (",", 0),
    **{head + end: (".", end.count("}")) for head in ("", ".", ";", ";.") for end in ("}", "}.", "}}", "}.}")},
}
_WORDS = {"a": RDF_TYPE, **{word: f'"{word}"^^<{XSD}boolean>' for word in ("true", "false")}}


class PlainData(NamedTuple):
    """delete: whether it is DELETE DATA. quads: in canonical terms, in order; graphs: those that the text names."""

    delete: bool
    quads: list[Quad]
    graphs: list[Term]


def plain_data(text: str) -> PlainData | None:
    """The quads of a text that is one INSERT DATA or DELETE DATA of usual spelling, None for any other text.

    Takes time linear in the length of any text. Raises nothing.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    pieces = _STATEMENT.split(text[head.end() :])
    graphs, subjects, predicates, objects, ends, others = (pieces[1 + place :: _GROUPS + 1] for place in range(_GROUPS))
    # All of the text must belong to a statement.
    if any(pieces[:: _GROUPS + 1]) or others[-1:] != [None]:
        return None
    terms = _terms(head[1], {*graphs, *subjects, *predicates, *objects} - {None})
    if terms is None:
        return None
    delete = head["verb"][0] in "Dd"
    term = terms.__getitem__
    closing = _ENDS.get("".join(ends[-1].split()))
    if closing == (".", 1) and ends[-1].rstrip()[-1] == "}" and not any(graphs) and None not in subjects:
        plain = {end for end in set(ends[:-1]) if end.strip() == "."}
        if plain.issuperset(ends[:-1]):
            quads = zip(map(term, subjects), map(term, predicates), map(term, objects), strict=True)
            return PlainData(delete, [_new(Quad, (s, p, o, None)) for s, p, o in quads], [])
    found: list[Quad] = []
    names: dict[Term, None] = {}
    graph: Term | None = None
    s = p = ""
    state, depth = ".", 1
    for begun, subject, predicate, object_, end in zip(graphs, subjects, predicates, objects, ends, strict=True):
        if depth == 0 or (subject is None) == (state == ".") or (predicate is None) != (state == ","):
            return None
        if begun is not None:
            if depth > 1 or state != ".":
                return None
            graph, depth = term(begun), 2
            names[graph] = None
        if subject is not None:
            s = term(subject)
        if predicate is not None:
            p = term(predicate)
        found.append(_new(Quad, (s, p, term(object_), graph)))
        signs = "".join(end.split())
        if signs not in _ENDS:
            return None
        state, closed = _ENDS[signs]
        if closed:
            depth -= closed
            graph = None
            if depth < 0 or (depth == 0 and signs[-1] == "."):
                return None
    return PlainData(delete, found, list(names)) if depth == 0 else None


def _terms(prologue: str, raws: Iterable[str]) -> dict[str, Term] | None:
    """Constants as written -> canonical terms, None if one is invalid."""
    terms: dict[str, Term] = {}
    others: list[str] = []
    for raw in raws:
        term = _WORDS.get(raw) or usual_term(prologue, raw)
        if term is None:
            others.append(raw)
        else:
            terms[raw] = term
    if not others:
        return terms
    # All of them at once: each call costs as much as several constants.
    scratch = ox.Store()
    names = [f"n:{number}" for number in range(len(others))]
    data = " ; ".join([f"<{name}> {raw}" for name, raw in zip(names, others, strict=True)])
    try:
        scratch.update(f"{prologue}INSERT DATA {{ <n:> {data} }}")
    except (SyntaxError, UnicodeEncodeError):
        return None
    found = {quad.predicate.value: term_text(quad.object) for quad in scratch}
    # The store reads `a:b` as `a :b` if the prefix `a` is unknown, and misses no point before it.
    if len(scratch) != len(names) or found.keys() != set(names):
        return None
    return terms | {raw: found[name] for name, raw in zip(names, others, strict=True)}
