"""Which topics rules of the dataset may write: those of the settings, and those of adopted devices."""

from __future__ import annotations

import json

import msgspec
import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Adoption, Entry
from lamplighter.adapters.mapping import CommandRule
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.sender import permits
from lamplighter.adapters.mqtt.settings import COMMANDS, MqttSettings
from lamplighter.engine.terms import iri, literal
from tests.support.announcements import announcements
from tests.support.desired_states import BASE, StatesGateway


def shelly() -> Device:
    """One that is switched by remote procedure calls."""
    announced = Announcements(["shelly"], devices_max=100)
    found = [
        one for topic, payload in announcements("shelly") for one in announced.read("default", topic, payload).devices
    ]
    return next(one for one in found if any(a.command["topic"].endswith("/rpc") for a in one.actuators))


def commands(discovering: Discovering, device: Device, *, path: str = "", **changes: object) -> list[CommandRule]:
    """The commands of the dataset that its adoption writes. path: another node; changes: of the tables."""
    rules = DatasetRules(BASE)
    for own, rule in discovering.feed.registry.rules(device).items():
        if "command" in rule:
            changed = {"command": rule["command"] | changes}
            rules.change([(iri(BASE + (path or own)), literal(json.dumps(changed)))], ())
    return rules.commands()


@pytest.fixture
def discovering() -> Discovering:
    return Discovering(StatesGateway(), base_iri=BASE, formats=["shelly"], adopt="ask", devices_max=10)


def enter(discovering: Discovering, device: Device, adoption: Adoption) -> None:
    discovering.feed.entries[device.identity] = Entry(device, adoption)


def test_adoption_permits_what_the_device_announced(discovering: Discovering) -> None:
    device = shelly()
    enter(discovering, device, "adopted")
    found = commands(discovering, device)
    assert found and all(map(discovering.has_adopted, found))
    assert not any(permits(COMMANDS, one.table.topic) for one in found)


@pytest.mark.parametrize("adoption", ["proposed", "ignored", "retired"])
def test_no_other_decision_does(discovering: Discovering, adoption: Adoption) -> None:
    device = shelly()
    found = commands(discovering, device)
    assert not any(map(discovering.has_adopted, found))
    enter(discovering, device, adoption)
    assert not any(map(discovering.has_adopted, found))


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": '{"method": "Shelly.FactoryReset"}'},
        {"topic": "shellyplus1-other/rpc"},
        {"values": {"true": "1"}},
        {"path": "mapping/mine"},
        {"path": "mapping/shelly/other/command/x"},
    ],
)
def test_a_rule_that_sends_something_else_is_not_permitted(
    discovering: Discovering, changes: dict[str, object]
) -> None:
    device = shelly()
    enter(discovering, device, "adopted")
    found = commands(discovering, device, **changes)  # type: ignore[arg-type]
    assert found and not any(map(discovering.has_adopted, found))


def test_a_list_of_one_s_own_adds_to_the_default_and_an_empty_one_permits_none() -> None:
    settings = msgspec.convert({"host": "127.0.0.1", "commands": ["+/rpc", "+/set"]}, MqttSettings)
    assert settings.commands == (*COMMANDS, "+/rpc")
    assert MqttSettings(host="a", commands=()).commands == ()
    assert MqttSettings(host="a").commands == COMMANDS
