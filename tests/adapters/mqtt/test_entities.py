"""What the gateway has -> Home Assistant's entities, over the engine; and the announcer's messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.mqtt import announcer
from lamplighter.adapters.mqtt.announcer import Announcer
from lamplighter.adapters.mqtt.discovery.homeassistant_keys import device_classes
from lamplighter.adapters.mqtt.entities import NAME_CHARS_MAX, QUERIES, Entity, HomeTopics, Things
from lamplighter.adapters.mqtt.messages import Message
from lamplighter.engine import Engine
from lamplighter.engine.client import Notification, UpdateAnswer, UpdateRequest
from lamplighter.engine.errors import GatewayError, RefusedError, UpstreamError
from lamplighter.engine.terms import Bag
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.event_loops import beside, settled, until
from tests.support.tables import each_row

BASE = "http://g/"
TOPICS = HomeTopics("one", "lamplighter/one/")
NAMES = "".join(f"PREFIX {name}: <{address}> " for name, address in PREFIXES.items()) + f"PREFIX : <{BASE}> "
READING = (
    "INSERT DATA { :o a sosa:Observation ; sosa:madeBySensor :s ; sosa:observedProperty %s ; sosa:hasSimpleResult %s . "
    ":stream gateway:liveObservation :o }"
)


class Dataset:
    """Things that follow an engine."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.things = Things(BASE, TOPICS, "1.0")
        self._numbers = {}
        for number, query in enumerate(QUERIES):
            first = self.engine.subscribe(query)
            self._numbers[first.spuid] = number
            self.things.take(number, Notification(first.spuid, 0, first.first, Bag(first.first.variables)))

    def write(self, text: str) -> set[str]:
        """The things that may have changed."""
        touched: set[str] = set()
        for note in self.engine.update(NAMES + text).notifications:
            found = Notification(note.spuid, note.sequence, note.added, note.removed)
            touched |= self.things.take(self._numbers[note.spuid], found)
        return touched

    def entity(self, name: str) -> Entity:
        found = self.things.entity(f"<{BASE}{name}>")
        assert found is not None
        return found


def holds(engine: Engine, pattern: str) -> bool:
    return len(list(engine.query(f"{NAMES} SELECT * {{ {pattern} }}"))) == 1


def test_the_queries_are_maintained_incrementally() -> None:
    assert [Engine().subscribe(query).spu_class for query in QUERIES] == ["telescoped"] * 2


@each_row(
    ("state", "component", "reported", "shown"),
    [
        ("lighting:hasStatus 'OFF'", "light", "'ON'", "ON"),
        ("lighting:hasStatus 'BROKEN'", "light", "'broken'", "None"),
        ("gateway:desiredState true", "switch", "false", "OFF"),
        ("gateway:desiredState true ; gateway:controls gateway:light", "light", "true", "ON"),
    ],
)
def test_an_actuator_is_a_light_or_a_switch_with_its_reported_state(
    state: str, component: str, reported: str, shown: str
) -> None:
    dataset = Dataset()
    dataset.write(f"INSERT DATA {{ :x {state} }}")
    assert (dataset.entity("x").component, dataset.entity("x").state) == (component, "None")
    dataset.write(f"INSERT DATA {{ :a sosa:madeByActuator :x ; sosa:hasSimpleResult {reported} }}")
    assert dataset.entity("x").state == shown
    assert dataset.write(f"INSERT DATA {{ :x gateway:reportedState {reported} }}") == {f"<{BASE}x>"}
    assert dataset.entity("x").state == shown


@each_row("state", ["5", "'bright'", "'ON'"])
def test_an_actuator_that_is_not_on_or_off_is_not_announced(state: str) -> None:
    dataset = Dataset()
    dataset.write(f"INSERT DATA {{ :x gateway:desiredState {state} ; gateway:reportedState true }}")
    assert dataset.things.entity(f"<{BASE}x>") is None


