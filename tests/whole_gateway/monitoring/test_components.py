"""The health of a running gateway, tried as an operator: each fault is named with its cure, until it is repaired."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lamplighter.adapters.mapping import load_mapping
from lamplighter.gateway import clock as clock_module
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.damage import DamageReport, KnownDamage
from lamplighter.gateway.monitoring import brokers
from lamplighter.gateway.monitoring.health import own
from lamplighter.gateway.monitoring.health.own import Space
from tests.support.brokers import mosquitto
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.mqtt_adapter import BASE, mqtt_adapter
from tests.support.places import ROOT
from tests.support.running_gateway import health, http, running_gateway, until, update

Addresses = Any


async def component(addresses: Addresses, name: str) -> dict[str, Any]:
    found = (await health(addresses))["components"]
    return dict(next((one for one in found if one["name"] == name), {}))


async def until_state(addresses: Addresses, name: str, state: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def reached() -> bool:
        nonlocal found
        found = await component(addresses, name)
        return bool(found.get("state") == state)

    await until(reached, f"{name} {state}")
    return found


async def run(folder: Path, addresses: Addresses, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command against a gateway of `running_gateway`."""
    config = folder / "lamplighter.toml"
    config.write_text(f"[http]\nport = {urlsplit(addresses.query).port}\n")
    return await asyncio.to_thread(command, *arguments, "--config", config)


async def test_a_healthy_gateway_says_so_everywhere(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        found = await health(addresses)
        names = ["engine", "log", "disk", "clock", "security", "devices"]
        assert [one["name"] for one in found["components"]] == names
        assert {(one["state"], one["reason"], one["cure"]) for one in found["components"]} == {("ok", "", "")}
        assert all(one["since"] for one in found["components"])
        assert (found["status"], found["problems"]) == ("ok", [])
        figures = (await http(addresses.health.replace("/health", "/figures"))).json
        assert [one["name"] for one in figures["components"]] == names
        metrics = (await http(addresses.health.replace("/health", "/metrics"))).body.decode()
        for name in names:
            assert f'lamplighter_component_state{{component="{name}",state="ok"}} 1.0' in metrics
            assert f'lamplighter_component_state{{component="{name}",state="failed"}} 0.0' in metrics
        ready = await http(addresses.health.replace("/health", "/ready"))
        assert (ready.status, ready.json) == (200, {"ready": True})


async def test_a_wrong_password_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "GRACE_S", 0.0)
    passwords = tmp_path / "passwords"
    tool = require_command("mosquitto_passwd")
    subprocess.run([tool, "-b", "-c", passwords, "jo", "right"], check=True, capture_output=True)
    passwords.chmod(0o644)
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    secret.chmod(0o600)
    mapping = load_mapping(ROOT / "mapping", BASE)
    with mosquitto(settings=("allow_anonymous false", f"password_file {passwords}")) as broker:
        mqtt = {"host": "127.0.0.1", "port": broker.port, "username": "jo", "password_file": str(secret)}
        async with (
            running_gateway(tmp_path, mqtt=mqtt) as addresses,
            mqtt_adapter(addresses, broker, mapping, username="jo", password_file=str(secret)),
        ):

            async def refused() -> bool:
                return "authori" in (await component(addresses, "mqtt/default")).get("reason", "").lower()

            await until(refused, "the reason")
            found = await until_state(addresses, "mqtt/default", "failed")
            assert found["reason"].startswith(f"broker 127.0.0.1:{broker.port} not connected: ")
            assert found["cure"] == "check username and password_file in [mqtt] of lamplighter.toml"
            assert (await health(addresses))["status"] == "degraded"
            shown = (await run(tmp_path, addresses, "status")).stdout.splitlines()
            assert shown[1].split() == ["COMPONENT", "STATE", "FOR", "REASON", "AND", "CURE"]
            assert shown[2].startswith("mqtt/default  failed  ")
            assert shown[3].strip() == f"-> {found['cure']}"
            assert shown[4] == "ok: engine, log, disk, clock, security, devices"


