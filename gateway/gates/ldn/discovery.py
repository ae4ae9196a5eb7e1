"""The inbox of a target (LDN, section 3.1): named by a Link header, or by the RDF of its body."""

from __future__ import annotations

from urllib.parse import urljoin

from lamplighter.engine.client.inboxes import ACCEPT, NoInboxError, inbox_in_body, inbox_in_links
from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import RequestError, UpstreamError
from lamplighter.gateway.gates.deliveries.dispatch import refused


async def inbox_of(http: OutwardHttp, target: str) -> str:
    """The URL of the inbox. Raises NoInboxError."""
    try:
        answer = await http.send("GET", target, {"Accept": ACCEPT})
    except UpstreamError as error:
        raise NoInboxError(f"target: {error}") from error
    linked = inbox_in_links(answer.headers.get("link", ""))
    if linked is not None:
        return urljoin(target, linked)
    reason = refused(answer)
    if reason:
        raise NoInboxError(f"target: {reason}")
    try:
        found = inbox_in_body(answer.body, answer.headers.get("content-type", ""), target)
    except RequestError as error:
        raise NoInboxError(f"target: its body cannot be read: {error}") from error
    if found is None:
        raise NoInboxError("target: it advertises no inbox, neither by a Link header nor in its RDF; give inbox")
    return found
