"""The errors of the gateway, one tree.

::

    GatewayError                      code                      status  retriable
    ├── RequestError                  the request is at fault
    │   ├── RequestSyntaxError        SPARQL11ProtocolException    400  no   (is a SyntaxError)
    │   ├── MalformedRequestError     SPARQL11ProtocolException    400  no
    │   │   ├── SubscribeMemberError  Exception                    400  no   (of a subscribe or unsubscribe)
    │   │   └── ArgumentTypeError     SPARQL11ProtocolException    400  no   (is a TypeError; of a call)
    │   ├── NotJsonError              JsonParseException           400  no
    │   ├── UnsupportedRequestError   unsupported                  400  no
    │   ├── JsapError                 jsap                         400  no
    │   ├── ForcedBindingError        forced_binding               400  no
    │   ├── UnknownSpuidError         sid_not_found                500  no
    │   ├── UnknownDelayedError       delayed_not_found            404  no
    │   ├── UnknownGraphError         graph_not_found              404  no
    │   ├── UnknownResourceError      not_found                    404  no
    │   ├── RefusedError              as the gateway answered     (in the client)
    │   ├── UnauthorizedError         of protocol 3.6              401  no   (not authenticated)
    │   ├── ForeignRequestError       wrong_host, cors_error       421, 403  no   (from another web site)
    │   ├── LimitExceededError        limit_exceeded               403  no
    │   ├── AccessDeniedError         forbidden                    403  no
    │   ├── InvalidShapesError        shapes                       400  no   (shapes that cannot be followed)
    │   ├── ShapesViolatedError       shacl_violation              422  no   (with a validation report)
    │   └── QueueFullError            too_many_requests            429  yes
    ├── PayloadError                  payload                      400  no   (a device's message)
    ├── StoreError                    sparql11endpoint             500  no
    ├── BrokenEngineError             engine                       500  no   (rebuild it from the change log)
    ├── EngineStateError              engine                       500  no   (closed, busy, or a stale delta)
    ├── ListenerError                 engine                       500  no   (commit)
    ├── ChangeLogError                change_log                   507  yes  (path, sequence, hint)
    │   └── NotKeptError              change_log                   507  yes  (a record that the log does not have)
    ├── UpstreamError                 upstream                     503  yes  (a peer is unreachable)
    │   └── BusyError                 busy                         503  yes  (another process is writing)
    └── ConfigurationError            configuration                500  no   (the message names place and cure)

``code`` and ``status`` are sent over the wire (SEPA protocol 1.4 and 2.6: the members ``error``, ``status_code`` and
``error_description``). Programs must not parse messages.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar


class GatewayError(Exception):
    """The base class of all errors that this project raises.

    alias: over a socket, the client's name for the failed request, by which it matches the error. authorization: over a
    socket, the credentials of the failed request; a gate checks them before it reports any other error.
    """

    code: ClassVar[str] = "gateway"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    alias: str | None = None
    authorization: object = None


class RequestError(GatewayError):
    """The request cannot be executed as it is. It has had no effect."""

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
    """A member or parameter of the request is missing or has the wrong type."""

    code = "SPARQL11ProtocolException"


class SubscribeMemberError(MalformedRequestError):
    """A member of a subscribe or unsubscribe is missing or has the wrong type. The code is that of SEPA's broker."""

    code = "Exception"


class ArgumentTypeError(MalformedRequestError, TypeError):
    """An argument of a call has a wrong type. The message names it. The call has had no effect."""


def check_type(name: str, value: object, *types: type) -> None:
    """Raises ArgumentTypeError for an argument that has none of these types."""
    if not isinstance(value, types):
        raise wrong_type(name, value, *types)


def wrong_type(name: str, value: object, *types: type) -> ArgumentTypeError:
    """The error for an argument that has none of these types."""
    wanted = " or ".join("None" if one is type(None) else one.__name__ for one in types)
    return ArgumentTypeError(f"{name}: {type(value).__name__} instead of {wanted}")


def check_types(*types: type, **values: object) -> None:
    """`check_type` for each of several arguments, by name."""
    for name, value in values.items():
        check_type(name, value, *types)


def check_list(name: str, values: object, *types: type) -> None:
    """Raises ArgumentTypeError for what is no list or tuple of values of these types."""
    if isinstance(values, str):  # a sequence, too
        raise ArgumentTypeError(f"{name}: a single text instead of a list")
    if not isinstance(values, list | tuple):
        raise wrong_type(name, values, list, tuple)
    for number, value in enumerate(values):
        if not isinstance(value, types):
            raise wrong_type(f"{name}[{number}]", value, *types)


def check_function(name: str, value: object) -> None:
    """Raises ArgumentTypeError for what cannot be called."""
    if not callable(value):
        raise ArgumentTypeError(f"{name}: {type(value).__name__} instead of a function")


class NotJsonError(RequestError):
    """A message over a socket is not JSON."""

    code = "JsonParseException"


class UnsupportedRequestError(RequestError):
    """Valid SPARQL that is not supported or not allowed here. The message gives the reason."""

    code = "unsupported"


