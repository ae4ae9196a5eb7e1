"""What `lamplighter status` prints of a gateway's figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lamplighter.gateway.cli.status_command import ABSENT, status_lines
from lamplighter.gateway.clock import iso

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def component(name: str, state: str = "ok", reason: str = "", cure: str = "") -> dict[str, Any]:
    since = iso(NOW - timedelta(minutes=3))
    return {"name": name, "state": state, "since": since, "reason": reason, "cure": cure}


def lines(*components: dict[str, Any], **figures: Any) -> list[str]:
    return list(status_lines({"components": list(components), **figures}, NOW))


def test_components_that_are_ok_are_one_line() -> None:
    assert lines(component("engine"), component("log"))[1:3] == ["all 2 components are ok: engine, log", ""]


def test_the_others_are_a_table_with_reason_and_cure() -> None:
    found = lines(
        component("mqtt/default", "failed", "not connected", "check the broker"),
        component("clock", "degraded", "not set"),
        component("log"),
    )
    assert found[1:6] == [
        "COMPONENT     STATE     FOR    REASON AND CURE",
        "mqtt/default  failed    3 min  not connected",
        "                               -> check the broker",
        "clock         degraded  3 min  not set",
        "ok: log",
    ]


def test_many_bad_components_stay_on_one_screen() -> None:
    found = lines(*(component(f"device/{number}", "failed", "offline", "look") for number in range(30)))
    assert "and 22 more components; `lamplighter status --json` has all" in found
    assert len(found) < 40
    assert "ok: none" in found


def test_texts_of_devices_have_no_control_sequences() -> None:
    found = lines(component("device/\x1b[2J", "failed", "\x1b[2J\nSTATE"), applications={"a\x07": {"failed": 1}})
    found += lines(component("application/\x1b"), adapters={"mqtt": {"dropped\x1b[2J": 1}})
    assert not any("\x1b" in line or "\x07" in line for line in found)
    assert any(line.startswith("app a") and line.endswith(" failed 1") for line in found)


def test_a_time_that_cannot_be_read_is_left_out() -> None:
    bad = component("clock", "degraded", "not set")
    for since in (None, "", "now", 3):
        assert any(line.split() == ["clock", "degraded", "not", "set"] for line in lines(bad | {"since": since}))


def test_the_status_of_a_gateway_of_another_version_shows_what_it_has() -> None:
    figures = {
        "engine": {"version": "0.1", "gateway": "home", "status": "ok", "up_time_s": 60},
        "scheduler": {"requests": 1234},
        "brokers": [{}],
        "adapters": {"mqtt": {"messages": 2}},
    }
    lines = list(status_lines(figures, NOW))
    assert lines[0] == "Lamplighter 0.1, home: ok"
    assert "processed requests  1,234" in lines and "mqtt                messages 2" in lines
    assert f"SPU manager         {ABSENT}" in lines
    assert sum(ABSENT in line for line in lines) == 9
    assert not any(line.startswith("coap") for line in lines)
    assert ABSENT in next(status_lines({}, NOW))
    assert f"coap                {ABSENT}" in list(status_lines({"coap": {"devices": 1}}, NOW))


def test_shapes_and_violations_are_shown_where_there_is_validation() -> None:
    assert "SHACL               12 shapes, 1 violation" in lines(shacl={"shapes": 12, "violations": 1})
    assert not any(line.startswith("SHACL") for line in lines(shacl=None))