def test_a_command_writes_the_state_and_a_broken_lamp_stays_broken() -> None:
    dataset = Dataset()
    dataset.write("INSERT DATA { :x lighting:hasStatus 'OFF' . :y gateway:desiredState true }")
    for name, payload, wanted in (("x", b"ON", '"ON"'), ("y", b"OFF", "false")):
        text = dataset.entity(name).command(payload)
        assert text is not None
        dataset.write(text)
        assert holds(dataset.engine, f":{name} lighting:hasStatus|gateway:desiredState {wanted}")
    dataset.write("DELETE WHERE { :x lighting:hasStatus ?s } ; INSERT DATA { :x lighting:hasStatus 'BROKEN' }")
    assert not dataset.engine.update(str(dataset.entity("x").command(b"ON"))).added
    assert [dataset.entity("x").command(payload) for payload in (b"on", b"", b"\xff")] == [None] * 3


@each_row(
    ("property_", "unit", "value", "component", "state", "keys"),
    [
        ("gateway:temperature", "DEG_C", "20.5", "sensor", "20.5", ("temperature", "°C", "measurement")),
        ("lighting:temperature", "DEG_C", "-1", "sensor", "-1", ("temperature", "°C", "measurement")),
        ("gateway:temperature", "PERCENT", "20", "sensor", "20", (None, "%", "measurement")),
        ("gateway:temperature", "PARSEC", "20", "sensor", "20", (None, None, "measurement")),
        ("gateway:energy", "KiloW-HR", "1e3", "sensor", "1000", ("energy", "kWh", "total_increasing")),
        ("gateway:soilMoisture", "PERCENT", "4", "sensor", "4", ("moisture", "%", "measurement")),
        ("<x:other>", None, "'warm'", "sensor", "warm", (None, None, None)),
        ("gateway:event", None, f"'{'x' * 300}'", "sensor", "x" * 255, (None, None, None)),
        ("lighting:presence", None, "true", "binary_sensor", "ON", ("occupancy", None, None)),
        ("gateway:leak", None, "false", "binary_sensor", "OFF", ("moisture", None, None)),
        ("gateway:contact", None, "true", "binary_sensor", "OFF", ("opening", None, None)),
        ("<x:other>", None, "true", "binary_sensor", "ON", (None, None, None)),
    ],
)
def test_an_observation_is_a_sensor(
    property_: str, unit: str | None, value: str, component: str, state: str, keys: tuple[str | None, ...]
) -> None:
    dataset = Dataset()
    dataset.write(READING % (property_, value))
    if unit is not None:
        dataset.write(f"INSERT DATA {{ :stream qudt:hasUnit unit:{unit} }}")
    entity = dataset.entity("o")
    config = entity.config
    assert (entity.component, entity.state) == (component, state)
    assert (config.get("device_class"), config.get("unit_of_measurement"), config.get("state_class")) == keys
    assert "command_topic" not in config


def test_names_and_devices_are_those_of_labels() -> None:
    dataset = Dataset()
    dataset.write(READING % ("gateway:temperature", "1"))
    assert (dataset.entity("o").config["name"], dataset.entity("o").config["device"]["name"]) == (None, "o")
    assert dataset.write("INSERT DATA { :box sosa:hosts :s }") >= {f"<{BASE}o>"}
    touched = dataset.write("INSERT DATA { :box rdfs:label 'The\\nbox'@en . :stream rdfs:label 'warmth' }")
    assert touched >= {f"<{BASE}box>", f"<{BASE}o>"}
    config = dataset.entity("o").config
    assert (config["name"], config["device"]["name"]) == ("warmth", "The box")
    dataset.write(f"INSERT DATA {{ :stream rdfs:label '{'x' * 500}' }}")
    assert len(dataset.entity("o").config["name"]) == NAME_CHARS_MAX
    assert dataset.write("DELETE WHERE { :o ?p ?v }") == {f"<{BASE}o>"}
    assert dataset.things.entity(f"<{BASE}o>") is None