async def test_a_clock_that_is_not_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised = False
    monkeypatch.setattr(clock_module, "clock_trusted", lambda trust: synchronised)
    async with running_gateway(tmp_path) as addresses:
        found = await until_state(addresses, "clock", "degraded")
        assert "timedatectl" in found["cure"]
        assert (await http(addresses.health)).status == 200
        synchronised = True
        await until_state(addresses, "clock", "ok")
        assert (await health(addresses))["status"] == "ok"


async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(tmp_path) as addresses:
        with monkeypatch.context() as full:
            full.setattr(own, "disk_space", lambda path: Space(0, 2**30, read_only=False))
            full.setattr(Disk, "write", _no_space)
            assert (await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")).status == 507
            ready = await http(addresses.health.replace("/health", "/ready"))
            assert (ready.status, ready.json) == (503, {"ready": False, "component": "log"})
            answer = await http(addresses.health)
            assert (answer.status, answer.json["status"]) == (503, "refusing")
            states = {one["name"]: one["state"] for one in answer.json["components"]}
            assert (states["log"], states["disk"]) == ("failed", "failed")
            assert answer.json["components"][0]["name"] == "log"
        assert (await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")).status == 200
        assert (await http(addresses.health.replace("/health", "/ready"))).status == 200
        assert (await health(addresses))["status"] == "ok"


def _no_space(disk: Disk, file: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


async def test_a_shipper_that_never_ran_and_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = {"destination": str(tmp_path / "not" / "there")}
    async with running_gateway(tmp_path, sync=sync, log={"segment_bytes_max": 1}) as addresses:
        assert (await component(addresses, "sync"))["state"] == "ok", "it has its time"
        with monkeypatch.context() as late:
            late.setattr(own, "_late", lambda settings: timedelta(0))
            assert (await component(addresses, "sync"))["reason"] == "the shipper has never run"
        assert (await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")).status == 200

        async def sealed() -> bool:
            return (await health(addresses))["log"]["sealed"] > 0  # type: ignore[no-any-return]

        await until(sealed, "a segment to ship")
        config = tmp_path / "lamplighter.toml"
        (tmp_path / "not").write_text("a file where the folder should be")
        config.write_text(f"[sync]\ndestination = {json.dumps(sync['destination'])}\n")
        done = await asyncio.to_thread(command, "sync", "run", "--once", "--config", config)
        assert done.returncode != 0
        found = await until_state(addresses, "sync", "failed")
        assert found["reason"] != "the shipper has never run" and "sync.destination" in found["cure"]
        (tmp_path / "not").unlink()
        (tmp_path / "not" / "there").mkdir(parents=True)
        done = await asyncio.to_thread(command, "sync", "run", "--once", "--config", config)
        assert done.returncode == 0, done.stderr
        await until_state(addresses, "sync", "ok")


def test_an_application_whose_reactions_all_fail(tmp_path: Path) -> None:
    """In a process of its own, with its file in apps/."""
    application = {
        "queries": {"IN": {"sparql": "SELECT ?x { ?x <urn:in> ?v }"}},
        "updates": {"OUT": {"sparql": "CLEAR GRAPH <urn:none>"}},
        "extended": {"lamplighter": {"aggregators": {"lamp": {"query": "IN", "added": "OUT"}}}},
    }
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "lights.jsap").write_text(json.dumps(application))
    with GatewayProcess(tmp_path, gateway={"clock_trusted": "always", "durability": "off"}) as gateway:

        def shown() -> str:
            return command("status", "--config", gateway.config).stdout

        assert "components are ok" in shown() and "application/lights" in shown()
        gateway.update("INSERT DATA { <urn:a> <urn:in> 1 }")
        wait_for(lambda: shown().splitlines()[0].endswith(": degraded"), what="the failed reaction in the health")
        lines = shown().splitlines()
        assert lines[2].startswith("application/lights  failed  ")
        assert "reaction lamp/added fails: update OUT of query IN: the graph <urn:none> does not exist" in lines[2]
        assert lines[3].strip().startswith("-> correct apps/lights.jsap (`lamplighter check`)")
        assert "app lights          reactions 1, failed 1" in lines


def test_a_reload_changes_the_components(tmp_path: Path) -> None:
    """The brokers and the shipper are those of the new settings, though other processes reload their tables."""
    mqtt, clock = {"host": "127.0.0.1", "port": 11}, {"clock_trusted": "always"}
    with GatewayProcess(tmp_path, gateway=clock, mqtt=mqtt) as gateway:

        def shown() -> str:
            return command("status", "--config", gateway.config).stdout

        assert "broker 127.0.0.1:11 " in shown() and " sync," not in shown()
        text = gateway.config.read_text().replace("port = 11\n", "port = 12\n")
        gateway.config.write_text(f'{text}[sync]\ndestination = "ship"\n')
        os.kill(gateway.pid, signal.SIGHUP)
        wait_for(lambda: "broker 127.0.0.1:12 " in shown() and " sync," in shown(), what="the new settings")


# --- damage ---


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The data folder of a gateway that has recovered from damage."""
    (tmp_path / "data").mkdir()
    KnownDamage(tmp_path / "data", Disk()).add(
        DamageReport("2026-11-21T02:00:00Z", "the change log was damaged: a bit")
    )
    return tmp_path / "data"


async def test_damage_is_accepted_while_the_gateway_runs(tmp_path: Path, damaged: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        answer = await http(addresses.health)
        assert (answer.status, answer.json["status"]) == (503, "damaged")
        assert answer.json["components"][0]["reason"] == "the change log was damaged: a bit"
        assert (await http(addresses.health.replace("/health", "/ready"))).status == 200, "updates are accepted"

        done = await run(tmp_path, addresses, "verify")
        assert (done.returncode, "DAMAGE     2026-11-21T02:00:00Z: the change log was" in done.stdout) == (0, True), (
            done
        )
        assert "lamplighter verify --accept" in done.stdout
        done = await run(tmp_path, addresses, "verify", "--accept")
        assert (done.returncode, "--yes" in done.stderr) == (2, True), done
        assert (await health(addresses))["status"] == "damaged"

        done = await run(tmp_path, addresses, "verify", "--json")
        assert json.loads(done.stdout)["damage"][0]["reason"] == "the change log was damaged: a bit", done
        done = await run(tmp_path, addresses, "verify", "--accept", "--json")
        assert (done.returncode, done.stdout, "--yes" in done.stderr) == (2, "", True), done
        done = await run(tmp_path, addresses, "verify", "--accept", "--yes")
        assert (done.returncode, "accepted 1 report of damage" in done.stdout) == (0, True), done
        assert "damage accepted reports=1 user=" in done.stderr
        answer = await http(addresses.health)
        assert (answer.status, answer.json["status"]) == (200, "ok")
        accepted = json.loads((damaged / "damage-accepted.json").read_text())
        assert [one["reason"] for one in accepted["reports"]] == ["the change log was damaged: a bit"]
        done = await run(tmp_path, addresses, "verify", "--accept")
        assert (done.returncode, "there is no damage to accept" in done.stdout) == (0, True), done
    async with running_gateway(tmp_path) as addresses:
        assert (await health(addresses))["status"] == "ok"


async def test_damage_is_accepted_without_a_running_gateway(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        for number in range(3):
            await update(addresses, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")
    [segment] = (tmp_path / "data" / "log").glob("*.zst")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 8
    segment.write_bytes(content)
    for _ in range(2):
        async with running_gateway(tmp_path) as addresses:
            found = await health(addresses)
            assert (found["status"], found["components"][0]["name"]) == ("damaged", "log")
            assert "the change log was damaged: " in found["problems"][0]
    config = tmp_path / "lamplighter.toml"
    config.write_text("")
    done = await asyncio.to_thread(command, "verify", "--accept", "--yes", "--json", "--config", config)
    assert (done.returncode, json.loads(done.stdout)["accepted"]) == (0, 1), done
    async with running_gateway(tmp_path) as addresses:
        assert (await health(addresses))["status"] == "ok"
