"""Wire JSON <-> requests and notifications: the WebSocket side of the SE protocol (SEPA protocol, section 2).

Extensions of Lamplighter to SEPA's subscribe and unsubscribe, with the same rules for alias and errors:

- ``{"update": {"sparql", "alias", "request_id", "delay", "at", "missed", "cause"}}`` is answered by
  ``{"updated": {"alias", "sequence", "delayed", "delta"}}``; ``{"updates": [{...}, ...]}`` carries several, each with a
  commit and an answer of its own. Answers to members with ``"together": true`` that are due at the same time come in
  one message: ``{"answers": [{"updated": {...}}, {"error", "status_code", ...}, ...]}``;
- ``{"query": {"sparql", "alias"}}`` is answered by ``{"answer": {"alias", "results"}}``;
- ``{"subscribe": {..., "class": true}}`` gets the member ``class`` in its first notification; if the gateway ends a
  subscription, the error has its ``spuid``;
- ``{"subscribe": {..., "commit": true}}`` gets the member ``"commit": {"epoch", "seq"}`` in its further notifications;
- ``{"subscribe": {..., "resume": {"keep", "spuid", "sequence"}}}`` requests a subscription that outlives its
  connection, or resumes it: ``{"resumed": {"spuid", "alias", "sequence"}}``;
- the member ``priority`` of an update, query or subscribe names its class (`priorities`);
- ``{"messages": {"alias"}}`` offers the last messages of devices, which the gateway then asks for:
  ``{"asked": {"alias", "number", "places": [{"place", "broker"}, ...]}}`` is answered by
  ``{"messages": {"alias", "number", "found": [{"place", "broker", "payload", "received", ...}, ...]}}``.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, TypeVar

import msgspec

from lamplighter.engine.change_log import Missed
from lamplighter.engine.errors import (
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
    NotJsonError,
    QueueFullError,
    RequestSyntaxError,
    ShapesViolatedError,
    SubscribeMemberError,
    UnsupportedRequestError,
)
from lamplighter.engine.slices import LONG, Slices, sliced
from lamplighter.engine.terms import Bag, Binding, Term, iri, term_to_json


class _Member(msgspec.Struct, frozen=True):
    sparql: str
    alias: str | None = None
    authorization: Any = None  # checked by the gate before all other members (protocol 3.4)
    priority: str | None = None  # a `PriorityName`; the gate names the classes where it is another word


class _Asking(_Member, frozen=True):
    default_graph_uri: str | list[str] | None = msgspec.field(name="default-graph-uri", default=None)
    named_graph_uri: str | list[str] | None = msgspec.field(name="named-graph-uri", default=None)


class Resume(msgspec.Struct, frozen=True):
    """``resume``: a request for a resumable subscription.

    keep: ISO 8601 duration for which the subscription is kept while the client is disconnected. spuid, sequence: to
    resume a subscription, its name and the last notification that the client has; both or neither.
    """

    keep: str
    spuid: str | None = None
    sequence: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if (self.spuid is None) != (self.sequence is None):
            raise ValueError("spuid and sequence belong together")


class SubscribeRequest(_Asking, frozen=True):
    """``subscribe``. Unknown members are ignored (protocol 2.2).

    tell_class: ``"class": true`` requests the SPU class in the first notification. tell_commit: ``"commit": true``
    requests the commit in the further ones.
    """

    tell_class: Any = msgspec.field(name="class", default=None)
    tell_commit: Any = msgspec.field(name="commit", default=None)
    resume: Resume | None = None


class QueryRequest(_Asking, frozen=True):
    """``query``: an ad-hoc query over the socket."""


# Kinds of causes that clients must not use.
GATEWAY_KINDS = (
    *("timer", "missed", "clock", "application", "restore", "removed", "inference", "shacl", "local-time"),
    *("http", "ws", "mcp"),
)


class DeclaredCause(msgspec.Struct, frozen=True):
    """The origin of an update as the client declares it: ``{"kind": "mqtt", "id": "street/1/presence"}``.

    kind: any word but those of `GATEWAY_KINDS`. Recovery and delayed updates rely on these, so a client that could
    forge one could cancel a timer or imitate the reaction of an application.
    """

    kind: Annotated[str, msgspec.Meta(pattern=rf"^(?!({'|'.join(GATEWAY_KINDS)})\Z)[a-z][a-z0-9-]{{0,31}}\Z")]
    id: Annotated[str, msgspec.Meta(max_length=1000)]


class UpdateRequest(_Member, frozen=True):
    """``update``, or one of ``updates``.

    request_id: gives repeated requests one effect. delay: ISO 8601 duration; at: xsd:dateTime. missed: what happens to
    a delayed update that becomes due while the gateway is off; None: as the gateway's settings say. cause: the origin
    in the change log; None: the connection. together: ``true`` lets its answer come in one message with others.
    delta: ``true`` has the answer tell the delta. priority: its class, None: ``normal``.
    """

    request_id: str | None = None
    delay: str | None = None
    at: str | None = None
    missed: Missed | None = None
    cause: DeclaredCause | None = None
    together: Any = None
    delta: Any = None


class UnsubscribeRequest(msgspec.Struct, frozen=True):
    """``unsubscribe``."""

    spuid: str
    alias: str | None = None
    authorization: Any = None


class MessagePlace(msgspec.Struct, frozen=True):
    """Where a device sends messages: an MQTT topic, or the coap:// URI of a resource. broker: the name of the MQTT
    broker."""

    place: str
    broker: str = ""


class KeptMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last message of a place.

    payload: its first bytes, in Base64 on the wire; cut: whether it has more. content_format: its number in CoAP.
    count: of a place that no rule reads, how many messages came.
    """

    place: str
    payload: bytes
    received: Annotated[datetime, msgspec.Meta(tz=True)]
    broker: str = ""
    retained: bool = False
    content_format: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    cut: bool = False
    count: Annotated[int, msgspec.Meta(ge=0)] = 0