@each_row(("source", "left_out"), [("homeassistant", True), ("zigbee2mqtt", True), ("sparkplug", False)])
def test_what_announces_itself_is_left_out(source: str, left_out: bool) -> None:
    dataset = Dataset()
    dataset.write(READING % ("gateway:temperature", "1") + " ; INSERT DATA { :x gateway:desiredState true }")
    for part, thing in (("s", "o"), ("x", "x")):
        assert dataset.things.entity(f"<{BASE}{thing}>") is not None
        touched = dataset.write(f"INSERT DATA {{ <{BASE}device/{source}/1> sosa:hosts :{part} }}")
        assert f"<{BASE}{thing}>" in touched
        assert (dataset.things.entity(f"<{BASE}{thing}>") is None) is left_out


def test_a_new_first_result_replaces_all_rows() -> None:
    dataset = Dataset()
    dataset.write("INSERT DATA { :box sosa:hosts :x . :x gateway:desiredState true }")
    variables = ("thing", "desired")
    true = '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>'
    touched = dataset.things.take(0, Notification("", 0, Bag(variables, [(f"<{BASE}y>", true)]), Bag(variables)))
    assert touched >= {f"<{BASE}x>", f"<{BASE}y>"}
    assert dataset.things.entity(f"<{BASE}x>") is None
    assert dataset.entity("y").component == "switch"


def test_every_kind_has_device_classes_or_none() -> None:
    assert {name for name in KINDS if device_classes(name).inverted} == {"contact", "lock"}
    assert device_classes("temperature") == ("", False, ("temperature",))


# The announcer


