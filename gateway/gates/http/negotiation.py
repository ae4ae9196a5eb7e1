"""Content negotiation (RFC 9110, 12.5.1) and the IRI of a request (7.1)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from starlette.requests import Request

from lamplighter.engine.errors import MalformedRequestError, RequestError
from lamplighter.engine.sparql.requests import QueryOutline
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS, SOLUTION_FORMATS

_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")

RANGES_MAX = 100  # media ranges of one Accept header; further ones are ignored

# Other names of a media type; SEPA's clients ask for application/json (SEPA protocol 1.3).
ALSO: Mapping[str, tuple[str, ...]] = {
    "application/sparql-results+json": ("application/json",),
    "application/sparql-results+xml": ("application/xml", "text/xml"),
    "application/ld+json": ("application/json",),
    "application/rdf+xml": ("application/xml", "text/xml"),
    "application/n-triples": ("text/plain",),
}
# Each names the format of the answer to a query, in place of Accept. SPARQLWrapper sends all three.
FORMAT_PARAMETERS = ("format", "output", "results")
_NAMED: Mapping[str, tuple[str, ...]] = {
    "json": ("application/sparql-results+json", "application/ld+json"),
    "json-ld": ("application/ld+json",),
    "xml": ("application/sparql-results+xml", "application/rdf+xml"),
    "rdf": ("application/rdf+xml",),
    "rdf+xml": ("application/rdf+xml",),
    "turtle": ("text/turtle",),
    "n3": ("text/turtle",),
    "csv": ("text/csv",),
    "tsv": ("text/tab-separated-values",),
}


_ANYTHING = {"*/*": (1.0, 0)}


class NotAcceptableError(RequestError):
    code = "not_acceptable"
    status = 406


@dataclass(frozen=True)
class AnswerFormat:
    """The format of the answer, and the Content-Type that the client asked for."""

    format: str
    media_type: str


def for_query(request: Request, query: QueryOutline, names: Collection[str] = ()) -> AnswerFormat:
    """The format for the answer to a query. names: as in `FORMAT_PARAMETERS`. Raises NotAcceptableError."""
    offered = SOLUTION_FORMATS if query.form in ("SELECT", "ASK") else GRAPH_FORMATS
    if not names:
        return negotiate(request, offered)
    chosen = dict.fromkeys(names)
    if len(chosen) > 1:
        raise MalformedRequestError(f"{', '.join(FORMAT_PARAMETERS)} name different formats; send one of them")
    [name] = chosen
    known = _NAMED.get(name, (name,))
    if not {*known} & {*SOLUTION_FORMATS, *GRAPH_FORMATS}:
        raise MalformedRequestError(f"unknown format {name[:100]!r}; use {', '.join(_NAMED)} or a media type")
    found = next((one for one in known if one in offered), None)
    if found is None:
        raise NotAcceptableError(f"{query.form} has no answer in the format {name}; use one of {', '.join(offered)}")
    return AnswerFormat(found, found)


def negotiate(request: Request, offered: Collection[str]) -> AnswerFormat:
    """The best of the offered types: by quality, then by exactness, then by the order in Accept. offered: in order of
    preference where the client has none. Raises NotAcceptableError."""
    ranges = _ranges(request)
    if ranges == _ANYTHING:
        name = next(iter(offered))
        return AnswerFormat(name, name)
    best, found = (0.0, 0, 0), None
    for name in offered:
        own = _rank(name, ranges)
        rank, called = own, name
        for other in ALSO.get(name, ()):
            if other in ranges and _rank(other, ranges) > rank:
                rank, called = _rank(other, ranges), name if own[0] > 0 else other
        if rank[0] > 0 and rank > best:
            best, found = rank, AnswerFormat(name, called)
    if found is None:
        raise NotAcceptableError(f"no acceptable format is available; accept one of {', '.join(offered)}")
    return found


def names_one_of(request: Request, offered: Collection[str]) -> bool:
    """Whether Accept names one of the media types explicitly, not by a wildcard."""
    return any(name in offered and quality > 0 for name, (quality, _) in _ranges(request).items())


def request_iri(request: Request) -> str:
    """The IRI of a request without its parameters, as its client wrote it. Raises MalformedRequestError."""
    host = request.headers.get("host", "localhost")
    if not _HOST.fullmatch(host):
        raise MalformedRequestError(f"Host is {host!r}; send a name or an address, and a port")
    return f"{request.scope['scheme']}://{host}{request.scope['raw_path'].decode('ascii')}"


def _ranges(request: Request) -> Mapping[str, tuple[float, int]]:
    """Each media range of Accept with its quality and its place, from 0. Everything, where there is no Accept."""
    found: dict[str, tuple[float, int]] = {}
    for value in request.headers.getlist("accept"):
        for item in value.lower().split(",", RANGES_MAX)[:RANGES_MAX]:
            name, *options = (part.strip() for part in item.split(";"))
            quality = next((option[2:] for option in options if option.startswith("q=")), "1")
            try:
                found.setdefault("*/*" if name == "*" else name, (min(float(quality), 1.0), len(found)))
            except ValueError:
                continue
    found.pop("", None)
    return found or _ANYTHING


def _rank(name: str, ranges: Mapping[str, tuple[float, int]]) -> tuple[float, int, int]:
    """Quality, exactness, and minus the place of the most exact range that a media type is in."""
    for exactness, wanted in ((3, name), (2, f"{name.partition('/')[0]}/*"), (1, "*/*")):
        if wanted in ranges:
            quality, place = ranges[wanted]
            return quality, exactness, -place
    return 0.0, 0, 0
