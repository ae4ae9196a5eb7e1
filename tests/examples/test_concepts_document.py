"""docs/concepts.md says what is so: its texts run on an engine, and its profile is an application."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lamplighter.engine import Engine
from lamplighter.gateway.state.applications import load_applications
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "concepts.md").read_text()
STREET, PRODUCER, SUBSCRIPTION, EVENT = re.findall(r"```sparql\n(.*?)```", DOCUMENT, re.S)
MESSAGE, PROFILE = re.findall(r"```json\n(.*?)```", DOCUMENT, re.S)
[NOTIFIED] = re.findall(r"```\n\+ (\S+)\n```", DOCUMENT)
STATE = "SELECT ?state { <http://example.org/lamp1> <http://example.org/state> ?state }"


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.update(STREET)
    return engine


def state(engine: Engine) -> str | None:
    [row] = engine.query(STATE)
    return row["state"]


def test_update_of_the_producer_notifies_the_subscriber(engine: Engine) -> None:
    subscription = engine.subscribe(SUBSCRIPTION)
    assert not list(subscription.first)
    [notification] = engine.update(PRODUCER).notifications
    assert list(notification.added) == [(f"<{NOTIFIED}>",)]
    assert not list(notification.removed)


def test_delayed_update_has_an_effect_only_if_nobody_came(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "street.jsap").write_text(PROFILE)
    [application] = load_applications(tmp_path)
    row = {"lamp": f"<{NOTIFIED}>"}
    off = application.profile.update_text("OFF", row)
    engine.update(PRODUCER)
    engine.update(application.profile.update_text("ON", row))
    assert state(engine) == '"ON"'
    engine.update(off)
    assert state(engine) == '"ON"'
    engine.update(PRODUCER.replace("true", "false"))
    engine.update(off)
    assert state(engine) == '"OFF"'


def test_message_subscribes_to_the_same_query(engine: Engine) -> None:
    [sparql] = re.findall(r'"sparql": "([^"]*)"', MESSAGE)
    engine.subscribe(SUBSCRIPTION)
    engine.subscribe(sparql)
    assert engine.unit_count == 1


def test_compound_event_is_in_a_graph_of_its_own(engine: Engine) -> None:
    engine.update(EVENT)
    [row] = engine.query("SELECT DISTINCT ?event { GRAPH ?event { ?event ?p ?o } }")
    assert row["event"] == "<http://example.org/event7>"
