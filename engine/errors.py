"""The errors of the gateway, one tree.

::

    GatewayError                      code                      status  retriable
    ├── RequestError                  the request is at fault
    │   ├── RequestSyntaxError        SPARQL11ProtocolException    400  no   (is a SyntaxError)
    │   ├── MalformedRequestError     SPARQL11ProtocolException    400  no
    │   │   └── SubscribeMemberError  Exception                    400  no   (of a subscribe or unsubscribe)
    │   ├── NotJsonError              JsonParseException           400  no
    │   ├── UnsupportedRequestError   unsupported                  400  no
    │   ├── JsapError                 jsap                         400  no
    │   ├── ForcedBindingError        forced_binding               400  no
    │   ├── UnknownSpuidError         sid_not_found                500  no
    │   ├── UnknownDelayedError       delayed_not_found            404  no
    │   ├── UnknownGraphError         graph_not_found              404  no
    │   ├── RefusedError              as the gateway answered     (seen from the client)
    │   ├── UnauthorizedError         of protocol 3.6              401  no   (who asks is not known)
    │   ├── ForeignRequestError       wrong_host, cors_error       421, 403  no   (of a page of another site)
    │   ├── LimitExceededError        limit_exceeded               403  no
    │   ├── AccessDeniedError         forbidden                    403  no
    │   └── QueueFullError            too_many_requests            429  yes
    ├── PayloadError                  payload                      400  no   (a device's message)
    ├── StoreError                    sparql11endpoint             500  no
    ├── BrokenEngineError             engine                       500  no   (it must be rebuilt from the change log)
    ├── ChangeLogError                change_log                   507  yes  (path, sequence, hint)
    ├── UpstreamError                 upstream                     503  yes  (a peer is away)
    └── ConfigurationError            configuration                500  no   (place and cure)

``code`` and ``status`` are what goes over the wire (SEPA protocol 1.4 and 2.6: the three members
``error``, ``status_code`` and ``error_description``); nobody parses messages.
"""

from pathlib import Path
from typing import ClassVar, TypeVar


class GatewayError(Exception):
    """Root of everything that this project raises on purpose."""

    code: ClassVar[str] = "gateway"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    alias: str | None = None
    """Over a socket, the client's name for the request that failed; there clients tell errors by it."""
    authorization: object = None
    """Over a socket, the credentials of the request that failed, which count before anything that is wrong with it."""


class RequestError(GatewayError):
    """The request cannot be fulfilled as it stands; nothing was changed."""

    status = 400


class RequestSyntaxError(RequestError, SyntaxError):
    """A SPARQL text or an RDF document does not parse.

    ``lineno`` and ``offset`` (both from 1) say where in the text that was sent, or are ``None``
    where the parser gives no place. ``filename`` is the path of a document that was read from a file.
    """

    code = "SPARQL11ProtocolException"

    def __init__(
        self, message: str, lineno: int | None = None, offset: int | None = None, filename: str | None = None
    ) -> None:
        super().__init__(message)
        self.msg = message
        self.lineno = lineno
        self.offset = offset
        self.filename = filename

    def __str__(self) -> str:
        place = [] if self.filename is None else [self.filename]
        if self.lineno is not None:
            place.append(f"line {self.lineno}, column {self.offset}")
        return ": ".join(filter(None, (" ".join(place), str(self.msg))))


class MalformedRequestError(RequestError):
    """A member or parameter of the request is missing or of the wrong kind."""

    code = "SPARQL11ProtocolException"


class SubscribeMemberError(MalformedRequestError):
    """A member of a subscribe or unsubscribe is missing or of the wrong kind; the code is that of SEPA's broker."""

    code = "Exception"


class NotJsonError(RequestError):
    """A message over a socket is not JSON."""

    code = "JsonParseException"


class UnsupportedRequestError(RequestError):
    """Valid SPARQL that could not be kept true or is not allowed here; the message says why."""

    code = "unsupported"


class JsapError(RequestError):
    """A JSAP document, or what is asked of it, is wrong; the message names the member."""

    code = "jsap"


