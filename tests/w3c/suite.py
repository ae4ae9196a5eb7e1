"""The W3C test suites: those of SPARQL 1.0 and 1.1 from rdflib's source distribution, those of 1.2 from a folder.

No package has the suites of SPARQL 1.2 and RDF 1.2: they are read from the checkout of the rdf-tests repository of the
W3C that the environment variable W3C_RDF_TESTS names, where it is set. `tests/rdf12` has cases of our own for the same
features. Terms are those of `tests/support/oracle.py`, in the store's canonical form
(`1.0` is `1`), since that is what a store without the original spelling can give.
"""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin

import pyoxigraph as ox

from tests.support.oracle import Answer, Row, canonical, term_text
from tests.support.suites import SuiteMissingError, suite_files

MF = "http://www.w3.org/2001/sw/DataAccess/tests/test-manifest#"
QT = "http://www.w3.org/2001/sw/DataAccess/tests/test-query#"
UT = "http://www.w3.org/2009/sparql/tests/test-update#"
RDFT = "http://www.w3.org/ns/rdftest#"
RS = "http://www.w3.org/2001/sw/DataAccess/tests/result-set#"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS_LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
# Where each suite is published: the base of the relative IRIs in its files.
SUITES = {
    "sparql11": "http://www.w3.org/2009/sparql/docs/tests/data-sparql11/",
    "dawg-data-r2": "http://www.w3.org/2001/sw/DataAccess/tests/data-r2/",
    "sparql12": "https://w3c.github.io/rdf-tests/sparql/sparql12/",
    "rdf12": "https://w3c.github.io/rdf-tests/rdf/rdf12/",
}
CHECKOUT = os.environ.get("W3C_RDF_TESTS")
"""The folder of a checkout of rdf-tests, with the suites sparql/sparql12 and rdf/rdf12; None if they are not run."""
SYNTAXES = {
    ".ttl": ox.RdfFormat.TURTLE,
    ".nt": ox.RdfFormat.N_TRIPLES,
    ".rdf": ox.RdfFormat.RDF_XML,
    ".trig": ox.RdfFormat.TRIG,
    ".nq": ox.RdfFormat.N_QUADS,
}
# Its files are not in the distribution.
INCOMPLETE = {"negation/temporal-proximity-by-exclusion-minus-1"}
RESULT_FORMATS = {
    ".srx": ox.QueryResultsFormat.XML,
    ".srj": ox.QueryResultsFormat.JSON,
    ".tsv": ox.QueryResultsFormat.TSV,
}
_IRI_OR_STRING = re.compile(
    r"""<[^<>"{}|^`\\\s]*>|"{3}.*?"{3}|'{3}.*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""", re.S
)
_COMMENT = re.compile(r"#[^\n]*")

Term = ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple

Graphs = dict[str | None, tuple[ox.Quad, ...]]
"""The quads of a dataset by the IRI of their graph, None being the default graph; graphs may be empty."""


SEED = int(os.environ.get("W3C_SEED") or secrets.randbits(32))
"""Where the random orders of a run come from."""

CLASS_COUNTS: Counter[str] = Counter()
"""How many subscriptions of this run got which spu_class; shown at its end."""


@dataclass(frozen=True)
class QueryTest:
    """A query evaluation test. result: the file with the expected result. regime: it asks for entailment."""

    name: str
    text: str
    graphs: Graphs = field(repr=False)
    result: str
    regime: bool

    @property
    def form(self) -> str:
        words = re.findall(r"\b(?:SELECT|ASK|CONSTRUCT|DESCRIBE)\b", bare(self.text), re.I)
        return str(words[0]).upper() if words else ""


@dataclass(frozen=True)
class UpdateTest:
    """An update evaluation test; before and after: the dataset that the request finds and leaves."""

    name: str
    text: str
    before: Graphs = field(repr=False)
    after: Graphs = field(repr=False)


@dataclass(frozen=True)
class SyntaxTest:
    """A text that the suite wants accepted or refused."""

    name: str
    text: str
    update: bool
    accepted: bool


@dataclass(frozen=True)
class DocumentTest:
    """An RDF document that the suite wants accepted or refused.

    result: the file with its quads; None if the suite has none.
    """

    name: str
    path: str
    accepted: bool
    result: str | None

    @property
    def syntax(self) -> ox.RdfFormat:
        return SYNTAXES[posixpath.splitext(self.path)[1]]


