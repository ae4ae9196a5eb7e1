"""`/queries/NAME`: the live results of the queries of application profiles (JSAP), for constrained clients.

The rest of a request's URI gives forced bindings: `/queries/LAMP_STATE?lamp=...`. Observers of one query with the same
bindings share a subscription. Each notification is the whole result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from aiocoap.numbers.codes import Code

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S
from lamplighter.adapters.coap.links import Link
from lamplighter.adapters.coap.results import FORMATS, result_body
from lamplighter.adapters.coap.serving import (
    SiteAnswer,
    SiteCaller,
    SiteEntry,
    SiteMethod,
    SitePath,
    SiteRefusal,
    SiteRequest,
)
from lamplighter.adapters.resources.exchange import BODY_BYTES_MAX
from lamplighter.engine.client import GatewayError, Jsap, Notification
from lamplighter.engine.errors import ForcedBindingError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import Bag

SUBSCRIPTIONS_MAX = 100
# A subscription ends so long after its last observer.
LINGER_S = 60.0
# After so long a request gets 5.03.
ANSWER_S = 15.0
RETRY_AFTER_S = 10
MAX_AGE_S = 60
BINDINGS_MAX = 16
# Of a result; one with more has no body that is short enough.
ROWS_MAX = 16_384
# Queries with results that are too long are remembered so long, and so many of them.
TOO_LONG_S, TOO_LONG_MAX = 60.0, 64
# As how many further requests a query counts that is not followed.
COST = 4
# Reasons in the log why a query is not followed.
WARNINGS_MAX = 100

logger = EventLogger(__name__)


class QueriesClient(Protocol):
    async def query(self, sparql: str) -> Bag: ...

    def subscribe(self, sparql: str) -> AsyncGenerator[Notification, None]: ...


@dataclass(eq=False)
class _FollowedQuery:
    """A subscription. result: None before the first; answers: made of it, by format; failure: it has ended; changed:
    set at the next change of one of them. refused: why there is no answer in a format."""

    observers: int = 0
    result: Bag | None = None
    answers: dict[int | None, SiteAnswer] = field(default_factory=dict)
    refused: dict[int | None, SiteRefusal] = field(default_factory=dict)
    failure: GatewayError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Wakes the observers."""
        self.answers.clear()
        self.refused.clear()
        self.changed.set()
        self.changed = asyncio.Event()

    def answer(self, accept: int | None) -> SiteAnswer:
        """Raises SiteRefusal."""
        if self.failure is not None:
            raise _refusal(self.failure)
        assert self.result is not None
        refused = self.refused.get(accept)
        if refused is not None:
            raise SiteRefusal(refused.code, refused.reason)
        if accept not in self.answers:
            try:
                self.answers[accept] = _answer(self.result, accept)
            except SiteRefusal as refusal:
                self.refused[accept] = refusal
                raise
        return self.answers[accept]


