"""What targets and inboxes of others say: the inbox of a target, the notifications of an inbox, the RDF of each.

Source: Linked Data Notifications (W3C Recommendation 2017), sections 3.1 and 3.3.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from lamplighter.engine.client.contexts import with_contexts
from lamplighter.engine.client.results import GRAPH_MEDIA_TYPES, Triple
from lamplighter.engine.errors import LimitExceededError, RequestError, RequestSyntaxError, UnsupportedRequestError
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.engine.terms import is_iri
from lamplighter.engine.updating.documents import opened, quads_of

LDP: Final = "http://www.w3.org/ns/ldp#"
INBOX: Final = f"{LDP}inbox"
JSON_LD: Final = "application/ld+json"
# The formats of RDF that are read, as the header.
ACCEPT: Final = f"{JSON_LD}, text/turtle;q=0.9, application/n-triples;q=0.8, application/rdf+xml;q=0.7"
# Of one document, as N-Triples: prefixes make a short document a long one.
TRIPLES_BYTES_MAX: Final = 8 * 1024 * 1024

_INBOX, _CONTAINS = f"<{INBOX}>", f"<{LDP}contains>"
_LINK = re.compile(
    r'<([^<>"\s]*+)>((?:\s*+;\s*+[\w*-]++(?:\s*+=\s*+(?:"[^"]*+"|[^\s",;<>]*+)|(?!))?+|(?!))*+)\s*+(?:,|$)'
)  # possessive, and no value has the beginning of a link in it, so that no header takes long
_PARAMETER = re.compile(r';\s*+([\w*-]++)(?:\s*+=\s*+(?:"([^"]*+)"|([^\s",;<>]*+))|(?!))?+')


class NoInboxError(RequestError):
    """A target advertises no inbox, or cannot be read."""

    code = "no_inbox"
    status = 422


def media_type_of(content_type: str) -> str:
    """The media type of the header, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def inbox_in_links(header: str) -> str | None:
    """The target of the link with the relation ldp:inbox (RFC 8288, section 3), a relative reference or a URL."""
    for found in _LINK.finditer(header):
        parameters = ((name.lower(), quoted or bare) for name, quoted, bare in _PARAMETER.findall(found[2]))
        relations = next((value for name, value in parameters if name == "rel"), "")  # the first counts
        if INBOX in relations.split():
            return found[1]
    return None


def inbox_in_body(body: bytes, content_type: str, target: str) -> str | None:
    """The object of ldp:inbox of the target itself, or, where the target has none, the only one that there is.

    None also for a body that is not RDF. Raises as `triples_of` for one that cannot be read.
    """
    if media_type_of(content_type) not in GRAPH_MEDIA_TYPES:
        return None
    found = _objects(triples_of(body, content_type, target), _INBOX)
    own = found.get(f"<{target}>")
    others = {inbox for inboxes in found.values() for inbox in inboxes}
    return own[0] if own else others.pop() if len(others) == 1 else None


def notifications_in_body(body: bytes, content_type: str, inbox: str) -> list[str]:
    """The URLs that an inbox lists by ldp:contains, each once, in the order of the document (LDN, section 3.3.1).

    If nothing is said of the inbox itself, but of one container, those of that container. Raises as `triples_of`.
    """
    found = _objects(triples_of(body, content_type, inbox), _CONTAINS)
    own = found.get(f"<{inbox}>") or (next(iter(found.values())) if len(found) == 1 else [])
    return list(dict.fromkeys(own))


def triples_of(body: bytes, content_type: str, base: str) -> list[Triple]:
    """The triples of a document in all its graphs, each once, as canonical terms with fresh blank nodes.

    base: the URL that the document came from, for relative IRIs. JSON-LD contexts are those of `contexts`; none is
    fetched. Raises UnsupportedRequestError for another format or context, RequestSyntaxError, and LimitExceededError
    for more than `TRIPLES_BYTES_MAX` and for what is nested too deep.
    """
    media_type = media_type_of(content_type)
    if media_type not in GRAPH_MEDIA_TYPES:
        raise UnsupportedRequestError(f"it is {media_type[:100] or 'of no media type'}; RDF was asked for")
    if media_type == JSON_LD:
        body = _with_contexts(body)
    document = opened(body, media_type, TRIPLES_BYTES_MAX)
    quads = quads_of(document, None, base, TERM_BYTES_MAX, TRIPLES_BYTES_MAX)
    return list(dict.fromkeys((quad.s, quad.p, quad.o) for quad in quads))


def _with_contexts(body: bytes) -> bytes:
    try:
        return msgspec.json.encode(with_contexts(msgspec.json.decode(body)))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestSyntaxError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise LimitExceededError("the JSON is nested too deep") from error


def _objects(triples: list[Triple], predicate: str) -> dict[str, list[str]]:
    """subject -> IRIs of its objects."""
    found: dict[str, list[str]] = {}
    for s, p, o in triples:
        if p == predicate and is_iri(o):
            found.setdefault(s, []).append(o[1:-1])
    return found
