"""Terms, quads, bindings and bags: the values of all interfaces.

A term is the text of its N-Triples form (``<http://a>``, ``"20.5"^^<...#decimal>``, ``_:b0``). Text
hashes and compares natively, goes to the change log as it is, and needs no store to be understood, so
adapters and the shipper handle terms without loading one. Terms that come out of the store are in its
canonical form: values, not spellings (``1.50`` is ``1.5``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lamplighter.engine.tables import count_text, html_table

# A term in N-Triples syntax.
Term = str

# One solution: a term, or None where unbound, for each variable of its bag, in the same order.
Binding = tuple[Term | None, ...]

XSD = "http://www.w3.org/2001/XMLSchema#"
RDF_TYPE: Term = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"

# Levels of nested triple terms that may enter the dataset, the outermost one included.
TERM_DEPTH_MAX = 50
# Levels of nested triple terms that are read back from a log: earlier versions accepted more.
STORED_DEPTH_MAX = 200

_SHOWN_CHARACTERS_MAX = 200
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_UNESCAPES = {escape[1]: sign for sign, escape in _ESCAPES.items()} | {"'": "'"}
_ESCAPE = re.compile('[\\\\"\x00-\x1f\x7f\ufffe\uffff]')  # as the store escapes, so that equal terms have equal texts
_UNESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.S)
_TERM = re.compile(
    r"""\s*(?: (?P<open><<\()
          | (?P<close>\)>>)
          | (?P<iri><[^>]*>)
          | (?P<bnode>_:[^\s<>")]+)
          | (?P<literal>"(?:[^"\\]|\\.)*"(?:@[A-Za-z0-9-]+|\^\^<[^>]*>)?) )""",
    re.X | re.S,
)
_LITERAL = re.compile(r'"(?P<value>(?:[^"\\]|\\.)*)"(?:@(?P<language>[^\s]+)|\^\^<(?P<datatype>[^>]*)>)?\Z', re.S)
# Characters that an IRIREF must not contain (SPARQL 1.1, production 139): prevents injection.
_NOT_IN_IRI = re.compile(r"[\x00-\x20<>\"{}|^`\\]")


class Quad(NamedTuple):
    """A quad: subject, predicate, object, and the graph's name, None for the default graph."""

    s: Term
    p: Term
    o: Term
    g: Term | None = None

    def to_nquads(self) -> str:
        """The N-Quads statement, without the newline."""
        return f"{self.s} {self.p} {self.o} ." if self.g is None else f"{self.s} {self.p} {self.o} {self.g} ."


def iri(value: str) -> Term:
    """The term of an IRI. Raises ValueError for a character that IRIs must not contain."""
    found = _NOT_IN_IRI.search(value)
    if found:
        raise ValueError(f"an IRI cannot hold {found.group()!r}: {value!r}")
    return f"<{value}>"


def literal(value: str, *, datatype: str | None = None, language: str | None = None) -> Term:
    """The term of a literal. datatype: the full IRI. Raises ValueError for an invalid datatype or language."""
    text = '"' + _ESCAPE.sub(_escape, value) + '"'
    if language is not None:
        if not re.fullmatch(r"[A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*(--(ltr|rtl))?", language):
            raise ValueError(f"not a language tag: {language!r}")
        return f"{text}@{language}"
    if datatype is not None and datatype != XSD + "string":
        return f"{text}^^{iri(datatype)}"
    return text


def lexical(term: Term) -> str:
    """The value without syntax: the IRI, the literal's text, or the blank node's label."""
    if term.startswith("<"):
        return term[1:-1]
    if term.startswith("_:"):
        return term[2:]
    found = _LITERAL.match(term)
    assert found, term
    return _unescape(found["value"])


def is_iri(term: Term) -> bool:
    return term.startswith("<") and not term.startswith("<<")


def is_blank(term: Term) -> bool:
    return term.startswith("_:")


def is_literal(term: Term) -> bool:
    return term.startswith('"')


def is_term(text: str) -> bool:
    """Whether a text that another program made has the form of a term, so that the functions here can read it."""
    if text.startswith("<<("):
        try:
            _triple_to_json(text)
        except (ValueError, IndexError):
            return False
        return True
    if is_literal(text):
        return _LITERAL.match(text) is not None
    return len(text) > 2 and (is_blank(text) or (is_iri(text) and text.endswith(">")))


def _escape(found: re.Match[str]) -> str:
    sign = found.group()
    return _ESCAPES.get(sign) or f"\\u{ord(sign):04X}"


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _UNESCAPE.sub(
        lambda found: chr(int(found[1] or found[2], 16)) if found[1] or found[2] else _UNESCAPES[found[3]], text
    )


def term_to_json(term: Term) -> dict[str, Any]:
    """The member of a SPARQL 1.1 Query Results JSON binding (triple terms as SPARQL 1.2 does)."""
    if term.startswith("<<("):
        return _triple_to_json(term)
    if term.startswith("<"):
        return {"type": "uri", "value": term[1:-1]}
    if term.startswith("_:"):
        return {"type": "bnode", "value": term[2:]}
    found = _LITERAL.match(term)
    assert found, term
    member: dict[str, Any] = {"type": "literal", "value": _unescape(found["value"])}
    if found["language"]:
        language, _, direction = found["language"].partition("--")
        member["xml:lang"] = language
        if direction:
            member["its:dir"] = direction
    elif found["datatype"]:
        member["datatype"] = found["datatype"]
    return member


def term_from_json(member: Mapping[str, Any]) -> Term:
    """The inverse of `term_to_json`; also reads the old type ``typed-literal``. Raises ValueError."""
    return _term_from_json(member, STORED_DEPTH_MAX)


def _term_from_json(member: Mapping[str, Any], levels: int) -> Term:
    """As `term_from_json`. levels: the allowed levels of nested triple terms."""
    kind, value = member.get("type"), member.get("value")
    if kind == "triple" and isinstance(value, dict):
        if not levels:
            raise ValueError(f"triple terms are nested more than {STORED_DEPTH_MAX} deep")
        parts = [_term_from_json(value[part], levels - 1) for part in ("subject", "predicate", "object")]
        return f"<<( {' '.join(parts)} )>>"
    if not isinstance(value, str):
        raise ValueError(f"a term needs a string in its member 'value': {member!r}")
    if kind == "uri":
        return iri(value)
    if kind == "bnode":
        if not re.fullmatch(r"\w[\w.-]*", value):
            raise ValueError(f"not a blank node label: {value!r}")
        return f"_:{value}"
    if kind in ("literal", "typed-literal"):
        language = member.get("xml:lang")
        if language and member.get("its:dir"):
            language = f"{language}--{member['its:dir']}"
        return literal(value, datatype=member.get("datatype"), language=language)
    raise ValueError(f"unknown type of term: {kind!r} (one of uri, literal, bnode)")


def _triple_to_json(term: Term) -> dict[str, Any]:
    """The member of a triple term. Takes linear time for any depth."""
    open_: list[list[dict[str, Any]]] = [[]]
    for found in _TERM.finditer(term):
        if found["open"]:
            open_.append([])
        elif found["close"]:
            s, p, o = open_.pop()
            open_[-1].append({"type": "triple", "value": {"subject": s, "predicate": p, "object": o}})
        else:
            open_[-1].append(term_to_json(found.group().strip()))
    [[whole]] = open_
    return whole


class Bag:
    """A multiset of bindings, in order: the result of a SELECT query.

    variables: names without the question mark, in the order of the projection.
    rows: one `Binding` per occurrence.
    Two bags are equal when they hold the same bindings equally often, whatever the order: that is how
    SPARQL 1.1 (section 18.1.8) defines the multiset of solutions. Bags are immutable.
    """

    __slots__ = ("__dict__", "rows", "variables")

    def __init__(self, variables: Sequence[str], rows: Iterable[Binding] = ()) -> None:
        self.variables = tuple(variables)
        self.rows = tuple(rows)

    # No cached_property: before Python 3.12 it has a lock, which the thread of a long step and the loop would share.
    _counts: Counter[Binding] | None = None

    @property
    def counts(self) -> Counter[Binding]:
        """Binding -> number of its occurrences, computed once. Must not be modified."""
        if self._counts is None:
            self._counts = Counter(self.rows)
        return self._counts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bag):
            return NotImplemented
        return self.variables == other.variables and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # equality is by content, and bags are large

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.rows)

    def __add__(self, other: Bag) -> Bag:
        """The union: occurrences are added."""
        assert self.variables == other.variables
        return Bag(self.variables, self.rows + other.rows)

    def __sub__(self, other: Bag) -> Bag:
        """The difference: occurrences are subtracted, down to zero."""
        assert self.variables == other.variables
        return Bag(self.variables, (self.counts - other.counts).elements())

    def __repr__(self) -> str:
        shown = repr(self.variables)
        if len(shown) > _SHOWN_CHARACTERS_MAX:
            shown = f"({count_text(len(self.variables), 'variable')})"
        return f"Bag({shown}, {count_text(len(self.rows), 'row')})"

    def _repr_html_(self) -> str:
        """A table for notebooks, of bounded size."""
        return html_table(count_text(len(self.rows), "row"), self.variables, self.rows, len(self.rows))

    def bindings(self) -> Iterator[dict[str, Term]]:
        """The rows as variable -> term, without unbound variables."""
        for row in self.rows:
            yield {name: term for name, term in zip(self.variables, row, strict=True) if term is not None}

    def to_json(self) -> dict[str, Any]:
        """The SPARQL 1.1 Query Results JSON object (a dict that `json.dumps` takes)."""
        rows = [{name: term_to_json(term) for name, term in binding.items()} for binding in self.bindings()]
        return {"head": {"vars": list(self.variables)}, "results": {"bindings": rows}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Bag:
        """The bag of a SPARQL 1.1 Query Results JSON object. Raises ValueError for anything else."""
        try:
            variables = list(document["head"]["vars"])
            rows = [
                tuple(term_from_json(row[name]) if name in row else None for name in variables)
                for row in document["results"]["bindings"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a SPARQL results document: {error!r}") from error
        return cls(variables, rows)
