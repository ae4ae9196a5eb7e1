"""The paths of NGSI-LD over HTTP (clause 6): entities, their attributes, and types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import (
    AccessDeniedError,
    GatewayError,
    MalformedRequestError,
    RequestError,
    UnknownResourceError,
)
from lamplighter.engine.terms import Term, iri, lexical
from lamplighter.gateway.gates.http.answers import MethodError
from lamplighter.gateway.gates.http.calls import RequestTurns
from lamplighter.gateway.gates.http.parameters import Parameters, parameters, path_segments
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.ngsild.contexts import ContextNames, KnownContexts, is_absolute
from lamplighter.gateway.gates.ngsild.graphs import RDF_TYPE, EntityGraphs
from lamplighter.gateway.gates.ngsild.information import NULL, Attribute, attributes, fragment, is_null, types
from lamplighter.gateway.gates.ngsild.messages import JSON, NgsiMessage
from lamplighter.gateway.gates.ngsild.notifying import EntityNotifications
from lamplighter.gateway.gates.ngsild.parameters import (
    attribute_terms,
    entity_query,
    flag,
    form,
    parameters_of,
    type_terms,
)
from lamplighter.gateway.gates.ngsild.problems import (
    AlreadyExistsError,
    NoTenantsError,
    OperationNotSupportedError,
    TooManyResultsError,
    details,
    problem,
)
from lamplighter.gateway.gates.ngsild.reading import NgsiReading, entity_json
from lamplighter.gateway.gates.ngsild.subscribing import NgsiSubscriptions
from lamplighter.gateway.gates.ngsild.writing import EntityUpdates
from lamplighter.gateway.gates.standards import next_link, page_url
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings

ROOT: Final = "/ngsi-ld/v1"
BODY_BYTES_MAX: Final = 128 * 1024
WAITING_MAX: Final = 64  # requests that wait until others are answered
TYPES_MAX: Final = 1_000
BATCH_MAX: Final = 100  # entities of one batch
_LOCKS = 64


class NgsiLd:
    """The door. Settings: the table `[ngsild]`."""

    def __init__(self, runner: Runner, settings: Settings, folder: Path, data: Path) -> None:
        """folder: of the configuration file; data: the data folder. Raises ConfigurationError."""
        self._runner = runner
        self._contexts = KnownContexts(settings.ngsild.contexts, folder)
        self._graphs = EntityGraphs(settings.gateway.base_iri)
        self._subscribed = settings.ngsild.subscriptions.enabled
        self._notifications = EntityNotifications(runner, settings, data, self._graphs, self._contexts)
        self._subscriptions = NgsiSubscriptions(
            self._notifications, settings.ngsild.subscriptions, self._graphs, self._contexts, ROOT
        )
        turns = RequestTurns(max(1, settings.query.concurrent_max // 2), WAITING_MAX)
        self._bounded = turns.of(self._in_turn, BODY_BYTES_MAX)
        # Of two requests that change one entity, the second sees what the first has done.
        self._locks = [asyncio.Lock() for _ in range(_LOCKS)]

    def routes(self) -> Iterator[Route]:
        yield Route(f"{ROOT}/", self._bounded, Permission.CALLER, None, _parameters, problem)

    def about(self) -> Iterator[tuple[str, str]]:
        yield f"{ROOT}/entities", "NGSI-LD entities: ?type, ?q, ?attrs; /ngsi-ld/v1/entities/<id>, /ngsi-ld/v1/types"
        if self._subscribed:
            yield f"{ROOT}/subscriptions", "NGSI-LD subscriptions: POST {entities, notification} to make one"

    async def run(self) -> None:
        if self._subscribed:
            await self._notifications.deliveries.run()
        await asyncio.get_running_loop().create_future()

    async def _in_turn(self, request: Request, caller: Caller) -> Response:
        match _segments(request):
            case ["subscriptions", *below]:
                _check_tenant(request)
                method = "GET" if request.method == "HEAD" else request.method
                return await self._subscriptions.answer(method, below, request, caller)
        return await _NgsiRequest(self._runner, self._graphs, self._contexts, self._locks, request, caller).answer()


class _NgsiRequest:
    def __init__(
        self,
        runner: Runner,
        graphs: EntityGraphs,
        contexts: KnownContexts,
        locks: list[asyncio.Lock],
        request: Request,
        caller: Caller,
    ) -> None:
        self._runner = runner
        self._graphs = graphs
        self._locks = locks
        self._request = request
        self._caller = caller
        self._message = NgsiMessage(request, contexts)
        self._reading = NgsiReading(runner, graphs, caller)

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The parameters. Raises MalformedRequestError."""
        found = parameters(self._request).texts()
        for name in ("local", "deleteAll"):
            flag(found, name)
        return found

    async def answer(self) -> Response:
        _check_tenant(self._request)
        method = "GET" if self._request.method == "HEAD" else self._request.method
        match method, _segments(self._request):
            case "GET", ["entities"]:
                return await self._query()
            case "POST", ["entities"]:
                return await self._create()
            case "GET", ["entities", entity]:
                return await self._retrieve(_entity(entity))
            case "DELETE", ["entities", entity]:
                return await self._delete(_entity(entity))
            case "PATCH" | "POST", ["entities", entity, "attrs"]:
                return await self._change(_entity(entity), append=method == "POST")
            case "PATCH", ["entities", entity, "attrs", name]:
                return await self._merge(_entity(entity), name)
            case "DELETE", ["entities", entity, "attrs", name]:
                return await self._remove(_entity(entity), name)
            case "POST", ["entityOperations", "upsert"]:
                return await self._upsert()
            case "GET", ["types"]:
                return await self._types()
            case _, ["entities"]:
                raise MethodError(method, ("GET", "HEAD", "POST"))
            case _, ["entities", _]:
                raise MethodError(
                    method, ("DELETE", "GET", "HEAD"), hint="; change attributes with PATCH or POST at /attrs"
                )
            case _, ["entities", _, "attrs"]:
                raise MethodError(method, ("PATCH", "POST"))
            case _, ["entities", _, "attrs", _]:
                raise MethodError(method, ("DELETE", "PATCH"))
            case _, ["entityOperations", "upsert"]:
                raise MethodError(method, ("POST",))
            case _, ["types"]:
                raise MethodError(method, ("GET", "HEAD"))
        raise UnknownResourceError(
            f"there is nothing at {self._request.scope['path'][:200]}; there are {ROOT}/entities, entities/<id>, "
            "entities/<id>/attrs, entities/<id>/attrs/<name>, types, entityOperations/upsert, subscriptions "
            "and subscriptions/<id>"
        )

    # --- reading ---

    async def _query(self) -> Response:
        names = self._message.names()
        asked = entity_query(self._texts, names, self._graphs)
        found: list[Term] = []
        if asked.limit:
            found = [row["e"] for row in await self._reading.rows(asked.page())]
        more, ids = len(found) > asked.limit, found[: asked.limit]
        read = await self._reading.entities(ids)
        listed = [entity_json(one, read[one], asked.attributes, asked.form, names) for one in ids if one in read]
        headers: dict[str, str] = {}
        if asked.count:
            [row] = await self._reading.rows(f"SELECT (COUNT(DISTINCT ?e) AS ?count) {{ {asked.where} }}")
            headers["NGSILD-Results-Count"] = lexical(row["count"])
        links = []
        if more:
            others = [(name, value) for name, value in self._texts.items() if name not in ("offset", "limit")]
            links.append(next_link(page_url(f"{ROOT}/entities", others, asked.offset + asked.limit, asked.limit)))
        return self._message.answer(listed, names, headers, links)

    async def _retrieve(self, entity: Term) -> Response:
        names = self._message.names()
        wanted, shape = attribute_terms(self._texts, names), form(self._texts)
        await self._check_type(entity, names)
        read = (await self._reading.entities([entity])).get(entity)
        if read is None:
            raise _no_entity(entity)
        if wanted and not any(one in read.attributes for one in wanted):
            raise UnknownResourceError(f"the entity {lexical(entity)[:200]!r} has none of the attributes of attrs")
        return self._message.answer(entity_json(entity, read, wanted, shape, names), names)

    async def _types(self) -> Response:
        names = self._message.names()
        found = await self._reading.rows(self._graphs.types())
        if len(found) > TYPES_MAX:
            raise TooManyResultsError(f"entities have more than {TYPES_MAX} types")
        listed = [names.compact(lexical(row["type"])) for row in found]
        answer = {"id": "urn:ngsi-ld:EntityTypeList:all", "type": "EntityTypeList", "typeList": sorted(listed)}
        return self._message.answer(answer, names)

    # --- changes ---

    async def _create(self) -> Response:
        entity, kinds, kept = _whole(*await self._message.body())
        identifier = lexical(entity)
        async with self._changing(entity):
            _, stream = await self._reading.attribute_kinds(entity)
            if stream or not await self._update(EntityUpdates(self._graphs, entity).create(kinds, kept)):
                raise AlreadyExistsError(
                    f"there is an entity {identifier[:200]!r}; change it with PATCH or POST at /attrs, or delete it"
                )
        return Response(status_code=201, headers={"Location": f"{ROOT}/entities/{quote(identifier, safe=':')}"})

    async def _upsert(self) -> Response:
        """Batch Entity Create or Update (5.6.8): each entity in a commit of its own."""
        asked = self._texts
        if asked.get("options", "replace") not in ("replace", "update"):
            raise MalformedRequestError("options: write replace or update")
        created: list[str] = []
        updated: list[str] = []
        errors = []
        for members, names in await self._message.entities(BATCH_MAX):
            try:
                if isinstance(names, RequestError):
                    raise names
                entity, kinds, kept = _whole(members, names)
                new = await self._replace(entity, kinds, kept, replaces=asked.get("options") != "update")
                (created if new else updated).append(lexical(entity))
            except AccessDeniedError:
                raise
            except GatewayError as error:
                errors.append({"entityId": str(members.get("id"))[:500], "error": details(error)})
        if errors:
            result = {"success": created + updated, "errors": errors}
            return Response(msgspec.json.encode(result), 207, media_type=JSON)
        if created:
            return Response(msgspec.json.encode(created), 201, media_type=JSON)
        return Response(status_code=204)

    async def _replace(self, entity: Term, kinds: list[str], kept: Mapping[str, Attribute], *, replaces: bool) -> bool:
        """Whether the entity is new."""
        updates = EntityUpdates(self._graphs, entity)
        async with self._changing(entity):
            known, stream = await self._reading.attribute_kinds(entity)
            if known and not stream:
                text = f"{updates.delete()} ;\n{updates.create(kinds, kept)}" if replaces else updates.put(kept, kinds)
                await self._update(text)
                return False
            if stream:
                raise _read_only(entity)
            await self._update(updates.create(kinds, kept))
        return True

    async def _delete(self, entity: Term) -> Response:
        async with self._changing(entity):
            await self._kept_attributes(entity, self._message.names())
            await self._update(EntityUpdates(self._graphs, entity).delete())
        return Response(status_code=204)

    async def _change(self, entity: Term, *, append: bool) -> Response:
        """Update Attributes (5.6.2) and Append Attributes (5.6.3)."""
        asked = self._texts
        if asked.get("options", "") not in ("", "noOverwrite"):
            raise MalformedRequestError("options: noOverwrite is the only one")
        members, names = await self._message.body()
        found = attributes(members, names)
        more = types(members, names) if "type" in members or "@type" in members else []
        if append and None in found.values():
            raise MalformedRequestError(f"{NULL} deletes an attribute; write it in a PATCH")
        async with self._changing(entity):
            known = await self._kept_attributes(entity, names)
            refused = {}
            for name in list(found):
                if (not append and iri(name) not in known) or (asked.get("options") and iri(name) in known):
                    refused[name] = "the entity has it already" if append else "the entity has no such attribute"
                    del found[name]
            if found or more:
                await self._update(EntityUpdates(self._graphs, entity).put(found, more))
        if not refused:
            return Response(status_code=204)
        not_updated = [{"attributeName": names.compact(name), "reason": reason} for name, reason in refused.items()]
        result = {"updated": [names.compact(name) for name in found], "notUpdated": not_updated}
        return Response(msgspec.json.encode(result), 207, media_type=JSON)

    async def _merge(self, entity: Term, name: str) -> Response:
        """Partial Attribute Update (5.6.4)."""
        members, names = await self._message.body()
        term = iri(names.expand(name, "the path"))
        if is_null(members):
            raise MalformedRequestError(f"{name[:100]}: to delete an attribute send DELETE")
        wanted = fragment(members, name[:100])
        async with self._changing(entity):
            known = await self._kept_attributes(entity, names)
            kind = self._attribute(known, term, name)
            if wanted.kind not in (None, kind):
                raise MalformedRequestError(
                    f"{name[:100]} is a {kind}; its type cannot be changed here, use POST at /attrs"
                )
            if wanted.unit_code is not None and kind != "Property":
                raise MalformedRequestError(f"{name[:100]}: only a Property has a unitCode, and this is a {kind}")
            text = EntityUpdates(self._graphs, entity).merge(term, wanted)
            if text:
                await self._update(text)
        return Response(status_code=204)

    async def _remove(self, entity: Term, name: str) -> Response:
        names = self._message.names()
        term = iri(names.expand(name, "the path"))
        async with self._changing(entity):
            self._attribute(await self._kept_attributes(entity, names), term, name)
            await self._update(EntityUpdates(self._graphs, entity).put({lexical(term): None}))
        return Response(status_code=204)

    def _attribute(self, known: Mapping[Term, object], term: Term, name: str) -> object:
        if term not in known or term == RDF_TYPE:
            raise UnknownResourceError(f"the entity has no attribute {name[:200]!r}; POST at /attrs adds one")
        return known[term]

    async def _kept_attributes(self, entity: Term, names: ContextNames) -> Mapping[Term, object]:
        """The attributes of a kept entity. Raises UnknownResourceError, OperationNotSupportedError."""
        known, stream = await self._reading.attribute_kinds(entity)
        if stream:
            raise _read_only(entity)
        if not known:
            raise _no_entity(entity)
        await self._check_type(entity, names)
        return known

    async def _check_type(self, entity: Term, names: ContextNames) -> None:
        """Raises UnknownResourceError for an entity that has none of the types of the parameter."""
        kinds = type_terms(self._texts, names)
        if not kinds:
            return
        pattern = self._graphs.entities(kinds)
        if not await self._reading.rows(f"SELECT ?e {{ {pattern} FILTER(?e = {entity}) }} LIMIT 1"):
            raise UnknownResourceError(
                f"there is no entity {lexical(entity)[:200]!r} of the type {self._texts['type'][:200]}"
            )

    @asynccontextmanager
    async def _changing(self, entity: Term) -> AsyncIterator[None]:
        """Changes of an entity, in turn. Who may not read the graph may not be told what exists, nor change it."""
        self._caller.access.read.check([self._graphs.graph], "read")
        self._caller.access.write.check([self._graphs.graph], "write")
        async with self._locks[hash(entity) % _LOCKS]:
            yield

    async def _update(self, sparql: str) -> bool:
        """Whether it has changed anything."""
        call = UpdateCall(sparql, cause(self._request, self._caller), caller=self._caller, tells_delta=True)
        delta = (await self._runner.updates.update(call)).delta
        return delta is None or bool(len(delta.added) + len(delta.removed))


