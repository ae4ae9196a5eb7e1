"""The inbox of a target (LDN, section 3.1): named by a Link header, or by the RDF of its body."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import msgspec
import pyoxigraph as ox

from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import GatewayError, RequestError, UpstreamError
from lamplighter.engine.updating.documents import check_depth
from lamplighter.gateway.gates.deliveries.dispatch import refused
from lamplighter.gateway.gates.ldn.contexts import with_contexts
from lamplighter.gateway.gates.ldn.inbox import LDP
from lamplighter.gateway.gates.ldn.notifications import JSON_LD

INBOX = f"{LDP}inbox"
_ACCEPT = f"{JSON_LD}, text/turtle;q=0.9, application/n-triples;q=0.8, application/rdf+xml;q=0.7"
_LINK = re.compile(
    r'<([^<>"\s]*+)>((?:\s*+;\s*+[\w*-]++(?:\s*+=\s*+(?:"[^"]*+"|[^\s",;<>]*+))?+)*+)\s*+(?:,|$)'
)  # possessive, and no value has the beginning of a link in it, so that no header takes long
_PARAMETER = re.compile(r';\s*+([\w*-]++)(?:\s*+=\s*+(?:"([^"]*+)"|([^\s",;<>]*+)))?+')


class NoInboxError(RequestError):
    """A target advertises no inbox, or cannot be read."""

    code = "no_inbox"
    status = 422


async def inbox_of(http: OutwardHttp, target: str) -> str:
    """The URL of the inbox. Raises NoInboxError."""
    try:
        answer = await http.send("GET", target, {"Accept": _ACCEPT})
    except UpstreamError as error:
        raise NoInboxError(f"target: {error}") from error
    linked = inbox_in_links(answer.headers.get("link", ""))
    if linked is not None:
        return urljoin(target, linked)
    reason = refused(answer)
    if reason:
        raise NoInboxError(f"target: {reason}")
    found = inbox_in_body(answer.body, answer.headers.get("content-type", ""), target)
    if found is None:
        raise NoInboxError("target: it advertises no inbox, neither by a Link header nor in its RDF; give inbox")
    return found


def inbox_in_links(header: str) -> str | None:
    """The target of the link with the relation ldp:inbox (RFC 8288, section 3)."""
    for found in _LINK.finditer(header):
        parameters = ((name.lower(), quoted or bare) for name, quoted, bare in _PARAMETER.findall(found[2]))
        relations = next((value for name, value in parameters if name == "rel"), "")  # the first counts
        if INBOX in relations.split():
            return found[1]
    return None


def inbox_in_body(body: bytes, content_type: str, target: str) -> str | None:
    """The object of ldp:inbox of the target itself, or, where the target has none, the only one that there is.

    Raises NoInboxError for a body that cannot be read.
    """
    syntax = ox.RdfFormat.from_media_type(content_type.partition(";")[0].strip().lower())
    if syntax is None:
        return None
    try:
        if syntax == ox.RdfFormat.JSON_LD:
            body = msgspec.json.encode(with_contexts(msgspec.json.decode(body)))
        check_depth(body, syntax)
        quads = list(ox.parse(body, format=syntax, base_iri=target))
    except (GatewayError, SyntaxError, ValueError, RecursionError) as error:  # DecodeError is a ValueError
        raise NoInboxError(f"target: its body cannot be read: {error}") from error
    found = [
        (quad.subject, quad.object.value)
        for quad in quads
        if quad.predicate.value == INBOX and isinstance(quad.object, ox.NamedNode)
    ]
    own = [inbox for subject, inbox in found if isinstance(subject, ox.NamedNode) and subject.value == target]
    others = {inbox for _, inbox in found}
    return own[0] if own else others.pop() if len(others) == 1 else None
