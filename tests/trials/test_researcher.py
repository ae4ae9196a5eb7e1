"""A researcher has a gateway for a day and wants its history as a table: the logs are shipped, landed and analysed."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.brokers import Mosquitto
from tests.support.gateway_process import wait_for
from tests.trials.reader import Page, Reader

DEVICES, CHANGE_LOG = Page("docs/mqtt-devices.md"), Page("docs/change-log.md")
SYNC, FLEET, TABLES = Page("docs/ship.md"), Page("docs/fleet.md"), Page("docs/fleet-tables.md")


@pytest.mark.fleet
def test_a_researcher_gets_the_history_of_a_gateway_as_a_table(reader: Reader, broker: Mosquitto) -> None:
    lake = str(reader.folder / "lake")
    reader.replaced |= {
        "/media/usb/fleet": str(reader.folder / "fleet"),
        "/srv/lake": lake,
        "segment_s_max = 60": "segment_s_max = 1",
    }
    settings = DEVICES.block("toml", 'host = "127.0.0.1"') + f"port = {broker.port}\n"
    settings += SYNC.block("toml", "destination = ")
    reader.write("lamplighter.toml", (reader.folder / "lamplighter.toml").read_text() + settings)
    reader.write("mapping/home.toml", DEVICES.block("toml", 'topic = "home/{room}/temperature"'))

    reader.run(SYNC.command("mkdir /media/usb/fleet"))
    ship, land = SYNC.command("lamplighter sync run --once"), SYNC.command("lamplighter-fleet collect")
    readings = [DEVICES.command(f"mosquitto_pub -t home/kitchen/temperature -m {value}") for value in ("20.5", "21")]

    with reader.running(DEVICES.command(".venv/bin/lamplighter run --all")) as gateway:
        gateway.until("is ready")
        wait_for(lambda: any("home/+/temperature (QoS" in line for line in broker.log), what="the subscription")
        for publish in readings:
            reader.run(publish, "-p", str(broker.port))
        ask = "lamplighter query 'SELECT ?v { ?r <http://www.w3.org/ns/sosa/hasSimpleResult> ?v }'"
        wait_for(lambda: '"21"' in reader.run(ask), what="the second reading")
        newest = json.loads(reader.run(CHANGE_LOG.command("lamplighter log show --json --last 1")))["seq"]
        wait_for(lambda: int(re.findall(r"up to 1/(\d+),|$", reader.run(ship))[0] or 0) >= newest, what="the shipping")
        assert "landed" in reader.run(land)
    for job in ("ingest lake", "silver lake"):
        reader.run(FLEET.command(f"lamplighter-fleet {job}"))
    program = TABLES.block("python", "import duckdb").replace("duckdb.sql(", "print(duckdb.sql(").rstrip()
    reader.write("analysis.py", f"{program}.fetchall())\n")
    assert "2, 20.75" in reader.run("python analysis.py")
