from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from pyoxigraph import Store

from lamplighter.adapters.devices.availability import online_update
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import READS_MAX, Entry, Registry, named
from lamplighter.adapters.mapping import CommandTable, StreamRule, StreamTable, command_rule
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.announcements import FOLDER, announcements, zigbee_house
from tests.support.tables import each_row

BASE = "http://lamplighter.local/"
REGISTRY = Registry(BASE)
PREFIX = "".join(f"PREFIX {name}: <{address}> " for name, address in PREFIXES.items())
LIST = "zigbee2mqtt/bridge/devices"


def house(rooms: int = 1) -> dict[str, Device]:
    found = Announcements(["zigbee2mqtt"], devices_max=1000).read("default", LIST, zigbee_house(rooms))
    return {device.name: device for device in found.devices}


class Dataset:
    """The dataset, by the queries and updates of the registry."""

    def __init__(self) -> None:
        self.store = Store()

    def entries(self) -> dict[str, Entry]:
        rows = self.store.query(REGISTRY.query)
        entries = [REGISTRY.entry([None if term is None else str(term) for term in row]) for row in rows]  # type: ignore[union-attr]
        return {entry.device.name: entry for entry in entries}

    def update(self, text: str | None) -> None:
        assert text is not None
        self.store.update(text)

    def announced(self, device: Device, adopt: str = "ask") -> None:
        self.update(REGISTRY.announced(None, device, adopt))  # type: ignore[arg-type]

    def values(self, where: str) -> list[str]:
        rows = self.store.query(f"{PREFIX} SELECT ?x WHERE {{ {where} }} ORDER BY ?x")
        return [row[0].value for row in rows]  # type: ignore[union-attr]


def test_a_proposed_device_is_in_its_graph_only() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp)
    assert data.entries() == {"room1/lamp": Entry(lamp, "proposed")}
    assert {str(quad.graph_name) for quad in data.store} == {f"<{BASE}graph/proposed>"}


def test_adoption_describes_the_device_and_stores_its_rules() -> None:
    data, motion = Dataset(), house()["room1/motion"]
    data.announced(motion)
    data.update(REGISTRY.adoption(data.entries()[motion.name], area="Living room"))
    found = data.values(
        "?room a gateway:Area ; rdfs:label 'Living room' . ?device gateway:inArea ?room ; sosa:hosts ?x . "
        "?x a sosa:Sensor ; sosa:observes gateway:motion"
    )
    assert found == [f"{BASE}sensor/zigbee2mqtt/{motion.id}/occupancy"]
    rules = [json.loads(text) for text in data.values("?m a gateway:Mapping ; gateway:rule ?x")]
    (stream,) = [rule["stream"] for rule in rules]
    assert stream["topic"] == "zigbee2mqtt/room1/motion" and len(stream["read"]) == 3


def test_adopt_all_needs_no_decision() -> None:
    data = Dataset()
    for device in house(2).values():
        data.announced(device, "all")
    assert {entry.adoption for entry in data.entries().values()} == {"adopted"}
    assert len(data.values("?x a gateway:Device ; gateway:adoption 'adopted'")) == 8
    proposed = Entry(house()["room1/lamp"], "proposed")
    assert "adopted" in (REGISTRY.announced(proposed, proposed.device, "all") or "")


def test_an_announcement_that_the_dataset_has_changes_nothing() -> None:
    lamp = house()["room1/lamp"]
    for adoption in ("proposed", "adopted", "ignored"):
        assert REGISTRY.announced(Entry(lamp, adoption), lamp, "ask") is None  # type: ignore[arg-type]


def test_a_renamed_device_gets_other_rules_and_keeps_its_iris() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp, "all")
    before = set(data.values("?d sosa:hosts ?x"))
    text = msgspec.json.encode(lamp).decode().replace("room1/lamp", "stairs")
    data.update(REGISTRY.announced(data.entries()[lamp.name], Device.from_json(text), "ask"))
    assert set(data.values("?d sosa:hosts ?x")) == before
    assert data.values("?d a gateway:Device ; rdfs:label ?x") == ["stairs"]
    rules = data.values("?m gateway:rule ?x")
    assert len(rules) == 4 and not any("room1/lamp" in rule for rule in rules)


