"""A tinkerer has a broker, a sensor and a lamp: the temperature is to be seen, and the light to follow the motion."""

from __future__ import annotations

import json

from tests.support.brokers import Mosquitto
from tests.support.gateway_process import wait_for
from tests.trials.reader import Page, Reader

DEVICES, APPLICATIONS = Page("docs/mqtt-devices.md"), Page("docs/applications.md")


def test_a_tinkerer_sees_the_temperature_and_has_light_when_somebody_comes(reader: Reader, broker: Mosquitto) -> None:
    at_broker = ("-p", str(broker.port))
    settings = DEVICES.block("toml", '[mqtt]\nhost = "127.0.0.1"') + f"port = {broker.port}\n"
    reader.write("lamplighter.toml", (reader.folder / "lamplighter.toml").read_text() + settings)
    reader.write("mapping/home.toml", DEVICES.block("toml", 'topic = "home/{room}/temperature"'))
    init = APPLICATIONS.command("lamplighter init motion-light --light hall")
    assert "next:" in reader.run(init, "--off-after", "PT1S")
    assert "valid" in reader.run(DEVICES.command(".venv/bin/lamplighter check"))

    with reader.running(DEVICES.command(".venv/bin/lamplighter run --all")) as gateway:
        gateway.until("is ready")
        wait_for(lambda: any("home/+/temperature (QoS" in line for line in broker.log), what="the subscription")
        with reader.running(DEVICES.command(".venv/bin/lamplighter subscribe 'PREFIX sosa")) as subscriber:
            subscriber.until("feature")
            reader.run(DEVICES.command("mosquitto_pub -t home/kitchen/temperature -m 20.5"), *at_broker)
            assert subscriber.until("+ ").split() == ["+", "http://lamplighter.local/room/kitchen", "20.5"]
            reader.run(DEVICES.command("mosquitto_pub -t home/kitchen/temperature -m 21"), *at_broker)
            assert subscriber.until("- ").split()[2] == "20.5"
            assert subscriber.until("+ ").split()[2] == "21"

        with reader.running("mosquitto_sub -t zigbee2mqtt/hall-lamp/set", *at_broker) as lamp:
            wait_for(lambda: any("hall-lamp/set (QoS" in line for line in broker.log), what="the lamp at the broker")
            for seen in (True, False):
                message = json.dumps({"occupancy": seen})
                reader.run(f"mosquitto_pub -t zigbee2mqtt/hall-motion -m '{message}'", *at_broker)
                assert json.loads(lamp.until("state")) == {"state": "ON" if seen else "OFF"}
