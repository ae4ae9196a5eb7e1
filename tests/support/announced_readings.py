"""Devices of announcements, what their rules read of messages, and what is sent to them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.literals import nil_reason
from lamplighter.adapters.mapping import Births, CommandTable, Mapping, StreamRule, StreamTable, command_rule
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.engine.terms import lexical, literal
from lamplighter.ontology.vocabulary import PREFIXES

BASE = "http://e/"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def devices_of(messages: Iterable[tuple[str, bytes]]) -> tuple[dict[str, Device], list[str]]:
    """The devices by identity, and the reasons of problems. Each record is one that the gateway takes back."""
    known = Announcements(FORMATS, devices_max=50)
    devices: dict[str, Device] = {}
    problems: list[str] = []
    for topic, payload in messages:
        changes = known.read("", topic, payload)
        devices |= {device.identity: device for device in changes.devices}
        problems += [problem.reason for problem in changes.problems]
    for device in devices.values():
        check_record(Device.from_json(device.to_json()))
    return devices, problems


def mapping_of(devices: Iterable[Device]) -> Mapping:
    """The rules of adopted devices."""
    rules = {path: rule for device in devices for path, rule in Registry(BASE).rules(device).items()}
    return Mapping(
        [
            StreamRule(msgspec.convert(rule["stream"], StreamTable), prefixes=PREFIXES, base_iri=BASE, place=path)
            for path, rule in rules.items()
            if "stream" in rule
        ]
    )


def values_of(mapping: Mapping, topic: str, payload: bytes) -> tuple[dict[str, str], int]:
    """What a message says, by device and key, and how many values cannot be read."""
    found = mapping.readings(topic, payload, retained=False, received=NOON, births=Births())
    values = {
        lexical(one.stream.sensor).removeprefix(f"{BASE}sensor/"): lexical(one.value)
        for one in found
        if isinstance(one, Reading) and nil_reason(one.value) is None
    }
    return values, sum(not isinstance(one, Reading) for one in found)


def sent(device: Device, key: str, state: str) -> tuple[str, str]:
    """Topic and payload of a command."""
    (command,) = [one.command for one in device.actuators if one.key == key]
    table = msgspec.convert(command, CommandTable)
    rule = command_rule(table, prefixes=PREFIXES, base_iri=BASE, place=key)
    return table.topic, command_payload(rule, literal(state)).decode()
