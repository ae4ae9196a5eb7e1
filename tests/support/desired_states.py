"""Desired states of a lamp in an engine of this process, and the rule for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from lamplighter.adapters.devices.output import Output, OutputPolicy
from lamplighter.adapters.devices.sender import Sender
from lamplighter.adapters.mapping import CommandRule, CommandTable, command_rule
from lamplighter.engine import Engine
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import Bag, lexical
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.event_loops import beside, settled

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
BASE = "http://gateway.example/"
LAMP = f"<{BASE}actuator/lamp>"
NAMES = "".join(f"PREFIX {name}: <{address}> " for name, address in PREFIXES.items())
REFUSED = f"?a sosa:madeByActuator {LAMP} ; gateway:refused ?x"


def rule(place: str = "<http://e/rule>", **changes: Any) -> CommandRule:
    table = {
        "topic": "zigbee2mqtt/lamp/set",
        "actuator": "actuator/lamp",
        "payload": '{"state": {json}}',
        "values": {"true": "ON", "false": "OFF"},
        "state": {"topic": "zigbee2mqtt/lamp", "member": "state"},
    }
    return command_rule(msgspec.convert(table | changes, CommandTable), prefixes=PREFIXES, base_iri=BASE, place=place)


class StatesGateway:
    """Stands in for the engine client; one subscription. updated: how many updates it took; origins: of them."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.heard: asyncio.Queue[Notification] = asyncio.Queue()
        self.updated = 0
        self.tells_commits = False
        self.origins: list[str] = []

    def write(self, text: str) -> None:
        commit = self.engine.update(NAMES + text)
        for note in commit.notifications:
            place = (1, commit.sequence) if self.tells_commits else None
            heard = Notification(note.spuid, note.sequence, note.added, note.removed, commit=place)
            self.heard.put_nowait(heard)

    def desire(self, state: str) -> None:
        self.write(
            f"DELETE {{ {LAMP} gateway:desiredState ?was }} INSERT {{ {LAMP} gateway:desiredState {state} }} "
            f"WHERE {{ OPTIONAL {{ {LAMP} gateway:desiredState ?was }} }}"
        )

    def found(self, where: str) -> list[str]:
        rows = self.engine.query(f"{NAMES} SELECT ?x {{ {where} }}")
        return sorted(lexical(row["x"]) for row in rows)

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        self.tells_commits = tell_commit
        first = self.engine.subscribe(sparql)
        yield Notification(first.spuid, 0, first.first, Bag(first.first.variables))
        try:
            while True:
                yield await self.heard.get()
        finally:
            self.engine.unsubscribe(first.spuid)

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        self.updated += len(requests)
        self.origins += [request.cause.id for request in requests if request.cause is not None]
        for request in requests:
            self.write(request.sparql)
        return [UpdateAnswer(sequence=1, delayed=None) for _ in requests]


@asynccontextmanager
async def running(
    gateway: StatesGateway,
    sender: Sender[CommandRule],
    *rules: CommandRule,
    files: Sequence[CommandRule] = (),
    note: Callable[[str, str], None] = lambda target, reason: None,
    follows: Collection[str] = (),
) -> AsyncIterator[Output[CommandRule]]:
    """rules: of the dataset."""
    one = Output(gateway, sender, OutputPolicy("test", follows=frozenset(follows)), note=note)
    one.change_rules(files, rules)
    async with beside(one.run()) as task:
        await settled()
        yield one
    assert task.cancelled()
