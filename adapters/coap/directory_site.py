"""The resource directory on the CoAP server (RFC 9176): registration, lookup, and their links."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap import links
from lamplighter.adapters.coap.directory import LINKS_BYTES_MAX, RegistrationError
from lamplighter.adapters.coap.links import LINK_FORMAT, Link
from lamplighter.adapters.coap.registrations import Registrations, UnavailableError
from lamplighter.adapters.coap.serving import (
    SiteAnswer,
    SiteCaller,
    SiteEntry,
    SiteMethod,
    SitePath,
    SiteRefusal,
    SiteRequest,
)

# How long a caller is asked to wait while the directory takes no requests, or is full.
RETRY_S = 10
# Of the answer to a lookup.
LOOKUP_BYTES_MAX = 512 * 1024
# As how many further requests a registration counts, and an update or a removal: each is stored before its answer.
COST, UPDATE_COST = 4, 2
# A lookup counts as one further request for each so many links of the directory.
LINKS_OF_REQUEST = 500
DIRECTORY: SitePath = ("rd",)
SIMPLE: SitePath = (".well-known", "rd")
ENDPOINTS: SitePath = ("rd-lookup", "ep")
RESOURCES: SitePath = ("rd-lookup", "res")

_LINKS = (
    Link("/rd", (("rt", "core.rd"), ("ct", str(LINK_FORMAT)))),
    Link("/rd-lookup/ep", (("rt", "core.rd-lookup-ep"), ("ct", str(LINK_FORMAT)))),
    Link("/rd-lookup/res", (("rt", "core.rd-lookup-res"), ("ct", str(LINK_FORMAT)))),
)
_CODES = {
    "malformed": Code.BAD_REQUEST,
    "foreign": Code.FORBIDDEN,
    "unknown": Code.NOT_FOUND,
    "full": Code.SERVICE_UNAVAILABLE,
}


class DirectorySite:
    """The paths of the directory, for `Site`."""

    def __init__(self, registrations: Registrations) -> None:
        self._registrations = registrations
        self._one = _entry(
            POST=SiteMethod(_refusing(self._update), cost=lambda request: UPDATE_COST),
            DELETE=SiteMethod(_refusing(self._remove), cost=lambda request: UPDATE_COST),
            GET=SiteMethod(_refusing(self._links_of), gives=(LINK_FORMAT,)),
        )
        register = SiteMethod(
            _refusing(self._register), takes=lambda format_: format_ == LINK_FORMAT, cost=lambda request: COST
        )
        simple = SiteMethod(_refusing(self._register_simply), verified=True, cost=lambda request: COST)
        self._entries = {
            DIRECTORY: _entry(POST=register),
            SIMPLE: _entry(POST=simple),
            ENDPOINTS: _entry(GET=self._lookup(self._endpoints)),
            RESOURCES: _entry(GET=self._lookup(self._resources)),
        }

    def entry(self, path: SitePath) -> SiteEntry | None:
        if len(path) == 2 and path[:1] == DIRECTORY:
            return self._one
        return self._entries.get(path)

    def _lookup(self, handle: Callable[[SiteRequest], Awaitable[SiteAnswer]]) -> SiteMethod:
        return SiteMethod(_refusing(handle), gives=(LINK_FORMAT,), cost=self._cost)

    def _cost(self, request: SiteRequest) -> int:
        return self._registrations.directory.links // LINKS_OF_REQUEST

    def links(self, caller: SiteCaller) -> Iterable[Link]:
        return _LINKS if caller.permitted else ()

    async def _register(self, request: SiteRequest) -> SiteAnswer:
        made = await self._registrations.register(request.query, request.body, request.caller)
        return SiteAnswer(Code.CREATED, location=(*DIRECTORY, made.id))

    async def _register_simply(self, request: SiteRequest) -> SiteAnswer:
        if request.body:
            raise SiteRefusal(Code.BAD_REQUEST, "a simple registration has no body; its links are fetched")
        self._registrations.register_simply(request.query, request.caller)
        return SiteAnswer(Code.CHANGED)

    async def _update(self, request: SiteRequest) -> SiteAnswer:
        if request.body:
            raise SiteRefusal(Code.BAD_REQUEST, "an update has no body; register again with new links")
        await self._registrations.update(request.path[1], request.query, request.caller)
        return SiteAnswer(Code.CHANGED)

    async def _remove(self, request: SiteRequest) -> SiteAnswer:
        await self._registrations.remove(request.path[1], request.caller)
        return SiteAnswer(Code.DELETED)

    async def _links_of(self, request: SiteRequest) -> SiteAnswer:
        return _content(self._registrations.get(request.path[1]).links)

    async def _endpoints(self, request: SiteRequest) -> SiteAnswer:
        return _content(self._registrations.endpoints(request.query, request.caller))

    async def _resources(self, request: SiteRequest) -> SiteAnswer:
        return _content(self._registrations.resources(request.query, request.caller))


def _entry(**methods: SiteMethod) -> SiteEntry:
    return SiteEntry(methods, body_bytes_max=LINKS_BYTES_MAX)


def _content(found: Sequence[Link]) -> SiteAnswer:
    """Raises SiteRefusal."""
    body = links.links_text(found).encode()
    if len(body) > LOOKUP_BYTES_MAX:
        raise SiteRefusal(Code.BAD_REQUEST, "the answer is too long; use page and count")
    return SiteAnswer(Code.CONTENT, body, LINK_FORMAT)


def _refusing(
    handle: Callable[[SiteRequest], Awaitable[SiteAnswer]],
) -> Callable[[SiteRequest], Awaitable[SiteAnswer]]:
    """A handler whose errors are answers."""

    async def handle_or_refuse(request: SiteRequest) -> SiteAnswer:
        try:
            return await handle(request)
        except RegistrationError as error:
            code = _CODES[error.reason]
            raise SiteRefusal(code, str(error), max_age=RETRY_S if error.reason == "full" else None) from error
        except UnavailableError as error:
            raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_S) from error

    return handle_or_refuse
