"""The gateway's own components, each in its bad states, with reason and cure."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.cloud_sync.order_intake import OrderState
from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.damage import Acceptance, DamageReport, accept_damage, read_damage
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.monitoring.health import own as own_module
from lamplighter.gateway.monitoring.health.components import Component, Reports
from lamplighter.gateway.monitoring.health.own import OwnComponents, Space, Validity
from lamplighter.gateway.settings import Settings
from tests.support.gateway_parts import START, FakeClock, FullDisk, opened_log, recovered_runner, update
from tests.support.tables import each_row

MIB = 1024 * 1024
GIB = 1024 * MIB


class Own:
    """The components over a data folder."""

    def __init__(self, data: Path, **tables: Any) -> None:
        self.data, self.clock, self.reports = data, FakeClock(), Reports()
        settings = msgspec.convert(tables, Settings)
        self.log: LogWriter = opened_log(data, self.clock)
        self.parts = OwnComponents(lambda: settings, self.clock, self.log, self.reports, self.clock.boottime_us())

    def of(self, name: str) -> Component:
        [found] = [one for one in self.parts.components() if one.name == name]
        return found


def sync_status(data: Path, **members: Any) -> None:
    (data / "sync.json").write_text(json.dumps(members))
    os.utime(data / "sync.json", ns=(0, len(list(data.glob("*"))) + hash(json.dumps(members)) % 10**9))


@pytest.mark.parametrize(
    ("free", "size", "state"),
    [
        (10 * GIB, 32 * GIB, "ok"),
        (300 * MIB, 32 * GIB, "ok"),
        (200 * MIB, 32 * GIB, "degraded"),
        (200 * MIB, 1 * GIB, "ok"),
        (3 * MIB, 64 * MIB, "degraded"),
        (15 * MIB, 32 * GIB, "failed"),
        (0, 64 * MIB, "failed"),
    ],
)
def test_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, size: int, state: str
) -> None:
    monkeypatch.setattr(own_module, "disk_space", lambda path: Space(free, size, read_only=False))
    found = Own(tmp_path).of("disk")
    assert found.state == state
    if state != "ok":
        assert found.reason.startswith(f"{free // MIB} MiB of {size // MIB:,} MiB are free on the disk of {tmp_path}")
        assert found.cure == "free disk space, or set a smaller log.bytes_max"


def test_a_disk_that_is_read_only_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Own(tmp_path)
    assert own_module.disk_space(tmp_path).size > 0
    with monkeypatch.context() as patched:
        patched.setattr(own_module, "disk_space", lambda path: Space(GIB, GIB, read_only=True))
        assert (own.of("disk").state, "read-only" in own.of("disk").reason) == ("failed", True)

    def gone(path: Path) -> Space:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(own_module, "disk_space", gone)
    assert own.of("disk").reason == f"{tmp_path}: Input/output error"


def test_a_clock_that_is_not_synchronised(tmp_path: Path) -> None:
    own = Own(tmp_path)
    assert own.of("clock").state == "ok"
    own.clock.synchronised = False
    found = own.of("clock")
    assert (found.state, found.reason) == (
        "degraded",
        "the clock is not synchronised; delayed updates with `at` wait",
    )
    assert all(text in found.cure for text in ("timedatectl", '"always"', '"never"'))


def test_a_clock_that_is_never_trusted_is_as_set(tmp_path: Path) -> None:
    own = Own(tmp_path, gateway={"clock_trusted": "never"})
    own.clock.synchronised = False
    assert own.of("clock").state == "ok"


async def test_a_full_disk_fails_the_log_until_there_is_room(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        health = runner.figures.health
        assert health.unready() == ""
        disk = FullDisk()
        runner.log.disk = disk
        disk.left = 0
        with pytest.raises(ChangeLogError):
            await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
        status = runner.figures.status()
        first = status["components"][0]
        assert (status["status"], first["name"], first["state"]) == ("refusing", "log", "failed")
        assert first["reason"] == "updates are refused: No space left on device"
        assert first["cure"].startswith("free disk space")
        assert health.unready() == "log"
        disk.left = None
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
        assert runner.figures.status()["status"] == "ok"
        assert health.unready() == ""


def test_damage_stays_until_it_is_accepted(tmp_path: Path) -> None:
    own = Own(tmp_path)
    own.log.damage.add(DamageReport("2026-11-21T02:00:00Z", "the change log was damaged: a"))
    own.log.damage.add(DamageReport("2026-11-21T02:00:01Z", "the change log was damaged: b"))
    found = own.of("log")
    assert (found.state, found.reason) == ("failed", "the change log was damaged: b (and 1 more)")
    assert found.cure.endswith("then accept it with `lamplighter verify --accept`")
    assert own.parts.has_damage()
    own.log.close()
    again = Own(tmp_path)
    assert again.of("log").state == "failed", "also after a restart"
    accept_damage(tmp_path, Disk(), Acceptance("2026-11-21T03:00:00Z", "jo", read_damage(tmp_path)))
    assert again.of("log").state == "ok", "without a restart"
    assert not again.parts.has_damage()


def test_what_the_keeper_and_the_auditor_report(tmp_path: Path) -> None:
    own = Own(tmp_path)
    own.reports.failing("engine", "restart")("index and store differ")
    assert own.of("engine") == Component(name="engine", state="failed", reason="index and store differ", cure="restart")
    assert own.parts.has_damage()


# --- security ---


def test_a_certificate_that_expires(tmp_path: Path) -> None:
    own = Own(tmp_path)
    assert own.of("security").state == "ok", "plain mode has none"
    file = tmp_path / "own.pem"
    own.parts.validity = Validity(START - timedelta(days=1), START + timedelta(days=20), file)
    assert own.of("security").state == "ok"
    own.clock.advance(7 * 86_400)
    found = own.of("security")
    assert (found.state, found.reason) == ("degraded", "the certificate expires on 2026-12-11")
    assert found.cure == f"replace {file} and its key, then restart the gateway"
    own.clock.advance(14 * 86_400)
    found = own.of("security")
    assert (found.state, found.reason) == ("failed", "the certificate expired on 2026-12-11")
    own.clock.synchronised = False
    assert own.of("security").state == "ok", "a board without a clock cannot tell"
    own.clock.synchronised = True
    own.clock.step(-timedelta(days=30))
    assert own.of("security").reason == "the certificate is not valid before 2026-11-20"


# --- sync ---


def test_without_a_destination_there_is_no_shipper(tmp_path: Path) -> None:
    assert "sync" not in [one.name for one in Own(tmp_path).parts.components()]


def test_a_shipper_that_never_ran(tmp_path: Path) -> None:
    own = Own(tmp_path, sync={"destination": "ship"})
    assert own.of("sync").state == "ok", "it runs some minutes after the start"
    own.clock.advance(own_module.SYNC_LATE_S)
    found = own.of("sync")
    assert (found.state, found.reason) == ("failed", "the shipper has never run")
    assert "lamplighter-sync.timer" in found.cure


def test_a_shipper_that_stopped(tmp_path: Path) -> None:
    own = Own(tmp_path, sync={"destination": "ship", "interval_s": 600})
    now = START.timestamp()
    sync_status(tmp_path, at=now, last_success=now)
    own.clock.advance(1700)
    assert own.of("sync").state == "ok"
    own.clock.advance(200)
    assert own.of("sync").reason == "the shipper has not run since 2026-11-21T02:00:00Z"
    own.clock.synchronised = False
    assert own.of("sync").state == "ok", "the times cannot be compared"


def test_a_shipper_with_a_window_runs_once_a_day(tmp_path: Path) -> None:
    own = Own(tmp_path, sync={"destination": "ship", "window": "01:00-02:00"})
    sync_status(tmp_path, at=START.timestamp(), last_success=START.timestamp())
    own.clock.advance(86_400)
    assert own.of("sync").state == "ok"
    own.clock.advance(86_400)
    assert own.of("sync").state == "failed"


@each_row(("success_s_ago", "state"), [(3600, "degraded"), (2 * 86_400, "failed"), (None, "failed")])
def test_a_shipper_that_fails(tmp_path: Path, success_s_ago: int | None, state: str) -> None:
    own = Own(tmp_path, sync={"destination": "ship"})
    now = START.timestamp()
    success = None if success_s_ago is None else now - success_s_ago
    sync_status(tmp_path, at=now, last_success=success, last_error="no route to host", last_error_at=now)
    found = own.of("sync")
    assert (found.state, found.reason) == (state, "no route to host")
    assert "lamplighter sync status" in found.cure
    sync_status(tmp_path, at=now + 1, last_success=now + 1, last_error="", last_error_at=None)
    assert own.of("sync").state == "ok"


def test_a_shipper_with_a_problem(tmp_path: Path) -> None:
    own = Own(tmp_path, sync={"destination": "ship"})
    now = START.timestamp()
    sync_status(tmp_path, at=now, last_success=now, problem="a segment is not sealed", problem_at=now - 1)
    assert (own.of("sync").state, own.of("sync").reason) == ("degraded", "a segment is not sealed")
    sync_status(tmp_path, at=now, last_success=now, problem="a segment is not sealed", problem_at=now - 3600)
    assert own.of("sync").state == "ok", "later runs had none"
    sync_status(tmp_path, at=now, last_success=now, refused=2)
    assert own.of("sync").reason == "the collector has refused segments: 2"


def _order_state(data: Path, content: bytes) -> None:
    (data / "orders.json").write_bytes(content)
    os.utime(data / "orders.json", ns=(0, hash(content) % 10**12))


def test_faults_of_orders_are_shown_with_the_cure(tmp_path: Path) -> None:
    sync = {"destination": "to", "orders": {"key_file": "fleet.pub"}}
    own = Own(tmp_path, sync=sync)
    assert own.of("orders").state == "ok"
    assert [one.name for one in Own(tmp_path / "other", sync={"destination": "to"}).parts.components()][-2:] == [
        "sync",
        "security",
    ]
    now = own.clock.wall().timestamp()
    state = OrderState(number=3, refused=1, last_refusal="order 3: it is not signed by a key", refused_at=now)
    _order_state(tmp_path, msgspec.json.encode(state))
    found = own.of("orders")
    assert (found.state, found.reason) == ("degraded", "refused: order 3: it is not signed by a key")
    _order_state(tmp_path, msgspec.json.encode(msgspec.structs.replace(state, refused_at=now - 86_401)))
    assert own.of("orders").state == "ok"
    _order_state(tmp_path, msgspec.json.encode(msgspec.structs.replace(state, error="the gateway gives no token")))
    assert (own.of("orders").state, own.of("orders").reason) == ("degraded", "the gateway gives no token")
    for damaged in (b"{", b"[" * 100_000, b'{"number":"x"}'):
        _order_state(tmp_path, damaged)
        assert own.of("orders").state == "failed"
        assert "orders.json" in own.of("orders").reason
