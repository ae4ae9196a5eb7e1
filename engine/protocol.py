"""Wire JSON <-> requests and notifications: the WebSocket side of the SE protocol (SEPA protocol, section 2).

Ours besides SEPA's subscribe and unsubscribe, with the same rules for alias and errors:

- ``{"update": {"sparql", "alias", "request_id", "delay", "at", "cause"}}`` is answered by
  ``{"updated": {"alias", "sequence", "delayed"}}``; ``{"updates": [{...}, ...]}`` carries several, each a
  commit with an answer of its own;
- ``{"query": {"sparql", "alias"}}`` is answered by ``{"answer": {"alias", "results"}}``.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from engine.errors import GatewayError, MalformedRequestError
from engine.terms import Bag, Term, iri


class _Member(msgspec.Struct, frozen=True):
    sparql: str
    alias: str | None = None


class SubscribeRequest(_Member, frozen=True):
    """``subscribe``: members that are not named here are ignored (protocol 2.2)."""

    default_graph_uri: str | list[str] | None = msgspec.field(name="default-graph-uri", default=None)
    named_graph_uri: str | list[str] | None = msgspec.field(name="named-graph-uri", default=None)


class QueryRequest(SubscribeRequest, frozen=True):
    """``query``: an ad-hoc query over the socket."""


class DeclaredCause(msgspec.Struct, frozen=True):
    """What a client says an update came from, for the change log: ``{"kind": "mqtt", "id": "street/1/presence"}``.

    kind: a word of the client's, but none of those that the gateway itself writes.
    """

    kind: Annotated[str, msgspec.Meta(pattern="^(?!(timer|application|http|ws)$)[a-z][a-z0-9-]{0,31}$")]
    id: Annotated[str, msgspec.Meta(max_length=1000)]


class UpdateRequest(_Member, frozen=True):
    """``update``, or one of ``updates``.

    request_id: what makes a retry have one effect; delay: ISO 8601 duration; at: xsd:dateTime; cause: what the
    record is to say it came from, instead of the connection.
    """

    request_id: str | None = None
    delay: str | None = None
    at: str | None = None
    cause: DeclaredCause | None = None


class UnsubscribeRequest(msgspec.Struct, frozen=True):
    """``unsubscribe``."""

    spuid: str
    alias: str | None = None


WireRequest = SubscribeRequest | QueryRequest | UpdateRequest | UnsubscribeRequest

_KINDS: dict[str, type[WireRequest]] = {
    "subscribe": SubscribeRequest,
    "unsubscribe": UnsubscribeRequest,
    "update": UpdateRequest,
    "query": QueryRequest,
}

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # begins with a scheme (RFC 3987, 2.2)

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def requests(text: str | bytes) -> list[WireRequest | GatewayError]:
    """The requests in one message: one, or several for ``updates``. A member that is wrong is an error in its place.

    Errors carry the alias of their member in the attribute ``alias``, since that is how clients find them.
    """
    try:
        message = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [_error(f"the message is not JSON: {error}", None)]
    if isinstance(message, dict):
        for kind, struct in _KINDS.items():
            if kind in message:
                return [_request(message[kind], struct, kind)]
        if isinstance(message.get("updates"), list):
            return [_request(member, UpdateRequest, "updates") for member in message["updates"]]
    return [_error(f"the message has none of the members {', '.join([*_KINDS, 'updates'])}", None)]


def _request(member: Any, struct: type[_Struct], kind: str) -> Any:
    alias = member.get("alias") if isinstance(member, dict) else None
    try:
        return msgspec.convert(member, struct)
    except msgspec.ValidationError as error:
        return _error(f"{kind}: {error}", alias if isinstance(alias, str) else None)


def _error(message: str, alias: str | None) -> MalformedRequestError:
    error = MalformedRequestError(message)
    error.alias = alias
    return error


def graph_names(value: str | Sequence[str] | None) -> tuple[Term, ...] | None:
    """The graphs that a protocol parameter names, one or several. Raises MalformedRequestError."""
    if not value:
        return None
    try:
        names = [value] if isinstance(value, str) else value
        for name in names:
            if not _ABSOLUTE.match(name):
                raise ValueError(f"{name!r} is not an absolute IRI")
        return tuple(iri(name) for name in names)
    except ValueError as error:
        raise MalformedRequestError(f"graph parameter: {error}") from error


def dataset(
    default: str | Sequence[str] | None, named: str | Sequence[str] | None
) -> tuple[tuple[Term, ...] | None, tuple[Term, ...] | None]:
    """The default and the named graphs that a request's parameters name, None and None when they name none.

    Where only one of the two is given the other is empty (SPARQL 1.1 Protocol, 2.1.4; SPARQL 1.1, 13.2).
    Raises MalformedRequestError.
    """
    default_graphs, named_graphs = graph_names(default), graph_names(named)
    if default_graphs is None and named_graphs is None:
        return None, None
    return default_graphs or (), named_graphs or ()


# --- messages ---------------------------------------------------------------------------------------


def notification_message(spuid: str, sequence: int, added: Bag, removed: Bag, alias: str | None = None) -> bytes:
    """A notification (protocol 2.3 and 2.4); the alias goes with the first one, sequence 0."""
    body: dict[str, Any] = {"spuid": spuid}
    if alias is not None:
        body["alias"] = alias
    body |= {"sequence": sequence, "addedResults": added.to_json(), "removedResults": removed.to_json()}
    return msgspec.json.encode({"notification": body})


def unsubscribed_message(spuid: str) -> bytes:
    return msgspec.json.encode({"unsubscribed": {"spuid": spuid}})


def updated_message(alias: str | None, sequence: int, delayed: str | None) -> bytes:
    """The answer to an update over the socket: the commit's sequence, and the id of a delayed update."""
    body: dict[str, Any] = {} if alias is None else {"alias": alias}
    body["sequence"] = sequence
    if delayed is not None:
        body["delayed"] = delayed
    return msgspec.json.encode({"updated": body})


def answer_message(alias: str | None, results: bytes) -> bytes:
    """The answer to a query over the socket; results: a SPARQL results document as JSON text."""
    body: dict[str, Any] = {} if alias is None else {"alias": alias}
    return msgspec.json.encode({"answer": body | {"results": msgspec.Raw(results)}})


def error_members(error: GatewayError) -> dict[str, Any]:
    """The three members of every error, over HTTP and WebSocket (protocol 1.4)."""
    return {"error": error.code, "status_code": error.status, "error_description": str(error)}


def error_message(error: GatewayError, alias: str | None) -> bytes:
    members = error_members(error)
    if alias is not None:
        members["alias"] = alias
    return msgspec.json.encode(members)
