from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec

from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mapping import Births, Mapping, StreamRule, StreamTable
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.adapters.mqtt.discovery.sparkplug import node_of
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.places import ROOT

BASE = "http://lamplighter.local/"
CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "readings"


def message(name: str) -> tuple[str, bytes]:
    topic, _, payload = (CORPUS / f"sparkplug_{name}").read_bytes().partition(b"\n")
    return topic.decode(), payload


def test_a_birth_is_a_device_whose_metrics_are_read() -> None:
    known = Announcements(["sparkplug"], devices_max=10)
    (device,) = known.read("default", *message("birth")).devices
    assert device.identity.startswith("sparkplug/g_n_d~") and device.name == "d"
    assert node_of(device) == ("g", "n")
    kinds = {sensor.label: sensor.kind for sensor in device.sensors}
    assert "Temp/Inner" in kinds and "bdSeq" not in kinds
    rules = [
        StreamRule(
            msgspec.convert(json.loads(json.dumps(rule["stream"])), StreamTable),
            prefixes=PREFIXES,
            base_iri=BASE,
            place=path,
        )
        for path, rule in Registry(BASE).rules(device).items()
    ]
    births, mapping = Births(), Mapping(rules)
    assert mapping.filters == ("spBv1.0/g/+/n/d",)
    read = [
        found
        for name in ("birth", "data")
        for found in mapping.readings(
            *message(name), retained=False, received=datetime(2030, 1, 1, tzinfo=UTC), births=births
        )
    ]
    assert read and all(isinstance(one, Reading) for one in read), read
    assert {one.stream.label for one in read if isinstance(one, Reading)} <= set(kinds)


def test_other_topics_and_payloads_are_problems() -> None:
    known = Announcements(["sparkplug"], devices_max=10)
    for topic, payload in (
        ("spBv1.0/g/NBIRTH/n", b"\xff\xff"),
        ("spBv1.0/g/NBIRTH/n/d", b""),
        ("spBv1.0/g/DBIRTH/n", b""),
        ("spBv1.0/g/NBIRTH/n", b"\0" * 300_000),
    ):
        assert known.read("", topic, payload).problems, topic
    assert not known.covers("spBv1.0/g/NDATA/n")
    topic, payload = message("birth")
    changes = known.read("", topic.replace("/n/", "/#/"), payload)
    assert not changes.devices and all("wildcard" in problem.reason for problem in changes.problems)


def test_a_metric_whose_name_has_control_characters_is_left_out() -> None:
    topic, payload = message("birth")
    assert payload.count(b"Temp/Inner") == 1
    payload = payload.replace(b"Temp/Inner", b"Temp\nInner")
    changes = Announcements(["sparkplug"], devices_max=10).read("", topic, payload)
    (device,) = changes.devices
    assert not any("Temp" in sensor.label for sensor in device.sensors)
    assert [problem.reason for problem in changes.problems] == [
        "Temp Inner: the name of the metric is too long, or has control characters"
    ]
