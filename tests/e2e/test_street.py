"""The whole road: mosquitto_pub -> mosquitto -> gateway -> libcoap server, with kills on the way."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.change_log import Cause
from tests.support.brokers import Mosquitto
from tests.support.coap_peers import LibcoapServer, libcoap_server
from tests.support.components import require_command
from tests.support.gateway_parts import records
from tests.support.gateway_process import GatewayProcess, street_gateway, wait_for

OFF_AFTER_S = 5.0
SOON_S = 60.0
"""How late a busy machine may be."""
BASE = "http://lamplighter.local/"


@pytest.fixture
def device() -> Iterator[LibcoapServer]:
    with libcoap_server() as running:
        yield running


@pytest.fixture
def gateway(tmp_path: Path, broker: Mosquitto, device: LibcoapServer) -> Iterator[GatewayProcess]:
    with street_gateway(tmp_path / "gateway", broker_port=broker.port, off_after=f"PT{OFF_AFTER_S}S") as running:
        running.update(
            "PREFIX lighting: <http://lamplighter.example/ns/lighting#> "
            "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { "
            f"<{BASE}post/1> lighting:hasLamp <{BASE}lamp/1> . "
            f"<{BASE}lamp/1> gateway:coapResource <{device.uri('lamp')}> ; lighting:hasStatus 'OFF' }}"
        )
        wait_for(lambda: device.get("lamp") == "OFF", what="the lamp's first state")
        yield running


def publish(broker: Mosquitto, present: bool) -> float:
    """Publishes a presence reading as a sensor would; the time before that. The broker has it on return."""
    command, begun = require_command("mosquitto_pub"), time.time()
    subprocess.run(
        [command, "-h", "127.0.0.1", "-p", str(broker.port), "-q", "1", "-t", "street/1/presence", "-m", str(present)],
        check=True,
        timeout=60,
    )
    return begun


def moment(delayed: dict[str, Any]) -> datetime:
    """When a delayed update is due."""
    return datetime.fromisoformat(delayed["due"])


def test_lamp_goes_on_with_presence_and_off_after_the_delay(
    broker: Mosquitto, device: LibcoapServer, gateway: GatewayProcess
) -> None:
    publish(broker, True)
    wait_for(lambda: device.get("lamp") == "ON", what="the lamp ON")
    left = publish(broker, False)
    off = wait_for(lambda: device.get("lamp") == "OFF", what="the lamp OFF")
    assert OFF_AFTER_S - 0.1 <= off - left <= OFF_AFTER_S + SOON_S
    query = (
        "PREFIX sosa: <http://www.w3.org/ns/sosa/> SELECT ?result WHERE "
        f"{{ ?a a sosa:Actuation ; sosa:madeByActuator <{BASE}lamp/1> ; sosa:hasSimpleResult ?result }}"
    )
    # The lamp shows it before the gateway has its acknowledgement.
    wait_for(lambda: gateway.rows(query) == [{"result": "OFF"}], what="the record of the lamp OFF, alone")
    causes = {record.cause for record in records(gateway.folder / "data")}
    assert {Cause("mqtt", "street/1/presence"), Cause("coap", device.uri("lamp"))} <= causes


@pytest.mark.faults
def test_presence_in_between_keeps_the_lamp_on(
    broker: Mosquitto, device: LibcoapServer, gateway: GatewayProcess
) -> None:
    publish(broker, True)
    wait_for(lambda: device.get("lamp") == "ON", what="the lamp ON")
    # One behind the other, so that presence has changed again before the delayed update is due, however busy it is.
    broker.publish(("street/1/presence", "False"), ("street/1/presence", "True"))

    def executed() -> bool:
        return any(record.cause and record.cause.kind == "timer" for record in records(gateway.folder / "data"))

    # The delayed update is executed, finds that presence has changed, and does nothing.
    wait_for(executed, what="the end of the delayed update")
    assert device.get("lamp") == "ON"
    left = publish(broker, False)
    off = wait_for(lambda: device.get("lamp") == "OFF", what="the lamp OFF")
    assert off - left >= OFF_AFTER_S - 0.1


@pytest.mark.faults
def test_delayed_update_survives_sigkill(broker: Mosquitto, device: LibcoapServer, gateway: GatewayProcess) -> None:
    publish(broker, True)
    wait_for(lambda: device.get("lamp") == "ON", what="the lamp ON")
    left = publish(broker, False)
    pending: list[dict[str, Any]] = []
    wait_for(lambda: bool(pending.extend(gateway.delayed()) or pending), what="the delayed update")
    [before] = pending
    gateway.end(signal.SIGKILL)
    gateway.start()
    delayed = {one["id"]: one for one in gateway.delayed()}
    if after := delayed.get(before["id"]):
        assert abs(moment(after) - moment(before)) < timedelta(seconds=0.1), "it does not begin anew"
    else:  # a start that takes longer than the delay has executed it, and a reading without PUBACK came once more
        assert datetime.now(UTC) >= moment(before)
    off = wait_for(lambda: device.get("lamp") == "OFF", what="the lamp OFF")
    assert OFF_AFTER_S - 0.1 <= off - left <= OFF_AFTER_S + SOON_S


def test_temperature_is_one_live_observation(broker: Mosquitto, gateway: GatewayProcess) -> None:
    command = require_command("mosquitto_pub")
    for value in ("19.5", "broken", "21.50"):
        subprocess.run(
            [command, "-p", str(broker.port), "-h", "127.0.0.1", "-q", "1", "-t", "street/7/temperature", "-m", value],
            check=True,
            timeout=60,
        )
    query = (
        "PREFIX sosa: <http://www.w3.org/ns/sosa/> SELECT ?value WHERE { ?o sosa:hasSimpleResult ?value ; "
        f"sosa:hasFeatureOfInterest <{BASE}post/7> }}"
    )
    wait_for(lambda: gateway.rows(query) == [{"value": "21.5"}], what="the newest temperature, alone")


def test_gateway_ends_well_on_sigterm(gateway: GatewayProcess) -> None:
    assert gateway.end(signal.SIGTERM) == 0
