"""A running gateway checks its files as ``lamplighter check`` does."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.errors import QueueFullError, UpstreamError
from lamplighter.gateway.service import settings_check
from lamplighter.gateway.service.settings_check import SettingsCheck
from tests.support.gateway_process import GatewayProcess


def found(gateway: GatewayProcess) -> Any:
    with urllib.request.urlopen(f"{gateway.http_url}/settings/check", timeout=120) as answer:
        return json.load(answer)


def test_the_files_are_checked_as_they_are_now(tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    with GatewayProcess(tmp_path, "--set", "mqtt.client_id=kitchen") as gateway:
        assert found(gateway) == {"valid": True, "faults": [], "notes": found(gateway)["notes"]}
        rules = tmp_path / "mapping" / "home.toml"
        rules.write_text('[[stream]]\ntopic = "door"\npayload = "bool"\nproperty = "ex:door"\n')
        answer = found(gateway)
        assert not answer["valid"] and any("home.toml" in fault for fault in answer["faults"])
        rules.unlink()
        assert found(gateway)["valid"]


def test_settings_of_the_command_line_are_checked_too(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, "--set", "limits.query_bytes_max=5000") as gateway:
        gateway.config.write_text(gateway.config.read_text() + "\n[limits]\nquery_bytes_max = -1\n")
        assert found(gateway)["valid"]  # the option replaces the key of the file


async def test_one_check_runs_at_a_time_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho $$ >> started\nexec sleep 1000\n")
    program.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(settings_check, "TIME_S", 1.0)
    checking = SettingsCheck(())
    nothing: Any = None
    first = asyncio.ensure_future(checking.check(nothing, nothing))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await checking.check(nothing, nothing)
    with pytest.raises(UpstreamError):
        await first
    for pid in (tmp_path / "started").read_text().split():
        assert not Path(f"/proc/{pid}").exists()
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UpstreamError):
        await checking.check(nothing, nothing)
