"""RDF documents: a file or bytes -> quads in canonical terms.

This is the one module of the engine outside `engine.client` that opens a file: `Engine.load` reads the path that its
caller names.
"""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

import pyoxigraph as ox

from lamplighter.engine.errors import LimitExceededError, RequestSyntaxError, UnsupportedRequestError
from lamplighter.engine.sparql.limits import NESTING_MAX
from lamplighter.engine.sparql.skeletons import is_canonical
from lamplighter.engine.store.quad_store import canonical_objects, quads_of_lines
from lamplighter.engine.store.renewal import native_name, write
from lamplighter.engine.term_bounds import check_json, check_terms, check_turtle
from lamplighter.engine.terms import Quad, Term, is_iri
from lamplighter.engine.updating.plain_lines import plain_quads

# Bytes of the largest document, decompressed, and characters of its quads as N-Quads; the default.
DOCUMENT_BYTES_MAX = 256 * 1024 * 1024

# Of an XML element, with declarations of prefixes. The native parser needs time in the square of their number.
ATTRIBUTES_MAX = 1000

# A document: its bytes, or the path of its file.
Source = bytes | str | os.PathLike[str]
SOURCE_TYPES: tuple[type, ...] = (bytes, str, os.PathLike)

_SHORT_NAMES = {
    "application/n-triples": ("nt", "ntriples"),
    "application/n-quads": ("nq", "nquads"),
    "text/turtle": ("ttl", "turtle"),
    "application/trig": ("trig",),
    "application/rdf+xml": ("rdf", "xml"),
    "application/ld+json": ("jsonld",),
}
_MEDIA_TYPES = {name: media_type for media_type, short in _SHORT_NAMES.items() for name in (media_type, *short)}
_SUFFIXES = ".ttl, .nt, .nq, .trig, .rdf, .xml or .jsonld"
# Syntaxes without abbreviations.
_IN_FULL = (ox.RdfFormat.N_TRIPLES, ox.RdfFormat.N_QUADS)
_BATCH_QUADS = 1000
_BATCH_BYTES = 1024 * 1024


class Document(NamedTuple):
    """The bytes of a document, its syntax, and the name that errors give it: a path, or nothing."""

    data: bytes
    syntax: ox.RdfFormat
    name: str | None


