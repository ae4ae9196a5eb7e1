"""A simulated house at a real broker: what the dataset says of a device is what it has, or a gap of the table."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lamplighter.adapters.devices.draft import segment
from lamplighter.demo.house import MAKES, House
from lamplighter.demo.house.play import settable
from tests.support.amounts import Amounts
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.gateway_process import mqtt_gateway, wait_for
from tests.support.house import BASE, GAPS, NAMES, agree, command

ONLINE = NAMES + "SELECT ?device ?online { ?device gateway:online ?online }"
DEVICES = NAMES + "SELECT ?device { ?device a gateway:Device }"


@contextmanager
def broker() -> Iterator[Mosquitto]:
    with mosquitto(settings=("allow_anonymous true", "persistence true", "max_queued_messages 0")) as running:
        yield running


def test_what_is_said_of_a_house_is_true(tmp_path: Path, amounts: Amounts) -> None:
    count, seed = amounts.of(300, least=2 * len(MAKES)), random.randrange(2**32)
    chance = random.Random(seed)
    with broker() as running, House(count, running.port, chance=chance) as house:
        gateway = mqtt_gateway(tmp_path, running.port, adopt="all", devices_max=count)

        with gateway:
            # A later Shelly, and a node of Sparkplug, is known from what it says first.
            agree(gateway, house, f"the first states, seed {seed}", gaps={*GAPS, "LaterShelly", "SparkplugMotor"})
            # Those that retain nothing are known from what they say next.
            agree(gateway, house, f"all states, seed {seed}", reports=True)
            assert len(gateway.rows(DEVICES)) == count

            house.switch(count)
            agree(gateway, house, f"what hands switched, seed {seed}")
            for choice in chance.sample(settable(house.devices), count // 2):
                command(gateway, choice)
            agree(gateway, house, f"what commands switched, seed {seed}")

            silent = chance.sample(house.devices, max(2, count // 20))
            for device in silent:
                house.silence(device)
            gone = {f"{BASE}device/{d.identity[0]}/{segment(d.identity[1])}" for d in silent if d.online(False)}
            wait_for(
                lambda: gone == {row["device"] for row in gateway.rows(ONLINE) if row["online"] == "false"},
                what=f"who is offline, seed {seed}",
            )

            before = house.connections
            running.stop()
            house.switch(count // 4)  # nobody hears it, but from what the devices say when they connect
            running.start()
            wait_for(lambda: house.connections > before, what="the house at the broker")
            agree(gateway, house, f"the retained states after a restart of the broker, seed {seed}", gaps=GAPS)
            for device in silent:
                house.end_silence(device)
            house.switch_each()
            agree(gateway, house, f"all states after a restart of the broker, seed {seed}", reports=True)

            gateway.end(signal.SIGKILL)
            house.switch(count // 4)
            gateway.start()
            agree(gateway, house, f"the retained states after a kill, seed {seed}", gaps=GAPS)
            house.switch_each()
            agree(gateway, house, f"all states after a kill, seed {seed}", reports=True)
