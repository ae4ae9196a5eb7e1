"""The dashboard of Grafana and the alert rules of Prometheus name metrics and labels that gateways have."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters import counting
from lamplighter.adapters.mapping import load_mapping
from lamplighter.cloud_sync.status import Status, write_status
from tests.support.brokers import mosquitto
from tests.support.gateway_process import GatewayProcess
from tests.support.mqtt_adapter import BASE, mqtt_adapter
from tests.support.places import ROOT
from tests.support.plain_yaml import read_yaml
from tests.support.running_gateway import http, query, running_gateway, until
from tests.whole_gateway.monitoring.test_brokers import until_state

FOLDER = ROOT / "docs" / "monitoring"
SAMPLE = re.compile(r"(lamplighter_\w+)(?:\{(.*)\})? \S+")
SELECTOR = re.compile(r"(lamplighter_\w+)(?:\{([^}]*)\})?")
OWN = {"instance", "job"}
"""Labels that Prometheus adds."""
APPLICATION = {
    "queries": {"IN": {"sparql": "SELECT ?x { ?x <urn:in> ?v }"}},
    "updates": {"OUT": {"sparql": "INSERT DATA { <urn:a> <urn:out> 1 }"}},
    "extended": {"lamplighter": {"aggregators": {"one": {"query": "IN", "added": "OUT"}}}},
}

Labels = dict[str, set[str]]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "grafana-dashboard.json").read_text()))


def rules() -> list[dict[str, Any]]:
    [group] = read_yaml((FOLDER / "alerts.yml").read_text())["groups"]
    assert group["name"] == "lamplighter"
    return list(group["rules"])


def expressions() -> Iterator[str]:
    """Each expression in PromQL of both files."""
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def add_labels(found: Labels, text: str) -> None:
    """Adds the labels of each metric in the text of `GET /metrics`."""
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        if match is not None:
            found[match[1]] |= set(re.findall(r'(\w+)="', match[2] or ""))


async def test_every_metric_and_label_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "WRITE_S", 0.01)
    found: Labels = defaultdict(set)
    with mosquitto() as broker:
        mqtt = {"host": "127.0.0.1", "port": broker.port}
        async with (
            running_gateway(tmp_path / "adapter", mqtt=mqtt) as addresses,
            mqtt_adapter(addresses, broker, load_mapping(ROOT / "mapping", BASE), switches=True),
        ):
            await query(addresses, "NOT SPARQL")
            await until_state(addresses, "connected")
            await asyncio.to_thread(broker.publish, ("street/1/temperature", "20"))

            async def counted() -> bool:
                answer = await http(addresses.health.replace("/health", "/metrics"))
                add_labels(found, answer.body.decode())
                return "lamplighter_adapter_readings_total" in found

            await until(counted, "the counters of the adapter")
    process = tmp_path / "process"
    (process / "apps").mkdir(parents=True)
    (process / "apps" / "app.jsap").write_text(json.dumps(APPLICATION))
    (process / "data").mkdir()
    write_status(process / "data", Status(last_success=time.time()))
    with GatewayProcess(process) as gateway:
        answer = await asyncio.to_thread(urllib.request.urlopen, f"{gateway.http_url}/metrics", timeout=120)
        with answer:
            add_labels(found, answer.read().decode())
    named = set()
    for expression in expressions():
        for name, selector in SELECTOR.findall(expression):
            named.add(name)
            assert name in found, f"{name} is not exported"
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert used <= found[name] | OWN, f"{name} has no labels {used - found[name] - OWN}"
    assert len(named) > 25


def test_expressions_are_whole() -> None:
    for expression in expressions():
        for begin, end in ("()", "{}", "[]"):
            assert expression.count(begin) == expression.count(end), expression
        assert expression.count('"') % 2 == 0, expression
        for window in re.findall(r"\[([^]]*)\]", expression):
            assert re.fullmatch(r"\d+[smhd]|\$__rate_interval", window), expression


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    found = dashboard()
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    names = {variable["name"] for variable in found["templating"]["list"]}
    text = json.dumps(found)
    assert set(re.findall(r"\$\{?(\w+)", text)) <= names | {"__rate_interval", "__all"}
    assert "${datasource}" in text and "$instance" in text


def test_the_rules_have_what_prometheus_and_people_need() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert set(rule) in (
            {"alert", "expr", "labels", "annotations"},
            {"alert", "expr", "for", "labels", "annotations"},
        )
        assert re.fullmatch(r"Lamplighter[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "action"}
        labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert labels <= {"instance", "component", "application"}


@pytest.mark.parametrize(
    "text",
    [
        "a: b\na: c",
        "a:\n  b: c\n d: e",
        "a: b: c",
        "a: *b",
        "a: [1]",
        "a: 'b'",
        'a: "b',
        "\ta: b",
        "a: |\n  b",
        "a",
        "a: 1",
    ],
)
def test_the_reader_of_rules_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        read_yaml(text)
