"""Why an adapter does not run, by what systemd says of its service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from lamplighter.gateway.monitoring import adapter_services
from lamplighter.gateway.monitoring.adapter_services import AdapterServices
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import UnitState
from tests.support.event_loops import until
from tests.support.tables import each_row

UNIT = "lamplighter-mqtt.service"
START = ("the adapter does not run", "start it: systemctl start lamplighter-mqtt, or lamplighter mqtt")
CORRECT = "correct this, it is started again by itself; `journalctl -u lamplighter-mqtt -n 50` has more"


class PlayedUnits:
    """Of systemd. Of one that is asked about, the next state, and at last the last one again."""

    def __init__(self, *states: UnitState) -> None:
        self.states = [*states]
        self.asked: list[Sequence[str]] = []

    def __call__(self, units: Sequence[str]) -> Mapping[str, UnitState]:
        self.asked.append(units)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {state.unit: state}


def state(active: str, sub: str, result: str = "exit-code", restarts: int = 3, status: str = "") -> UnitState:
    return UnitState(UNIT, active, sub, result, str(restarts), status, "9")


async def followed(services: AdapterServices, units: PlayedUnits, looks: int) -> None:
    following = asyncio.ensure_future(services.follow(units))
    await until(lambda: len(units.asked) > looks)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_services, "EVERY_S", 0.0)


def services(connections: Counter[str] | None = None) -> AdapterServices:
    wanted = msgspec.convert({"mqtt": {"host": "broker"}, "coap": {"enabled": False}}, Settings)
    return AdapterServices(lambda: wanted, Counter() if connections is None else connections)


@each_row(
    ("states", "told"),
    [
        ([state("inactive", "dead", "success", 0)], START),
        ([state("inactive", "dead", "exec-condition", 0)], START),
        (
            [state("activating", "start", "success", 0, "waiting for the gateway")],
            ("the adapter does not run: it is starting, waiting for the gateway", ""),
        ),
        (
            [state("activating", "auto-restart", status="failed: mapping/a.toml: no topic")],
            (
                "the adapter does not run, its service was started again 3 times: mapping/a.toml: no topic",
                CORRECT,
            ),
        ),
        (
            [
                state("activating", "auto-restart", restarts=0, status="failed: mapping/a.toml: no topic"),
                state("activating", "start", "success", 1, "starting"),  # the words are gone, and what is wrong is not
            ],
            ("the adapter does not run, its service was started again 1 time: mapping/a.toml: no topic", CORRECT),
        ),
        (
            [state("activating", "auto-restart", "oom-kill")],
            (
                "the adapter does not run, its service was started again 3 times: its service ended "
                "(oom-kill, status 9)",
                CORRECT,
            ),
        ),
        (
            [state("failed", "failed", "exit-code", 0, "failed: no")],
            (
                "the adapter does not run: no",
                CORRECT.replace("it is started again by itself", "then systemctl start lamplighter-mqtt"),
            ),
        ),
        (
            [state("activating", "auto-restart", status="failed: once"), state("inactive", "dead", "success", 0)],
            START,
        ),
        (
            [UnitState(UNIT, "inactive", "dead", "success", "0", load="masked")],
            ("the adapter does not run: its service is masked", f"`systemctl unmask {UNIT} && systemctl start {UNIT}`"),
        ),
        (
            [UnitState(UNIT, "inactive", "dead", "success", "0", load="bad-setting")],
            ("the adapter does not run: its service is bad-setting", f"`systemd-analyze verify {UNIT}`"),
        ),
    ],
)
async def test_an_adapter_that_does_not_run_is_described_by_its_service(
    states: list[UnitState], told: tuple[str, str]
) -> None:
    units = PlayedUnits(*states)
    one = services()
    assert one.absence("mqtt") == START, "systemd was not asked yet"
    await followed(one, units, len(states))
    assert one.absence("mqtt") == told
    assert units.asked[0] == [UNIT], "the others are not wanted"


async def test_systemd_is_not_asked_while_all_adapters_run() -> None:
    connections, units = Counter({"mqtt": 1}), PlayedUnits(state("active", "running"))
    one = services(connections)
    following = asyncio.ensure_future(one.follow(units))
    for _ in range(20):
        await asyncio.sleep(0)
    assert units.asked == []
    connections["mqtt"] = 0
    await until(lambda: units.asked != [])
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_unexpected_error_does_not_end_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_services, "AGAIN_S", 0.0)
    units = PlayedUnits(state("activating", "auto-restart", status="failed: no topic"))

    def ask(names: Sequence[str]) -> Mapping[str, UnitState]:
        told = units(names)
        if len(units.asked) == 1:
            raise RuntimeError("can't start new thread")
        return told

    seen = services()
    following = asyncio.ensure_future(seen.follow(ask))
    await until(lambda: "no topic" in seen.absence("mqtt")[0])
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