class MessagesRequest(msgspec.Struct, frozen=True):
    """``messages``: an offer to be asked for messages of devices. number: of the question that it answers; more: places
    that no rule reads, and that are not among those found."""

    alias: str | None = None
    authorization: Any = None
    number: int | None = None
    found: list[KeptMessage] = []
    more: Annotated[int, msgspec.Meta(ge=0)] = 0


class _WireMessage(msgspec.Struct, frozen=True):
    """A message whose members are not decoded yet."""

    subscribe: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unsubscribe: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    update: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    query: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    updates: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Text(msgspec.Struct, frozen=True):
    """The text of a request as JSON that is not decoded yet."""

    sparql: msgspec.Raw


class _UsedMembers(msgspec.Struct, frozen=True):
    """The members that are used even if the request is malformed otherwise."""

    alias: Any = None
    authorization: Any = None


WireRequest = SubscribeRequest | QueryRequest | UpdateRequest | UnsubscribeRequest | MessagesRequest

_KINDS: dict[str, type[WireRequest]] = {
    "subscribe": SubscribeRequest,
    "unsubscribe": UnsubscribeRequest,
    "update": UpdateRequest,
    "query": QueryRequest,
    "messages": MessagesRequest,
}

# The requests of SEPA; the others are extensions.
_SEPA: tuple[type[WireRequest], ...] = (SubscribeRequest, UnsubscribeRequest)
# Codes and statuses for SEPA's requests that differ from those over HTTP (protocol 2.6).
_SEPA_CODES: dict[type[GatewayError], tuple[str, int]] = {
    RequestSyntaxError: ("parsing failed", 400),
    QueueFullError: (QueueFullError.code, 500),
}

# Values of a bag that count as short, whatever their length.
FEW_VALUES = 50
# Characters of terms above which a bag counts as long.
LONG_CHARACTERS = 500_000
# Values that are serialized at a time, in some milliseconds; so many characters of a long term count as one.
PART_VALUES, _CHARACTERS_PER_VALUE = 1_000, 250
_AT_ONCE = Slices()  # it has no state
# Stands for results in a message. JSON has no such character.
_PLACE = b"\0"
# Bytes of a value besides its term, about.
_VALUE_BYTES = 50
# Terms in the cache of JSON texts.
TERM_TEXTS_MAX = 16_384
# Characters of the longest cached term.
TERM_CHARACTERS_MAX = 200