class Client:
    """The engine as the announcer's client. errors: answers of the next updates."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.queues: dict[str, asyncio.Queue[Notification]] = {}
        self.errors: list[GatewayError] = []
        self.causes: list[str] = []

    def write(self, text: str) -> None:
        for note in self.engine.update(NAMES + text).notifications:
            self.queues[note.spuid].put_nowait(Notification(note.spuid, note.sequence, note.added, note.removed))

    async def subscribe(self, sparql: str, *, tell_commit: bool = False) -> AsyncGenerator[Notification, None]:
        first = self.engine.subscribe(sparql)
        queue = self.queues[first.spuid] = asyncio.Queue()
        yield Notification(first.spuid, 0, first.first, Bag(first.first.variables))
        while True:
            yield await queue.get()

    async def updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateAnswer | GatewayError]:
        if self.errors:
            return [self.errors.pop(0) for _ in requests]
        for request in requests:
            assert request.cause is not None
            self.causes.append(f"{request.cause.kind} {request.cause.id}")
            self.write(request.sparql)
        return [UpdateAnswer(sequence=1, delayed=None) for _ in requests]


class Broker:
    """Keeps retained messages. failures: so many attempts fail first."""

    def __init__(self) -> None:
        self.subscribed = asyncio.Event()
        self.subscribed.set()
        self.failures = 0
        self.published = 0
        self.kept: dict[str, str] = {}

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise UpstreamError("no acknowledgement")
        assert (qos, retain) == (1, True)
        self.published += 1
        if payload:
            self.kept[topic] = payload.decode()
        else:
            self.kept.pop(topic, None)


class Running:
    def __init__(self, *, announce: bool = True) -> None:
        self.client, self.broker = Client(), Broker()
        self.place = TOPICS._replace(announce=announce)
        self.warned: list[tuple[str, str]] = []
        self.announcer = Announcer(
            self.client,
            self.broker,
            self.place,
            base_iri=BASE,
            version="1",
            warn=lambda topic, reason: self.warned.append((topic, reason)),
        )

    def topics(self) -> set[str]:
        return {topic.rpartition("/")[2] + " " + topic.split("/")[1] for topic in self.broker.kept}

    async def receive(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        await self.announcer.take([Message(topic, payload, retained, datetime.now(UTC), {}, 1, 1, 1)])


@asynccontextmanager
async def running(*, announce: bool = True, text: str = "") -> AsyncIterator[Running]:
    one = Running(announce=announce)
    if text:
        one.client.write(text)
    async with beside(one.announcer.run()) as task:
        await settled()
        yield one
    assert task.cancelled()


LAMP = "INSERT DATA { :x gateway:desiredState true }"


async def test_the_messages_follow_the_dataset() -> None:
    async with running(text=LAMP) as one:
        assert one.topics() == {"config switch", "state one"}
        assert one.announcer.status() == "1 entity announced"
        one.client.write("INSERT DATA { :x gateway:controls gateway:light }")
        await settled()
        assert one.topics() == {"config light", "state one"}
        one.client.write("DELETE WHERE { :x ?p ?o }")
        await settled()
        assert one.broker.kept == {}


async def test_a_new_connection_gets_all_messages_again_and_failed_ones_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer, "RETRY_MIN_S", 0.001)
    async with running(text=LAMP) as one:
        one.announcer.connected(True)
        await settled()
        one.announcer.connected(True)  # as after another subscription
        await settled()
        published = one.broker.published
        one.announcer.connected(False)
        one.broker.subscribed.clear()
        one.broker.kept.clear()
        one.broker.failures = 3
        one.announcer.connected(True)
        await settled()
        assert one.broker.kept == {}
        one.broker.subscribed.set()
        await until(lambda: one.topics() == {"config switch", "state one"})
        assert one.broker.published == published + 2


@pytest.mark.parametrize("announce", [True, False])
async def test_announcements_of_an_earlier_run_are_removed(announce: bool) -> None:
    old = f"homeassistant/light/{TOPICS.node}/old/config"
    async with running(announce=announce, text=LAMP) as one:
        one.broker.kept |= {old: "{}", "lamplighter/one/things/old/state": "ON"}
        for topic in list(one.broker.kept):
            assert one.place.covers(topic) is topic.startswith("homeassistant/")
            await one.receive(topic, b"{}", retained=True)
        await settled()
        assert one.topics() == ({"config switch", "state one"} if announce else set())
        assert old not in one.broker.kept
        assert not one.place.covers(old.replace(TOPICS.node, "other"))
        assert one.place.covers("lamplighter/one/things/k/set") is announce


async def test_commands_are_updates_with_their_topic_as_cause() -> None:
    async with running(text=LAMP) as one:
        topic = next(topic for topic in one.broker.kept if topic.endswith("/state")).replace("/state", "/set")
        await one.receive(topic, b"OFF")
        assert holds(one.client.engine, ":x gateway:desiredState false")
        assert one.client.causes == [f"mqtt {topic}"]
        await one.receive(topic, b"ON", retained=True)
        await one.receive(topic, b"toggle")
        await one.receive("lamplighter/one/things/none/set", b"ON")
        one.client.errors = [RefusedError("forbidden", 403, "no")]
        await one.receive(topic, b"ON")
        reasons = [reason.partition(";")[0].partition(":")[0] for _, reason in one.warned]
        assert reasons == [
            "a retained command is old",
            "write ON or OFF",
            "no such lamp or switch",
            "the gateway refused it",
        ]
        assert holds(one.client.engine, ":x gateway:desiredState false")


async def test_the_number_of_entities_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "ENTITIES_MAX", 1)
    async with running(text=LAMP) as one:
        one.client.write("INSERT DATA { :y gateway:desiredState true }")
        await settled()
        assert one.announcer.status() == "1 entity announced"
        assert [topic for topic, _ in one.warned] == ["*"]


def test_the_prefix_of_discovery_may_have_levels() -> None:
    place = HomeTopics("one", "lamplighter/one/", "my/own")
    assert place.filters[1] == f"my/own/+/{place.node}/+/config"
    topic = f"my/own/sensor/{place.node}/key/config"
    assert place.announces(topic) and not place.announces(f"my/{topic}") and not place.announces(topic[3:])
    assert place.state_of(topic) == "lamplighter/one/things/key/state"