class ForcedBindingError(RequestError):
    """A forced binding is missing, or its value cannot be written where it is wanted."""

    code = "forced_binding"


class UnknownSpuidError(RequestError):
    """No subscription of this client has that spuid."""

    code = "sid_not_found"
    status = 500  # what SEPA answers (protocol 2.5)


class UnknownDelayedError(RequestError):
    """No delayed update with that id is pending."""

    code = "delayed_not_found"
    status = 404


class UnknownGraphError(RequestError):
    """There is no graph of that name."""

    code = "graph_not_found"
    status = 404


class UnauthorizedError(RequestError):
    """It is not known who asks, or that he may register; code and status are a row of the protocol's table 3.6.

    No message says more than the caller may know: unknown and wrong credentials read the same.
    """

    scheme: str = "Bearer"
    """How to say who one is, for the header WWW-Authenticate."""

    def __init__(self, code: str, description: str, status: int = 401) -> None:
        super().__init__(description)
        self.code = code  # type: ignore[misc]  # the table has several for the same kind of trouble
        self.status = status  # type: ignore[misc]


class ForeignRequestError(RequestError):
    """A web page of another site had its visitor's browser send the request, or it was sent to another name."""

    def __init__(self, code: str, status: int, description: str) -> None:
        super().__init__(description)
        self.code = code  # type: ignore[misc]  # the name is wrong, or the page
        self.status = status  # type: ignore[misc]


class LimitExceededError(RequestError):
    """A query went over its time, row or memory limit, or a client over its number of subscriptions."""

    code = "limit_exceeded"
    status = 403


class AccessDeniedError(RequestError):
    """The client may not do this to that graph. It says nothing about whether the graph exists."""

    code = "forbidden"
    status = 403


class QueueFullError(RequestError):
    """The request queue is full; the same request may succeed later."""

    code = "too_many_requests"
    status = 429
    retriable = True

    retry_after_s: int = 1
    """When it is worth another try, for the header Retry-After."""


class RefusedError(RequestError):
    """What a gateway answered, seen from a client: code, status and description are the gateway's."""

    def __init__(self, code: str, status: int, description: str) -> None:
        super().__init__(f"{code} ({status}): {description}")
        self.code = code  # type: ignore[misc]  # this one stands for any of the tree
        self.status = status  # type: ignore[misc]
        self.retriable = status in (429, 503, 507) or code == QueueFullError.code  # type: ignore[misc]


class PayloadError(GatewayError):
    """A device sent something that its mapping does not cover."""

    code = "payload"
    status = 400


class StoreError(GatewayError):
    """The store refused an operation that was well formed (CREATE of an existing graph, say)."""

    code = "sparql11endpoint"


class BrokenEngineError(GatewayError):
    """A step failed, and what it had changed could not be made good; whoever owns the engine builds a new one.

    Index, store and subscriptions may differ from now on, so nothing more is asked of this engine.
    """

    code = "engine"


class ChangeLogError(GatewayError):
    """The change log cannot be read or written.

    path: the file; sequence: the last good record before the trouble, if known; hint: the cure.
    """

    code = "change_log"
    status = 507
    retriable = True

    def __init__(self, message: str, *, path: Path, hint: str, sequence: int | None = None) -> None:
        place = f"{path}" if sequence is None else f"{path} after sequence {sequence}"
        super().__init__(f"{place}: {message}; {hint}")
        self.path = path
        self.sequence = sequence
        self.hint = hint


class UpstreamError(GatewayError):
    """A peer (gateway, broker, device) cannot be reached or gave up."""

    code = "upstream"
    status = 503
    retriable = True


class ConfigurationError(GatewayError):
    """The configuration is wrong; the message names file, key and cure."""

    code = "configuration"


def is_fault(error: BaseException) -> bool:
    """Whether an exception is a failure of the work that raised it, and no wish to end a task or the process.

    A panic of the native store is no Exception, and its class cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """The error without the frames that it came through and the errors that led to it; the same object.

    For who keeps an error for later: the frame that has it in a variable is one of those that it came through, and
    with such a cycle all that these frames hold, the request and its tokens among it, stays until the garbage
    collector comes by, who counts objects and not bytes.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