# Members of one message ``updates``.
UPDATES_MAX = 10_000
# Commas in a message ``updates`` above which its members are validated before they are decoded.
COMMAS_MAX = 1_000_000
# Bytes of a request without its text. Decoding them blocks the event loop and takes up to 60 times the memory.
BESIDES_BYTES_MAX = 128 * 1024

_read_message = msgspec.json.Decoder(_WireMessage).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_text = msgspec.json.Decoder(_Text).decode
_read_texts = msgspec.json.Decoder(list[_Text]).decode
_read_any = msgspec.json.Decoder(msgspec.Raw).decode

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # a scheme (RFC 3987, 2.2)

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def requests(text: str | bytes) -> list[WireRequest | GatewayError]:
    """The requests of one message, several for ``updates``. A malformed request is an error in its place.

    text: of a text frame or a binary frame. An error has the alias of its request in the attribute ``alias``, by which
    clients match it.
    """
    # Unknown members are skipped without decoding, so the cost follows from the size of the message.
    try:
        try:
            message = _read_message(text)
            for kind, struct in _KINDS.items():
                member = getattr(message, kind)
                if member is not msgspec.UNSET:
                    return [_request(member, struct, kind)]
            if message.updates is not msgspec.UNSET:
                return _updates(message.updates)
        except msgspec.ValidationError:
            _read_any(text)  # raises the error of a message that is not JSON
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return [NotJsonError(f"the message is not JSON: {error}")]
    return [UnsupportedRequestError(f"the message has none of the members {', '.join([*_KINDS, 'updates'])}")]


def _updates(found: msgspec.Raw) -> list[WireRequest | GatewayError]:
    if len(found) > COMMAS_MAX and bytes(found).count(b",") > COMMAS_MAX:
        try:
            _read_texts(found)  # stops at the first malformed member, of which a short message may have millions
        except msgspec.ValidationError as error:
            return [MalformedRequestError(f"updates: {error}")]
    members = _read_list(found)
    if len(members) > UPDATES_MAX:
        return [LimitExceededError(f"updates: {len(members)} members are more than {UPDATES_MAX}")]
    return [_request(member, UpdateRequest, "updates") for member in members]


def _request(member: msgspec.Raw, struct: type[_Struct], kind: str) -> Any:
    if len(member) > BESIDES_BYTES_MAX and len(member) - _text_bytes(member) > BESIDES_BYTES_MAX:
        return LimitExceededError(
            f"{kind}: there are more than {BESIDES_BYTES_MAX} bytes besides the text in sparql; send less of it"
        )
    try:
        return msgspec.json.decode(member, type=struct)
    except msgspec.ValidationError as error:
        refused = (SubscribeMemberError if struct in _SEPA else MalformedRequestError)(f"{kind}: {error}")
        with suppress(msgspec.ValidationError):  # not an object
            known = msgspec.json.decode(member, type=_UsedMembers)
            refused.alias = known.alias if isinstance(known.alias, str) else None
            refused.authorization = known.authorization
        return refused


def _text_bytes(member: msgspec.Raw) -> int:
    """Bytes of a request's text as JSON, 0 if it has none."""
    try:
        return len(_read_text(member).sparql)
    except msgspec.ValidationError:
        return 0


def graph_names(value: str | Sequence[str] | None) -> tuple[Term, ...] | None:
    """The graphs of a protocol parameter, None without value. Raises MalformedRequestError."""
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
    """The default and named graphs of a request's parameters; both None without parameters.

    If only one is given, the other is empty (SPARQL 1.1 Protocol, 2.1.4; SPARQL 1.1 Query, 13.2). Raises
    MalformedRequestError.
    """
    default_graphs, named_graphs = graph_names(default), graph_names(named)
    if default_graphs is None and named_graphs is None:
        return None, None
    return default_graphs or (), named_graphs or ()


# --- messages ---------------------------------------------------------------------------------------