def bare(text: str) -> str:
    """A SPARQL text without its comments, IRIs and strings: what is left are its words and signs."""
    return _COMMENT.sub("", _IRI_OR_STRING.sub("''", text))


# --- the archive -------------------------------------------------------------------------------------


@cache
def files() -> dict[str, bytes]:
    """All files of the suites by their path (`sparql11/bind/bind01.rq`). Raises SuiteMissingError."""
    found = {
        path: content
        for path, content in suite_files("rdflib", "w3c", "suites/w3c").items()
        if path.startswith(tuple(SUITES))
    }
    if CHECKOUT is not None:
        folders = [Path(CHECKOUT, "sparql", "sparql12"), Path(CHECKOUT, "rdf", "rdf12")]
        for folder in folders:
            if not folder.is_dir():
                raise SuiteMissingError(f"W3C_RDF_TESTS names no checkout of rdf-tests: {folder} is not there")
            for file in folder.rglob("*"):
                if file.is_file():
                    found[str(Path(folder.name, file.relative_to(folder)))] = file.read_bytes()
    return found


T = TypeVar("T")


def found(tests: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
    """The tests, or none where the suite is missing: `test_suite_is_there` says that once for all."""
    try:
        return tests()
    except SuiteMissingError:
        return ()


def iri_of(path: str) -> str:
    suite, _, rest = path.partition("/")
    return SUITES[suite] + rest


def path_of(iri: str) -> str | None:
    """The path of a file of the suites by its IRI, None for another IRI."""
    for suite, base in SUITES.items():
        if iri.startswith(base) and f"{suite}/{iri[len(base) :]}" in files():
            return f"{suite}/{iri[len(base) :]}"
    return None


def parsed(path: str, graph: str | None = None) -> tuple[ox.Quad, ...]:
    """The quads of a file, each call with blank nodes of its own.

    graph: the graph of all of them, in place of theirs.
    """
    syntax = SYNTAXES[posixpath.splitext(path)[1]]
    base = None if syntax in (ox.RdfFormat.N_TRIPLES, ox.RdfFormat.N_QUADS) else iri_of(path)
    quads = ox.parse(files()[path], syntax, base_iri=base, rename_blank_nodes=True)
    if graph is None:
        return tuple(quads)
    return tuple(ox.Quad(quad.subject, quad.predicate, quad.object, ox.NamedNode(graph)) for quad in quads)


# --- manifests ---------------------------------------------------------------------------------------


class _Manifest:
    """One manifest file as a graph to look things up in."""

    def __init__(self, path: str) -> None:
        self.folder = posixpath.dirname(path)
        self._store = ox.Store()
        self._store.extend(parsed(path))

    def typed(self, *kinds: str, namespace: str = MF) -> list[tuple[str, ox.NamedNode]]:
        """The name and the node of all tests of these types, in the order of their names."""
        nodes = {
            quad.subject
            for kind in kinds
            for quad in self._store.quads_for_pattern(None, ox.NamedNode(RDF + "type"), ox.NamedNode(namespace + kind))
            if isinstance(quad.subject, ox.NamedNode)
        }
        folder = self.folder.removeprefix("sparql11/").replace("dawg-data-r2", "r2")
        return sorted(((f"{folder}/{re.split('[#/]', node.value)[-1]}", node) for node in nodes), key=lambda t: t[0])

    def objects(self, subject: ox.NamedNode | ox.BlankNode, predicate: str) -> list[ox.NamedNode | ox.BlankNode]:
        quads = self._store.quads_for_pattern(subject, ox.NamedNode(predicate), None)
        return [quad.object for quad in quads if isinstance(quad.object, ox.NamedNode | ox.BlankNode)]

    def one(self, subject: ox.NamedNode | ox.BlankNode, predicate: str) -> ox.NamedNode | ox.BlankNode:
        (found,) = self.objects(subject, predicate)
        return found

    def file(self, subject: ox.NamedNode | ox.BlankNode, predicate: str) -> str:
        path = path_of(self.one(subject, predicate).value)
        assert path is not None, f"{subject} {predicate}"
        return path

    def graphs(self, subject: ox.NamedNode | ox.BlankNode, vocabulary: str) -> Graphs:
        """The dataset that an action or a result describes."""
        brought: dict[str | None, list[ox.Quad]] = {None: []}
        for node in self.objects(subject, vocabulary + "data"):
            path = path_of(node.value)
            assert path is not None, node
            for quad in parsed(path):
                name = quad.graph_name.value if isinstance(quad.graph_name, ox.NamedNode) else None
                brought.setdefault(name, []).append(quad)
        found: Graphs = {name: tuple(quads) for name, quads in brought.items()}
        for node in self.objects(subject, vocabulary + "graphData"):
            if isinstance(node, ox.NamedNode):
                path, name = path_of(node.value), node.value
            else:
                path = path_of(self.one(node, vocabulary + "graph").value)
                ((_, _, label, _),) = self._store.quads_for_pattern(node, ox.NamedNode(RDFS_LABEL), None)
                name = label.value
            assert path is not None, node
            found[name] = parsed(path, name)
        return found


def _manifests() -> Iterator[_Manifest]:
    for path in sorted(files()):
        if path.endswith("/manifest.ttl"):
            yield _Manifest(path)


def with_base(text: str, path: str) -> str:
    """The text itself, or below a BASE where it has relative IRIs: the engine takes no base from outside."""
    relative = any(
        not re.match(r"<[A-Za-z][A-Za-z0-9+.-]*:", iri) for iri in re.findall(r"<[^<>\"{}|^`\\\s=?]*>", text)
    )
    return f"BASE <{iri_of(path)}>\n{text}" if relative else text


@cache
def query_tests() -> tuple[QueryTest, ...]:
    """All query evaluation tests of both suites, whatever the form of the query."""
    found = []
    for manifest in _manifests():
        for name, node in manifest.typed("QueryEvaluationTest", "CSVResultFormatTest"):
            if name in INCOMPLETE:
                continue
            action = manifest.one(node, MF + "action")
            path = manifest.file(action, QT + "query")
            text = with_base(files()[path].decode(), path)
            graphs = manifest.graphs(action, QT)
            if not manifest.objects(action, QT + "data"):
                # The dataset is that of the query's FROM clauses: it is in the store under the same names.
                for relative in re.findall(r"\bFROM\s+(?:NAMED\s+)?<([^>]*)>", _COMMENT.sub("", text), re.I):
                    iri = urljoin(iri_of(path), relative)
                    source = path_of(iri)
                    assert source is not None, f"{name}: {iri}"
                    graphs.setdefault(iri, parsed(source, iri))
            regime = "/entailment" in manifest.folder
            found.append(QueryTest(name, text, graphs, manifest.file(node, MF + "result"), regime))
    return tuple(found)


@cache
def update_tests() -> tuple[UpdateTest, ...]:
    found = []
    for manifest in _manifests():
        for name, node in manifest.typed("UpdateEvaluationTest"):
            action = manifest.one(node, MF + "action")
            path = manifest.file(action, UT + "request")
            result = manifest.one(node, MF + "result")
            text = with_base(files()[path].decode(), path)
            found.append(UpdateTest(name, text, manifest.graphs(action, UT), manifest.graphs(result, UT)))
    return tuple(found)


@cache
def syntax_tests() -> tuple[SyntaxTest, ...]:
    found = []
    for manifest in _manifests():
        for update in (False, True):
            for accepted in (False, True):
                kind = f"{'Positive' if accepted else 'Negative'}{'Update' if update else ''}SyntaxTest"
                for name, node in manifest.typed(kind, f"{kind}11"):
                    path = manifest.file(node, MF + "action")
                    found.append(SyntaxTest(name, with_base(files()[path].decode(), path), update, accepted))
    return tuple(found)


@cache
def document_tests() -> tuple[DocumentTest, ...]:
    """The tests of RDF 1.2 syntaxes. Those of canonical N-Triples and N-Quads are documents like the others."""
    found = []
    for manifest in _manifests():
        for kind in ("NTriples", "NQuads", "Turtle", "Trig", "XML"):
            for ending in ("PositiveSyntax", "NegativeSyntax", "Eval", "PositiveC14N", "NegativeEval"):
                for name, node in manifest.typed(f"Test{kind}{ending}", namespace=RDFT):
                    results = manifest.objects(node, MF + "result")
                    result = manifest.file(node, MF + "result") if results else None
                    path = manifest.file(node, MF + "action")
                    found.append(DocumentTest(name, path, not ending.startswith("Negative"), result))
    return tuple(found)


# --- results -----------------------------------------------------------------------------------------


def truth(value: bool) -> Answer:
    """The answer of an ASK query as a subscription has it: one row."""
    return Answer(["ask"], [(f'"{str(value).lower()}"^^<http://www.w3.org/2001/XMLSchema#boolean>',)])


def triples(rows: Iterable[Row]) -> Answer:
    """The answer of a CONSTRUCT query as a subscription has it: a set of triples."""
    return Answer(["subject", "predicate", "object"], list(dict.fromkeys(rows)))


def expected(test: QueryTest) -> Answer:
    """The expected result of a test in canonical terms. Not for CSV: see `lexical_rows`."""
    extension = posixpath.splitext(test.result)[1]
    if test.form == "CONSTRUCT":
        return triples(tuple(map(_canonical, quad.triple)) for quad in parsed(test.result))
    if extension in RESULT_FORMATS:
        solutions = ox.parse_query_results(files()[test.result], RESULT_FORMATS[extension])
        if isinstance(solutions, ox.QueryBoolean):
            return truth(bool(solutions))
        names = [variable.value for variable in solutions.variables]
        return Answer(names, [tuple(None if t is None else _canonical(t) for t in solution) for solution in solutions])
    return _result_set(test.result)


def _result_set(path: str) -> Answer:
    """A result set written as RDF (DAWG test vocabulary). Orders in it are not read: results compare as bags."""
    store = ox.Store()
    store.extend(parsed(path))

    def values(subject: Term, name: str) -> list[Term]:
        assert isinstance(subject, ox.NamedNode | ox.BlankNode)
        return [quad.object for quad in store.quads_for_pattern(subject, ox.NamedNode(RS + name), None)]

    def name(term: Term) -> str:
        assert isinstance(term, ox.Literal)
        return term.value

    (root,) = store.quads_for_pattern(None, ox.NamedNode(RDF + "type"), ox.NamedNode(RS + "ResultSet"))
    names = sorted(map(name, values(root.subject, "resultVariable")))
    rows: list[Row] = []
    for solution in values(root.subject, "solution"):
        row = {}
        for binding in values(solution, "binding"):
            (variable,), (value,) = values(binding, "variable"), values(binding, "value")
            row[name(variable)] = term_text(value)
        assert set(row) <= set(names), path
        rows.append(tuple(row.get(variable) for variable in names))
    return Answer(names, rows)


def _canonical(term: Term) -> str:
    store = ox.Store()
    store.add(ox.Quad(ox.NamedNode("urn:s"), ox.NamedNode("urn:p"), term))
    (quad,) = store
    return term_text(quad.object)


def as_expected(test: QueryTest, variables: tuple[str, ...], rows: Counter[Row]) -> bool:
    """Whether a result is the expected one: the same variables, and as bags the same rows but for blank node labels."""
    if test.result.endswith(".csv"):
        names, *lines = csv.reader(io.StringIO(files()[test.result].decode()))
        if set(names) != set(variables):
            return False
        cells = Counter(tuple(line) for line in lines)
        return cells == Counter(tuple(_cell(row[variables.index(name)]) for name in names) for row in rows.elements())
    answer = expected(test)
    return set(answer.variables) == set(variables) and same_rows(rows, in_columns(answer, variables))


def _cell(text: str | None) -> str:
    """A term as CSV results show it. Blank nodes all look alike: the suite has no row with two of them."""
    if text is None:
        return ""
    if text.startswith("_:"):
        return "_:a"
    (quad,) = ox.parse(f"<urn:s> <urn:p> {text} .", ox.RdfFormat.N_TRIPLES)
    assert isinstance(quad.object, ox.NamedNode | ox.Literal)
    return quad.object.value


def in_columns(answer: Answer, variables: tuple[str, ...]) -> Counter[Row]:
    """The rows of an answer with its columns in another order."""
    if answer.variables == variables:
        return answer.rows
    places = [answer.variables.index(name) for name in variables]
    return Counter(tuple(row[place] for place in places) for row in answer.ordered)


def same_rows(one: Counter[Row], other: Counter[Row]) -> bool:
    """Whether two bags of rows are equal up to the labels of blank nodes."""
    if one == other:
        return True
    if one.total() != other.total():
        return False
    return canonical(_row_graph(one)) == canonical(_row_graph(other))


def _row_graph(rows: Counter[Row]) -> Iterable[ox.Quad]:
    """One blank node for each row, one triple for each bound variable: isomorphic exactly if the bags are."""
    lines = [f"_:occurrence-{number} <urn:row> <urn:row> ." for number in range(rows.total())]
    for number, row in enumerate(rows.elements()):
        lines += [f"_:occurrence-{number} <urn:column:{place}> {text} ." for place, text in enumerate(row) if text]
    return ox.parse("\n".join(lines), ox.RdfFormat.N_TRIPLES)