def test_a_given_name_stays_when_the_device_is_announced_again() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp, "all")
    data.update(REGISTRY.naming(data.entries()[lamp.name], name="Reading lamp", area="Study"))
    data.update(REGISTRY.announced(data.entries()[lamp.name], msgspec.structs.replace(lamp, model="new"), "ask"))
    entry = data.entries()[lamp.name]
    assert (entry.name, entry.area, entry.device.model) == ("Reading lamp", "Study", "new")
    assert data.values("?d a gateway:Device ; rdfs:label ?x") == ["Reading lamp"]
    data.update(REGISTRY.ignoring(entry))
    data.update(REGISTRY.adoption(data.entries()[lamp.name]))
    entry = data.entries()[lamp.name]
    assert (entry.adoption, entry.name, entry.area) == ("adopted", "Reading lamp", "Study")
    data.update(REGISTRY.naming(entry, name=""))
    assert data.entries()[lamp.name].name == "room1/lamp"


def test_a_withdrawn_device_is_retired_and_comes_back() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp, "all")
    device = REGISTRY.device_iri(lamp)
    data.update(online_update(device, False))
    data.update(online_update(device, True))
    assert data.values("?d gateway:online ?x") == ["true"]
    data.update(REGISTRY.withdrawn(data.entries()[lamp.name]))
    assert data.entries()[lamp.name].adoption == "retired"
    data.update(online_update("<http://lamplighter.local/device/another>", True))
    assert data.values("?d gateway:online ?x") == [], "nobody knows of a device without rules, or of an unknown one"
    assert data.values("?x a gateway:Mapping") == []
    assert data.values("?d a gateway:Device ; gateway:adoption ?x") == ["retired"]
    data.update(REGISTRY.announced(data.entries()[lamp.name], lamp, "ask"))
    assert data.entries()[lamp.name].adoption == "adopted"
    assert len(data.values("?x a gateway:Mapping")) == 4


def test_a_withdrawn_device_that_was_only_proposed_is_forgotten_and_an_ignored_one_is_not() -> None:
    data, devices = Dataset(), house()
    for name in ("room1/lamp", "room1/motion"):
        data.announced(devices[name])
    data.update(REGISTRY.ignoring(data.entries()["room1/motion"]))
    data.update(REGISTRY.withdrawn(data.entries()["room1/lamp"]))
    assert REGISTRY.withdrawn(data.entries()["room1/motion"]) is None
    assert [(name, entry.adoption) for name, entry in data.entries().items()] == [("room1/motion", "ignored")]


def test_ignoring_an_adopted_device_takes_its_description_and_rules() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp, "all")
    data.update(REGISTRY.ignoring(data.entries()[lamp.name]))
    assert data.values("?x a gateway:Mapping") == data.values("?x a gateway:Device") == []


def test_removal_takes_streams_and_observations_too() -> None:
    data, devices = Dataset(), house()
    for name in ("room1/lamp", "room1/motion"):
        data.announced(devices[name], "all")
    sensor = f"{BASE}sensor/zigbee2mqtt/{devices['room1/motion'].id}/occupancy"
    data.update(
        f"{PREFIX} INSERT DATA {{ <urn:x:o> sosa:madeBySensor <{sensor}> ; sosa:hasSimpleResult true . "
        f"<urn:x:s> gateway:liveObservation <urn:x:o> ; a gateway:Stream }}"
    )
    data.update(REGISTRY.removal(data.entries()["room1/motion"]))
    assert set(data.entries()) == {"room1/lamp"}
    assert data.values("?x a gateway:Stream") == data.values("?x sosa:madeBySensor ?s") == []
    assert len(data.values("?x a gateway:Device")) == 1


def written(device: Device) -> str:
    """What adapters, applications and people write of an adopted device."""
    part = f"{device.source}/{device.id}"
    sensor, actuator = f"<{BASE}{device.sensors[0].table['sensor']}>", REGISTRY.actuator_iri(device.actuators[0])
    (mapping, *_), node = REGISTRY.rules(device), REGISTRY.device_iri(device)
    about = f"sosa:madeBySensor {sensor} ; sosa:hasFeatureOfInterest {node}"
    return f"""{PREFIX} INSERT DATA {{
      {node} a sosa:FeatureOfInterest ; gateway:online true ; gateway:inArea <urn:x:a> .
      <{BASE}stream/{part}> gateway:liveObservation <{BASE}o/{part}> ; a gateway:Stream .
      <{BASE}o/{part}> {about} ; sosa:hasResult <{BASE}r/{part}> . <{BASE}r/{part}> qudt:numericValue 7 .
      <{BASE}stream/{part}/events> {about} ; a gateway:Stream .
      {actuator} gateway:desiredState true ; gateway:reportedState false .
      <{lexical(actuator)}/actuation> sosa:madeByActuator {actuator} .
      <{BASE}{mapping}> gateway:problem "faulty" .
      GRAPH <{BASE}graph/problems> {{ <{BASE}problem/{part}> gateway:ofDevice {node} ; gateway:reason "odd" }}
      GRAPH <{BASE}stream/{part}/events/1/0> {{
        <{BASE}stream/{part}/events> gateway:liveObservation <{BASE}o/{part}/1/0> .
        <{BASE}o/{part}/1/0> {about} ; sosa:hasSimpleResult 7 }}
    }}"""


