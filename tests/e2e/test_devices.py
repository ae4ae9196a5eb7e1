"""Devices that announce themselves at a real broker: proposed, adopted, read and renamed without a rule."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.announcements import announcements, zigbee_house
from tests.support.brokers import Mosquitto
from tests.support.gateway_process import mqtt_gateway, wait_for

PREFIXES = (
    f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
    "PREFIX qudt: <http://qudt.org/schema/qudt/> "
)
LIST = "zigbee2mqtt/bridge/devices"
MOTIONS = f"""{PREFIXES} SELECT ?name ?value {{
  ?device a gateway:Device ; rdfs:label ?name ; sosa:hosts ?sensor . ?sensor sosa:observes gateway:motion .
  ?o sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"""
ADOPTED = f"{PREFIXES} SELECT ?device {{ ?device a gateway:Device }}"
PROPOSED = f"{PREFIXES} SELECT ?device {{ GRAPH ?g {{ ?device gateway:adoption 'proposed' }} }}"


def test_a_house_of_forty_devices_needs_no_rule(tmp_path: Path, broker: Mosquitto) -> None:
    house = zigbee_house(10)
    large = json.dumps([*json.loads(house), {"friendly_name": "padding", "definition": None, "x": "x" * 100_000}])
    broker.publish((LIST, large), retain=True)
    for room in range(1, 11):
        state = json.dumps({"occupancy": room % 2 == 0, "illuminance": 7, "linkquality": 90})
        broker.publish((f"zigbee2mqtt/room{room}/motion", state), retain=True)
    with mqtt_gateway(tmp_path, broker.port, adopt="all") as running:
        wait_for(lambda: len(running.rows(ADOPTED)) == 40, what="the devices")
        wait_for(lambda: len(running.rows(MOTIONS)) == 10, what="what the motion sensors saw")
        seen = {row["name"]: row["value"] for row in running.rows(MOTIONS)}
        assert seen == {f"room{room}/motion": "true" if room % 2 == 0 else "false" for room in range(1, 11)}

        broker.publish((LIST, house.replace(b"room1/motion", b"hall")), retain=True)
        wait_for(lambda: "hall" in {row["name"] for row in running.rows(MOTIONS)}, what="the new name")

        def moved() -> bool:
            broker.publish(("zigbee2mqtt/hall", '{"occupancy": true}'))
            time.sleep(0.2)
            return {row["name"]: row["value"] for row in running.rows(MOTIONS)}["hall"] == "true"

        wait_for(moved, what="a reading on the new topic")
        online = f"{PREFIXES} SELECT ?device ?online {{ ?device gateway:online ?online }}"

        def house_is(state: str) -> bool:
            said = [row["online"] for row in running.rows(online)]
            return said == [state] * 40

        broker.publish(("zigbee2mqtt/bridge/state", '{"state":"online"}'), retain=True)
        wait_for(lambda: house_is("true"), what="all devices online")
        broker.publish(("zigbee2mqtt/bridge/state", '{"state":"offline"}'), retain=True)
        wait_for(lambda: house_is("false"), what="all devices offline")
        broker.publish(("zigbee2mqtt/room2/climate", b"\xff"))
        unread = "?problem gateway:source 'mapping' ; gateway:mqttTopic ?topic"
        old = "FILTER(?topic != 'zigbee2mqtt/room1/motion')"
        # What the broker retained under the old name may be read once more, when no rule covers it any longer.
        problems = f"{PREFIXES} SELECT DISTINCT ?topic {{ GRAPH ?g {{ {unread} }} {old} }}"
        wait_for(lambda: running.rows(problems) == [{"topic": "zigbee2mqtt/room2/climate"}], what="the problem")
        units = f"{PREFIXES} SELECT DISTINCT ?unit {{ ?stream a gateway:Stream ; qudt:hasUnit ?unit }}"
        assert "http://qudt.org/vocab/unit/LUX" in {row["unit"] for row in running.rows(units)}


def test_devices_of_all_formats_wait_for_a_decision(tmp_path: Path, broker: Mosquitto) -> None:
    with mqtt_gateway(tmp_path, broker.port) as running:
        wait_for(lambda: any("shellies" in line for line in broker.log), what="the subscriptions")
        for name in ("homeassistant", "zigbee2mqtt", "tasmota", "shelly"):
            broker.publish(*announcements(name), retain=True)
        wait_for(lambda: len(running.rows(PROPOSED)) == 17, what="the proposed devices")
        assert running.rows(ADOPTED) == []
        asked = "shellies/command"  # the broker may read it after what others have published
        wait_for(lambda: any(asked in line for line in broker.log), what="the question to announce themselves")


def test_no_announcements_are_read_where_the_settings_say_so(tmp_path: Path, broker: Mosquitto) -> None:
    broker.publish((LIST, zigbee_house(1)), retain=True)
    rules = tmp_path / "mapping"
    rules.mkdir()
    (rules / "home.toml").write_text(
        '[[stream]]\ntopic = "one/{x}"\npayload = "number"\nproperty = "gateway:temperature"\n'
    )
    with mqtt_gateway(tmp_path, broker.port, discovery=[]) as running:
        values = f"{PREFIXES} SELECT ?value {{ ?o sosa:hasSimpleResult ?value }}"

        def there() -> bool:
            broker.publish(("one/t", "20"))
            time.sleep(0.2)
            return bool(running.rows(values))

        wait_for(there, what="a reading")
        assert running.rows(PROPOSED) == []
        assert not any("bridge/devices" in line and "SUBSCRIBE" in line for line in broker.log)
