"""The SHACL shapes against what the adapters' updates make of an engine's dataset, and against broken datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pyoxigraph as ox
import pyshacl
import pytest
import rdflib

from lamplighter.adapters.coap.adapter import CoapHealth
from lamplighter.adapters.coap.directory import Registration
from lamplighter.adapters.coap.links import Link
from lamplighter.adapters.coap.names import DeviceNames
from lamplighter.adapters.coap.registrations import RegistrationTriples
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.counting import counters_update
from lamplighter.adapters.devices.availability import online_update
from lamplighter.adapters.devices.desired import Sending, actuation_update, refusal_update, reported_update
from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.intervals import interval_update
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.mapping import ReadingRules, ResourceRule, ResourceTable
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.broker_states import BrokerStates
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.basis import adapter_basis
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.health import health_update
from lamplighter.adapters.resources.polled_adapter import AddressIris
from lamplighter.adapters.resources.reachability import Reachability
from lamplighter.engine import Engine
from lamplighter.engine.terms import iri, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.announcements import announcements, zigbee_house
from tests.support.mapping_rules import BASE, NOON, readings, rules
from tests.support.places import ROOT
from tests.support.tables import each_row

SHAPES = ROOT / "ontology" / "shapes.ttl"
NAMES = "".join(f"PREFIX {name}: <{address}> " for name, address in PREFIXES.items()) + f"BASE <{BASE}> "
LAMP = f"<{BASE}lamp/1>"

RULES = """
[[stream]]
topic = "{room}/climate"
label = "climate of {room}"
feature = "room/{room}"
time = "member t"
read = [
  { member = "temperature", payload = "number", property = "ex:temperature", unit = "Cel", result = "quantity" },
  { member = "taste", payload = "number", property = "ex:taste", unit = "yummy", result = "quantity", optional = true },
  { member = "state", payload = "text", property = "ex:state", optional = true },
]

