"""Devices that are not ok, as the dataset has them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.monitoring.health import devices
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from tests.support.gateway_parts import START, FakeClock, recovered_runner, update

BASE = "http://lamplighter.local/"
PREFIXES = (
    "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
    "PREFIX lighting: <http://lamplighter.example/ns/lighting#> "
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def runner(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Runner]:
    async with recovered_runner(tmp_path, clock) as found:
        yield found


def found(runner: Runner) -> dict[str, Component]:
    """The components of devices by name."""
    listed = runner.figures.health.components()
    return {one.name: one for one in listed if one.name.startswith("device")}


async def insert(runner: Runner, text: str) -> None:
    await update(runner, f"{PREFIXES} INSERT DATA {{ {text} }}")


async def test_without_devices_all_is_well(runner: Runner) -> None:
    assert [(name, one.state) for name, one in found(runner).items()] == [("devices", "ok")]


async def test_offline_devices_are_named_with_their_label(runner: Runner) -> None:
    await insert(
        runner,
        f"<{BASE}device/hall> gateway:online false ; rdfs:label 'Hall lamp' . "
        f"<{BASE}device/kitchen> gateway:online true . "
        f"<{BASE}device/coap/a~1> gateway:online false ; gateway:coapAddress 'a:1' ; gateway:unreachable 'no answer'",
    )
    names = found(runner)
    assert set(names) == {"devices", "device/hall", "device/coap/a:1"}
    assert (names["devices"].state, names["devices"].reason) == ("degraded", "2 offline")
    assert (names["device/hall"].state, names["device/hall"].reason) == ("failed", "Hall lamp: offline")
    assert "lamplighter devices remove" in names["device/hall"].cure
    assert names["device/coap/a:1"].reason == "offline: no answer"
    await update(runner, f"{PREFIXES} DELETE {{ ?d gateway:online false }} WHERE {{ ?d gateway:online false }}")
    assert set(found(runner)) == {"devices"}


async def test_an_offline_device_was_last_seen_at_a_time(runner: Runner) -> None:
    times = {"a": "2026-11-20T02:00:00Z", "b": "2026-11-20T02:00:00", "c": "yesterday"}
    for name, seen in times.items():
        await insert(runner, f"<{BASE}device/{name}> gateway:online false ; gateway:lastSeen '{seen}'")
    names = found(runner)
    assert names["device/a"].since == START - timedelta(days=1)
    assert [names[f"device/{name}"].since for name in "bc"] == [START, START], "when it was found"


async def test_a_retired_device_may_be_offline(runner: Runner) -> None:
    await insert(runner, f"<{BASE}device/hall> gateway:online false ; gateway:adoption 'retired'")
    assert set(found(runner)) == {"devices"}


@pytest.mark.parametrize("state", ["gateway:desiredState", "lighting:hasStatus"])
async def test_a_device_that_does_not_reach_its_desired_state(
    runner: Runner, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(devices, "REST", 0.0)
    lamp = f"<{BASE}actuator/hall/light>"
    await insert(runner, f"{lamp} {state} 'ON' ; gateway:reportedState 'OFF' ; rdfs:label 'Hall lamp'")
    await insert(runner, f"<{BASE}actuator/number> {state} 1.0 ; gateway:reportedState '1'")
    await insert(runner, f"<{BASE}actuator/unknown> gateway:reportedState 'OFF'")
    assert set(found(runner)) == {"devices"}, "it may be on its way"
    clock.advance(devices.GRACE_S)
    names = found(runner)
    assert set(names) == {"devices", "device/hall/light"}
    assert names["devices"].reason == "1 not as desired"
    component = names["device/hall/light"]
    assert (component.state, component.reason) == ("degraded", "Hall lamp: ON is desired, OFF is reported")
    assert component.cure == f"see what was sent: lamplighter explain {BASE}actuator/hall/light"
    await update(runner, f"{PREFIXES} DELETE DATA {{ {lamp} gateway:reportedState 'OFF' }}")
    await insert(runner, f"{lamp} gateway:reportedState 'ON'")
    assert set(found(runner)) == {"devices"}
    await update(runner, f"{PREFIXES} DELETE DATA {{ {lamp} gateway:reportedState 'ON' }}")
    await insert(runner, f"{lamp} gateway:reportedState 'OFF'")
    assert set(found(runner)) == {"devices"}, "it has its time again"


async def test_many_devices_are_counted_and_some_listed(
    runner: Runner, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round over the actuators takes several looks, each of bounded time."""
    monkeypatch.setattr(devices, "REST", 0.0)
    monkeypatch.setattr(devices, "TURN_S", 0.0)
    many = 200
    rows = (f"<{BASE}actuator/{n}> gateway:desiredState 'ON' ; gateway:reportedState 'OFF'" for n in range(many))
    await insert(runner, " . ".join(rows))
    looks = 0
    while found(runner)["devices"].state == "ok":
        looks += 1
        assert looks < 10 * many
        clock.advance(devices.GRACE_S)
    assert looks >= many / devices._AT_ONCE
    names = found(runner)
    assert names["devices"].reason == f"{many} not as desired"
    assert len(names) == 1 + devices.LISTED_MAX


