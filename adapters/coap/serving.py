"""What the resources of the CoAP server are: `Site` checks each request, and gives it to the entry of its path.

A resource is a class with `entry` and `links`. The entry says what requests the path takes; its handler gets only those
that passed the checks of the site (path, permission, method, Accept, content format, size, Echo), with a whole body.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from aiocoap import Message
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.admission import Origin
from lamplighter.adapters.coap.links import Link
from lamplighter.adapters.resources.exchange import BODY_BYTES_MAX

# The segments of a path; none is empty or has a slash.
SitePath = tuple[str, ...]


class SiteCaller(NamedTuple):
    """Who sends a request.

    origin: address and port; zone: the interface of a link-local address, else "". device: the name of its table
    ``[coap.devices.NAME]`` or of its key, else "". protected: by OSCORE, so that device is proven. permitted: whether
    it may use the server; others see what is public. verified: whether it has shown that it receives our answers.
    """

    origin: Origin
    zone: str = ""
    device: str = ""
    protected: bool = False
    permitted: bool = True
    verified: bool = False


class SiteRequest(NamedTuple):
    """A request that passed the checks.

    method: "GET", "POST", "PUT" or "DELETE"; query: its Uri-Query options; id: names the request. A request that is
    sent again has the same id, across a restart too, for about ten minutes.
    """

    method: str
    path: SitePath
    caller: SiteCaller
    query: tuple[str, ...] = ()
    body: bytes = b""
    content_format: int | None = None
    accept: int | None = None
    id: str = ""


class SiteAnswer(NamedTuple):
    """A success. The site adds ETag and blocks. location: Location-Path of what was made. max_age: None: the default
    of CoAP, 60 s."""

    code: Code
    body: bytes = b""
    content_format: int | None = None
    location: SitePath = ()
    max_age: int | None = None


class SiteRefusal(Exception):
    """An answer with an error. reason: at most 60 bytes of it are sent. size: the most bytes of a body (4.13). message:
    what is sent instead."""

    def __init__(
        self,
        code: Code,
        reason: str = "",
        *,
        max_age: int | None = None,
        size: int | None = None,
        message: Message | None = None,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.max_age = max_age
        self.size = size
        self.message = message


Handler = Callable[[SiteRequest], Awaitable[SiteAnswer]]
Observer = Callable[[SiteRequest], AsyncGenerator[SiteAnswer, None]]


def no_cost(request: SiteRequest) -> int:
    return 0


def no_format(content_format: int | None) -> bool:
    """For methods without a body."""
    return content_format is None


class SiteMethod(NamedTuple):
    """What one method does.

    handle: answers, or raises SiteRefusal. takes: whether a body may have a content format, None if it names none.
    gives: content formats of answers, the default first; empty: Accept does not matter. observe: the states of the
    resource, the first at once; None: Observe is not offered. verified: whether only sources that have shown that they
    receive our answers may do it. cost: as how many further requests one counts; it may raise SiteRefusal.
    """

    handle: Handler
    takes: Callable[[int | None], bool] = no_format
    gives: tuple[int, ...] = ()
    observe: Observer | None = None
    verified: bool = False
    cost: Callable[[SiteRequest], int] = no_cost


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """A path. methods: by name. permits: whether a caller that may use the server may use this path; public:
    whether every caller may. body_bytes_max: of a request."""

    methods: Mapping[str, SiteMethod]
    permits: Callable[[SiteCaller], bool] = field(default=lambda caller: True)
    public: bool = False
    body_bytes_max: int = BODY_BYTES_MAX


class SiteResource(Protocol):
    """A part of the site."""

    def entry(self, path: SitePath) -> SiteEntry | None:
        """The entry of a path; None if the path is not of this part."""
        ...

    def links(self, caller: SiteCaller) -> Iterable[Link]:
        """What `/.well-known/core` lists for a caller: only what it may use."""
        ...