class Results:
    """The results of a notification. They are serialized once for all subscribers, at first use: long ones in parts,
    between which the caller may let others go on (`writing`).

    commit: epoch and sequence of the record that caused it, the newest one if several notifications were composed.
    size: bytes of the members; of a long text, about so many.
    """

    def __init__(self, added: Bag, removed: Bag, commit: tuple[int, int] | None = None) -> None:
        self.added = added
        self.removed = removed
        self.commit = commit
        self._members: bytes | None = None  # no cached_property, as in `Bag`
        self._long: bool | None = None
        self._size = 0
        self._characters: int | None = None
        self._parts: list[bytes] = []  # of a long text, as far as it is written
        self._left: Iterator[bytes] | None = None

    @classmethod
    def of_members(cls, members: bytes, commit: tuple[int, int] | None = None) -> "Results":
        """What was serialized before, without its rows."""
        found = cls(Bag(()), Bag(()), commit)
        found._members, found._long = members, False
        return found

    @property
    def is_long(self) -> bool:
        """Whether serializing it takes long: it has many values, or very long ones."""
        if self._long is None:
            self._long = _is_long(self.added) or _is_long(self.removed)
        return self._long

    @property
    def members(self) -> bytes:
        if self._members is None:
            if self.is_long:
                self._members = b"".join(self.parts)
            else:
                text = f'"addedResults":{results_text(self.added)},"removedResults":{results_text(self.removed)}'
                self._members = text.encode()
        return self._members

    @property
    def parts(self) -> Sequence[bytes]:
        """The same in parts, which are not copied."""
        if not self.is_long:
            return (self.members,)
        for _ in self.writing():
            pass
        return self._parts

    @property
    def size(self) -> int:
        if not self.is_long:
            return len(self.members)
        if not self._size:  # it stays the same, since it is counted by those who keep it
            bags = self.added, self.removed
            values = sum(len(bag.rows) * len(bag.variables) for bag in bags)
            self._size = self.characters() + values * _VALUE_BYTES
        return self._size

    def characters(self, slices: Slices = _AT_ONCE) -> int:
        """Characters of all terms, counted at the first call, with pauses if there are many rows."""
        if self._characters is None:
            self._characters = characters(self.added, slices) + characters(self.removed, slices)
        return self._characters

    def writing(self) -> Iterator[None]:
        """Writes a long text, a part at a time, in some milliseconds. Several may do so in turns."""
        if self._left is None:
            self._left = self._texts() if self.is_long else iter(())
        while (part := next(self._left, None)) is not None:
            self._parts.append(part)
            yield

    def _texts(self) -> Iterator[bytes]:
        for name, bag in ((b'"addedResults":', self.added), (b',"removedResults":', self.removed)):
            yield name
            yield from map(str.encode, _results_texts(bag))


def notification_message(spuid: str, sequence: int, added: Bag, removed: Bag, alias: str | None = None) -> bytes:
    """A notification (protocol 2.3 and 2.4). alias: that of the subscribe request."""
    return results_message(spuid, sequence, Results(added, removed), alias)


def results_message(
    spuid: str, sequence: int, results: Results, alias: str | None = None, spu_class: str | None = None
) -> bytes:
    """A notification with shared results. spu_class: for the first one, if the client requested it."""
    return members_message(spuid, sequence, results.members, alias, None if spu_class is None else {"class": spu_class})


def committed_message(spuid: str, sequence: int, results: Results, alias: str | None = None) -> bytes:
    """A notification that names its commit."""
    assert results.commit is not None
    return members_message(spuid, sequence, results.members, alias, commit_member(results.commit))


def commit_member(commit: tuple[int, int] | None) -> dict[str, Any]:
    """The member of a notification that names its commit. None: it is not known."""
    return {} if commit is None else {"commit": {"epoch": commit[0], "seq": commit[1]}}


def members_message(
    spuid: str, sequence: int, members: bytes, alias: str | None = None, more: dict[str, Any] | None = None
) -> bytes:
    """A notification with serialized results. more: further members."""
    named = b"" if alias is None else b'"alias":%b,' % _json(alias)
    further = b"," + _json(more)[1:-1] if more else b""
    return b'{"notification":{"spuid":%b,%b"sequence":%d,%b%b}}' % (_json(spuid), named, sequence, members, further)


