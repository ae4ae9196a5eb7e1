"""Devices: the list, one of them, and decisions about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Cause
from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import lexical
from lamplighter.gateway.gates.http.answers import JsonAnswer, Refusal
from lamplighter.gateway.gates.http.calls import RequestTurns, json_body
from lamplighter.gateway.gates.http.names import NameRequests
from lamplighter.gateway.gates.http.parameters import NONE, Parameters, parameters
from lamplighter.gateway.gates.http.sparql import cause, select
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import Caller

if TYPE_CHECKING:  # it loads the adapters, which a gateway without devices does not need
    from lamplighter.adapters.devices.registry import Entry
    from lamplighter.gateway.devices.decisions import DesiredState, Devices, Row

LISTED = Parameters(("room",))  # of the list of devices
BODY_BYTES_MAX = 64 * 1024
ROWS_BYTES_MAX = 64 * 1024 * 1024  # of what the dataset has about devices
AT_ONCE_MAX, WAITING_MAX = 2, 64  # requests that are answered at the same time, and those with them that may wait


class DeviceAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to happen to a device. area: for adopt and rename; name: for rename; state, actuator: for set
    and by_hand."""

    action: str
    area: str | None = None
    name: str | None = None
    state: str | bool | int | float | None = None
    actuator: str | None = None


class Adoptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that are adopted together, by their ids; others that have announced themselves since are not."""

    action: Literal["adopt"]
    devices: list[str]
    area: str | None = None


_MEMBERS = {
    "adopt": {"area"},
    "ignore": set[str](),
    "rename": {"name", "area"},
    "remove": set[str](),
    "set": {"state", "actuator"},
    "by_hand": {"state", "actuator"},
}


def device_parameters(request: Request) -> Parameters:
    return NONE if request.method == "POST" else LISTED


class OwnDataset:
    """The gateway's own dataset for `Devices`. caller: who the records name; an operator may decide about devices
    whatever graphs it may read and write."""

    def __init__(self, runner: Runner, caller: Caller, came_from: Cause) -> None:
        self._runner = runner
        self._caller = replace(caller, access=FULL)
        self._cause = came_from

    async def rows(self, query: str) -> list[Row]:
        return list(await select(self._runner, self._caller, query, ROWS_BYTES_MAX))

    async def update(self, text: str) -> None:
        await self._runner.updates.update(UpdateCall(text, self._cause, caller=self._caller))


class DeviceRequests:
    """The handlers; all need an operator."""

    def __init__(self, runner: Runner, names: NameRequests) -> None:
        self._runner = runner
        self._names = names
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    async def all(self, request: Request, caller: Caller) -> Response:
        adoptions = None
        if request.method == "POST":
            adoptions = await json_body(request, Adoptions, BODY_BYTES_MAX)
        return await self._answer(request, caller, adoptions)

    async def one(self, request: Request, caller: Caller) -> Response:
        action: DeviceAction | None = None
        if request.method == "POST":
            action = _valid_action(await json_body(request, DeviceAction, BODY_BYTES_MAX))
        return await self._answer(request, caller, action)

    async def _answer(self, request: Request, caller: Caller, action: DeviceAction | Adoptions | None) -> Response:
        """Raises QueueFullError while too many requests wait."""
        from lamplighter.gateway.devices.decisions import Devices
        from lamplighter.gateway.devices.listing import DeviceList

        async with self._turns.turn(caller):
            settings = self._runner.settings
            dataset = OwnDataset(self._runner, caller, cause(request, caller))
            devices = Devices(dataset, settings.gateway.base_iri, settings.mqtt.commands)
            listing = DeviceList(devices, dataset)
            if isinstance(action, Adoptions):
                return await _adopt(devices, action)
            name = request.scope.get("below")
            if name is None:
                return JsonAnswer(await listing.all(parameters(request).text("room")), headers=_HEADERS)
            entry = await devices.entry(name)
            if entry is None and action is not None and action.action == "set" and action.actuator is None:
                return await self._set_named(devices, name, action, caller)
            if entry is None:
                return no_device(name)
            if action is None:
                return JsonAnswer(await listing.one(entry), headers=_HEADERS)
            return await _decide(devices, entry, action)

    async def _set_named(self, devices: Devices, name: str, action: DeviceAction, caller: Caller) -> Response:
        """Sets an actuator by its own name, such as that of a rule."""
        from lamplighter.gateway.devices.directory import SWITCHED, UnknownNameError

        directory = await self._names.directory(caller)
        try:
            named = await asyncio.to_thread(directory.resolve, name, "actuator", SWITCHED, existing=True)
        except UnknownNameError as error:
            return Refusal("not_found", 404, f"no device has the identity {name[:200]!r}, and {error}")
        return await _set_state(named.id, action, partial(devices.set_named, named))


def no_device(name: str) -> Refusal:
    return Refusal("not_found", 404, f"no device has the identity {name[:200]!r}; GET /devices lists them")


_HEADERS = {"Cache-Control": "no-store"}


def _valid_action(action: DeviceAction) -> DeviceAction:
    """The action, if its members belong together. Raises MalformedRequestError."""
    if action.action not in _MEMBERS:
        raise MalformedRequestError(f"action: unknown value {action.action[:100]!r}; use {', '.join(_MEMBERS)}")
    for name in ("area", "name", "state", "actuator"):
        if getattr(action, name) is not None and name not in _MEMBERS[action.action]:
            raise MalformedRequestError(f"{name} does not belong to the action {action.action}")
    if action.action == "set" and action.state is None:
        raise MalformedRequestError("state is missing: on, off, a number or a word")
    if action.action == "by_hand" and action.state is None:
        raise MalformedRequestError("state is missing: hold or follow")
    return action


async def _adopt(devices: Devices, asked: Adoptions) -> Response:
    """What became of each device."""
    from lamplighter.gateway.devices.decisions import NotDecidedError
    from lamplighter.gateway.devices.listing import decision_json

    ids = dict.fromkeys(asked.devices)
    entries = [one for one in (await devices.entries())[0] if one.identity in ids]
    try:
        found = await devices.adopt(entries, asked.area)
    except ValueError as error:
        raise MalformedRequestError(str(error)) from error
    known = {one.identity for one in entries}
    refused = [{"id": one, "reason": "no device has this identity"} for one in ids if one not in known]
    adopted = []
    for entry, outcome in zip(entries, found, strict=True):
        if isinstance(outcome, NotDecidedError):
            refused.append({"id": entry.identity, "reason": str(outcome)})
        else:
            adopted.append({**decision_json(outcome), "warnings": devices.refused_topics(outcome.device)})
    return JsonAnswer({"adopted": adopted, "refused": refused})


async def _decide(devices: Devices, entry: Entry, action: DeviceAction) -> Response:
    """The device as it is after a decision; 409 if it changed meanwhile."""
    from lamplighter.gateway.devices.decisions import NotDecidedError
    from lamplighter.gateway.devices.listing import decision_json

    if action.action == "set":
        return await _set_state(entry.identity, action, partial(devices.set, entry, action.actuator))
    try:
        if action.action == "remove":
            await devices.remove(entry)
            return JsonAnswer({"id": entry.identity, "removed": True})
        if action.action == "by_hand":
            chosen = await devices.say_by_hand(entry, action.actuator, str(action.state))
            return JsonAnswer({"id": entry.identity, "by_hand": chosen})
        if action.action == "rename":
            found: Entry | NotDecidedError = await devices.rename(entry, action.name, action.area)
        elif action.action == "adopt":
            [found] = await devices.adopt([entry], action.area)
        else:
            [found] = await devices.ignore([entry])
    except NotDecidedError as error:
        found = error
    except ValueError as error:
        raise MalformedRequestError(str(error)) from error
    if isinstance(found, NotDecidedError):
        return Refusal("conflict", 409, str(found))
    told = decision_json(found)
    if action.action == "adopt":
        told["warnings"] = devices.refused_topics(found.device)
    return JsonAnswer(told)


async def _set_state(
    name: str, action: DeviceAction, set_state: Callable[[str], Coroutine[Any, Any, DesiredState]]
) -> Response:
    state = str(action.state).lower() if isinstance(action.state, bool) else str(action.state)
    try:
        wanted = await set_state(state)
    except ValueError as error:
        raise MalformedRequestError(f"{name}: {error}") from error
    return JsonAnswer({"id": name, "actuator": lexical(wanted.actuator), "desired": lexical(wanted.state)})
