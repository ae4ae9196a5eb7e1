"""Updates of usual spelling -> quads and templates, by one expression for all of the text.

It is several times as fast as a store that parses the text and is read back. What is not of this form, such as a text
with blank nodes, comments or errors, is left to the store's parser, which knows all forms and has the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import pyoxigraph as ox

from lamplighter.engine.slices import uncollected
from lamplighter.engine.sparql.clock_function import may_call
from lamplighter.engine.sparql.lexer import AFTER_NAME
from lamplighter.engine.sparql.limits import CONDITIONS_MAX, NEGATIONS_MAX, NESTING_MAX, PATTERNS_MAX, TOKENS_MAX
from lamplighter.engine.sparql.skeletons import (
    IRI,
    PREFIXES,
    SPACE,
    TEXT_MAX,
    Lifted,
    outline,
    usual_iri,
    usual_prologue,
    usual_term,
)
from lamplighter.engine.store.quad_store import term_text
from lamplighter.engine.terms import RDF_TYPE, XSD, Quad, Term

# Prefix of the IRIs that stand for a template's variables.
VARIABLE = "urn:x-lamplighter:variable:"

# Creates a named tuple in half the time of its own constructor.
_new: Any = tuple.__new__

_IRI = r'<[^\x00-\x20<>"{}|^`\\]*+>'
_NAMED = rf"{_IRI}|(?:[A-Za-z][A-Za-z0-9_-]*+)?:(?:[A-Za-z0-9_][A-Za-z0-9_-]*+)?{AFTER_NAME}"
_STRING = r"""(?:"[^"\\\n\r]*+(?:\\.[^"\\\n\r]*+)*+"(?!")|'[^'\\\n\r]*+(?:\\.[^'\\\n\r]*+)*+'(?!'))"""
_LITERAL = (
    rf"{_STRING}(?:@[A-Za-z]++(?:-[A-Za-z0-9-]++)?{AFTER_NAME}|\^\^(?:{_NAMED}))?"
    rf"|(?:[+-]?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false){AFTER_NAME}"
)
_GRAPH = "[Gg][Rr][Aa][Pp][Hh]"


def _statement(named: str) -> re.Pattern[str]:
    """The expression of (graph that begins, subject, predicate, object, signs behind it, or what has another form).

    The last takes all of the rest, so that the expression is not tried at each of its signs. named: an IRI.
    """
    return re.compile(
        rf"(?:{_GRAPH}(?:{SPACE}++|(?=<))({named}){SPACE}*+\{{{SPACE}*+)?"
        rf"(?:(?:({named}){SPACE}*+)?({named}|a{AFTER_NAME}){SPACE}*+)?({named}|{_LITERAL}){SPACE}*+"
        rf"((?:[.;,}}]{SPACE}*+)++|(?={_GRAPH}[\x20\t\r\n<]))"
        r"|(.++)",
        re.A | re.S,
    )


_DATA = _statement(_NAMED)
_TEMPLATE = _statement(rf"{_NAMED}|[?$][A-Za-z0-9_]++{AFTER_NAME}")
_GROUPS = 6
# The signs behind an object: what follows, and how many braces they close. A point may follow the brace of a graph.
_ENDS = {
    **{head: (";" if head == ";" else ".", 0) for head in ("", ".", ";", ";.")},
    ",": (",", 0),
    **{head + end: (".", end.count("}")) for head in ("", ".", ";", ";.") for end in ("}", "}.", "}}", "}.}")},
}
# The skeleton of triples that have a subject each.
_TRIPLES = re.compile(
    rf"(?P<verb>INSERT|DELETE){SPACE}++DATA{SPACE}*+\{{{SPACE}*+"
    rf"(?:{IRI}{SPACE}++{IRI}{SPACE}++\x01[istnd]\x01{SPACE}*+(?:\.(?=[\x20\t\r\n}}]){SPACE}*+|(?=\}})))+\}}{SPACE}*+",
    re.I | re.A,
)
_WORDS = {"a": RDF_TYPE, **{word: f'"{word}"^^<{XSD}boolean>' for word in ("true", "false")}}

# From the first sign of the text to the brace of its data.
_DATA_HEAD = re.compile(rf"({PREFIXES})(?P<verb>INSERT|DELETE){SPACE}++DATA{SPACE}*+\{{{SPACE}*+", re.I | re.A)


class PlainData(NamedTuple):
    """delete: whether it is DELETE DATA. quads: in canonical terms, in order; graphs: those that the text names."""

    delete: bool
    quads: list[Quad]
    graphs: list[Term]


def plain_data(text: str, lifted: Lifted | None = None) -> PlainData | None:
    """The quads of a text that is one INSERT DATA or DELETE DATA of usual spelling, None for any other text. lifted: of
    this text, if it is known.

    Takes time linear in the length of any text. Raises nothing.
    """
    triples = _TRIPLES.fullmatch(lifted.skeleton) if lifted is not None else None
    if lifted is not None and triples is not None:
        raws = lifted.raws
        terms = _terms(lifted.prologue, dict.fromkeys(raws))
        if terms is None or not usual_prologue(lifted.prologue):
            return None
        found = [terms[raw] for raw in raws]
        columns = zip(found[::3], found[1::3], found[2::3], strict=True)
        return PlainData(triples["verb"][0] in "Dd", [_new(Quad, (s, p, o, None)) for s, p, o in columns], [])
    head = _DATA_HEAD.match(text)
    if head is None:
        return None
    # All of these strings and tuples stay.
    with uncollected() if len(text) > TEXT_MAX else nullcontext():
        block = _Block(_DATA, text[head.end() :])
        if block.rest or (terms := _terms(head[1], block.raws())) is None:
            return None
        quads = block.quads(terms)
        if quads is None:
            return None
        if len(text) > TEXT_MAX:
            quads = list(dict.fromkeys(quads))  # a million equal ones would be sent between processes
    return PlainData(
        head["verb"][0] in "Dd", quads, list(dict.fromkeys([terms[name] for name in block.graphs if name]))
    )


class _Block:
    """The columns of a block's statements, None where a statement has nothing. rest: the text behind the block, or from
    what has another form."""

    __slots__ = ("ends", "graphs", "objects", "predicates", "rest", "subjects")

    def __init__(self, expression: re.Pattern[str], text: str) -> None:
        """text: that behind the opening brace."""
        pieces = expression.split(text)
        # The pieces between the statements are empty, since the last group takes what is no statement.
        *columns, others = (pieces[1 + place :: _GROUPS + 1] for place in range(_GROUPS))
        self.rest: str = others[-1] or "" if others else text
        if self.rest and others:
            for column in columns:
                column.pop()
        self.graphs, self.subjects, self.predicates, self.objects, self.ends = columns

    def raws(self) -> set[str]:
        """The constants and variables as written."""
        return {*self.graphs, *self.subjects, *self.predicates, *self.objects} - {None}

    def quads(self, terms: dict[str, Term]) -> list[Quad] | None:
        """The quads in order, None if the statements make no block."""
        term = terms.__getitem__
        found: list[Quad] = []
        graph: Term | None = None
        s = p = ""
        state, depth = ".", 1
        columns = (self.graphs, self.subjects, self.predicates, self.objects, self.ends)
        for begun, subject, predicate, object_, end in zip(*columns, strict=True):
            if depth == 0 or (subject is None) == (state == ".") or (predicate is None) != (state == ","):
                return None
            if begun is not None:
                if depth > 1 or state != ".":
                    return None
                graph, depth = term(begun), 2
            if subject is not None:
                s = term(subject)
            if predicate is not None:
                p = term(predicate)
            found.append(_new(Quad, (s, p, term(object_), graph)))
            if end == " . " or end == ". ":
                state = "."
                continue
            signs = "".join(end.split())
            if signs not in _ENDS:
                return None
            state, closed = _ENDS[signs]
            if closed:
                depth -= closed
                graph = None
                if depth < 0 or (depth == 0 and signs[-1] == "."):
                    return None
        return found if depth == 0 else None


def _terms(prologue: str, raws: Iterable[str]) -> dict[str, Term] | None:
    """Constants and variables as written -> canonical terms, None if one is invalid."""
    terms: dict[str, Term] = {}
    others: list[str] = []
    for raw in raws:
        first = raw[0]
        if first == "<":
            term = raw if usual_iri(raw) else None
        elif first in "?$":
            term = f"<{VARIABLE}{raw[1:]}>"
        else:
            term = usual_term(prologue, raw) or _WORDS.get(raw)
        if term is None:
            others.append(raw)
        else:
            terms[raw] = term
    if not others:
        return terms if usual_prologue(prologue) else None  # nothing else checks the declarations
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


# --- DELETE/INSERT WHERE ----------------------------------------------------------------------------

_MODIFY_HEAD = re.compile(
    rf"({PREFIXES})(?:WITH(?:{SPACE}++|(?=<))(?P<graph>{_NAMED}){SPACE}*+)?(?P<verb>DELETE|INSERT){SPACE}*+\{{{SPACE}*+",
    re.I | re.A,
)
_INSERT = re.compile(rf"INSERT{SPACE}*+\{{{SPACE}*+", re.I | re.A)
_WHERE = re.compile(rf"WHERE{SPACE}*+(?=\{{)", re.I | re.A)
# A skeleton whose strings, comments, IRIs and braces are certain.
_CERTAIN = re.compile(r"(?:[\w\x20\t\r\n\x01{}().,;?$=!&|+*/>:^\[\]-]++|<=?(?=[\x20\t\r\n])|(?!))*+", re.A)
_INNERMOST = re.compile(r"\{[^{}]*+\}")
_OUTER = re.compile(rf"\s*(?:WITH\s*{IRI}\s*)?(?:DELETE\s*)?(?:INSERT\s*)?WHERE\s*", re.I | re.A)


class PlainModification(NamedTuple):
    """DELETE/INSERT WHERE. deletes, inserts: the templates, with IRIs in place of variables. where: the block as
    written, which only the store checks."""

    prologue: str
    deletes: list[Quad]
    inserts: list[Quad]
    variables: list[str]
    where: str
    with_graph: Term | None


def plain_modification(text: str, known: tuple[str, Sequence[str]] | None = None) -> PlainModification | None:
    """A text that is one DELETE/INSERT WHERE of usual spelling, None for any other. known: its `outline`.

    The limits of `engine.sparql.limits` hold for it. Takes time linear in the length of any text. Raises nothing.
    """
    head = _MODIFY_HEAD.match(text)
    if head is None:
        return None
    prologue = head[1]
    skeleton, constants = known or outline(text)
    words = skeleton.upper()
    if not _within_limits(skeleton, words) or not text.isascii() or not usual_prologue(prologue) or VARIABLE in text:
        return None
    # The store accepts SERVICE within names, and changes what EXISTS and HAVING mean.
    if "SERVICE" in text.upper() or "EXISTS" in words or "HAVING" in words:
        return None
    if "(" in skeleton and (
        # The time is put in place of its functions.
        "NOW" in words
        or may_call(text)
        # `?a<?b&&?c>?d` may be an IRI or two comparisons.
        or not all(usual_iri(raw) for raw in constants if raw[0] == "<")
    ):
        return None
    outer, more = skeleton, 1
    while more:
        outer, more = _INNERMOST.subn("", outer)
    if _OUTER.fullmatch(outer) is None:
        return None
    blocks = [_Block(_TEMPLATE, text[head.end() :])]
    deletes = head["verb"][0] in "Dd"
    following = _INSERT.match(blocks[0].rest) if deletes else None
    if following is not None:
        blocks.append(_Block(_TEMPLATE, blocks[0].rest[following.end() :]))
    where = blocks[-1].rest
    found = _WHERE.match(where)
    if found is None:
        return None
    raws = {raw for block in blocks for raw in block.raws()}
    with_graph = head["graph"]
    terms = _terms(prologue, raws | {with_graph} if with_graph else raws)
    if terms is None:
        return None
    templates = [block.quads(terms) for block in blocks]
    if None in templates:
        return None
    made = [list(dict.fromkeys(quads)) for quads in templates if quads is not None]
    return PlainModification(
        prologue,
        made[0] if deletes else [],
        made[-1] if following or not deletes else [],
        sorted({raw[1:] for raw in raws if raw[0] in "?$"}),
        where[found.end() :],
        terms[with_graph] if with_graph else None,
    )


def _within_limits(skeleton: str, words: str) -> bool:
    """Whether a skeleton is certain, and within the limits; counted are all signs that may matter. words: the same in
    upper case."""
    if len(skeleton) > TOKENS_MAX or _CERTAIN.fullmatch(skeleton) is None:
        return False
    # Templates may have any number of triples; the word may also be part of a name in them.
    where = skeleton[words.find("WHERE") :]
    count = where.count
    brackets = count("{") + count("[")
    patterns = brackets + count(".") + count(";") + count(",") + count("/") + count("|")
    if "(" in where:
        brackets += count("(")
        patterns += 2 * len(where.split()) + count("\x01")  # the members of lists
    conditions = count("&&") + count("||") + words.count("FILTER") + words.count("AS")
    return (
        patterns <= PATTERNS_MAX
        and brackets <= NESTING_MAX
        and count("!") <= NEGATIONS_MAX
        and conditions <= CONDITIONS_MAX
    )
