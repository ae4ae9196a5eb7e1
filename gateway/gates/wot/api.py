"""Paths of the Web of Things: the gateway's Thing Description, the directory, and the things themselves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.adapters.devices.desired import desired_update, status_update
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, RequestError, UnknownResourceError
from lamplighter.engine.sparql.requests import QueryOutline
from lamplighter.gateway.gates.event_streams import EventStreams, asked_resume
from lamplighter.gateway.gates.http.answers import JsonAnswer, MethodError, is_known, stream_answer
from lamplighter.gateway.gates.http.calls import BODY, RequestTurns, content_type
from lamplighter.gateway.gates.http.negotiation import AnswerFormat, for_query, request_iri
from lamplighter.gateway.gates.http.parameters import NONE, NUMBER_MAX, Parameters, parameters, path_segments
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import RESULTS_JSON, cause, select
from lamplighter.gateway.gates.outbox import SendBudget
from lamplighter.gateway.gates.standards import decode_json, next_link, page_url
from lamplighter.gateway.gates.wot.description import (
    DISCOVERY,
    JSON,
    SEARCH,
    TD,
    TD_LIST,
    THINGS,
    WELL_KNOWN,
    Description,
    Reach,
    directory_description,
    thing_description,
)
from lamplighter.gateway.gates.wot.observing import ValueSink
from lamplighter.gateway.gates.wot.problems import NoValueError, no_thing, problem
from lamplighter.gateway.gates.wot.registrations import SubmittedThings
from lamplighter.gateway.gates.wot.search import Search
from lamplighter.gateway.gates.wot.submitted import BYTES_MAX
from lamplighter.gateway.gates.wot.things import (
    Row,
    Thing,
    ThingProperty,
    described_node,
    read_things,
    thing_nodes,
    thing_term,
)
from lamplighter.gateway.gates.wot.values import json_value, state_term
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings

PAGE, PAGE_MAX = 100, 1_000  # things of a list, if the client does not say, and at most
SEARCHED_MAX = 2_000  # things of a directory that can be searched
VALUE_BYTES_MAX = 16 * 1024  # of a value that is written
ROWS_BYTES_MAX = 64 * 1024 * 1024  # of what the dataset has about things
# Requests for things that are answered at the same time, and that wait for it: clients read all properties of a thing
# at once, and few processes may evaluate queries.
AT_ONCE_MAX, WAITING_MAX = 2, 100


class _UnsupportedOrderError(RequestError):
    """An order of the list, which a directory need not support (WoT Discovery, 7.3.2.1.5)."""

    code = "unsupported"
    status = 501


_UNSORTED = dict.fromkeys(("sort_by", "sort_order"), "the list is sorted by id")
_LIST = Parameters(("offset", "limit", "format"), unsupported=_UNSORTED, error=_UnsupportedOrderError)
_SEARCH = Parameters(("query",))
_OBSERVE = Parameters(("keep", "last-event-id"))
_NO_STORE = {"Cache-Control": "no-store"}


class _CallersDataset:
    def __init__(self, runner: Runner, caller: Caller) -> None:
        self._runner = runner
        self._caller = caller

    async def rows(self, query: str) -> list[Row]:
        return list(await select(self._runner, self._caller, query, ROWS_BYTES_MAX))


class WebOfThings:
    """The door. send_budget: what waits for all network clients."""

    def __init__(self, runner: Runner, settings: Settings, send_budget: SendBudget) -> None:
        self._runner = runner
        self._settings = settings
        self._registrations = SubmittedThings(runner)
        self._streams = EventStreams(runner, settings, send_budget)
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    def routes(self) -> Iterator[Route]:
        read = frozenset({"GET", "HEAD"})
        changes = frozenset({"PUT", "POST", "DELETE"})
        things, below, search = (self._turns.of(one, BYTES_MAX) for one in (self._things, self._below, self._search))
        yield Route(WELL_KNOWN, self._directory, Permission.NOTHING, read, problem=problem)
        yield Route(THINGS, things, Permission.CALLER, read | {"POST"}, _list_parameters, problem)
        yield Route(f"{THINGS}/", below, Permission.CALLER, read | changes, _thing_parameters, problem)
        yield Route(SEARCH, search, Permission.CALLER, read, _SEARCH, problem)

    def about(self) -> Iterator[tuple[str, str]]:
        yield WELL_KNOWN, "Thing Description of the gateway (W3C Web of Things)"
        yield THINGS, "Thing Descriptions of devices: ?offset, ?limit; /things/<id>, and its properties and actions"
        yield SEARCH, "SPARQL search in them: ?query=<SPARQL>"

    async def run(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._streams.close()

    # --- what all handlers have in common ---

    def _access(self, request: Request) -> Reach:
        parts = urlsplit(request_iri(request))
        return Reach(f"{parts.scheme}://{parts.netloc}/", self._settings.security.enabled)

    async def _thing(self, identifier: str, caller: Caller) -> Thing | None:
        base_iri = self._settings.gateway.base_iri
        nodes = [node for node in (thing_term(identifier), described_node(identifier, base_iri)) if node is not None]
        found = await read_things(_CallersDataset(self._runner, caller), nodes, base_iri)
        return next((thing for thing in found if thing.id == identifier), None)

    # --- the directory ---

    async def _directory(self, request: Request, caller: Caller) -> Response:
        identity = f"{self._settings.gateway.base_iri}gateway"
        return _td_answer(request, directory_description(identity, "Lamplighter", self._access(request)))

    async def _things(self, request: Request, caller: Caller) -> Response:
        """The list (WoT Discovery, 7.3.2.1.5), or a description that is submitted."""
        if request.method == "POST":
            return await self._registrations.create(request, caller)
        asked = parameters(request)
        offset = asked.number("offset", NUMBER_MAX, 0) or 0
        limit = min(asked.number("limit", NUMBER_MAX) or PAGE, PAGE_MAX)
        form = asked.text("format") or "array"
        if form not in ("array", "collection"):
            raise MalformedRequestError("format: write array or collection")
        dataset, access = _CallersDataset(self._runner, caller), self._access(request)
        nodes = await thing_nodes(dataset, self._settings.gateway.base_iri)
        page = nodes[offset : offset + limit]
        found = await read_things(dataset, page, self._settings.gateway.base_iri)
        tag = hashlib.sha256("\n".join(nodes).encode(errors="surrogatepass")).hexdigest()[:32]
        links = [f'<{THINGS}>; rel="canonical"; etag="{tag}"']
        more = [("format", "collection")] if form == "collection" else []
        following = None
        if offset + limit < len(nodes):
            following = page_url(THINGS, more, offset + limit, limit)
            links.insert(0, next_link(following))
        collection: Description | None = None
        if more:
            collection = {
                "@context": DISCOVERY,
                "@type": "ThingCollection",
                "@id": page_url(THINGS, more, offset, limit),
                "total": len(nodes),
                **({} if following is None else {"next": following}),
            }
        body = await asyncio.to_thread(_list_body, found, access, collection)
        return Response(body, 200, {"Link": ", ".join(links), **_NO_STORE}, TD_LIST)

    async def _search(self, request: Request, caller: Caller) -> Response:
        text = parameters(request).text("query")
        if text is None:
            raise MalformedRequestError("write the parameter query, the SPARQL query")
        query = self._runner.queries.outline(text)
        form = for_query(request, query) if "accept" in request.headers else _usual(query)
        dataset, access = _CallersDataset(self._runner, caller), self._access(request)
        nodes = await thing_nodes(dataset, self._settings.gateway.base_iri)
        if len(nodes) > SEARCHED_MAX:
            raise LimitExceededError(
                f"the search covers at most {SEARCHED_MAX} things, and there are {len(nodes)}; ask /query instead"
            )
        found = await read_things(dataset, nodes, self._settings.gateway.base_iri)
        described = await asyncio.to_thread(lambda: [thing_description(one, access) for one in found])
        answer = await self._runner.beside(Search(described, query, form.format, self._runner.settings.query), caller)
        return await stream_answer(request, answer.chunks(), form.media_type, {"Vary": "Accept"})

    # --- a thing ---

    async def _below(self, request: Request, caller: Caller) -> Response:
        identifier, *rest = _segments(request)
        if not rest and request.method == "PUT":
            return await self._registrations.put(request, caller, identifier)
        if not rest and request.method == "DELETE":
            return await self._registrations.delete(request, caller, identifier)
        thing = await self._thing(identifier, caller)
        if thing is None:
            raise no_thing(identifier)
        match rest:
            case []:
                _only(request, "GET")
                return _td_answer(request, thing_description(thing, self._access(request)))
            case ["properties"]:
                _only(request, "GET")
                return await self._all_values(thing, caller)
            case ["properties", name] if name in thing.properties:
                return await self._property(request, caller, thing.properties[name])
            case ["properties", name, "observe"] if name in thing.properties:
                return await self._observe(request, caller, thing.properties[name])
            case ["actions", name] if name in thing.properties and thing.properties[name].actuator is not None:
                _only(request, "POST")
                return await self._set_state(request, caller, thing.properties[name])
        raise UnknownResourceError(f"the thing has nothing at {'/'.join(rest)[:200]!r}; its description lists all")

    async def _property(self, request: Request, caller: Caller, one: ThingProperty) -> Response:
        if request.method == "PUT" and one.actuator is not None:
            return await self._set_state(request, caller, one)
        _only(request, *(("GET", "PUT") if one.actuator is not None else ("GET",)))
        value = await self._value(one, caller)
        if value is None:
            raise NoValueError("the property has no value yet, or none that JSON has")
        return JsonAnswer(value, headers=_NO_STORE)

    async def _all_values(self, thing: Thing, caller: Caller) -> Response:
        found = {name: await self._value(one, caller) for name, one in thing.properties.items()}
        return JsonAnswer({name: one for name, one in found.items() if one is not None}, headers=_NO_STORE)

    async def _value(self, one: ThingProperty, caller: Caller) -> Any:
        newest = f"{one.query} ORDER BY DESC(?time) DESC(?value) LIMIT 1"
        found = await _CallersDataset(self._runner, caller).rows(newest)
        return json_value(found[0][0]) if found and found[0][0] is not None else None

    async def _observe(self, request: Request, caller: Caller, one: ThingProperty) -> Response:
        if request.method != "GET":  # a HEAD would begin a stream that nobody reads
            raise MethodError(request.method, ["GET"])
        asked = parameters(request)
        resume = asked_resume(request, asked.text("keep"), asked.text("last-event-id"))
        caller.access.subscribe.check([None], "subscribe to")  # it would be told nothing, and not why
        return await self._streams.subscribe(request, caller, one.observed_query, ValueSink, resume=resume)

    async def _set_state(self, request: Request, caller: Caller, one: ThingProperty) -> Response:
        """Sets the desired state of an actuator. 204: it is durable; the adapter sends it to the device."""
        assert one.actuator is not None
        media_type = content_type(request)
        if media_type not in (JSON, ""):
            raise MalformedRequestError(f"Content-Type is {media_type}; send {JSON}")
        body: bytes = request.scope[BODY]
        if len(body) > VALUE_BYTES_MAX:
            raise LimitExceededError(f"a value has at most {VALUE_BYTES_MAX} bytes")
        value = decode_json(body, number=None)
        update = status_update if one.status else desired_update
        text = update(one.actuator, state_term(value, one.written), one.condition)
        await self._runner.updates.update(UpdateCall(text, cause(request, caller), caller=caller))
        return Response(status_code=204)


def _only(request: Request, *methods: str) -> None:
    """Raises MethodError for another method."""
    allowed = {*methods, *(["HEAD"] if "GET" in methods else [])}
    if request.method not in allowed:
        raise MethodError(request.method, allowed)


def _list_parameters(request: Request) -> Parameters:
    return NONE if request.method == "POST" else _LIST


def _thing_parameters(request: Request) -> Parameters:
    match _segments(request):
        case [_, "properties", _, "observe"]:
            return _OBSERVE
    return NONE


def _segments(request: Request) -> list[str]:
    """The segments of the path below ``/things``. Raises UnknownResourceError."""
    return path_segments(request, THINGS.removeprefix("/"), "a thing")


def _usual(query: QueryOutline) -> AnswerFormat:
    """The format for clients that name none (WoT Discovery, 7.3.2.3.3)."""
    if query.form in ("SELECT", "ASK"):
        return AnswerFormat(RESULTS_JSON, JSON)
    return AnswerFormat(TD_LIST, TD_LIST)


def _list_body(things: Sequence[Thing], access: Reach, collection: Description | None) -> bytes:
    found = [thing_description(one, access) for one in things]
    return msgspec.json.encode(found if collection is None else {**collection, "members": found})


def _td_answer(request: Request, description: Description) -> Response:
    body = msgspec.json.encode(description)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    return Response(status_code=304, headers=headers) if is_known(request, tag) else Response(body, 200, headers, TD)