class JsapError(RequestError):
    """A JSAP document, or a request to it, is invalid. The message names the member.

    args: the faults, one or more texts that each begin with the place of the member.
    """

    code = "jsap"

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ForcedBindingError(RequestError):
    """A forced binding is missing, or has an invalid value."""

    code = "forced_binding"


class UnknownSpuidError(RequestError):
    """No subscription of this client has that spuid."""

    code = "sid_not_found"
    status = 500  # the status of SEPA's broker (protocol 2.5)


class UnknownDelayedError(RequestError):
    """No delayed update with that id is pending."""

    code = "delayed_not_found"
    status = 404


class UnknownGraphError(RequestError):
    """There is no graph of that name."""

    code = "graph_not_found"
    status = 404


class UnknownResourceError(RequestError):
    """The dataset has no triples of that IRI."""

    code = "not_found"
    status = 404


class UnauthorizedError(RequestError):
    """The client is not authenticated, or may not register. Code and status are a row of the protocol's table 3.6.

    The message is the same for unknown and for wrong credentials. scheme: for the header WWW-Authenticate.
    """

    scheme: str = "Bearer"

    def __init__(self, code: str, description: str, status: int = 401) -> None:
        super().__init__(description)
        self.code = code  # type: ignore[misc]  # the table has several codes for this error
        self.status = status  # type: ignore[misc]


class ForeignRequestError(RequestError):
    """A browser sent the request for a page of another site, or to another host name."""

    def __init__(self, code: str, status: int, description: str) -> None:
        super().__init__(description)
        self.code = code  # type: ignore[misc]  # one for the host name, one for the page
        self.status = status  # type: ignore[misc]


class LimitExceededError(RequestError):
    """A query exceeds its time, row or memory limit, or a client its number of subscriptions."""

    code = "limit_exceeded"
    status = 403


class AccessDeniedError(RequestError):
    """The client lacks the permission for a graph. The message does not reveal whether the graph exists."""

    code = "forbidden"
    status = 403


class InvalidShapesError(RequestError):
    """SHACL shapes are not valid, or have a construct that is not supported. The message names shape and construct."""

    code = "shapes"


class ShapesViolatedError(RequestError):
    """An update would violate SHACL shapes that refuse updates.

    report: the sh:ValidationReport as a JSON-LD document; None where the client may not read what it says.
    """

    code = "shacl_violation"
    status = 422

    def __init__(self, message: str, report: Mapping[str, Any] | None) -> None:
        super().__init__(message)
        self.report = report


class QueueFullError(RequestError):
    """The request queue is full. The same request may succeed later.

    retry_after_s: seconds until a retry is worthwhile, for the header Retry-After.
    """

    code = "too_many_requests"
    status = 429
    retriable = True

    retry_after_s: int = 1


class RefusedError(RequestError):
    """A gateway refused a client's request. Code, status and description are those of its answer."""

    def __init__(self, code: str, status: int, description: str) -> None:
        super().__init__(f"{code} ({status}): {description}")
        self.code = code  # type: ignore[misc]  # an instance stands for any error of the tree
        self.status = status  # type: ignore[misc]
        self.retriable = status in (429, 503, 507) or code == QueueFullError.code  # type: ignore[misc]


class PayloadError(GatewayError):
    """A device sent a message that does not fit its mapping."""

    code = "payload"
    status = 400


class StoreError(GatewayError):
    """The store refused a well-formed operation, such as CREATE of an existing graph."""

    code = "sparql11endpoint"


class BrokenEngineError(GatewayError):
    """A step failed, and its changes could not be taken back. The engine's owner must build a new engine.

    Index, store and subscriptions may be inconsistent, so the engine must not be used any more.
    """

    code = "engine"


class EngineStateError(GatewayError):
    """The engine is closed, or in the middle of another call, or the delta does not fit the state of the dataset.

    The call has changed nothing.
    """

    code = "engine"


class ListenerError(GatewayError):
    """Listeners of commits have raised errors, the first of which is the cause. commit: the commit, which stands."""

    code = "engine"

    def __init__(self, message: str, commit: Any) -> None:
        super().__init__(message)
        self.commit = commit


class ChangeLogError(GatewayError):
    """The change log cannot be read or written.

    path: the file; sequence: the last intact record before the damage, if known; hint: the cure.
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


class NotKeptError(ChangeLogError):
    """The log is good, and has no such record."""


class UpstreamError(GatewayError):
    """A peer (gateway, broker, device) is unreachable or closed the connection."""

    code = "upstream"
    status = 503
    retriable = True


class BusyError(UpstreamError):
    """Another process writes what this one would write. The message names it."""

    code = "busy"


class ConfigurationError(GatewayError):
    """The configuration is invalid. The message names file, key and cure."""

    code = "configuration"


def is_fault(error: BaseException) -> bool:
    """Whether an exception is a failure, rather than a request to end a task or the process."""
    # A panic of the native store is a failure, although it is no Exception; its class cannot be imported.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


E = TypeVar("E", bound=BaseException)


def bare(error: E) -> E:
    """The same error without its traceback, cause and context.

    For code that stores an error.
    """
    # A frame of the traceback refers to the error in turn. The cycle would keep everything that the frames refer to,
    # such as the request and its tokens, until the next garbage collection.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
