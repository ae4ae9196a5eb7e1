"""The devices of the CoAP adapter in health, figures, metrics and status."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamplighter.adapters.coap.adapter import CoapAdapter
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources import health as device_health
from lamplighter.engine.client import EngineClient
from tests.support.coap_peers import free_udp_port
from tests.support.event_loops import beside
from tests.support.mqtt_adapter import BASE
from tests.support.running_gateway import health, http, running_gateway, until
from tests.whole_gateway.monitoring.test_brokers import metric, status

SETTINGS = CoapSettings(networks=("127.0.0.0/8",), ack_timeout_s=0.1)


async def test_a_device_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_health, "WRITE_S", 0.05)
    port = free_udp_port()
    async with running_gateway(tmp_path) as addresses:
        assert (await health(addresses))["coap"] is None
        async with (
            EngineClient(addresses.subscribe, name="coap") as client,
            beside(CoapAdapter(SETTINGS, AdapterContext(client, BASE), CoapMachine()).run()),
        ):
            await client.update(
                "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { <x:lamp> "
                f"gateway:desiredState 'ON' ; gateway:coapResource <coap://127.0.0.1:{port}/lamp> }}"
            )

            async def unreachable() -> bool:
                found = (await health(addresses))["coap"]
                return found is not None and found["unreachable"] == 1

            await until(unreachable, "unreachable")
            answer = await health(addresses)
            found, [worst] = answer["coap"], answer["coap"]["worst"]
            assert (await http(addresses.health)).status == 200, "one device is not the gateway"
            assert (found["devices"], worst["device"]) == (1, f"127.0.0.1:{port}")
            assert found["text"].startswith(f"1 device, 1 unreachable: 127.0.0.1:{port} (")
            assert await metric(addresses, 'lamplighter_coap_devices{state="unreachable"}') == "1.0"
            shown = await status(addresses, tmp_path)
            assert f"coap                1 device, 1 unreachable: 127.0.0.1:{port} (" in shown

            async def listed() -> bool:
                return any(one["name"].startswith("device/") for one in (await health(addresses))["components"])

            await until(listed, "the device among the components")
            answer = await health(addresses)
            component = answer["components"][0]
            assert (answer["status"], component["state"]) == ("degraded", "failed")
            assert component["name"] == f"device/coap/127.0.0.1:{port}"
            assert component["reason"].startswith("offline: ") and "check its power" in component["cure"]
            assert "devices degraded: 1 offline; " in "\n".join(answer["problems"])
            shown = await status(addresses, tmp_path)
            assert f"device/coap/127.0.0.1:{port}  failed" in shown

        async def unknown() -> bool:
            return (await health(addresses))["coap"] is None

        await until(unknown, "unknown without the adapter")