async def test_nodes_that_are_no_devices_do_no_harm(runner: Runner, clock: FakeClock) -> None:
    await insert(runner, "[] gateway:online false ; gateway:reportedState 1 ; gateway:desiredState 2")
    await insert(runner, "<urn:x> gateway:online false , 'false' ; rdfs:label <urn:y> ; gateway:reportedState <urn:z>")
    clock.advance(60)
    assert set(found(runner)) == {"devices", "device/urn:x"}


@pytest.mark.parametrize("seen", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_times_outside_the_years_1_to_9999_in_utc_are_none(runner: Runner, seen: str) -> None:
    await insert(runner, f"<{BASE}device/a> gateway:online false ; gateway:lastSeen '{seen}'")
    component = found(runner)["device/a"]
    assert component.since == START
    assert component.members()["since"]


async def test_a_device_and_an_actuator_of_one_name_are_one_component(
    runner: Runner, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "REST", 0.0)
    await insert(runner, f"<{BASE}device/a> gateway:online false")
    await insert(runner, f"<{BASE}actuator/a> gateway:desiredState 'ON' ; gateway:reportedState 'OFF'")
    found(runner)
    clock.advance(devices.GRACE_S)
    listed = runner.figures.health.components()
    assert [one.state for one in listed if one.name == "device/a"] == ["failed"]
    assert found(runner)["devices"].reason == "1 offline, 1 not as desired"


async def test_only_listed_devices_cost_more_than_a_look(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of devices may be long, and /health is read often."""
    many = 5 * devices.LISTED_MAX
    await insert(runner, " . ".join(f"<{BASE}device/{n}> gateway:online false" for n in range(many)))
    made = []

    def noted(name: str, *rest: object, **members: object) -> Component:
        made.append(name)
        return not_ok(name, *rest, **members)  # type: ignore[arg-type]

    monkeypatch.setattr(devices, "not_ok", noted)
    assert found(runner)["devices"].reason == f"{many} offline"
    assert len(made) == 1 + devices.LISTED_MAX


async def test_a_device_that_is_not_ok_stays_listed(
    runner: Runner, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A device that gave its place to another one would be logged as ok."""
    caplog.set_level(logging.INFO)
    for n in range(3 * devices.LISTED_MAX):
        await insert(runner, f"<{BASE}device/{n}> gateway:online false")
        clock.advance(60)
        found(runner)
    assert not [one for one in caplog.messages if one.startswith("component ok component=device/")]


async def test_the_command_of_a_cure_is_quoted_for_a_shell(
    runner: Runner, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "REST", 0.0)
    hostile = "urn:x;reboot$(reboot)'&"
    await insert(runner, f"<{hostile}> gateway:desiredState 'ON' ; gateway:reportedState 'OFF'")
    found(runner)
    clock.advance(devices.GRACE_S)
    component = next(one for name, one in found(runner).items() if name != "devices")
    assert shlex.split(component.cure.partition("lamplighter ")[2]) == ["explain", hostile]


async def test_a_refused_state_is_named_with_its_reason(runner: Runner) -> None:
    await insert(
        runner,
        f"<{BASE}actuator/plug/actuation> gateway:refused 'the broker refuses the message' . "
        f"<{BASE}actuator/plug> gateway:desiredState true ; rdfs:label 'Plug switch' . "
        f"<{BASE}actuator/gone/actuation> gateway:refused 'another one'",
    )
    names = found(runner)
    assert names["devices"].reason == "1 refusing"
    assert names["device/plug"].reason == "Plug switch: the state is refused: the broker refuses the message"
    assert "lamplighter devices problems" in names["device/plug"].cure
