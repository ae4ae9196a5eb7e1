"""Updates of adapters that are under way when a device is removed: they have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal

from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.devices.desired import actuation_update, refusal_update, reported_update
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.draft import ThingDraft
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.literals import TRUE, datetime_term
from lamplighter.adapters.mapping.dataset_rules import QUERY, DatasetRules
from lamplighter.adapters.mapping.resource_commands import ResourceCommandRule
from lamplighter.adapters.mapping.rules import CommandRule, ReadingRule
from lamplighter.adapters.model.commits import ReadingCommits, Writing
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.resources.counters import ReadingCounters
from lamplighter.adapters.specs import Kind
from lamplighter.engine import Engine
from lamplighter.engine.client import UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import Quad, iri, literal
from tests.adapters.devices.test_registry import BASE, house
from tests.support.tables import each_row
from tests.support.thing_descriptions import hall

REGISTRY = Registry(BASE)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


def coap_device() -> Device:
    found = parse_links(b'</t>;obs;ct=0;rt="temperature",</lamp>;if="core.a";rt="light";ct=0')
    device = propose(found, base="coap://192.168.7.20", place="test").device
    assert device is not None and device.sensors and device.actuators
    return device


def polled_device(resource: str) -> Device:
    draft = ThingDraft("urn:x:thing", broker="default", name="thing")
    draft.sensor("t", "gateway:temperature", resource, "number")
    device = draft.device()
    assert device.sensors
    return device


class LateClient:
    """The gateway, which commits another update just before those of each message."""

    def __init__(self, engine: Engine, before: str | None) -> None:
        self._engine, self._before = engine, before

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        if self._before is not None:
            self._engine.update(self._before)
        return [UpdateAnswer(self._engine.update(request.sparql).sequence) for request in requests]


def quads(engine: Engine) -> list[Quad]:
    return [quad for batch in engine.snapshot() for quad in batch]


def known_rules(engine: Engine, kind: Kind) -> DatasetRules:
    rules = DatasetRules(BASE, kind=kind)
    for _ in rules.replace([(row["mapping"], row["rule"]) for row in engine.query(QUERY).value.bindings()]):
        pass
    assert rules.problems() == {}
    return rules


def reading_rules(rules: DatasetRules) -> Iterator[tuple[ReadingRule, str]]:
    """Each with the name of its messages."""
    yield from ((rule, rule.filter) for rule in rules.streams())
    yield from ((rule, rule.name) for rule in rules.resources().resources)


@each_row(
    "device, kind",
    [
        *((device, "mqtt") for device in (*house().values(), hall())),
        (coap_device(), "coap"),
        (polled_device("http://192.168.7.20/t"), "http-devices"),
        (polled_device("modbus+tcp://192.168.7.20/1/0"), "modbus"),
    ],
)
@each_row("model", ["latest", "event"])
async def test_no_update_under_way_brings_a_removed_device_back(
    device: Device, kind: Kind, model: Literal["latest", "event"]
) -> None:
    with Engine() as engine:
        engine.update(REGISTRY.announced(None, device, "all") or "")
        rules = known_rules(engine, kind)
        streams = [stream for rule, name in reading_rules(rules) for stream in rule.streams(name)]
        assert len(streams) == len(device.sensors)

        async def write(value: int, *, retained: bool = False, before: str | None = None) -> None:
            now = datetime_term(NOON)
            found = [Reading(one, literal(str(value)), now, retained, received=NOON) for one in streams]
            commits = ReadingCommits(
                LateClient(engine, before),
                kind=kind,
                settings=CoapSettings(model=model, events_kept=2, streams_max=100),
                counters=ReadingCounters(),
                warn=lambda *_, **__: None,
            )
            await commits.write(found, Writing(), None)

        await write(1)
        assert any(quad.o == literal("1") for quad in quads(engine)) == bool(streams)
        await write(2, before=REGISTRY.removal(Entry(device, "adopted")))
        await write(3, retained=True)
        commands: list[CommandRule | ResourceCommandRule] = [*rules.commands(), *rules.resources().commands]
        assert len(commands) == len(device.actuators)
        for rule in commands:
            assert rule.actuator is not None
            of = iri(rule.actuator), TRUE
            engine.update(reported_update(*of, NOON, [iri(f"{BASE}broker/default")], rule.condition))
            engine.update(actuation_update(*of, NOON, None, rule.condition))
            engine.update(refusal_update(iri(rule.actuator), "no", rule.condition))
        assert [quad for quad in quads(engine) if device.id in " ".join(filter(None, quad))] == []
