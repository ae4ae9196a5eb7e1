"""CONSTRUCT queries as a SELECT query and a template, without a store.

The gateway's subscriptions are SELECT queries. The template is read here: IRIs, prefixed names, variables, literals,
``a``, ``;`` and ``,``. Blank nodes and collections are refused, since a subscriber could not recognise them from one
message to the next. The gateway checks the SELECT query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from lamplighter.engine.terms import XSD, Term, iri, is_iri, is_literal, literal
from lamplighter.ontology.vocabulary import RDF_TYPE

TRIPLES_MAX = 100
"""Of a template."""
_TOKEN = re.compile(
    r"""
      (?P<space> [\s]+ | \#[^\n]* )
    | (?P<iri> <[^<>"{}|^`\\\x00-\x20]*> )
    | (?P<variable> [?$][A-Za-z_][A-Za-z0-9_]* )
    | (?P<string> "(?:[^"\\\n\r]|\\.)*" | '(?:[^'\\\n\r]|\\.)*' )
    | (?P<language> @[A-Za-z]+(?:-[A-Za-z0-9]+)* )
    | (?P<typed> \^\^ )
    | (?P<number> [+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)? )
    | (?P<prefixed> (?:[A-Za-z](?:[\w.-]*[\w-])?)?:(?:[\w:%-](?:[\w.:%-]*[\w:%-])?)? )
    | (?P<word> [A-Za-z](?:[\w.-]*[\w-])? )
    | (?P<mark> [{}.;,] )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)

TripleTemplate = tuple[str, str, str]
"""Subject, predicate and object: a term, or a variable with its question mark."""
Triple = tuple[Term, Term, Term]


class _Token(NamedTuple):
    kind: str
    text: str
    begin: int
    end: int


class GraphQuery(NamedTuple):
    """select: the query whose rows fill the template."""

    select: str
    template: tuple[TripleTemplate, ...]

    def triples(self, row: Mapping[str, Term]) -> Iterator[Triple]:
        """The triples of a row, without those that have an unbound variable, or a term in an impossible place."""
        for parts in self.template:
            s, p, o = (row.get(part[1:], "") if part.startswith("?") else part for part in parts)
            if s and o and is_iri(p) and not is_literal(s):
                yield s, p, o


def query_form(text: str) -> Literal["SELECT", "CONSTRUCT"]:
    """Raises ValueError."""
    tokens = list(_tokens(text))
    word = tokens[_after_prologue(tokens)].text.upper() if tokens else ""
    if word not in ("SELECT", "CONSTRUCT"):
        raise ValueError("write a SELECT or a CONSTRUCT query")
    return "SELECT" if word == "SELECT" else "CONSTRUCT"


def graph_query(text: str) -> GraphQuery:
    """text: a CONSTRUCT query. Raises ValueError."""
    tokens = list(_tokens(text))
    at = _after_prologue(tokens)
    prefixes = {
        tokens[number + 1].text[:-1]: tokens[number + 2].text[1:-1]
        for number in range(at - 2)
        if tokens[number].text.upper() == "PREFIX"
    }
    body = at + 1
    short = body < len(tokens) and tokens[body].text.upper() == "WHERE"
    begin = body + short
    if begin >= len(tokens) or tokens[begin].text != "{":
        raise ValueError("write CONSTRUCT { triples } WHERE { pattern }")
    end = next((number for number in range(begin, len(tokens)) if tokens[number].text == "}"), None)
    if end is None:
        raise ValueError("the template has no closing brace")
    template = tuple(_template(tokens[begin + 1 : end], prefixes))
    variables = dict.fromkeys(part for triple in template for part in triple if part.startswith("?"))
    if not variables:
        raise ValueError("the template has no variable")
    rest = text[tokens[body].begin :] if short else text[tokens[end].end :]
    return GraphQuery(f"{text[: tokens[at].begin]}SELECT {' '.join(variables)} {rest}", template)


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        if found.lastgroup != "space":
            yield _Token(found.lastgroup or "", found[0], found.start(), found.end())


def _after_prologue(tokens: list[_Token]) -> int:
    """The first token after the declarations. Raises ValueError."""
    at = 0
    while at < len(tokens):
        word = tokens[at].text.upper()
        if word == "PREFIX" and [one.kind for one in tokens[at + 1 : at + 3]] == ["prefixed", "iri"]:
            at += 3
        elif word == "BASE":
            raise ValueError("write full IRIs or prefixed names instead of BASE")
        else:
            return at
    raise ValueError("write a SELECT or a CONSTRUCT query")


def _template(tokens: list[_Token], prefixes: Mapping[str, str]) -> Iterator[TripleTemplate]:
    """The triples between the braces. Raises ValueError."""
    at, count = 0, 0
    subject = predicate = ""
    wanted = "subject"
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "mark":
            complete = wanted == "end" or (wanted == "predicate" and predicate and token.text != ",")
            wanted = {".": "subject", ";": "predicate", ",": "object"}.get(token.text, "")
            if not wanted or not complete:
                raise ValueError(f"the template cannot be read at {token.text!r}")
            at += 1
            continue
        term, at = _term(tokens, at, prefixes)
        if wanted in ("subject", "predicate") and is_literal(term):
            raise ValueError(f"the template has the literal {token.text} as {wanted}")
        if wanted == "subject":
            subject, predicate, wanted = term, "", "predicate"
        elif wanted == "predicate":
            predicate, wanted = term, "object"
        elif wanted == "object":
            count += 1
            if count > TRIPLES_MAX:
                raise ValueError(f"the template has more than {TRIPLES_MAX} triples")
            yield subject, predicate, term
            wanted = "end"
        else:
            raise ValueError(f"the template has no '.', ';' or ',' before {token.text!r}")
    if not count or wanted == "object" or (wanted == "predicate" and not predicate):
        raise ValueError("the template has no whole triple at its end")


def _term(tokens: list[_Token], at: int, prefixes: Mapping[str, str]) -> tuple[str, int]:
    """A term or variable, and the place after it. Raises ValueError."""
    token = tokens[at]
    if token.kind == "variable":
        return "?" + token.text[1:], at + 1
    if token.kind == "iri":
        return token.text, at + 1
    if token.kind == "prefixed":
        return _expand_prefix(token.text, prefixes), at + 1
    if token.text == "a":
        return iri(RDF_TYPE), at + 1
    if token.text in ("true", "false"):
        return literal(token.text, datatype=XSD + "boolean"), at + 1
    if token.kind == "number":
        kind = "double" if "e" in token.text.lower() else "decimal" if "." in token.text else "integer"
        return literal(token.text, datatype=XSD + kind), at + 1
    if token.kind == "string":
        text = _ESCAPE.sub(_unescape, token.text[1:-1])
        after = tokens[at + 1 : at + 3]
        if after and after[0].kind == "language":
            return literal(text, language=after[0].text[1:].lower()), at + 2
        if len(after) == 2 and after[0].kind == "typed" and after[1].kind in ("iri", "prefixed"):
            datatype = after[1].text if after[1].kind == "iri" else _expand_prefix(after[1].text, prefixes)
            return literal(text, datatype=datatype[1:-1]), at + 3
        return literal(text), at + 1
    raise ValueError(
        f"the template cannot be read at {token.text!r}; it may have IRIs, prefixed names, variables and literals"
    )


def _expand_prefix(name: str, prefixes: Mapping[str, str]) -> Term:
    prefix, _, local = name.partition(":")
    if prefix not in prefixes:
        raise ValueError(f"the prefix {prefix + ':'!r} is not declared")
    return iri(prefixes[prefix] + local)


def _unescape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    if code is None:
        if found[3] not in _ESCAPES:
            raise ValueError(f"unknown escape {found[0]!r}")
        return _ESCAPES[found[3]]
    number = int(code, 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError(f"{found[0]!r} is no character")
    return chr(number)
