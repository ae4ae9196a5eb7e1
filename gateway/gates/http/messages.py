"""Messages of devices, beside what the rules make of them."""

from __future__ import annotations

import base64
import codecs
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.protocol import KeptMessage
from lamplighter.gateway.gates.http.answers import JsonAnswer
from lamplighter.gateway.gates.http.calls import RequestTurns
from lamplighter.gateway.gates.http.devices import OwnDataset, no_device
from lamplighter.gateway.gates.http.mapping import MappingRequests
from lamplighter.gateway.gates.http.parameters import Parameters, parameters
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller

# Requests that are answered at the same time, each of which takes a fork, and those with them that may wait.
AT_ONCE_MAX, WAITING_MAX = 2, 64


class MessageRequests:
    """The handler; it needs an operator, because a message may hold a secret."""

    def __init__(self, runner: Runner, mapping: MappingRequests) -> None:
        self._runner = runner
        self._mapping = mapping
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/messages", self.of_device, Permission.OPERATOR, parameters=Parameters(("device",))),
            Route("/messages/unread", self.list_unread, Permission.OPERATOR),
        ]

    async def list_unread(self, request: Request, caller: Caller) -> Response:
        """The last message of each topic and resource that no rule reads. Raises QueueFullError."""
        from lamplighter.adapters.devices.kinds import KINDS
        from lamplighter.adapters.mapping.proposals import proposed_rule

        async with self._turns.turn(caller):
            found = await self._runner.messages.find_unread()
        base_iri, messages = self._runner.settings.gateway.base_iri, []
        for one in found.messages:
            rule = None if one.cut else proposed_rule(one.place, one.payload, base_iri, list(KINDS))
            proposed = {} if rule is None else {"readable_as": rule.kind, "rule": rule.toml}
            cut = {"cut": True} if one.cut else {}
            messages.append(_message_json(one) | {"count": one.count} | cut | proposed)
        told = {"unread": messages, "more": found.more, "answered": found.sources, "silent": found.silent}
        return JsonAnswer(told, headers={"Cache-Control": "no-store"})

    async def of_device(self, request: Request, caller: Caller) -> Response:
        """The last message of each topic and resource of a device. Raises QueueFullError."""
        device = parameters(request).text("device")
        if device is None:
            raise MalformedRequestError("send the parameter device, the identity of a device")
        async with self._turns.turn(caller):
            return await self._of_device(device, request, caller)

    async def _of_device(self, name: str, request: Request, caller: Caller) -> Response:
        from lamplighter.gateway.devices.decisions import Devices
        from lamplighter.gateway.devices.listing import message_places
        from lamplighter.gateway.devices.trial import TriedMessage

        settings = self._runner.settings
        dataset = OwnDataset(self._runner, caller, cause(request, caller))
        entry = await Devices(dataset, settings.gateway.base_iri, settings.mqtt.commands).entry(name)
        if entry is None:
            return no_device(name)
        places = message_places(entry.device)
        found = await self._runner.messages.find(places)
        whole = [
            TriedMessage(one.place, one.payload, one.received, one.retained, one.broker, one.content_format)
            for one in found.messages
            if not one.cut
        ]
        tried = iter(await self._mapping.try_messages(whole, caller) if whole else [])
        messages = [_message_json(one) | ({"cut": True} if one.cut else next(tried)) for one in found.messages]
        told = {"device": name, "places": places, "answered": found.sources, "silent": found.silent}
        return JsonAnswer(told | {"messages": messages}, headers={"Cache-Control": "no-store"})


def _message_json(message: KeptMessage) -> dict[str, Any]:
    """A message for programs: its payload as text, if it is one."""
    told: dict[str, Any] = {"place": message.place, "broker": message.broker, "received": message.received}
    if message.retained:
        told["retained"] = True
    if message.content_format is not None:
        told["content_format"] = message.content_format
    try:
        # A character may be cut in two.
        return told | {
            "payload": codecs.getincrementaldecoder("utf-8")().decode(message.payload, final=not message.cut)
        }
    except UnicodeDecodeError:
        return told | {"payload_base64": base64.b64encode(message.payload).decode()}
