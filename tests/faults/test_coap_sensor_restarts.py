"""A CoAP sensor is observed across its own restarts, and those of the gateway and of the adapter."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from lamplighter.adapters.coap.discovery import propose
from lamplighter.adapters.coap.links import parse_links
from lamplighter.adapters.devices.registry import Registry
from lamplighter.engine.terms import literal
from tests.support.coap_peers import free_udp_port, libcoap_server
from tests.support.coap_processes import site
from tests.support.coap_sensor import sensor_process
from tests.support.gateway_process import GatewayProcess, wait_for

pytestmark = pytest.mark.faults

BASE = "http://lamplighter.local/"
NAMES = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/> "


def rule(uri: str, **keys: object) -> dict[str, object]:
    return {"resource": uri, "property": "gateway:temperature", "payload": "number"} | keys


def file_rule(uri: str, **keys: object) -> str:
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in rule(uri, **keys).items())
    return "[[stream]]\n" + "".join(lines)


def values(gateway: GatewayProcess) -> dict[str, str]:
    """The live results of all sensors, by the path of their IRIs."""
    rows = gateway.rows(f"{NAMES} SELECT ?s ?v {{ ?o sosa:madeBySensor ?s ; sosa:hasSimpleResult ?v }}")
    return {row["s"].removeprefix(f"{BASE}sensor/"): row["v"] for row in rows}


def test_a_sensor_is_observed_across_restarts_of_all_sides(tmp_path: Path) -> None:
    port = free_udp_port()
    sensor = f"127.0.0.1~{port}/count"
    online = (
        f'{NAMES} SELECT ?v {{ ?d gateway:coapAddress "127.0.0.1:{port}" ; sosa:hosts <{BASE}sensor/{sensor}> ; '
        "gateway:online ?v }"
    )

    def value() -> int:
        return int(values(gateway).get(sensor, "0"))

    def grows(what: str) -> None:
        before = value()
        wait_for(lambda: value() > before, what=what)

    with site(tmp_path, file_rule(f"coap://127.0.0.1:{port}/count")) as (gateway, adapter):
        with sensor_process(port, 1_000_000):
            wait_for(lambda: value() > 1_000_000, what="the first reading")
            gateway.end(signal.SIGKILL)
            gateway.start()
            grows("a reading after the restart of the gateway")
            adapter.end(signal.SIGKILL)
            adapter.start()
            grows("a reading after the restart of the adapter")
        wait_for(lambda: gateway.rows(online) == [{"v": "false"}], what="the sensor that is offline")
        with sensor_process(port, 5):
            wait_for(lambda: 5 < value() < 1_000_000, what="a reading after the restart of the sensor")
            wait_for(lambda: gateway.rows(online) == [{"v": "true"}], what="the sensor that is online")
            grows("a further reading")


def test_rules_of_files_of_the_dataset_and_of_an_adopted_device_take_effect_while_the_adapter_runs(
    tmp_path: Path,
) -> None:
    with libcoap_server() as device, site(tmp_path, file_rule(device.uri("one"))) as (gateway, adapter):
        name = f"127.0.0.1~{device.port}"
        for path, state in (("one", "1"), ("two", "2"), ("three", "3"), ("four", "4")):
            put(device.uri(path), state)
        wait_for(lambda: values(gateway).get(f"{name}/one") == "1", what="the rule of a file")

        (tmp_path / "mapping" / "more.toml").write_text(file_rule(device.uri("two")))
        adapter.reload()
        wait_for(lambda: values(gateway).get(f"{name}/two") == "2", what="the rule of a new file")

        text = literal(json.dumps({"stream": rule(device.uri("three"), payload="text")}))
        mapping = f"<{BASE}mapping/three> a gateway:Mapping ; gateway:rule {text}"
        gateway.update(f"{NAMES} INSERT DATA {{ {mapping} }}")
        wait_for(lambda: values(gateway).get(f"{name}/three") == "3", what="the rule of the dataset")
        gateway.update(f"{NAMES} DELETE DATA {{ {mapping} }}")

        links = parse_links(b'</four>;obs;ct=0;rt="temperature"')
        found = propose(links, base=f"coap://127.0.0.1:{device.port}", place="test").device
        assert found is not None
        gateway.update(Registry(BASE).announced(None, found, "all") or "")
        wait_for(lambda: "4" in values(gateway).values(), what="the rule of an adopted device")

        put(device.uri("one"), "10")
        wait_for(lambda: values(gateway).get(f"{name}/one") == "10", what="a notification")


def put(uri: str, state: str) -> None:
    subprocess.run(["coap-client-notls", "-m", "put", "-e", state, uri], check=True, capture_output=True, timeout=120)