def _parameters(request: Request) -> Parameters | None:
    return parameters_of("GET" if request.method == "HEAD" else request.method, _segments(request))


def _check_tenant(request: Request) -> None:
    """Raises NoTenantsError."""
    if "ngsild-tenant" in request.headers:
        raise NoTenantsError("NGSILD-Tenant: there are no tenants here; leave the header out")


def _segments(request: Request) -> list[str]:
    """The segments of the path below the root. Raises UnknownResourceError."""
    segments = path_segments(request, "ngsi-ld", "NGSI-LD")[1:]
    return segments[:-1] if segments and not segments[-1] else segments


def _entity(identifier: str) -> Term:
    """Raises MalformedRequestError."""
    if not is_absolute(identifier):
        raise MalformedRequestError(f"{identifier[:100]!r} is no id of an entity; write its URI, percent-encoded")
    return iri(identifier)


def _whole(members: Mapping[str, Any], names: ContextNames) -> tuple[Term, list[str], dict[str, Attribute]]:
    """A whole entity: its id, the IRIs of its types, and its attributes. Raises RequestError."""
    identifier = members.get("id", members.get("@id"))
    if not isinstance(identifier, str) or not is_absolute(identifier):
        raise MalformedRequestError("id is missing; write a URI such as urn:ngsi-ld:Building:store1")
    kinds, found = types(members, names), attributes(members, names)
    kept = {name: one for name, one in found.items() if one is not None}
    if len(kept) < len(found):
        raise MalformedRequestError(f"{NULL} deletes an attribute, and a new entity has none")
    return iri(identifier), kinds, kept


def _read_only(entity: Term) -> OperationNotSupportedError:
    return OperationNotSupportedError(
        f"{lexical(entity)[:200]!r} is a stream of a sensor, which readings change; make an entity of your own"
    )


def _no_entity(entity: Term) -> UnknownResourceError:
    return UnknownResourceError(
        f"there is no entity {lexical(entity)[:200]!r}; GET {ROOT}/entities?local=true lists all"
    )
