"""The state of a real broker in health, figures, metrics and dataset, while it stops and starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lamplighter.adapters import counting
from lamplighter.adapters.mapping import load_mapping
from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import literal
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.monitoring import brokers
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.commands import command
from tests.support.mqtt_adapter import BASE, mqtt_adapter
from tests.support.places import ROOT
from tests.support.running_gateway import health, http, rows, running_gateway, until

STATE = """PREFIX gateway: <http://lamplighter.example/ns/gateway#>
SELECT ?broker ?connected ?reason { ?broker a gateway:Broker ; gateway:connected ?connected ; gateway:since ?since
  OPTIONAL { ?broker gateway:reason ?reason } }"""


async def broker_state(addresses: Addresses) -> dict[str, Any]:
    (found,) = (await health(addresses))["brokers"]
    return dict(found)


async def until_state(addresses: Addresses, state: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def reached() -> bool:
        nonlocal found
        found = await broker_state(addresses)
        return bool(found["state"] == state)

    await until(reached, state)
    return found


async def metric(addresses: Addresses, name: str) -> str:
    text = (await http(addresses.health.replace("/health", "/metrics"))).body.decode()
    return next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name))


async def status(addresses: Addresses, folder: Path) -> str:
    """What `lamplighter status` prints."""
    config = folder / "lamplighter.toml"
    config.write_text(f"[http]\nport = {urlsplit(addresses.query).port}\n")
    return (await asyncio.to_thread(command, "status", "--config", config)).stdout


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Mosquitto, Addresses]]:
    """A broker, and a gateway whose settings name it."""
    with mosquitto() as broker:
        async with running_gateway(folder, mqtt={"host": "127.0.0.1", "port": broker.port}) as addresses:
            yield broker, addresses


async def test_a_stopped_broker_degrades_the_health_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "GRACE_S", 0.0)
    mapping = load_mapping(ROOT / "mapping", BASE)
    async with gateway(tmp_path) as (broker, addresses):
        unknown = await broker_state(addresses)
        assert (unknown["state"], unknown["reason"]) == ("unknown", "the adapter does not run")
        async with mqtt_adapter(addresses, broker, mapping):
            connected = await until_state(addresses, "connected")
            assert connected["text"].startswith(f"broker 127.0.0.1:{broker.port} connected for ")
            found = await health(addresses)
            assert (found["status"], found["problems"]) == ("ok", [])
            assert await metric(addresses, 'lamplighter_broker_connected{broker="default"}') == "1.0"

            broker.stop()
            away = await until_state(addresses, "not connected")
            assert away["reason"]
            answer = await http(addresses.health)
            assert (answer.status, answer.json["status"]) == (200, "degraded")
            (problem,) = answer.json["problems"]
            assert problem.startswith(f"mqtt/default failed: broker 127.0.0.1:{broker.port} not connected: ")
            assert problem.endswith("; check that the broker runs, and its address in [mqtt] of lamplighter.toml")
            component = answer.json["components"][0]
            assert (component["name"], component["state"]) == ("mqtt/default", "failed")
            assert datetime.fromisoformat(component["since"]) == datetime.fromisoformat(away["since"])
            assert await metric(addresses, 'lamplighter_broker_connected{broker="default"}') == "0.0"
            assert await metric(addresses, "lamplighter_healthy") == "1.0"
            (row,) = await rows(addresses, STATE)
            assert (row["broker"], row["connected"]) == (f"{BASE}broker/default", "false")
            shown = await status(addresses, tmp_path)
            assert f"mqtt                broker 127.0.0.1:{broker.port} not connected for" in shown

            broker.start()
            await until_state(addresses, "connected")

            async def healthy() -> bool:
                return bool((await health(addresses))["status"] == "ok")

            await until(healthy, "a healthy gateway")
            assert [row["connected"] for row in await rows(addresses, STATE)] == ["true"]
        # The triples still say "connected"; without the adapter they may be old.
        assert (await until_state(addresses, "unknown"))["reason"] == "the adapter does not run"
        assert (await http(addresses.health)).json["status"] == "degraded"
        assert [row["connected"] for row in await rows(addresses, STATE)] == ["true"]


async def test_without_mqtt_there_are_no_brokers(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        found = await health(addresses)
        assert (found["brokers"], found["status"]) == ([], "ok")


async def test_counters_of_a_running_adapter_are_in_figures_metrics_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "WRITE_S", 0.01)
    mapping = load_mapping(ROOT / "mapping", BASE)
    async with gateway(tmp_path) as (broker, addresses):

        async def counted() -> dict[str, Any]:
            answer = await http(addresses.health.replace("/health", "/figures"))
            return dict(answer.json["adapters"])

        assert await counted() == {}
        async with mqtt_adapter(addresses, broker, mapping):
            await until_state(addresses, "connected")
            await asyncio.to_thread(broker.publish, ("street/1/temperature", "20"), ("street/1/presence", "maybe"))

            async def reached() -> bool:
                found = (await counted()).get("mqtt", {})
                return (found.get("readings"), found.get("readings_unreadable")) == (1, 1)

            await until(reached, "the counters")
            assert await metric(addresses, 'lamplighter_adapter_messages_total{adapter="mqtt"}') == "2.0"
            assert await metric(addresses, 'lamplighter_adapter_problems_total{adapter="mqtt"}') == "1.0"
            shown = await status(addresses, tmp_path)
            assert "mqtt                messages 2, readings 1, readings unreadable 1, problems 1" in shown

        async def gone() -> bool:
            return await counted() == {}

        await until(gone, "the end of the adapter")
        text = (await http(addresses.health.replace("/health", "/metrics"))).body.decode()
        assert "lamplighter_adapter_" not in text


async def test_counters_that_no_adapter_wrote_are_not_shown(tmp_path: Path) -> None:
    with mosquitto() as broker:
        async with (
            running_gateway(tmp_path, mqtt={"host": "127.0.0.1", "port": broker.port}) as addresses,
            mqtt_adapter(addresses, broker, load_mapping(ROOT / "mapping", BASE)),
        ):
            await until_state(addresses, "connected")
            for text in ("[", "[1]", '{"messages": -1}', '{"messages": "many"}'):
                graph, node = f"<{BASE}graph/adapters>", f"<{BASE}adapter/mqtt>"
                triple = f"{node} <http://lamplighter.example/ns/gateway#counters> {literal(text)}"
                update = f"DROP SILENT GRAPH {graph} ; INSERT DATA {{ GRAPH {graph} {{ {triple} }} }}"
                async with EngineClient(addresses.subscribe) as client:
                    await client.update(update)
                assert (await http(addresses.health.replace("/health", "/figures"))).json["adapters"] == {}
