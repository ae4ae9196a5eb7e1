"""The devices of an adapter for polled devices in health, metrics and status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.http.protocol import HttpDevices
from lamplighter.adapters.http.settings import HttpDevicesSettings
from lamplighter.adapters.mapping import ResourceRule, ResourceTable
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources import health as device_health
from lamplighter.adapters.resources.polled_adapter import PolledAdapter
from lamplighter.engine.client import EngineClient
from lamplighter.gateway.monitoring import brokers
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.brokers import free_port
from tests.support.event_loops import beside
from tests.support.mqtt_adapter import BASE
from tests.support.running_gateway import health, running_gateway, until
from tests.whole_gateway.monitoring.test_brokers import metric, status

SETTINGS = HttpDevicesSettings(enabled=True, networks=("127.0.0.0/8",), retry_min_s=0.01, retry_max_s=0.1)
KIND = "http-devices"


async def test_a_device_and_an_adapter_that_are_away_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_health, "WRITE_S", 0.05)
    monkeypatch.setattr(brokers, "GRACE_S", 0.0)
    port = free_port()
    table = ResourceTable(resource=f"http://127.0.0.1:{port}/t", payload="number", property="gateway:power")
    rules = ResourceRules.of([ResourceRule(table, prefixes=PREFIXES, base_iri=BASE, place="rule")])

    async with running_gateway(tmp_path, http_devices={"enabled": True}) as addresses:

        async def component(name: str) -> dict[str, Any]:
            return next((one for one in (await health(addresses))["components"] if one["name"] == name), {})

        missing = await component(KIND)
        assert (missing["state"], missing["reason"]) == ("failed", "the adapter does not run")
        assert missing["cure"] == "start it: systemctl start lamplighter-http-devices, or lamplighter http-devices"
        async with EngineClient(addresses.subscribe, name=KIND) as client:
            adapter = PolledAdapter(
                "http-devices",
                SETTINGS,
                AdapterContext(client, BASE),
                lambda: HttpDevices(SETTINGS, Networks(SETTINGS.networks, "http_devices.networks")),
                files=rules,
            )
            async with beside(adapter.run()):

                async def unreachable() -> bool:
                    return bool((await health(addresses))["polled"].get(KIND, {}).get("unreachable") == 1)

                await until(unreachable, "unreachable")
                assert (await component(KIND))["state"] == "ok"
                one = f'lamplighter_polled_devices{{adapter="{KIND}",state="unreachable"}}'
                assert await metric(addresses, one) == "1.0"
                shown = await status(addresses, tmp_path)
                assert f"{KIND}        1 device, 1 unreachable: 127.0.0.1:{port} (" in shown

                async def listed() -> bool:
                    return bool(await component(f"device/{KIND}/127.0.0.1~{port}"))

                await until(listed, "the device among the components")

        async def gone() -> bool:
            return (await component(KIND))["state"] == "failed"

        await until(gone, "the adapter's end")
        assert (await health(addresses))["polled"] == {}