def around(message: Callable[[Results], bytes], results: Results) -> list[bytes]:
    """The parts of a message that has long results. message: makes one of short results."""
    head, _, tail = message(Results.of_members(_PLACE, results.commit)).partition(_PLACE)
    return [head, *results.parts, tail]


def first_message(
    spuid: str,
    results: Results,
    alias: str | None,
    spu_class: str | None = None,
    keep: str | None = None,
    reset: str | None = None,
) -> bytes:
    """The first notification.

    keep: the duration for which a resumable subscription is kept; reset: why a subscription could not be resumed, so
    that this new one replaces it.
    """
    more: dict[str, Any] = {}
    if spu_class is not None:
        more["class"] = spu_class
    if keep is not None:
        more["resume"] = {"keep": keep}
    if reset is not None:
        more["reset"] = reset
    return members_message(spuid, 0, results.members, alias, more)


def resumed_message(spuid: str, alias: str | None, sequence: int) -> bytes:
    """The answer to a resumed subscription. sequence: the newest; the notifications up to it follow."""
    body: dict[str, Any] = {"spuid": spuid}
    if alias is not None:
        body["alias"] = alias
    body["sequence"] = sequence
    return msgspec.json.encode({"resumed": body})


def _is_long(bag: Bag) -> bool:
    values = len(bag.rows) * len(bag.variables)
    if values <= FEW_VALUES:
        return False
    return values > LONG or characters(bag) > LONG_CHARACTERS


def characters(bag: Bag, slices: Slices = _AT_ONCE) -> int:
    """Characters of the terms of a bag, each as often as it is in a row, with pauses if there are many rows."""
    return sum(map(_characters, sliced(bag.rows, slices)))


def _characters(rows: Sequence[Binding]) -> int:
    try:
        return sum(map(len, chain.from_iterable(rows)))  # type: ignore[arg-type]
    except TypeError:  # a variable is unbound
        return sum(len(term) for row in rows for term in row if term)


def results_text(bag: Bag) -> str:
    """The JSON text of `Bag.to_json`, joined from the cached texts of its terms."""
    head = ",".join(map(_text, bag.variables))
    if not bag.rows:
        return f'{{"head":{{"vars":[{head}]}},"results":{{"bindings":[]}}}}'
    return f'{{"head":{{"vars":[{head}]}},"results":{{"bindings":[{_rows_text(bag.variables, bag.rows)}]}}}}'


def _results_texts(bag: Bag) -> Iterator[str]:
    """The same in parts."""
    yield f'{{"head":{{"vars":[{",".join(map(_text, bag.variables))}]}},"results":{{"bindings":['
    values, some = 0, list[Binding]()
    for count, row in enumerate(bag.rows, 1):
        some.append(row)
        values += len(row) + sum(map(len, filter(None, row))) // _CHARACTERS_PER_VALUE
        if values >= PART_VALUES and count < len(bag.rows):
            yield _rows_text(bag.variables, some) + ","
            values, some = 0, []
    if some:
        yield _rows_text(bag.variables, some)
    yield "]}}"


def _rows_text(variables: Sequence[str], rows: Sequence[Binding]) -> str:
    names = [f"{_text(name)}:" for name in variables]
    row = "{" + ",".join([f"{name}%s" for name in names]) + "}"  # no variable has a % in its name
    try:
        return ",".join([row % tuple(map(_term_text, binding)) for binding in rows])  # type: ignore[arg-type]
    except TypeError:  # a variable is unbound
        return ",".join([_row_text(names, binding) for binding in rows])


def _row_text(names: Sequence[str], binding: Binding) -> str:
    members = [f"{name}{_term_text(term)}" for name, term in zip(names, binding, strict=True) if term is not None]
    return "{" + ",".join(members) + "}"


_json = msgspec.json.Encoder().encode


def _text(value: Any) -> str:
    return _json(value).decode()


# A literal without escapes, which is written alike in N-Triples and in JSON, and its datatype.
_PLAIN_LITERAL = re.compile(r'("[^"\\\x00-\x1f]*")(?:\^\^<([^"\\<>\x00-\x20]*)>)?').fullmatch