@each_row("decision", ["removal", "ignoring"])
def test_nothing_of_a_removed_device_stays(decision: str) -> None:
    data, devices = Dataset(), house()
    lamp, other = devices["room1/lamp"], devices["room1/climate"]
    assert lamp.sensors and lamp.actuators
    data.announced(other, "all")
    sensor = f"{BASE}{lamp.sensors[0].table['sensor']}"
    about = f"<urn:x:s> gateway:liveObservation <urn:x:o> . <urn:x:o> sosa:madeBySensor <{sensor}> ; rdfs:label 'mine'"
    data.update(f"{PREFIX} INSERT DATA {{ GRAPH <urn:x:notes> {{ {about} }} }}")
    shared = Dataset()
    shared.announced(lamp, "all")
    before = set(data.store) | {quad for quad in shared.store if lamp.id not in str(quad)}
    data.announced(lamp, "all")
    data.update(written(lamp))
    entry = data.entries()[lamp.name]
    data.update(REGISTRY.removal(entry) if decision == "removal" else REGISTRY.ignoring(entry))
    left = set(data.store) - before
    assert {str(quad.graph_name) for quad in left} == (set() if decision == "removal" else {REGISTRY.graph})
    assert before <= set(data.store)


def test_an_update_for_an_older_state_changes_nothing() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp)
    seen = data.entries()[lamp.name]
    data.update(REGISTRY.announced(seen, msgspec.structs.replace(lamp, model="new"), "ask"))
    before = set(data.store)
    data.update(REGISTRY.adoption(seen))
    data.announced(lamp)
    assert set(data.store) == before
    seen = data.entries()[lamp.name]
    data.update(REGISTRY.ignoring(seen))
    before = set(data.store)
    data.update(REGISTRY.adoption(seen))
    assert set(data.store) == before


def test_texts_of_devices_stay_texts() -> None:
    name = '"} } ; DROP ALL ; \\ " ; INSERT DATA { <a> <b> <c>'
    hostile = msgspec.structs.replace(house()["room1/lamp"], name=name, manufacturer=name, model=name, area=name)
    data = Dataset()
    data.announced(hostile, "all")
    assert data.values("?d gateway:manufacturer ?x") == [name]
    data.update(REGISTRY.removal(data.entries()[name]))
    assert data.values("?x a gateway:Device") == []


def test_people_name_devices_in_short() -> None:
    devices = house(2)
    entries = [Entry(device, "proposed") for device in devices.values()]
    lamp = devices["room2/lamp"]
    for text in (lamp.identity, lamp.id, "room2/lamp", "room2/l", "ROOM2/LA"):
        assert named(entries, text).device == lamp
    with pytest.raises(ValueError, match="fits 2 devices; write one of them in full"):
        named(entries, "lamp")
    with pytest.raises(LookupError, match="no device is called 'kettle'"):
        named(entries, "kettle")


def all_devices() -> Iterator[Device]:
    known = Announcements(FORMATS, devices_max=1000)
    found: dict[str, Device] = {}
    for name in ("homeassistant", "zigbee2mqtt", "tasmota", "shelly"):
        for topic, payload in announcements(name):
            found |= {device.identity: device for device in known.read("default", topic, payload).devices}
    yield from found.values()


@each_row("device", list(all_devices()), ids=lambda device: device.identity)
def test_the_rules_of_devices_are_rules_of_the_mapping(device: Device) -> None:
    for path, rule in REGISTRY.rules(device).items():
        table = json.loads(json.dumps(rule))
        if "stream" in table:
            StreamRule(msgspec.convert(table["stream"], StreamTable), prefixes=PREFIXES, base_iri=BASE, place=path)
        else:
            found = msgspec.convert(table["command"], CommandTable)
            command_rule(found, prefixes=PREFIXES, base_iri=BASE, place=path)
            if found.state is not None:
                StreamRule(found.state, prefixes=PREFIXES, base_iri=BASE, place=path)


