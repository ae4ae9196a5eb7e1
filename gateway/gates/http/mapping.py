"""Mapping rules on trial: what they make of a message."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.access import FULL
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, PayloadError
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.gates.http.calls import RequestTurns, json_body
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings

if TYPE_CHECKING:  # it loads the adapters, which a gateway without devices does not need
    from lamplighter.engine.terms import Term
    from lamplighter.gateway.devices.trial import MessageTrial, TrialResult, TriedMessage

BODY_BYTES_MAX = 2 * 1024 * 1024
ROWS_BYTES_MAX = 64 * 1024 * 1024  # of the rules in the dataset
AT_ONCE_MAX, WAITING_MAX = 1, 16  # messages on trial at the same time, and those with them that may wait
MADE_MAX = 100  # values that one rule is shown with
_RULE_TEXT = "rule"  # stands for the file in the places of rules that came with a request

_Rows = list[tuple["Term", "Term"]]


class MappingTry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """topic: an MQTT topic, a path of the CoAP server, or the URI of a resource. payload or payload_base64: what was
    sent. rule: TOML as in a file of ``mapping/``, which is tried alone; None for the rules of the gateway."""

    topic: str
    payload: str | None = None
    payload_base64: str | None = None
    rule: str | None = None
    broker: str = ""
    retained: bool = False
    content_format: str | int | None = None


class MappingRequests:
    """The handler; it needs an operator. folder: with the mapping files."""

    def __init__(self, runner: Runner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        self._turns = RequestTurns(AT_ONCE_MAX, WAITING_MAX)

    @property
    def route(self) -> Route:
        return Route("/mapping/try", self.attempt, Permission.OPERATOR, frozenset({"POST"}))

    async def attempt(self, request: Request, caller: Caller) -> Response:
        """What rules make of a message. A fork finds it. Raises QueueFullError while too many wait."""
        asked = await json_body(request, MappingTry, BODY_BYTES_MAX)
        message = _message(asked)
        async with self._turns.turn(caller):
            rows = [] if asked.rule is not None else await self._dataset_rules(caller)
            settings = self._runner.settings

            def write(out: BinaryIO) -> None:
                found = _try_rule(asked.rule, self._folder, rows, message, settings)
                out.write(b"+" + msgspec.json.encode(found))

            data = await (await self._runner.beside(write, caller)).whole()
        return Response(data, media_type=JSON)

    async def try_messages(self, messages: Sequence[TriedMessage], caller: Caller) -> list[dict[str, Any]]:
        """What the rules of the gateway make of each message, as `attempt` but without updates. Runs in a fork."""
        rows = await self._dataset_rules(caller)
        settings = self._runner.settings

        def write(out: BinaryIO) -> None:
            trial, _ = _trial(None, self._folder, rows, settings)
            out.write(b"+" + msgspec.json.encode([_without_updates(_of_message(trial, one)) for one in messages]))

        data = await (await self._runner.beside(write, caller)).whole()
        found: list[dict[str, Any]] = msgspec.json.decode(data)
        return found

    async def _dataset_rules(self, caller: Caller) -> _Rows:
        from lamplighter.adapters.mapping.dataset_rules import QUERY

        everything = replace(caller, access=FULL)
        rows = await select(self._runner, everything, QUERY, ROWS_BYTES_MAX)
        return [(mapping, rule) for mapping, rule in rows if mapping is not None and rule is not None]


def _message(asked: MappingTry) -> TriedMessage:
    """Raises MalformedRequestError."""
    from lamplighter.gateway.devices.trial import TriedMessage, content_format

    if (asked.payload is None) == (asked.payload_base64 is None):
        raise MalformedRequestError("send payload, a text, or payload_base64")
    try:
        if asked.payload is not None:
            payload = asked.payload.encode()
        else:
            payload = base64.b64decode(asked.payload_base64 or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedRequestError(f"the payload cannot be read: {error}") from error
    try:
        form = content_format(None if asked.content_format is None else str(asked.content_format))
    except ValueError as error:
        raise MalformedRequestError(f"content_format: {error}") from error
    return TriedMessage(asked.topic, payload, datetime.now(UTC), asked.retained, asked.broker, form)


def _try_rule(rule: str | None, folder: Path, rows: _Rows, message: TriedMessage, settings: Settings) -> TrialResult:
    """In the fork: what the rules make of a message, or why there is nothing."""
    from lamplighter.gateway.devices.trial import TrialResult

    try:
        trial, faults = _trial(rule, folder, rows, settings)
    except (ConfigurationError, PayloadError) as error:
        return TrialResult([], [], str(error))
    return msgspec.structs.replace(_of_message(trial, message), not_tested=faults)


def _of_message(trial: MessageTrial, message: TriedMessage) -> TrialResult:
    """What the rules make of a message, without the faults of others."""
    from lamplighter.gateway.devices.trial import TrialResult, uncovered_text

    try:
        found = trial.of(message)
    except PayloadError as error:
        return TrialResult([], [], str(error))
    return TrialResult(found, [], "" if found else uncovered_text(message))


def _without_updates(found: TrialResult) -> TrialResult:
    rules = [
        msgspec.structs.replace(rule, made=[msgspec.structs.replace(one, updates=()) for one in rule.made])
        for rule in found.rules
    ]
    return msgspec.structs.replace(found, rules=rules)


def _trial(rule: str | None, folder: Path, rows: _Rows, settings: Settings) -> tuple[MessageTrial, list[str]]:
    """The rules to try, and the faults of others."""
    from lamplighter.adapters.mapping.files import file_rules, text_rules
    from lamplighter.gateway.devices.trial import MessageTrial, StoredRules

    base_iri = settings.gateway.base_iri
    files = file_rules(folder, base_iri) if rule is None else text_rules(rule, _RULE_TEXT, base_iri)
    dataset = StoredRules.of(rows, base_iri, settings.mqtt.publish)
    trial = MessageTrial(files, dataset, event=settings.mqtt.model == "event", made_max=MADE_MAX)
    return trial, [*(str(fault.error) for fault in files.faults), *dataset.faults()]
