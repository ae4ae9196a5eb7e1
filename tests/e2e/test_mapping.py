"""Rules of a running gateway: added as triples, changed by SIGHUP in the foreground; model "event"."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.brokers import Mosquitto
from tests.support.gateway_process import GatewayProcess, mqtt_gateway, wait_for

PREFIXES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> "
VALUES = f"{PREFIXES} SELECT ?sensor ?value {{ ?o sosa:madeBySensor ?sensor ; sosa:hasSimpleResult ?value }}"
MAPPING = "<http://lamplighter.local/mapping/attic>"
ATTIC = {"topic": "attic/{x}", "payload": "number", "property": "gateway:temperature", "unit": "Cel"}


def values(running: GatewayProcess) -> dict[str, str]:
    return {row["sensor"].rpartition("/sensor/")[2]: row["value"] for row in running.rows(VALUES)}


def published(running: GatewayProcess, broker: Mosquitto, topic: str, value: str) -> None:
    """Publishes until the reading is in the dataset: a subscription of the adapter may take a moment."""

    def there() -> bool:
        broker.publish((topic, value))
        time.sleep(0.2)
        return values(running).get(topic) == value

    wait_for(there, what=f"{value} on {topic}")


def add_rule(running: GatewayProcess, table: object) -> None:
    text = json.dumps(json.dumps({"stream": table}))
    running.update(f"{PREFIXES} INSERT DATA {{ {MAPPING} a gateway:Mapping ; gateway:rule {text} }}")


def test_rule_as_triples_is_applied_refused_with_a_reason_and_forgotten(tmp_path: Path, broker: Mosquitto) -> None:
    problem = f"{PREFIXES} SELECT ?text {{ {MAPPING} gateway:problem ?text }}"
    with mqtt_gateway(tmp_path, broker.port) as running:
        add_rule(running, ATTIC)
        published(running, broker, "attic/t", "20")
        running.update(f"{PREFIXES} DELETE WHERE {{ {MAPPING} gateway:rule ?rule }}")
        add_rule(running, ATTIC | {"topic": "attic/{x}/{x}"})
        wait_for(lambda: bool(running.rows(problem)), what="the problem")
        [row] = running.rows(problem)
        assert "captures a name twice" in row["text"]
        broker.publish(("attic/t", "99"))
        running.update(f"{PREFIXES} DELETE WHERE {{ {MAPPING} ?p ?o }}")
        add_rule(running, ATTIC | {"topic": "attic/upstairs/{x}"})
        published(running, broker, "attic/upstairs/t", "21")
        assert values(running) == {"attic/t": "20", "attic/upstairs/t": "21"}
        assert running.rows(problem) == []


def test_hangup_applies_changed_files_and_keeps_the_old_ones_if_they_are_faulty(
    tmp_path: Path, broker: Mosquitto
) -> None:
    rules = tmp_path / "mapping" / "home.toml"
    rules.parent.mkdir()
    table = '[[stream]]\ntopic = "TOPIC/{x}"\npayload = "number"\nproperty = "gateway:temperature"\n'
    rules.write_text(table.replace("TOPIC", "one"))
    with mqtt_gateway(tmp_path, broker.port) as running:
        published(running, broker, "one/t", "1")
        rules.write_text("[[stream]\n")
        os.kill(running.pid, signal.SIGHUP)
        time.sleep(1)
        published(running, broker, "one/t", "2")
        rules.write_text(table.replace("TOPIC", "two"))
        os.kill(running.pid, signal.SIGHUP)
        published(running, broker, "two/t", "3")
        broker.publish(("one/t", "4"), ("two/t", "5"))
        wait_for(lambda: values(running)["two/t"] == "5", what="the last reading")
        assert values(running) == {"one/t": "2", "two/t": "5"}


@pytest.mark.faults
def test_model_event_keeps_the_newest_readings_over_a_kill(tmp_path: Path, broker: Mosquitto) -> None:
    events = (
        f"{PREFIXES} SELECT ?value {{ GRAPH ?g {{ ?s gateway:liveObservation ?o . "
        "?o sosa:hasSimpleResult ?value ; sosa:resultTime ?t } } ORDER BY ?t"
    )
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "home.toml").write_text(
        '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "gateway:temperature"\n'
    )
    with mqtt_gateway(tmp_path, broker.port, model="event", events_kept=3) as running:

        def live() -> list[str]:
            return [row["value"] for row in running.rows(events)]

        def subscribed() -> bool:
            broker.publish(("t", "0"))
            time.sleep(0.2)
            return bool(live())

        wait_for(subscribed, what="the first event")
        broker.publish(*(("t", str(value)) for value in range(1, 5)))
        wait_for(lambda: live() == ["2", "3", "4"], what="the newest events")
        running.end(signal.SIGKILL)
        running.start()
        broker.publish(*(("t", str(value)) for value in range(5, 9)))
        wait_for(lambda: live() == ["6", "7", "8"], what="the newest events after a kill")
