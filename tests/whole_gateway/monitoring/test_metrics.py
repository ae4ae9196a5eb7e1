"""Figures of the gateway and of the evaluation of subscriptions: WebSocket, HTTP and command line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families
from websockets.asyncio.client import ClientConnection, connect

from lamplighter.engine.client import EngineClient
from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import free_port
from tests.support.commands import command
from tests.support.running_gateway import ask, health, hear, http, query, running_gateway, tell, update

TELESCOPED = "SELECT ?s { ?s <http://p> ?o }"
SEEDED = "SELECT ?s ?x { ?s <http://p> ?o OPTIONAL { ?s <http://x> ?x } }"
RE_EVALUATED = "SELECT ?s ?o { ?s (<http://next>/<http://next>?)+ ?o }"
LABEL = r'\w+="[\w.+-]+"'
OF_THE_PROCESS = ("up_time_seconds", "resident_bytes", "open_files", "http_requests_total")


@asynccontextmanager
async def subscribed(folder: Path, **tables: dict[str, object]) -> AsyncIterator[tuple[Addresses, ClientConnection]]:
    """A gateway with one subscription of each class, two of the last."""
    async with running_gateway(folder, **tables) as at, connect(at.subscribe) as socket:
        for alias, text in enumerate((TELESCOPED, SEEDED, RE_EVALUATED, RE_EVALUATED)):
            answer = await ask(socket, {"subscribe": {"sparql": text, "alias": str(alias)}})
            assert "notification" in answer, answer
        yield at, socket


async def metrics(at: Addresses) -> dict[str, float]:
    """The samples of `GET /metrics`; fails for what is not in the text format."""
    answer = await http(at.health.replace("/health", "/metrics"))
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert "version=0.0.4" in answer.headers["content-type"]
    samples, described, typed = {}, set(), set()
    assert answer.body.endswith(b"\n")
    for line in answer.body.decode().splitlines():
        if found := re.fullmatch(r"# HELP (\w+) .+", line):
            described.add(found[1])
        elif found := re.fullmatch(r"# TYPE (\w+) (counter|gauge|histogram)", line):
            typed.add(found[1])
            assert found[1].endswith("_total") == (found[2] == "counter")
            assert found[1].endswith("_seconds") >= (found[2] == "histogram")
        else:
            found = re.fullmatch(rf"((\w+)(?:\{{{LABEL}(?:,{LABEL})*\}})?) ([0-9.e+-]+)", line)
            assert found, line
            assert found[2] in described & typed or re.sub("_(bucket|sum|count)$", "", found[2]) in described & typed
            assert found[1] not in samples
            samples[found[1]] = float(found[3])
    return samples


OPENMETRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (f"{OPENMETRICS};version=no-number", "text/plain; version=0.0.4; charset=utf-8"),
        (OPENMETRICS, f"{OPENMETRICS}; version=1.0.0; charset=utf-8"),
        (
            f"{OPENMETRICS};version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5",  # Prometheus 2
            f"{OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
    ],
)
async def test_the_format_is_negotiated(tmp_path: Path, accept: str, media_type: str) -> None:
    parse = openmetrics_families if media_type.startswith(OPENMETRICS) else prometheus_families
    async with subscribed(tmp_path) as (at, _):
        await update(at, "NOT SPARQL")
        answer = await http(at.health.replace("/health", "/metrics"), headers={"Accept": accept})
        assert (answer.status, answer.headers["content-type"]) == (200, media_type)
        assert "Accept" in answer.headers["vary"]
        families = {family.name: family for family in parse(answer.body.decode())}
        expected = {"quads": "gauge", "updates": "counter", "sync_seconds": "histogram", "errors": "counter"}
        for name, kind in expected.items():
            assert families[f"lamplighter_{name}"].type == kind
        [version] = (families.get("lamplighter") or families["lamplighter_info"]).samples
        assert (version.name, set(version.labels), version.value) == ("lamplighter_info", {"version"}, 1)


async def test_the_class_is_told_with_the_first_notification_to_those_who_ask(gateway: Addresses) -> None:
    async with connect(gateway.subscribe) as socket:
        for text, name in ((TELESCOPED, "telescoped"), (SEEDED, "seeded"), (RE_EVALUATED, "re-evaluated")):
            told = await ask(socket, {"subscribe": {"sparql": text, "class": True}})
            assert told["notification"]["class"] == name
            assert list(told["notification"])[-1] == "class"
        for members in ({}, {"class": False}, {"class": "lamp"}):
            told = await ask(socket, {"subscribe": {"sparql": "SELECT ?s { ?s <http://q> ?o }", **members}})
            assert set(told["notification"]) == {"spuid", "sequence", "addedResults", "removedResults"}
        await update(gateway, "INSERT DATA { <http://a> <http://p> 1 }")
        assert "class" not in (await hear(socket))["notification"]


async def test_the_client_in_python_is_told_the_class(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        changes = client.subscribe(RE_EVALUATED)
        assert (await anext(changes)).spu_class == "re-evaluated"
        await client.update("INSERT DATA { <http://a> <http://next> <http://b> }")
        assert (await anext(changes)).spu_class is None


async def test_health_and_metrics_count_the_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.gateway.loop.runner.PAUSE_S", 3600.0)  # the auditor counts its rounds
    async with subscribed(tmp_path) as (at, _):
        counted = {"telescoped": 1, "seeded": 1, "re-evaluated": 2}
        assert (await health(at))["subscription_classes"] == counted
        before = await metrics(at)
        assert before['lamplighter_subscriptions_by_class{class="re-evaluated"}'] == 2
        assert before["lamplighter_subscriptions"] == 4
        await update(at, "INSERT DATA { <http://a> <http://p> 1 . <http://a> <http://next> <http://b> }")
        await query(at, "ASK {}")
        after = await metrics(at)
        risen = {
            name: after[name] - before[name]
            for name in after
            if after[name] != before[name]
            and "_seconds_" not in name
            and name.removeprefix("lamplighter_") not in OF_THE_PROCESS
        }
        assert risen.pop("lamplighter_syncs_total") == 1
        assert risen == {
            "lamplighter_quads": 2,
            "lamplighter_updates_total": 1,
            "lamplighter_commits_total": 1,
            "lamplighter_queries_total": 1,
            "lamplighter_notifications_total": 4,
        }


async def test_without_subscriptions_each_class_has_none(gateway: Addresses) -> None:
    found = await metrics(gateway)
    for name in ("telescoped", "seeded", "counted", "ordered", "re-evaluated"):
        assert found[f'lamplighter_subscriptions_by_class{{class="{name}"}}'] == 0
    assert found["lamplighter_healthy"] == 1


async def test_durations_are_histograms(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (at, _):
        await update(at, "INSERT DATA { <http://a> <http://p> 1 }")
        await update(at, "NOT SPARQL")
        await query(at, "ASK {}")
        found = await metrics(at)
        counted = {"store_query": 1, "store_update": 1, "spu_manager": 1, "sync": 0, "update_processing": 2}
        for name, count in counted.items():
            buckets = [(found[key], key) for key in found if key.startswith(f"lamplighter_{name}_seconds_bucket")]
            assert [value for value, _ in buckets] == sorted(value for value, _ in buckets)
            assert buckets[-1] == (count, f'lamplighter_{name}_seconds_bucket{{le="+Inf"}}')
            assert found[f"lamplighter_{name}_seconds_count"] == count
            assert (found[f"lamplighter_{name}_seconds_sum"] > 0) == (count > 0)
        assert found['lamplighter_errors_total{code="SPARQL11ProtocolException",gate="http"}'] == 1


async def test_subscriptions_are_listed_with_class_reason_and_cost(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as (at, _):
        await update(at, "INSERT DATA { <http://a> <http://next> <http://b> ; <http://p> 1 }")
        answer = await http(at.health.replace("/health", "/subscriptions"))
        found = answer.json["subscriptions"]
        assert answer.json["total"] == 4
        assert [one["class"] for one in found] == ["telescoped", "seeded", "re-evaluated", "re-evaluated"]
        assert [one["subscribers"] for one in found] == [1, 1, 2, 2]
        assert [bool(one["reason"]) for one in found] == [False, False, True, True]
        prices = [one["price"] for one in found]
        assert [price["commits"] for price in prices] == [1, 1, 1, 1]
        assert all(price["us"] > 0 for price in prices)
        assert [(price["queries"], price["kept"]) for price in prices] == [(1, 0), (1, 0), (1, 1), (1, 1)]
        assert len({one["spuid"] for one in found}) == 4
        assert "<http://next>" in found[2]["text"]
        for one in found:
            assert re.fullmatch(r"127\.0\.0\.1:\d+", one["client"])
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", one["since"])


async def test_the_command_prints_a_table_of_the_subscriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "lamplighter.toml"
    port = free_port()
    config.write_text(f"[http]\nport = {port}\n")
    async with subscribed(tmp_path, http={"port": port}) as (at, _):
        assert urlsplit(at.health).port == port
        done = await asyncio.to_thread(command, "subscriptions", "--config", config)
        assert (done.returncode, done.stderr) == (0, "")
        header, *table = done.stdout.splitlines()
        assert header.split("  ")[0] == "SPUID"
        assert "US PER COMMIT" in header and "MEASURED" in header and "KEPT" in header
        start = header.index("CLASS")
        assert [row[start:].split()[0] for row in table] == [
            "telescoped",
            "seeded",
            "re-evaluated",
            "re-evaluated",
        ]
        assert all(row.startswith("sepa://subscription/") for row in table)
        reason = header.index("REASON")
        assert [bool(row[reason:].strip()) for row in table] == [False, False, True, True]
        monkeypatch.setattr("lamplighter.gateway.monitoring.figures.LISTED_MAX", 3)
        done = await asyncio.to_thread(command, "subscriptions", "--config", config)
        assert len(done.stdout.splitlines()) == 5
        assert done.stdout.endswith("\nand 1 more\n")


async def test_those_who_wait_for_the_same_are_told_the_same(gateway: Addresses) -> None:
    """The results are written once; spuid and sequence are each subscriber's own."""
    async with connect(gateway.subscribe) as one, connect(gateway.subscribe) as two:
        first = (await ask(one, {"subscribe": {"sparql": TELESCOPED}}))["notification"]["spuid"]
        await update(gateway, "INSERT DATA { <http://a> <http://p> 1 }")
        assert (await hear(one))["notification"]["sequence"] == 1
        second = (await ask(two, {"subscribe": {"sparql": TELESCOPED}}))["notification"]["spuid"]
        other = await ask(two, {"subscribe": {"sparql": TELESCOPED.replace("?s", "?lamp")}})
        await update(gateway, "DELETE DATA { <http://a> <http://p> 1 } ; INSERT DATA { <http://b> <http://p> 'ვ' }")
        told = [(await hear(one))["notification"], *[(await hear(two))["notification"] for _ in range(2)]]
        assert [(body["spuid"], body["sequence"]) for body in told] == [
            (first, 2),
            (second, 1),
            (other["notification"]["spuid"], 1),
        ]
        assert told[0]["addedResults"] == told[1]["addedResults"]
        assert told[2]["addedResults"]["results"]["bindings"] == [{"lamp": {"type": "uri", "value": "http://b"}}]
        assert told[2]["removedResults"]["head"]["vars"] == ["lamp"]
        await tell(one, {"unsubscribe": {"spuid": first}})
        assert "unsubscribed" in await hear(one)