[[stream]]
topic = "{room}/door"
payload = "boolean"
property = "ex:open"
on_repeat = "event"
"""
MESSAGES = (
    ("kitchen/climate", '{"t": "2026-11-21T11:59:00Z", "temperature": 20.5, "taste": 3, "state": "good"}', False),
    ("kitchen/climate", '{"t": "2030-01-01T00:00:00Z", "temperature": 21}', False),
    ("attic/climate", '{"t": "nonsense", "temperature": -3e0}', False),
    ("cellar/climate", '{"temperature": 9, "state": "old"}', True),
    ("kitchen/door", "true", False),
    ("kitchen/door", "true", False),
    ("kitchen/door", "false", True),
)


def streams(model: LatestModel | EventModel) -> Iterator[str]:
    mapping, described = rules(RULES), set()
    for number, (topic, payload, retained) in enumerate(MESSAGES):
        for reading in readings(mapping, topic, payload, retained=retained, received=NOON + timedelta(seconds=number)):
            if reading.stream not in described:
                described.add(reading.stream)
                yield model.description(reading.stream)
            again = reading._replace(again=topic.endswith("door") and not retained)
            yield from model.updates(again)


def actuations() -> Iterator[str]:
    yield f"{NAMES} INSERT DATA {{ {LAMP} a sosa:Actuator ; gateway:coapResource <coap://lamp/a> }}"
    yield f"{NAMES} INSERT DATA {{ {LAMP} gateway:desiredState true }}"
    yield actuation_update(LAMP, literal("ON"), NOON)
    sending = Sending(
        NOON - timedelta(seconds=1), "timer", "PUBACK", "mapping/home.toml line 7: command 1", "lamp/set", (1, 17)
    )
    yield actuation_update(LAMP, literal("ON"), NOON, sending)
    yield reported_update(LAMP, literal("ON"), NOON, [iri(f"{BASE}broker/default"), iri(f"{BASE}adapter/mqtt")])
    yield refusal_update(LAMP, "its address is not permitted")
    yield refusal_update(f"<{BASE}lamp/2>", "its address is not permitted")


def devices() -> Iterator[str]:
    """Proposed, adopted, renamed, moved, ignored and retired devices of several ecosystems."""
    registry = Registry(BASE)
    messages = [("zigbee2mqtt/bridge/devices", zigbee_house(2))]
    names = ("homeassistant", "tasmota", "shelly")
    messages += [message for name in names for message in announcements(name)]
    found = Announcements(["zigbee2mqtt", *names], devices_max=1000)
    last = {device.identity: device for topic, payload in messages for device in found.read("", topic, payload).devices}
    for number, device in enumerate(last.values()):
        adopted = number % 4 != 0
        yield registry.announced(None, device, "all" if adopted else "ask") or ""
        entry = Entry(device, "adopted" if adopted else "proposed")
        if number % 4 == 0:
            yield registry.ignoring(entry)
        elif number % 4 == 1:
            yield registry.naming(entry, name=f"device {number}", area="Living room")
        elif number % 4 == 2:
            yield registry.withdrawn(entry) or ""
    assert len(last) > 8


def problems() -> Iterator[str]:
    noted = Problems(BASE)
    for minutes in (0, 1, 2):
        text = noted.update(
            Problem("shelly", "home", "shellies/x", "no name", "shelly/x"), NOON + timedelta(minutes=minutes)
        )
        assert text is not None
        yield text


def faulty_rules() -> Iterator[str]:
    """A rule with a fault, and what the adapter says about it."""
    mapping, rule = f"<{BASE}mapping/wrong>", literal('{"stream": {}}')
    yield f"{NAMES} INSERT DATA {{ {mapping} a gateway:Mapping ; gateway:rule {rule} }}"
    found = DatasetRules(BASE)
    found.change([(mapping, rule)], [])
    updates = found.problem_updates()
    assert "gateway#problem" in updates[0]
    yield from updates


def availability() -> Iterator[str]:
    """Platforms that are online, offline, or neither, by their topics and by their learned intervals."""
    yield from streams(LatestModel())
    for room, states in {"kitchen": (True,), "attic": (True, False), "cellar": (True, None)}.items():
        platform = f"<{BASE}platform/{room}/climate>"
        for online in states:
            yield online_update(platform, online, NOON if online is False else None)
    [reading, *_] = readings(rules(RULES), "kitchen/climate", '{"temperature": 1}')
    for interval_s in (60.0, None, 61.25):
        yield interval_update(reading.stream.iri, interval_s)


def brokers() -> Iterator[str]:
    """A broker that is connected, and one that is not."""
    client: Any = None
    settings = {"default": BrokerSettings(host="broker.local"), "hall": BrokerSettings(host="10.0.0.2", port=8883)}
    states = BrokerStates(client, BASE, settings, lambda: NOON)
    yield from map(states.update, settings)
    states.changed("default", connected=True, reason="")
    states.changed("hall", connected=False, reason="")
    yield from map(states.update, settings)


def adapters() -> Iterator[str]:
    for messages in (1, 2):
        yield counters_update(BASE, "mqtt", {"messages": messages})
        yield counters_update(BASE, "coap", {"commands": messages})


def coap_devices() -> Iterator[str]:
    """A device that answers, one that does not, and one that is not used any more."""
    hosts: dict[str, set[str]] = {name: {f"<{BASE}lamp/{name}>"} for name in ("a", "b:61616", "c")}
    found = Reachability(
        adapter_basis("coap", CoapSettings(), AdapterContext(cast(Any, None), now=lambda: NOON), ResourceCounters()),
        DeviceNames(BASE),
        hosted=lambda name: hosts[name] or None,
        on_back=lambda name: None,
    )
    for name, [actuator] in hosts.items():
        found.heard(name)
        yield f"{NAMES} INSERT DATA {{ {actuator} a sosa:Actuator }}"
    yield from found.due(0)
    found.failed("b:61616", "coap://b:61616/lamp", "no answer")
    hosts["c"] = set()
    yield from found.due(1)
    yield from found.due(1_000)
    yield health_update(BASE, "coap", CoapHealth(devices=2, unreachable=1))


def polled_devices() -> Iterator[str]:
    """A device that answers, and then does not."""
    names = AddressIris(BASE, "http-devices")
    found = Reachability(
        adapter_basis("coap", CoapSettings(), AdapterContext(cast(Any, None), now=lambda: NOON), ResourceCounters()),
        names,
        hosted=lambda name: set(),
        on_back=lambda name: None,
    )
    found.heard("meter")
    yield from found.due(0)
    found.failed("meter", "http://meter/power", "no answer in time")
    yield from found.due(1)
    yield from found.due(1_000)


def coap_sensors() -> Iterator[str]:
    """Readings of resources, one of which has a wildcard of MQTT in its path."""
    for uri in ("coap://lamp/climate/t", "coap://10.0.0.2:61616/a+b?x=1"):
        table = ResourceTable(resource=uri, property="gateway:temperature", payload="number", unit="Cel")
        rule = ResourceRule(table, prefixes=PREFIXES, base_iri=BASE, place="rule")
        body = read_body(b"21.5", 0, rule.accepted)
        model = LatestModel()
        for reading in ReadingRules([rule]).readings(rule.name, body, retained=False, received=NOON):
            assert isinstance(reading, Reading)
            yield model.description(reading.stream)
            yield from model.updates(reading)


def registrations() -> Iterator[str]:
    links = (Link("/lamp", (("rt", "light"),)),)
    one = Registration("0", "hall", "floor1", "coap://192.0.2.10", False, 600, 0.0, links, (("et", None),))
    triples = RegistrationTriples(BASE)
    yield triples.update(one, "192.0.2.10", NOON, "")
    yield triples.update(replace(one, sector="", lifetime_s=900), "", NOON, "coap/hall")


SOURCES = {
    "coap devices": coap_devices,
    "polled devices": polled_devices,
    "coap sensors": coap_sensors,
    "latest": lambda: streams(LatestModel()),
    "event": lambda: streams(EventModel(2, 100)),
    "actuations": actuations,
    "devices": devices,
    "problems": problems,
    "faulty rules": faulty_rules,
    "availability": availability,
    "brokers": brokers,
    "adapters": adapters,
    "registrations": registrations,
}


def dataset(*texts: str) -> bytes:
    """The merge of all graphs that updates leave in an engine, as N-Triples."""
    engine = Engine()
    try:
        for text in texts:
            engine.update(text)
        return merged(engine)
    finally:
        engine.close()


def merged(engine: Engine) -> bytes:
    quads = ox.parse(engine.dump("application/n-quads"), ox.RdfFormat.N_QUADS)
    return bytes(ox.serialize((quad.triple for quad in quads), format=ox.RdfFormat.N_TRIPLES) or b"")


@pytest.fixture(scope="module")
def shapes() -> rdflib.Graph:
    return rdflib.Graph().parse(SHAPES)


def faults_of(triples: bytes, shapes: rdflib.Graph) -> str:
    """The report, "" for a dataset that conforms."""
    data = rdflib.Graph().parse(data=triples.decode(), format="nt")
    conforms, _, text = pyshacl.validate(data, shacl_graph=shapes)
    return "" if conforms else str(text)


def test_shapes_are_valid_shacl(shapes: rdflib.Graph) -> None:
    assert pyshacl.validate(rdflib.Graph(), shacl_graph=shapes, meta_shacl=True)[0]


@each_row("source", SOURCES)
def test_what_an_adapter_writes_conforms(source: str, shapes: rdflib.Graph) -> None:
    texts = list(SOURCES[source]())
    triples = dataset(*texts)
    assert triples.count(b"\n") > 2
    assert faults_of(triples, shapes) == ""


def test_what_all_adapters_write_conforms_together(shapes: rdflib.Graph) -> None:
    together = [text for name, source in SOURCES.items() if name != "event" for text in source()]
    triples = dataset(*together)
    assert faults_of(triples, shapes) == ""
    written = {
        str(kind) for kind in rdflib.Graph().parse(data=triples.decode(), format="nt").objects(None, rdflib.RDF.type)
    }
    targets = {str(kind) for kind in shapes.objects(None, rdflib.SH.targetClass)}
    assert targets <= written, "each shape has something to check"


def test_the_dataset_conforms_after_a_rule_has_another_unit(shapes: rdflib.Graph) -> None:
    texts = []
    for unit in ("Cel", "K", "yummy", "Cel"):
        [reading] = readings(rules(RULES.replace("Cel", unit)), "attic/climate", '{"temperature": 1}')
        texts += [LatestModel().description(reading.stream), *LatestModel().updates(reading)]
    assert faults_of(dataset(*texts), shapes) == ""


def test_the_dataset_conforms_after_each_update(shapes: rdflib.Graph) -> None:
    engine = Engine()
    try:
        for text in streams(LatestModel()):
            engine.update(text)
            assert faults_of(merged(engine), shapes) == "", text
    finally:
        engine.close()


def without(triple: str, where: str = "") -> str:
    """The update that deletes all triples of a pattern."""
    return f"DELETE {{ {triple} }} WHERE {{ {triple} . {where} }}"


def instead(triple: str, other: str) -> str:
    """The update that replaces all triples of a pattern."""
    return f"DELETE {{ {triple} }} INSERT {{ {other} }} WHERE {{ {triple} }}"


def also(triple: str, where: str) -> str:
    return f"INSERT {{ {triple} }} WHERE {{ {where} }}"


TIME, UNIT = "?o sosa:resultTime ?t", "?s a gateway:Stream ; qudt:hasUnit ?u"
BROKEN = {
    "no sensor": without("?o sosa:madeBySensor ?s"),
    "two sensors": also("?o sosa:madeBySensor ?s", "?o a sosa:Observation . ?s a sosa:Sensor"),
    "a sensor that is none": without("?s a sosa:Sensor"),
    "a sensor without a platform": without("?p sosa:hosts ?s", "?s a sosa:Sensor"),
    "a sensor that observes nothing": without("?s sosa:observes ?p"),
    "no property": without("?o sosa:observedProperty ?p"),
    "a feature that is none": without("?f a sosa:FeatureOfInterest"),
    "two results": also("?o sosa:hasSimpleResult 1, 2", "?o a sosa:Observation"),
    "two times": also("?o sosa:resultTime '2020-01-01T00:00:00Z'^^xsd:dateTime", "?o a sosa:Observation"),
    "a time as text": instead(TIME, "?o sosa:resultTime 'now'"),
    "a time without a zone": instead(TIME, "?o sosa:resultTime '2026-11-21T12:00:00'^^xsd:dateTime"),
    "a fresh result without a time": without(TIME, "?o a sosa:Observation"),
    "an unknown time problem": also("?o gateway:timeProblem 'late'", "?o a sosa:Observation"),
    "an observation of no stream": without("?s gateway:liveObservation ?o"),
    "a stream without a topic": without("?s gateway:mqttTopic ?t", "?s a gateway:Stream"),
    "a topic with a wildcard": also("?s gateway:mqttTopic 'a/+'", "?s a gateway:Stream"),
    "two units": also("?s qudt:hasUnit unit:K . unit:K a qudt:Unit", UNIT),
    "a known and an unknown unit": also("?s gateway:unknownUnit 'K'", UNIT),
    "a unit as text": instead("?s qudt:hasUnit ?u", "?s qudt:hasUnit 'C'"),
    "a number that is text": instead("?r qudt:numericValue ?n", "?r qudt:numericValue 'one'"),
    "a quantity of no observation": without("?o sosa:hasResult ?r"),
    "a platform that hosts a property": also("?p sosa:hosts ?x", "?p a sosa:Platform . ?x a sosa:ObservableProperty"),
    "a property without an IRI": "INSERT DATA { [] a sosa:ObservableProperty }",
    "two desired states": also("?a gateway:desiredState true, false", "?a a sosa:Actuator"),
    "bounds in the wrong order": also(
        "?a gateway:minimum '2'^^xsd:double ; gateway:maximum '1'^^xsd:double", f"BIND({LAMP} AS ?a)"
    ),
    "an actuation without an actuator": without("?a sosa:madeByActuator ?b"),
    "an actuation by two": also("?a sosa:madeByActuator <x>", "?a a sosa:Actuation"),
    "an actuation without a time": without("?a sosa:resultTime ?t", "?a a sosa:Actuation"),
    "an empty actuation": f"INSERT DATA {{ <x> a sosa:Actuation ; sosa:madeByActuator {LAMP} }}",
    "a part of no device": without("?d sosa:hosts ?a", "?a gateway:controls ?p"),
    "an actuator that acts on nothing": without("?p a sosa:ActuatableProperty"),
    "a device without a name": without("?d rdfs:label ?l", "?d a gateway:Device"),
    "a device without a decision": without("?d gateway:adoption ?a"),
    "an unknown decision": instead("?d gateway:adoption ?a", "?d gateway:adoption 'maybe'"),
    "an area without a name": without("?a rdfs:label ?l", "?a a gateway:Area"),
    "an area that is none": without("?a a gateway:Area"),
    "a mapping without a rule": without("?m gateway:rule ?r"),
    "a rule that is no JSON object": "INSERT DATA { <m> a gateway:Mapping ; gateway:rule 'topic' }",
    "a rule of no device": "INSERT DATA { <m> a gateway:Mapping ; gateway:rule '{}' ; gateway:ofDevice <x> }",
    "a command that is no mapping": also("?a gateway:command <x>", "?a a sosa:Actuator"),
    "two reported states": also("?a gateway:reportedState 'OFF'", "?a gateway:reportedState 'ON'"),
    "two times of a report": also(
        "?a gateway:reportedTime '2020-01-01T00:00:00Z'^^xsd:dateTime", "?a gateway:reportedTime ?t"
    ),
    "a time of a report without a zone": instead(
        "?a gateway:reportedTime ?t", "?a gateway:reportedTime '2020-01-01T00:00:00'^^xsd:dateTime"
    ),
    "a state that comes through a text": instead(
        "?a gateway:reportedState ?t ; gateway:receivedFrom ?s",
        "?a gateway:reportedState ?t ; gateway:receivedFrom 'a broker'",
    ),
    "a reported state that is a node": instead("?a gateway:reportedState ?s", "?a gateway:reportedState <on>"),
    "online and offline": also("?p gateway:online false", "?p gateway:online true"),
    "online as text": instead("?p gateway:online true", "?p gateway:online 'true'"),
    "online and no platform": "INSERT DATA { <x> gateway:online true }",
    "last seen, and online": instead("?p gateway:online false", "?p gateway:online true"),
    "last seen, and not offline": without("?p gateway:online false"),
    "last seen twice": also(
        "?p gateway:lastSeen '2020-01-01T00:00:00Z'^^xsd:dateTime", "?p gateway:online false ; gateway:lastSeen ?t"
    ),
    "last seen without a zone": instead(
        "?p gateway:online false ; gateway:lastSeen ?t",
        "?p gateway:online false ; gateway:lastSeen '2020-01-01T00:00:00'^^xsd:dateTime",
    ),
    "an interval of nothing": instead("?s gateway:reportingInterval ?i", "?s gateway:reportingInterval 0.0"),
    "two intervals": also("?s gateway:reportingInterval 5.0", "?s gateway:reportingInterval ?i"),
    "a broker without an address": without("?b rdfs:label ?l", "?b a gateway:Broker"),
    "a broker without a state": without("?b gateway:connected ?c"),
    "a broker with two states": also("?b gateway:connected true", "?b gateway:connected false"),
    "a broker without a time": without("?b gateway:since ?t"),
    "a connected broker with a reason": also("?b gateway:reason 'none'", "?b gateway:connected true"),
    "a broker that is away without a reason": without("?b gateway:reason ?r", "?b gateway:connected false"),
    "an adapter with a health that is no object": also("?a gateway:health 'none'", "?a a gateway:Adapter"),
    "an adapter with two counters": also("?a gateway:counters '{}'", "?a a gateway:Adapter"),
    "a problem that never occurred": instead("?p gateway:count ?n", "?p gateway:count 0"),
}


@pytest.fixture(scope="module")
def good() -> bytes:
    """Triples of a small dataset with something of each class."""
    names = ("latest", "actuations", "problems", "faulty rules", "availability", "brokers", "adapters")
    some = [text for name in names for text in SOURCES[name]()]
    registry = Registry(BASE)
    found = (
        Announcements(["zigbee2mqtt"], devices_max=10).read("", "zigbee2mqtt/bridge/devices", zigbee_house(1)).devices
    )
    for device in found:
        some.append(registry.announced(None, device, "all") or "")
        some.append(registry.naming(Entry(device, "adopted"), area="Hall"))
    return dataset(*some)


def test_the_dataset_that_is_broken_below_conforms(good: bytes, shapes: rdflib.Graph) -> None:
    assert faults_of(good, shapes) == ""


@each_row("fault", BROKEN, is_amount=True)
def test_a_broken_dataset_is_refused(fault: str, good: bytes, shapes: rdflib.Graph) -> None:
    engine = Engine()
    try:
        engine.load(good, media_type="application/n-triples")
        commit = engine.update(NAMES + BROKEN[fault])
        assert commit.added or commit.removed, "the update breaks something"
        assert "Constraint Violation" in faults_of(merged(engine), shapes)
    finally:
        engine.close()