def _uncached_term_text(term: Term) -> str:
    if term[0] == "<" and term[1] != "<":
        return f'{{"type":"uri","value":{_text(term[1:-1])}}}'
    if (plain := _PLAIN_LITERAL(term)) is not None:  # a fifth of the time of what follows
        value, datatype = plain.groups()
        if datatype is None:
            return f'{{"type":"literal","value":{value}}}'
        return f'{{"type":"literal","value":{value},"datatype":"{datatype}"}}'
    return _text(term_to_json(term))


class _TermTexts(dict[Term, str]):
    """Cache of term -> JSON text. Raises TypeError for None."""

    def __missing__(self, term: Term) -> str:
        text = _uncached_term_text(term)
        if len(term) <= TERM_CHARACTERS_MAX:
            if len(self) >= TERM_TEXTS_MAX:
                self.clear()
            self[term] = text
        return text


_term_text = _TermTexts().__getitem__


def unsubscribed_message(spuid: str) -> bytes:
    return msgspec.json.encode({"unsubscribed": {"spuid": spuid}})


def updated_message(
    alias: str | None,
    sequence: int | None,
    delayed: str | None,
    delta: Results | None = None,
    *,
    tells_delta: bool = False,
) -> bytes:
    """The answer to an update over the socket.

    sequence: of the commit, None for a client that may not know it; delayed: the id of a delayed update; delta: what
    the update added and removed, None if that is not known, if tells_delta.
    """
    body: dict[str, Any] = {} if alias is None else {"alias": alias}
    if sequence is not None:
        body["sequence"] = sequence
    if delayed is not None:
        body["delayed"] = delayed
    elif tells_delta:
        body["delta"] = delta_member(delta)
    return msgspec.json.encode({"updated": body})


def delta_member(delta: Results | None) -> msgspec.Raw:
    """The member ``delta`` of an answer."""
    return msgspec.Raw(b"null" if delta is None else b"{%b}" % delta.members)


def answers_message(answers: Sequence[bytes]) -> bytes:
    """Several answers to updates in one message. answers: each as a message of its own."""
    return b'{"answers":[%b]}' % b",".join(answers)


def answer_message(alias: str | None, results: Sequence[bytes]) -> list[bytes]:
    """The answer to a query over the socket, in parts. results: the parts of a SPARQL results document as JSON text."""
    named = b"" if alias is None else b'"alias":%b,' % _json(alias)
    return [b'{"answer":{%b"results":' % named, *results, b"}}"]


def asked_message(alias: str | None, number: int, places: Sequence[MessagePlace], *, unread: bool) -> bytes:
    """A question for the last messages of places; or, unread, for those of places that no rule reads. alias: of the
    offer."""
    body: dict[str, Any] = {} if alias is None else {"alias": alias}
    body |= {"number": number, "places": places}
    if unread:
        body["unread"] = True
    return msgspec.json.encode({"asked": body})


def error_members(error: GatewayError) -> dict[str, Any]:
    """The three members of every error, over HTTP and WebSocket (protocol 1.4); with a validation report, if there is
    one."""
    members: dict[str, Any] = {"error": error.code, "status_code": error.status, "error_description": str(error)}
    if isinstance(error, ShapesViolatedError) and error.report is not None:
        members["report"] = error.report
    return members


def refusal_message(error: GatewayError, request: WireRequest | GatewayError) -> bytes:
    """The answer to a failed or malformed request."""
    members = error_members(error)
    if isinstance(request, _SEPA):
        members["error"], members["status_code"] = _SEPA_CODES.get(type(error), (error.code, error.status))
    if request.alias is not None:
        members["alias"] = request.alias
    return msgspec.json.encode(members)


def error_message(error: GatewayError, alias: str | None, spuid: str | None = None) -> bytes:
    """An error; spuid: the subscription that it ends."""
    members = error_members(error)
    if alias is not None:
        members["alias"] = alias
    if spuid is not None:
        members["spuid"] = spuid
    return msgspec.json.encode(members)
