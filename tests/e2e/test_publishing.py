"""Rows of queries as messages: a running gateway, its MQTT adapter and a real broker."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.ontology.vocabulary import GATEWAY
from tests.support.brokers import Mosquitto, subscribed
from tests.support.gateway_process import GatewayProcess, mqtt_gateway, wait_for

PREFIXES = f"PREFIX gateway: <{GATEWAY}> PREFIX : <http://lamplighter.local/> "
RULES = """\
[[publish]]
query = '''SELECT ?name ?state { ?lamp rdfs:label ?name ; gateway:reportedState ?state }'''
topic = "lamps/{name}/state"
retain = true
removed = ""

[[publish]]
query = "SELECT ?name { ?lamp rdfs:label ?name ; gateway:problem ?text }"
topic = "alarms"
payload = "{name}"

[[publish]]
query = "CONSTRUCT { ?lamp :has ?state } WHERE { ?lamp gateway:reportedState ?state }"
topic = "graph"

[prefixes]
"" = "http://lamplighter.local/"
"""
HAS = "<http://lamplighter.local/has>"


class Listener:
    """Notes the messages of a broker: topic, payload, retained."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, bool]] = []

    def payloads(self, topic: str) -> list[str]:
        return [payload for found, payload, _ in self.heard if found == topic]


@contextmanager
def listening(broker: Mosquitto, *filters: str) -> Iterator[Listener]:
    """Returns when the broker has granted the subscriptions."""
    listener = Listener()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: listener.heard.append(
        (message.topic, message.payload.decode(), message.retain)
    )
    with subscribed(client, broker, *filters):
        yield listener


def gateway(folder: Path, broker: Mosquitto, **mqtt_settings: object) -> GatewayProcess:
    (folder / "mapping").mkdir()
    (folder / "mapping" / "home.toml").write_text(RULES)
    return mqtt_gateway(folder, broker.port, discovery=[], **mqtt_settings)


def report(running: GatewayProcess, lamp: str, state: str) -> None:
    node = f":{lamp} <http://www.w3.org/2000/01/rdf-schema#label> '{lamp}/+' ; gateway:reportedState"
    running.update(
        f"{PREFIXES} DELETE {{ :{lamp} gateway:reportedState ?was }} INSERT {{ {node} {state} }} "
        f"WHERE {{ OPTIONAL {{ :{lamp} gateway:reportedState ?was }} }}"
    )


def triple(lamp: str, state: str) -> str:
    return f'<http://lamplighter.local/{lamp}> {HAS} "{state}"^^<http://www.w3.org/2001/XMLSchema#boolean> .\n'


def test_rows_and_triples_become_messages_and_old_ones_are_not_repeated(tmp_path: Path, broker: Mosquitto) -> None:
    topic = "lamps/one%2F%2B/state"
    with gateway(tmp_path, broker) as running, listening(broker, "lamps/#", "alarms", "graph") as listener:
        # The first result of a subscription gives no message without retain, so the graph's state tells nothing yet.
        report(running, "one", "true")
        wait_for(lambda: topic in [found for found, _, _ in listener.heard], what="the first message")

        def followed() -> bool:
            running.update(f"{PREFIXES} DELETE WHERE {{ :probe ?p ?o }}")
            report(running, "probe", "true")
            return bool(listener.payloads("graph"))

        wait_for(followed, what="the subscription of the graph")
        report(running, "one", "false")
        wait_for(lambda: triple("one", "false") in listener.payloads("graph"), what="the triple")
        wait_for(
            lambda: (topic, '{"name": "one/+", "state": false}', False) in listener.heard, what="the state of the lamp"
        )
        running.update(f"{PREFIXES} INSERT DATA {{ :one gateway:problem 'x', 'y' }}")
        wait_for(lambda: listener.payloads("alarms") == ["one/+"], what="the alarm")
        with listening(broker, "lamps/#", "graph", "alarms") as late:
            wait_for(lambda: topic in [found for found, _, _ in late.heard], what="the retained message")
            assert late.payloads(topic) == ['{"name": "one/+", "state": false}']
            assert {found.partition("/")[0] for found, _, _ in late.heard} == {"lamps"}

        running.end(signal.SIGKILL)
        listener.heard.clear()
        running.start()
        wait_for(lambda: len(listener.payloads(topic)) == 1, what="the retained message, brought up to date")
        running.update(f"{PREFIXES} DELETE WHERE {{ :one ?p ?o }}")
        wait_for(lambda: listener.payloads(topic)[1:] == [""], what="the end of the retained message")
        assert listener.payloads("alarms") == []
        with listening(broker, "lamps/#") as late:
            wait_for(lambda: bool(late.heard), what="the other lamp")
            assert late.payloads(topic) == []


def test_a_rule_of_the_dataset_needs_the_permission_of_the_operator(tmp_path: Path, broker: Mosquitto) -> None:
    def add(running: GatewayProcess, name: str, topic: str) -> None:
        table = {"query": "SELECT ?state { :x gateway:reportedState ?state }".replace(":x", "<x:x>"), "topic": topic}
        text = json.dumps(json.dumps({"publish": table | {"payload": "{state}"}}))
        running.update(f"{PREFIXES} INSERT DATA {{ :{name} a gateway:Mapping ; gateway:rule {text} }}")

    problem = f"{PREFIXES} SELECT ?rule ?text {{ ?rule gateway:problem ?text }}"
    with gateway(tmp_path, broker, publish=["open/+"]) as running, listening(broker, "open/#", "closed") as listener:
        add(running, "bad", "closed")
        wait_for(lambda: bool(running.rows(problem)), what="the problem")
        [row] = running.rows(problem)
        assert row["rule"].endswith("/bad") and "no topic filter of mqtt.publish covers it" in row["text"]
        add(running, "good", "open/x")
        states = iter(range(1_000))

        def published() -> bool:
            running.update(
                f"{PREFIXES} DELETE WHERE {{ <x:x> gateway:reportedState ?o }} ; "
                f"INSERT DATA {{ <x:x> gateway:reportedState {next(states)} }}"
            )
            return bool(listener.heard)

        wait_for(published, what="a message")
        assert {topic for topic, _, _ in listener.heard} == {"open/x"}
