"""Thing Descriptions that clients submit to the directory (WoT Discovery, 7.3.2.1): each adopts a device.

Adoption is for operators, as that of devices that announce themselves.
"""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.adapters.devices.draft import THING, segment
from lamplighter.adapters.devices.registry import Entry
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.gateway.devices.decisions import Devices
from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.calls import BODY, content_type
from lamplighter.gateway.gates.http.devices import OwnDataset
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.standards import ConflictError
from lamplighter.gateway.gates.wot.description import JSON, TD, TD_LIST, thing_path
from lamplighter.gateway.gates.wot.problems import Fault, InvalidDescriptionError, no_thing
from lamplighter.gateway.gates.wot.submitted import Adopted, Submitted, device_of, parse_description
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller

DEVICES_MAX = 1_000  # things that were submitted


class SubmittedThings:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def create(self, request: Request, caller: Caller) -> Response:
        """201: the device is adopted. One without an id is given one."""
        found = self._parse(request, caller)
        identifier = found.id or f"urn:uuid:{uuid.uuid4()}"
        devices = self._devices(request, caller)
        adopted = device_of(found, identifier, self._runner.settings, devices.registry)
        if await devices.entry(adopted.device.identity) is not None:
            raise ConflictError(f"there is a thing with the id {identifier!r}; PUT replaces it")
        return await self._adopt(devices, None, adopted)

    async def put(self, request: Request, caller: Caller, identifier: str) -> Response:
        """201: the device is adopted; 204: its description is replaced."""
        found = self._parse(request, caller)
        if not identifier or found.id != identifier:  # the path /things/ has none
            raise InvalidDescriptionError([Fault("id", "write the same id here and in the path")])
        devices = self._devices(request, caller)
        adopted = device_of(found, identifier, self._runner.settings, devices.registry)
        return await self._adopt(devices, await devices.entry(adopted.device.identity), adopted)

    async def delete(self, request: Request, caller: Caller, identifier: str) -> Response:
        """204: the device is removed, with its rules and live observations."""
        caller.require_operator("remove a thing")
        devices = self._devices(request, caller)
        entry = await self._entry(devices, identifier)
        if entry is None:
            raise no_thing(identifier)
        await devices.remove(entry)
        return Response(status_code=204)

    def _parse(self, request: Request, caller: Caller) -> Submitted:
        caller.require_operator("submit a Thing Description")
        media_type = content_type(request)
        if media_type not in (TD, TD_LIST, JSON, ""):
            raise MalformedRequestError(f"Content-Type is {media_type}; send {TD}")
        return parse_description(request.scope[BODY])

    def _devices(self, request: Request, caller: Caller) -> Devices:
        dataset = OwnDataset(self._runner, caller, cause(request, caller))
        return Devices(dataset, self._runner.settings.gateway.base_iri, self._runner.settings.mqtt.commands)

    @staticmethod
    async def _entry(devices: Devices, identifier: str) -> Entry | None:
        try:
            return await devices.entry(f"{THING}/{segment(identifier)}")
        except ValueError:
            return None

    async def _adopt(self, devices: Devices, before: Entry | None, adopted: Adopted) -> Response:
        device = adopted.device
        if before is None:
            entries, _ = await devices.entries()
            if sum(entry.device.source == THING for entry in entries) >= DEVICES_MAX:
                raise LimitExceededError(f"there are {DEVICES_MAX} submitted things already; remove some")
        found = await devices.take(device, before)
        if found is None:
            raise ConflictError(f"{device.thing} changed meanwhile; try again")
        await devices.list_left_out(device, adopted.warnings)
        if before is not None:
            return Response(status_code=204)
        told: dict[str, Any] = {"id": device.thing, "warnings": [*adopted.warnings, *devices.refused_topics(device)]}
        return JsonAnswer(told, 201, {"Location": f"/{thing_path(device.thing)}"})
