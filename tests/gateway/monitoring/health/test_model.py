"""The list of components: order, time of the last change, log lines."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from lamplighter.gateway.monitoring.health import model
from lamplighter.gateway.monitoring.health.components import REPORTS_MAX, Component, Reports, State, not_ok
from lamplighter.gateway.monitoring.health.model import HealthModel
from lamplighter.gateway.monitoring.health.own import OwnComponents
from lamplighter.gateway.settings import Settings
from tests.support.gateway_parts import START, FakeClock, opened_log


class Listed:
    """A source whose components the test sets."""

    def __init__(self) -> None:
        self.states: dict[str, State] = {}

    def components(self) -> list[Component]:
        return [
            Component(name=name) if state == "ok" else not_ok(name, state, f"{name} is away", "switch it on")
            for name, state in self.states.items()
        ]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def listed() -> Listed:
    return Listed()


@pytest.fixture
def health(tmp_path: Path, clock: FakeClock, listed: Listed) -> HealthModel:
    log = opened_log(tmp_path, clock)
    return HealthModel(clock, OwnComponents(Settings, clock, log, Reports(), clock.boottime_us()), [listed])


def test_the_worst_component_is_the_first(health: HealthModel, listed: Listed) -> None:
    listed.states = {"a": "ok", "b": "degraded", "c": "failed", "d": "degraded"}
    found = health.components()
    assert [one.name for one in found[:3]] == ["c", "b", "d"]
    assert all(one.state == "ok" for one in found[3:])
    assert {"engine", "log", "disk", "clock", "security"} < {one.name for one in found}
    assert health.overall(found) == "degraded"
    listed.states = {"a": "ok"}
    assert health.overall(health.components()) == "ok"


def test_a_state_has_the_time_of_its_beginning(health: HealthModel, listed: Listed, clock: FakeClock) -> None:
    listed.states = {"a": "ok"}

    def since() -> timedelta:
        [found] = [one for one in health.components() if one.name == "a"]
        assert found.since is not None
        return found.since - START

    assert since() == timedelta(0)
    clock.advance(10)
    assert since() == timedelta(0)
    listed.states = {"a": "failed"}
    assert since() == timedelta(seconds=10)
    clock.advance(10)
    assert since() == timedelta(seconds=10)
    clock.step(timedelta(days=365))
    assert since() == timedelta(days=365, seconds=10), "the clock was wrong before"


def test_each_change_is_logged_once(
    health: HealthModel, listed: Listed, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=model.__name__)
    for state in ("ok", "ok", "failed", "failed", "degraded", "ok", "ok", "failed"):
        listed.states = {"a": state}  # type: ignore[dict-item]
        health.components()
    listed.states = {}
    health.components()
    assert [record.getMessage() for record in caplog.records] == [
        'component failed component=a reason="a is away" cure="switch it on"',
        'component degraded component=a reason="a is away" cure="switch it on"',
        "component ok component=a",
        'component failed component=a reason="a is away" cure="switch it on"',
        "component ok component=a",
    ]


def test_the_lines_of_a_minute_are_bounded(
    health: HealthModel, listed: Listed, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=model.__name__)
    for count in range(100):
        listed.states = {"a": "failed" if count % 2 else "degraded"}
        health.components()
    assert len(caplog.records) == model.CHANGES_MAX
    caplog.clear()
    clock.advance(60)
    listed.states = {"a": "ok"}
    health.components()
    assert [record.getMessage() for record in caplog.records] == [
        f"component changes not logged count={100 - model.CHANGES_MAX}",
        "component ok component=a",
    ]


def test_reports_stay_and_are_bounded() -> None:
    reports = Reports()
    assert reports.of("engine") is None
    report = reports.failing("engine", "restart it")
    reports.add("engine", "degraded", "slow", "wait")
    for number in range(2 * REPORTS_MAX):
        report(f"reason {number // 2}")
    found = reports.of("engine")
    assert found is not None
    assert (found.state, found.cure) == ("failed", "restart it")
    assert found.reason.startswith("slow; reason 0; reason 1; ")
    assert found.reason.count(";") == REPORTS_MAX - 1


def test_texts_of_devices_are_one_line_of_bounded_length() -> None:
    found = not_ok("device/\x1b[2Ja", "failed", "a\nSTATUS=b\x00\u2028c" + "x" * 5000, "")
    assert found.name == "device/ [2Ja"
    assert found.reason.startswith("a STATUS=b cx")
    assert len(found.reason) == 400