def test_many_values_of_one_topic_have_several_rules() -> None:
    motion = house()["room1/motion"]
    sensor = motion.sensors[0]
    many = [
        msgspec.structs.replace(sensor, key=str(number), table=sensor.table | {"member": f"m{number}"})
        for number in range(READS_MAX + 1)
    ]
    rules = REGISTRY.rules(msgspec.structs.replace(motion, sensors=tuple(many)))
    assert sorted(len(rule["stream"]["read"]) for rule in rules.values()) == [1, READS_MAX]


def renamed(data: Dataset, device: Device, name: str, area: str) -> None:
    data.update(REGISTRY.naming(data.entries()[device.name], name=name, area=area))


@pytest.mark.parametrize("before", ["", "Old"])
def test_a_decision_changes_nothing_if_the_device_was_renamed_meanwhile(before: str) -> None:
    """Else it would have two names, and a removal would leave one."""
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp, "all")
    renamed(data, lamp, before, before)
    entry = data.entries()[lamp.name]
    renamed(data, lamp, "New", "Hall")
    found = set(data.store)
    for late in (REGISTRY.naming(entry, name="Late"), REGISTRY.ignoring(entry), REGISTRY.removal(entry)):
        data.update(late)
        assert set(data.store) == found
    data.update(REGISTRY.removal(data.entries()[lamp.name]))
    assert not data.values(f"?d gateway:givenName|rdfs:label ?x FILTER(?d = {REGISTRY.device_iri(lamp)})")
    assert not data.values("GRAPH ?g { ?d ?p ?x }")


def test_a_stored_name_with_control_characters_is_removed_with_its_device() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    data.announced(lamp)
    name = r"?d gateway:givenName '\u001B[2J'"
    data.update(f"{PREFIX} INSERT {{ GRAPH ?g {{ {name} }} }} WHERE {{ GRAPH ?g {{ ?d a ?class }} }}")
    entry = data.entries()[lamp.name]
    assert entry.name == "[2J"
    data.update(REGISTRY.removal(entry))
    assert not data.values("GRAPH ?g { ?d gateway:givenName|gateway:adoption ?x }")


def shutter(mode: str | None) -> Device:
    """A device of Home Assistant's format, whose texts are objects of their own, as those that a broker sends are."""
    announcement = {
        "name": "shutter",
        "unique_id": "shutter1",
        "state_topic": "shutter/state",
        "availability": [{"topic": "shutter/online"}, {"topic": "bridge/online"}],
        "device": {"identifiers": ["shutter1"], "name": "shutter"},
    } | ({} if mode is None else {"availability_mode": mode})
    topic = "homeassistant/sensor/shutter1/config"
    (device,) = (
        Announcements(["homeassistant"], devices_max=1)
        .read("default", topic, json.dumps(announcement).encode())
        .devices
    )
    return device


@pytest.mark.parametrize("mode", ["all", "any", "latest", None])
def test_a_device_is_adopted_whatever_its_availability_mode_is(mode: str | None) -> None:
    data, device = Dataset(), shutter(mode)
    data.announced(device)
    data.update(REGISTRY.adoption(data.entries()["shutter"]))
    assert data.entries() == {"shutter": Entry(device, "adopted")}


@pytest.mark.parametrize("source", [*sorted({path.stem for path in FOLDER.glob("*.json")} & set(FORMATS))])
def test_the_text_of_a_device_is_the_same_after_a_round_trip(source: str) -> None:
    known = Announcements([source], devices_max=1_000)
    devices = [one for topic, payload in announcements(source) for one in known.read("", topic, payload).devices]
    assert devices
    for device in devices:
        assert Device.from_json(device.to_json()) == device
        assert Device.from_json(device.to_json()).to_json() == device.to_json()


def test_a_record_that_another_version_spelled_differently_is_replaced() -> None:
    data, lamp = Dataset(), house()["room1/lamp"]
    stored = Entry(lamp, "proposed", stored=json.dumps(json.loads(lamp.to_json()), indent=1))
    data.update(REGISTRY._insertion(stored))
    data.update(REGISTRY.adoption(data.entries()["room1/lamp"]))
    changed = msgspec.structs.replace(lamp, model="LAMP 2")
    data.update(REGISTRY.announced(data.entries()["room1/lamp"], changed, "ask"))
    assert data.entries() == {"room1/lamp": Entry(changed, "adopted")}
    assert len(data.values(f"GRAPH <{BASE}graph/proposed> {{ ?device gateway:announcement ?x }}")) == 1
