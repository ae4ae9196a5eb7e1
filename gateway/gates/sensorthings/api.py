"""The service over HTTP: root document, read requests, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.gates.http.answers import JsonAnswer, MethodError, Refusal, error_answer
from lamplighter.gateway.gates.http.calls import BODY, RequestTurns
from lamplighter.gateway.gates.http.negotiation import request_iri
from lamplighter.gateway.gates.http.parameters import NONE, Parameters, parameters
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.sensorthings.addresses import Address, address
from lamplighter.gateway.gates.sensorthings.creation import BODY_BYTES_MAX, Creation
from lamplighter.gateway.gates.sensorthings.entities import DATASTREAMS, ENTITY_SETS, OBSERVATIONS
from lamplighter.gateway.gates.sensorthings.ids import id_of
from lamplighter.gateway.gates.sensorthings.options import MANY, ONE, options
from lamplighter.gateway.gates.sensorthings.reading import EntityReading
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings

if TYPE_CHECKING:
    from lamplighter.gateway.gates.sensorthings.notices import Notices

WAITING_MAX: Final = 64  # requests that wait until others are answered
_SPEC = "http://www.opengis.net/spec/iot_sensing/1.1/req"
CONFORMANCE: Final = (
    *(f"{_SPEC}/datamodel/{name}" for name in ("thing", "location", "datastream", "sensor", "observed-property")),
    *(f"{_SPEC}/datamodel/{name}" for name in ("observation", "feature-of-interest", "entity-control-information")),
    *(f"{_SPEC}/resource-path/resource-path-to-entities", f"{_SPEC}/request-data", f"{_SPEC}/data-array/data-array"),
)


class SensorThings:
    """The door. Settings: the table `[sensorthings]`."""

    def __init__(self, runner: Runner, settings: Settings, data: Path, address: str) -> None:
        """data: the data folder; address: URL of the HTTP gate. Raises ConfigurationError."""
        self._runner = runner
        self._settings = settings
        self._root = settings.sensorthings.path
        self._base_iri = settings.gateway.base_iri
        # The others of query.concurrent_max are for the query path: a dashboard asks for all of its charts at once.
        turns = RequestTurns(max(1, settings.query.concurrent_max // 2), WAITING_MAX)
        self._bounded = turns.of(self._answer, BODY_BYTES_MAX)
        self._notices: Notices | None = None
        if settings.sensorthings.mqtt:
            from lamplighter.gateway.gates.sensorthings.notices import Notices  # it loads paho

            self._notices = Notices(runner, settings, data, address.rstrip("/") + self._root)

    def routes(self) -> Iterator[Route]:
        for path in (self._root, f"{self._root}/"):
            yield Route(path, self._bounded, Permission.CALLER, None, self._parameters, _refusal)

    def about(self) -> Iterator[tuple[str, str]]:
        yield self._root, "OGC SensorThings API 1.1"

    async def run(self) -> None:
        await (asyncio.get_running_loop().create_future() if self._notices is None else self._notices.run())

    def _parameters(self, request: Request) -> Parameters:
        """The root and single properties have none, and neither has what is created (9.3)."""
        below = request.scope.get("below", "")
        if request.method not in ("GET", "HEAD") or not below:
            return NONE
        where = address(below, self._base_iri)
        return NONE if where.member else ONE if not where.many else MANY

    async def _answer(self, request: Request, caller: Caller) -> Response:
        below = request.scope.get("below", "")
        root = _root_url(request, below)
        if request.method == "POST":
            return await self._create(request, caller, below, root)
        if request.method not in ("GET", "HEAD"):
            raise _method_error(request.method, below)
        if not below:
            return JsonAnswer(_service(root))
        where = address(below, self._base_iri)
        reading = EntityReading(self._runner, self._base_iri, root, caller)
        if where.member:
            return _property(where, await reading.member(where))
        found = options(parameters(request).texts(), where.kind, many=where.many)
        return JsonAnswer(await (reading.collection if where.many else reading.entity)(where, found))

    async def _create(self, request: Request, caller: Caller, below: str, root: str) -> Response:
        """Answers POST: the creation of Observations (10.2, 12.3)."""
        creation = Creation(self._runner, self._settings, caller, cause(request, caller))
        reading = EntityReading(self._runner, self._base_iri, root, caller)
        if below == "CreateObservations":
            told = await creation.many(request.scope[BODY])
            links = [one if one.startswith("error: ") else reading.link(OBSERVATIONS, one) for one in told]
            return JsonAnswer(links, 201)
        where = address(below, self._base_iri)
        if where.kind is not OBSERVATIONS or not where.many or where.form or len(where.steps) > 2:
            raise _method_error("POST", below)
        stream = None
        if len(where.steps) == 2:
            if where.steps[0].kind is not DATASTREAMS:
                raise _method_error("POST", below)
            stream = where.steps[0].key
        made = await creation.one(request.scope[BODY], stream)
        link = reading.link(OBSERVATIONS, made)
        identity = {"@iot.id": id_of(made, self._base_iri), "@iot.selfLink": link}
        return JsonAnswer(identity, 201, {"Location": link})


def _service(root: str) -> Mapping[str, Any]:
    """The root document (SensorThings 1.1, 9.2.1)."""
    return {
        "value": [{"name": name, "url": f"{root}/{name}"} for name in ENTITY_SETS],
        "serverSettings": {"conformance": CONFORMANCE},
    }


def _property(where: Address, value: Any) -> Response:
    if value is None:
        return Response(status_code=204)
    if where.form != "$value":
        return JsonAnswer({where.member: value})
    text = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    return Response(text, 200, media_type="text/plain" if not isinstance(value, dict) else "application/json")


def _root_url(request: Request, below: str) -> str:
    """The URL of the service root as the client knows it. Raises MalformedRequestError."""
    path = request.scope["path"]
    sent = urlsplit(request_iri(request))
    return f"{sent.scheme}://{sent.netloc}{path.removesuffix(below) if below else path}".rstrip("/")


def _method_error(method: str, below: str) -> MethodError:
    hint = (
        ". Observations are created with POST at Observations, Datastreams('...')/Observations and CreateObservations; "
        "all else is made by adapters and SPARQL updates"
    )
    return MethodError(method, ("GET", "HEAD"), f"at {below[:200]!r}", hint)


def _refusal(error: GatewayError) -> Refusal:
    return error_answer(error, {"code": error.status, "type": "error", "message": str(error)})