def opened(source: Source, media_type: str | None, bytes_max: int) -> Document:
    """Reads a document; a file whose name ends with ``.gz`` is decompressed.

    media_type: the format, as a media type or a short name such as ``ttl``. None: N-Triples for bytes; for a file, the
    format follows from the name. Raises UnsupportedRequestError for an unknown format, LimitExceededError for more
    than bytes_max bytes, RequestSyntaxError for a damaged compressed file, and OSError as `open` does.
    """
    if isinstance(source, bytes):
        if len(source) > bytes_max:
            raise _too_large("the document", bytes_max)
        return Document(without_mark(source), _syntax(media_type or "application/n-triples", "the document"), None)
    name = os.fspath(source)
    if "\n" in name:
        raise UnsupportedRequestError(
            'a text is taken for the path of a file; pass a document as bytes: load(text.encode(), "ttl")'
        )
    path = Path(name)
    compressed = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if compressed else path).suffix.lower()
    if media_type is None and suffix[1:] not in _MEDIA_TYPES:
        raise UnsupportedRequestError(
            f"{name}: the name does not tell the format; end it with {_SUFFIXES}, or name the format"
        )
    syntax = _syntax(media_type or suffix[1:], name)
    _check_path(name)
    if path.exists() and not path.is_file():  # a pipe that nobody writes to would be waited for
        raise OSError(errno.EINVAL, "not a regular file; replace it by one", name)
    with path.open("rb") as file:
        try:
            data = (gzip.GzipFile(fileobj=file) if compressed else file).read(bytes_max + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise RequestSyntaxError(f"not a whole gzip file: {error}; compress it again", filename=name) from error
    if len(data) > bytes_max:
        raise _too_large(name, bytes_max)
    return Document(without_mark(data), syntax, name)


def _check_path(name: str) -> None:
    """Raises UnsupportedRequestError for what no file can be called, for which `open` has a ValueError."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise UnsupportedRequestError(f"{name!r} cannot be the name of a file: {error.reason}") from error
    if "\0" in name:
        raise UnsupportedRequestError(f"{name!r} cannot be the name of a file: it has a zero")


def without_mark(document: bytes) -> bytes:
    """The document without the byte order mark that some editors write before UTF-8; the native parser of Turtle would
    take it for a name."""
    return document.removeprefix(BOM_UTF8)


def quads_of(
    document: Document,
    graph: Term | None,
    base: str | None,
    term_bytes_max: int,
    bytes_max: int,
    store: ox.Store | None = None,
) -> list[Quad]:
    """The quads of a document, each once, in the store's canonical terms and with fresh blank nodes.

    graph: the term of the graph that takes the triples of the default graph; a document with named graphs is refused
    then. base: what relative IRIs are resolved with; without it, the graph's name if that is an IRI. store: an empty
    native store, which takes the quads as well. Raises RequestSyntaxError with the place, UnsupportedRequestError, and
    LimitExceededError for terms that are too long or too deep and for more than bytes_max bytes of N-Quads.
    """
    try:
        return _quads(document, graph, base, term_bytes_max, bytes_max, store)
    except RequestSyntaxError as error:
        error.filename = document.name
        raise
    except (LimitExceededError, UnsupportedRequestError) as error:
        if document.name is None:
            raise
        raise type(error)(f"{document.name}: {error}") from error


def _quads(
    document: Document,
    graph: Term | None,
    base: str | None,
    term_bytes_max: int,
    bytes_max: int,
    store: ox.Store | None,
) -> list[Quad]:
    data, syntax, _ = document
    if graph is not None:
        _check_name(graph)
    # The native parser is recursive: too deep a document would end the process.
    check_depth(data, syntax)
    found: list[Quad] = []
    size = 0
    try:
        plain = _plain(data, syntax, graph, bytes_max) if base is None else None  # the parser checks a base
        if plain is not None:
            if store is not None:
                # Lenient, since the lines are valid; checking the IRIs again would take a quarter of the time.
                place = None if graph is None else native_name(graph)
                store.load(data, format=syntax, to_graph=place, lenient=True)
            return _distinct(plain, store)
        if graph is not None and base is None:
            base = graph[1:-1]
        # Renamed: a label of this document must not meet one of the dataset.
        parsed = ox.parse(data, format=syntax, base_iri=base, rename_blank_nodes=True)
        for batch in _batches(parsed, abbreviated=syntax not in _IN_FULL):
            lines = ox.serialize(batch, format=ox.RdfFormat.N_QUADS)
            assert lines is not None, "without an output file the text is returned"
            # Equal spellings become equal quads only now.
            quads = list(dict.fromkeys(_canonical(quads_of_lines(lines))))
            check_terms(quads, term_bytes_max)
            if graph is not None:
                quads = [_in_graph(quad, graph) for quad in quads]
            # In full terms: with prefixes, a small document can stand for a very large one.
            size += sum(len(s) + len(p) + len(o) + len(g or "") + 6 for s, p, o, g in quads)
            if size > bytes_max:
                raise LimitExceededError(
                    f"the document stands for more than {bytes_max} characters of N-Quads; "
                    "load it in parts, or pass a larger bytes_max"
                )
            if store is not None:
                if graph is None:
                    store.extend(batch)  # faster than parsing text again
                else:
                    write(store, (), quads, {})
            found += quads
    except SyntaxError as error:
        message = f"{_readable(error, base)} (read as {syntax.media_type})"
        raise RequestSyntaxError(message, error.lineno, error.offset) from error
    except ValueError as error:
        raise UnsupportedRequestError(f"base {base!r}: {error}; pass an absolute IRI") from error
    except MemoryError as error:  # the parser's name for a statement of more than 16 MiB
        raise LimitExceededError("a statement has more than 16 MiB; keep large values elsewhere") from error
    return _distinct(found, store)


def _plain(data: bytes, syntax: ox.RdfFormat, graph: Term | None, bytes_max: int) -> list[Quad] | None:
    """The quads of a document of plain lines, None if it is none, or if it may be too large in its graph."""
    if syntax not in _IN_FULL:
        return None
    quads = plain_quads(data, graph, has_graphs=syntax == ox.RdfFormat.N_QUADS and graph is None)
    if quads is None or len(data) + len(quads) * (len(graph or "") + 1) > bytes_max:
        return None
    return quads


def _distinct(quads: list[Quad], store: ox.Store | None) -> list[Quad]:
    """The quads, each once. store: has the same quads, None if there is none."""
    # The store has each quad once. If it has as many, there were no duplicates.
    return quads if store is not None and len(store) == len(quads) else list(dict.fromkeys(quads))


def check_depth(document: bytes, syntax: ox.RdfFormat) -> None:
    """Raises LimitExceededError for a document that is nested too deep, and RequestSyntaxError as `check_xml`."""
    if syntax == ox.RdfFormat.RDF_XML:
        check_xml(document)
    elif syntax == ox.RdfFormat.JSON_LD:
        check_json(document)
    else:
        check_turtle(document)


def check_xml(body: bytes) -> None:
    """Refuses XML that must not get to the native parser.

    Raises RequestSyntaxError for what is not well-formed UTF-8, UnsupportedRequestError for a DOCTYPE, and
    LimitExceededError for elements that are nested more than `NESTING_MAX` deep, or have more than `ATTRIBUTES_MAX`
    attributes.
    """
    # The native parser reads UTF-8 and nothing else. In another encoding expat would read another document.
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise RequestSyntaxError(f"the document is not UTF-8: {error.reason} at byte {error.start}") from error
    parser = expat.ParserCreate("utf-8")  # whatever the document declares
    depth = 0

    def doctype(*_: object) -> None:
        raise UnsupportedRequestError("RDF/XML with a DOCTYPE is not read; write entities as the characters themselves")

    def begin(_: str, attributes: Sequence[str]) -> None:
        nonlocal depth
        depth += 1
        if len(attributes) > 2 * ATTRIBUTES_MAX:  # names and values
            raise LimitExceededError(f"an element has more than {ATTRIBUTES_MAX} attributes; use several elements")
        if depth > NESTING_MAX:
            raise LimitExceededError(
                f"elements are nested more than {NESTING_MAX} deep; refer to nodes by rdf:resource or rdf:nodeID"
            )

    def end(_: object) -> None:
        nonlocal depth
        depth -= 1

    # A list instead of a dictionary for each element.
    parser.ordered_attributes = True
    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise RequestSyntaxError(expat.ErrorString(error.code), error.lineno, error.offset + 1) from error


def _syntax(name: str, document: str) -> ox.RdfFormat:
    media_type = _MEDIA_TYPES.get(name.partition(";")[0].strip().lower())
    if media_type is None:
        raise UnsupportedRequestError(f"{document}: unknown format {name!r}; use one of {', '.join(_MEDIA_TYPES)}")
    syntax = ox.RdfFormat.from_media_type(media_type)
    assert syntax is not None, "the store's library reads all of them"
    return syntax


def _too_large(document: str, bytes_max: int) -> LimitExceededError:
    return LimitExceededError(
        f"{document} has more than {bytes_max} bytes; load it in parts, or pass a larger bytes_max"
    )


def _batches(quads: Iterator[ox.Quad], *, abbreviated: bool) -> Iterator[list[ox.Quad]]:
    """Quads, so many at a time that none of the lists is large.

    abbreviated: whether the terms of a short document may be long, by prefixes; then they are counted.
    """
    if not abbreviated:
        while batch := list(islice(quads, _BATCH_QUADS)):
            yield batch
        return
    # One at least, however long its terms are.
    while batch := list(islice(quads, 1)):
        size = 0
        for quad in islice(quads, _BATCH_QUADS):
            batch.append(quad)
            size += len(str(quad))
            if size > _BATCH_BYTES:
                break
        yield batch


def _canonical(quads: Sequence[Quad]) -> Sequence[Quad]:
    """The quads with their objects in canonical form. All other terms have one spelling only."""
    odd = {o for _, _, o, _ in quads if o[-1] != '"' and (o[0] == '"' or o[:2] == "<<") and not is_canonical(o)}
    if not odd:
        return quads
    forms = dict(zip(odd, canonical_objects(list(odd)), strict=True))
    return [quad if quad[2] not in forms else quad._replace(o=forms[quad[2]]) for quad in quads]


def _in_graph(quad: Quad, graph: Term) -> Quad:
    if quad.g is not None:
        raise UnsupportedRequestError(f"the document names the graph {quad.g} itself; name none for it")
    return quad._replace(g=graph)


def _check_name(graph: Term) -> None:
    try:
        if is_iri(graph) and graph.endswith(">"):
            ox.NamedNode(graph[1:-1])
            return
    except ValueError:
        pass
    raise UnsupportedRequestError(
        f"graph {graph!r} is not an IRI in N-Triples syntax; write <http://example.org/graph>"
    )


def _readable(error: SyntaxError, base: str | None) -> str:
    """What the parser says, with the cure where it is known."""
    message = str(error.msg)
    _, place, rest = message.partition(": ")
    if error.lineno is not None and place and message.startswith("Parser error at line"):
        message = rest
    if "No scheme found" in message and base is None:
        return f"{message}; declare a base in the document, or pass base"
    if "LoadDocumentCallback" in message:
        return "a context at another address is not fetched; put the context into the document"
    return message
