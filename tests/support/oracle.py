"""The reference that the engine is compared with: pyoxigraph, the texts as they came, and nothing else.

Shares no code with the engine: an update is run natively by the store, a query is evaluated from nothing, and the
terms, bags and JSON of both sides are brought to one notation (`term_text`) by the code of this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.sparql.exists_variables import with_own_variables

Text = str
"""A term in N-Triples syntax, as `term_text` writes it."""

Row = tuple[Text | None, ...]
QuadTexts = tuple[Text, Text, Text, Text | None]

XSD_STRING = "http://www.w3.org/2001/XMLSchema#string"
LANG_STRINGS = {
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#langString",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#dirLangString",
}

# What the store raises for a text that it does not accept, and for an operation that it refuses.
REFUSALS = (SyntaxError, RuntimeError, ValueError)


def term_text(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple) -> Text:
    """One notation for each term: only the signs that must be escaped are, control characters by their number."""
    if isinstance(term, ox.NamedNode):
        return f"<{term.value}>"
    if isinstance(term, ox.BlankNode):
        return f"_:{term.value}"
    if isinstance(term, ox.Triple):
        return f"<<( {term_text(term.subject)} {term_text(term.predicate)} {term_text(term.object)} )>>"
    quoted = '"' + "".join(_escaped(sign) for sign in term.value) + '"'
    if term.language is not None:
        direction = "" if term.direction is None else f"--{term.direction.value}"
        return f"{quoted}@{term.language}{direction}"
    return quoted if term.datatype.value == XSD_STRING else f"{quoted}^^<{term.datatype.value}>"


def _escaped(sign: str) -> str:
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
    if sign in named:
        return named[sign]
    return f"\\u{ord(sign):04X}" if ord(sign) < 0x20 or ord(sign) == 0x7F else sign


@lru_cache(maxsize=65536)
def respelled(text: str) -> Text:
    """A term that somebody else wrote in N-Triples syntax, in the notation of `term_text`.

    Raises SyntaxError when it is not N-Triples. Blank nodes keep their labels.
    """
    (statement,) = ox.parse(f"<urn:s> <urn:p> {text} .", ox.RdfFormat.N_TRIPLES)
    return term_text(statement.object)


def quad_texts(quad: ox.Quad) -> QuadTexts:
    graph = None if isinstance(quad.graph_name, ox.DefaultGraph) else term_text(quad.graph_name)
    return term_text(quad.subject), term_text(quad.predicate), term_text(quad.object), graph


def respelled_quads(quads: Iterable[Sequence[str | None]]) -> Counter[QuadTexts]:
    """Quads of term texts in the notation of `term_text`, with multiplicity, so that a repeated quad is seen."""
    return Counter(
        (respelled(str(s)), respelled(str(p)), respelled(str(o)), None if g is None else respelled(g))
        for s, p, o, g in quads
    )


def respelled_rows(rows: Iterable[Sequence[str | None]]) -> Counter[Row]:
    return Counter(tuple(None if text is None else respelled(text) for text in row) for row in rows)


def parsed_dump(nquads: bytes) -> Counter[QuadTexts]:
    return Counter(quad_texts(quad) for quad in ox.parse(nquads, ox.RdfFormat.N_QUADS))


class Answer:
    """What a SELECT query gives: the variables of its projection and its rows as a bag, and in order."""

    def __init__(self, variables: Sequence[str], rows: Iterable[Row]) -> None:
        self.variables = tuple(variables)
        self.ordered = tuple(rows)
        self.rows = Counter(self.ordered)

    def __repr__(self) -> str:
        return f"Answer({self.variables}, {dict(self.rows)})"


def answer_from_json(document: Mapping[str, Any]) -> Answer:
    """Reads SPARQL 1.1 Query Results JSON (W3C recommendation of 21 March 2013). Raises KeyError if it is not that."""
    variables = list(document["head"]["vars"])
    rows = []
    for binding in document["results"]["bindings"]:
        stray = set(binding) - set(variables)
        if stray:
            raise KeyError(f"bound, but not in the head: {stray}")
        rows.append(tuple(_text_from_json(binding[name]) if name in binding else None for name in variables))
    return Answer(variables, rows)


def _text_from_json(member: Mapping[str, Any]) -> Text:
    kind, value = member["type"], member["value"]
    if kind == "uri":
        return term_text(ox.NamedNode(value))
    if kind == "bnode":
        return term_text(ox.BlankNode(value))
    if kind == "triple":
        parts = (_text_from_json(value[part]) for part in ("subject", "predicate", "object"))
        return f"<<( {' '.join(parts)} )>>"
    if kind != "literal":
        raise KeyError(f"unknown type of term: {kind}")
    if "xml:lang" in member:
        direction = {"ltr": ox.BaseDirection.LTR, "rtl": ox.BaseDirection.RTL}.get(member.get("its:dir", ""))
        return term_text(ox.Literal(value, language=member["xml:lang"], direction=direction))
    datatype = member.get("datatype")
    return term_text(ox.Literal(value) if datatype is None else ox.Literal(value, datatype=ox.NamedNode(datatype)))


class Oracle:
    """A store of its own that replays update texts natively and evaluates each query from nothing.

    Variables of an EXISTS that the group around it does not have get names of their own first, since the store confuses
    them: tests/properties/test_exists_scopes.py judges that step without the store.
    """

    def __init__(self) -> None:
        self._store = ox.Store()

    def update(self, sparql: str) -> None:
        """Runs the text in one transaction. Raises one of `REFUSALS`, and has then changed nothing."""
        self._store.update(with_own_variables(sparql))

    def load(self, data: bytes, media_type: str) -> None:
        self._store.load(data, ox.RdfFormat.from_media_type(media_type))

    def refuses(self, sparql: str) -> Exception | None:
        """What the store says against the update at this moment, None if it would take it. Changes nothing."""
        scratch = Oracle()
        scratch._store.extend(self._store)
        for graph in self._store.named_graphs():
            scratch._store.add_graph(graph)
        try:
            scratch.update(sparql)
        except REFUSALS as refusal:
            return refusal
        return None

    def query(self, sparql: str) -> Answer:
        solutions = self._store.query(with_own_variables(sparql))
        assert isinstance(solutions, ox.QuerySolutions), sparql
        names = [variable.value for variable in solutions.variables]
        rows = [tuple(None if term is None else term_text(term) for term in solution) for solution in solutions]
        return Answer(names, rows)

    def quads(self) -> set[QuadTexts]:
        return {quad_texts(quad) for quad in self._store}

    def graphs(self) -> set[Text]:
        """The named graphs, the empty ones too."""
        return {term_text(graph) for graph in self._store.named_graphs()}

    def canonical_quads(self) -> set[str]:
        return canonical(self._store)


def canonical(quads: Iterable[ox.Quad]) -> set[str]:
    """The quads with blank nodes labelled by their place (RDFC-1.0): equal for isomorphic datasets only."""
    dataset = ox.Dataset(quads)
    dataset.canonicalize(ox.CanonicalizationAlgorithm.RDFC_1_0)
    return {str(quad_texts(quad)) for quad in dataset}