class QueryResources:
    """The queries of profiles, while `run` runs.

    client: reads with the rights of the adapter. allowed: the names of the queries that a device may read, None: all;
    a name is "NAME" or "PROFILE/NAME".
    """

    def __init__(self, client: QueriesClient, allowed: Callable[[SiteCaller], frozenset[str] | None]) -> None:
        self._client = client
        self._allowed = allowed
        self._profiles: Mapping[str, Jsap] = {}
        self._followed: dict[str, _FollowedQuery] = {}
        self._too_long: OrderedDict[str, float] = OrderedDict()  # until when
        self._warned: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None

    def change_profiles(self, profiles: Mapping[str, Jsap]) -> None:
        """profiles: by name. Observers of former queries keep their subscriptions."""
        self._profiles = dict(profiles)

    async def run(self) -> None:
        """Follows what is observed, until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None
                self._followed.clear()

    @property
    def subscriptions(self) -> int:
        return len(self._followed)

    # --- the resource ---

    def entry(self, path: SitePath) -> SiteEntry | None:
        found = self._query_of(path)
        if found is None:
            return None
        names = frozenset((found[1], "/".join(found)))

        def permits(caller: SiteCaller) -> bool:
            allowed = self._allowed(caller)
            return allowed is None or bool(allowed & names)

        method = SiteMethod(self._handle, gives=FORMATS, observe=self._observe, cost=self._cost)
        return SiteEntry({"GET": method}, permits)

    def links(self, caller: SiteCaller) -> Iterable[Link]:
        allowed = self._allowed(caller) if caller.permitted else frozenset()
        formats = " ".join(map(str, FORMATS))
        for profile, jsap in self._profiles.items():
            for name in jsap.queries:
                if allowed is None or {name, f"{profile}/{name}"} & allowed:
                    path = ("queries", name) if self._query_of(("queries", name)) else ("queries", profile, name)
                    yield Link(quote("/" + "/".join(path)), (("ct", formats), ("obs", None)))

    def _query_of(self, path: SitePath) -> tuple[str, str] | None:
        """Profile and name of the query of a path; None if there is none, or if the profile has to be named."""
        if path[0] != "queries" or not 2 <= len(path) <= 3:
            return None
        profiles = [path[1]] if len(path) == 3 else list(self._profiles)
        found = [one for one in profiles if one in self._profiles and path[-1] in self._profiles[one].queries]
        return (found[0], path[-1]) if len(found) == 1 else None

    def _cost(self, request: SiteRequest) -> int:
        # A result that is followed already costs nothing.
        return 0 if self._ready(self._bound_text(request)) is not None else COST

    def _ready(self, bound: str) -> _FollowedQuery | None:
        """The subscription that has the result of a query."""
        found = self._followed.get(bound)
        return None if found is None or found.result is None or found.failure is not None else found

    async def _handle(self, request: SiteRequest) -> SiteAnswer:
        bound, now = self._bound_text(request), asyncio.get_running_loop().time()
        followed = self._ready(bound)
        if followed is not None:
            return followed.answer(request.accept)
        # Remembered, so that a device that asks again and again does not have it evaluated each time.
        if now < self._too_long.get(bound, 0.0):
            raise _too_long()
        try:
            async with asyncio.timeout(ANSWER_S):
                result = await self._client.query(bound)
        except TimeoutError as error:
            raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_AFTER_S) from error
        except GatewayError as error:
            raise _refusal(error) from error
        try:
            return _answer(result, request.accept)
        except SiteRefusal as refusal:
            if refusal.code is Code.INTERNAL_SERVER_ERROR:
                self._too_long[bound] = now + TOO_LONG_S
                self._too_long.move_to_end(bound)
                if len(self._too_long) > TOO_LONG_MAX:
                    self._too_long.popitem(last=False)
            raise

    async def _observe(self, request: SiteRequest) -> AsyncGenerator[SiteAnswer, None]:
        """The results that differ, the first one at once. Without a free subscription it ends at once."""
        bound = self._bound_text(request)
        followed = self._follow(bound)
        if followed is None:
            return
        followed.observers += 1
        try:
            try:
                async with asyncio.timeout(ANSWER_S):  # no state is yielded inside: the next may be another task's
                    while followed.result is None and followed.failure is None:
                        await followed.changed.wait()
            except TimeoutError as error:
                raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_AFTER_S) from error
            told: SiteAnswer | None = None
            while True:
                changed, answer = followed.changed, followed.answer(request.accept)
                # A change of the rows may leave the representation the same.
                if answer != told:
                    told = answer
                    yield answer
                if changed is followed.changed:
                    await changed.wait()
        finally:
            followed.observers -= 1
            # A device that renews its observation finds the result still there.
            if not followed.observers:
                asyncio.get_running_loop().call_later(LINGER_S, self._end_if_unused, bound, followed)

    def _bound_text(self, request: SiteRequest) -> str:
        """The text of a query with its forced bindings and the graphs of its profile. Raises SiteRefusal."""
        found = self._query_of(request.path)
        if found is None:
            raise SiteRefusal(Code.NOT_FOUND)
        jsap = self._profiles[found[0]]
        values: dict[str, str] = {}
        for one in request.query:
            name, equals, value = one.partition("=")
            if not equals or name in values or len(values) >= BINDINGS_MAX:
                raise SiteRefusal(Code.BAD_REQUEST, "write name=value, each name once")
            values[name] = value
        try:
            return jsap.whole_query_text(found[1], {}, values)
        except ForcedBindingError as error:
            raise SiteRefusal(Code.BAD_REQUEST, str(error)) from error

    # --- subscriptions ---

    def _follow(self, bound: str) -> _FollowedQuery | None:
        """The subscription of a query; None if there are too many."""
        found = self._followed.get(bound)
        if found is not None and found.failure is None:
            return found
        if found is None and len(self._followed) >= SUBSCRIPTIONS_MAX:
            unused = next((item for item in self._followed.items() if not item[1].observers), None)
            if unused is not None:  # it lingers; nobody can hold places without observing
                self._end_if_unused(*unused)
        if self._tasks is None or (found is None and len(self._followed) >= SUBSCRIPTIONS_MAX):
            return None
        followed = self._followed[bound] = _FollowedQuery()
        followed.task = self._tasks.create_task(self._subscribe(bound, followed), name="coap query")
        return followed

    def _end_if_unused(self, bound: str, followed: _FollowedQuery) -> None:
        if not followed.observers and self._followed.get(bound) is followed:
            del self._followed[bound]
            if followed.task is not None:
                followed.task.cancel()

    async def _subscribe(self, bound: str, followed: _FollowedQuery) -> None:
        failures = 0
        while True:
            try:
                async with aclosing(self._client.subscribe(bound)) as notifications:
                    async for one in notifications:
                        # Sequence 0 comes again when the client has subscribed anew.
                        if one.sequence == 0 or followed.result is None:
                            followed.result = one.added
                        else:
                            followed.result = followed.result - one.removed + one.added
                        followed.tell()
            except GatewayError as error:
                if not error.retriable or isinstance(error, UpstreamError):
                    if str(error) not in self._warned and len(self._warned) < WARNINGS_MAX:
                        self._warned.add(str(error))
                        logger.warning("coap query not followed", reason=error)
                    followed.failure = error
                    followed.tell()
                    return
            failures += 1
            await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))


def _answer(result: Bag, accept: int | None) -> SiteAnswer:
    """Raises SiteRefusal."""
    content_format = FORMATS[0] if accept is None else accept
    if len(result) > ROWS_MAX:
        raise _too_long()
    try:
        body = result_body(result, content_format)
    except PayloadError as error:
        raise SiteRefusal(Code.NOT_ACCEPTABLE, str(error)) from error
    if len(body) > BODY_BYTES_MAX:
        raise _too_long()
    return SiteAnswer(Code.CONTENT, body, content_format, max_age=MAX_AGE_S)


def _too_long() -> SiteRefusal:
    return SiteRefusal(Code.INTERNAL_SERVER_ERROR, "the result is too long")


def _refusal(error: GatewayError) -> SiteRefusal:
    if error.retriable:
        return SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_AFTER_S)
    return SiteRefusal(Code.INTERNAL_SERVER_ERROR, str(error))
